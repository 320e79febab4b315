# Prints what a camera sensor sees of a window: red at the top left, the rest blue.
extends SceneTree

const Camera = preload("res://addons/relaax/sensors/camera_sensor.gd")

var camera = Camera.new()
var frames = 0


# Before the first frame, Godot 4 does not know the size of the window.
func place_all():
	for rect in [[Vector2(0, 0), Vector2(4000, 4000), Color(0, 0, 1)], [Vector2(0, 0), root.size / 2, Color(1, 0, 0)]]:
		var node = ColorRect.new()
		node.rect_position = rect[0]
		node.rect_size = rect[1]
		node.color = rect[2]
		root.add_child(node)
	camera.width = 4
	camera.height = 2
	camera.color = true
	root.add_child(camera)


func _idle(_delta):
	frames += 1
	if frames == 1:
		place_all()
	if frames == 5:
		print("picture %s %s" % [camera.shape(), Array(camera.picture())])
		quit()
	return false
