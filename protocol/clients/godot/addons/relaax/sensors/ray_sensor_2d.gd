# Rays around this node. Each ray has a number for each group: 1 - distance / length if the first thing that it meets is in
# the group, else 0.
extends Node2D

export(int, 1, 1000) var rays = 16
export(float) var length = 300.0  # pixels
export(float, 0, 360) var spread = 360.0  # degrees, the middle to the right of the node
export(Array, String) var groups = []
export(int, LAYERS_2D_PHYSICS) var collision_mask = 0x7FFFFFFF
export(NodePath) var excluded  # a body that the rays ignore, such as the player


func size():
	return rays * groups.size()


func sense():
	var space = get_world_2d().direct_space_state
	var ignored = [get_node(excluded)] if excluded else []
	var from = global_position
	var gap = spread / (rays if spread >= 360 else max(rays - 1, 1))
	var seen = []
	for i in range(rays):
		var angle = global_rotation + deg2rad(gap * i - (spread / 2 if spread < 360 else 0.0))
		var hit = space.intersect_ray(from, from + Vector2(length, 0).rotated(angle), ignored, collision_mask, true, true)
		var near = 1 - from.distance_to(hit.position) / length if hit else 0.0
		for group in groups:
			seen.append(near if hit and hit.collider.is_in_group(group) else 0.0)
	return seen
