# Tests of the addon without a server: spaces, invalid arguments, sensors. Exits with 1 if one fails.
extends SceneTree

const Client = preload("res://addons/relaax/client.gd")
const Space = preload("res://addons/relaax/space.gd")
const Wire = preload("res://addons/relaax/wire.gd")
const RaySensor = preload("res://addons/relaax/sensors/ray_sensor_2d.gd")
const GridSensor = preload("res://addons/relaax/sensors/grid_sensor_2d.gd")

var failures = 0
var checks = 0
var frames = 0
var rays
var grid


func _init():
	values_of_spaces()
	numbers_of_protobuf()
	invalid_arguments()
	place_sensors()


# A body needs a physics frame before rays meet it.
func _iteration(_delta):
	frames += 1
	if frames == 3:
		sensors()
		print("%d checks" % checks)
		quit(1 if failures else 0)
	return false


func equal(found, expected, what):
	checks += 1
	if str(found) != str(expected):
		failures += 1
		printerr("%s: found %s, expected %s" % [what, found, expected])


func contains(found, expected):
	checks += 1
	if str(found).find(expected) < 0:
		failures += 1
		printerr("found %s, expected a text with %s" % [found, expected])


func packed(space, values, count = 1, bounded = false):
	var leaf = Space.leaves_of(space)[0]
	var data = leaf.pack(values, count, "the observation", [], bounded)
	return leaf.error if data == null else data.hex_encode()


func values_of_spaces():
	equal(packed(Space.box("float32", [2]), [0.5, -0.25]), "0000003f000080be", "float32")
	equal(packed(Space.box("float32", [2]), PoolRealArray([0.5, -0.25])), "0000003f000080be", "float32 array")
	equal(packed(Space.box("int16", [2]), [-1, 258]), "ffff0201", "int16")
	equal(packed(Space.box("float64"), 1), "000000000000f03f", "float64")
	equal(packed(Space.discrete(3, -1), -1), "ffffffffffffffff", "discrete")
	equal(packed(Space.box("uint8", [3]), PoolByteArray([1, 2, 255])), "0102ff", "bytes")
	equal(packed(Space.multi_binary([3]), [true, 0, 1]), "010001", "bits")
	contains(packed(Space.box("float32", [2]), [0.5, NAN]), "element 1 of environment 0 is nan")
	contains(packed(Space.box("float32", [1]), [0, 1e39], 2), "element 0 of environment 1 is inf")
	contains(packed(Space.box("float32", [2]), [0.5, "x"]), "element 1 of environment 0 is x")
	contains(packed(Space.box("uint8", [1]), [256]), "is 256, which is not in the space")
	contains(packed(Space.box("int32", [1]), [0.5]), "is 0.5, which is not in the space")
	contains(packed(Space.discrete(3), 3), "is 3, which is not in the space")
	contains(packed(Space.box("float32", [1], -1, 1), [1.5], 1, true), "is 1.5, which is not in the space")
	contains(packed(Space.box("float32", [2]), [1], 3), "has 1 elements; 3 x 2 for 3 environments are needed")
	equal(Space.sorted_keys({"b": 0, "Z": 0, "é": 0}), ["Z", "b", "é"], "sorted keys")
	equal(Space.half(0x3555) > 0.33325 and Space.half(0x3555) < 0.3334, true, "half")
	for bits in [0xFC00, 0x7E00]:
		equal(is_nan(Space.half(bits)), true, "infinite half")


func numbers_of_protobuf():
	equal(Wire.varint(300).hex_encode(), "ac02", "varint")
	equal(Wire.varint(-1).hex_encode(), "ffffffffffffffffff01", "negative varint")
	equal(Wire.parse(PoolByteArray([0x08, 0xac, 0x02])), [[1, 0, 300]], "field")
	for wrong in [[0x08], [0x0a, 2, 0], [0x00, 0], [0x0c], [0x0b, 0x14], [0x0e, 0], [0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]]:
		equal(Wire.parse(PoolByteArray(wrong)), null, "malformed bytes")
	for wrong in [[0xc0, 0x80], [0xed, 0xa0, 0x80], [0xf4, 0x90, 0x80, 0x80], [0xe2, 0x82], [0xff]]:
		equal(Wire.is_utf8(PoolByteArray(wrong)), false, "no UTF-8")
	equal(Wire.is_utf8("aé€🐎".to_utf8()), true, "UTF-8")


# The errors of the constructor are printed as well.
func invalid_arguments():
	var spaces = {"observation": Space.box("float32", [1]), "action": Space.discrete(2)}
	contains(Client.new("a:1", {"observation": spaces.observation}).error.message, "needs the option \"action\"")
	var more = spaces.duplicate()
	more["enviroments"] = 2
	contains(Client.new("a:1", more).error.message, "did you mean \"environments\"?")
	for address in ["", "localhost", "a:0", "a:65536", "ws://a:1/", ":7001"]:
		contains(Client.new(address, spaces).error.message, "is not an address: use HOST:PORT")
	more = spaces.duplicate()
	more["autoreset"] = "same"
	contains(Client.new("a:1", more).error.message, "use disabled, same_step or next_step")
	more = spaces.duplicate()
	more["observation"] = Space.box("float", [1])
	contains(Client.new("a:1", more).error.message, "unknown dtype float")
	var client = Client.new("a:1", spaces)
	equal(client.error, null, "valid arguments")
	equal(client.step([1], [[0]]), null, "step without a connection")
	contains(client.error.message, "call init to connect")
	equal(client.init([[0, 1]]), null, "a wrong observation")
	contains(client.error.message, "has 2 elements; 1 are needed")
	equal(client.init([[0]], {"idle": [true]}), null, "idle without the option")
	contains(client.error.message, "use the option out_of_step: true")
	equal(client.init([[0]], {"partial": [true, true]}), null, "a long mask")
	contains(client.error.message, "partial is a list of 1")
	equal(client.init([[0]], {"part": [true]}), null, "an unknown option")
	contains(client.error.message, "init has no option \"part\"")


func box_at(place, group):
	var body = StaticBody2D.new()
	var shape = CollisionShape2D.new()
	shape.shape = RectangleShape2D.new()
	shape.shape.extents = Vector2(10, 10)
	body.add_child(shape)
	body.position = place
	body.add_to_group(group)
	root.add_child(body)


# A wall to the right, a coin below; the sensors are turned by a quarter.
func place_sensors():
	box_at(Vector2(100, 0), "wall")
	box_at(Vector2(0, 60), "coin")
	box_at(Vector2(0, 160), "wall")
	rays = RaySensor.new()
	rays.rays = 4
	rays.length = 200.0
	grid = GridSensor.new()
	grid.columns = 3
	grid.rows = 5
	grid.cell = 40.0
	for sensor in [rays, grid]:
		sensor.groups = ["wall", "coin"]
		sensor.rotation = PI / 2
		root.add_child(sensor)


func sensors():
	equal(rays.size(), 8, "size of rays")
	equal(rays.sense(), [0.0, 0.75, 0.0, 0.0, 0.0, 0.0, 0.55, 0.0], "rays: down, left, up, right")
	rays.spread = 90.0
	rays.rays = 3
	rays.rotation = PI / 4
	equal(rays.sense(), [0.55, 0.0, 0.0, 0.0, 0.0, 0.75], "rays: right, between, down")
	equal(grid.size(), 30, "size of the grid")
	var seen = grid.sense()
	for cell in range(15):
		# Turned by a quarter, the row axis points to the left, and the column axis downwards.
		var place = Vector2((2 - cell / 3) * 40, (cell % 3 - 1) * 40)
		var coin = abs(place.x) < 30 and abs(place.y - 60) < 30
		var wall = abs(place.x - 100) < 30 and abs(place.y) < 30
		equal([seen[2 * cell], seen[2 * cell + 1]], [float(wall), float(coin)], "cell %s" % place)
