# The counterpart of protocol/clients/c/tests/policy.c, with the same input and output, in files:
#   policy.gd act INPUT OUTPUT FILE HEAD...   or   policy.gd load INPUT OUTPUT   or   policy.gd time FILE
extends SceneTree

const Policy = preload("res://addons/relaax/policy.gd")
const Space = preload("res://addons/relaax/space.gd")


func _init():
	var words = Array(OS.get_cmdline_args())
	words = words.slice(words.find("--script") + 2, words.size() - 1)
	if words[0] == "time":
		measure(words[1])
		quit()
		return
	var input = File.new()
	input.open(words[1], File.READ)
	var output = File.new()
	output.open(words[2], File.WRITE)
	if words[0] == "act":
		act(input, output, words[3], words.slice(4, words.size() - 1) if words.size() > 4 else [])
	else:
		load_all(input, output)
	output.close()
	quit()


func act(input, output, path, heads):
	var policy = Policy.new()
	if not policy.open(path):
		printerr(policy.error)
		return
	var numbers = Space.leaves_of(Space.box("float32", [1]))[0]
	while input.get_position() < input.get_len():
		if input.get_8() == "r".ord_at(0):
			policy.reset()
			continue
		var leaves = []
		for one in policy.observation:
			var leaf = Space.leaves_of(Space.box(one.dtype, [one.count]))[0]
			leaves.append(leaf.unpack(input.get_buffer(leaf.size)))
		var actions = policy.act(leaves)
		if actions == null:
			printerr(policy.error)
			output.store_8(1)
			continue
		output.store_8(0)
		for i in range(actions.size()):
			var leaf = Space.leaves_of(Space.box(policy.action[i].dtype, [policy.action[i].count]))[0]
			output.store_buffer(leaf.pack(actions[i], 1))
		for head in heads:
			for number in policy.output(head):
				output.store_float(number)


func load_all(input, output):
	while input.get_position() < input.get_len():
		var policy = Policy.new()
		if not policy.read(input.get_buffer(input.get_32())):
			output.store_line(policy.error)
			continue
		output.store_line("loaded")
		var leaves = []
		var large = false
		for leaf in policy.observation:
			var zeros = []
			large = large or leaf.count > 100000
			for _i in range(min(leaf.count, 100000)):
				zeros.append(0)
			leaves.append(zeros)
		for step in range(0 if large else 3):
			policy.act(leaves)
			if step == 1:
				policy.reset()


func measure(path):
	var policy = Policy.new()
	if not policy.open(path):
		printerr(policy.error)
		return
	var leaves = []
	for leaf in policy.observation:
		var zeros = []
		for i in range(leaf.count):
			zeros.append(0.1 * i)
		leaves.append(zeros)
	var begun = OS.get_ticks_usec()
	var steps = 0
	while OS.get_ticks_usec() - begun < 3000000:
		policy.act(leaves)
		steps += 1
	print("%.0f steps/s" % (steps * 1e6 / (OS.get_ticks_usec() - begun)))
