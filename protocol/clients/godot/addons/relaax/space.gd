# Spaces, and the leaves of their values on the wire (protocol/RLX.md, sections 4 and 5).

const Wire = preload("wire.gd")
const DTYPES = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
const SIZES = [1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8]
enum {BOX = 1, DISCRETE, MULTI_DISCRETE, MULTI_BINARY, TUPLE, DICT}
const INT64 = -9223372036854775807 - 1
const RANGES = {
	"uint8": [0, 255],
	"uint16": [0, 65535],
	"uint32": [0, 4294967295],
	"int8": [-128, 127],
	"int16": [-32768, 32767],
	"int32": [-2147483648, 2147483647],
}


# Arrays of a shape. `low`, `high`: a number, a list with one for each element, or null for no bound.
static func box(dtype, shape = [], low = null, high = null):
	return {"kind": BOX, "dtype": dtype, "shape": shape, "low": _listed(low), "high": _listed(high)}


# The integers start, ..., start + n - 1.
static func discrete(n, start = 0):
	return {"kind": DISCRETE, "dtype": "int64", "shape": [], "n": n, "start": start}


# A vector of choices: element i is one of 0, ..., nvec[i] - 1.
static func multi_discrete(nvec):
	return {"kind": MULTI_DISCRETE, "dtype": "int64", "shape": [nvec.size()], "nvec": nvec}


# Bits of a shape, as int8.
static func multi_binary(shape):
	return {"kind": MULTI_BINARY, "dtype": "int8", "shape": shape}


static func tuple(spaces):
	return {"kind": TUPLE, "spaces": spaces}


# Named spaces, a Dictionary.
static func dict(spaces):
	return {"kind": DICT, "spaces": spaces}


static func _listed(bounds):
	if bounds == null:
		return []
	return bounds if typeof(bounds) >= TYPE_ARRAY else [bounds]


# Protobuf of rlx.v1.Space. `bounds`: false leaves out the bounds of boxes, which may be long.
static func encoded(space, bounds = true):
	var content = PoolByteArray()
	match space.kind:
		BOX:
			content = Wire.joined([Wire.integer(1, DTYPES.find(space.dtype) + 1), Wire.packed(2, space.shape)])
			if bounds:
				content.append_array(Wire.joined([Wire.doubles(3, space.low), Wire.doubles(4, space.high)]))
		DISCRETE:
			content = Wire.joined([Wire.integer(1, space.n), Wire.integer(2, space.start)])
		MULTI_DISCRETE:
			content = Wire.packed(1, space.nvec)
		MULTI_BINARY:
			content = Wire.packed(1, space.shape)
		TUPLE:
			for part in space.spaces:
				content.append_array(Wire.bytes(1, encoded(part, bounds)))
		DICT:
			for key in space.spaces:
				var entry = Wire.joined([Wire.text(1, key), Wire.bytes(2, encoded(space.spaces[key], bounds))])
				content.append_array(Wire.bytes(1, entry))
	return Wire.bytes(space.kind, content)


# The keys of a dict, sorted by code point: the order of bytes in UTF-8.
static func sorted_keys(spaces):
	var names = {}
	for key in spaces:
		names[key.to_utf8().hex_encode()] = key
	var order = names.keys()
	order.sort()
	var keys = []
	for digits in order:
		keys.append(names[digits])
	return keys


# The elementary spaces of a space, in the order of the wire, as Leaf objects.
static func leaves_of(space):
	var leaves = []
	if space.kind == TUPLE:
		for part in space.spaces:
			leaves += leaves_of(part)
	elif space.kind == DICT:
		for key in sorted_keys(space.spaces):
			leaves += leaves_of(space.spaces[key])
	else:
		leaves.append(Leaf.new(space))
	return leaves


# The number that the bits of a float16 represent.
static func half(bits):
	var exponent = (bits >> 10) & 31
	var fraction = bits & 1023
	var number = NAN if exponent == 31 else ((1024 + fraction) * pow(2, exponent - 25) if exponent else fraction * pow(2, -24))
	return -number if bits >> 15 else number


static func rounded(number):
	var buffer = StreamPeerBuffer.new()
	buffer.put_float(number)
	buffer.seek(0)
	return buffer.get_float()


# One array of a value. `fault`: why the space is invalid, or "".
class Leaf:
	var space
	var shape
	var number
	var elements = 1
	var size
	var low
	var high
	var fault = ""
	var error = ""  # of the latest `pack`

	func _init(given):
		space = given
		shape = space.shape
		number = DTYPES.find(space.dtype) + 1
		if number == 0:
			fault = "unknown dtype %s: use one of %s" % [space.dtype, PoolStringArray(DTYPES).join(", ")]
			return
		for axis in shape:
			elements *= axis
			if axis < 1 or elements >= 1 << 31:
				fault = "a space has the shape %s: axes must be at least 1, elements at most 2^31 - 1" % [shape]
				return
		size = elements * SIZES[number - 1]
		low = _bounds(space.get("low", []), -1)
		high = _bounds(space.get("high", []), 1)

	func is_float():
		return number >= 10

	func _bounds(given, sign_):
		if given.size() == 0:
			return [sign_ * INF]
		if given.size() != 1 and given.size() != elements:
			fault = "a box of %d elements has %d bounds: use 1 or %d" % [elements, given.size(), elements]
		var bounds = []
		for bound in given:
			if space.dtype == "float32":
				bound = _script().rounded(bound)
			elif space.dtype == "float16" and not is_inf(bound):
				bound += sign_ * abs(bound) / 2048.0
			bounds.append(bound)
		return bounds

	func _script():
		return load("res://addons/relaax/space.gd")

	# The numbers in bytes.
	func unpack(data):
		var buffer = StreamPeerBuffer.new()
		buffer.data_array = data
		var values = []
		for _i in range(data.size() / SIZES[number - 1]):
			match number:
				1, 2:
					values.append(buffer.get_u8())
				3:
					values.append(buffer.get_u16())
				4:
					values.append(buffer.get_u32())
				5, 9:
					values.append(buffer.get_64())
				6:
					values.append(buffer.get_8())
				7:
					values.append(buffer.get_16())
				8:
					values.append(buffer.get_32())
				10:
					values.append(_script().half(buffer.get_u16()))
				11:
					values.append(buffer.get_float())
				12:
					values.append(buffer.get_double())
		return values

	# The bytes of a value for `count` environments, or null, with the reason in `error`. `values`: numbers, or the bytes
	# themselves in a PoolByteArray. Values of rows that are `hidden` are not checked. `bounded`: check the bounds of a box.
	func pack(values, count, name = "the observation", hidden = [], bounded = false):
		error = ""
		var type = typeof(values)
		var needed = count * elements
		if type < TYPE_ARRAY:
			values = [values]
		var raw = type == TYPE_RAW_ARRAY
		var given = values.size() / SIZES[number - 1] if raw else values.size()
		if given != needed or (raw and values.size() % SIZES[number - 1]):
			var wanted = str(needed) if count == 1 else "%d x %d for %d environments" % [count, elements, count]
			error = "%s has %d elements; %s are needed" % [name, given, wanted]
			return null
		if raw and number == 2 and not bounded:
			return values
		if raw:
			var place = illegal(unpack(values), hidden, bounded)
			if place >= 0:
				_refuse(place, unpack(values)[place], name)
			return null if error else values
		if number == 11 and type != TYPE_REAL_ARRAY:
			for i in range(needed):
				if typeof(values[i]) != TYPE_REAL and typeof(values[i]) != TYPE_INT:
					_refuse(i, values[i], name)
					return null
			values = PoolRealArray(values)
		elif number != 11:
			values = _converted(values, hidden, name)
			if values == null:
				return null
		var wrong = illegal(values, hidden, bounded)
		if wrong >= 0:
			_refuse(wrong, values[wrong], name)
			return null
		if number == 11:
			var data = var2bytes(values)  # a header of 8 bytes, then float32
			return data.subarray(8, data.size() - 1)
		return _encoded(values)

	func _refuse(place, value, name):
		error = "%s: element %d of environment %d is %s, which is not in the space" % [name, place % elements, place / elements, value]

	# Integers where the dtype is one; 0 in hidden rows that have none.
	func _converted(values, hidden, name):
		if number == 10:
			error = "%s: give the bits of float16 as a PoolByteArray" % name
			return null
		var found = []
		for i in range(values.size()):
			var value = values[i]
			var type = typeof(value)
			if type == TYPE_BOOL:
				value = int(value)
			elif type != TYPE_INT and type != TYPE_REAL:
				_refuse(i, value, name)
				return null
			elif not is_float():
				var whole = int(value)
				var range_ = RANGES.get(space.dtype, [INT64, -(INT64 + 1)])
				if whole != value or whole < range_[0] or whole > range_[1]:
					if not (hidden.size() and hidden[i / elements]):
						_refuse(i, value, name)
						return null
					whole = 0
				value = whole
			found.append(value)
		return found

	func _encoded(values):
		var buffer = StreamPeerBuffer.new()
		for value in values:
			match SIZES[number - 1]:
				1:
					buffer.put_u8(value & 255)
				2:
					buffer.put_u16(value & 65535)
				4:
					buffer.put_u32(value & 0xFFFFFFFF)
				8:
					if number == 12:
						buffer.put_double(value)
					else:
						buffer.put_64(value)
		return buffer.data_array

	# The index of the first value that is not in the space; -1 if there is none.
	func illegal(values, hidden = [], bounded = false):
		if is_float() and not bounded:
			var total = 0.0
			for value in values:
				total += value - value  # NaN if the value is not finite
			if total == 0:
				return -1
		for i in range(values.size()):
			if hidden.size() and hidden[i / elements]:
				continue
			if not _is_legal(values[i], i % elements, bounded):
				return i
		return -1

	func _is_legal(value, place, bounded):
		if space.kind == DISCRETE:
			return value >= space.start and value <= space.start + (space.n - 1)
		if space.kind == MULTI_DISCRETE:
			return value >= 0 and value < space.nvec[place]
		if space.kind == MULTI_BINARY or number == 1:
			return value == 0 or value == 1
		if is_float() and (is_nan(value) or is_inf(value)):
			return false
		if not bounded:
			return true
		if number == 5 and value < 0:
			value += 18446744073709551616.0
		return value >= low[place % low.size()] and value <= high[place % high.size()]
