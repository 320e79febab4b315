# CartPole as an RLX client, without a scene:
#   godot3-server --path FOLDER --script examples/cartpole.gd ADDRESS[,ADDRESS] [--environments N]
#     [--autoreset disabled|same_step|next_step] [--mode train|exploit] [--episodes K] [--seed S] [--token-file FILE]
extends SceneTree

const Client = preload("res://addons/relaax/client.gd")
const Space = preload("res://addons/relaax/space.gd")

var options = {"--environments": "1", "--autoreset": "same_step", "--mode": "train", "--episodes": "0", "--seed": "", "--token-file": ""}
var client
var poles = []
var last = []  # the poles whose outcome is sent
var ended = []  # next_step: the next step begins an episode
var begun = []
var returns = []


# The pole on its cart.
class Pole:
	var state = []
	var steps = 0

	func _init():
		for _i in range(4):
			state.append(0.1 * randf() - 0.05)

	# One Euler step of 0.02 s: Barto, Sutton and Anderson 1983, with the constants of gymnasium's CartPole-v1.
	# Returns "terminated", "truncated", or "".
	func step(action):
		var sine = sin(state[2])
		var cosine = cos(state[2])
		var push = ((10 if action == 1 else -10) + 0.05 * state[3] * state[3] * sine) / 1.1
		var twist = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3 - 0.1 * cosine * cosine / 1.1))
		var acceleration = push - 0.05 * twist * cosine / 1.1
		state = [state[0] + 0.02 * state[1], state[1] + 0.02 * acceleration, state[2] + 0.02 * state[3], state[3] + 0.02 * twist]
		steps += 1
		if abs(state[0]) > 2.4 or abs(state[2]) > 12 * PI / 180:
			return "terminated"
		return "truncated" if steps >= 500 else ""


func _init():
	var address = read_command_line()
	if address == "":
		quit(2)
		return
	var token = ""
	if options["--token-file"]:
		var file = File.new()
		if file.open(options["--token-file"], File.READ) != OK:
			printerr("cannot read %s" % options["--token-file"])
			quit(2)
			return
		token = file.get_as_text().strip_edges()
	var settings = {"observation": Space.box("float32", [4]), "action": Space.discrete(2), "environment": "CartPole", "host": OS.get_environment("HOSTNAME")}
	settings["environments"] = int(options["--environments"])
	settings["autoreset"] = options["--autoreset"]
	settings["mode"] = options["--mode"]
	settings["token"] = token
	client = Client.new(address, settings)
	var wanted = int(options["--episodes"])
	play(wanted)
	while client.error != null and client.error.kind == Client.INTERRUPTED:
		play(wanted)  # new episodes, a new connection
	if returns.size():
		var sum = 0.0
		for one in returns:
			sum += one
		print("mean of %d episodes: %.2f" % [returns.size(), sum / returns.size()])
	finish()


func read_command_line():
	var words = Array(OS.get_cmdline_args())
	var address = ""
	var at = words.find("--script") + 2
	while at < words.size():
		if options.has(words[at]) and at + 1 < words.size():
			options[words[at]] = words[at + 1]
			at += 2
		elif address == "" and not words[at].begins_with("-"):
			address = words[at]
			at += 1
		else:
			printerr("unknown argument %s: there are ADDRESS, %s" % [words[at], PoolStringArray(options.keys()).join(", ")])
			return ""
	if address == "":
		printerr("the address HOST:PORT is missing")
	if options["--seed"] != "":
		seed(int(options["--seed"]))
	else:
		randomize()
	return address


func finish():
	if client.error == null:
		client.close()
		quit(0)
	elif client.error.kind == Client.FINISHED:
		print("training has finished")
		quit(0)
	else:
		printerr(client.error.message)
		var useless = client.error.kind == Client.INVALID or (client.error.code >= 4 and client.error.code <= 7)
		quit(2 if useless else 1)


# Play until `wanted` episodes have ended (0: forever), or a call fails.
func play(wanted):
	var autoreset = options["--autoreset"]
	var actions = start()
	while actions != null and (wanted == 0 or returns.size() < wanted):
		var terminated = []
		var truncated = []
		var reward = []
		for i in range(poles.size()):
			var outcome = move(i, actions[0][i])
			terminated.append(outcome == "terminated")
			truncated.append(outcome == "truncated")
			reward.append(0 if begun[i] else 1)
		var any = terminated.has(true) or truncated.has(true)
		if any and autoreset == "disabled":  # all episodes end together
			var cut = []
			for one in terminated:
				cut.append(not one)
			if client.reset(reward, {"truncated": cut, "final_observation": shown(last)}) == null:
				return
			if wanted == 0 or returns.size() < wanted:
				actions = start()
		else:
			var more = {"terminated": terminated, "truncated": truncated}
			if any and autoreset == "same_step":
				more["final_observation"] = shown(last)
			actions = client.step(reward, shown(poles), more)


func start():
	poles = []
	ended = []
	begun = []
	for _i in range(int(options["--environments"])):
		poles.append(Pole.new())
		ended.append(false)
		begun.append(false)
	last = poles.duplicate()
	return client.init(shown(poles))


func shown(of):
	var numbers = []
	for pole in of:
		numbers += pole.state
	return [numbers]


func move(i, action):
	begun[i] = ended[i]
	ended[i] = false
	if begun[i]:  # next_step: this step only begins an episode
		poles[i] = Pole.new()
		return ""
	var pole = poles[i]
	last[i] = pole
	var outcome = pole.step(action)
	if outcome != "":
		returns.append(pole.steps)
		client.metric("episode length", pole.steps)
		ended[i] = options["--autoreset"] == "next_step"
		if options["--autoreset"] == "same_step":
			poles[i] = Pole.new()
	return outcome
