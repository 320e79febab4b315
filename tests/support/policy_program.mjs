// The counterpart of protocol/clients/c/tests/policy.c, with the same input and output: node policy_program.mjs MODULE act FILE HEAD...

import { readFileSync, writeSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [module, command, file, ...heads] = process.argv.slice(2);
const { PolicyError, loadPolicy } = await import(pathToFileURL(module));
const input = readFileSync(0);
const ARRAYS = {
  uint16: Uint16Array,
  uint32: Uint32Array,
  uint64: BigUint64Array,
  int16: Int16Array,
  bool: Uint8Array,
  uint8: Uint8Array,
  int8: Int8Array,
  int32: Int32Array,
  int64: BigInt64Array,
  float32: Float32Array,
  float64: Float64Array,
};

const arrayOf = ({ dtype }) => ARRAYS[dtype];
const bytesOf = (array) => new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
const output = [];

function act() {
  const policy = loadPolicy(readFileSync(file));
  for (let at = 0; at < input.length; ) {
    if (String.fromCharCode(input[at++]) === "r") {
      policy.reset();
      continue;
    }
    const observation = policy.observation.map((leaf) => {
      const size = leaf.count * arrayOf(leaf).BYTES_PER_ELEMENT;
      return new (arrayOf(leaf))(new Uint8Array(input.subarray(at, (at += size))).buffer);
    });
    try {
      const action = policy.act(observation);
      output.push(Uint8Array.of(0));
      for (const leaf of action) output.push(bytesOf(Array.isArray(leaf) ? BigInt64Array.from(leaf, BigInt) : leaf));
      for (const head of heads) output.push(bytesOf(policy.outputs[head].slice()));
    } catch (error) {
      if (!(error instanceof PolicyError)) throw error;
      console.error(error.message);
      output.push(Uint8Array.of(1));
    }
  }
}

function load() {
  for (let at = 0; at < input.length; ) {
    const size = input.readUInt32LE(at);
    const contents = input.subarray(at + 4, at + 4 + size);
    at += 4 + size;
    try {
      const policy = loadPolicy(contents);
      output.push(Buffer.from("loaded\n"));
      const observation = policy.observation.map(({ count }) => new Array(count).fill(0));
      for (const step of [0, 1, 2]) {
        try {
          policy.act(observation);
        } catch (error) {
          if (!(error instanceof PolicyError)) throw error;
        }
        if (step === 1) policy.reset();
      }
    } catch (error) {
      if (!(error instanceof PolicyError)) throw error;
      output.push(Buffer.from(`${error.message}\n`));
    }
  }
}

if (command === "act") act();
else load();
const bytes = Buffer.concat(output);
for (let at = 0; at < bytes.length; ) at += writeSync(1, bytes, at);
