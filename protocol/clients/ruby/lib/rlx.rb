# frozen_string_literal: true

require "set"
require "socket"
require_relative "rlx/version"
require_relative "rlx/wire"
require_relative "rlx/space"

# A client of RLX, version 1 (protocol/RLX.md). It connects environments in Ruby to the agents of a RELAAX server. It
# encodes Protobuf itself and needs only the standard library.
module RLX
  # The error of a call. +code+ is an error code of RLX.md, section 9, or 0. Invalid arguments raise an ArgumentError:
  # nothing was sent, and the connection remains open.
  class Error < StandardError
    attr_reader :code

    def initialize(sentence, code = 0)
      @code = code
      super(sentence)
    end
  end

  # The connection and its episodes are lost. Reset the environments and call +init+, which reconnects.
  class Interrupted < Error
    attr_reader :retry_after

    def initialize(sentence, code = 0, retry_after = 0)
      @retry_after = retry_after
      super(sentence, code)
    end
  end

  # A retry is useless, or the retries took too long.
  class Failed < Error; end

  # Training has finished.
  class Finished < Error
    attr_reader :global_step

    def initialize(sentence, global_step)
      @global_step = global_step
      super(sentence)
    end
  end

  AUTORESET = { disabled: 1, same_step: 2, next_step: 3 }.freeze
  MODES = { train: 1, exploit: 2 }.freeze

  # A whole episode, as the client counts it.
  Episode = Struct.new(:environment, :episode_return, :length)

  # A connection of N environments to their agent. Observations and actions are Arrays of leaves. A leaf is a flat
  # Array of the numbers of all environments, in their order, or a String of their little-endian bytes.
  class Client
    HELLO, INIT, STEP, RESET, METRICS, PING, PONG, BYE = *1..8
    WELCOME, ACTIONS, RETURNS, ERROR, FINISHED = *1..5
    UNSUPPORTED_SPACE = 6
    HANDSHAKE_BYTES = 65_536
    SPEAKS_GRPC = "this port speaks gRPC, like the ports of parameter and replay servers: " \
                  "connect to an RLX server (relaax-rlx-server.bind, port 7001 by default)"
    # What the server must support, by the keyword that asks for it.
    CAPABILITIES = { out_of_step: "environments out of step", chosen_actions: "actions of the client",
                     environment_parameters: "parameters of environments" }.freeze
    # The start of a gRPC server's stream, after 3 bytes. No RLX payload begins with a zero byte.
    SETTINGS = "\4\0\0\0\0\0".b.freeze
    private_constant :UNSUPPORTED_SPACE, :SPEAKS_GRPC, :CAPABILITIES, :SETTINGS

    attr_reader :session_id, :algorithm

    # Make a client. It does not connect yet. +addresses+: "HOST:PORT", or several, tried in turn.
    # +autoreset+: :disabled, :same_step or :next_step, or one for each environment. +out_of_step+: calls may mark
    # environments as idle. +chosen_actions+: calls may have actions that the client chose. +environment_parameters+:
    # the server sets +parameters+ for each episode. The server and its algorithm must support these three.
    # +retry_seconds+: how long to retry after a failure. +on_retry+: called before each wait with the reason, an
    # Interrupted, and the seconds; nil: print a line to stderr. +tls+: an OpenSSL::SSL::SSLContext, such as one with
    # set_params.
    def initialize(addresses, observation:, action:, environments: 1, autoreset: :disabled, mode: :train, token: "",
                   environment: "", host: "", session_id: "", frame_skip: 1, reports_episodes: false,
                   out_of_step: false, chosen_actions: false, environment_parameters: false, retry_seconds: 300,
                   on_retry: nil, tls: nil)
      @addresses = Array(addresses)
      unless @addresses.any? && @addresses.all? { |one| one.match?(/\A\S+:\d{1,5}\z/) }
        raise ArgumentError, "#{addresses.inspect}: use HOST:PORT, or several"
      end
      @observation_space, @action_space = observation, action
      @observation, @action = observation.leaves, action.leaves
      @count = environments
      @autoreset = Array(autoreset).map { |habit| AUTORESET.fetch(habit) }
      @mode = MODES.fetch(mode)
      @names = { token: token, environment: environment, host: host }
      @session_id = session_id
      @frame_skip, @reports_episodes = frame_skip, reports_episodes
      @asked = CAPABILITIES.keys.zip([out_of_step, chosen_actions, environment_parameters]).select(&:last).map(&:first)
      @retry_seconds, @tls = retry_seconds, tls
      unless @count.between?(1, 65_536) && [1, @count].include?(@autoreset.size)
        raise ArgumentError, "#{@count} environments: use 1 to 65536, and one autoreset mode for all or for each"
      end
      @on_retry = on_retry || ->(reason, wait) { $stderr.puts format("RLX: %s; trying again in %.1f s", reason, wait) }
      @autoreset_of = @autoreset.size == 1 ? @autoreset * @count : @autoreset
      @address = @failures = 0
      @buffer = String.new
      @scalars = String.new
      @away = [false] * @count # the environments between two episodes
      @broken = [SystemCallError, SocketError, IOError, *(OpenSSL::SSL::SSLError if tls)]
      @limit = HANDSHAKE_BYTES
      framed(HELLO, hello)
    end

    # Connect now. Otherwise the first +init+ connects.
    def connect
      until @socket
        raise @finished if @finished

        lost, @lost = @lost, nil
        back_off(lost) if lost
        begin
          attempt
        rescue Interrupted => e
          @lost = e
        end
      end
    end

    # Return the server's parameters for the next episodes: by name, an Array of the values of all environments. Read
    # them before an environment begins an episode. Connects if there is no connection.
    def parameters
      raise ArgumentError, "parameters: use environment_parameters: true" unless asked?(:environment_parameters)

      connect
      @parameters_read = true
      @parameters.transform_values(&:dup)
    end

    # Begin an episode in every environment and return the first actions. +partial+: true where an episode continues.
    # +idle+: true where an environment is away and its observation void. All episodes are sent as partial if there are
    # +parameters+ and those of this connection were not read.
    def init(observation, partial: nil, idle: nil)
      raise ArgumentError, "an episode is in progress: call reset first" if @playing
      raise ArgumentError, "partial has #{@count} entries" unless partial.nil? || partial.size == @count

      away = mask_of(:idle, idle, :out_of_step)
      content = Wire.arrays(1, @observation, pack(observation, away), @count)
      begin
        connect
        hear(0)
        partial = [true] * @count unless @parameters.empty? || @parameters_read
        actions = ask(INIT, content + Wire.mask(2, partial) + Wire.mask(3, away), ACTIONS)
      rescue Interrupted
        retry
      end
      @away = away
      actions
    end

    # Send the outcome of the last actions and return the next ones. +reward+: N numbers; masks: N booleans or nil.
    # +final_observation+: rows of ended episodes, with :same_step; required if an episode was truncated. +idle+: the
    # environments that want no action, with out_of_step; their rows are void, except those of an episode that ends.
    # +chosen+: the environments that took another action than the agent's, with chosen_actions. It is in +action+,
    # whose other rows are ignored. The client sets `first`: the reward of an environment that was between two episodes
    # is void.
    def step(reward, observation, terminated: nil, truncated: nil, idle: nil, final_observation: nil, episodes: [],
             chosen: nil, action: nil)
      ended, cut, resting = check(reward, terminated, truncated, idle, final_observation, episodes, true)
      same, following = %i[same_step next_step].map { |mode| @autoreset_of.map { |habit| habit == AUTORESET[mode] } }
      leaves = pack(observation, each_environment { |i| resting[i] && !(ended[i] && following[i]) })
      final = final_observation ? pack(final_observation, each_environment { |i| !(ended[i] && same[i]) }) : []
      taken = pack_chosen(9, chosen, action, each_environment { |i| @away[i] || resting[i] && !ended[i] })
      hear(0)
      content = Wire.doubles(1, reward) + Wire.arrays(2, @observation, leaves, @count) + Wire.mask(3, terminated) +
                Wire.mask(4, cut) + (final.empty? ? "" : Wire.arrays(5, @observation, final, @count)) +
                Wire.mask(6, each_environment { |i| @away[i] && !resting[i] }) + pack_episodes(7, episodes) +
                Wire.mask(8, resting) + taken
      actions = ask(STEP, content, ACTIONS)
      @away = each_environment { |i| ended[i] ? resting[i] || following[i] : @away[i] && resting[i] }
      actions
    end

    # End the episode of every environment and return their returns. +final_observation+ is required if one is truncated.
    # +chosen+ and +action+ are as in +step+.
    def reset(reward, truncated: nil, final_observation: nil, episodes: [], chosen: nil, action: nil)
      _, cut = check(reward, nil, truncated, nil, final_observation, episodes, false)
      final = final_observation ? pack(final_observation) : []
      taken = pack_chosen(5, chosen, action, @away)
      hear(0)
      content = Wire.doubles(1, reward) + Wire.mask(2, cut) +
                (final.empty? ? "" : Wire.arrays(3, @observation, final, @count)) + pack_episodes(4, episodes) +
                taken
      ask(RESET, content, RETURNS)
    end

    # Add a scalar to the next message, with a valid name ("a b" becomes a_b). Returns false if it is dropped: there is
    # no connection, or it exceeds the server's limits.
    def metric(name, value)
      raise ArgumentError, "metric #{name.inspect}, #{value}: use a name and a value from -1e30 to 1e30" if name.empty? || !(value.abs <= 1e30)

      name = name.scrub("_").gsub(%r{[^A-Za-z0-9_\-./]|\A/}, "_")
      room = @socket && name.size <= @name_bytes && @scalars.bytesize < 1 << 16
      return false unless room && (@used.include?(name) || @used.size < @name_limit)

      @used << name
      @scalars << Wire.frame(METRICS, Wire.bytes(1, Wire.text(1, name) + Wire.double(2, value)))
      true
    end

    # Send a ping, for environments that are slower than the server's idle timeout.
    def alive
      send_message(PING, Wire.integer(1, 1))
      hear(PONG)
    end

    # Send bye and disconnect.
    def close
      return unless @socket

      @silence = 1
      send_message(BYE, "")
      @tcp.close_write
      until_then = now + 1
      nil while now < until_then && @tcp.wait_readable(0.5) && @tcp.read_nonblock(4096, exception: false).is_a?(String)
    rescue Error, *@broken
      nil # the connection is closing
    ensure
      hang_up
    end

    private

    def asked?(capability)
      @asked.include?(capability)
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # The current address.
    def where
      @addresses[@address % @addresses.size]
    end

    def hang_up
      @tcp&.close
      @tcp = @socket = @gone = nil
      @playing = false
      @buffer.clear
      @scalars.clear
    end

    def interrupted(sentence, code = 0, retry_after = 0)
      hang_up
      @lost = Interrupted.new(sentence, code, retry_after)
      raise @lost
    end

    # Disconnect after a mistake of the server. Reconnect only if an `init` was answered on this connection (section 9).
    def mistake(code, what)
      say_bye(what)
      interrupted("the server's mistake: #{what}", code) if @answered || @gone
      hang_up
      raise Failed.new("#{where}: the server's mistake: #{what}: is it an RLX server?", code)
    end

    def say_bye(reason)
      @socket.write_nonblock(Wire.frame(BYE, Wire.text(1, reason)), exception: false)
    rescue *@broken
      nil # the connection is closed next
    end

    # Wrap a message in a frame. Raises ArgumentError if it exceeds the server's limit.
    def framed(kind, content)
      frame = Wire.frame(kind, content)
      return frame unless frame.bytesize - 4 > @limit

      raise ArgumentError, "a message of #{frame.bytesize - 4} bytes; the server accepts at most #{@limit}"
    end

    # Write the pending scalars and a message in one call.
    def send_message(kind, content)
      raise @finished || @lost || Interrupted.new("there is no connection") unless @socket

      frame = framed(kind, content)
      data, @scalars = @scalars << frame, String.new
      write(data)
    end

    def write(data)
      until data.empty?
        done = @socket.write_nonblock(data, exception: false)
        done.is_a?(Integer) ? data = data.byteslice(done..) : await(done)
      end
    rescue *@broken
      @gone = now + 0.5 # the server may have sent the reason
      hear(FINISHED)
    end

    # Wait until the socket is ready for a nonblocking call. Raises Errno::ETIMEDOUT.
    def await(lacking)
      seconds = @gone ? [@gone - now, 0].max : @silence
      ready = lacking == :wait_readable ? @tcp.wait_readable(seconds) : @tcp.wait_writable(seconds)
      ready || raise(Errno::ETIMEDOUT, "the server is silent")
    end

    # The payload of the next frame, if it has arrived. Its length is checked before its body is read.
    def next_frame
      return if @buffer.bytesize < 4

      if !@answered && @buffer.byteslice(3, 6) == SETTINGS
        hang_up
        raise Failed.new("#{where}: #{SPEAKS_GRPC}", Wire::MALFORMED)
      end
      size = @buffer.unpack1("N")
      mistake(Wire::MALFORMED, "a frame of length 0") if size.zero?
      mistake(2, "a frame of #{size} bytes; the limit is #{@most}") if size > @most
      return if @buffer.bytesize < 4 + size

      frame = @buffer.slice!(0, 4 + size)
      frame.byteslice(4, size)
    end

    # Read and process frames until the expected answer arrives. 0: process what has arrived, without waiting.
    def hear(due)
      loop do
        while (frame = next_frame)
          answer = look(frame, due)
          return answer if answer
        end
        @buffer << (read(due) || return)
      end
    end

    def read(due)
      loop do
        data = @socket.read_nonblock(65_536, exception: false)
        ended(due, "the server's stream ended") if data.nil? || @gone && now > @gone
        return data if data.is_a?(String)
        return if due.zero?

        await(data)
      end
    rescue *@broken => e
      ended(due, "the connection is lost: #{e.message}")
    end

    def ended(due, why)
      why = "#{where}: no welcome: #{why}: is it an RLX server #{@tls ? 'with' : 'without'} TLS?" if due == WELCOME
      interrupted(why)
    end

    # Process one frame. Returns the answer if it is the expected one.
    def look(payload, due)
      found = Wire.parse(payload).select { |number, kind, _| number <= 8 && kind == 2 }
      mistake(Wire::MALFORMED, "two messages in one frame") if found.size > 1
      mistake(3, "an unknown message") if found.empty?
      kind, _, content = found.first
      message = Wire.parse(content)
      return farewell(kind, message) if [ERROR, FINISHED, BYE].include?(kind)
      return if @gone

      if kind == PING
        send_message(PONG, Wire.integer(1, Wire.read_integer(message, 1) & 0xffff_ffff))
        return
      end
      return due == PONG if kind == PONG

      mistake(3, "message #{kind} is not allowed now") unless kind == due
      case due
      when WELCOME then read_welcome(message)
      when ACTIONS then read_actions(message)
      else Wire.read_numbers(message, 1, @count)
      end
    rescue Wire::Wrong => e
      mistake(e.code, "invalid Protobuf, or a value outside the agreed range")
    end

    def read_welcome(message)
      limits = Wire.parse(*Wire.all(message, 5))
      Wire.read_text(message, 2)
      session, algorithm = Wire.read_text(message, 3), Wire.read_text(message, 4)
      most = Wire.read_integer(limits, 1) & 0xffff_ffff
      idle, heartbeat = Wire.read_double(limits, 2), Wire.read_double(limits, 3)
      copies = @autoreset.include?(AUTORESET[:same_step]) ? 2 : 1
      raise Wire::Wrong, 4 unless Wire.read_integer(message, 1) == 1
      timed = idle.positive? && heartbeat.positive? && (idle + heartbeat).finite?
      raise Wire::Wrong, Wire::VALUE unless timed && session.match?(/\A[A-Za-z0-9_-]{0,128}\z/)
      acted = @action.sum(&:size) * @count
      outcome = copies * @observation.sum(&:size) * @count + (asked?(:chosen_actions) ? acted : 0)
      raise Wire::Wrong, Wire::LIMIT if [outcome, acted].max > most

      read_capabilities(message)
      @session_id, @algorithm, @limit, @silence = session, algorithm, most, [3 * heartbeat, 5].max
      longest = HANDSHAKE_BYTES + 2 * acted + 16 * @count * (1 + @parameters.size) # of all possible answers
      @most = [most, longest].min
      @name_bytes, @name_limit, @used = Wire.read_integer(limits, 4), Wire.read_integer(limits, 5), Set.new
      true
    end

    # Compare the welcome's capabilities with those of the hello. Raises Failed if one is missing.
    def read_capabilities(message)
      given = CAPABILITIES.keys.select.with_index(6) { |_, field| !Wire.read_integer(message, field).zero? }
      raise Wire::Wrong, Wire::VALUE unless (given - @asked).empty?

      names, values = Wire.read_parameters(message, given.include?(:environment_parameters), @count)
      @parameters, @parameters_read = names.to_h { |name| [name, []] }, false
      set_parameters(0...@count, values)
      lacking, = @asked - given
      return unless lacking

      say_bye("the welcome lacks #{lacking}")
      raise Failed.new("#{where}: the server or its algorithm does not support #{CAPABILITIES[lacking]}: " \
                       "use another algorithm, or do not set #{lacking}", UNSUPPORTED_SPACE)
    end

    def read_actions(message)
      most = asked?(:environment_parameters) ? @count : 0
      set_parameters(*Wire.read_new_parameters(message, most, @parameters.size))
      Wire.read_actions(message, @action, @count)
    end

    # The values are in the order of the environments; those of each are in the order of the names.
    def set_parameters(environments, values)
      @parameters.each_value.with_index do |column, i|
        environments.each_with_index { |environment, row| column[environment] = values[row * @parameters.size + i] }
      end
    end

    # Process the server's last message: an error, the end of training, or a bye.
    def farewell(kind, message)
      text = Wire.read_text(message, kind == ERROR ? 2 : 1)
      code, after = Wire.read_integer(message, 1), Wire.read_double(message, 4)
      raise Wire::Wrong, Wire::VALUE unless kind != ERROR || after >= 0 && after.finite?

      hang_up
      if kind == FINISHED
        @finished = Finished.new("training has finished: #{text}", Wire.read_integer(message, 2))
        raise @finished
      end
      interrupted("the server sent bye: #{text}") if kind == BYE
      text = "error #{code}" if text.empty?
      raise Failed.new(text, code) if Wire.read_integer(message, 3).zero?

      interrupted(text, code, after)
    end

    # Connect to the current address once.
    def attempt
      host, _, port = where.rpartition(":")
      @limit = HANDSHAKE_BYTES
      @most = HANDSHAKE_BYTES + (asked?(:environment_parameters) ? 2048 * @count : 0)
      @silence, @answered = 60, false
      said = framed(HELLO, hello)
      begin
        @tcp = Socket.tcp(host.delete("[]"), port.to_i, connect_timeout: 10)
        @tcp.setsockopt(Socket::IPPROTO_TCP, Socket::TCP_NODELAY, 1)
        @socket = @tls ? secured(host) : @tcp
      rescue *@broken => e
        interrupted("cannot connect to #{where}: #{e.message}: is an RLX server running there?")
      end
      write(said)
      welcomed = hear(WELCOME)
    ensure
      hang_up unless welcomed
    end

    # A retry does not help with an untrusted certificate or a peer without TLS.
    def secured(host)
      socket = OpenSSL::SSL::SSLSocket.new(@tcp, @tls)
      socket.hostname = host unless host.match?(/\A[\d.:\[\]]+\z/)
      state = nil
      await(state) while (state = socket.connect_nonblock(exception: false)).is_a?(Symbol)
      socket.post_connection_check(host.delete("[]"))
      socket
    rescue OpenSSL::SSL::SSLError => e
      raise if e.message.match?(/unexpected eof|SYSCALL/) # only the end of the stream

      raise Failed, "no TLS with #{host}: #{e.message}"
    end

    # The bounds of observations are left out if the hello would be too long (section 6).
    def hello(bounds = true)
      content =
        Wire.integer(1, 1) + Wire.text(2, "relaax-ruby") + Wire.text(3, VERSION) + Wire.text(4, @names[:token]) +
        Wire.text(5, @names[:environment]) + Wire.text(6, @names[:host]) + Wire.integer(7, @frame_skip) +
        Wire.bytes(8, @observation_space.wire(bounds)) + Wire.bytes(9, @action_space.wire) + Wire.integer(10, @count) +
        Wire.packed(11, @autoreset) + Wire.integer(12, @mode) + Wire.text(13, @session_id) +
        Wire.integer(14, @reports_episodes ? 1 : 0) +
        CAPABILITIES.keys.map.with_index(15) { |name, field| Wire.integer(field, asked?(name) ? 1 : 0) }.join
      bounds && content.bytesize > HANDSHAKE_BYTES - 4 ? hello(false) : content
    end

    # Wait before the next attempt, longer after each failure. Raises Failed after retry_seconds.
    def back_off(lost)
      wait = [[0.5 * 2**[@failures, 6].min, 30].min * rand(0.5..1.0), lost.retry_after * rand(1.0..1.2)].max
      @since = now if @failures.zero?
      if now - @since + wait > @retry_seconds
        @failures = 0
        raise Failed.new(lost.message, lost.code)
      end
      @failures += 1
      @address += 1
      @on_retry.call(lost, wait)
      sleep wait
    end

    def ask(kind, content, due)
      send_message(kind, content)
      answer = hear(due)
      @answered, @failures, @playing = true, 0, due == ACTIONS
      answer
    end

    def each_environment(&block)
      Array.new(@count, &block)
    end

    # The values of rows that are +hidden+ are not checked.
    def pack(value, hidden = [], kind = :observation)
      leaves = kind == :action ? @action : @observation
      unless value.size == leaves.size
        raise ArgumentError, "an #{kind} has #{value.size} leaves; the space has #{leaves.size}"
      end
      leaves.zip(value).map { |leaf, values| leaf.pack(values, @count, hidden, kind) }
    end

    # The fields `chosen` and `action`. +void+: the environments that took no action. Raises ArgumentError.
    def pack_chosen(field, chosen, action, void)
      chosen = mask_of(:chosen, chosen, :chosen_actions)
      return "" if chosen.none?

      wrong = chosen.zip(void).index([true, true])
      raise ArgumentError, "environment #{wrong} is chosen, but it took no action" if wrong
      raise ArgumentError, "an environment is chosen, and its action is missing" unless action

      Wire.mask(field, chosen) + Wire.arrays(field + 1, @action, pack(action, chosen.map(&:!), :action), @count)
    end

    def pack_episodes(field, episodes)
      episodes.map do |one|
        Wire.bytes(field, Wire.integer(1, one.environment) + Wire.double(2, one.episode_return) + Wire.integer(3, one.length))
      end.join
    end

    # A mask that needs a capability. Raises ArgumentError.
    def mask_of(name, given, capability)
      raise ArgumentError, "#{name} has #{@count} entries" unless given.nil? || given.size == @count

      mask = each_environment { |i| given ? !!given[i] : false }
      wrong = mask.index(true)
      raise ArgumentError, "environment #{wrong} is #{name}: use #{capability}: true" if wrong && !asked?(capability)

      mask
    end

    # Check an outcome. Returns which episodes end, which of these are truncated, and which environments are idle. Raises
    # ArgumentError.
    def check(reward, terminated, truncated, idle, final, episodes, stepping)
      raise @finished if @finished
      raise @lost || Interrupted.new("the connection is lost: call init to reconnect") unless @socket
      raise ArgumentError, "no episode is in progress: call init first" unless @playing
      unless reward.size == @count && [terminated, truncated].compact.all? { |mask| mask.size == @count }
        raise ArgumentError, "rewards and masks have #{@count} entries"
      end
      wrong = reward.find_index { |one| !(one.is_a?(Numeric) && one.abs <= 1e15) }
      raise ArgumentError, "the reward of environment #{wrong} is #{reward[wrong]}; it must be from -1e15 to 1e15" if wrong

      idle = mask_of(:idle, idle, :out_of_step)
      cut = each_environment { |i| !!truncated&.at(i) && !terminated&.at(i) && (stepping || !@away[i]) }
      ended = each_environment { |i| !!terminated&.at(i) || cut[i] }
      check_ends(ended, cut, final, stepping)
      known = episodes.all? { |e| e.environment.between?(0, @count - 1) && e.length.positive? && e.episode_return.abs <= 1e30 }
      unless known && episodes.uniq(&:environment).size == episodes.size && (@reports_episodes || episodes.empty?)
        raise ArgumentError, "episodes: at most one for each environment, and only with reports_episodes"
      end
      [ended, cut, idle]
    end

    def check_ends(ended, cut, final, stepping)
      same = @autoreset_of.map { |habit| habit == AUTORESET[:same_step] }
      if stepping
        wrong = ended.each_index.find { |i| ended[i] && (@autoreset_of[i] == AUTORESET[:disabled] || @away[i]) }
        raise ArgumentError, "the episode of environment #{wrong} cannot end in this step" if wrong
        if final && ended.zip(same).none? { |over, here| over && here }
          raise ArgumentError, "a final observation was given, but no episode ended"
        end
      end
      needed = cut.zip(same).any? { |one, here| one && (here || !stepping) }
      raise ArgumentError, "a truncated episode needs its final observation" if needed && !final
    end
  end
end
