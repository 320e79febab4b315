# Runs the collector while a person holds two keys: the right arrow, and the one that takes the controls.
extends SceneTree


func _init():
	Input.action_press("ui_right")
	Input.action_press("ui_select")
	change_scene("res://examples/collector/collector.tscn")
