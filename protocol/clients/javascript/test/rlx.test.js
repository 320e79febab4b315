// Tests beyond the golden message sequences: the example of section 13, invalid arguments, reconnecting, and changed
// answers, and RLX over WebSocket if this Node has one.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import net from "node:net";
import test from "node:test";
import { Client, Failed, Finished, Interrupted, VERSION, box, dict, discrete, multiDiscrete, tuple } from "../src/rlx.js";
import { leavesOf } from "../src/space.js";
import * as wire from "../src/wire.js";

const WELCOME = "0000002c0a2a08011a0273312204646133632a1c08808040110000000000c08240190000000000002440208001288002";
const ACTIONS = "0000001312110a0f08091201011a080200000000000000";
const FULL = "000000152213080b120466756c6c180121000000000000e83f"; // OVERLOADED, retry after 0.75 s
const OVER = "000000062a0410c0c407"; // training has finished at step 123,456
const PAGE = [
  "0000002601",
  "0000001412120a10080b120201021a080000003f000080be",
  "0000001e1a1c0a08000000000000f03f1210080b120201021a080000403f00000000",
];
const SEEN = [[0, 0]];
const TWO = `0000001b12190a1708091201021a10${"00".repeat(16)}`; // actions of two environments
const RETURNS = `000000141a120a10${"00".repeat(16)}`; // of two environments

/** A frame of the server with fields added to its message. */
function extended(frame, ...fields) {
  const content = Buffer.from(frame.slice(12) + Buffer.from(wire.join(fields)).toString("hex"), "hex");
  const payload = Buffer.from(wire.bytes(parseInt(frame.slice(8, 10), 16) >> 3, content));
  return payload.length.toString(16).padStart(8, "0") + payload.toString("hex");
}

const TURNS = extended(WELCOME, wire.integer(6, 1)); // a welcome with out_of_step
const TAKEN = extended(WELCOME, wire.integer(6, 1), wire.integer(7, 1)); // and chosen_actions
const SET = extended(WELCOME, wire.integer(8, 1), wire.text(9, "gravity"), wire.text(9, "size"), wire.doubles(10, [1, 2, 3, 4]));

/** A server that answers each request with the next frame of a script, one script for each connection, then disconnects. */
async function serve(scripts, play) {
  let told = "";
  let rest = Buffer.alloc(0);
  const server = net.createServer((socket) => {
    const script = [...(scripts.shift() ?? [])];
    let waiting = rest;
    socket.on("error", () => {});
    socket.on("data", (chunk) => {
      waiting = Buffer.concat([waiting, chunk]);
      while (waiting.length >= 4 && waiting.length >= 4 + waiting.readUInt32BE()) {
        const frame = waiting.subarray(0, 4 + waiting.readUInt32BE());
        waiting = waiting.subarray(frame.length);
        told += frame.toString("hex");
        if (![1, 2, 3, 4, 6].includes(frame[4] >> 3)) continue;
        if (script.length) socket.write(Buffer.from(script.shift(), "hex"));
        else socket.end();
      }
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    await play(`127.0.0.1:${server.address().port}`);
  } finally {
    await new Promise((resolve) => server.close(resolve)); // after all was received
  }
  return told;
}

const make = (addresses, options = {}) =>
  new Client(addresses, {
    observation: box("float32", [2]),
    action: discrete(3),
    environment: "Point-v0",
    retrySeconds: -1,
    ...options,
  });

const players = (autoreset, address, options = {}) => make(address, { environments: 2, autoreset, outOfStep: true, ...options });

/** The leaves of two environments. NaN: a void row. */
const rows = (one, other) => [[one, one, other, other]];

/** A mask of the form "01". */
const mask = (digits) => Array.from(digits, (one) => one === "1");

/** The elements of a row in hexadecimal. */
const row = (value) => Buffer.from(Float32Array.of(value, value).buffer).toString("hex");

/** Assert that `told` has these pieces in this order. */
function assertOrder(told, pieces) {
  let at = 0;
  for (const piece of pieces) {
    at = told.indexOf(piece, at);
    assert.ok(at >= 0, `${piece} is not in its place in ${told}`);
    at += piece.length;
  }
}

/** A predicate for assert.throws: whether an error is a RangeError that begins with this text. */
const beginsWith = (sentence) => (error) => {
  assert.ok(error instanceof RangeError, String(error));
  assert.equal(error.message.slice(0, sentence.length), sentence);
  return true;
};

test("version is that of the package", () => {
  const manifest = JSON.parse(readFileSync(new URL("../package.json", import.meta.url)));
  assert.equal(VERSION, manifest.version);
});

test("example bytes of the specification", async () => {
  const told = await serve([[WELCOME, ACTIONS, ACTIONS]], async (address) => {
    const client = make(address);
    assert.deepEqual(await client.init([[0.5, -0.25]]), [[2]]);
    assert.deepEqual([client.sessionId, client.algorithm], ["s1", "da3c"]);
    assert.deepEqual(await client.step([1], [Float32Array.of(0.75, 0)]), [[2]]);
    await client.close();
  });
  assert.ok(told.includes("380142070a05080b1201024a041202080350015a01016001"));
  for (const due of PAGE.slice(1)) assert.ok(told.includes(due));
});

test("invalid arguments are not sent", async () => {
  const told = await serve([[WELCOME, ACTIONS]], async (address) => {
    const client = make(address);
    assert.equal(client.metric("before", 1), false);
    await assert.rejects(client.init([[0, NaN]]), RangeError);
    await client.init(SEEN);
    const wrong = [
      [[2e15], SEEN], [[NaN], SEEN], [[1, 1], SEEN], [["1"], SEEN], [[1], [[1]]], [[1], [[1e39, 0]]], [[1], []],
      [[1], SEEN, { terminated: [true] }], [[1], SEEN, { finalObservation: SEEN }], [[1], SEEN, { truncated: [true, true] }],
      [[1], SEEN, { episodes: [{ environment: 0, episodeReturn: 1, length: 1 }] }],
    ];
    for (const outcome of wrong) await assert.rejects(client.step(...outcome), RangeError);
    await assert.rejects(client.reset([1], { truncated: [true] }), RangeError);
    await assert.rejects(client.init(SEEN), /call reset first/);
    for (const [name, value] of [["", 1], ["x", NaN], ["x", 2e30]]) assert.throws(() => client.metric(name, value), RangeError);
    assert.equal(client.metric("é".repeat(129), 1), false); // the server accepts 128 bytes
    assert.equal(client.metric("é".repeat(128), 1), true);
    const first = client.alive();
    await assert.rejects(client.step([1], SEEN), /another call is in progress/);
    await assert.rejects(first, Interrupted); // the script is at its end
    await client.close();
  });
  assert.ok(!told.includes("1a1c"));
  assert.throws(() => box("float31", [1]), RangeError);
  for (const shape of [[0], [65536, 65536]]) assert.throws(() => make("a:1", { observation: box("float32", shape) }), RangeError);
  assert.throws(() => make("a:1", { autoreset: ["disabled", "disabled"] }), RangeError);
  assert.throws(() => make("a:1", { mode: "toString" }), RangeError);
  for (const address of ["nonsense", "a:b", "http://localhost:1/", "http://localhost:1"]) await assert.rejects(make(address).connect(), RangeError);
});

test("unknown option is named with the nearest one", async () => {
  const wrong = [
    [{ envrionment: "Mine" }, 'Client has no option "envrionment": did you mean "environment"?'],
    [{ frame_skip: 4 }, 'Client has no option "frame_skip": did you mean "frameSkip"?'],
    [{ retrySecond: 1 }, 'Client has no option "retrySecond": did you mean "retrySeconds"?'],
    [{ Token: "a" }, 'Client has no option "Token": did you mean "token"?'],
    [{ obs: 1 }, 'Client has no option "obs": there are observation, action, environments, '],
    [{ adress: "a:1" }, 'Client has no option "adress": there are observation, action, environments, '],
    [{ action: undefined }, 'Client needs the option "action", a space such as discrete(2)'],
  ];
  for (const [options, sentence] of wrong) assert.throws(() => make("a:1", options), beginsWith(sentence));
  for (const options of [undefined, {}])
    assert.throws(() => new Client("a:1", options), beginsWith('Client needs the option "observation", a space'));
  for (const first of [{ address: "a:1" }, undefined])
    assert.throws(() => new Client(first), beginsWith("Client needs an address, or a list of them, before its options: "));
  assert.throws(() => new Client("a:1", "b:1"), beginsWith("the options of Client are an object, not b:1"));
  assert.throws(() => box("float32", [2], { lo: 0 }), beginsWith('box has no option "lo": did you mean "low"?'));
  const told = await serve([[WELCOME, ACTIONS]], async (address) => {
    const client = make(address, { reportsEpisodes: true });
    await assert.rejects(client.init(SEEN, { partal: [true] }), beginsWith('init has no option "partal": did you mean "partial"?'));
    await client.init(SEEN);
    const calls = [
      [() => client.step([1], SEEN, { terminate: [true] }), 'step has no option "terminate": did you mean "terminated"?'],
      [() => client.step([1], SEEN, { done: [true] }), 'step has no option "done": there are terminated, truncated, '],
      [() => client.step([1], SEEN, null), "the options of step are an object, not null"],
      [() => client.reset([1], { final_observation: SEEN }), 'reset has no option "final_observation": did you mean "finalO'],
      [() => client.reset([1], { terminated: [true] }), 'reset has no option "terminated": there are truncated, finalOb'],
      [() => client.reset([1], { episodes: [{ environment: 0, episodeReturns: 1, length: 1 }] }), 'an episode has no option'],
    ];
    for (const [call, sentence] of calls) await assert.rejects(call(), beginsWith(sentence));
    await client.close();
  });
  assert.equal(told.match(/0000000[0-9a-f]+4200/g)?.length, 1); // only the bye came after the first actions
});

test("close during a connection attempt, and during a call", async () => {
  let told = await serve([[WELCOME, ACTIONS]], async (address) => {
    const client = make(address);
    const begun = client.init(SEEN);
    await client.close();
    await assert.rejects(begun, /the client was closed/);
    await assert.rejects(client.init(SEEN), /the client was closed/);
  });
  assert.equal(told, "");
  told = await serve([[WELCOME, ACTIONS]], async (address) => {
    const client = make(address);
    await client.init(SEEN);
    const waiting = assert.rejects(client.step([1], SEEN), /the client was closed/);
    await client.close();
    await waiting;
  });
  assert.ok(told.endsWith("000000024200")); // bye
});

test("long hello is refused before it connects", async () => {
  const many = box("float32", [9000], { low: Array(9000).fill(-1) });
  let told = await serve([], async (address) => {
    const client = make(address, { action: many });
    for (let i = 0; i < 2; i += 1) await assert.rejects(client.init(SEEN), /64 KiB/);
  });
  assert.equal(told, "");
  told = await serve([[WELCOME, ACTIONS]], async (address) => {
    const client = make(address, { observation: dict({ a: tuple([many]) }) }); // without its bounds the hello fits
    assert.deepEqual(await client.init([Array(9000).fill(0)]), [[2]]);
    await client.close();
  });
  assert.ok(told.length > 2 * 36000);
});

test("values are those of the space", () => {
  const packed = (space, values) => leavesOf(space)[0].pack(values, 1);
  assert.deepEqual([...packed(box("bool", [2]), [true, false])], [1, 0]);
  assert.deepEqual([...packed(box("int16", [2]), [-2, 258])], [254, 255, 2, 1]);
  assert.deepEqual([...packed(discrete(5, -2), [-1])], Array(8).fill(255));
  for (const [dtype, value] of [["uint8", 256], ["int8", -129], ["uint32", 0.5], ["int64", 1.5], ["float16", 1], ["bool", 2]])
    assert.throws(() => packed(box(dtype, [1]), [value]), RangeError, dtype);
  const keys = ["b", "\u{1f600}", "\uff5e", "Z"]; // code points, not the units of UTF-16
  const spaces = new Map(keys.map((key, i) => [key, box("uint8", [i + 1])]));
  assert.deepEqual(leavesOf(dict(spaces)).map((leaf) => leaf.elements), [4, 1, 3, 2]);
});

test("argument errors name the argument and the way out", async () => {
  const given = [
    [(client) => client.init([0, 0]), "an observation of this space is one list in a list: [[...]], with the numbers of all environments; not a list of 2"],
    [(client) => client.init(undefined), "an observation of this space is one list in a list: [[...]]"],
    [(client) => client.init([[0]]), "the observation has 1 elements; 2 are needed"],
    [(client) => client.init([5]), "the observation is 5; a list of float32 is needed"],
    [(client) => client.init([[0, undefined]]), "the observation: element 1 of environment 0 is undefined"],
    [(client) => client.init(SEEN, { partial: true }), "partial is a list of 1, an entry for each environment: [...]; not true"],
  ];
  const played = [
    [(client) => client.step(1, SEEN), "reward is a list of 1, an entry for each environment: [...]; not 1"],
    [(client) => client.step(undefined, SEEN), "reward is a list of 1, an entry for each environment: [...]; not null"],
    [(client) => client.step([1], SEEN, { terminated: [true] }), "the episode of environment 0 cannot end with this step: call reset"],
    [(client) => client.reset([1], { truncated: true }), "truncated is a list of 1"],
    [(client) => client.reset([1], { truncated: [true] }), "a truncated episode needs finalObservation"],
  ];
  await serve([[WELCOME, ACTIONS]], async (address) => {
    const client = make(address);
    for (const [call, sentence] of given) await assert.rejects(call(client), beginsWith(sentence));
    await client.init(SEEN);
    for (const [call, sentence] of played) await assert.rejects(call(client), beginsWith(sentence));
    await client.close();
  });
  const two = make("a:1", { environments: 2, observation: tuple([box("uint8", [1]), box("float32", [2])]) });
  await assert.rejects(two.init([[1, 2], [0, 0, 0]]), beginsWith("array 1 of the observation has 3 elements; 2 x 2 for 2 environments"));
  await assert.rejects(two.init([[1, 2], [0, 0, 0, NaN]]), beginsWith("array 1 of the observation: element 1 of environment 1 is NaN"));
  assert.throws(() => make("a:1", { observationSpace: 1 }), beginsWith('Client has no option "observationSpace": did you mean "observation"?'));
});

test("players take turns", async () => {
  const told = await serve([[TURNS, TWO, TWO, TWO, TWO, TWO]], async (address) => {
    const client = players("same_step", address);
    await client.init(rows(1, NaN), { idle: mask("01") });
    await client.step([0, 0], rows(NaN, 2), { idle: mask("10") });
    await client.step([0, 0], rows(3, NaN), { idle: Uint8Array.of(0, 1) });
    await client.step([1, -1], rows(NaN, NaN), { idle: mask("11"), terminated: mask("11") });
    await client.step([0, 0], rows(4, 5), { idle: mask("00") });
    await client.close();
  });
  const hello = ["5002", "5a0102", "6001", "7801"].join("");
  const first = [`${row(1)}${row(NaN)}1a020001`, `${row(NaN)}${row(2)}3202000142020100`, `${row(3)}${row(NaN)}420200010000`];
  assertOrder(told, [hello, ...first, `${row(NaN)}${row(NaN)}1a020101420201010000`, `${row(4)}${row(5)}320201010000`]);
});

test("environments that leave have an observation where their mode has it", async () => {
  let told = await serve([[TURNS, TWO, TWO, TWO, TWO, RETURNS]], async (address) => {
    const client = players("next_step", address);
    await client.init(rows(NaN, NaN), { idle: mask("11") });
    await assert.rejects(client.step([0, 0], rows(NaN, 1)), beginsWith("the observation: element 0 of environment 0 is NaN"));
    await client.step([0, 0], rows(1, 2));
    const leaving = { idle: mask("11"), terminated: mask("01") };
    await assert.rejects(client.step([0, 0], rows(3, NaN), leaving), beginsWith("the observation: element 0 of environment 1 is NaN"));
    await client.step([0, 0], rows(NaN, 3), leaving);
    for (const idle of ["00", "01"])
      await assert.rejects(
        client.step([0, 0], rows(4, 4), { idle: mask(idle), truncated: mask("01") }),
        beginsWith("the episode of environment 1 cannot end with this step: it is between two episodes"),
      );
    await client.step([0, 0], rows(4, NaN), { idle: mask("01") });
    await assert.rejects(client.reset([0, 0], { truncated: mask("11"), finalObservation: rows(5, NaN) }), RangeError);
    assert.deepEqual(await client.reset([0, 0], { truncated: mask("11"), finalObservation: rows(5, 6) }), [0, 0]);
    await client.close();
  });
  const left = `${row(NaN)}${row(3)}1a020001420201010000`;
  assertOrder(told, [`${row(NaN)}${row(NaN)}1a020101`, "320201010000", left, `${row(4)}${row(NaN)}420200010000`, "12020100"]);
  told = await serve([[TURNS, TWO, TWO, TWO]], async (address) => {
    const client = players("same_step", address);
    await client.init(rows(1, 1));
    const leaving = { idle: mask("11"), truncated: mask("01") };
    for (const finalObservation of [undefined, rows(1, NaN)])
      await assert.rejects(client.step([0, 0], rows(NaN, NaN), { ...leaving, finalObservation }), RangeError);
    await client.step([0, 0], rows(NaN, NaN), { ...leaving, finalObservation: rows(NaN, 7) });
    await client.step([0, 0], rows(1, 8));
    await client.close();
  });
  assertOrder(told, [`${row(NaN)}${row(NaN)}22020001`, `${row(NaN)}${row(7)}42020101`, "320200010000"]);
});

test("idle is refused where it is not allowed", async () => {
  const told = await serve([[TURNS, TWO, TWO], [WELCOME, TWO]], async (address) => {
    let client = players("disabled", address);
    await assert.rejects(client.init(rows(1, 1), { idle: [true] }), beginsWith("idle is a list of 2"));
    await client.init(rows(1, NaN), { idle: mask("01") });
    await assert.rejects(client.step([0, 0], rows(1, 1), { idle: mask("000") }), beginsWith("idle is a list of 2"));
    for (const terminated of ["10", "01"])
      await assert.rejects(client.step([0, 0], rows(1, 1), { idle: mask("11"), terminated: mask(terminated) }), beginsWith("the episode of"));
    await assert.rejects(client.step([0, 0], rows(NaN, 1), { idle: mask("01") }), beginsWith("the observation: element 0"));
    await assert.rejects(client.reset([0, 0], { idle: mask("01") }), beginsWith('reset has no option "idle"'));
    await client.step([0, 0], rows(NaN, NaN), { idle: mask("11") });
    await client.close();
    client = players("disabled", address, { outOfStep: false });
    const sentence = "is idle: use the option outOfStep: true";
    await assert.rejects(client.init(rows(1, 1), { idle: mask("01") }), beginsWith(`environment 1 ${sentence}`));
    await client.init(rows(1, 1), { idle: mask("00") });
    await assert.rejects(client.step([0, 0], rows(1, 1), { idle: mask("10") }), beginsWith(`environment 0 ${sentence}`));
    await client.close();
  });
  assert.equal(told.match(/000000(2e|3[0-9a-f])1a/g).length, 1, `a refused step was sent: ${told}`);
  assert.equal(told.match(/60017801/g).length, 1, `the hello of a client in step asks for out_of_step: ${told}`);
});

test("values of hidden rows are not checked", () => {
  const pack = (space, values, hidden) => [...leavesOf(space)[0].pack(values, 2, "it", hidden)];
  for (const wrong of [NaN, 0.5, 256, undefined]) {
    assert.deepEqual(pack(box("uint8", [2]), [wrong, wrong, 1, 2], [true, false]), [0, 0, 1, 2]);
    assert.throws(() => pack(box("uint8", [2]), [wrong, wrong, 1, 2], [false, true]), RangeError);
    assert.equal(pack(multiDiscrete([2, 3]), [1, 2, wrong, wrong], [false, true])[8], 2);
    assert.throws(() => pack(multiDiscrete([2, 3]), [2, 1, wrong, wrong], [false, true]), RangeError);
  }
  const hand = box("float32", [1], { low: -1, high: 1 });
  const bounded = (hidden) => leavesOf(hand)[0].pack([2, 1], 2, "it", hidden, true);
  assert.equal(bounded([true, false]).length, 8);
  assert.throws(() => bounded([false, true]), beginsWith("it: element 0 of environment 0 is 2"));
  assert.deepEqual(pack(box("bool", [1]), Uint8Array.of(7, 1), [true, false]), [7, 1]);
});

test("taken actions are sent", async () => {
  const told = await serve([[TAKEN, TWO, TWO, TWO, TWO, TWO, RETURNS]], async (address) => {
    const client = players("next_step", address, { chosenActions: true });
    await client.init(rows(1, 1));
    await client.step([0, 0], rows(2, 2), { chosen: mask("10"), action: [[2, NaN]] });
    await client.step([0, 0], rows(3, 3), { chosen: mask("00"), action: [[2, 2]] });
    const wrong = [
      [{ chosen: [true], action: [[1, 1]] }, "chosen is a list of 2"],
      [{ chosen: mask("01") }, "an action of this space is one list in a list: [[...]]"],
      [{ chosen: mask("01"), action: [[1]] }, "the action has 1 elements; 2 x 1 for 2 environments"],
      [{ chosen: mask("01"), action: [[1, 3]] }, "the action: element 0 of environment 1 is 3"],
      [{ chosen: mask("11"), action: [[1, 1]], idle: mask("01") }, "environment 1 is chosen, but it took no action"],
    ];
    for (const [more, sentence] of wrong) await assert.rejects(client.step([0, 0], rows(4, 4), more), beginsWith(sentence));
    await client.step([0, 0], rows(NaN, 4), { chosen: mask("01"), action: [BigInt64Array.of(9n, 1n)], idle: mask("11"), terminated: mask("01") });
    const away = { chosen: mask("01"), action: [[1, 1]] };
    for (const idle of ["00", "01"])
      await assert.rejects(client.step([0, 0], rows(5, 5), { ...away, idle: mask(idle) }), beginsWith("environment 1 is chosen"));
    await assert.rejects(client.reset([0, 0], away), beginsWith("environment 1 is chosen"));
    await client.step([0, 0], rows(6, 6));
    await assert.rejects(client.reset([0, 0], { chosen: mask("11"), action: [[1, -1]] }), beginsWith("the action: element 0 of environment 1"));
    assert.deepEqual(await client.reset([0, 0], { chosen: mask("11"), action: [[1, 2]] }), [0, 0]);
    await client.close();
  });
  const number = (one) => `0${one}${"00".repeat(7)}`;
  const took = (one, other) => `1708091201021a10${number(one)}${number(other)}`;
  const steps = [`${row(2)}4a02010052${took(2, 0)}`, `${row(3)}000000`, `420201014a02000152${took(9, 1)}`, `${row(6)}32020001000000`];
  assertOrder(told, ["60017801800101", ...steps, `2a02010132${took(1, 2)}`]);
});

test("taken actions need their option", async () => {
  await serve([[WELCOME, ACTIONS]], async (address) => {
    const client = make(address);
    await client.init(SEEN);
    await assert.rejects(client.step([1], SEEN, { chosen: [true], action: [[1]] }), beginsWith("environment 0 is chosen: use the option chosenActions"));
    await assert.rejects(client.reset([1], { chosen: [true], action: [[1]] }), beginsWith("environment 0 is chosen: use the option"));
    await client.close();
  });
});

test("taken actions count in the longest message", async () => {
  const sized = (most) => extended(WELCOME, wire.integer(7, 1), wire.bytes(5, wire.integer(1, most)));
  for (const [most, chosenActions] of [[32, true], [31, true], [31, false]])
    await serve([[chosenActions ? sized(most) : extended(WELCOME, wire.bytes(5, wire.integer(1, most)))]], async (address) => {
      const client = make(address, { environments: 2, chosenActions }); // observations: 16 bytes, actions: 16
      if (most === 31 && chosenActions) await assert.rejects(client.connect(), (error) => error instanceof Failed && error.code === 9);
      else await client.connect();
      await client.close(); // the server waits for it
    });
});

/** The fields of new parameters in actions. */
const renewed = (environments, values) => [wire.packed(2, environments), wire.doubles(3, values)];

test("parameters are those of the next episode", async () => {
  const script = [SET, extended(TWO, ...renewed([1], [5, 6])), TWO, extended(TWO, ...renewed([0, 1], [7, 8, -1e30, 0]))];
  const told = await serve([script], async (address) => {
    const client = make(address, { environments: 2, autoreset: "same_step", environmentParameters: true });
    assert.deepEqual(await client.parameters(), { gravity: [1, 3], size: [2, 4] });
    await client.init(rows(1, 1));
    const { gravity, size, wind = "still" } = await client.parameters();
    assert.deepEqual([gravity, size, wind], [[1, 5], [2, 6], "still"]);
    gravity[0] = 99; // a copy
    await client.step([0, 0], rows(1, 2));
    assert.deepEqual(await client.parameters(), { gravity: [1, 5], size: [2, 6] });
    await client.step([0, 0], rows(1, 3), { terminated: mask("01") });
    assert.deepEqual(await client.parameters(), { gravity: [7, -1e30], size: [8, 0] });
    await client.close();
  });
  assertOrder(told, ["6001880101", `${row(1)}${row(1)}000000`]); // init is not partial
  await assert.rejects(make("a:1").parameters(), beginsWith("parameters need the option environmentParameters"));
});

test("episodes with unknown parameters are partial", async () => {
  const none = extended(WELCOME, wire.integer(8, 1));
  const scripts = [[SET, TWO, RETURNS, TWO], [SET, TWO, RETURNS, TWO], [], [SET], [SET, TWO], [none, TWO]];
  const told = await serve(scripts, async (address) => {
    const client = make(address, { environments: 2, environmentParameters: true, retrySeconds: 60, onRetry: () => {} });
    await client.parameters();
    await client.init(rows(1, 1), { partial: mask("01") });
    await client.reset([0, 0]);
    await client.init(rows(2, 2));
    await assert.rejects(client.step([0, 0], rows(2, 2)), Interrupted);
    await client.init(rows(3, 3)); // on a new connection, with the parameters of the old one
    await client.reset([0, 0]);
    await client.init(rows(4, 4));
    await assert.rejects(client.step([0, 0], rows(4, 4)), Interrupted);
    assert.deepEqual(await client.parameters(), { gravity: [1, 3], size: [2, 4] }); // connects at the second attempt
    await client.init(rows(5, 5)); // this connection is lost
    await assert.rejects(client.step([0, 0], rows(5, 5)), Interrupted);
    await client.init(rows(6, 6)); // without parameters
    await client.close();
  });
  const partial = (value, digits) => `${row(value)}${row(value)}1a020${digits}`.replace("1a02", "1202");
  const whole = (value) => `${row(value)}${row(value)}000000`;
  const all = "101";
  assertOrder(told, [partial(1, "001"), whole(2), partial(3, all), partial(4, all), whole(5), partial(5, all), whole(6)]);
});

test("wrong parameters are refused", async () => {
  const named = (...names) => names.map((name) => wire.text(9, name));
  const welcomes = [
    [[wire.integer(8, 1), ...named("a"), wire.doubles(10, [1])], 8], // for two environments
    [[wire.integer(8, 1), wire.doubles(10, [1, 2])], 8],
    [[wire.integer(8, 1), ...named("a"), wire.doubles(10, [1, NaN])], 8],
    [[wire.integer(8, 1), ...named("a", "b", "a"), wire.doubles(10, Array(6).fill(0))], 8],
    [[wire.integer(8, 1), wire.bytes(9, []), wire.doubles(10, [1, 2])], 8],
    [[wire.integer(8, 1), ...named("a\nb"), wire.doubles(10, [1, 2])], 8],
    [[wire.integer(8, 1), ...named("é".repeat(129)), wire.doubles(10, [1, 2])], 9],
    [[wire.integer(8, 1), ...named(...Array.from({ length: 65 }, String)), wire.doubles(10, Array(130).fill(0))], 9],
    [named("a"), 8],
    [[wire.doubles(10, [1, 2])], 8],
  ];
  for (const [fields, code] of welcomes)
    await serve([[extended(WELCOME, ...fields)]], async (address) => {
      const client = make(address, { environments: 2, environmentParameters: true });
      await assert.rejects(client.parameters(), (error) => error instanceof Failed && error.code === code);
    });
  const several = [[1], [1]].map((one) => wire.packed(2, one)); // lists are concatenated
  const answers = [
    renewed([1], [1]), renewed([1], []), renewed([], [1, 2]), renewed([1, 0], [1, 2, 3, 4]), [...several, wire.doubles(3, [1, 2, 3, 4])],
    renewed([2], [1, 2]), renewed([0], [1, Infinity]), renewed([0], [1, 2e30]), renewed([2 ** 32], [1, 2]),
  ];
  for (const fields of answers)
    await serve([[SET, extended(TWO, ...fields)]], async (address) => {
      const client = make(address, { environments: 2, environmentParameters: true });
      await assert.rejects(client.init(rows(1, 1)), (error) => error instanceof Failed && error.code === 8);
    });
  for (const fields of [renewed([0], []), renewed([], [1])])
    await serve([[WELCOME, extended(TWO, ...fields)]], async (address) => {
      await assert.rejects(make(address, { environments: 2 }).init(rows(1, 1)), (error) => error instanceof Failed && error.code === 8);
    });
});

test("welcome must agree on capabilities", async () => {
  const named = { outOfStep: "environments out of step", chosenActions: "actions of the client", environmentParameters: "parameters of environments" };
  for (const [i, [option, what]] of Object.entries(named).entries())
    for (const asked of [true, false]) {
      const told = await serve([[asked ? WELCOME : extended(WELCOME, wire.integer(6 + i, 1)), TWO]], async (address) => {
        const client = make(address, { environments: 2, [option]: asked, retrySeconds: 60 });
        await assert.rejects(client.init(rows(1, 1)), (error) => {
          assert.ok(error instanceof Failed && error.code === (asked ? 6 : 8), String(error));
          return error.message.includes(`does not support ${what}: use another algorithm, or do not set ${option}`) === asked;
        });
      });
      assert.ok(!told.includes(row(1)), "init was sent");
      assert.equal(told.includes(Buffer.from(`the welcome lacks ${what}`).toString("hex")), asked);
    }
});

test("gRPC port is named and not retried", async () => {
  const settings = "000024040000000000000300000010000401000000000600002000fe0300000001"; // the start of a gRPC server
  await serve([[settings]], async (address) => {
    const client = make(address, { retrySeconds: 60 });
    await assert.rejects(client.init(SEEN), (error) => error instanceof Failed && /^127.0.0.1:[0-9]+: this port speaks gRPC.*7001/.test(error.message));
  });
});

test("a client without onRetry warns on the console", async (t) => {
  const warned = t.mock.method(console, "warn", () => {}).mock;
  await serve([[FULL], [WELCOME, ACTIONS]], async (address) => {
    const client = make(address, { retrySeconds: 60 });
    await client.init(SEEN);
    await client.close();
  });
  assert.match(warned.calls[0].arguments[0], /^RLX: full; trying again in [\d.]+ s$/);
});

test("reconnects", async () => {
  const waits = [];
  const told = await serve([[WELCOME, ACTIONS], [FULL], [WELCOME, ACTIONS, OVER]], async (address) => {
    const client = make([address, address], { retrySeconds: 60, onRetry: (_, seconds) => waits.push(seconds) });
    await client.init(SEEN);
    await assert.rejects(client.step([1], SEEN), Interrupted);
    await assert.rejects(client.step([1], SEEN), Interrupted);
    await client.init(SEEN);
    await assert.rejects(client.step([1], SEEN), (error) => error instanceof Finished && error.globalStep === 123456);
    await assert.rejects(client.init(SEEN), Finished);
  });
  assert.equal(told.split("6a027331").length - 1, 2); // the session id, twice
  assert.equal(waits.length, 2);
  assert.ok(waits[0] >= 0.25 && waits[1] >= 0.75, String(waits));
});

test("gives up", async () => {
  const told = await serve([], async () => {});
  assert.equal(told, "");
  const client = make("127.0.0.1:1", { retrySeconds: 0.1 });
  await assert.rejects(client.init(SEEN), (error) => error instanceof Failed && /127\.0\.0\.1:1/.test(error.message));
});

test("changed answers are accepted or refused", () => {
  const leaves = leavesOf(discrete(3));
  const [welcome, actions] = [SET, extended(ACTIONS, ...renewed([0], [1, 2]))].map((frame) => frame.slice(12));
  const ends = { understood: 0, refused: 0 };
  let state = 1;
  const random = (below) => (state = (Math.imul(state, 1103515245) + 12345) >>> 0) % below;
  for (let round = 0; round < 20000; round++) {
    let data = [...Buffer.from(round % 2 ? actions : welcome, "hex")];
    for (let changes = random(4); changes > 0 && data.length; changes--) {
      const at = random(data.length);
      data = [[...data.slice(0, at), random(256), ...data.slice(at + 1)], data.slice(0, at), [...data.slice(0, at), random(256), ...data.slice(at)]][random(3)];
    }
    try {
      const message = wire.parse(Uint8Array.from(data));
      if (round % 2) {
        wire.readActions(message, leaves, 1);
        wire.readNumbers(message, 3, 2 * wire.readParametersOf(message, 1).length);
      } else {
        wire.parse(...wire.all(message, 5));
        wire.readNumbers(message, 10, 2 * wire.readNames(message).length);
      }
      ends.understood += 1;
    } catch (error) {
      assert.ok(error instanceof wire.Wrong, `${error.stack}\n${Buffer.from(data).toString("hex")}`);
      ends.refused += 1;
    }
  }
  assert.ok(ends.understood > 1000 && ends.refused > 1000, JSON.stringify(ends));
});

/** A WebSocket server that answers each message with the next of a script; "text" sends a text message. */
function serveWebSocket(script) {
  return net.createServer((socket) => {
    let waiting = Buffer.alloc(0);
    let open = false;
    socket.on("error", () => {});
    socket.on("data", (chunk) => {
      waiting = Buffer.concat([waiting, chunk]);
      if (!open) {
        const [, key] = /sec-websocket-key: (.*)\r\n/i.exec(waiting.toString("latin1")) ?? [];
        if (!waiting.includes("\r\n\r\n")) return;
        const accept = createHash("sha1").update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest("base64");
        socket.write(`HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`);
        [open, waiting] = [true, Buffer.alloc(0)];
        return;
      }
      while (waiting.length >= 6 && waiting.length >= 6 + (waiting[1] & 127)) {
        const [opcode, kind] = [waiting[0], (waiting[6] ^ waiting[2]) >> 3];
        waiting = waiting.subarray(6 + (waiting[1] & 127));
        if (opcode === 0x82 && kind > 6) continue;
        const answer = opcode === 0x82 && script.shift();
        if (!answer) socket.end();
        else if (answer === "text") socket.write(Buffer.from([0x81, 1, 0x78]));
        else socket.write(Buffer.concat([Buffer.from([0x82, answer.length / 2 - 4]), Buffer.from(answer.slice(8), "hex")]));
      }
    });
  });
}

const lacking = typeof WebSocket === "undefined" && "this Node has no WebSocket: 22 has, and 20 with --experimental-websocket";
test("Node without WebSocket names the way out", async (t) => {
  const had = globalThis.WebSocket;
  t.after(() => (globalThis.WebSocket = had));
  globalThis.WebSocket = undefined;
  const due = (error) => error instanceof RangeError && /^ws:..a: Node [\d.]+ has no WebSocket: use Node 22 .* TCP$/.test(error.message);
  await assert.rejects(make("ws://a", { retrySeconds: 60 }).init(SEEN), due);
});

test("over WebSocket", { skip: lacking }, async () => {
  const server = serveWebSocket([WELCOME, ACTIONS, "text", WELCOME, ACTIONS]);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const client = make(`ws://127.0.0.1:${server.address().port}/`, { retrySeconds: 60 });
  assert.deepEqual(await client.init(SEEN), [[2]]);
  await assert.rejects(client.step([1], SEEN), (error) => error instanceof Interrupted && /text message/.test(error.message));
  assert.deepEqual(await client.init(SEEN), [[2]]);
  await client.close();
  server.close();
});
