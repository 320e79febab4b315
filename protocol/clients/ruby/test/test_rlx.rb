# frozen_string_literal: true

# What the golden conversations do not show: the example of section 13, what is refused before it is sent, connecting
# again, and answers that were right before they were changed.

require "minitest/autorun"
require_relative "../lib/rlx"

class TestRLX < Minitest::Test
  WELCOME = ["0000002c0a2a08011a0273312204646133632a1c08808040110000000000c08240190000000000002440208001288002"].pack("H*")
  ACTIONS = ["0000001312110a0f08091201011a080200000000000000"].pack("H*")
  SEEN = [[0.0, 0.0]].freeze

  # A server that answers each question with the next frame of a script, one script for each connection; then it hangs up.
  def serve(*scripts)
    listener = TCPServer.new("127.0.0.1", 0)
    thread = Thread.new do
      scripts.each_with_object(String.new) do |script, told|
        socket = listener.accept
        script.each { |answer| socket.write(answer) if asked(socket, told) }
        socket.close
      end
    end
    yield "127.0.0.1:#{listener.addr[1]}"
    thread.value
  ensure
    listener&.close
  end

  # Read frames up to one that is answered.
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
    RLX::Client.new(address, observation: RLX.box(:float32, [2]), action: RLX.discrete(3), environment: "Point-v0",
                             **{ retry_seconds: -1 }.merge(settings))
  end

  def test_bytes_of_the_page
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

  def test_refused_before_it_is_sent
    told = serve([WELCOME, ACTIONS]) do |address|
      client = client(address)
      refute client.metric("before", 1)
      assert_raises(ArgumentError) { client.init([[0.0, Float::NAN]]) }
      client.init(SEEN)
      wrong = [
        [[2e15], SEEN, {}], [[Float::NAN], SEEN, {}], [[1, 1], SEEN, {}], [[1], [[1.0]], {}], [[1], [[1e39, 0]], {}],
        [[1], SEEN, { terminated: [true] }], [[1], SEEN, { final_observation: SEEN }],
        [[1], SEEN, { episodes: [RLX::Episode.new(0, 1, 1)] }]
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
  end

  def test_connects_again
    full = ["000000152213080b120466756c6c180121000000000000e83f"].pack("H*")
    over = ["000000062a0410c0c407"].pack("H*")
    told = serve([WELCOME, ACTIONS], [full], [WELCOME, ACTIONS, over]) do |address|
      client = client([address, address], retry_seconds: 60)
      client.init(SEEN)
      assert_raises(RLX::Interrupted) { client.step([1], SEEN) }
      began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      client.init(SEEN)
      assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - began, :>=, 1 # 0.25 s, and 0.75 s of the error
      finished = assert_raises(RLX::Finished) { client.step([1], SEEN) }
      assert_equal 123_456, finished.global_step
      assert_raises(RLX::Finished) { client.init(SEEN) }
    end
    assert_equal 2, told.unpack1("H*").scan("6a027331").size
  end

  def test_changed_answers_are_understood_or_refused
    random = Random.new(1)
    leaves = RLX.discrete(3).leaves
    ends = Hash.new(0)
    20_000.times do |round|
      data = (round.even? ? WELCOME : ACTIONS).byteslice(6..)
      random.rand(4).times do
        at = random.rand([data.bytesize, 1].max)
        case random.rand(3)
        when 0 then data.setbyte(at, random.rand(256)) unless data.empty?
        when 1 then data = data.byteslice(0, at)
        else data = data.byteslice(0, at) + random.bytes(1) + data.byteslice(at..)
        end
      end
      message = RLX::Wire.parse(data)
      round.even? ? RLX::Wire.parse(*RLX::Wire.all(message, 5)) : RLX::Wire.read_actions(message, leaves, 1)
      ends[:understood] += 1
    rescue RLX::Wire::Wrong
      ends[:refused] += 1
    end
    assert(ends.values_at(:understood, :refused).all? { |count| count > 1000 }, ends.to_s)
  end
end
