# frozen_string_literal: true

# Tests beyond the golden message sequences: the example of section 13, invalid arguments, reconnecting, and changed
# answers.

require "minitest/autorun"
require "openssl"
require "timeout"
require_relative "../lib/rlx"

class TestRLX < Minitest::Test
  WELCOME = ["0000002c0a2a08011a0273312204646133632a1c08808040110000000000c08240190000000000002440208001288002"].pack("H*")
  ACTIONS = ["0000001312110a0f08091201011a080200000000000000"].pack("H*")
  FULL = ["000000152213080b120466756c6c180121000000000000e83f"].pack("H*")
  OVER = ["000000062a0410c0c407"].pack("H*")
  # WELCOME with other fields.
  def self.welcome(*fields)
    RLX::Wire.frame(1, WELCOME.byteslice(6..) + fields.join).freeze
  end
  TURNS = welcome(RLX::Wire.integer(6, 1)) # with out_of_step
  CHOICE = welcome(RLX::Wire.integer(7, 1)) # with chosen_actions
  BOTH = welcome(RLX::Wire.integer(6, 1), RLX::Wire.integer(7, 1))
  SUPPORTED = RLX::Wire.integer(8, 1) # environment_parameters
  NAMES = %w[gravity size].map { |name| RLX::Wire.text(9, name) }.freeze
  VALUES = RLX::Wire.doubles(10, [9.8, 4, 1.6, 5])
  WORLDS = welcome(SUPPORTED, *NAMES, VALUES) # with the parameters of two environments
  TWO = ["0000001b12190a1708091201021a10#{"00" * 16}"].pack("H*") # actions of two environments
  RETURNS = ["000000141a120a10#{"00" * 16}"].pack("H*")
  NAN = Float::NAN
  SEEN = [[0.0, 0.0]].freeze
  # For observations that are larger than socket buffers, and with a heartbeat of 0.1 s.
  ROOM = ["0000002d0a2b08011a0273312204646133632a1d08ffffff7f110000000000c08240199a9999999999b93f208001288002"].pack("H*")
  LARGE = ["\0" * 8_000_000].freeze

  # A server that answers each request with the next frame of a script, one script for each connection, then disconnects.
  # An entry may also be a function of the socket. To close with a request unread resets the connection: an empty frame
  # reads one without an answer.
  def serve(*scripts)
    listener = TCPServer.new("localhost", 0)
    thread = Thread.new do
      scripts.each_with_object(String.new) do |script, told|
        socket = listener.accept
        socket.setsockopt(Socket::IPPROTO_TCP, Socket::TCP_NODELAY, 1)
        script.each do |answer|
          next socket = answer.call(socket) || socket if answer.is_a?(Proc)

          socket.write(answer) if asked(socket, told)
        end
        socket.close
      end
    end
    Timeout.timeout(120) { yield "localhost:#{listener.addr[1]}" }
    thread.value
  ensure
    listener&.close
  end

  # Read frames up to one that needs an answer.
  def asked(socket, told)
    loop do
      head = socket.read(4) or return false
      payload = socket.read(head.unpack1("N"))
      told << head << payload
      kind = payload.getbyte(0) >> 3
      return true if kind <= 4 || kind == 6
    end
  end

  def client(address, **settings)
    usual = { observation: RLX.box(:float32, [2]), action: RLX.discrete(3), environment: "Point-v0", retry_seconds: -1 }
    RLX::Client.new(address, **usual.merge(settings))
  end

  def test_example_bytes_of_specification
    told = serve([WELCOME, ACTIONS, ACTIONS]) do |address|
      client = client(address)
      assert_equal [[2]], client.init([[0.5, -0.25]])
      assert_equal %w[s1 da3c], [client.session_id, client.algorithm]
      assert_equal [[2]], client.step([1.0], [[0.75, 0.0]])
      client.close
    end
    ["380142070a05080b1201024a041202080350015a01016001", "0000001412120a10080b120201021a080000003f000080be",
     "0000001e1a1c0a08000000000000f03f1210080b120201021a080000403f00000000"].each do |due|
      assert_includes told.unpack1("H*"), due
    end
  end

  def test_invalid_arguments_are_not_sent
    told = serve([WELCOME, ACTIONS]) do |address|
      client = client(address)
      refute client.metric("before", 1)
      assert_raises(ArgumentError) { client.init([[0.0, Float::NAN]]) }
      client.init(SEEN)
      wrong = [
        [[2e15], SEEN, {}], [[Float::NAN], SEEN, {}], [[1, 1], SEEN, {}], [[1], [[1.0]], {}], [[1], [[1e39, 0]], {}],
        [[1], SEEN, { terminated: [true] }], [[1], SEEN, { final_observation: SEEN }],
        [[1], SEEN, { episodes: [RLX::Episode.new(0, 1, 1)] }], [[nil], SEEN, {}], [[1], [[nil, 0]], {}]
      ]
      wrong.each { |reward, seen, more| assert_raises(ArgumentError) { client.step(reward, seen, **more) } }
      assert_raises(ArgumentError) { client.reset([1], truncated: [true]) }
      [["", 1], ["x", Float::NAN], ["x", 2e30]].each { |name, one| assert_raises(ArgumentError) { client.metric(name, one) } }
      client.close
    end
    refute_includes told.unpack1("H*"), "1a1c"
    assert_raises(ArgumentError) { RLX.box(:float31, [1]) }
    [[0], [65_536, 65_536]].each do |shape|
      assert_raises(ArgumentError) { RLX::Client.new("a:1", observation: RLX.box(:float32, shape), action: RLX.discrete(2)) }
    end
    assert_raises(ArgumentError) { client("a:1", autoreset: %i[disabled disabled]) }
    ["localhost", "localhost:", ":1", ["a:1", "b"], []].each { |address| assert_raises(ArgumentError) { client(address) } }
    ["\xE9", "\xE9".b].each { |name| assert_raises(ArgumentError) { client("a:1", environment: name) } }
  end

  def test_numbers_beyond_their_dtype_are_refused
    wrong = {
      bool: [true, 2], uint8: [-1, 256, 0.5], uint16: [-1, 1 << 16], uint32: [-1, 1 << 32], uint64: [-1, 1 << 64, nil],
      int8: [-129, 128], int16: [-32_769, 32_768], int32: [1 << 31], int64: [1 << 63, 1.9], float16: [0.5], float32: [1e39, "1"]
    }
    wrong.each do |dtype, numbers|
      leaf, = RLX.box(dtype, [1]).leaves
      numbers.each { |one| assert_raises(ArgumentError, "#{dtype} #{one}") { leaf.pack([one], 1) } }
    end
    leaf, = RLX.box(:int8, [2]).leaves
    assert_equal [-128, 127], leaf.unpack(leaf.pack([-128, 127], 1))
    assert_raises(ArgumentError) { RLX.discrete(3).leaves[0].pack([1.9], 1) }
  end

  def test_one_entry_for_each_environment
    told = serve([WELCOME, ACTIONS]) do |address|
      client = client(address, reports_episodes: true)
      assert_raises(ArgumentError) { client.init(SEEN, partial: [true, true]) }
      client.init(SEEN, partial: [true])
      twice = [RLX::Episode.new(0, 1, 1)] * 2
      assert_raises(ArgumentError) { client.step([1], SEEN, episodes: twice) }
      client.close
    end
    refute_includes told.unpack1("H*"), "1a1c"
  end

  def players(autoreset, address, **settings)
    client(address, environments: 2, autoreset: autoreset, out_of_step: true, **settings)
  end

  # The leaves of two environments. NaN: a void row.
  def rows(one, other)
    [[one, one, other, other]]
  end

  # The elements of a row in hexadecimal.
  def row(value)
    [value, value].pack("e*").unpack1("H*")
  end

  # A mask of the form "01".
  def mask(digits)
    digits.chars.map { |one| one == "1" }
  end

  def assert_order(told, *pieces)
    pieces.inject(0) do |at, piece|
      found = told.unpack1("H*").index(piece, at)
      assert found, "#{piece} is not in its place in #{told.unpack1("H*")}"
      found + piece.size
    end
  end

  def test_players_take_turns
    told = serve([TURNS, TWO, TWO, TWO, TWO, TWO]) do |address|
      client = players(:same_step, address)
      client.init(rows(1, NAN), idle: mask("01"))
      client.step([0, 0], rows(NAN, 2), idle: mask("10"))
      client.step([0, 0], rows(3, NAN), idle: mask("01"))
      client.step([1, -1], rows(NAN, NAN), idle: mask("11"), terminated: mask("11"))
      client.step([0, 0], rows(4, 5), idle: mask("00"))
      client.close
    end
    assert_order(told, %w[5002 5a0102 6001 7801].join, "#{row(1)}#{row(NAN)}1a020001",
                 "#{row(NAN)}#{row(2)}3202000142020100", "#{row(3)}#{row(NAN)}420200010000",
                 "#{row(NAN)}#{row(NAN)}1a020101420201010000", "#{row(4)}#{row(5)}32020101")
  end

  def test_final_observation_of_environments_that_leave_next_step
    told = serve([TURNS, TWO, TWO, TWO, TWO, RETURNS]) do |address|
      client = players(:next_step, address)
      client.init(rows(NAN, NAN), idle: mask("11"))
      assert_raises(ArgumentError) { client.step([0, 0], rows(NAN, 1)) }
      client.step([0, 0], rows(1, 2))
      leaving = { idle: mask("11"), terminated: mask("01") }
      assert_raises(ArgumentError) { client.step([0, 0], rows(3, NAN), **leaving) }
      client.step([0, 0], rows(NAN, 3), **leaving)
      %w[00 01].each do |idle|
        assert_raises(ArgumentError) { client.step([0, 0], rows(4, 4), idle: mask(idle), truncated: mask("01")) }
      end
      client.step([0, 0], rows(4, NAN), idle: mask("01"))
      assert_raises(ArgumentError) { client.reset([0, 0], truncated: mask("11"), final_observation: rows(5, NAN)) }
      assert_equal [0, 0], client.reset([0, 0], truncated: mask("11"), final_observation: rows(5, 6))
      client.close
    end
    assert_order(told, "#{row(NAN)}#{row(NAN)}1a020101", "320201010000", "#{row(NAN)}#{row(3)}1a020001420201010000",
                 "#{row(4)}#{row(NAN)}420200010000", "12020100")
  end

  def test_final_observation_of_environments_that_leave_same_step
    told = serve([TURNS, TWO, TWO, TWO]) do |address|
      client = players(:same_step, address)
      client.init(rows(1, 1))
      leaving = { idle: mask("11"), truncated: mask("01") }
      [nil, rows(1, NAN)].each do |final|
        assert_raises(ArgumentError) { client.step([0, 0], rows(NAN, NAN), **leaving, final_observation: final) }
      end
      client.step([0, 0], rows(NAN, NAN), **leaving, final_observation: rows(NAN, 7))
      client.step([0, 0], rows(1, 8))
      client.close
    end
    assert_order(told, "#{row(NAN)}#{row(NAN)}22020001", "#{row(NAN)}#{row(7)}42020101", "32020001")
  end

  def test_idle_is_refused_where_it_is_not_allowed
    told = serve([TURNS, TWO, TWO], [WELCOME, TWO]) do |address|
      client = players(:disabled, address)
      assert_raises(ArgumentError) { client.init(rows(1, 1), idle: [true]) }
      client.init(rows(1, NAN), idle: mask("01"))
      assert_raises(ArgumentError) { client.step([0, 0], rows(1, 1), idle: mask("000")) }
      %w[10 01].each do |over|
        assert_raises(ArgumentError) { client.step([0, 0], rows(1, 1), idle: mask("11"), terminated: mask(over)) }
      end
      assert_raises(ArgumentError) { client.step([0, 0], rows(NAN, 1), idle: mask("01")) }
      client.step([0, 0], rows(NAN, NAN), idle: mask("11"))
      client.close
      client = players(:disabled, address, out_of_step: false)
      assert_raises(ArgumentError) { client.init(rows(1, 1), idle: mask("01")) }
      client.init(rows(1, 1), idle: mask("00"))
      assert_raises(ArgumentError) { client.step([0, 0], rows(1, 1), idle: mask("10")) }
      client.close
    end
    assert_equal 1, told.unpack1("H*").scan(/000000(?:2e|3[0-9a-f])1a/).size # the steps
    assert_equal 1, told.unpack1("H*").scan("60017801").size # hellos with out_of_step
  end

  def test_welcome_must_agree_on_capabilities
    all = [[:out_of_step, TURNS, "environments out of step"], [:chosen_actions, CHOICE, "actions of the client"],
           [:environment_parameters, WORLDS, "parameters of environments"]]
    all.product([true, false]).each do |(capability, welcome, what), asked|
      told = serve([asked ? WELCOME : welcome, ""]) do |address|
        client = client(address, environments: 2, capability => asked, retry_seconds: 60)
        failed = assert_raises(RLX::Failed) { client.init(rows(1, 1)) }
        assert_equal asked ? 6 : 8, failed.code
        assert_equal asked, failed.message.include?("does not support #{what}")
      end
      refute_includes told.unpack1("H*"), row(1)
      assert_equal asked, told.include?("the welcome lacks #{capability}")
    end
  end

  def test_chosen_actions
    told = serve([CHOICE, TWO, TWO, TWO, TWO, TWO, RETURNS]) do |address|
      client = client(address, environments: 2, autoreset: :next_step, chosen_actions: true)
      client.init(rows(1, 1))
      client.step([0, 0], rows(2, 2), chosen: mask("01"), action: [[NAN, 2]])
      client.step([0, 0], rows(3, 3), chosen: mask("00"), action: [[2, 2]])
      client.step([0, 0], rows(4, 4), terminated: mask("10"), chosen: mask("11"), action: [[1, 2].pack("q<*")])
      client.step([0, 0], rows(5, 5), chosen: mask("01"), action: [[-1, 1]])
      client.reset([0, 0], chosen: mask("10"), action: [[1, 9]])
      client.close
    end
    one, two, nine, none = [1, 2, 9, -1].map { |number| [number].pack("q<").unpack1("H*") }
    leaf = "521708091201021a10"
    assert_order(told, %w[5002 5a0103 6001 800101].join, "#{row(2)}#{row(2)}4a020001#{leaf}#{"00" * 8}#{two}",
                 "#{row(3)}#{row(3)}000000", "#{row(4)}#{row(4)}1a0201004a020101#{leaf}#{one}#{two}",
                 "#{row(5)}#{row(5)}320201004a020001#{leaf}#{none}#{one}", "2a02010032#{leaf[2..]}#{one}#{nine}")
  end

  def test_chosen_is_refused_where_it_is_not_allowed
    told = serve([TURNS, TWO], [BOTH, TWO, TWO]) do |address|
      client = players(:same_step, address)
      client.init(rows(1, 1))
      chosen = { chosen: mask("10"), action: [[1, 1]] }
      assert_raises(ArgumentError) { client.step([0, 0], rows(1, 1), **chosen) }
      client.close
      client = players(:same_step, address, chosen_actions: true)
      client.init(rows(1, NAN), idle: mask("01"))
      wrong = [nil, [], [1], [[1]], [[1, 1, 1]], [[1], [1]], [[3, 1]], [[-1, 1]], [[NAN, 1]], [[nil, 1]], ["\1" * 15]]
      wrong.each do |one|
        assert_raises(ArgumentError) { client.step([0, 0], rows(1, NAN), **chosen, action: one, idle: mask("01")) }
        assert_raises(ArgumentError) { client.reset([0, 0], **chosen, action: one) }
      end
      assert_raises(ArgumentError) { client.step([0, 0], rows(1, 1), **chosen, chosen: mask("100")) }
      %w[00 01].each do |idle| # it comes, or is still away
        assert_raises(ArgumentError) { client.step([0, 0], rows(1, 1), **chosen, chosen: mask("01"), idle: mask(idle)) }
      end
      assert_raises(ArgumentError) { client.reset([0, 0], **chosen, chosen: mask("01")) }
      assert_raises(ArgumentError) { client.step([0, 0], rows(NAN, 1), **chosen, idle: mask("10")) } # in progress
      client.step([0, 0], rows(NAN, NAN), **chosen, idle: mask("11"), terminated: mask("10")) # it leaves
      client.close
    end
    assert_equal 1, told.unpack1("H*").scan("4a020100").size
  end

  def test_bounds_of_chosen_actions
    action = RLX.tuple([RLX.box(:float32, [2], low: [-0.1, 0], high: [0.1, 1]), RLX.box(:int8, [], low: -5, high: 5)])
    zeros = RLX::Wire.frame(2, RLX::Wire.arrays(1, action.leaves, ["\0" * 16, "\0" * 2], 2))
    told = serve([CHOICE, zeros, ""]) do |address|
      client = client(address, environments: 2, chosen_actions: true, action: action)
      client.init(rows(1, 1))
      fine = [[0.1, 1, NAN, 7], [5, 99]]
      [[[0.11, 1], 5], [[0.1, 1.1], 5], [[0, NAN], 5], [[0, 0], 6], [[0, 0], 300]].each do |pair, one|
        assert_raises(ArgumentError) do
          client.step([0, 0], rows(1, 1), chosen: mask("10"), action: [[*pair, 0, 0], [one, 0]])
        end
      end
      assert_raises(ArgumentError) { client.step([0, 0], rows(1, 1), chosen: mask("11"), action: fine) }
      assert_raises(RLX::Interrupted) { client.step([0, 0], rows(1, 1), chosen: mask("10"), action: fine) }
    end
    assert_equal 1, told.unpack1("H*").scan("4a020100").size
    data = [0.1, 1, NAN, 7].pack("e*").unpack1("H*")
    assert_includes told.unpack1("H*"), "4a0201005218080b120202021a10#{data}520908061201021a020563"
  end

  def test_frames_must_have_room_for_chosen_actions
    large = { observation: RLX.box(:uint8, [1_000_000]), action: RLX.box(:uint8, [50_000]) }
    serve([CHOICE], [WELCOME]) do |address|
      failed = assert_raises(RLX::Failed) { client(address, **large, chosen_actions: true).connect }
      assert_equal 9, failed.code
      client(address, **large).tap(&:connect).close
    end
  end

  # ACTIONS of two environments with new parameters.
  def changed(environments, values)
    RLX::Wire.frame(2, TWO.byteslice(6..) + RLX::Wire.packed(2, environments) + RLX::Wire.doubles(3, values))
  end

  def worlds(address, **settings)
    client(address, environments: 2, environment_parameters: true, **settings)
  end

  def test_parameters
    told = serve([WORLDS, changed([1], [3.7, 6]), changed([0, 1], [1, 2, 3, 4]), TWO]) do |address|
      client = worlds(address)
      assert_equal({ "gravity" => [9.8, 1.6], "size" => [4, 5] }, client.parameters)
      client.parameters["size"][0] = 7
      client.init(rows(1, 1))
      assert_equal({ "gravity" => [9.8, 3.7], "size" => [4, 6] }, client.parameters)
      client.step([0, 0], rows(2, 2))
      assert_equal({ "gravity" => [1, 3], "size" => [2, 4] }, client.parameters)
      client.step([0, 0], rows(3, 3))
      assert_equal({ "gravity" => [1, 3], "size" => [2, 4] }, client.parameters)
      client.close
      assert_raises(ArgumentError) { client(address).parameters }
    end
    assert_order(told, %w[6001 880101].join, "#{row(1)}#{row(1)}000000", "#{row(2)}#{row(2)}000000")
  end

  def test_episodes_without_parameters_of_the_connection_are_partial
    told = serve([WORLDS, TWO, ""], [WORLDS, TWO, ""], [WORLDS, ""], [WORLDS, TWO]) do |address|
      client = worlds(address, retry_seconds: 60, on_retry: ->(*) {})
      client.parameters
      client.init(rows(1, 1))
      assert_raises(RLX::Interrupted) { client.step([0, 0], rows(1, 1)) }
      client.init(rows(2, 2))
      assert_raises(RLX::Interrupted) { client.step([0, 0], rows(1, 1)) }
      client.parameters # on the third connection, which is lost by init
      client.init(rows(3, 3))
      client.close
    end
    all = "12020101"
    assert_order(told, "#{row(1)}#{row(1)}000000", "#{row(2)}#{row(2)}#{all}", "#{row(3)}#{row(3)}000000",
                 "#{row(3)}#{row(3)}#{all}")
    told = serve([self.class.welcome(SUPPORTED), changed([0, 1], [])]) do |address|
      client = worlds(address)
      client.init(rows(1, 1), partial: mask("01"))
      assert_empty client.parameters
      client.close
    end
    assert_includes told.unpack1("H*"), "#{row(1)}#{row(1)}12020001"
  end

  def assert_mistake(code, script, **settings)
    serve(script) do |address|
      failed = assert_raises(RLX::Failed) { client(address, environments: 2, **settings).init(rows(1, 1)) }
      assert_equal code, failed.code
    end
  end

  def test_mistakes_of_parameters
    supported = lambda do |names, numbers|
      [SUPPORTED, *names.map { |name| RLX::Wire.bytes(9, name.b) }, RLX::Wire.doubles(10, numbers)]
    end
    wrong = {
      [*NAMES, VALUES] => 8, [VALUES] => 8, supported[%w[a], []] => 8, supported[%w[a b], [1, 2]] => 8,
      supported[[], [1]] => 8, supported[%w[a a], [1] * 4] => 8, supported[["a", ""], [1] * 4] => 8,
      supported[%W[a\n b], [1] * 4] => 8, supported[%W[a \xff], [1] * 4] => 1, supported[["a" * 257], [1, 1]] => 9,
      supported["1".."65", [1] * 130] => 9
    }
    wrong.each { |fields, code| assert_mistake(code, [self.class.welcome(*fields)], environment_parameters: true) }
    [NAN, Float::INFINITY, -2e30].each do |number|
      assert_mistake(8, [self.class.welcome(*supported[%w[a], [1, number]])], environment_parameters: true)
      assert_mistake(8, [WORLDS, changed([1], [1, number])], environment_parameters: true)
    end
    { [1, 0] => 4, [1, 1] => 4, [2] => 2, [0, 1, 2] => 6, [0] => 1, [1] => 0, [] => 2 }.each do |environments, count|
      assert_mistake(8, [WORLDS, changed(environments, [1] * count)], environment_parameters: true)
    end
    [[[0], []], [[], [1]], [[0], [1]]].each { |new| assert_mistake(8, [WELCOME, changed(*new)]) }
  end

  def test_values_of_hidden_rows_are_not_checked
    leaf, = RLX.multi_discrete([2, 3]).leaves
    assert_equal [9, 9, 1, 2], leaf.unpack(leaf.pack([9, 9, 1, 2], 2, [true, false]))
    assert_raises(ArgumentError) { leaf.pack([9, 9, 2, 1], 2, [true, false]) }
    assert_raises(ArgumentError) { leaf.pack([9, 9, 1, 2], 2, [false, true]) }
    { uint8: [256, 0.5, nil], float32: [NAN, 1e39, nil] }.each do |dtype, wrong|
      leaf, = RLX.box(dtype, [1]).leaves
      wrong.each do |one|
        assert_equal [2], leaf.unpack(leaf.pack([one, 2], 2, [true, false])).drop(1)
        assert_raises(ArgumentError) { leaf.pack([one, 2], 2, [false, true]) }
      end
    end
  end

  def test_long_hello_omits_bounds_or_is_refused
    bounded = RLX.box(:float32, [5000], low: [-1] * 5000, high: [1] * 5000)
    assert_raises(ArgumentError) { RLX::Client.new("a:1", observation: RLX.discrete(2), action: bounded) }
    told = serve([WELCOME, ACTIONS]) do |address|
      client = client(address, observation: bounded)
      client.init([[0] * 5000])
      client.close
    end
    assert_operator told.unpack1("N"), :<, 100
  end

  def test_last_message_is_reported_before_a_step
    played, said = Queue.new, Queue.new
    finish = ->(socket) { played.pop && socket.write(OVER) && said.push(true) && nil }
    told = serve([WELCOME, ACTIONS, finish, ACTIONS]) do |address|
      client = client(address)
      client.init(SEEN)
      played.push(true)
      said.pop
      assert_raises(RLX::Finished) { client.step([1], SEEN) }
    end
    refute_includes told.unpack1("H*"), "1a1c"
  end

  def test_last_message_is_reported_when_a_write_fails
    ping = ["00000002" "3200"].pack("H*")
    { OVER => RLX::Finished, FULL => RLX::Interrupted, "" => RLX::Interrupted }.each do |word, due|
      leave = ->(socket) { socket.read(4) && socket.write(ping, word) && nil }
      serve([ROOM, ACTIONS, leave]) do |address|
        client = client(address, observation: RLX.box(:uint8, [8_000_000]))
        client.init(LARGE)
        lost = assert_raises(due) { client.step([1], LARGE) }
        assert_equal 0.75, lost.retry_after if word == FULL
      end
    end
  end

  def test_server_that_does_not_receive_is_disconnected
    over = Queue.new
    serve([ROOM, ACTIONS, ->(_) { over.pop && nil }]) do |address|
      client = client(address, observation: RLX.box(:uint8, [8_000_000]))
      client.init(LARGE)
      assert_raises(RLX::Interrupted) { client.step([1], LARGE) }
      over.push(true)
    end
  end

  def test_mistakes_of_the_server
    negative = FULL.sub("\xe8\x3f".b, "\xe8\xbf".b)
    { [WELCOME.sub("s1", "s\n")] => 8, [negative] => 8, [WELCOME, [1 << 17, 1].pack("NC")] => 2 }.each do |script, code|
      serve(script) do |address|
        failed = assert_raises(RLX::Failed) { client(address).init(SEEN) }
        assert_equal code, failed.code
      end
    end
  end

  # The SSLContexts of a server and its client.
  def contexts
    key = OpenSSL::PKey::RSA.new(2048)
    certificate = OpenSSL::X509::Certificate.new
    certificate.version, certificate.serial, certificate.public_key = 2, 1, key.public_key
    certificate.subject = certificate.issuer = OpenSSL::X509::Name.parse("/CN=localhost")
    certificate.not_before, certificate.not_after = Time.now - 3600, Time.now + 3600
    certificate.add_extension(OpenSSL::X509::ExtensionFactory.new.create_extension("subjectAltName", "DNS:localhost"))
    certificate.sign(key, "SHA256")
    server, client = Array.new(2) { OpenSSL::SSL::SSLContext.new }
    server.cert, server.key = certificate, key
    client.set_params(cert_store: OpenSSL::X509::Store.new.add_cert(certificate))
    [server, client]
  end

  def test_a_lost_connection_over_tls
    served, tls = contexts
    secure = ->(socket) { OpenSSL::SSL::SSLSocket.new(socket, served).accept }
    cut = ->(socket) { asked(socket, String.new) && socket.to_io.close }
    garbage = ->(socket) { asked(socket, String.new) && socket.to_io.write("x" * 64) && nil }
    played = [secure, WELCOME, ACTIONS]
    serve([:close.to_proc], [*played, cut], [*played, garbage], [secure, WELCOME, OVER]) do |address|
      client = client(address, retry_seconds: 60, tls: tls)
      2.times do
        client.init(SEEN)
        assert_raises(RLX::Interrupted) { client.step([1], SEEN) }
      end
      assert_raises(RLX::Finished) { client.init(SEEN) }
    end
    serve([->(socket) { socket.write("no TLS here") && nil }]) do |address|
      assert_raises(RLX::Failed) { client(address, retry_seconds: 60, tls: tls).connect }
    end
  end

  def test_reconnects
    told = serve([WELCOME, ACTIONS, ""], [FULL], [WELCOME, ACTIONS, OVER]) do |address|
      reasons = []
      client = client([address, address], retry_seconds: 60, on_retry: ->(reason, _) { reasons << reason.message })
      client.init(SEEN)
      assert_raises(RLX::Interrupted) { client.step([1], SEEN) }
      began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      client.init(SEEN)
      assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - began, :>=, 1 # at least 0.25 s, then the 0.75 s of the error
      assert_equal ["the server's stream ended", "full"], reasons
      finished = assert_raises(RLX::Finished) { client.step([1], SEEN) }
      assert_equal 123_456, finished.global_step
      assert_raises(RLX::Finished) { client.init(SEEN) }
    end
    assert_equal 2, told.unpack1("H*").scan("6a027331").size
  end

  def test_changed_answers_are_accepted_or_refused
    random = Random.new(1)
    leaves = RLX.discrete(3).leaves
    ends = Hash.new(0)
    20_000.times do |round|
      data = (round.even? ? WORLDS : changed([0, 1], [1, 2, 3, 4])).byteslice(6..)
      random.rand(4).times do
        at = random.rand([data.bytesize, 1].max)
        case random.rand(3)
        when 0 then data.setbyte(at, random.rand(256)) unless data.empty?
        when 1 then data = data.byteslice(0, at)
        else data = data.byteslice(0, at) + random.bytes(1) + data.byteslice(at..)
        end
      end
      message = RLX::Wire.parse(data)
      if round.even?
        RLX::Wire.parse(*RLX::Wire.all(message, 5))
        RLX::Wire.read_parameters(message, true, 2)
      else
        RLX::Wire.read_actions(message, leaves, 2)
        RLX::Wire.read_new_parameters(message, 2, 2)
      end
      ends[:understood] += 1
    rescue RLX::Wire::Wrong
      ends[:refused] += 1
    end
    assert(ends.values_at(:understood, :refused).all? { |count| count > 1000 }, ends.to_s)
  end
end
