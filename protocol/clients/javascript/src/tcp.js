// RLX over TCP and TLS, only in Node: a browser does not load this file.

import net from "node:net";
import secure from "node:tls";
import { MALFORMED, NoRlx, join } from "./wire.js";
import { Line } from "./line.js";

const NETWORK = /^(E(CONN|HOST|NET|PIPE|TIMEDOUT|NOTFOUND|AI_)|ENOTFOUND|EAI_AGAIN)/;
const READ_AHEAD = 65536;
const HTTP2 = [4, 0, 0, 0, 0, 0]; // after 3 bytes: SETTINGS of stream 0. No RLX payload begins with a zero byte
const SPEAKS_GRPC =
  "this port speaks gRPC, like the ports of parameter and replay servers: connect to an RLX server (relaax-rlx-server.bind, port 7001 by default)";

/** TLS with this server failed: a retry does not help. */
export class NoTls extends Error {}

export class TcpLine extends Line {
  #chunks = [];
  #bytes = 0;

  static async open(address, tls, seconds) {
    const [, host, port] = /^\[?([^/]+?)\]?:(\d+)$/.exec(address) ?? [];
    if (!host || port > 65535) throw new TypeError(`${address} is not an address: use HOST:PORT, ws://HOST:PORT/ or wss://HOST:PORT/`);
    const line = new TcpLine();
    const options = { host, port: Number(port), noDelay: true };
    const socket = tls ? secure.connect({ ...options, ...(tls === true ? {} : tls) }) : net.connect(options);
    line.socket = socket;
    let open = false;
    let reason;
    socket.on(tls ? "secureConnect" : "connect", () => {
      open = true;
      line.wake();
    });
    socket.on("data", (chunk) => {
      line.#chunks.push(chunk);
      line.#bytes += chunk.length;
      if (line.#bytes > READ_AHEAD) socket.pause(); // until a call waits
      line.wake();
    });
    socket.on("error", (error) => {
      reason ??= error;
      line.end(`the connection is lost: ${error.message || error.code}`);
    });
    socket.on("close", () => line.end("the server's stream ended"));
    socket.on("end", () => line.end("the server's stream ended"));
    if (!(await line.wait(seconds))) line.end(`no answer within ${seconds} s`);
    if (open) return line;
    line.destroy();
    if (tls && reason && !NETWORK.test(reason.code)) throw new NoTls(`no TLS with ${address}: ${reason.message}`);
    throw new Error(reason?.message || reason?.code || line.ended);
  }

  wait(seconds) {
    this.socket.resume();
    return super.wait(seconds);
  }

  /** Send all frames in one call. */
  send(payloads) {
    const heads = payloads.map((payload) => new Uint8Array([24, 16, 8, 0].map((shift) => payload.length >>> shift)));
    this.socket.write(join(payloads.flatMap((payload, i) => [heads[i], payload])));
  }

  take(limit) {
    if (this.#bytes < 4) return undefined;
    if (this.#chunks.length > 1) {
      const first = this.#chunks[0];
      const size = first.length < 4 ? 0 : 4 + first.readUInt32BE();
      if (first.length < 4 || (this.#bytes >= size && first.length < size)) this.#chunks = [Buffer.concat(this.#chunks)];
    }
    const [first, ...rest] = this.#chunks;
    const size = first.readUInt32BE();
    if (HTTP2.every((byte, i) => first[3 + i] === byte)) throw new NoRlx(MALFORMED, SPEAKS_GRPC);
    Line.judge(size, limit);
    if (first.length < 4 + size) return undefined;
    this.#bytes -= 4 + size;
    const left = first.subarray(4 + size);
    this.#chunks = left.length ? [left, ...rest] : rest;
    return first.subarray(4, 4 + size);
  }

  close() {
    this.socket.end();
  }

  destroy() {
    this.socket.destroy();
  }
}
