# Cells around this node. Each cell has a number for each group: 1 if something of the group overlaps the cell, else 0.
extends Node2D

export(int, 1, 100) var columns = 5
export(int, 1, 100) var rows = 5
export(float) var cell = 32.0  # pixels
export(Array, String) var groups = []
export(int, LAYERS_2D_PHYSICS) var collision_mask = 0x7FFFFFFF
export(NodePath) var excluded  # a body that the cells ignore, such as the player


func size():
	return rows * columns * groups.size()


# Row by row from the top left, as the node is turned.
func sense():
	var query = Physics2DShapeQueryParameters.new()
	var shape = RectangleShape2D.new()
	shape.extents = Vector2(cell, cell) / 2 * 0.99  # neighbouring cells do not touch
	query.set_shape(shape)
	query.collision_layer = collision_mask
	query.collide_with_areas = true
	if excluded:
		query.exclude = [get_node(excluded)]
	var space = get_world_2d().direct_space_state
	var seen = []
	for row in range(rows):
		for column in range(columns):
			var place = Vector2(column - (columns - 1) / 2.0, row - (rows - 1) / 2.0) * cell
			query.transform = Transform2D(global_rotation, global_position + place.rotated(global_rotation))
			var hits = space.intersect_shape(query)
			for group in groups:
				var found = 0.0
				for hit in hits:
					if hit.collider.is_in_group(group):
						found = 1.0
				seen.append(found)
	return seen
