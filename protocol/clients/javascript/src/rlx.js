// A client of RLX, version 1 (sections are those of protocol/RLX.md), for browsers and Node. It connects environments in
// JavaScript to the agents of a RELAAX server. It encodes Protobuf itself and has no dependencies.

import { open } from "./open.js";
import { checkOptions } from "./options.js";
import { encoded, leavesOf, unbounded } from "./space.js";
import * as wire from "./wire.js";

export { DTYPES, box, dict, discrete, half, multiBinary, multiDiscrete, tuple } from "./space.js";

export const VERSION = "1.0.0";
const [HELLO, INIT, STEP, RESET, METRICS, PING, PONG, BYE] = [1, 2, 3, 4, 5, 6, 7, 8];
const [WELCOME, ACTIONS, RETURNS, ERROR, FINISHED] = [1, 2, 3, 4, 5];
const HABITS = { disabled: 1, same_step: 2, next_step: 3 };
const MODES = { train: 1, exploit: 2 };
const OPTIONS = [
  ...["observation", "action", "environments", "autoreset", "mode", "token", "environment", "host", "sessionId", "frameSkip"],
  ...["reportsEpisodes", "outOfStep", "chosenActions", "environmentParameters", "retrySeconds", "onRetry", "tls"],
];
// options, with their fields of the hello and of the welcome
const CAPABILITIES = {
  outOfStep: [15, 6, "environments out of step"],
  chosenActions: [16, 7, "actions of the client"],
  environmentParameters: [17, 8, "parameters of environments"],
};
const UNSUPPORTED_SPACE = 6;
const HANDSHAKE_BYTES = 65536;
const CONNECT_SECONDS = 30;
const QUIET_SECONDS = 60; // before the welcome
const LEAST_SILENCE = 5; // seconds, even if the heartbeat is shorter

/** The error of a call. `code` is an error code of section 9, or 0. Invalid arguments raise a RangeError instead. */
export class RlxError extends Error {
  constructor(sentence, code = 0) {
    super(sentence);
    this.name = new.target.name;
    this.code = code;
  }
}

/** The connection and its episodes are lost. Reset the environments and call `init`, which reconnects. */
export class Interrupted extends RlxError {
  constructor(sentence, code = 0, retryAfter = 0) {
    super(sentence, code);
    this.retryAfter = retryAfter;
  }
}

/** A retry is useless, or the retries took too long. */
export class Failed extends RlxError {}

/** Training has finished. */
export class Finished extends RlxError {
  constructor(sentence, globalStep) {
    super(sentence);
    this.globalStep = globalStep;
  }
}

const warn = ({ message }, seconds) => console.warn(`RLX: ${message}; trying again in ${seconds.toFixed(1)} s`);

function known(table, name, what) {
  if (!Object.hasOwn(table, name)) throw new RangeError(`${what} is ${name}: ${Object.keys(table).join(", ")} are known`);
  return table[name];
}

/** A connection of N environments to their agent. rlx.d.ts describes the calls. */
export class Client {
  #line;
  #lost; // the error that ended the connection
  #over; // the Finished or Failed that ended the client
  #busy = false; // a call is in progress
  #failures = 0;
  #address = 0;
  #since = 0;
  #scalars = [];
  #playing = false;
  #away; // the environments between two episodes
  #names = []; // of the server's parameters
  #parameters = []; // of the next episode of each environment
  #informed = false; // the caller has the parameters of this connection
  #timer;

  constructor(addresses, options) {
    this.addresses = [addresses].flat();
    if (!this.addresses.every((one) => typeof one === "string"))
      throw new RangeError('Client needs an address, or a list of them, before its options: new Client("ws://localhost:7001/", {...})');
    checkOptions("Client", options ?? {}, OPTIONS);
    for (const space of ["observation", "action"])
      if (!options?.[space]?.kind) throw new RangeError(`Client needs the option "${space}", a space such as discrete(2)`);
    const { observation, action, environments = 1, autoreset = "disabled", mode = "train" } = options;
    this.options = { frameSkip: 1, retrySeconds: 300, sessionId: "", onRetry: warn, ...options };
    this.sessionId = this.options.sessionId;
    this.algorithm = "";
    this.count = environments;
    this.habits = [autoreset].flat().map((name) => known(HABITS, name, "autoreset"));
    this.mode = known(MODES, mode, "mode");
    [this.observation, this.action] = [leavesOf(observation), leavesOf(action)];
    const fits = Number.isInteger(this.count) && this.count >= 1 && this.count <= 65536;
    if (!fits || ![1, this.count].includes(this.habits.length) || !this.addresses.length)
      throw new RangeError(`${this.count} environments: use 1 to 65536, and one autoreset mode for all or for each`);
    this.habitOf = this.#all((i) => this.habits[this.habits.length > 1 ? i : 0]);
    this.#away = this.#all(() => false);
  }

  /** Connect now. Otherwise the first `init` connects. */
  async connect() {
    await this.#alone(() => this.#connect());
  }

  /** Return the server's parameters for the next episode: by name, a value for each environment. Connects if necessary. */
  async parameters() {
    if (!this.options.environmentParameters) throw new RangeError("parameters need the option environmentParameters: true");
    return this.#alone(async () => {
      await this.#connect();
      this.#informed = true;
      return Object.fromEntries(this.#names.map((name, i) => [name, this.#parameters.map((values) => values[i])]));
    });
  }

  /** Begin an episode in every environment and return the first actions. */
  async init(observation, more = {}) {
    checkOptions("init", more, ["partial", "idle"]);
    const { partial, idle } = more;
    return this.#alone(async () => {
      if (this.#playing && this.#line) throw new RangeError("an episode is in progress: call reset first");
      this.#sized({ partial, idle });
      const away = this.#marked(idle, "outOfStep", "idle");
      const leaves = this.#leaves(1, observation, away);
      for (;;) {
        await this.#connect();
        const unknown = this.#names.length > 0 && !this.#informed; // the server does not know these parameters
        const content = wire.join([leaves, wire.mask(2, unknown ? this.#all(() => true) : partial), wire.mask(3, away)]);
        try {
          const actions = await this.#ask(INIT, content, ACTIONS);
          this.#away = away;
          return actions;
        } catch (error) {
          if (!(error instanceof Interrupted)) throw error;
        }
      }
    });
  }

  /** Send the outcome of the last actions and return the next actions. */
  async step(reward, observation, more = {}) {
    checkOptions("step", more, ["terminated", "truncated", "idle", "finalObservation", "episodes", "chosen", "action"]);
    const { terminated, finalObservation, episodes = [], action } = more;
    return this.#alone(async () => {
      const { ended, cut, idle, chosen } = this.#check(reward, more, true);
      const [same, next] = [HABITS.same_step, HABITS.next_step].map((mode) => this.habitOf.map((habit) => habit === mode));
      const hidden = idle.map((one, i) => one && !(ended[i] && next[i])); // a NEXT_STEP episode ends with its observation
      const content = [wire.doubles(1, Array.from(reward)), this.#leaves(2, observation, hidden)];
      content.push(wire.mask(3, terminated && Array.from(terminated)), wire.mask(4, cut));
      if (finalObservation) content.push(this.#leaves(5, finalObservation, ended.map((over, i) => !(over && same[i]))));
      content.push(wire.mask(6, this.#away.map((one, i) => one && !idle[i])), this.#episodes(7, episodes), wire.mask(8, idle));
      content.push(this.#chosen(9, chosen, action));
      const actions = await this.#ask(STEP, wire.join(content), ACTIONS);
      this.#away = this.#away.map((one, i) => (ended[i] ? idle[i] || next[i] : one && idle[i]));
      return actions;
    });
  }

  /** End the episode of every environment and return their returns. */
  async reset(reward, more = {}) {
    checkOptions("reset", more, ["truncated", "finalObservation", "episodes", "chosen", "action"]);
    const { finalObservation, episodes = [], action } = more;
    return this.#alone(async () => {
      const { cut, chosen } = this.#check(reward, more, false);
      const content = [wire.doubles(1, Array.from(reward)), wire.mask(2, cut)];
      if (finalObservation) content.push(this.#leaves(3, finalObservation));
      content.push(this.#episodes(4, episodes), this.#chosen(5, chosen, action));
      return this.#ask(RESET, wire.join(content), RETURNS);
    });
  }

  /**
   * Add a scalar to the next message, with a valid name ("a b" becomes a_b). Returns false if it is dropped: there is no
   * connection, or it exceeds the server's limits.
   */
  metric(name, value) {
    if (!name || !(Math.abs(value) <= 1e30)) throw new RangeError(`metric "${name}", ${value}: use a name and a value from -1e30 to 1e30`);
    const form = name.replace(/[^\w\-./]|^\//gu, "_"); // as the server does
    if (!this.#line || !this.names || form.length > this.nameBytes || this.#scalars.length >= 1000) return false;
    if (!this.names.has(form) && this.names.size >= this.nameLimit) return false;
    this.names.add(form);
    const scalar = wire.bytes(1, wire.join([wire.text(1, form), wire.double(2, value)]));
    this.#scalars.push(wire.bytes(METRICS, scalar));
    return true;
  }

  /** Send a ping and wait for the pong. Between calls the client sends pings itself, before the server's idle timeout. */
  async alive() {
    await this.#alone(() => this.#ask(PING, wire.integer(1, 1), PONG));
  }

  /** Send bye and disconnect. */
  async close() {
    this.#over ??= new Failed("the client was closed");
    if (!this.#line) return;
    const line = this.#line;
    this.#send(BYE, []);
    line.close();
    for (const until = Date.now() + 1000; !this.#busy && !line.ended && Date.now() < until; ) await line.wait(0.5);
    this.#hangUp(); // also ends a waiting call
  }

  #all(make) {
    return Array.from({ length: this.count }, (_, i) => make(i));
  }

  /** One call at a time: the two sides take turns. */
  async #alone(call) {
    if (this.#busy) throw new RangeError("another call is in progress: await it");
    this.#busy = true;
    try {
      return await call();
    } finally {
      this.#busy = false;
    }
  }

  async #connect() {
    while (!this.#line) {
      if (this.#over) throw this.#over;
      const lost = this.#lost;
      this.#lost = undefined;
      if (lost instanceof Interrupted) await this.#backOff(lost);
      try {
        await this.#attempt();
      } catch (error) {
        if (!(error instanceof Interrupted)) throw error;
      }
    }
  }

  /** The current address. */
  get #where() {
    return this.addresses[this.#address % this.addresses.length];
  }

  /** Wait before the next attempt, longer after each failure (section 9). Throws Failed after retrySeconds. */
  async #backOff(lost) {
    const growing = Math.min(0.5 * 2 ** this.#failures, 30) * (0.5 + Math.random() / 2);
    const wait = Math.max(growing, lost.retryAfter * (1 + Math.random() / 5));
    if (!this.#failures) this.#since = Date.now();
    if ((Date.now() - this.#since) / 1000 + wait > this.options.retrySeconds) {
      this.#failures = 0;
      throw new Failed(lost.message, lost.code);
    }
    this.#failures += 1;
    this.#address += 1;
    this.options.onRetry(lost, wait);
    await new Promise((resolve) => setTimeout(resolve, 1000 * wait));
    if (this.#over) throw this.#over;
  }

  /** Connect to the current address once. */
  async #attempt() {
    const address = this.#where;
    [this.limit, this.silence] = [HANDSHAKE_BYTES, QUIET_SECONDS];
    this.room = HANDSHAKE_BYTES + (this.options.environmentParameters ? 2048 * this.count : 0);
    [this.answered, this.names] = [false, undefined];
    const hello = this.#hello();
    try {
      this.#line = await open(address, this.options.tls, CONNECT_SECONDS);
    } catch (error) {
      if (error.constructor.name === "NoTls") throw new Failed(error.message);
      if (error.constructor !== Error) throw new RangeError(error.message);
      this.#interrupt(`cannot connect to ${address}: ${error.message}: is an RLX server running there?`);
    }
    if (this.#over) this.#hangUp(); // closed in the meantime
    else this.#line.heard = () => this.#busy || this.#overhear();
    await this.#exchange(HELLO, hello, WELCOME);
    this.#timer = setInterval(() => this.#keepAlive(), 1000 * Math.min(this.idle / 4, 30));
    this.#timer.unref?.();
  }

  /** Bounds of observations are left out if the hello would be too long (section 6). */
  #hello(observation = this.options.observation) {
    const { environment, host, token, frameSkip, reportsEpisodes, action } = this.options;
    const hello = wire.join([
      wire.integer(1, 1),
      wire.text(2, "relaax-javascript"),
      wire.text(3, VERSION),
      wire.text(4, token),
      wire.text(5, environment),
      wire.text(6, host),
      wire.integer(7, frameSkip),
      wire.bytes(8, encoded(observation)),
      wire.bytes(9, encoded(action)),
      wire.integer(10, this.count),
      wire.packed(11, this.habits),
      wire.integer(12, this.mode),
      wire.text(13, this.sessionId),
      wire.integer(14, reportsEpisodes ? 1 : 0),
      ...Object.entries(CAPABILITIES).map(([option, [field]]) => wire.integer(field, this.options[option] ? 1 : 0)),
    ]);
    if (hello.length <= HANDSHAKE_BYTES - 8) return hello;
    if (observation === this.options.observation) return this.#hello(unbounded(observation));
    throw new RangeError(`a hello of ${hello.length} bytes; the limit is 64 KiB: use one bound for all elements`);
  }

  async #ask(kind, content, due) {
    if (!this.#line) throw this.#over ?? this.#lost ?? new Interrupted("there is no connection: call init to connect");
    const answer = await this.#exchange(kind, content, due);
    if (due !== PONG) {
      [this.answered, this.#playing] = [true, due === ACTIONS];
      this.#failures = 0;
    }
    return answer;
  }

  /** Send a message, and process frames until its answer arrives. */
  async #exchange(kind, content, due) {
    this.#overhear();
    this.#send(kind, content);
    for (;;) {
      const answer = this.#look(due);
      if (answer !== undefined) return answer;
      if (!(await this.#line.wait(this.silence))) this.#ended(due, "the server is silent");
    }
  }

  /** Write the pending scalars and a message in one call. */
  #send(kind, content) {
    if (!this.#line) throw this.#over ?? this.#lost;
    const payload = wire.bytes(kind, content);
    if (payload.length > this.limit) throw new RangeError(`a message of ${payload.length} bytes; the server accepts at most ${this.limit}`);
    this.#line.send([...this.#scalars, payload]);
    this.#scalars = [];
    this.spoke = Date.now();
  }

  /** Process what arrived between calls. A ping is answered; another message ends the connection and is reported later. */
  #overhear() {
    try {
      this.#look(0);
    } catch {
      // the error is in #lost or #over
    }
  }

  #keepAlive() {
    if (this.#busy || !this.#line || Date.now() - this.spoke < 250 * this.idle) return;
    this.#send(PING, []);
  }

  /** Process frames up to the expected answer. Returns undefined if it has not arrived. */
  #look(due) {
    try {
      while (this.#line) {
        const payload = this.#line.take(this.room);
        if (!payload) break;
        const answer = this.#read(payload, due);
        if (answer !== undefined) return answer;
      }
    } catch (error) {
      if (error instanceof wire.Wrong) this.#mistake(error);
      throw error;
    }
    if (this.#line?.ended) this.#ended(due, this.#line.ended);
    if (!this.#line && due) throw this.#over ?? this.#lost;
    return undefined;
  }

  /** Process one frame. Returns the answer if it is the expected one. */
  #read(payload, due) {
    const found = wire.parse(payload).filter(([number, kind]) => number <= 8 && kind === 2);
    if (found.length > 1) throw new wire.Wrong(wire.MALFORMED, "two messages in one frame");
    if (!found.length) throw new wire.Wrong(3, "an unknown message");
    const [[kind, , content]] = found;
    const message = wire.parse(content);
    if ([ERROR, FINISHED, BYE].includes(kind)) return this.#farewell(kind, message);
    if (kind === PING) return void this.#send(PONG, wire.integer(1, wire.readUint32(message, 1)));
    if (kind === PONG) return due === PONG || undefined;
    if (kind !== due) throw new wire.Wrong(3, `message ${kind} is not allowed now`);
    if (due === WELCOME) return this.#welcome(message);
    if (due === RETURNS) return wire.readNumbers(message, 1, this.count);
    const actions = wire.readActions(message, this.action, this.count);
    const environments = wire.readParametersOf(message, this.count);
    if (environments.length && !this.options.environmentParameters)
      throw new wire.Wrong(wire.VALUE, "parameters, but no environment_parameters in the welcome");
    this.#replace(environments, message, 3);
    return actions;
  }

  /** Read the new parameters of some environments. */
  #replace(environments, message, field) {
    const count = this.#names.length;
    const values = wire.readNumbers(message, field, environments.length * count);
    environments.forEach((at, i) => (this.#parameters[at] = values.slice(i * count, (i + 1) * count)));
  }

  #welcome(message) {
    const limits = wire.parse(...wire.all(message, 5));
    wire.readText(message, 2);
    const [session, algorithm] = [wire.readText(message, 3), wire.readText(message, 4)];
    const [idle, heartbeat] = [wire.readDouble(limits, 2), wire.readDouble(limits, 3)];
    const most = wire.readUint32(limits, 1);
    if (wire.readUint32(message, 1) !== 1) throw new wire.Wrong(4, "a welcome of an unsupported version");
    if (!(idle > 0 && heartbeat > 0 && Number.isFinite(idle + heartbeat))) throw new wire.Wrong(wire.VALUE);
    if (!/^[\w-]{0,128}$/.test(session)) throw new wire.Wrong(wire.VALUE, "an invalid session id");
    const bytes = (leaves) => leaves.reduce((sum, leaf) => sum + leaf.size, 0) * this.count;
    const twice = this.habits.includes(HABITS.same_step) ? 2 : 1;
    const own = this.options.chosenActions ? bytes(this.action) : 0; // in a step
    if (Math.max(twice * bytes(this.observation) + own, bytes(this.action)) > most)
      throw new wire.Wrong(wire.LIMIT, "a max_frame_bytes that is too small for these spaces");
    this.#agree(message);
    const each = 16 + 9 * this.#names.length; // bytes for an environment, without its action
    const needed = bytes(this.action) + each * this.count + 512 * this.action.length; // of any answer; longer frames are refused
    [this.limit, this.room] = [most, Math.min(most, Math.max(needed, HANDSHAKE_BYTES))];
    [this.sessionId, this.algorithm, this.idle] = [session, algorithm, idle];
    this.silence = Math.max(3 * heartbeat, LEAST_SILENCE);
    [this.nameBytes, this.nameLimit, this.names] = [wire.readUint32(limits, 4), wire.readUint32(limits, 5), new Set()];
    return true;
  }

  /** Check the capabilities of a welcome, and read its parameters. */
  #agree(message) {
    const granted = {};
    for (const [option, [, field, what]] of Object.entries(CAPABILITIES)) {
      granted[option] = Boolean(wire.readInteger(message, field));
      if (granted[option] && !this.options[option]) throw new wire.Wrong(wire.VALUE, `a welcome with ${what}, which the hello lacks`);
    }
    this.#names = wire.readNames(message);
    if (this.#names.length && !granted.environmentParameters)
      throw new wire.Wrong(wire.VALUE, "names of parameters, but no environment_parameters");
    this.#replace(this.#all((i) => i), message, 10);
    this.#informed = false;
    const lacking = Object.keys(CAPABILITIES).find((option) => this.options[option] && !granted[option]);
    if (!lacking) return;
    const [, , what] = CAPABILITIES[lacking];
    this.#sayBye(`the welcome lacks ${what}`);
    const sentence = `the server or its algorithm does not support ${what}: use another algorithm, or do not set ${lacking}`;
    this.#fail(`${this.#where}: ${sentence}`, UNSUPPORTED_SPACE);
  }

  /** Process the server's last message: an error, the end of training, or a bye. */
  #farewell(kind, message) {
    const text = wire.readText(message, kind === ERROR ? 2 : 1);
    if (kind === FINISHED) {
      this.#over = new Finished(`training has finished: ${text}`, Number(wire.readInteger(message, 2)));
      this.#hangUp();
      throw this.#over;
    }
    if (kind === BYE) this.#interrupt(`the server sent bye: ${text}`);
    const [code, after] = [wire.readUint32(message, 1), wire.readDouble(message, 4)];
    const sentence = text || `error ${code}`;
    if (!(after >= 0 && Number.isFinite(after))) throw new wire.Wrong(wire.VALUE, "an invalid retry_after_seconds");
    if (wire.readInteger(message, 3)) this.#interrupt(sentence, code, after);
    this.#fail(sentence, code);
  }

  /** Disconnect after a mistake of the server. Reconnect only if an `init` was answered on this connection (section 9). */
  #mistake(error) {
    const { code, message } = error;
    let sentence = error instanceof wire.NoRlx ? message : `the server's mistake: ${message}`;
    if (!this.answered) sentence = `${this.#where}: ${sentence}${error instanceof wire.NoRlx ? "" : ": is it an RLX server?"}`;
    this.#sayBye(sentence.slice(0, 200));
    if (this.answered) this.#interrupt(sentence, code);
    this.#fail(sentence, code);
  }

  #sayBye(reason) {
    try {
      this.#line.send([wire.bytes(BYE, wire.text(1, reason))]);
      this.#line.close();
    } catch {
      // the connection is lost already
    }
  }

  #ended(due, why) {
    const kind = /^wss?:/.test(this.#where) ? "" : this.options.tls ? " with TLS" : " without TLS";
    this.#interrupt(due === WELCOME ? `${this.#where}: no welcome: ${why}: is it an RLX server${kind}?` : why);
  }

  #interrupt(sentence, code = 0, retryAfter = 0) {
    this.#lost = new Interrupted(sentence, code, retryAfter);
    this.#hangUp();
    throw this.#lost;
  }

  #fail(sentence, code) {
    this.#lost = new Failed(sentence, code);
    this.#hangUp();
    throw this.#lost;
  }

  #hangUp() {
    clearInterval(this.#timer);
    const line = this.#line;
    this.#line = undefined;
    line?.destroy();
    line?.wake(); // end a waiting call
    this.#playing = false;
    this.#scalars = [];
  }

  /** The values of rows that are `hidden` are not checked. `what`: "observation" or "action". */
  #pack(values, hidden, what) {
    const count = this[what].length;
    if (!Array.isArray(values) || values.length !== count) {
      const given = Array.isArray(values) ? `a list of ${values.length}` : `${values}`;
      const way = count === 1 ? "one list in a list: [[...]], with the numbers of all environments" : `a list of ${count} lists, one for each elementary space`;
      throw new RangeError(`an ${what} of this space is ${way}; not ${given}`);
    }
    const name = (i) => (count === 1 ? `the ${what}` : `array ${i} of the ${what}`);
    return this[what].map((leaf, i) => leaf.pack(values[i], this.count, name(i), hidden, what === "action"));
  }

  #leaves(field, values, hidden, what = "observation") {
    return wire.arrays(field, this[what], this.#pack(values, hidden, what), this.count);
  }

  /** The fields `chosen` and `action`. */
  #chosen(field, chosen, action) {
    if (!chosen.includes(true)) return [];
    const hidden = chosen.map((one) => !one);
    return wire.join([wire.mask(field, chosen), this.#leaves(field + 1, action, hidden, "action")]);
  }

  #episodes(field, episodes) {
    const one = ({ environment, episodeReturn, length }) =>
      wire.bytes(field, wire.join([wire.integer(1, environment), wire.double(2, episodeReturn), wire.integer(3, length)]));
    return wire.join(episodes.map(one));
  }

  #sized(lists) {
    const wrong = Object.entries(lists).find(([, list]) => list !== undefined && list?.length !== this.count);
    if (!wrong) return;
    const [name, list] = wrong;
    const given = list?.length >= 0 ? `a list of ${list.length}` : `${list}`;
    throw new RangeError(`${name} is a list of ${this.count}, an entry for each environment: [...]; not ${given}`);
  }

  /** A mask that needs an option. */
  #marked(given, option, name) {
    const mask = this.#all((i) => !!given?.[i]);
    if (!this.options[option] && mask.includes(true))
      throw new RangeError(`environment ${mask.indexOf(true)} is ${name}: use the option ${option}: true`);
    return mask;
  }

  /**
   * Check an outcome. Returns masks: which episodes end, which of these are truncated, which environments are idle, and
   * which took an action that the client chose.
   */
  #check(reward, { terminated, truncated, idle: resting, chosen: taken, finalObservation: final, episodes = [] }, stepping) {
    this.#overhear();
    if (!this.#line) throw this.#over ?? this.#lost ?? new Interrupted("there is no connection: call init to connect");
    if (!this.#playing) throw new RangeError("no episode is in progress: call init first");
    this.#sized({ reward: reward ?? null, terminated, truncated, idle: resting, chosen: taken });
    const idle = this.#marked(resting, "outOfStep", "idle");
    const chosen = this.#marked(taken, "chosenActions", "chosen");
    const wrong = Array.from(reward).findIndex((one) => !(typeof one === "number" && Math.abs(one) <= 1e15));
    if (wrong >= 0) throw new RangeError(`the reward of environment ${wrong} is ${reward[wrong]}; it must be from -1e15 to 1e15`);
    const cut = this.#all((i) => !!truncated?.[i] && !terminated?.[i] && (stepping || !this.#away[i]));
    const ended = cut.map((one, i) => one || !!terminated?.[i]);
    const still = chosen.findIndex((one, i) => one && (this.#away[i] || (idle[i] && !ended[i])));
    if (still >= 0) throw new RangeError(`environment ${still} is chosen, but it took no action`);
    const same = this.habitOf.map((habit) => habit === HABITS.same_step);
    if (stepping) {
      const place = ended.findIndex((over, i) => over && (this.habitOf[i] === HABITS.disabled || this.#away[i]));
      if (place >= 0) {
        const way = this.#away[place] ? "it is between two episodes" : 'call reset instead of step, or use the option autoreset: "same_step"';
        throw new RangeError(`the episode of environment ${place} cannot end with this step: ${way}`);
      }
      if (final && !ended.some((over, i) => over && same[i])) throw new RangeError("finalObservation was given, but no episode ended");
    }
    const needed = cut.some((one, i) => one && (same[i] || !stepping));
    if (needed && !final) throw new RangeError("a truncated episode needs finalObservation, its last observation");
    for (const episode of episodes) checkOptions("an episode", episode, ["environment", "episodeReturn", "length"]);
    const right = ({ environment: at, episodeReturn, length }) =>
      Number.isInteger(at) && at >= 0 && at < this.count && length >= 1 && Math.abs(episodeReturn) <= 1e30;
    const twice = new Set(episodes.map((one) => one.environment)).size < episodes.length;
    if (twice || (episodes.length && !this.options.reportsEpisodes) || !episodes.every(right))
      throw new RangeError("episodes: at most one for each environment, and only with reportsEpisodes");
    return { ended, cut, idle, chosen };
  }
}
