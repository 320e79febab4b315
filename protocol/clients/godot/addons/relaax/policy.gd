# An evaluator of policies that `relaax checkpoints export LOCATION FILE.rlxp` wrote, without a server. It needs no other
# file of the addon. It evaluates dense and LSTM layers. relaax/policy/game_export.py describes the file.
#
# A policy acts in one environment: open one for each. If a call fails, `error` is a sentence.

const VERSION = 1
const LINES = 256  # of each kind in the header
const NUMBERS = 1 << 26  # elements of all values, and of the stacked frames
const WORD = 64  # characters
const INTEGER = 1 << 53
const LARGEST = 3.4028234663852886e38  # float32
const DTYPES = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32", "float64"]

var error = ""
var observation = []  # of each leaf: kind, dtype, count and more
var action = []

var _values = []  # the layers; the first one is the inputs
var _outputs = []  # name and value
var _computed = []  # of each value, a PoolRealArray
var _mask = -1  # the leaf with the action mask
var _stack = []  # of pixels, the newest frame last
var _began = false
var _inputs = {}


# Read a file. Returns whether this succeeded.
func open(path):
	var file = File.new()
	if file.open(path, File.READ) != OK:
		return _failed("cannot read the policy %s: does the file exist, and does the export of the game include *.rlxp?" % path)
	var contents = file.get_buffer(file.get_len())
	file.close()
	if not read(contents):
		return _failed("%s: %s" % [path, error])
	return true


# Read the contents of a file, a PoolByteArray. Returns whether this succeeded.
func read(contents):
	error = ""
	if contents.size() < 16 or contents.subarray(0, 3).get_string_from_ascii() != "RLXP":
		return _failed("this is not a policy: `relaax checkpoints export LOCATION FILE.rlxp` writes one")
	var numbers = StreamPeerBuffer.new()
	numbers.data_array = contents.subarray(4, 15)
	var version = numbers.get_u32()
	var size = numbers.get_u32()
	var checksum = numbers.get_u32()
	if version != VERSION:
		return _failed("the policy has version %d of the format, and this addon reads version %d" % [version, VERSION])
	if size > contents.size() - 16 or _crc32(contents, 16) != checksum:
		return _failed("the policy is damaged: its checksum differs")
	var lines = Header.new()
	if size == 0 or not lines.split(contents.subarray(16, 15 + size)):
		return _failed("the policy is damaged: its header is not lines of words")
	_read_network(lines, contents, 16 + size)
	if lines.fault:
		return _failed(lines.fault)
	return true


func _failed(sentence):
	error = sentence
	return false


# The next observation begins an episode. The first one does without a call.
func reset():
	_began = false


# The greedy action: for each leaf, a list of numbers. `leaves`: for each leaf of the observation, a list of numbers.
# Returns null after an invalid observation, with `error`, and without effect.
func act(leaves):
	error = ""
	if typeof(leaves) != TYPE_ARRAY or leaves.size() != observation.size():
		_failed("an observation has %d leaves, not %s" % [observation.size(), leaves.size() if typeof(leaves) == TYPE_ARRAY else leaves])
		return null
	for i in range(leaves.size()):
		var fault = _fault_in(observation[i], leaves[i])
		if fault:
			_failed("observation leaf %d %s" % [i, fault])
			return null
	var valid = null
	if _mask >= 0:
		valid = _valid(leaves[_mask])
		if valid == null:
			_failed("the action mask allows no action: each choice needs a valid action")
			return null
	for i in range(leaves.size()):
		if observation[i].kind == "frames":
			_push(observation[i], leaves[i])
	if not _began:
		for layer in _values:
			if layer.kind == "lstm":
				layer.begin()
	_began = true
	_computed[0] = _encoded(leaves)
	for i in range(1, _values.size()):
		_computed[i] = _values[i].compute(_computed)
	var actions = []
	var at = 0
	for rule in action:
		actions.append(_acted(rule, valid, at))
		at += total(rule.get("choices", []))
	return actions


# The last numbers of an output of the network, such as "policy", as a PoolRealArray. Null if there is none of this name.
func output(name):
	for one in _outputs:
		if one[0] == name:
			return _computed[one[1]]
	return null


static func total(numbers):
	var sum = 0
	for number in numbers:
		sum += number
	return sum


static func _crc32(data, from):
	var table = []
	for index in range(256):
		var value = index
		for _bit in range(8):
			value = 0xEDB88320 ^ (value >> 1) if value & 1 else value >> 1
		table.append(value)
	var crc = 0xFFFFFFFF
	for i in range(from, data.size()):
		crc = table[(crc ^ data[i]) & 255] ^ (crc >> 8)
	return crc ^ 0xFFFFFFFF


func _read_network(lines, contents, at):
	if not _read_arrays(lines, contents, at):
		return
	var leaves = []
	while lines.begins("observation", leaves):
		leaves.append(_read_leaf(lines, leaves))
		lines.end_line()
	if not lines.begins("inputs", []):
		lines.refuse("it is not \"inputs\"")
	_inputs = _read_inputs(lines, leaves)
	lines.end_line()
	var values = [_inputs]
	while not lines.fault:
		var layer = _read_layer(lines, values)
		if layer == null:
			break
		lines.end_line()
		values.append(layer)
	var outputs = []
	while lines.begins("output", outputs):
		var name = lines.text()
		outputs.append([name, lines.integer(0, values.size() - 1)])
		lines.end_line()
	var actions = []
	while lines.begins("action", actions):
		actions.append(_read_action(lines, values))
		lines.end_line()
	if lines.fault:
		return
	if lines.line < lines.lines.size():
		lines.refuse("unknown or misplaced line")
	if actions.size() == 0:
		lines.refuse("it is not \"action\"")
	if lines.used_doubles != lines.doubles.size() or lines.used_floats != lines.floats.size():
		lines.refuse("the arrays are larger than needed")
	var choices = 0
	for rule in actions:
		choices += total(rule.get("choices", []))
	for i in range(leaves.size()):
		if leaves[i].kind == "mask":
			_mask = i
			if leaves[i].count != choices:
				lines.refuse("the mask does not have the size of the choices")
	observation = leaves
	action = actions
	_values = values
	_outputs = outputs
	_computed = []
	for _value in values:
		_computed.append(PoolRealArray())


func _read_arrays(lines, contents, at):
	if not lines.begins("arrays", []):
		return lines.refuse("it is not \"arrays\"")
	var rest = contents.size() - at
	var doubles = lines.integer(1, rest / 8)
	var floats = lines.integer(0, rest / 4)
	if lines.fault:
		return false
	if 8 * doubles + 4 * floats != rest:
		return lines.refuse("the arrays do not have the size of the file")
	var numbers = StreamPeerBuffer.new()
	numbers.data_array = contents.subarray(at, at + 8 * doubles - 1)
	var strange = 0.0  # NaN if a number is not finite
	for _i in range(doubles):
		var number = numbers.get_double()
		strange += number - number
		lines.doubles.append(number)
	if floats:
		var data = PoolByteArray([TYPE_REAL_ARRAY, 0, 0, 0, floats & 255, (floats >> 8) & 255, (floats >> 16) & 255, floats >> 24])
		data.append_array(contents.subarray(at + 8 * doubles, contents.size() - 1))
		lines.floats = bytes2var(data)
		for number in lines.floats:
			strange += number - number
	if strange != 0:
		return lines.refuse("an array is not finite")
	lines.end_line()
	return lines.fault == ""


func _read_leaf(lines, leaves):
	var kind = lines.one_of(["frames", "bytes", "numbers", "choices", "mask"])
	for leaf in leaves:
		if leaf.kind == kind and (kind == "frames" or kind == "mask"):
			lines.refuse("it has another leaf of %s already" % kind)
	if kind == "choices":
		var start = lines.integer(-INTEGER, INTEGER)
		var choices = lines.choices()
		return {"kind": kind, "dtype": "int64", "start": start, "choices": choices, "count": choices.size(), "width": total(choices)}
	var dtype = "uint8" if kind == "bytes" else lines.one_of(["bool", "uint8"] if kind == "frames" else DTYPES)
	var count = lines.count()
	var history = lines.count() if kind == "frames" else 1
	if count * history > NUMBERS:
		lines.refuse("it has too many pixels")
	return {"kind": kind, "dtype": dtype, "count": count, "history": history, "width": 0 if kind == "mask" else count * history}


func _read_inputs(lines, leaves):
	var normalized = lines.one_of(["plain", "normalized"]) == "normalized"
	var size = lines.count()
	var width = 0
	for leaf in leaves:
		width += leaf.width
	if width != size:
		lines.refuse("the leaves of an observation do not make %d inputs" % size)
	var mean = lines.take_doubles(size) if normalized else null
	var std = lines.take_doubles(size) if normalized else []
	var limit = lines.take_doubles(1)
	for number in std:
		if not number > 0:
			lines.refuse("a standard deviation is not positive")
	if not lines.fault and not limit[0] > 0:
		lines.refuse("the limit of inputs is not positive")
	return {"kind": "inputs", "size": size, "mean": mean, "std": std, "limit": 0.0 if lines.fault else limit[0]}


# The layer of a line, or null if the line has none.
func _read_layer(lines, values):
	var layer = null
	if lines.begins("dense", values):
		var activation = lines.one_of(["linear", "relu", "tanh"])
		var from = lines.integer(0, values.size() - 1)
		var start = lines.integer(0, NUMBERS)
		var inputs = lines.count()
		var size = lines.count()
		if start + inputs > values[from].size:
			lines.refuse("its value has only %d numbers" % values[from].size)
		var weights = lines.take_floats(inputs * size)
		var bias = lines.take_floats(size)
		if not lines.fault:
			layer = Dense.new(activation, from, start, Product.new(weights, bias, inputs, size))
	elif lines.begins("convolution", values):
		lines.refuse("a convolution, which GDScript computes too slowly for a game: train with algorithm.network.flatten_images, or without the picture")
	elif lines.begins("lstm", values):
		var from = lines.integer(0, values.size() - 1)
		var size = lines.count()
		var inputs = values[from].size + size
		var weights = lines.take_floats(inputs * 4 * size)
		var bias = lines.take_floats(4 * size)
		if not lines.fault:
			layer = Lstm.new(from, Product.new(weights, bias, inputs, 4 * size))
	elif lines.begins("join", values):
		var from = lines.integer(0, values.size() - 1)
		var other = lines.integer(0, values.size() - 1)
		if not lines.fault:
			layer = Join.new(from, other, values[from].size + values[other].size)
	if layer != null:
		var sum = layer.size
		for value in values:
			sum += value.size
		if sum > NUMBERS:
			lines.refuse("the values are too large")
	return layer


func _read_action(lines, values):
	var kind = lines.one_of(["largest", "positive", "scaled"])
	var squashed = kind == "scaled" and lines.one_of(["plain", "squashed"]) == "squashed"
	var dtype = "int8"
	if kind == "scaled":
		dtype = lines.one_of(["float32", "float64"])
	elif kind == "largest":
		dtype = "int64"
	var from = lines.integer(0, values.size() - 1)
	var size = values[from].size
	if kind == "positive":
		return {"kind": kind, "dtype": dtype, "from": from, "count": size}
	if kind == "largest":
		var first = lines.integer(-INTEGER, INTEGER)
		var choices = lines.choices()
		if total(choices) != size:
			lines.refuse("%d choices of a value of %d numbers" % [total(choices), size])
		return {"kind": kind, "dtype": dtype, "from": from, "start": first, "choices": choices, "count": choices.size()}
	var start = lines.integer(0, NUMBERS)
	var count = lines.count()
	if start + count > size:
		lines.refuse("its value has only %d numbers" % size)
	var rule = {"kind": kind, "dtype": dtype, "from": from, "start": start, "count": count, "squashed": squashed}
	for part in ["centre", "radius", "low", "high"]:
		rule[part] = lines.take_doubles(count)
	return rule


# Why a leaf of an observation is invalid, or "".
func _fault_in(leaf, elements):
	var type = typeof(elements)
	var given = elements.size() if type >= TYPE_ARRAY else 1
	if type < TYPE_ARRAY or given != leaf.count:
		return "needs %d elements of %s in a list, not %s" % [leaf.count, leaf.dtype, given if type >= TYPE_ARRAY else elements]
	if type == TYPE_RAW_ARRAY and not leaf.has("choices"):
		return ""
	if type == TYPE_ARRAY:
		for one in elements:
			if typeof(one) != TYPE_INT and typeof(one) != TYPE_REAL and typeof(one) != TYPE_BOOL:
				return "has an element that is not a finite number"
	var strange = 0.0
	for one in elements:
		strange += float(one) - float(one)
	if strange != 0 and leaf.dtype != "bool":
		return "has an element that is not a finite number"
	if leaf.dtype == "uint8":
		for one in elements:
			if one < 0 or one > 255:
				return "needs bytes from 0 to 255"
	var choices = leaf.get("choices", [])
	for i in range(choices.size()):
		var one = elements[i]
		if one != int(one) or one < leaf.start or one >= leaf.start + choices[i]:
			return "needs an integer from %d to %d as element %d, not %s" % [leaf.start, leaf.start + choices[i] - 1, i, one]
	return ""


# The mask as bools, or null if it excludes all actions of a choice.
func _valid(numbers):
	var valid = []
	for number in numbers:
		valid.append(number != 0)
	var at = 0
	for rule in action:
		for size in rule.get("choices", []):
			if valid.slice(at, at + size - 1).find(true) < 0:
				return null
			at += size
	return valid


# Add a frame to the stack.
func _push(leaf, frame):
	var history = leaf.history
	if not _began:
		_stack = []
	for i in range(leaf.count):
		var pixel = frame[i]
		if leaf.dtype == "bool":
			pixel = 255 if pixel != 0 else 0
		var at = i * history
		if not _began:
			for _k in range(history):
				_stack.append(pixel)
			continue
		for k in range(at, at + history - 1):
			_stack[k] = _stack[k + 1]
		_stack[at + history - 1] = pixel


func _encoded(leaves):
	var x = PoolRealArray()
	for pixel in _stack:
		x.append(pixel / 255.0)
	for i in range(leaves.size()):
		var leaf = observation[i]
		match leaf.kind:
			"bytes":
				for number in leaves[i]:
					x.append(number / 255.0)
			"numbers":
				for number in leaves[i]:
					if leaf.dtype == "bool":
						number = 1 if number != 0 else 0
					elif leaf.dtype == "uint64" and number < 0:
						number += 18446744073709551616.0
					x.append(clamp(number, -LARGEST, LARGEST))
			"choices":
				for k in range(leaf.count):
					for n in range(leaf.choices[k]):
						x.append(1 if n == leaves[i][k] - leaf.start else 0)
	var limit = _inputs.limit
	if _inputs.mean == null:
		for i in range(x.size()):
			x[i] = clamp(x[i], -limit, limit)
	else:
		for i in range(x.size()):
			x[i] = clamp((x[i] - _inputs.mean[i]) / _inputs.std[i], -limit, limit)
	return x


func _acted(rule, valid, at):
	var y = _computed[rule.from]
	var acted = []
	if rule.kind == "positive":
		for number in y:
			acted.append(1 if number > 0 else 0)
	elif rule.kind == "scaled":
		var most = LARGEST if rule.dtype == "float32" else 1.7976931348623157e308
		for i in range(rule.count):
			var number = y[rule.start + i]
			number = rule.centre[i] + rule.radius[i] * (tanh(number) if rule.squashed else number)
			number = max(max(number, rule.low[i]), -most)
			acted.append(min(min(number, rule.high[i]), most))
	else:
		if valid != null:
			for i in range(y.size()):
				y[i] = max(y[i], -1e29) if valid[at + i] else -1e30
			_computed[rule.from] = y
		var from = 0
		for size in rule.choices:
			var best = from
			for i in range(from + 1, from + size):
				if y[i] > y[best]:
					best = i
			acted.append(rule.start + best - from)
			from += size
	return acted


# The header's words, line by line, and the arrays. After the first mistake, `fault` is a sentence, and methods return 0.
class Header:
	var lines = []
	var doubles = []
	var floats = PoolRealArray()
	var line = 0
	var word = 0
	var used_doubles = 0
	var used_floats = 0
	var fault = ""

	# Returns whether the bytes are lines of words.
	func split(data):
		for byte in data:
			if byte != 10 and (byte < 32 or byte > 126):
				return false
		if data[data.size() - 1] != 10:
			return false
		var all = Array(data.get_string_from_ascii().split("\n"))
		all.pop_back()
		for one in all:
			var words = Array(one.split(" "))
			if not one.begins_with("#") and words.has(""):
				return false
			lines.append(words)
		_skip_comments()
		return true

	func refuse(sentence):
		if fault == "":
			fault = "the policy is damaged: line %d of its header: %s" % [line + 1, sentence]
		return false

	func _skip_comments():
		while line < lines.size() and lines[line][0].begins_with("#"):
			line += 1

	# Whether the line begins with a word; if so, skip the word. `list`: what the earlier lines of this kind made.
	func begins(name, list):
		if fault != "" or line >= lines.size() or lines[line][0] != name:
			return false
		if list.size() >= 256:
			return refuse("more than 256 lines of a kind")
		word = 1
		return true

	func end_line():
		if fault == "" and more():
			refuse("it has too many words")
		line += 1
		_skip_comments()

	func more():
		return line < lines.size() and word < lines[line].size()

	func text():
		if fault != "":
			return ""
		if not more():
			refuse("a word is missing")
			return ""
		var found = lines[line][word]
		word += 1
		if found.length() > 64:
			refuse("a word is too long")
		return found

	func one_of(words):
		var found = text()
		if not words.has(found):
			refuse("unknown word \"%s\"" % found.substr(0, 40))
			return words[0]
		return found

	func integer(least, most):
		var found = text()
		var digits = found.substr(1, found.length()) if found.begins_with("-") else found
		var right = digits != "" and digits.length() <= 16
		for i in range(digits.length()):
			right = right and digits[i] >= "0" and digits[i] <= "9"
		var value = int(found) if right else 0
		if not right or value < least or value > most:
			refuse("%s is not an integer from %d to %d" % [found.substr(0, 20), least, most])
			return least
		return value

	func count():
		return integer(1, 1 << 26)

	# Sizes of choices, to the end of the line.
	func choices():
		var sizes = [count()]
		var sum = sizes[0]
		while fault == "" and more():
			sizes.append(count())
			sum += sizes[-1]
		if sum > 1 << 26:
			refuse("it has too many choices")
		return sizes

	# The next `size` elements of the arrays.
	func take_floats(size):
		var found = PoolRealArray()
		if fault != "" or size > floats.size() - used_floats:
			refuse("the arrays are too small for it")
			return found
		for i in range(used_floats, used_floats + size):
			found.append(floats[i])
		used_floats += size
		return found

	func take_doubles(size):
		if fault != "" or size > doubles.size() - used_doubles:
			refuse("the arrays are too small for it")
			return []
		used_doubles += size
		return doubles.slice(used_doubles - size, used_doubles - 1)


# bias + x @ weights, by matrices of 3 by 3, because GDScript multiplies one in the time of one number.
class Product:
	var size
	var inputs
	var _rows = []  # for each three outputs, the matrices of their inputs
	var _bias = []

	func _init(weights, bias, given_inputs, given_size):
		inputs = given_inputs
		size = given_size
		var padded = PoolRealArray()  # with at least two zeros at the end
		padded.append_array(weights)
		for _i in range(3 * size + 3):
			padded.append(0)
		for o in range(0, size, 3):
			var row = []
			var width = min(3, size - o)
			for i in range(0, inputs, 3):
				var columns = []
				for k in range(3):
					var at = (i + k) * size + o
					var here = i + k < inputs
					columns.append(Vector3(
						padded[at] if here else 0,
						padded[at + 1] if here and width > 1 else 0,
						padded[at + 2] if here and width > 2 else 0
					))
				row.append(Basis(columns[0], columns[1], columns[2]))
			_rows.append(row)
			_bias.append(Vector3(bias[o], bias[o + 1] if width > 1 else 0, bias[o + 2] if width > 2 else 0))

	# `x`: a PoolRealArray, used from `start` on.
	func of(x, start):
		var packed = []
		var at = start
		var end = start + inputs
		while at + 2 < end:
			packed.append(Vector3(x[at], x[at + 1], x[at + 2]))
			at += 3
		if at < end:
			packed.append(Vector3(x[at], x[at + 1] if at + 1 < end else 0, 0))
		var count = packed.size()
		var y = PoolRealArray()
		for o in range(_rows.size()):
			var sum = _bias[o]
			var row = _rows[o]
			for i in range(count):
				sum += row[i] * packed[i]
			y.append(sum.x)
			y.append(sum.y)
			y.append(sum.z)
		y.resize(size)
		return y


class Dense:
	var kind = "dense"
	var size
	var _from
	var _start
	var _activation
	var _product

	func _init(activation, from, start, product):
		_activation = activation
		_from = from
		_start = start
		_product = product
		size = product.size

	func compute(computed):
		var y = _product.of(computed[_from], _start)
		if _activation == "relu":
			for i in range(size):
				if y[i] < 0:
					y[i] = 0
		elif _activation == "tanh":
			for i in range(size):
				y[i] = tanh(y[i])
		return y


class Lstm:
	var kind = "lstm"
	var size
	var _from
	var _product
	var _h = PoolRealArray()
	var _c = PoolRealArray()

	func _init(from, product):
		_from = from
		_product = product
		size = product.size / 4

	func begin():
		_h = PoolRealArray()
		for _i in range(size):
			_h.append(0)
		_c = _h

	func compute(computed):
		var x = PoolRealArray()
		x.append_array(computed[_from])
		x.append_array(_h)
		var gates = _product.of(x, 0)
		var h = PoolRealArray()
		var c = PoolRealArray()
		for i in range(size):
			var cell = _sigmoid(gates[size + i]) * _c[i] + _sigmoid(gates[i]) * tanh(gates[2 * size + i])
			c.append(cell)
			h.append(tanh(cell) * _sigmoid(gates[3 * size + i]))
		_h = h
		_c = c
		return h

	func _sigmoid(z):
		return 0.5 + 0.5 * tanh(0.5 * z)


class Join:
	var kind = "join"
	var size
	var _from
	var _other

	func _init(from, other, total_size):
		_from = from
		_other = other
		size = total_size

	func compute(computed):
		var y = PoolRealArray()
		y.append_array(computed[_from])
		y.append_array(computed[_other])
		return y
