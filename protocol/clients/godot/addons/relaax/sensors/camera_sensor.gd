# A picture of a viewport, as bytes. It needs a renderer: godot3-server has none.
extends Node

export(NodePath) var viewport  # empty: the viewport of this node
export(int, 1, 1024) var width = 84
export(int, 1, 1024) var height = 84
export(bool) var color = false

var _reported = false


func shape():
	return [height, width, 3] if color else [height, width]


func picture():
	var from = get_node(viewport) if viewport else get_viewport()
	var image = from.get_texture().get_data()
	if image == null or image.is_empty():
		if not _reported:
			push_error("RLX: the camera sensor %s sees nothing, because this Godot draws nothing: run it with a window, such as under xvfb-run" % get_path())
		_reported = true
		var black = PoolByteArray()
		for _i in range(width * height * (3 if color else 1)):
			black.append(0)
		return black
	image.flip_y()  # textures of viewports are upside down
	image.resize(width, height, Image.INTERPOLATE_BILINEAR)
	image.convert(Image.FORMAT_RGB8 if color else Image.FORMAT_L8)
	return image.get_data()
