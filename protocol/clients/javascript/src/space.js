// Spaces, and the leaves of their values on the wire (RLX.md, sections 4 and 5).

import { checkOptions } from "./options.js";
import { bytes, doubles, integer, join, packed, text } from "./wire.js";

const TYPES = {
  bool: [1, Uint8Array],
  uint8: [2, Uint8Array],
  uint16: [3, Uint16Array],
  uint32: [4, Uint32Array],
  uint64: [5, BigUint64Array],
  int8: [6, Int8Array],
  int16: [7, Int16Array],
  int32: [8, Int32Array],
  int64: [9, BigInt64Array],
  float16: [10, Uint16Array],
  float32: [11, Float32Array],
  float64: [12, Float64Array],
};
/** The names of element types, numbered from 1 on the wire. */
export const DTYPES = Object.keys(TYPES);

if (new Uint8Array(new Uint16Array([1]).buffer)[0] !== 1) throw new Error("RLX in JavaScript requires a little-endian machine");

const list = (bounds) => (typeof bounds === "number" ? [bounds] : Array.from(bounds ?? []));

/** Arrays of a shape. `low`, `high`: a number, one for each element, or undefined for no bound. */
export function box(dtype, shape = [], bounds = {}) {
  checkOptions("box", bounds, ["low", "high"]);
  const { low, high } = bounds;
  if (!(dtype in TYPES)) throw new RangeError(`unknown dtype ${dtype}: ${DTYPES.join(", ")}`);
  return { kind: 1, dtype, shape: [...shape], low: list(low), high: list(high) };
}

/** The integers start, ..., start + n - 1. */
export const discrete = (n, start = 0) => ({ kind: 2, dtype: "int64", shape: [], n: BigInt(n), start: BigInt(start) });

/** A vector of choices: element i is one of 0, ..., nvec[i] - 1. */
export const multiDiscrete = (nvec) => ({ kind: 3, dtype: "int64", shape: [nvec.length], nvec: Array.from(nvec, BigInt) });

/** Bits of a shape, as int8. */
export const multiBinary = (shape) => ({ kind: 4, dtype: "int8", shape: [...shape] });

/** An ordered list of spaces. */
export const tuple = (spaces) => ({ kind: 5, spaces: [...spaces] });

/** Named spaces: an object or a Map. */
export const dict = (spaces) => ({ kind: 6, entries: spaces instanceof Map ? [...spaces] : Object.entries(spaces) });

/** Protobuf of rlx.v1.Space. */
export function encoded(space) {
  const content = {
    1: () => [integer(1, TYPES[space.dtype][0]), packed(2, space.shape), doubles(3, space.low), doubles(4, space.high)],
    2: () => [integer(1, space.n), integer(2, space.start)],
    3: () => [packed(1, space.nvec)],
    4: () => [packed(1, space.shape)],
    5: () => space.spaces.map((part) => bytes(1, encoded(part))),
    6: () => space.entries.map(([key, part]) => bytes(1, join([text(1, key), bytes(2, encoded(part))]))),
  };
  return bytes(space.kind, join(content[space.kind]()));
}

/** The same space without the bounds of its boxes, which may be long. */
export function unbounded(space) {
  if (space.spaces) return { ...space, spaces: space.spaces.map(unbounded) };
  if (space.entries) return { ...space, entries: space.entries.map(([key, part]) => [key, unbounded(part)]) };
  return { ...space, low: [], high: [] };
}

/** Compare by code point. JavaScript itself compares UTF-16 units. */
function byCodePoint([one], [other]) {
  const [a, b] = [Array.from(one, (c) => c.codePointAt(0)), Array.from(other, (c) => c.codePointAt(0))];
  const differs = a.findIndex((point, i) => point !== b[i]);
  return differs < 0 ? a.length - b.length : a[differs] - (b[differs] ?? -1);
}

/** The arrays of a value, in order. */
export function leavesOf(space) {
  if (space.kind === 5) return space.spaces.flatMap(leavesOf);
  if (space.kind === 6) return [...space.entries].sort(byCodePoint).flatMap(([, part]) => leavesOf(part));
  return [new Leaf(space)];
}

/** The number that the bits of a float16 represent. */
export function half(bits) {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const size = exponent === 31 ? NaN : exponent ? (1024 + fraction) * 2 ** (exponent - 25) : fraction * 2 ** -24;
  return bits >> 15 ? -size : size;
}

/** One array of a value. */
export class Leaf {
  constructor(space) {
    this.space = space;
    this.shape = space.shape;
    [this.number, this.Type] = TYPES[space.dtype];
    this.elements = this.shape.reduce((product, axis) => product * axis, 1);
    this.size = this.elements * this.Type.BYTES_PER_ELEMENT;
    if (!this.shape.every((axis) => Number.isInteger(axis) && axis >= 1) || this.elements >= 2 ** 31)
      throw new RangeError(`a space has the shape [${this.shape}]: axes must be at least 1, elements at most 2^31 - 1`);
    this.float = space.dtype.startsWith("float");
    this.large = this.Type.name.startsWith("Big");
    [this.low, this.high] = [this.#bounds(space.low, -1), this.#bounds(space.high, 1)];
    const most = space.kind === 2 ? [space.start, space.start + space.n - 1n] : space.kind === 3 ? space.nvec : [2n ** 63n];
    this.safe = most.every((one) => one <= Number.MAX_SAFE_INTEGER && one >= Number.MIN_SAFE_INTEGER);
  }

  /** Bounds rounded to the dtype. */
  #bounds(given = [], sign) {
    if (!given.length) return [sign * Infinity];
    if (given.length !== 1 && given.length !== this.elements)
      throw new RangeError(`a box of ${this.elements} elements has ${given.length} bounds`);
    if (this.space.dtype === "float32") return given.map(Math.fround);
    if (this.space.dtype !== "float16") return given;
    return given.map((bound) => (Number.isFinite(bound) ? bound + (sign * Math.abs(bound)) / 2048 : bound));
  }

  /** Bytes as an array of this type. */
  typed(data) {
    return new this.Type(new Uint8Array(data).buffer); // a copy: aligned
  }

  /** Values for the program: float16 as numbers, small int64 of a discrete space as an Array of numbers. */
  unpack(typed) {
    if (this.space.dtype === "float16") return Float32Array.from(typed, half);
    return this.large && this.safe ? Array.from(typed, Number) : typed;
  }

  /**
   * The bytes of a value for `count` environments; errors call it `name`. The values of rows that are `hidden` are not
   * checked. `bounds`: whether a box must respect its bounds. Raises RangeError.
   */
  pack(values, count, name = "the observation", hidden = [], bounds = false) {
    let typed = values;
    if (values instanceof ArrayBuffer) typed = new this.Type(values);
    else if (!(values instanceof this.Type)) typed = this.#converted(values, name, hidden);
    if (typed.length !== count * this.elements) {
      const needed = count === 1 ? this.elements : `${count} x ${this.elements} for ${count} environments`;
      throw new RangeError(`${name} has ${typed.length} elements; ${needed} are needed`);
    }
    const wrong = this.#illegalIn(typed, hidden, bounds);
    if (wrong >= 0) {
      const place = `element ${wrong % this.elements} of environment ${Math.floor(wrong / this.elements)}`;
      throw new RangeError(`${name}: ${place} is ${(values.length ? values : typed)[wrong]}, which is not in the space`);
    }
    return new Uint8Array(typed.buffer, typed.byteOffset, typed.byteLength);
  }

  #converted(given, name, hidden) {
    if (typeof given?.[Symbol.iterator] !== "function" && !(given?.length >= 0))
      throw new RangeError(`${name} is ${given}; a list of ${this.space.dtype} is needed`);
    const free = this.float || !hidden.includes(true); // every value converts to a float
    const values = free ? given : Array.from(given, (one, i) => (hidden[Math.floor(i / this.elements)] ? 0 : one));
    if (this.space.dtype === "float16") throw new RangeError("float16 must be a Uint16Array of its bits");
    const typed = this.large ? this.Type.from(values, (one) => BigInt(one)) : this.Type.from(values);
    const wrong = this.float ? -1 : typed.findIndex((one, i) => one != values[i]);
    if (wrong >= 0) throw new RangeError(`${name}: ${values[wrong]} is not ${this.space.dtype}`);
    return typed;
  }

  legal(values, bounds) {
    return this.#illegal(values, bounds) < 0;
  }

  /** As below, for a value with `hidden` rows. */
  #illegalIn(values, hidden, bounds) {
    if (!hidden.includes(true)) return this.#illegal(values, bounds);
    for (let row = 0; row < hidden.length; row += 1) {
      const at = row * this.elements;
      const wrong = hidden[row] ? -1 : this.#illegal(values.subarray(at, at + this.elements), bounds);
      if (wrong >= 0) return at + wrong;
    }
    return -1;
  }

  /** The index of the first value that is not in the space; -1 if there is none. */
  #illegal(values, bounds) {
    const { kind, n, start, nvec, dtype } = this.space;
    if (kind === 2) return values.findIndex((one) => one < start || one >= start + n);
    if (kind === 3) return values.findIndex((one, i) => one < 0n || one >= nvec[i % this.elements]);
    if (kind === 4 || dtype === "bool") return values.findIndex((one) => one !== 0 && one !== 1);
    const numbers = dtype === "float16" ? Float32Array.from(values, half) : values;
    const wrong = this.float ? numbers.findIndex((one) => !Number.isFinite(one)) : -1;
    const { low, high } = this;
    if (wrong >= 0 || !bounds) return wrong;
    return numbers.findIndex((one, i) => one < low[i % low.length] || one > high[i % high.length]);
  }
}
