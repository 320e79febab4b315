// An evaluator of policies that `relaax checkpoints export LOCATION FILE.rlxp` wrote, without a server, in browsers and Node.
// It imports nothing: copy this file alone if you need no client. relaax/policy/game_export.py describes the file.

const VERSION = 1;
const LINES = 256; // of each kind in the header
const NUMBERS = 2 ** 26; // elements of all values, and of the stacked frames
const WORD = 64; // characters
const INTEGER = 2 ** 53;
const LARGEST = 3.4028234663852886e38; // float32
const ARRAYS = {
  bool: Uint8Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  uint64: BigUint64Array,
  int8: Int8Array,
  int16: Int16Array,
  int32: Int32Array,
  int64: BigInt64Array,
  float32: Float32Array,
  float64: Float64Array,
};
const DTYPES = Object.keys(ARRAYS);

if (new Uint8Array(new Uint16Array([1]).buffer)[0] !== 1) throw new Error("policy.js requires a little-endian machine");

/** The file or an observation cannot be used. The message gives the reason. */
export class PolicyError extends Error {
  name = "PolicyError";
}

/** The policy in the contents of a file, an ArrayBuffer or Uint8Array. Throws PolicyError. */
export function loadPolicy(contents) {
  return new Policy(read(contents instanceof ArrayBuffer ? new Uint8Array(contents) : contents));
}

/** The header's words, line by line, and the arrays. Methods throw PolicyError. */
class Header {
  constructor(lines, doubles, floats) {
    Object.assign(this, { lines, doubles, floats, line: 0, word: 0, usedDoubles: 0, usedFloats: 0 });
    this.skipComments();
  }

  refuse(text) {
    throw new PolicyError(`the policy is damaged: line ${this.line + 1} of its header: ${text}`);
  }

  skipComments() {
    while (this.lines[this.line]?.[0].startsWith("#")) this.line++;
  }

  /** Whether the line begins with a word; if so, skip the word. */
  begins(word) {
    if (this.lines[this.line]?.[0] !== word) return false;
    this.word = 1;
    return true;
  }

  endLine() {
    if (this.more()) this.refuse("it has too many words");
    this.line++;
    this.skipComments();
  }

  more() {
    return this.word < this.lines[this.line].length;
  }

  text() {
    if (!this.more()) this.refuse("a word is missing");
    const word = this.lines[this.line][this.word++];
    return word.length <= WORD ? word : this.refuse("a word is too long");
  }

  oneOf(words) {
    const word = this.text();
    return words.includes(word) ? word : this.refuse(`unknown word "${word.slice(0, 40)}"`);
  }

  integer(least, most) {
    const word = this.text();
    const value = /^-?\d{1,16}$/.test(word) ? Number(word) + 0 : NaN;
    if (!(value >= least && value <= most)) this.refuse(`${word.slice(0, 20)} is not an integer from ${least} to ${most}`);
    return value;
  }

  count() {
    return this.integer(1, NUMBERS);
  }

  /** Sizes of choices, to the end of the line. */
  choices() {
    const sizes = [];
    do sizes.push(this.count());
    while (this.more());
    if (sum(sizes) > NUMBERS) this.refuse("it has too many choices");
    return sizes;
  }

  /** The next `count` elements of the arrays. */
  takeFloats(count) {
    if (count > this.floats.length - this.usedFloats) this.refuse("the arrays are too small for it");
    return this.floats.subarray(this.usedFloats, (this.usedFloats += count));
  }

  takeDoubles(count) {
    if (count > this.doubles.length - this.usedDoubles) this.refuse("the arrays are too small for it");
    return this.doubles.subarray(this.usedDoubles, (this.usedDoubles += count));
  }
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

/** The network and the rules for actions, from the contents of a file, a Uint8Array. Throws PolicyError. */
function read(file) {
  if (file.length < 16 || String.fromCharCode(...file.subarray(0, 4)) !== "RLXP")
    throw new PolicyError("this is not a policy: `relaax checkpoints export LOCATION FILE.rlxp` writes one");
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const [version, size, checksum] = [4, 8, 12].map((at) => view.getUint32(at, true));
  if (version !== VERSION) throw new PolicyError(`the policy has version ${version} of the format, and this module reads version ${VERSION}`);
  if (size > file.length - 16 || crc32(file.subarray(16)) !== checksum) throw new PolicyError("the policy is damaged: its checksum differs");
  const header = new TextDecoder("latin1").decode(file.subarray(16, 16 + size));
  if (!/^(?:(?:#[^\n]*|[!-~]+(?: [!-~]+)*)\n)+$/.test(header)) throw new PolicyError("the policy is damaged: its header is not lines of words");
  const lines = new Header(header.slice(0, -1).split("\n").map((line) => line.split(" ")), [], []);
  readArrays(lines, file, 16 + size);
  const policy = { leaves: [], values: [], outputs: [], actions: [] };
  const line = (word, list, make) => {
    while (lines.begins(word)) {
      if (list.length >= LINES) lines.refuse(`more than ${LINES} lines of a kind`);
      list.push(make(lines, policy));
      lines.endLine();
    }
  };
  line("observation", policy.leaves, readLeaf);
  if (!lines.begins("inputs")) lines.refuse('it is not "inputs"');
  policy.values.push(readInputs(lines, policy));
  lines.endLine();
  for (let found = -1; found !== policy.values.length; ) {
    found = policy.values.length;
    for (const [word, make] of Object.entries(LAYERS)) line(word, policy.values, (...place) => checkedValue(make(...place), ...place));
  }
  line("output", policy.outputs, () => ({ name: lines.text(), value: lines.integer(0, policy.values.length - 1) }));
  line("action", policy.actions, readAction);
  if (lines.line < lines.lines.length) lines.refuse("unknown or misplaced line");
  if (!policy.actions.length) lines.refuse('it is not "action"');
  if (lines.usedDoubles !== lines.doubles.length || lines.usedFloats !== lines.floats.length)
    lines.refuse("the arrays are larger than needed");
  const masks = policy.leaves.filter(({ kind }) => kind === "mask");
  const choices = sum(policy.actions.map((action) => sum(action.choices ?? [])));
  if (masks.length && masks[0].count !== choices) lines.refuse("the mask does not have the size of the choices");
  return policy;
}

function readArrays(lines, file, at) {
  if (!lines.begins("arrays")) lines.refuse('it is not "arrays"');
  const doubles = lines.integer(1, Math.floor((file.length - at) / 8));
  const floats = lines.integer(0, Math.floor((file.length - at) / 4));
  if (8 * doubles + 4 * floats !== file.length - at) lines.refuse("the arrays do not have the size of the file");
  const arrays = new Uint8Array(file.subarray(at)).buffer; // a copy, aligned; `slice` of a Buffer makes none
  lines.doubles = new Float64Array(arrays, 0, doubles);
  lines.floats = new Float32Array(arrays, 8 * doubles, floats);
  if (!lines.doubles.every(Number.isFinite) || !lines.floats.every(Number.isFinite)) lines.refuse("an array is not finite");
  lines.endLine();
}

function readLeaf(lines, { leaves }) {
  const kind = lines.oneOf(["frames", "bytes", "numbers", "choices", "mask"]);
  if (leaves.some((leaf) => leaf.kind === kind) && (kind === "frames" || kind === "mask")) lines.refuse(`it has another leaf of ${kind} already`);
  if (kind === "choices") {
    const start = lines.integer(-INTEGER, INTEGER);
    const choices = lines.choices();
    return { kind, dtype: "int64", start, choices, count: choices.length, width: sum(choices) };
  }
  const dtype = kind === "bytes" ? "uint8" : lines.oneOf(kind === "frames" ? ["bool", "uint8"] : DTYPES);
  const count = lines.count();
  const history = kind === "frames" ? lines.count() : 1;
  if (count * history > NUMBERS) lines.refuse("it has too many pixels");
  return { kind, dtype, count, history, width: kind === "mask" ? 0 : count * history };
}

function readInputs(lines, { leaves }) {
  const normalized = lines.oneOf(["plain", "normalized"]) === "normalized";
  const size = lines.count();
  if (sum(leaves.map(({ width }) => width)) !== size) lines.refuse(`the leaves of an observation do not make ${size} inputs`);
  const [mean, std] = normalized ? [lines.takeDoubles(size), lines.takeDoubles(size)] : [];
  const [limit] = lines.takeDoubles(1);
  if (std && !std.every((number) => number > 0)) lines.refuse("a standard deviation is not positive");
  if (!(limit > 0)) lines.refuse("the limit of inputs is not positive");
  return { size, mean, std, limit, at: new Float32Array(size) };
}

/** Which numbers of an earlier value a layer uses. */
function part(lines, values) {
  return { from: values[lines.integer(0, values.length - 1)], start: lines.integer(0, NUMBERS) };
}

function checkedPart(lines, { from, start }, inputs) {
  if (start + inputs > from.size) lines.refuse(`its value has only ${from.size} numbers`);
  return [from.at, start];
}

function checkedValue(value, lines, { values }) {
  if (sum(values.map(({ size }) => size)) + value.size > NUMBERS) lines.refuse("the values are too large");
  value.at = new Float32Array(value.size);
  return value;
}

const ACTIVATIONS = { linear: (x) => x, relu: (x) => Math.max(x, 0), tanh: Math.tanh };
const sigmoid = (z) => 0.5 + 0.5 * Math.tanh(0.5 * z);

/** y += x[start:start + inputs] @ weights[first:]; each row of the weights is as long as y. */
function addProduct(y, x, start, inputs, weights, first) {
  const size = y.length;
  for (let i = 0; i < inputs; i++, first += size) {
    const factor = x[start + i];
    if (factor !== 0) for (let j = 0; j < size; j++) y[j] += factor * weights[first + j];
  }
}

/** For each kind of layer, a function that reads its line and returns its size and `compute`, which fills `at`. */
const LAYERS = {
  dense(lines, { values }) {
    const activate = ACTIVATIONS[lines.oneOf(Object.keys(ACTIVATIONS))];
    const place = part(lines, values);
    const [inputs, size] = [lines.count(), lines.count()];
    const [x, start] = checkedPart(lines, place, inputs);
    const [weights, bias] = [lines.takeFloats(inputs * size), lines.takeFloats(size)];
    const y = new Float64Array(size);
    const compute = (at) => {
      y.set(bias);
      addProduct(y, x, start, inputs, weights, 0);
      for (let i = 0; i < size; i++) at[i] = activate(y[i]);
    };
    return { size, compute };
  },

  convolution(lines, { values }) {
    const activate = ACTIVATIONS[lines.oneOf(Object.keys(ACTIVATIONS))];
    const place = part(lines, values);
    const [height, width, channels, filters, kernel, stride] = Array.from({ length: 6 }, () => lines.count());
    const [x, start] = checkedPart(lines, place, height * width * channels);
    if (kernel > height || kernel > width) lines.refuse("the image is smaller than the kernel");
    const [high, wide] = [height, width].map((side) => Math.floor((side - kernel) / stride) + 1);
    const run = kernel * channels;
    const size = high * wide * filters;
    if (size > NUMBERS) lines.refuse("it is too large");
    const [weights, bias] = [lines.takeFloats(kernel * run * filters), lines.takeFloats(filters)];
    const y = new Float64Array(filters);
    const compute = (at) => {
      let to = 0;
      for (let row = 0; row < high; row++)
        for (let column = 0; column < wide; column++) {
          const from = start + (row * stride * width + column * stride) * channels;
          y.set(bias);
          for (let r = 0; r < kernel; r++) addProduct(y, x, from + r * width * channels, run, weights, r * run * filters);
          for (let i = 0; i < filters; i++) at[to++] = activate(y[i]);
        }
    };
    return { size, compute };
  },

  lstm(lines, { values }) {
    const { at: x, size: inputs } = values[lines.integer(0, values.length - 1)];
    const size = lines.count();
    const [weights, bias] = [lines.takeFloats((inputs + size) * 4 * size), lines.takeFloats(4 * size)];
    const [h, c, gates] = [new Float32Array(size), new Float32Array(size), new Float64Array(4 * size)];
    const compute = (at) => {
      gates.set(bias);
      addProduct(gates, x, 0, inputs, weights, 0);
      addProduct(gates, h, 0, size, weights, inputs * 4 * size);
      for (let i = 0; i < size; i++) {
        c[i] = sigmoid(gates[size + i]) * c[i] + sigmoid(gates[i]) * Math.tanh(gates[2 * size + i]);
        at[i] = h[i] = Math.tanh(c[i]) * sigmoid(gates[3 * size + i]);
      }
    };
    const reset = () => (h.fill(0), c.fill(0));
    return { size, compute, reset };
  },

  join(lines, { values }) {
    const [a, b] = [0, 1].map(() => values[lines.integer(0, values.length - 1)]);
    return { size: a.size + b.size, compute: (at) => (at.set(a.at), at.set(b.at, a.size)) };
  },
};

/** The rule of a leaf of an action: `act` returns the leaf. */
function readAction(lines, { values }) {
  const kind = lines.oneOf(["largest", "positive", "scaled"]);
  const squashed = kind === "scaled" && lines.oneOf(["plain", "squashed"]) === "squashed";
  const dtype = { largest: "int64", positive: "int8" }[kind] ?? lines.oneOf(["float32", "float64"]);
  const { at: y, size } = values[lines.integer(0, values.length - 1)];
  if (kind === "positive") return { dtype, count: size, act: () => Int8Array.from(y, (number) => number > 0) };
  if (kind === "largest") {
    const start = lines.integer(-INTEGER, INTEGER);
    const choices = lines.choices();
    if (sum(choices) !== size) lines.refuse(`${sum(choices)} choices of a value of ${size} numbers`);
    return { dtype, count: choices.length, choices, act: (valid) => chosen(y, start, choices, valid) };
  }
  const from = lines.integer(0, NUMBERS);
  const count = lines.count();
  if (from + count > size) lines.refuse(`its value has only ${size} numbers`);
  const [centre, radius, low, high] = Array.from({ length: 4 }, () => lines.takeDoubles(count));
  const squash = squashed ? Math.tanh : (x) => x;
  const most = dtype === "float32" ? LARGEST : Number.MAX_VALUE;
  const scaled = (x, i) => Math.min(Math.max(centre[i] + radius[i] * squash(x), low[i], -most), high[i], most);
  return { dtype, count, act: () => ARRAYS[dtype].from(y.subarray(from, from + count), scaled) };
}

/** For each choice, the index of its largest output, plus `start`. `valid`: the mask of these outputs, or undefined. */
function chosen(y, start, choices, valid) {
  if (valid) for (let i = 0; i < y.length; i++) y[i] = valid[i] ? Math.max(y[i], -1e29) : -1e30;
  let at = 0;
  return choices.map((size) => {
    let best = at;
    for (let i = at + 1; i < at + size; i++) if (y[i] > y[best]) best = i;
    const action = start + best - at;
    at += size;
    return action;
  });
}

/** A greedy policy that acts in one environment: load one for each. Made by `loadPolicy`. */
class Policy {
  #network;
  #frames; // the leaf of frames, or undefined
  #mask;
  #stack;
  #began = false;

  constructor(network) {
    this.#network = network;
    this.#frames = network.leaves.find(({ kind }) => kind === "frames");
    this.#mask = network.leaves.findIndex(({ kind }) => kind === "mask");
    this.#stack = new Uint8Array(this.#frames?.width ?? 0);
    const described = ({ dtype, count }) => ({ dtype, count });
    /** The leaves of an observation, and of an action: `dtype` and `count` of each. */
    this.observation = network.leaves.map(described);
    this.action = network.actions.map(described);
    /** The last outputs of the network by name, such as `policy`: Float32Arrays, which the next `act` overwrites. */
    this.outputs = Object.fromEntries(network.outputs.map(({ name, value }) => [name, network.values[value].at]));
  }

  /** The next observation begins an episode. The first one does without a call. */
  reset() {
    this.#began = false;
  }

  /** The leaves of the greedy action. `observation`: the leaves of the observation. Throws PolicyError, without effect. */
  act(observation) {
    const { leaves, values, actions } = this.#network;
    if (observation?.length !== leaves.length) throw new PolicyError(`an observation has ${leaves.length} leaves, not ${observation?.length}`);
    const numbers = leaves.map((leaf, index) => checkedLeaf(leaf, index, observation[index]));
    let valid = this.#mask < 0 ? undefined : this.#valid(numbers[this.#mask]);
    if (this.#frames) this.#push(numbers[leaves.indexOf(this.#frames)]);
    if (!this.#began) for (const value of values) value.reset?.();
    this.#began = true;
    this.#encode(numbers);
    for (const value of values) value.compute?.(value.at);
    return actions.map((action) => {
      const leaf = action.act(valid);
      if (valid && action.choices) valid = valid.subarray(sum(action.choices));
      return leaf;
    });
  }

  /** The mask as a Uint8Array. */
  #valid(numbers) {
    const valid = Uint8Array.from(numbers, (number) => number !== 0);
    let at = 0;
    for (const size of this.#network.actions.flatMap(({ choices }) => choices ?? [])) {
      if (!valid.subarray(at, at + size).includes(1)) throw new PolicyError("the action mask allows no action: each choice needs a valid action");
      at += size;
    }
    return valid;
  }

  #push(frame) {
    const { count, history, dtype } = this.#frames;
    const stack = this.#stack;
    for (let i = 0, at = 0; i < count; i++) {
      const pixel = dtype === "bool" ? 255 * frame[i] : frame[i];
      for (const last = at + history - 1; at < last; at++) stack[at] = this.#began ? stack[at + 1] : pixel;
      stack[at++] = pixel;
    }
  }

  #encode(numbers) {
    const { at: x, size, mean, std, limit } = this.#network.values[0];
    let at = this.#stack.length;
    for (let i = 0; i < at; i++) x[i] = this.#stack[i] / 255;
    this.#network.leaves.forEach(({ kind, start, choices }, index) => {
      const leaf = numbers[index];
      if (kind === "bytes") for (const number of leaf) x[at++] = number / 255;
      if (kind === "numbers") for (const number of leaf) x[at++] = Math.min(Math.max(number, -LARGEST), LARGEST);
      if (kind !== "choices") return;
      choices.forEach((n, i) => {
        x.fill(0, at, at + n);
        x[at + leaf[i] - start] = 1;
        at += n;
      });
    });
    for (let i = 0; i < size; i++) x[i] = Math.min(Math.max(mean ? (x[i] - mean[i]) / std[i] : x[i], -limit), limit);
  }
}

/** The elements of a leaf as an array of numbers. */
function checkedLeaf({ dtype, count, start, choices }, index, elements) {
  const refuse = (text) => {
    throw new PolicyError(`observation leaf ${index} ${text}`);
  };
  const size = elements?.length;
  if (size !== count) refuse(`needs ${count} elements of ${dtype}, not ${size}`);
  if (dtype === "uint8" && (elements instanceof Uint8Array || elements instanceof Uint8ClampedArray)) return elements;
  const numbers = Float64Array.from(elements, Number);
  if (dtype === "bool") return numbers.map((number) => (number !== 0 ? 1 : 0));
  if (!numbers.every(Number.isFinite)) refuse("has an element that is not a finite number");
  if (dtype === "uint8" && !numbers.every((number) => number >= 0 && number <= 255)) refuse("needs bytes from 0 to 255");
  choices?.forEach((n, i) => {
    if (!(Number.isInteger(numbers[i]) && numbers[i] >= start && numbers[i] < start + n))
      refuse(`needs an integer from ${start} to ${start + n - 1} as element ${i}, not ${numbers[i]}`);
  });
  return numbers;
}

/** The CRC-32 of IEEE 802.3, as in gzip. */
function crc32(bytes) {
  let crc = -1;
  for (const byte of bytes) crc = TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}

const TABLE = Int32Array.from({ length: 256 }, (_, index) => {
  let value = index;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? 0xedb88320 ^ (value >>> 1) : value >>> 1;
  return value;
});
