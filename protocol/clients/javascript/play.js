// Executes commands from standard input, one a line, and prints what it receives: see protocol/clients/README.md.

import readline from "node:readline";
import * as rlx from "./src/rlx.js";
import { leavesOf } from "./src/space.js";

const HABITS = ["", "disabled", "same_step", "next_step"];

const bytes = (digits) => Buffer.from(digits === "-" ? "" : digits, "hex");

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

  text = () => bytes(this.word()).toString("utf8");
  number = () => bytes(this.word()).readDoubleBE();
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

  /** At most so many leaves, or undefined if there are none. */
  leaves(most = Infinity) {
    const found = this.words.splice(0, most).map((digits) => new Uint8Array(bytes(digits)).buffer);
    return found.length ? found : undefined;
  }

  /** The final observation and the client's action, which are the last words. */
  ending(chosen) {
    const finalObservation = this.leaves(this.words.length - (chosen ? leavesOf(action).length : 0));
    return { finalObservation, chosen, action: this.leaves() };
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
const double = (value) => hex(Float64Array.of(value));

/** The bits of numbers that came from float16. */
function halves(values) {
  const bits = new Map();
  for (let one = 0; one < 65536; one++) if (((one >> 10) & 31) !== 31 && !(one === 0x8000)) bits.set(rlx.half(one), one);
  return Uint16Array.from(values, (value) => (Object.is(value, -0) ? 0x8000 : bits.get(value)));
}

let client;
let action;
let size;

async function show(actions) {
  const leaf = (values, i) => {
    if (Array.isArray(values)) return hex(BigInt64Array.from(values, BigInt));
    return hex(leavesOf(action)[i].space.dtype === "float16" ? halves(values) : values);
  };
  console.log(`actions ${actions.map(leaf).join(" ")}`);
  await showParameters();
}

async function showParameters() {
  if (!client.options.environmentParameters) return;
  const found = Object.entries(await client.parameters());
  const words = found.flatMap(([name, values]) => [Buffer.from(name).toString("hex"), ...values.map(double)]);
  console.log(`parameters ${words.join(" ")}`);
}

const COMMANDS = {
  async connect(line) {
    const address = line.word();
    const [environments, mode, frameSkip] = [line.integer(), line.integer(), line.integer()];
    const flags = ["reportsEpisodes", "outOfStep", "chosenActions", "environmentParameters"].map((name) => [name, line.integer() === 1]);
    const autoreset = line.many(() => HABITS[line.integer()]);
    const [environment, host, token, sessionId] = [line.text(), line.text(), line.text(), line.text()];
    const observation = line.space();
    action = line.space();
    const names = { environment, host, token, sessionId, frameSkip, ...Object.fromEntries(flags), retrySeconds: -1 };
    const options = { observation, action, environments, autoreset, mode: ["", "train", "exploit"][mode], ...names };
    client = new rlx.Client(address, options);
    await client.connect();
    console.log(`welcome ${Buffer.from(client.sessionId).toString("hex")} ${Buffer.from(client.algorithm).toString("hex")}`);
    await showParameters();
  },
  async init(line) {
    const [partial, idle] = [line.mask(), line.mask()];
    const observation = line.leaves();
    size = observation.length;
    await show(await client.init(observation, { partial, idle }));
  },
  async step(line) {
    const [reward, terminated, truncated] = [line.many(line.number), line.mask(), line.mask()];
    const [idle, chosen, episodes] = [line.mask(), line.mask(), line.episodes()];
    const observation = line.leaves(size);
    await show(await client.step(reward, observation, { terminated, truncated, idle, episodes, ...line.ending(chosen) }));
  },
  async reset(line) {
    const [reward, truncated, chosen] = [line.many(line.number), line.mask(), line.mask()];
    const returns = await client.reset(reward, { truncated, episodes: line.episodes(), ...line.ending(chosen) });
    console.log(`returns ${returns.map(double).join(" ")}`);
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
