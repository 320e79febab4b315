# The agent of the collector: it moves its body, and takes coins.
extends "res://addons/relaax/agent.gd"

const SPEED = 240.0  # pixels per second
const REACH = 28.0  # pixels
const WAYS = [Vector2.ZERO, Vector2.UP, Vector2.DOWN, Vector2.LEFT, Vector2.RIGHT]

onready var body = get_parent()
onready var coins = body.get_node("../Coins").get_children()


func action_space():
	return Space.discrete(WAYS.size())


func heuristic():
	var keys = ["", "ui_up", "ui_down", "ui_left", "ui_right"]
	for i in range(1, keys.size()):
		if Input.is_action_pressed(keys[i]):
			return i
	return 0


func begin_episode():
	body.position = anywhere()
	body.force_update_transform()
	for coin in coins:
		place(coin)


func anywhere():
	return Vector2(rand_range(-170, 170), rand_range(-170, 170))


func place(coin):
	coin.position = anywhere()
	coin.force_update_transform()  # sensors see it at once


func _physics_process(_delta):
	if action == null:
		return
	body.move_and_slide(WAYS[action] * SPEED)
	for coin in coins:
		if coin.position.distance_to(body.position) < REACH:
			add_reward(1)
			place(coin)
