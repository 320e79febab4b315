// Executes commands from standard input, one a line, and prints what it receives: see protocol/clients/README.md.

import readline from "node:readline";
import * as rlx from "./src/rlx.js";
import { leavesOf } from "./src/space.js";

const HABITS = ["", "disabled", "same_step", "next_step"];

/** The words of a command. */
class Line {
  constructor(text) {
    this.words = text.trim().split(" ");
  }

  word() {
    return this.words.shift();
  }

  integer = () => Number(this.word());
  big = () => BigInt(this.word());

  bytes() {
    const digits = this.word();
    return Buffer.from(digits === "-" ? "" : digits, "hex");
  }

  text = () => this.bytes().toString("utf8");
  number = () => this.bytes().readDoubleBE();
  many = (one) => Array.from({ length: this.integer() }, one);

  space = () => {
    const kind = this.word();
    if (kind === "box") {
      const dtype = rlx.DTYPES[this.integer() - 1];
      return rlx.box(dtype, this.many(this.integer), { low: this.many(this.number), high: this.many(this.number) });
    }
    if (kind === "discrete") return rlx.discrete(this.big(), this.big());
    if (kind === "multi_discrete") return rlx.multiDiscrete(this.many(this.big));
    if (kind === "multi_binary") return rlx.multiBinary(this.many(this.integer));
    if (kind === "tuple") return rlx.tuple(this.many(this.space));
    return rlx.dict(new Map(this.many(() => [this.text(), this.space()])));
  };

  mask() {
    const digits = this.word();
    return digits === "-" ? undefined : Array.from(digits, (one) => one === "1");
  }

  /** At most as many leaves as the observation has, or undefined at the end of the line. */
  leaves(most = Infinity) {
    const found = [];
    while (found.length < most && this.words.length) found.push(new Uint8Array(this.bytes()).buffer);
    return found.length ? found : undefined;
  }

  episodes() {
    const given = this.word();
    if (given === "-") return [];
    return given.split(",").map((one) => {
      const [environment, bits, length] = one.split(":");
      return { environment: Number(environment), episodeReturn: Buffer.from(bits, "hex").readDoubleBE(), length: Number(length) };
    });
  }
}

const hex = (typed) => Buffer.from(typed.buffer, typed.byteOffset, typed.byteLength).toString("hex");

/** The bits of numbers that came from float16. */
function halves(values) {
  const bits = new Map();
  for (let one = 0; one < 65536; one++) if (((one >> 10) & 31) !== 31 && !(one === 0x8000)) bits.set(rlx.half(one), one);
  return Uint16Array.from(values, (value) => (Object.is(value, -0) ? 0x8000 : bits.get(value)));
}

let client;
let action;
let size;

function show(actions) {
  const bytes = (values, i) => {
    if (Array.isArray(values)) return hex(BigInt64Array.from(values, BigInt));
    return hex(leavesOf(action)[i].space.dtype === "float16" ? halves(values) : values);
  };
  console.log(`actions ${actions.map(bytes).join(" ")}`);
}

const COMMANDS = {
  async connect(line) {
    const address = line.word();
    const [environments, mode, frameSkip] = [line.integer(), line.integer(), line.integer()];
    const [reportsEpisodes, outOfStep] = [line.integer() === 1, line.integer() === 1];
    const autoreset = line.many(() => HABITS[line.integer()]);
    const [environment, host, token, sessionId] = [line.text(), line.text(), line.text(), line.text()];
    const observation = line.space();
    action = line.space();
    const names = { environment, host, token, sessionId, frameSkip, reportsEpisodes, outOfStep, retrySeconds: -1 };
    const options = { observation, action, environments, autoreset, mode: ["", "train", "exploit"][mode], ...names };
    client = new rlx.Client(address, options);
    await client.connect();
    console.log(`welcome ${Buffer.from(client.sessionId).toString("hex")} ${Buffer.from(client.algorithm).toString("hex")}`);
  },
  async init(line) {
    const [partial, idle] = [line.mask(), line.mask()];
    const observation = line.leaves();
    size = observation.length;
    show(await client.init(observation, { partial, idle }));
  },
  async step(line) {
    const [reward, terminated, truncated] = [line.many(line.number), line.mask(), line.mask()];
    const [idle, episodes] = [line.mask(), line.episodes()];
    const [observation, finalObservation] = [line.leaves(size), line.leaves(size)];
    show(await client.step(reward, observation, { terminated, truncated, idle, finalObservation, episodes }));
  },
  async reset(line) {
    const [reward, truncated, episodes] = [line.many(line.number), line.mask(), line.episodes()];
    const returns = await client.reset(reward, { truncated, episodes, finalObservation: line.leaves() });
    console.log(`returns ${returns.map((one) => hex(Float64Array.of(one))).join(" ")}`);
  },
  async metric(line) {
    client.metric(line.text(), line.number());
  },
  async ping() {
    await client.alive();
    console.log("pong");
  },
};

let over = false; // after a connection has ended, other commands are skipped
for await (const text of readline.createInterface({ input: process.stdin })) {
  if (text === "end") {
    await client?.close();
    over = false;
    console.log("end");
    continue;
  }
  if (over) continue;
  const line = new Line(text);
  try {
    await COMMANDS[line.word()](line);
  } catch (error) {
    over = error instanceof rlx.RlxError;
    if (error instanceof rlx.Finished) console.log(`finished ${error.globalStep} ${error.message}`);
    else if (over) console.log(`lost ${error.code} ${error.message}`);
    else if (error instanceof RangeError) console.log(`invalid 8 ${error.message}`);
    else throw error;
  }
}
