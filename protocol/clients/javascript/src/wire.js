// The part of Protobuf that RLX needs. A message is built of pieces (arrays of bytes), which `join` puts together.

export const MALFORMED = 1;
export const VALUE = 8;
export const LIMIT = 9;
const UTF8 = new TextEncoder();
const STRICT = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const MOST_NAMES = 64;
const MOST_NAME_BYTES = 256;

/** Invalid bytes from the server. `code` is an error code of RLX.md, section 9. */
export class Wrong extends Error {
  constructor(code, sentence = "invalid Protobuf, or a value outside the agreed range") {
    super(sentence);
    this.code = code;
  }
}

/** Bytes of a server with another protocol. */
export class NoRlx extends Wrong {}

export function join(pieces) {
  const joined = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    joined.set(piece, at);
    at += piece.length;
  }
  return joined;
}

function varint(value) {
  const bytes = [];
  if (value >= 0 && value < 2 ** 31) {
    let rest = Number(value);
    for (; rest > 127; rest >>>= 7) bytes.push((rest & 127) | 128);
    return [...bytes, rest];
  }
  let rest = BigInt.asUintN(64, BigInt(value));
  for (; rest > 127n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  return [...bytes, Number(rest)];
}

export const integer = (field, value) => (value == 0 ? [] : [...varint(field << 3), ...varint(value)]);
export const bytes = (field, data) => join([varint((field << 3) | 2), varint(data.length), data]);
export const text = (field, string) => (string ? bytes(field, UTF8.encode(string)) : []);
export const packed = (field, values) => (values.length ? bytes(field, values.flatMap(varint)) : []);
export const mask = (field, given) => (given?.some(Boolean) ? bytes(field, given.map(Number)) : []);

/** Little-endian doubles. */
function floats(values) {
  const data = new DataView(new ArrayBuffer(8 * values.length));
  values.forEach((value, i) => data.setFloat64(8 * i, value, true));
  return new Uint8Array(data.buffer);
}
export const double = (field, value) => [...varint((field << 3) | 1), ...floats([value])];
export const doubles = (field, values) => (values.length ? bytes(field, floats(values)) : []);

/** A list of arrays: `data`, bytes, for each leaf. */
export function arrays(field, leaves, data, count) {
  const one = (leaf, i) => join([integer(1, leaf.number), packed(2, [count, ...leaf.shape]), bytes(3, data[i])]);
  return join(leaves.map((leaf, i) => bytes(field, one(leaf, i))));
}

class Reader {
  constructor(data) {
    this.data = data;
    this.at = 0;
  }

  get over() {
    return this.at === this.data.length;
  }

  /** A number if it has at most 28 bits, else a 64-bit bigint. */
  varint() {
    let value = 0;
    for (let i = 0; i < 10; i++) {
      if (this.over) throw new Wrong(MALFORMED);
      const byte = this.data[this.at++];
      if (i === 4) value = BigInt(value);
      if (i < 4) value |= (byte & 127) << (7 * i);
      else value |= BigInt(byte & 127) << BigInt(7 * i);
      if (byte < 128) return i < 4 ? value : BigInt.asUintN(64, value);
    }
    throw new Wrong(MALFORMED);
  }

  take(size) {
    if (size > this.data.length - this.at) throw new Wrong(MALFORMED);
    this.at += Number(size);
    return this.data.subarray(this.at - Number(size), this.at);
  }

  /** The next field: number, kind, value. A group is unknown and skipped. */
  field(depth = 0) {
    const tag = this.varint();
    const [number, kind] = [Number(BigInt(tag) >> 3n), Number(BigInt(tag) & 7n)];
    if (number < 1 || number >= 2 ** 29 || depth > 100) throw new Wrong(MALFORMED);
    if (kind === 0) return [number, kind, this.varint()];
    if (kind === 1) return [number, kind, this.take(8)];
    if (kind === 2) return [number, kind, this.take(this.varint())];
    if (kind === 3) return [number, kind, this.skip(number, depth)];
    if (kind === 4) return [number, kind, undefined];
    if (kind === 5) return [number, kind, this.take(4)];
    throw new Wrong(MALFORMED);
  }

  skip(number, depth) {
    for (;;) {
      const [inner, kind] = this.field(depth + 1);
      if (kind === 4 && inner === number) return undefined;
      if (kind === 4) throw new Wrong(MALFORMED);
    }
  }
}

/** The fields of a message, [number, kind, value] each. Several pieces are read as if their bytes were joined. */
export function parse(...pieces) {
  const fields = [];
  for (const piece of pieces) {
    const reader = new Reader(piece);
    while (!reader.over) fields.push(reader.field());
  }
  if (fields.some(([, kind]) => kind === 4)) throw new Wrong(MALFORMED);
  return fields;
}

export const all = (fields, number) => fields.filter(([n, kind]) => n === number && kind === 2).map(([, , value]) => value);

function last(fields, number, kind, otherwise) {
  for (let i = fields.length - 1; i >= 0; i--) if (fields[i][0] === number && fields[i][1] === kind) return fields[i][2];
  return otherwise;
}

const number64 = (data) => new DataView(data.buffer, data.byteOffset, 8).getFloat64(0, true);
export const readInteger = (fields, number) => last(fields, number, 0, 0);
export const readUint32 = (fields, number) => Number(BigInt.asUintN(32, BigInt(readInteger(fields, number))));
export const readDouble = (fields, number) => number64(last(fields, number, 1, new Uint8Array(8)));

function decoded(data) {
  try {
    return STRICT.decode(data);
  } catch {
    throw new Wrong(MALFORMED);
  }
}
export const readText = (fields, number) => decoded(last(fields, number, 2, new Uint8Array()));

/** Check and return the names of parameters in a welcome. */
export function readNames(message) {
  const found = all(message, 9);
  if (found.length > MOST_NAMES) throw new Wrong(LIMIT, `${found.length} parameters; at most ${MOST_NAMES} are allowed`);
  if (found.some((data) => data.length > MOST_NAME_BYTES)) throw new Wrong(LIMIT, `a parameter's name of more than ${MOST_NAME_BYTES} bytes`);
  const names = found.map(decoded);
  const wrong = names.findIndex((name, i) => !name || /(?! )[\p{C}\p{Z}]/u.test(name) || names.indexOf(name) < i);
  if (wrong >= 0) throw new Wrong(VALUE, `the name of parameter ${wrong} is empty, appears twice, or has control characters`);
  return names;
}

/** A list of integers. Stops after `most` + 1. */
function readIntegers(fields, field, most) {
  const found = [];
  for (const [number, kind, value] of fields) {
    if (number !== field) continue;
    if (kind === 0) found.push(Number(value));
    const reader = new Reader(kind === 2 ? value : []);
    while (!reader.over && found.length <= most) found.push(Number(reader.varint()));
  }
  return found;
}

/** Check and return the leaves of actions, in the form of Leaf.unpack. */
export function readActions(message, leaves, count) {
  const found = all(message, 1);
  if (found.length !== leaves.length) throw new Wrong(VALUE);
  return leaves.map((leaf, i) => {
    const fields = parse(found[i]);
    const due = [count, ...leaf.shape];
    const data = last(fields, 3, 2, new Uint8Array());
    const fits = String(readIntegers(fields, 2, due.length)) === String(due) && data.length === count * leaf.size;
    if (!fits || readUint32(fields, 1) !== leaf.number) throw new Wrong(VALUE);
    const values = leaf.typed(data);
    if (!leaf.legal(values, true)) throw new Wrong(VALUE);
    return leaf.unpack(values);
  });
}

/** Check and return the indices of the environments that have new parameters, in actions. */
export function readParametersOf(message, count) {
  const found = readIntegers(message, 2, count);
  if (found.some((one, i) => one >= count || one <= found[i - 1])) throw new Wrong(VALUE, "parameters_of is not increasing, or not below N");
  return found;
}

/** Check and return a list of `count` doubles. */
export function readNumbers(message, field, count) {
  const data = message.filter(([number, kind]) => number === field && (kind === 1 || kind === 2)).map(([, , value]) => value);
  if (data.some((one) => one.length % 8)) throw new Wrong(MALFORMED);
  const joined = join(data);
  if (joined.length !== 8 * count) throw new Wrong(VALUE);
  const numbers = Array.from({ length: count }, (_, i) => number64(joined.subarray(8 * i)));
  if (!numbers.every((one) => Math.abs(one) <= 1e30)) throw new Wrong(VALUE);
  return numbers;
}
