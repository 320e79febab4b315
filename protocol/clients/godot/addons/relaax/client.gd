# A client of RLX, version 1 (sections are those of protocol/RLX.md), over TCP. It connects N environments to their agent.
#
# The calls connect, parameters, init, step and reset block until the server has answered. If one returns null, `error`
# has `kind` (INTERRUPTED, FINISHED, FAILED or INVALID), `message`, `code` (section 9, or 0) and `step`. A list of N
# environments is flat: all numbers of environment 0, then those of environment 1.

const Wire = preload("wire.gd")
const Space = preload("space.gd")
const NAME = "relaax-godot"
const CLIENT_VERSION = "1.0.0"
const INTERRUPTED = "interrupted"  # the connection and its episodes are lost: reset the environments and call init
const FINISHED = "finished"  # training has finished
const FAILED = "failed"  # a retry is useless, or the retries took too long
const INVALID = "invalid"  # an argument is invalid, and nothing was sent
const OPTIONS = {
	"observation": null,
	"action": null,
	"environments": 1,
	"autoreset": "disabled",
	"mode": "train",
	"token": "",
	"environment": "",
	"host": "",
	"session_id": "",
	"frame_skip": 1,
	"reports_episodes": false,
	"out_of_step": false,
	"chosen_actions": false,
	"environment_parameters": false,
	"retry_seconds": 300.0,
}
# option, field of the hello, field of the welcome, name
const CAPABILITIES = [
	["out_of_step", 15, 6, "environments out of step"],
	["chosen_actions", 16, 7, "actions of the client"],
	["environment_parameters", 17, 8, "parameters of environments"],
]
enum {HELLO = 1, INIT, STEP, RESET, METRICS, PING, PONG, BYE}
enum {WELCOME = 1, ACTIONS, RETURNS, ERROR, TRAINING_FINISHED}
const HABITS = ["", "disabled", "same_step", "next_step"]
const MODES = ["", "train", "exploit"]
const HANDSHAKE_BYTES = 65536
const CONNECT_SECONDS = 30.0
const QUIET_SECONDS = 60.0  # before the welcome
const LEAST_SILENCE = 5.0  # seconds, even if the heartbeat is shorter
const READ_AHEAD = 65536
const HTTP2 = [4, 0, 0, 0, 0, 0]  # after 3 bytes: SETTINGS of stream 0. No RLX payload begins with a zero byte
const SPEAKS_GRPC = "this port speaks gRPC, like the ports of parameter and replay servers: connect to an RLX server (relaax-rlx-server.bind, port 7001 by default)"

var addresses
var options = {}
var session_id
var algorithm = ""
var count
var error = null
var action_bytes = []  # the latest actions as on the wire, one PoolByteArray for each leaf
var observation_leaves = []
var action_leaves = []

var _habit_of = []
var _tcp = null
var _data = PoolByteArray()  # received, not processed
var _end = ""  # why the stream ended
var _fault = null  # a mistake of the server: [code, sentence]
var _lost = null  # the error that ended the connection
var _over = null  # the error that ended the client
var _failures = 0
var _address = 0
var _since = 0
var _scalars = []
var _names_sent = {}
var _name_bytes = 0
var _name_limit = 0
var _playing = false
var _away = []  # the environments between two episodes
var _names = []  # of the server's parameters
var _parameters = []  # of the next episode of each environment
var _informed = false  # the caller has the parameters of this connection
var _answered = false
var _limit = HANDSHAKE_BYTES
var _room = HANDSHAKE_BYTES
var _silence = QUIET_SECONDS
var _idle = INF
var _spoke = 0


# `given`: HOST:PORT, or several, separated by commas. `settings`: see OPTIONS; the two spaces are required. If an argument
# is invalid, `error` is set, and all calls fail.
func _init(given, settings):
	addresses = Array(given.split(","))
	options = OPTIONS.duplicate()
	for key in settings:
		if not OPTIONS.has(key):
			_end_client("Client has no option \"%s\": did you mean \"%s\"?" % [key, _nearest(key)])
			return
		options[key] = settings[key]
	for key in ["observation", "action"]:
		if typeof(options[key]) != TYPE_DICTIONARY:
			_end_client("Client needs the option \"%s\", a space such as Space.discrete(2)" % key)
			return
	session_id = options.session_id
	count = options.environments
	observation_leaves = Space.leaves_of(options.observation)
	action_leaves = Space.leaves_of(options.action)
	for leaf in observation_leaves + action_leaves:
		if leaf.fault:
			_end_client(leaf.fault)
			return
	if not MODES.has(options.mode):
		_end_client("mode is %s: use train or exploit" % options.mode)
		return
	var habits = options.autoreset if typeof(options.autoreset) == TYPE_ARRAY else [options.autoreset]
	if count < 1 or count > 65536 or (habits.size() != 1 and habits.size() != count):
		_end_client("%d environments: use 1 to 65536, and one autoreset mode for all or for each" % count)
		return
	for i in range(count):
		var habit = HABITS.find(habits[i if habits.size() > 1 else 0])
		if habit < 1:
			_end_client("autoreset is %s: use disabled, same_step or next_step" % habits[i])
			return
		_habit_of.append(habit)
	for address in addresses:
		if not _parsed(address):
			_end_client("%s is not an address: use HOST:PORT" % address)
			return
	_away = _all(false)
	_parameters = _all([])


# Connect now. Otherwise the first `init` connects. Returns whether there is a connection.
func open():
	error = null
	return _connect()


func is_open():
	return _tcp != null


# Return the server's parameters for the next episode: by name, a value for each environment. Connects if necessary.
func parameters():
	error = null
	if not options.environment_parameters:
		return _invalid("parameters need the option environment_parameters: true")
	if not _connect():
		return null
	_informed = true
	var found = {}
	for i in range(_names.size()):
		found[_names[i]] = []
		for values in _parameters:
			found[_names[i]].append(values[i])
	return found


# Begin an episode in every environment and return the first actions: a list of numbers for each leaf. `more`: partial, idle.
func init(observation, more = {}):
	error = null
	if not _known("init", more, ["partial", "idle"]):
		return null
	if _playing and _tcp != null:
		return _invalid("an episode is in progress: call reset first")
	if not _sized({"partial": more.get("partial"), "idle": more.get("idle")}):
		return null
	var away = _marked(more.get("idle"), "out_of_step", "idle")
	if away == null:
		return null
	var leaves = _leaves(1, observation, away)
	if leaves == null:
		return null
	while true:
		if not _connect():
			return null
		var unknown = _names.size() > 0 and not _informed  # the server does not know these parameters
		var partial = _all(true) if unknown else more.get("partial")
		var content = Wire.joined([leaves, Wire.mask(2, partial), Wire.mask(3, away)])
		var actions = _ask(INIT, content, ACTIONS)
		if actions != null:
			_away = away
			return actions
		if error.kind != INTERRUPTED:
			return null
		error = null
	return null


# Send the outcome of the last actions and return the next actions.
# `more`: terminated, truncated, idle, final_observation, episodes, chosen, action.
func step(reward, observation, more = {}):
	error = null
	if not _known("step", more, ["terminated", "truncated", "idle", "final_observation", "episodes", "chosen", "action"]):
		return null
	var checked = _checked(reward, more, true)
	if checked == null:
		return null
	var final = more.get("final_observation")
	var hidden = []
	var first = []
	var stays = []
	for i in range(count):
		var idle = checked.idle[i]
		var ended = checked.ended[i]
		hidden.append(idle and not (ended and _habit_of[i] == 3))  # a NEXT_STEP episode ends with its observation
		first.append(_away[i] and not idle)
		stays.append(not (ended and _habit_of[i] == 2))
	var pieces = [Wire.doubles(1, reward), _leaves(2, observation, hidden)]
	pieces += [Wire.mask(3, more.get("terminated")), Wire.mask(4, checked.cut)]
	if final != null:
		pieces.append(_leaves(5, final, stays))
	pieces += [Wire.mask(6, first), _episodes(7, more.get("episodes", [])), Wire.mask(8, checked.idle)]
	pieces.append(_chosen(9, checked.chosen, more.get("action")))
	if error != null:
		return null
	var actions = _ask(STEP, Wire.joined(pieces), ACTIONS)
	if actions != null:
		for i in range(count):
			if checked.ended[i]:
				_away[i] = checked.idle[i] or _habit_of[i] == 3
			else:
				_away[i] = _away[i] and checked.idle[i]
	return actions


# End the episode of every environment and return their returns. `more`: truncated, final_observation, episodes, chosen, action.
func reset(reward, more = {}):
	error = null
	if not _known("reset", more, ["truncated", "final_observation", "episodes", "chosen", "action"]):
		return null
	var checked = _checked(reward, more, false)
	if checked == null:
		return null
	var pieces = [Wire.doubles(1, reward), Wire.mask(2, checked.cut)]
	if more.get("final_observation") != null:
		pieces.append(_leaves(3, more.final_observation, []))
	pieces += [_episodes(4, more.get("episodes", [])), _chosen(5, checked.chosen, more.get("action"))]
	if error != null:
		return null
	return _ask(RESET, Wire.joined(pieces), RETURNS)


# Add a scalar to the next message, with a valid name ("a b" becomes a_b). Returns false if it is dropped: there is no
# connection, it exceeds the server's limits, or it is invalid.
func metric(name, value):
	if name == "" or not abs(value) <= 1e30:
		_invalid("metric \"%s\", %s: use a name and a value from -1e30 to 1e30" % [name, value])
		return false
	var form = ""
	for i in range(name.length()):  # as the server does
		var letter = name[i]
		form += letter if "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.".find(letter) >= 0 or (letter == "/" and i > 0) else "_"
	if _tcp == null or form.length() > _name_bytes or _scalars.size() >= 1000:
		return false
	if not _names_sent.has(form) and _names_sent.size() >= _name_limit:
		return false
	_names_sent[form] = true
	_scalars.append(Wire.bytes(METRICS, Wire.bytes(1, Wire.joined([Wire.text(1, form), Wire.double(2, value)]))))
	return true


# Send a ping and wait for the pong. Returns whether it came.
func alive():
	error = null
	return _ask(PING, Wire.integer(1, 1), PONG) != null


# Answer the server's pings between two calls, and send one before its idle timeout. Does not wait.
func poll():
	_overhear()
	if _tcp != null and OS.get_ticks_msec() - _spoke > 250 * _idle:
		_send(PING, PoolByteArray())


# Send bye and disconnect. The client cannot be used again.
func close():
	if _over == null:
		_over = _failure(FAILED, "the client was closed")
	if _tcp == null:
		return
	_send(BYE, PoolByteArray())
	var until = OS.get_ticks_msec() + 1000
	while _end == "" and OS.get_ticks_msec() < until:
		_data = PoolByteArray()
		if not _receive():
			OS.delay_usec(200)
	_hang_up()


func _all(value):
	var list = []
	for _i in range(count):
		list.append(value)
	return list


func _failure(kind, message, code = 0, retry_after = 0.0, step = 0):
	return {"kind": kind, "message": message, "code": code, "retry_after": retry_after, "step": step}


func _end_client(message):
	_over = _failure(INVALID, message)
	error = _over
	push_error("RLX: " + message)


# All of these return null, for the caller to return.
func _invalid(message):
	error = _failure(INVALID, message, Wire.VALUE)
	return null


func _interrupt(message, code = 0, retry_after = 0.0):
	_lost = _failure(INTERRUPTED, message, code, retry_after)
	_hang_up()
	return null


func _fail(message, code = 0):
	_lost = _failure(FAILED, message, code)
	_hang_up()
	return null


func _nearest(key):
	var best = ""
	for name in OPTIONS:
		if best == "" or name.similarity(key) > best.similarity(key):
			best = name
	return best


func _known(call, more, names):
	for key in more:
		if not names.has(key):
			_invalid("%s has no option \"%s\": there are %s" % [call, key, PoolStringArray(names).join(", ")])
			return false
	return true


# [host, port], or null.
func _parsed(address):
	var colon = address.find_last(":")
	var host = address.substr(0, colon) if colon > 0 else ""
	var port = address.substr(colon + 1, address.length())
	if host.begins_with("[") and host.ends_with("]"):
		host = host.substr(1, host.length() - 2)
	if host == "" or host.find("/") >= 0 or not port.is_valid_integer() or int(port) < 1 or int(port) > 65535:
		return null
	return [host, int(port)]


func _where():
	return addresses[_address % addresses.size()]


func _connect():
	while _tcp == null:
		if _over != null:
			error = _over
			return false
		var lost = _lost
		_lost = null
		if lost != null and lost.kind == INTERRUPTED and not _back_off(lost):
			return false
		_attempt()
		if _tcp == null and _over == null and _lost.kind == FAILED:
			error = _lost
			return false
	return true


# Wait before the next attempt, longer after each failure (section 9). Returns false after retry_seconds.
func _back_off(lost):
	var growing = min(0.5 * pow(2, _failures), 30.0) * (0.5 + randf() / 2)
	var wait = max(growing, lost.retry_after * (1 + randf() / 5))
	if _failures == 0:
		_since = OS.get_ticks_msec()
	if (OS.get_ticks_msec() - _since) / 1000.0 + wait > options.retry_seconds:
		_failures = 0
		error = _failure(FAILED, lost.message, lost.code)
		return false
	_failures += 1
	_address += 1
	printerr("RLX: %s; trying again in %.1f s" % [lost.message, wait])
	OS.delay_msec(int(1000 * wait))
	return true


# Connect to the current address once. If it fails, `_lost` or `_over` is set.
func _attempt():
	_limit = HANDSHAKE_BYTES
	_silence = QUIET_SECONDS
	_room = HANDSHAKE_BYTES + (2048 * count if options.environment_parameters else 0)
	_answered = false
	_names_sent = {}
	_name_limit = 0
	_idle = INF
	_data = PoolByteArray()
	_end = ""
	var hello = _hello(true)
	if hello.size() > HANDSHAKE_BYTES - 8:
		hello = _hello(false)
	if hello.size() > HANDSHAKE_BYTES - 8:
		_over = _failure(INVALID, "a hello of %d bytes; the limit is 64 KiB: use one bound for all elements" % hello.size())
		return
	var why = _dial()
	if why != "":
		_interrupt("cannot connect to %s: %sis an RLX server running there?" % [_where(), why if why != " " else ""])
		return
	_exchange(HELLO, hello, WELCOME)


# Open the stream. Returns "", or why it failed: a blank if the system gives no reason.
func _dial():
	var parsed = _parsed(_where())
	var host = parsed[0]
	if not host.is_valid_ip_address():
		host = IP.resolve_hostname(parsed[0], IP.TYPE_IPV4)
		if host == "":
			host = IP.resolve_hostname(parsed[0], IP.TYPE_IPV6)
		if host == "":
			return "this host name has no address: "
	_tcp = StreamPeerTCP.new()
	if _tcp.connect_to_host(host, parsed[1]) == OK:
		var until = OS.get_ticks_msec() + 1000 * CONNECT_SECONDS
		while _tcp.get_status() == StreamPeerTCP.STATUS_CONNECTING:
			if OS.get_ticks_msec() > until:
				_tcp = null
				return "no answer within %d s: " % CONNECT_SECONDS
			OS.delay_usec(200)
		if _tcp.get_status() == StreamPeerTCP.STATUS_CONNECTED:
			_tcp.set_no_delay(true)
			return ""
	_tcp = null
	return " "


func _hello(bounds):
	var habits = [_habit_of[0]]
	for habit in _habit_of:
		if habit != _habit_of[0]:
			habits = _habit_of
	if typeof(options.autoreset) == TYPE_ARRAY and options.autoreset.size() > 1:
		habits = _habit_of
	var pieces = [
		Wire.integer(1, 1),
		Wire.text(2, NAME),
		Wire.text(3, CLIENT_VERSION),
		Wire.text(4, options.token),
		Wire.text(5, options.environment),
		Wire.text(6, options.host),
		Wire.integer(7, options.frame_skip),
		Wire.bytes(8, Space.encoded(options.observation, bounds)),
		Wire.bytes(9, Space.encoded(options.action)),
		Wire.integer(10, count),
		Wire.packed(11, habits),
		Wire.integer(12, MODES.find(options.mode)),
		Wire.text(13, session_id),
		Wire.integer(14, 1 if options.reports_episodes else 0),
	]
	for capability in CAPABILITIES:
		pieces.append(Wire.integer(capability[1], 1 if options[capability[0]] else 0))
	return Wire.joined(pieces)


# The answer to a message, or null.
func _ask(kind, content, due):
	if _tcp == null:
		error = _over if _over != null else _lost
		if error == null:
			error = _failure(INTERRUPTED, "there is no connection: call init to connect")
		return null
	var answer = _exchange(kind, content, due)
	if answer == null:
		if error == null:
			error = _over if _over != null else _lost
		return null
	if due != PONG:
		_answered = true
		_playing = due == ACTIONS
		_failures = 0
	return answer


# Send a message, and process frames until its answer arrives.
func _exchange(kind, content, due):
	_overhear()
	if not _send(kind, content):
		return null
	var answer = _look(due)
	while answer == null and _tcp != null:
		_wait(due)
		answer = _look(due)
	return answer


# Write the pending scalars and a message in one call.
func _send(kind, content):
	if _tcp == null:
		return false
	var payload = Wire.bytes(kind, content)
	if payload.size() > _limit:
		_invalid("a message of %d bytes; the server accepts at most %d" % [payload.size(), _limit])
		return false
	var out = PoolByteArray()
	for one in _scalars + [payload]:
		var size = one.size()
		out.append_array(PoolByteArray([size >> 24, (size >> 16) & 255, (size >> 8) & 255, size & 255]))
		out.append_array(one)
	_scalars = []
	_spoke = OS.get_ticks_msec()
	var until = _spoke + 1000 * _silence
	while out.size() and _end == "":
		var done = _tcp.put_partial_data(out)
		if done[0] != OK:
			_end = "the connection is lost"
		elif done[1] == out.size():
			break
		elif done[1] > 0:
			out = out.subarray(done[1], out.size() - 1)
			until = OS.get_ticks_msec() + 1000 * _silence
		elif OS.get_ticks_msec() > until:
			_end = "the server receives nothing"
		else:
			OS.delay_usec(200)
	return true


# Read what has arrived. Returns whether it was something.
func _receive():
	if _end != "":
		return false
	if _tcp.get_status() != StreamPeerTCP.STATUS_CONNECTED:
		_end = "the server's stream ended"
		return false
	var waiting = _tcp.get_available_bytes()
	if waiting <= 0:
		return false
	var got = _tcp.get_partial_data(int(min(waiting, READ_AHEAD)))
	if got[0] != OK:
		_end = "the connection is lost"
		return false
	_data.append_array(got[1])
	return true


# Wait until data arrive or the stream ends.
func _wait(due):
	var start = OS.get_ticks_usec()
	while _end == "" and not _receive():
		var waited = OS.get_ticks_usec() - start
		if waited > 1e6 * _silence:
			_ended(due, "the server is silent")
			return
		OS.delay_usec(int(min(1000, 20 + waited / 8)))


# Process what arrived between calls. A ping is answered; another message ends the connection and is reported later.
func _overhear():
	if _tcp != null:
		_look(0)


# Process frames up to the expected answer. Returns null if it has not arrived, or if the connection has ended.
func _look(due):
	while _tcp != null:
		var payload = _take()
		if payload == null and _fault == null:
			if _receive():
				continue
			break
		var answer = _read(payload, due) if _fault == null else null
		if _fault != null:
			_mistake()
			return null
		if answer != null:
			return answer
	if _tcp != null and _end != "":
		_ended(due, _end)
	return null


# The next payload, or null.
func _take():
	var have = _data.size()
	if have < 4:
		return null
	var size = (_data[0] << 24) | (_data[1] << 16) | (_data[2] << 8) | _data[3]
	if have >= 9:
		var same = true
		for i in range(HTTP2.size()):
			same = same and _data[3 + i] == HTTP2[i]
		if same:
			return _wrong(Wire.MALFORMED, SPEAKS_GRPC)
	if size == 0:
		return _wrong(Wire.MALFORMED, "a frame of length 0")
	if size > _room:
		return _wrong(Wire.TOO_LARGE, "a frame of %d bytes; the limit is %d" % [size, _room])
	if have < 4 + size:
		return null
	var payload = _data.subarray(4, 3 + size)
	_data = _data.subarray(4 + size, have - 1) if have > 4 + size else PoolByteArray()
	return payload


# Record a mistake of the server.
func _wrong(code, sentence = Wire.WRONG):
	_fault = [code, sentence]
	return null


# Process one frame. Returns the answer if it is the expected one.
func _read(payload, due):
	var fields = Wire.parse(payload)
	if fields == null:
		return _wrong(Wire.MALFORMED)
	var found = []
	for field in fields:
		if field[0] <= 8 and field[1] == 2:
			found.append(field)
	if found.size() > 1:
		return _wrong(Wire.MALFORMED, "two messages in one frame")
	if found.size() == 0:
		return _wrong(Wire.UNEXPECTED, "an unknown message")
	var kind = found[0][0]
	var message = Wire.parse(found[0][2])
	if message == null:
		return _wrong(Wire.MALFORMED)
	if kind == ERROR or kind == TRAINING_FINISHED or kind == BYE:
		return _farewell(kind, message)
	if kind == PING:
		_send(PONG, Wire.integer(1, Wire.read_uint32(message, 1)))
		return null
	if kind == PONG:
		return true if due == PONG else null
	if kind != due:
		return _wrong(Wire.UNEXPECTED, "message %d is not allowed now" % kind)
	if due == WELCOME:
		return _welcome(message)
	if due == RETURNS:
		return _numbers(message, 1, count)
	return _read_actions(message)


func _numbers(message, field, size):
	var found = Wire.read_numbers(message, field, size)
	return found if typeof(found) == TYPE_ARRAY else _wrong(found)


func _read_actions(message):
	var found = Wire.all(message, 1)
	if found.size() != action_leaves.size():
		return _wrong(Wire.VALUE)
	var actions = []
	var raw = []
	for i in range(found.size()):
		var leaf = action_leaves[i]
		var fields = Wire.parse(found[i])
		if fields == null:
			return _wrong(Wire.MALFORMED)
		var shape = Wire.read_integers(fields, 2, leaf.shape.size() + 1)
		if shape == null:
			return _wrong(Wire.MALFORMED)
		var data = Wire.last(fields, 3, 2, PoolByteArray())
		if shape != [count] + leaf.shape or data.size() != count * leaf.size or Wire.read_uint32(fields, 1) != leaf.number:
			return _wrong(Wire.VALUE)
		var values = leaf.unpack(data)
		if leaf.illegal(values, [], true) >= 0:
			return _wrong(Wire.VALUE)
		actions.append(values)
		raw.append(data)
	var environments = Wire.read_integers(message, 2, count)
	if environments == null:
		return _wrong(Wire.MALFORMED)
	for i in range(environments.size()):
		if environments[i] < 0 or environments[i] >= count or (i and environments[i] <= environments[i - 1]):
			return _wrong(Wire.VALUE, "parameters_of is not increasing, or not below N")
	if environments.size() and not options.environment_parameters:
		return _wrong(Wire.VALUE, "parameters, but no environment_parameters in the welcome")
	if not _replace(environments, message, 3):
		return null
	action_bytes = raw
	return actions


# Read the new parameters of some environments. Returns false after a mistake.
func _replace(environments, message, field):
	var size = _names.size()
	var values = _numbers(message, field, environments.size() * size)
	if values == null:
		return false
	for i in range(environments.size()):
		_parameters[environments[i]] = values.slice(i * size, (i + 1) * size - 1) if size else []
	return true


func _welcome(message):
	var together = PoolByteArray()
	for part in Wire.all(message, 5):
		together.append_array(part)
	var limits = Wire.parse(together)
	var session = Wire.read_text(message, 3)
	var name = Wire.read_text(message, 4)
	if limits == null or session == null or name == null or Wire.read_text(message, 2) == null:
		return _wrong(Wire.MALFORMED)
	var idle = Wire.read_double(limits, 2)
	var heartbeat = Wire.read_double(limits, 3)
	var most = Wire.read_uint32(limits, 1)
	if Wire.read_uint32(message, 1) != 1:
		return _wrong(Wire.VERSION, "a welcome of an unsupported version")
	if not (idle > 0 and heartbeat > 0) or is_inf(idle + heartbeat):
		return _wrong(Wire.VALUE)
	if not _is_session(Wire.last(message, 3, 2, PoolByteArray())):
		return _wrong(Wire.VALUE, "an invalid session id")
	var seen = 0
	var acted = 0
	for leaf in observation_leaves:
		seen += leaf.size * count
	for leaf in action_leaves:
		acted += leaf.size * count
	var twice = 2 if _habit_of.has(2) else 1
	if max(twice * seen + (acted if options.chosen_actions else 0), acted) > most:
		return _wrong(Wire.LIMIT, "a max_frame_bytes that is too small for these spaces")
	if not _agree(message):
		return null
	var needed = acted + (16 + 9 * _names.size()) * count + 512 * action_leaves.size()  # of any answer
	_limit = most
	_room = int(min(most, max(needed, HANDSHAKE_BYTES)))
	session_id = session
	algorithm = name
	_idle = idle
	_silence = max(3 * heartbeat, LEAST_SILENCE)
	_name_bytes = Wire.read_uint32(limits, 4)
	_name_limit = Wire.read_uint32(limits, 5)
	return true


func _is_session(data):
	for byte in data:
		if not (byte == 45 or byte == 95 or byte >= 48 and byte <= 57 or byte >= 65 and byte <= 90 or byte >= 97 and byte <= 122):
			return false
	return data.size() <= 128


# Check the capabilities of a welcome, and read its parameters. Returns false if the connection ends.
func _agree(message):
	var granted = {}
	for capability in CAPABILITIES:
		granted[capability[0]] = Wire.read_integer(message, capability[2]) != 0
		if granted[capability[0]] and not options[capability[0]]:
			_wrong(Wire.VALUE, "a welcome with %s, which the hello lacks" % capability[3])
			return false
	_names = _read_names(message)
	if _names == null:
		_names = []
		return false
	if _names.size() and not granted.environment_parameters:
		_wrong(Wire.VALUE, "names of parameters, but no environment_parameters")
		return false
	if not _replace(range(count), message, 10):
		return false
	_informed = false
	for capability in CAPABILITIES:
		if options[capability[0]] and not granted[capability[0]]:
			_say_bye("the welcome lacks %s" % capability[3])
			var way = "use another algorithm, or do not set %s" % capability[0]
			_fail("%s: the server or its algorithm does not support %s: %s" % [_where(), capability[3], way], Wire.UNSUPPORTED_SPACE)
			return false
	return true


# Check and return the names of parameters in a welcome.
func _read_names(message):
	var found = Wire.all(message, 9)
	if found.size() > Wire.MOST_NAMES:
		return _wrong(Wire.LIMIT, "%d parameters; at most %d are allowed" % [found.size(), Wire.MOST_NAMES])
	var names = []
	for data in found:
		if data.size() > Wire.MOST_NAME_BYTES:
			return _wrong(Wire.LIMIT, "a parameter's name of more than %d bytes" % Wire.MOST_NAME_BYTES)
		var name = Wire.decoded(data)
		if name == null:
			return _wrong(Wire.MALFORMED)
		if data.size() == 0 or names.has(name) or not _is_printable(name) or Array(data).has(0):
			return _wrong(Wire.VALUE, "the name of parameter %d is empty, appears twice, or has control characters" % names.size())
		names.append(name)
	return names


# Whether a text has only printable characters and plain spaces: no character of the Unicode categories C and Z.
static func _is_printable(text):
	for i in range(text.length()):
		var point = text.ord_at(i)
		for span in [[0, 31], [127, 160], [173, 173], [1564, 1564], [5760, 5760], [6158, 6158], [8192, 8207], [8232, 8239], [8287, 8303], [12288, 12288], [55296, 63743], [65279, 65279], [65529, 65531], [917504, 1114111]]:
			if point >= span[0] and point <= span[1]:
				return false
	return true


# Process the server's last message: an error, the end of training, or a bye.
func _farewell(kind, message):
	var text = Wire.read_text(message, 2 if kind == ERROR else 1)
	if text == null:
		return _wrong(Wire.MALFORMED)
	if kind == TRAINING_FINISHED:
		_over = _failure(FINISHED, "training has finished: " + text, 0, 0.0, Wire.read_integer(message, 2))
		_hang_up()
		return null
	if kind == BYE:
		return _interrupt("the server sent bye: " + text)
	var code = Wire.read_uint32(message, 1)
	var after = Wire.read_double(message, 4)
	if not after >= 0 or is_inf(after):
		return _wrong(Wire.VALUE, "an invalid retry_after_seconds")
	var sentence = text if text != "" else "error %d" % code
	if Wire.read_integer(message, 3) != 0:
		return _interrupt(sentence, code, after)
	return _fail(sentence, code)


# Disconnect after a mistake of the server. Reconnect only if an `init` was answered on this connection (section 9).
func _mistake():
	var code = _fault[0]
	var sentence = _fault[1]
	_fault = null
	var grpc = sentence == SPEAKS_GRPC
	if not grpc:
		sentence = "the server's mistake: " + sentence
	if not _answered:
		sentence = "%s: %s%s" % [_where(), sentence, "" if grpc else ": is it an RLX server?"]
	_say_bye(sentence.substr(0, 200))
	if _answered:
		_interrupt(sentence, code)
	else:
		_fail(sentence, code)


func _say_bye(reason):
	_scalars = []
	_send(BYE, Wire.text(1, reason))


func _ended(due, why):
	if due == WELCOME:
		why = "%s: no welcome: %s: is it an RLX server without TLS?" % [_where(), why]
	_interrupt(why)


func _hang_up():
	if _tcp != null:
		_tcp.disconnect_from_host()
	_tcp = null
	_playing = false
	_scalars = []


# The leaves of a value, or an empty array after an invalid value, with `error`.
func _leaves(field, values, hidden, what = "observation"):
	var leaves = observation_leaves if what == "observation" else action_leaves
	if typeof(values) != TYPE_ARRAY or values.size() != leaves.size():
		var given = "a list of %d" % values.size() if typeof(values) == TYPE_ARRAY else str(values)
		var way = "one list in a list: [[...]], with the numbers of all environments" if leaves.size() == 1 else "a list of %d lists, one for each elementary space" % leaves.size()
		return _invalid("an %s of this space is %s; not %s" % [what, way, given])
	var data = []
	for i in range(leaves.size()):
		var name = "the " + what if leaves.size() == 1 else "array %d of the %s" % [i, what]
		var bytes = leaves[i].pack(values[i], count, name, hidden if hidden.has(true) else [], what == "action")
		if bytes == null:
			return _invalid(leaves[i].error)
		data.append(bytes)
	return Wire.arrays(field, leaves, data, count)


# The fields `chosen` and `action`.
func _chosen(field, chosen, action):
	if not chosen.has(true):
		return PoolByteArray()
	var hidden = []
	for one in chosen:
		hidden.append(not one)
	var leaves = _leaves(field + 1, action, hidden, "action")
	return null if leaves == null else Wire.joined([Wire.mask(field, chosen), leaves])


func _episodes(field, episodes):
	var pieces = []
	for one in episodes:
		var parts = [Wire.integer(1, one.environment), Wire.double(2, one.episode_return), Wire.integer(3, one.length)]
		pieces.append(Wire.bytes(field, Wire.joined(parts)))
	return Wire.joined(pieces)


func _sized(lists):
	for name in lists:
		var list = lists[name]
		if list == null:
			continue
		if typeof(list) < TYPE_ARRAY or list.size() != count:
			var given = str(list) if typeof(list) < TYPE_ARRAY else "a list of %d" % list.size()
			_invalid("%s is a list of %d, an entry for each environment: [...]; not %s" % [name, count, given])
			return false
	return true


# A mask that needs an option.
func _marked(given, option, name):
	var mask = []
	for i in range(count):
		mask.append(given != null and bool(given[i]))
	if not options[option] and mask.has(true):
		return _invalid("environment %d is %s: use the option %s: true" % [mask.find(true), name, option])
	return mask


# Check an outcome. Returns masks: which episodes end, which of these are truncated, which environments are idle, and which
# took an action that the client chose.
func _checked(reward, more, stepping):
	_overhear()
	if _tcp == null:
		return _ask(0, null, 0)
	if not _playing:
		return _invalid("no episode is in progress: call init first")
	var terminated = more.get("terminated")
	var truncated = more.get("truncated")
	var lists = {"terminated": terminated, "truncated": truncated, "idle": more.get("idle"), "chosen": more.get("chosen")}
	lists["reward"] = 0 if reward == null else reward
	if not _sized(lists):
		return null
	var idle = _marked(more.get("idle"), "out_of_step", "idle")
	var chosen = _marked(more.get("chosen"), "chosen_actions", "chosen") if idle != null else null
	if chosen == null:
		return null
	var cut = []
	var ended = []
	var needed = false
	var final_fits = not stepping
	for i in range(count):
		if not abs(reward[i]) <= 1e15:
			return _invalid("the reward of environment %d is %s; it must be from -1e15 to 1e15" % [i, reward[i]])
		var ends = terminated != null and bool(terminated[i])
		cut.append(truncated != null and bool(truncated[i]) and not ends and (stepping or not _away[i]))
		ended.append(ends or cut[i])
		if chosen[i] and (_away[i] or (idle[i] and not ended[i])):
			return _invalid("environment %d is chosen, but it took no action" % i)
		if stepping and ended[i] and (_habit_of[i] == 1 or _away[i]):
			var way = "it is between two episodes" if _away[i] else "call reset instead of step, or use the option autoreset: \"same_step\""
			return _invalid("the episode of environment %d cannot end with this step: %s" % [i, way])
		final_fits = final_fits or (ended[i] and _habit_of[i] == 2)
		needed = needed or (cut[i] and (_habit_of[i] == 2 or not stepping))
	if more.get("final_observation") != null and not final_fits:
		return _invalid("final_observation was given, but no episode ended")
	if needed and more.get("final_observation") == null:
		return _invalid("a truncated episode needs final_observation, its last observation")
	var reported = []
	for one in more.get("episodes", []):
		var right = one.environment >= 0 and one.environment < count and one.length >= 1 and abs(one.episode_return) <= 1e30
		if not right or reported.has(one.environment) or not options.reports_episodes:
			return _invalid("episodes: at most one for each environment, and only with reports_episodes")
		reported.append(one.environment)
	return {"ended": ended, "cut": cut, "idle": idle, "chosen": chosen}
