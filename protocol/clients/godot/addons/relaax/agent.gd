# An agent of a game, such as a child of the player. Extend this script, and override action_space, heuristic, begin_episode
# and perhaps numbers. The node trainer.gd in the same scene sets `action`. Sensors are nodes below this one.
extends Node2D

const Space = preload("space.gd")

export(int, 0, 1000000) var max_decisions = 0  # an episode is truncated after so many; 0: never
export(String) var takeover_input = ""  # an action of the input map: while it is pressed, `heuristic` acts

# The latest action: an integer for a discrete space, a list of numbers for an array, a list of these for several spaces.
# Null before the first decision.
var action = null
var episode_return = 0.0
var decisions = 0

var _reward = 0.0
var _end = ""


func _enter_tree():
	add_to_group("relaax_agents")


# Override: return a space of space.gd, such as Space.discrete(4).
func action_space():
	push_error("RLX: the agent %s needs a function action_space that returns a space" % get_path())
	return Space.discrete(1)


# Override: return further numbers that the agent observes, always equally many.
func numbers():
	return []


# Override: return the action of a person, in the form of `action`.
func heuristic():
	push_error("RLX: the agent %s needs a function heuristic that returns the action of a person" % get_path())
	return null


# Override: reset the game of this agent.
func begin_episode():
	pass


func add_reward(amount):
	if _end == "":
		_reward += amount


# End the episode with the current decision. `truncated`: it was cut off, such as by a time limit.
func end_episode(truncated = false):
	if _end == "":
		_end = "truncated" if truncated else "terminated"


func is_taken_over():
	return takeover_input != "" and Input.is_action_pressed(takeover_input)


# The remaining functions are for trainer.gd.

func sensors_of(node, cameras, others):
	for child in node.get_children():
		if child.has_method("picture"):
			cameras.append(child)
		elif child.has_method("sense"):
			others.append(child)
		sensors_of(child, cameras, others)


func observation_space():
	var cameras = []
	var others = []
	sensors_of(self, cameras, others)
	var size = numbers().size()
	for sensor in others:
		size += sensor.size()
	if cameras.size() == 0:
		return Space.box("float32", [size])
	if cameras.size() == 1 and size == 0:
		return Space.box("uint8", cameras[0].shape(), 0, 255)
	var parts = {}
	for i in range(cameras.size()):
		parts["camera%d" % i] = Space.box("uint8", cameras[i].shape(), 0, 255)
	if size:
		parts["numbers"] = Space.box("float32", [size])
	return Space.dict(parts)


# The leaves of the observation: pictures, then numbers.
func observe():
	var cameras = []
	var others = []
	sensors_of(self, cameras, others)
	var leaves = []
	for camera in cameras:
		leaves.append(camera.picture())
	var seen = []
	for sensor in others:
		seen += sensor.sense()
	seen += numbers()
	if seen.size() or cameras.size() == 0:
		leaves.append(seen)
	return leaves


func restart():
	episode_return = 0.0
	decisions = 0
	_reward = 0.0
	_end = ""
	begin_episode()


# Return the reward since the last call, and how the episode ended: "terminated", "truncated" or "".
func outcome():
	var reward = _reward
	_reward = 0.0
	episode_return += reward
	decisions += 1
	if max_decisions and decisions >= max_decisions:
		end_episode(true)
	return [reward, _end]
