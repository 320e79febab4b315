# Loads every script, and fails if one does not compile.
extends SceneTree


func _init():
	var broken = 0
	for folder in ["res://addons/relaax", "res://addons/relaax/sensors", "res://examples", "res://examples/collector", "res://tests"]:
		var directory = Directory.new()
		if directory.open(folder) != OK:
			continue
		directory.list_dir_begin(true)
		var name = directory.get_next()
		while name != "":
			if name.ends_with(".gd"):
				var script = load(folder + "/" + name)
				if script == null or not (script.can_instance() or name == "plugin.gd"):
					printerr("%s/%s does not compile" % [folder, name])
					broken += 1
			name = directory.get_next()
	quit(1 if broken else 0)
