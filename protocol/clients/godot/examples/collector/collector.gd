# Arenas in rows, each with an agent. The option --agents N of the command line sets their number.
extends Node2D

const SIDE = 440  # pixels between arenas

export(PackedScene) var arena
export(int, 1, 1000) var agents = 16


func _enter_tree():
	var words = Array(OS.get_cmdline_args())
	var at = words.find("--agents")
	if at >= 0 and at + 1 < words.size() and int(words[at + 1]) > 0:
		agents = int(words[at + 1])
	var columns = int(ceil(sqrt(agents)))
	for i in range(agents):
		var one = arena.instance()
		one.position = Vector2(i % columns + 0.5, i / columns + 0.5) * SIDE
		add_child(one)
	var camera = Camera2D.new()
	camera.position = Vector2.ONE * columns * SIDE / 2
	camera.zoom = Vector2.ONE * columns * SIDE / 600  # the window is 600 pixels high
	camera.current = true
	add_child(camera)
