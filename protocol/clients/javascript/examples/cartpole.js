// CartPole as an RLX client:
//   node cartpole.js ADDRESS[,ADDRESS] [--environments N] [--autoreset disabled|same_step|next_step]
//     [--mode train|exploit] [--episodes K] [--seed S] [--token-file FILE] [--tls-ca FILE]
// An ADDRESS is HOST:PORT, ws://HOST:PORT/ or wss://HOST:PORT/.

import fs from "node:fs";
import os from "node:os";
import { parseArgs } from "node:util";
import { Client, Failed, Finished, Interrupted, box, discrete } from "../src/rlx.js";

/** Repeatable random numbers in [0, 1) (mulberry32). */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The pole on its cart. */
class CartPole {
  steps = 0;

  constructor(random) {
    this.state = Array.from({ length: 4 }, () => 0.1 * random() - 0.05);
  }

  /** One Euler step of 0.02 s: Barto, Sutton and Anderson 1983, with the constants of gymnasium's CartPole-v1. */
  step(action) {
    const [x, speed, angle, turning] = this.state;
    const [sine, cosine] = [Math.sin(angle), Math.cos(angle)];
    const push = ((action === 1 ? 10 : -10) + 0.05 * turning ** 2 * sine) / 1.1;
    const twist = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - (0.1 * cosine ** 2) / 1.1));
    const acceleration = push - (0.05 * twist * cosine) / 1.1;
    this.state = [x + 0.02 * speed, speed + 0.02 * acceleration, angle + 0.02 * turning, turning + 0.02 * twist];
    this.steps += 1;
    const terminated = Math.abs(this.state[0]) > 2.4 || Math.abs(this.state[2]) > (12 * Math.PI) / 180;
    return { terminated, truncated: !terminated && this.steps >= 500 };
  }
}

/** Plays episodes in N poles. */
class Player {
  returns = [];

  constructor(client, { environments, autoreset, episodes, random }) {
    Object.assign(this, { client, count: environments, autoreset, wanted: episodes, random });
  }

  /** Play until enough episodes have ended. An error ends it earlier. */
  async play() {
    let actions = await this.#start();
    while (this.returns.length < this.wanted) {
      const results = actions[0].map((action, i) => this.#move(i, action));
      const [terminated, truncated] = [results.map((one) => one.terminated), results.map((one) => one.truncated)];
      const any = results.some((one) => one.terminated || one.truncated);
      const reward = this.begun.map((begun) => (begun ? 0 : 1));
      if (any && this.autoreset === "disabled") {
        // all episodes end together
        await this.client.reset(reward, { truncated: terminated.map((one) => !one), finalObservation: this.#show(this.last) });
        if (this.returns.length < this.wanted) actions = await this.#start();
      } else {
        const finalObservation = any && this.autoreset === "same_step" ? this.#show(this.last) : undefined;
        actions = await this.client.step(reward, this.#show(this.poles), { terminated, truncated, finalObservation });
      }
    }
  }

  #start() {
    this.poles = Array.from({ length: this.count }, () => new CartPole(this.random));
    this.last = [...this.poles];
    this.ended = this.poles.map(() => false);
    this.begun = this.poles.map(() => false);
    return this.client.init(this.#show(this.poles));
  }

  #show(poles) {
    return [Float32Array.from(poles.flatMap((pole) => pole.state))];
  }

  #move(i, action) {
    this.begun[i] = this.ended[i];
    this.ended[i] = false;
    if (this.begun[i]) {
      // next_step: this step only begins an episode
      this.poles[i] = new CartPole(this.random);
      return { terminated: false, truncated: false };
    }
    const pole = (this.last[i] = this.poles[i]);
    const result = pole.step(action);
    if (result.terminated || result.truncated) {
      this.returns.push(pole.steps);
      this.client.metric("episode length", pole.steps);
      this.ended[i] = this.autoreset === "next_step";
      if (this.autoreset === "same_step") this.poles[i] = new CartPole(this.random);
    }
    return result;
  }
}

function commandLine() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      environments: { type: "string", default: "1" },
      autoreset: { type: "string", default: "same_step" },
      mode: { type: "string", default: "train" },
      episodes: { type: "string", default: "Infinity" },
      seed: { type: "string", default: String(Math.floor(Math.random() * 2 ** 32)) },
      "token-file": { type: "string" },
      "tls-ca": { type: "string" },
    },
  });
  if (positionals.length !== 1) throw new RangeError("the address HOST:PORT is missing");
  const [environments, episodes, seed] = [values.environments, values.episodes, values.seed].map(Number);
  if (!(episodes >= 1) || !Number.isInteger(seed)) throw new RangeError("--episodes and --seed are whole numbers");
  const token = values["token-file"] ? fs.readFileSync(values["token-file"], "utf8").trim() : "";
  const tls = values["tls-ca"] && { ca: fs.readFileSync(values["tls-ca"]) };
  return { ...values, addresses: positionals[0].split(","), environments, episodes, seed, token, tls };
}

async function main() {
  const { addresses, episodes, seed, autoreset, environments, mode, token, tls } = commandLine();
  const spaces = { observation: box("float32", [4]), action: discrete(2) };
  const names = { environment: "CartPole", host: os.hostname() };
  const client = new Client(addresses, { ...spaces, ...names, environments, autoreset, mode, token, tls });
  const player = new Player(client, { environments, autoreset, episodes, random: generator(seed) });
  try {
    for (let lost = true; lost; ) {
      lost = false;
      await player.play().catch((error) => {
        if (error instanceof Finished) console.log("training has finished");
        else if (error instanceof Interrupted) lost = true; // new episodes, a new connection
        else throw error;
      });
    }
  } finally {
    const mean = player.returns.reduce((sum, one) => sum + one, 0) / player.returns.length;
    if (player.returns.length) console.log(`mean of ${player.returns.length} episodes: ${mean.toFixed(2)}`);
  }
  await client.close();
}

main().catch((error) => {
  console.error(error.message);
  if (!(error instanceof Failed)) process.exitCode = 2;
  else process.exitCode = error.code >= 4 && error.code <= 7 ? 2 : 1; // 2: a retry does not help
});
