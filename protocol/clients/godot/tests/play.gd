# Executes commands, one a line, and prints what it receives: see protocol/clients/README.md. Godot 3.2 cannot read
# standard input, so commands and output pass through a TCP port: its test has a program in between.
extends SceneTree

const Client = preload("res://addons/relaax/client.gd")
const Space = preload("res://addons/relaax/space.gd")

var pipe = StreamPeerTCP.new()
var client
var words = []
var size = 0
var over = false


func _init():
	pipe.connect_to_host("127.0.0.1", int(OS.get_cmdline_args()[-1]))
	while pipe.get_status() == StreamPeerTCP.STATUS_CONNECTING:
		OS.delay_usec(100)
	pipe.set_no_delay(true)
	var line = read_line()
	while line != null:
		execute(line)
		line = read_line()
	quit()


func read_line():
	var length = pipe.get_data(4)
	if length[0] != OK:
		return null
	var buffer = StreamPeerBuffer.new()
	buffer.data_array = length[1]
	return pipe.get_data(buffer.get_u32())[1].get_string_from_ascii()


func say(text):
	pipe.put_data((text + "\n").to_utf8())


func execute(line):
	if line == "end":
		if client != null:
			client.close()
		over = false
		say("end")
		return
	if over:
		return
	words = Array(line.split(" "))
	var command = word()
	call("do_" + command)
	if client.error == null:
		return
	over = client.error.kind != Client.INVALID
	match client.error.kind:
		Client.FINISHED:
			say("finished %s %s" % [unsigned(client.error.step), client.error.message])
		Client.INVALID:
			say("invalid %d %s" % [client.error.code, client.error.message])
		_:
			say("lost %d %s" % [client.error.code, client.error.message])
	client.error = null


# A negative number of 64 bits as an unsigned one.
func unsigned(number):
	if number >= 0:
		return str(number)
	var half = (number >> 1) & 0x7FFFFFFFFFFFFFFF
	return "%d%d" % [half / 5, half % 5 * 2 + (number & 1)]


func word():
	return words.pop_front()


func integer():
	return int(word())


func bytes(digits):
	var data = PoolByteArray()
	for i in range(0, digits.length() if digits != "-" else 0, 2):
		data.append(("0x" + digits.substr(i, 2)).hex_to_int())
	return data


func text():
	return bytes(word()).get_string_from_utf8()


func number(digits):
	var buffer = StreamPeerBuffer.new()
	buffer.big_endian = true
	buffer.data_array = bytes(digits)
	return buffer.get_double()


func integers():
	var found = []
	for _i in range(integer()):
		found.append(integer())
	return found


func numbers():
	var found = []
	for _i in range(integer()):
		found.append(number(word()))
	return found


func space():
	var kind = word()
	match kind:
		"box":
			var dtype = Space.DTYPES[integer() - 1]
			var shape = integers()
			var low = numbers()
			return Space.box(dtype, shape, low, numbers())
		"discrete":
			var n = integer()
			return Space.discrete(n, integer())
		"multi_discrete":
			return Space.multi_discrete(integers())
		"multi_binary":
			return Space.multi_binary(integers())
		"tuple":
			var parts = []
			for _i in range(integer()):
				parts.append(space())
			return Space.tuple(parts)
	var entries = {}
	for _i in range(integer()):
		var key = text()
		entries[key] = space()
	return Space.dict(entries)


func mask():
	var digits = word()
	if digits == "-":
		return null
	var found = []
	for i in range(digits.length()):
		found.append(digits[i] == "1")
	return found


# At most so many leaves, or null if there are none.
func leaves(most):
	var found = []
	while words.size() and found.size() < most:
		found.append(bytes(word()))
	return found if found.size() else null


func episodes():
	var given = word()
	var found = []
	for one in given.split(",") if given != "-" else []:
		var parts = one.split(":")
		found.append({"environment": int(parts[0]), "episode_return": number(parts[1]), "length": int(parts[2])})
	return found


func show(actions):
	if actions == null:
		return
	var shown = "actions"
	for data in client.action_bytes:
		shown += " " + data.hex_encode()
	say(shown)
	show_parameters()


func hex_of(value):
	var buffer = StreamPeerBuffer.new()
	buffer.put_double(value)
	return buffer.data_array.hex_encode()


func show_parameters():
	if not client.options.environment_parameters:
		return
	var found = client.parameters()
	var shown = "parameters"
	for name in found:
		shown += " " + name.to_utf8().hex_encode()
		for value in found[name]:
			shown += " " + hex_of(value)
	say(shown)


func do_connect():
	var address = word()
	var options = {"retry_seconds": -1.0, "environments": integer()}
	options["mode"] = Client.MODES[integer()]
	options["frame_skip"] = integer()
	for flag in ["reports_episodes", "out_of_step", "chosen_actions", "environment_parameters"]:
		options[flag] = integer() == 1
	options["autoreset"] = []
	for habit in integers():
		options["autoreset"].append(Client.HABITS[habit])
	for name in ["environment", "host", "token", "session_id"]:
		options[name] = text()
	options["observation"] = space()
	options["action"] = space()
	client = Client.new(address, options)
	if client.error == null and client.open():
		say("welcome %s %s" % [client.session_id.to_utf8().hex_encode(), client.algorithm.to_utf8().hex_encode()])
		show_parameters()


func do_init():
	var more = {"partial": mask(), "idle": mask()}
	var observation = leaves(INF)
	size = observation.size()
	show(client.init(observation, more))


func ending(more):
	more["final_observation"] = leaves(words.size() - (client.action_leaves.size() if more.chosen != null else 0))
	more["action"] = leaves(INF)
	return more


func do_step():
	var reward = numbers()
	var more = {"terminated": mask(), "truncated": mask(), "idle": mask(), "chosen": mask(), "episodes": episodes()}
	var observation = leaves(size)
	show(client.step(reward, observation, ending(more)))


func do_reset():
	var reward = numbers()
	var more = {"truncated": mask(), "chosen": mask(), "episodes": episodes()}
	var returns = client.reset(reward, ending(more))
	if returns != null:
		var shown = "returns"
		for value in returns:
			shown += " " + hex_of(value)
		say(shown)


func do_metric():
	var name = text()
	client.metric(name, number(word()))


func do_ping():
	if client.alive():
		say("pong")
