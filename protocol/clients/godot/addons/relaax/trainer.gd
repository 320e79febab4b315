# Lets all agents of a scene act, every `decision_period` physics frames: by a person, by a policy file, or by an RLX server
# that trains them. Several agents are several environments of one connection.
#
# Options of the command line replace the properties, and end the game when it is done:
#   --rlx HOST:PORT   train with this server
#   --exploit         with --rlx: act as well as possible, and do not learn
#   --policy FILE     play from a file that `relaax checkpoints export LOCATION FILE.rlxp` wrote
#   --name NAME       the name of the environment, for logs
#   --speed S         S times as fast as real time
#   --retry-seconds S give up if the server is unavailable for this time
#   --episodes K      end after K episodes, and print their mean return
#   --steps K         end after K decisions of all agents, and print them
#   --seed S          repeat the random numbers of the game
# The variable RELAAX_TOKEN, or the file in RELAAX_TOKEN_FILE, is the server's token.
extends Node

const Client = preload("client.gd")
const Policy = preload("policy.gd")
const Space = preload("space.gd")
const WITH_VALUE = ["--rlx", "--policy", "--name", "--speed", "--retry-seconds", "--episodes", "--steps", "--seed"]

signal episode_ended(agent, episode_return)
signal finished(message)  # training has finished, or cannot continue

export(String, "training", "policy", "heuristic") var mode = "training"
export(String) var address = "localhost:7001"
export(String, FILE, "*.rlxp") var policy_file = ""
export(String) var environment_name = ""
export(int, 1, 1000) var decision_period = 4
export(float, 0.1, 1000.0) var speed = 1.0  # of training, relative to real time
export(bool) var exploit = false

var client
var agents = []
var message = ""  # why the game stopped

var _options = {}
var _frame = 0
var _began = false
var _stopped = false
var _playing = false  # the server has answered, and has no outcome of it
var _taken = []  # for each agent, the action of the person, or null
var _policies = []
var _episodes = 0
var _return_sum = 0.0
var _steps = 0
var _start = 0


func _init():
	process_priority = -100  # before the agents
	_read_command_line(Array(OS.get_cmdline_args()))


func _read_command_line(words):
	for i in range(words.size()):
		var word = words[i]
		if word == "--exploit":
			_options[word] = true
		elif WITH_VALUE.has(word):
			if i + 1 == words.size():
				return _stop("%s needs a value" % word, 2)
			_options[word] = words[i + 1]
	for name in ["--speed", "--retry-seconds", "--episodes", "--steps", "--seed"]:
		if _options.has(name) and not _options[name].is_valid_float():
			return _stop("%s needs a number, not %s" % [name, _options[name]], 2)
	if _options.has("--seed"):
		seed(int(_options["--seed"]))
	else:
		randomize()


func _ready():
	if _options.has("--rlx"):
		mode = "training"
		address = _options["--rlx"]
	elif _options.has("--policy"):
		mode = "policy"
		policy_file = _options["--policy"]
		if policy_file.is_rel_path() and OS.get_environment("PWD") != "":  # --path changes the working directory
			policy_file = OS.get_environment("PWD") + "/" + policy_file
	environment_name = _options.get("--name", environment_name)
	exploit = exploit or _options.has("--exploit")
	speed = float(_options.get("--speed", speed))
	if mode != "heuristic" and speed != 1.0:
		Engine.iterations_per_second = int(Engine.iterations_per_second * speed)
		Engine.time_scale = speed
	if OS.get_name() == "Server" and speed != 1.0:
		OS.low_processor_usage_mode_sleep_usec = 1  # a headless Godot otherwise sleeps in every frame


# Every frame: the agents act in each `decision_period`-th one.
func _physics_process(_delta):
	if client != null and not _stopped:
		client.poll()
	_frame += 1
	if _stopped or (_frame - 1) % decision_period:
		return
	if not _began:
		_began = true
		_begin()
		if _stopped:
			return
	if mode == "training":
		_train()
	else:
		_play()
	_report_end()


func _begin():
	agents = get_tree().get_nodes_in_group("relaax_agents")
	if agents.size() == 0:
		return _stop("the scene has no agent: add a node with a script that extends addons/relaax/agent.gd", 2)
	var observation = agents[0].observation_space()
	var action = agents[0].action_space()
	for agent in agents:
		_taken.append(null)
		var same = Space.encoded(agent.observation_space()) == Space.encoded(observation)
		if not same or Space.encoded(agent.action_space()) != Space.encoded(action):
			return _stop("the agents %s and %s have different spaces: agents of one scene need the same" % [agents[0].get_path(), agent.get_path()], 2)
	_start = OS.get_ticks_msec()
	match mode:
		"training":
			_begin_training(observation, action)
		"policy":
			_begin_policies(observation, action)
	if mode != "training" and not _stopped:
		for agent in agents:
			agent.restart()


func _begin_training(observation, action):
	var token = OS.get_environment("RELAAX_TOKEN")
	if token == "" and OS.get_environment("RELAAX_TOKEN_FILE") != "":
		var file = File.new()
		if file.open(OS.get_environment("RELAAX_TOKEN_FILE"), File.READ) != OK:
			return _stop("cannot read the file %s of RELAAX_TOKEN_FILE" % OS.get_environment("RELAAX_TOKEN_FILE"), 2)
		token = file.get_as_text().strip_edges()
	var can_take_over = false
	for agent in agents:
		can_take_over = can_take_over or agent.takeover_input != ""
	client = Client.new(address, {
		"observation": observation,
		"action": action,
		"environments": agents.size(),
		"autoreset": "same_step",
		"mode": "exploit" if exploit else "train",
		"token": token,
		"environment": environment_name,
		"host": OS.get_environment("HOSTNAME"),
		"frame_skip": decision_period,
		"chosen_actions": can_take_over,
		"retry_seconds": float(_options.get("--retry-seconds", 300)),
	})
	if client.error != null:
		_stop(client.error.message, 2)


func _begin_policies(observation, action):
	for agent in agents:
		var policy = Policy.new()
		if not policy.open(policy_file):
			return _stop(policy.error, 2)
		for pair in [["observations", policy.observation, observation], ["actions", policy.action, action]]:
			var needed = []
			for leaf in Space.leaves_of(pair[2]):
				var choices = leaf.space.get("nvec", [leaf.space.get("n")])
				needed.append("choices %s" % [choices] if choices[0] else "%d %s" % [leaf.elements, leaf.space.dtype])
			var found = []
			for leaf in pair[1]:
				found.append("choices %s" % [leaf.choices] if leaf.has("choices") else "%d %s" % [leaf.count, leaf.dtype])
			if found != needed:
				var both = [PoolStringArray(found).join(", "), PoolStringArray(needed).join(", ")]
				return _stop("%s is a policy for other %s: %s, and the game has %s" % ([policy_file, pair[0]] + both), 2)
		_policies.append(policy)


func _train():
	var observations = []
	var more = {"terminated": [], "truncated": []}
	var finals = []
	var reward = []
	for agent in agents:
		if not _playing:
			agent.restart()
			observations.append(agent.observe())
			continue
		var outcome = agent.outcome()
		var seen = agent.observe()
		reward.append(outcome[0])
		more.terminated.append(outcome[1] == "terminated")
		more.truncated.append(outcome[1] == "truncated")
		finals.append(seen)
		if outcome[1] != "":
			_count(agent)
			seen = agent.observe()
		observations.append(seen)
	var actions
	if _playing:
		if more.truncated.has(true):
			more["final_observation"] = _joined(finals)
		_add_taken(more)
		actions = client.step(reward, _joined(observations), more)
		_steps += agents.size()
	else:
		actions = client.init(_joined(observations))
	_playing = actions != null
	if actions == null:
		if client.error.kind == Client.INTERRUPTED:
			push_warning("RLX: %s" % client.error.message)
		elif client.error.kind == Client.FINISHED:
			_stop(client.error.message, 0)
		else:
			var useless = client.error.kind == Client.INVALID or (client.error.code >= 4 and client.error.code <= 7)
			_stop(client.error.message, 2 if useless else 1)
		return
	for i in range(agents.size()):
		agents[i].action = _row(actions, i)
		_taken[i] = agents[i].heuristic() if agents[i].is_taken_over() else null
		if _taken[i] != null:
			agents[i].action = _taken[i]


# Add the actions of the person to an outcome.
func _add_taken(more):
	var chosen = []
	var leaves = []
	for i in range(agents.size()):
		chosen.append(_taken[i] != null)
		var action = agents[i].action
		leaves.append(action if client.action_leaves.size() > 1 else [action])
	if chosen.has(true):
		more["chosen"] = chosen
		more["action"] = _joined(leaves)


func _play():
	for i in range(agents.size()):
		var agent = agents[i]
		if agent.action != null:
			var outcome = agent.outcome()
			_steps += 1
			if outcome[1] != "":
				_count(agent)
				if mode == "policy":
					_policies[i].reset()
		if mode == "heuristic" or agent.is_taken_over():
			agent.action = agent.heuristic()
			continue
		var actions = _policies[i].act(agent.observe())
		if actions == null:
			return _stop(_policies[i].error, 1)
		var values = []
		var leaves = Space.leaves_of(agent.action_space()) if i == 0 else _leaves
		_leaves = leaves
		for k in range(leaves.size()):
			values.append(actions[k][0] if leaves[k].shape.size() == 0 else actions[k])
		agent.action = values[0] if values.size() == 1 else values


var _leaves = []  # of an action


# Count an episode that ended, and begin the next one.
func _count(agent):
	_episodes += 1
	_return_sum += agent.episode_return
	emit_signal("episode_ended", agent, agent.episode_return)
	agent.restart()


# The action of an agent, from the leaves of all agents.
func _row(actions, i):
	var values = []
	for k in range(actions.size()):
		var leaf = client.action_leaves[k]
		if leaf.shape.size() == 0:
			values.append(actions[k][i])
		else:
			values.append(actions[k].slice(i * leaf.elements, (i + 1) * leaf.elements - 1))
	return values[0] if values.size() == 1 else values


# The leaves of all agents, from the leaves of each.
func _joined(rows):
	var leaves = []
	for k in range(rows[0].size()):
		var bytes = typeof(rows[0][k]) == TYPE_RAW_ARRAY
		var all = PoolByteArray() if bytes else []
		for row in rows:
			if bytes:
				all.append_array(row[k])
			elif typeof(row[k]) >= TYPE_ARRAY:
				all += Array(row[k])
			else:
				all.append(row[k])
		leaves.append(all)
	return leaves


func _report_end():
	if _stopped:
		return
	var enough = _options.has("--episodes") and _episodes >= int(_options["--episodes"])
	if enough or (_options.has("--steps") and _steps >= int(_options["--steps"])):
		_stop("", 0)


# Stop all agents. `code`: the exit code, if the command line has options.
func _stop(sentence, code):
	_stopped = true
	message = sentence
	if client != null:
		client.close()
	if code:
		push_error("RLX: " + sentence)
	elif sentence != "":
		print(sentence)
	emit_signal("finished", sentence)
	if _options.size():
		if _episodes:
			var seconds = max((OS.get_ticks_msec() - _start) / 1000.0, 0.001)
			print("%d steps, %d episodes, mean return %.2f, %.0f steps/s" % [_steps, _episodes, _return_sum / _episodes, _steps / seconds])
		if is_inside_tree():
			get_tree().quit(code)
		else:
			call_deferred("_quit", code)


func _quit(code):
	get_tree().quit(code)


func _exit_tree():
	if client != null:
		client.close()
