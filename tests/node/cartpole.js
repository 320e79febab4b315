// CartPole as an RLX client:
//   node cartpole.js HOST:PORT [--mode exploit|train] [--episodes K] [--seed S] [--token-file FILE]
'use strict';

const fs = require('node:fs');
const os = require('node:os');
const { parseArgs } = require('node:util');
const { Ended, discrete, float32, stayConnected } = require('./rlx.js');

const [GRAVITY, CART_MASS, POLE_MASS, HALF_LENGTH, FORCE, TAU] = [9.8, 1.0, 0.1, 0.5, 10, 0.02];
const [FARTHEST, STEEPEST, LONGEST_EPISODE] = [2.4, (12 * Math.PI) / 180, 500];
const ACTIONS = 2;

/** Random numbers in [0, 1) that a seed repeats (mulberry32). */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

class CartPole {
  constructor(random) {
    this.random = random;
  }

  reset() {
    this.steps = 0;
    this.state = Array.from({ length: 4 }, () => 0.1 * this.random() - 0.05);
  }

  /** One step of Euler. If both flags could be true, the episode is terminated: the page lets that one count. */
  step(action) {
    const [x, speed, angle, turning] = this.state;
    const mass = CART_MASS + POLE_MASS;
    const [sine, cosine] = [Math.sin(angle), Math.cos(angle)];
    const push = ((action === 1 ? FORCE : -FORCE) + POLE_MASS * HALF_LENGTH * turning ** 2 * sine) / mass;
    const twist = (GRAVITY * sine - cosine * push) / (HALF_LENGTH * (4 / 3 - (POLE_MASS * cosine ** 2) / mass));
    const acceleration = push - (POLE_MASS * HALF_LENGTH * twist * cosine) / mass;
    this.state = [x + TAU * speed, speed + TAU * acceleration, angle + TAU * turning, turning + TAU * twist];
    this.steps += 1;
    const terminated = Math.abs(this.state[0]) > FARTHEST || Math.abs(this.state[2]) > STEEPEST;
    return { reward: 1, terminated, truncated: !terminated && this.steps >= LONGEST_EPISODE };
  }
}

/** Play one episode and give its return. Habit DISABLED: the last reward goes into `reset`, not into a `step`. */
async function episode(connection, environment) {
  environment.reset();
  let total = 0;
  let actions = await connection.ask('init', { observation: [float32(environment.state)] });
  for (;;) {
    const { reward, terminated, truncated } = environment.step(discrete(actions, ACTIONS));
    total += reward;
    const observation = [float32(environment.state)];
    if (terminated || truncated) {
      const ending = truncated ? { truncated: [true], finalObservation: observation } : {};
      await connection.ask('reset', { reward: [reward], ...ending });
      return total;
    }
    actions = await connection.ask('step', { reward: [reward], observation });
  }
}

function commandLine() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      mode: { type: 'string', default: 'exploit' },
      episodes: { type: 'string' },
      seed: { type: 'string' },
      'token-file': { type: 'string' },
    },
  });
  const [, host, port] = /^\[?(.+?)\]?:(\d+)$/.exec(positionals[0] ?? '') ?? [];
  if (!host || positionals.length > 1) throw new Ended('say where the server is: HOST:PORT');
  if (!['exploit', 'train'].includes(values.mode)) throw new Ended('--mode is exploit or train');
  const episodes = Number(values.episodes ?? (values.mode === 'train' ? Infinity : 10)); // train: until training ends
  const seed = Number(values.seed ?? Math.floor(Math.random() * 2 ** 32));
  if (!(episodes >= 1) || !Number.isInteger(seed)) throw new Ended('--episodes and --seed are whole numbers');
  const token = values['token-file'] ? fs.readFileSync(values['token-file'], 'utf8').trim() : '';
  return { host, port: Number(port), mode: values.mode, episodes, seed, token };
}

async function main() {
  const { host, port, mode, episodes, seed, token } = commandLine();
  const environment = new CartPole(generator(seed));
  const hello = {
    clientName: 'cartpole.js',
    clientVersion: '1.0',
    token,
    environment: 'CartPole',
    host: os.hostname(),
    frameSkip: 1,
    observationSpace: { box: { dtype: 'DTYPE_FLOAT32', shape: [4] } },
    actionSpace: { discrete: { n: String(ACTIONS) } },
    environments: 1,
    autoreset: ['AUTORESET_DISABLED'],
    mode: `MODE_${mode.toUpperCase()}`,
  };
  const returns = [];
  const through = await stayConnected(host, port, hello, async (connection, succeeded) => {
    // After a reconnect the episode that was cut is abandoned: the environment begins a new one (section 6).
    while (returns.length < episodes) {
      returns.push(await episode(connection, environment));
      succeeded();
      console.log(`episode ${returns.length}: ${returns.at(-1)}`);
    }
  });
  if (!through) console.log('training has finished');
  const mean = returns.reduce((sum, one) => sum + one, 0) / returns.length;
  console.log(returns.length ? `mean of ${returns.length} episodes: ${mean.toFixed(2)}` : 'no whole episode');
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
