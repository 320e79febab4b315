# frozen_string_literal: true

# CartPole as an RLX client:
#   ruby cartpole.rb HOST:PORT[,HOST:PORT] [--environments N] [--autoreset disabled|same_step|next_step]
#        [--mode train|exploit] [--episodes K] [--seed S] [--token-file FILE] [--tls-ca FILE]

require "optparse"
require "socket"
require_relative "../lib/rlx"

# The pole on its cart.
class CartPole
  attr_reader :state, :steps

  def initialize(random)
    @state = Array.new(4) { 0.1 * random.rand - 0.05 }
    @steps = 0
  end

  # One Euler step of 0.02 s: Barto, Sutton and Anderson 1983, with the constants of gymnasium's CartPole-v1.
  # Returns whether the episode was terminated, and whether truncated.
  def step(action)
    x, speed, angle, turning = @state
    sine, cosine = Math.sin(angle), Math.cos(angle)
    push = ((action == 1 ? 10 : -10) + 0.05 * turning * turning * sine) / 1.1
    twist = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3 - 0.1 * cosine * cosine / 1.1))
    acceleration = push - 0.05 * twist * cosine / 1.1
    @state = [x + 0.02 * speed, speed + 0.02 * acceleration, angle + 0.02 * turning, turning + 0.02 * twist]
    @steps += 1
    terminated = @state[0].abs > 2.4 || @state[2].abs > 12 * Math::PI / 180
    [terminated, @steps >= 500 && !terminated]
  end
end

# Plays episodes in N poles.
class Player
  attr_reader :episodes, :total

  def initialize(client, count, autoreset, wanted, random)
    @client, @count, @autoreset, @wanted, @random = client, count, autoreset, wanted, random
    @episodes = @total = 0
  end

  # Play until enough episodes have ended. An error ends it earlier.
  def play
    actions = start
    until @wanted.positive? && @episodes >= @wanted
      results = actions[0].each_with_index.map { |action, i| move(i, action) }
      over, cut = results.transpose
      any = over.any? || cut.any?
      rewards = @begun.map { |begun| begun ? 0.0 : 1.0 }
      if any && @autoreset == :disabled # all episodes end together
        @client.reset(rewards, truncated: over.map(&:!), final_observation: show(@last))
        actions = start
      else
        final = any && @autoreset == :same_step ? show(@last) : nil
        actions = @client.step(rewards, show(@poles), terminated: over, truncated: cut, final_observation: final)
      end
    end
  end

  private

  def start
    @poles = Array.new(@count) { CartPole.new(@random) }
    @ended = [false] * @count
    @begun = [false] * @count
    @last = @poles.dup
    @client.init(show(@poles))
  end

  def show(poles)
    [poles.flat_map(&:state)]
  end

  def move(index, action)
    @begun[index] = @ended[index]
    @ended[index] = false
    if @begun[index] # :next_step: this step only begins an episode
      @poles[index] = CartPole.new(@random)
      return [false, false]
    end
    pole = @last[index] = @poles[index]
    over, cut = pole.step(action)
    return [over, cut] unless over || cut

    @episodes += 1
    @total += pole.steps
    @client.metric("episode/length", pole.steps)
    @ended[index] = @autoreset == :next_step
    @poles[index] = CartPole.new(@random) if @autoreset == :same_step
    [over, cut]
  end
end

options = { environments: 1, autoreset: :same_step, mode: :train, episodes: 0, seed: Random.new_seed, token: "" }
parser = OptionParser.new do |on|
  on.on("--environments N", Integer) { |value| options[:environments] = value }
  on.on("--autoreset HABIT", %i[disabled same_step next_step]) { |value| options[:autoreset] = value }
  on.on("--mode MODE", %i[train exploit]) { |value| options[:mode] = value }
  on.on("--episodes K", Integer) { |value| options[:episodes] = value }
  on.on("--seed S", Integer) { |value| options[:seed] = value }
  on.on("--token-file FILE") { |file| options[:token] = File.read(file).strip }
  on.on("--tls-ca FILE") do |file|
    require "openssl"
    options[:tls] = OpenSSL::SSL::SSLContext.new.tap { |tls| tls.set_params(ca_file: file) }
  end
end
begin
  address, = parser.parse(ARGV)
  abort "the address HOST:PORT is missing" unless address
  random = Random.new(options[:seed])
  client = RLX::Client.new(address.split(","), observation: RLX.box(:float32, [4]), action: RLX.discrete(2),
                                               environments: options[:environments], autoreset: options[:autoreset],
                                               mode: options[:mode], token: options[:token], environment: "CartPole",
                                               host: Socket.gethostname, tls: options[:tls])
  player = Player.new(client, options[:environments], options[:autoreset], options[:episodes], random)
  begin
    player.play
  rescue RLX::Interrupted
    retry # interrupted: new episodes, a new connection
  rescue RLX::Finished
    puts "training has finished"
  ensure
    puts format("mean of %d episodes: %.2f", player.episodes, player.total.fdiv(player.episodes)) if player.episodes.positive?
  end
  client.close
rescue OptionParser::ParseError, SystemCallError, ArgumentError => e
  warn e.message
  exit 2
rescue RLX::Failed => e
  warn e.message
  exit (4..7).cover?(e.code) ? 2 : 1 # 2: a retry does not help
end
