// RLX, version 1, for Node: a client with the JSON codec and one environment (N = 1). The sections named here are those
// of protocol/RLX.md.
'use strict';

const net = require('node:net');
const { setTimeout: sleep } = require('node:timers/promises');

const MESSAGES = ['welcome', 'actions', 'episodeReturns', 'error', 'trainingFinished', 'ping', 'pong', 'bye'];
const ANSWERS = { hello: 'welcome', init: 'actions', step: 'actions', reset: 'episodeReturns' };

/** Why a connection is over. `retryable`: another one may do better, after `retryAfter` seconds at the soonest. */
class Ended extends Error {
  constructor(sentence, { retryable = false, retryAfter = 0, finished = false } = {}) {
    super(sentence);
    Object.assign(this, { retryable, retryAfter, finished });
  }
}

/** The message of a payload. null is as if left out, and names may be those of the .proto (section 3). */
function parse(payload) {
  // A server that refuses before it has read our first byte speaks Protobuf; such refusals pass.
  if (payload[0] !== 0x7b) throw new Ended('the server refuses, not in JSON', { retryable: true });
  const camelCase = (name) => name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());
  const message = JSON.parse(payload, (_, value) => {
    if (value === null || typeof value !== 'object' || Array.isArray(value)) return value;
    const present = Object.entries(value).filter(([, content]) => content !== null);
    return Object.fromEntries(present.map(([name, content]) => [camelCase(name), content]));
  });
  if (MESSAGES.filter((name) => name in message).length > 1) throw new Ended('the server sent two messages in one frame');
  return message;
}

/** One conversation. `ask` sends a message and waits for its answer; what may come in between is dealt with there. */
class Connection {
  limits = { maxFrameBytes: 65536, heartbeatSeconds: 20 }; // until the welcome

  constructor(host, port) {
    this.socket = net.connect({ host, port, noDelay: true });
    this.socket.on('timeout', () => this.socket.destroy(new Error('the server has been silent for too long')));
    this.messages = this.#read();
  }

  async *#read() {
    let bytes = Buffer.alloc(0);
    try {
      for await (const chunk of this.socket) {
        bytes = Buffer.concat([bytes, chunk]);
        for (let end; bytes.length >= 4 && bytes.length >= (end = 4 + this.#length(bytes)); bytes = bytes.subarray(end))
          yield parse(bytes.subarray(4, end));
      }
      throw new Error('it ended without a farewell');
    } catch (error) {
      if (error instanceof Ended || error instanceof SyntaxError) throw error;
      throw new Ended(`the connection is lost: ${error.message || error.code}`, { retryable: true });
    }
  }

  /** Judged as soon as the 4 bytes are there, before any of the body is waited for (section 2). */
  #length(bytes) {
    const length = bytes.readUInt32BE();
    if (length > 0 && length <= this.limits.maxFrameBytes) return length;
    throw new Ended(`the server sent a frame of ${length} bytes`);
  }

  send(message) {
    const payload = Buffer.from(JSON.stringify(message));
    if (payload.length > this.limits.maxFrameBytes) throw new Ended(`${payload.length} bytes are more than the server takes`);
    const frame = Buffer.alloc(4 + payload.length);
    frame.writeUInt32BE(payload.length);
    payload.copy(frame, 4);
    this.socket.write(frame); // one call for the whole frame (section 14)
  }

  async ask(kind, body) {
    this.send({ [kind]: body });
    for (;;) {
      this.socket.setTimeout(3000 * this.limits.heartbeatSeconds); // an answer is due: pings at least (section 11)
      const { value: message } = await this.messages.next();
      this.socket.setTimeout(0);
      const { ping, pong, error, bye, trainingFinished, [ANSWERS[kind]]: answer } = message;
      if (answer) return answer;
      if (ping) this.send({ pong: ping }); // with the same nonce
      else if (trainingFinished) throw new Ended('training has finished', { finished: true });
      else if (bye) throw new Ended(`the server left: ${bye.reason || 'no reason given'}`, { retryable: true });
      else if (error) throw new Ended(`${error.code}: ${error.message}`, { ...error, retryAfter: error.retryAfterSeconds });
      else if (!pong) throw new Ended(`after ${kind} the server sent ${JSON.stringify(message)}`);
    }
  }
}

/**
 * Connect and let `play(connection, succeeded)` run to its end, or to the end of training: the answer says whether it
 * was the former. After a lost connection or a retryable error `play` is called again, on a new connection that has the
 * session id of the old one; waits grow until it calls `succeeded`.
 */
async function stayConnected(host, port, hello, play) {
  for (let [sessionId, failures] = ['', 0]; ; ) {
    const connection = new Connection(host, port);
    try {
      const welcome = await connection.ask('hello', { protocolVersion: 1, sessionId, ...hello });
      ({ sessionId, limits: connection.limits } = welcome);
      if (welcome.protocolVersion !== 1 || !(welcome.limits.heartbeatSeconds > 0)) throw new Ended('a welcome of no use');
      await play(connection, () => (failures = 0));
      connection.send({ bye: {} });
      connection.socket.end();
      await connection.messages.next().catch(() => {}); // the server closes
      return true;
    } catch (error) {
      connection.socket.destroy();
      if (error.finished) return false;
      if (!error.retryable || ++failures > 10) throw error;
      const wait = Math.max(error.retryAfter ?? 0, Math.min(30, 0.5 * 2 ** failures) * (0.5 + Math.random() / 2));
      console.error(`${error.message}; connecting again in ${wait.toFixed(1)} s`);
      await sleep(1000 * wait);
    }
  }
}

/** A float32 leaf: N = 1 is its first axis, and its little-endian bytes are in base64 (sections 4 and 5). */
function float32(values) {
  const data = Buffer.from(new Float32Array(values).buffer).toString('base64');
  return { dtype: 'DTYPE_FLOAT32', shape: [1, values.length], data };
}

/** The action out of the one leaf of a discrete space of `n`: int64, of shape [1]. */
function discrete({ action: [{ dtype, shape, data } = {}] = [] }, n) {
  const bytes = Buffer.from(data ?? '', 'base64');
  const fits = ['DTYPE_INT64', 9].includes(dtype) && String(shape) === '1' && bytes.length === 8;
  const action = fits ? Number(bytes.readBigInt64LE()) : NaN;
  if (action >= 0 && action < n) return action;
  throw new Ended(`the server sent no action of ${n}`);
}

module.exports = { Ended, discrete, float32, stayConnected };
