# frozen_string_literal: true

# Executes commands from standard input, one a line, and prints what it receives: see protocol/clients/README.md.

require_relative "../lib/rlx"

# The words of a command.
class Line
  def initialize(text)
    @words = text.split
  end

  def word
    @words.shift || raise("a word is missing")
  end

  def integer
    Integer(word)
  end

  def bytes(digits = word)
    digits == "-" ? String.new : [digits].pack("H*")
  end

  def text
    bytes.force_encoding("UTF-8")
  end

  def number(bits = word)
    [bits].pack("H*").unpack1("G")
  end

  def many
    Array.new(integer) { yield }
  end

  def space
    case word
    when "box"
      dtype = RLX::DTYPES.keys[integer - 1]
      RLX.box(dtype, many { integer }, low: many { number }, high: many { number })
    when "discrete" then RLX.discrete(integer, start: integer)
    when "multi_discrete" then RLX.multi_discrete(many { integer })
    when "multi_binary" then RLX.multi_binary(many { integer })
    when "tuple" then RLX.tuple(many { space })
    else RLX.dict(many { [text, space] }.to_h)
    end
  end

  def mask
    digits = word
    digits == "-" ? nil : digits.chars.map { |one| one == "1" }
  end

  # As many leaves, or nil at the end of the line.
  def leaves(count)
    found = Array.new([count, @words.size].min) { bytes }
    found.empty? ? nil : found
  end

  # The leaves at the end of the line.
  def last_leaves(count)
    @words.pop(count).map { |digits| bytes(digits) }
  end

  def episodes
    given = word
    return [] if given == "-"

    given.split(",").map do |one|
      environment, bits, length = one.split(":")
      RLX::Episode.new(environment.to_i, number(bits), length.to_i)
    end
  end

  def rest
    @words.size
  end
end

def hex(data)
  data.empty? ? "" : data.unpack1("H*")
end

# The client and its requests.
class Play
  def connect(line)
    address, count, mode, frame_skip = line.word, line.integer, line.integer, line.integer
    reports, out_of_step, chosen, @parameters = Array.new(4) { line.integer == 1 }
    habits = line.many { RLX::AUTORESET.key(line.integer) }
    environment, host, token, session = line.text, line.text, line.text, line.text
    observation, @action = line.space, line.space
    @client = RLX::Client.new(address, observation: observation, action: @action, environments: count,
                                       autoreset: habits, mode: RLX::MODES.key(mode), token: token, host: host,
                                       environment: environment, session_id: session, frame_skip: frame_skip,
                                       reports_episodes: reports, out_of_step: out_of_step, chosen_actions: chosen,
                                       environment_parameters: @parameters, retry_seconds: -1)
    @client.connect
    puts "welcome #{hex(@client.session_id)} #{hex(@client.algorithm)}"
    show_parameters
  end

  def init(line)
    partial, idle = line.mask, line.mask
    observation = line.leaves(line.rest)
    @leaves = observation.size
    show(@client.init(observation, partial: partial, idle: idle))
  end

  def step(line)
    reward, over, cut, idle, taken = line.many { line.number }, line.mask, line.mask, line.mask, chosen(line)
    episodes, observation, final = line.episodes, line.leaves(@leaves), line.leaves(@leaves)
    show(@client.step(reward, observation, terminated: over, truncated: cut, idle: idle, final_observation: final,
                                           episodes: episodes, **taken))
  end

  def reset(line)
    reward, cut, taken, episodes = line.many { line.number }, line.mask, chosen(line), line.episodes
    final = line.leaves(@leaves)
    returns = @client.reset(reward, truncated: cut, final_observation: final, episodes: episodes, **taken)
    puts "returns #{returns.map { |one| double(one) }.join(" ")}"
  end

  def metric(line)
    @client.metric(line.text, line.number)
  end

  def ping(_line)
    @client.alive
    puts "pong"
  end

  def close
    @client&.close
  end

  private

  # The mask and its actions, which are at the end of the line.
  def chosen(line)
    mask = line.mask
    { chosen: mask, action: mask && line.last_leaves(@action.leaves.size) }
  end

  # Convert the numbers of actions to bytes.
  def show(actions)
    leaves = @action.leaves.zip(actions).map { |leaf, values| hex(leaf.float16? ? leaf.halves(values) : values.pack(leaf.format)) }
    puts "actions #{leaves.join(" ")}"
    show_parameters
  end

  def show_parameters
    return unless @parameters

    words = @client.parameters.flat_map { |name, values| [hex(name), *values.map { |one| double(one) }] }
    puts ["parameters", *words].join(" ")
  end

  def double(value)
    hex([value].pack("E"))
  end
end

# Only this program converts actions to bytes.
class RLX::Leaf
  attr_reader :format

  def float16?
    @dtype == :float16
  end

  def halves(values)
    all = (0..0xffff).each_with_object({}) { |bits, known| known[half(bits)] = bits unless (bits >> 10 & 31) == 31 }
    values.map { |value| all.fetch(value) }.pack("S<*")
  end
end

play = Play.new
over = false # after a connection has ended, other commands are skipped
$stdout.sync = true
$stdin.each_line do |text|
  line = Line.new(text)
  if text == "end\n"
    play.close
    over = false
    puts "end"
  elsif !over
    play.public_send(line.word, line)
  end
rescue RLX::Finished => e
  puts "finished #{e.global_step} #{e.message}"
  over = true
rescue RLX::Interrupted, RLX::Failed => e
  puts "lost #{e.code} #{e.message}"
  over = true
rescue ArgumentError => e
  puts "invalid 8 #{e.message}"
end
