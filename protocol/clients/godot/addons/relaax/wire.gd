# The part of Protobuf that RLX needs (protocol/RLX.md). A message is built of pieces, PoolByteArrays.

const MALFORMED = 1
const TOO_LARGE = 2
const UNEXPECTED = 3
const VERSION = 4
const UNSUPPORTED_SPACE = 6
const VALUE = 8
const LIMIT = 9
const WRONG = "invalid Protobuf, or a value outside the agreed range"
const MOST_NAMES = 64
const MOST_NAME_BYTES = 256


static func joined(pieces):
	var all = PoolByteArray()
	for piece in pieces:
		all.append_array(piece)
	return all


static func varint(value):
	var out = PoolByteArray()
	while value < 0 or value > 127:
		out.append((value & 127) | 128)
		value = (value >> 7) & 0x01FFFFFFFFFFFFFF
	out.append(value)
	return out


static func integer(field, value):
	return PoolByteArray() if value == 0 else joined([varint(field << 3), varint(value)])


static func bytes(field, data):
	return joined([varint((field << 3) | 2), varint(data.size()), data])


static func text(field, string):
	return PoolByteArray() if string == "" else bytes(field, string.to_utf8())


static func packed(field, values):
	var all = PoolByteArray()
	for value in values:
		all.append_array(varint(value))
	return all if all.size() == 0 else bytes(field, all)


# A list of bools, left out if all are false. `given` may be null.
static func mask(field, given):
	var all = PoolByteArray()
	var any = false
	for one in given if given != null else []:
		all.append(1 if one else 0)
		any = any or one
	return bytes(field, all) if any else PoolByteArray()


static func floats(values):
	var buffer = StreamPeerBuffer.new()
	for value in values:
		buffer.put_double(value)
	return buffer.data_array


static func double(field, value):
	return joined([varint((field << 3) | 1), floats([value])])


static func doubles(field, values):
	return bytes(field, floats(values)) if values.size() else PoolByteArray()


# A list of arrays: `data`, PoolByteArrays, one for each leaf.
static func arrays(field, leaves, data, count):
	var all = PoolByteArray()
	for i in range(leaves.size()):
		var leaf = leaves[i]
		all.append_array(bytes(field, joined([integer(1, leaf.number), packed(2, [count] + leaf.shape), bytes(3, data[i])])))
	return all


class Reader:
	var data
	var at = 0
	var wrong = false

	func _init(bytes):
		data = bytes

	func over():
		return wrong or at >= data.size()

	func varint():
		var value = 0
		for i in range(10):
			if at >= data.size():
				break
			var byte = data[at]
			at += 1
			value |= (byte & 127) << (7 * i)
			if byte < 128:
				return value
		wrong = true
		return 0

	func take(size):
		if size < 0 or size > data.size() - at:
			wrong = true
			return PoolByteArray()
		at += size
		return data.subarray(at - size, at - 1) if size else PoolByteArray()

	# The next field: [number, kind, value]. A group is unknown, and skipped.
	func field(depth):
		var tag = varint()
		var number = tag >> 3
		var kind = tag & 7
		if number < 1 or number >= 1 << 29 or depth > 100:
			wrong = true
		if wrong:
			return [0, 0, 0]
		match kind:
			0:
				return [number, kind, varint()]
			1:
				return [number, kind, take(8)]
			2:
				return [number, kind, take(varint())]
			3:
				while not wrong:
					if at >= data.size():
						wrong = true
						break
					var inner = field(depth + 1)
					if inner[1] == 4:
						wrong = wrong or inner[0] != number
						break
				return [number, kind, null]
			4:
				return [number, kind, null]
			5:
				return [number, kind, take(4)]
		wrong = true
		return [0, 0, 0]


# The fields of a message, [number, kind, value] each, or null if the bytes are no message.
static func parse(data):
	var reader = Reader.new(data)
	var fields = []
	while not reader.over():
		fields.append(reader.field(0))
		if fields[-1][1] == 4:
			return null
	return null if reader.wrong else fields


static func all(fields, number):
	var found = []
	for field in fields:
		if field[0] == number and field[1] == 2:
			found.append(field[2])
	return found


static func last(fields, number, kind, otherwise):
	for i in range(fields.size() - 1, -1, -1):
		if fields[i][0] == number and fields[i][1] == kind:
			return fields[i][2]
	return otherwise


static func read_integer(fields, number):
	return last(fields, number, 0, 0)


static func read_uint32(fields, number):
	return read_integer(fields, number) & 0xFFFFFFFF


static func read_double(fields, number):
	var data = last(fields, number, 1, null)
	if data == null:
		return 0.0
	var buffer = StreamPeerBuffer.new()
	buffer.data_array = data
	return buffer.get_double()


# The text of a field, or null if it is not UTF-8.
static func read_text(fields, number):
	return decoded(last(fields, number, 2, PoolByteArray()))


static func decoded(data):
	return data.get_string_from_utf8() if is_utf8(data) else null


static func is_utf8(data):
	var at = 0
	while at < data.size():
		var first = data[at]
		at += 1
		if first < 128:
			continue
		var more = 1 if first < 0xE0 else (2 if first < 0xF0 else 3)
		if first < 0xC2 or first > 0xF4 or at + more > data.size():
			return false
		var second = data[at]
		var least = 0xA0 if first == 0xE0 else (0x90 if first == 0xF0 else 0x80)
		var most = 0x9F if first == 0xED else (0x8F if first == 0xF4 else 0xBF)
		if second < least or second > most:
			return false
		for i in range(1, more):
			if data[at + i] & 0xC0 != 0x80:
				return false
		at += more
	return true


# The elements of a list of integers, packed or not, at most `most` + 1 of them. Null if the bytes are malformed.
static func read_integers(fields, number, most):
	var found = []
	for field in fields:
		if field[0] != number:
			continue
		if field[1] == 0:
			found.append(field[2])
		elif field[1] == 2:
			var reader = Reader.new(field[2])
			while not reader.over() and found.size() <= most:
				found.append(reader.varint())
			if reader.wrong:
				return null
	return found


# Exactly `count` doubles from -1e30 to 1e30, or the code of the mistake.
static func read_numbers(fields, number, count):
	var joined = PoolByteArray()
	for field in fields:
		if field[0] == number and (field[1] == 1 or field[1] == 2):
			if field[2].size() % 8:
				return MALFORMED
			joined.append_array(field[2])
	if joined.size() != 8 * count:
		return VALUE
	var buffer = StreamPeerBuffer.new()
	buffer.data_array = joined
	var found = []
	for _i in range(count):
		found.append(buffer.get_double())
		if not abs(found[-1]) <= 1e30:
			return VALUE
	return found
