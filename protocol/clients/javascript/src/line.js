// The transport of a connection: it sends and receives payloads, and records the end of the stream.

import { MALFORMED, Wrong } from "./wire.js";

const TOO_LARGE = 2;
const NO_WEBSOCKET = `Node ${globalThis.process?.versions?.node} has no WebSocket: use Node 22 or newer, or the address HOST:PORT for TCP`;

/** A base class of transports. `heard` is called when data have arrived or the stream has ended. */
export class Line {
  ended = ""; // the reason, after the stream has ended
  heard = () => {};

  /** Wait until data arrive or the stream ends. Resolves to false after `seconds` without either. */
  wait(seconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(() => done(false), Math.min(1000 * seconds, 2 ** 31 - 1));
      const done = (came) => {
        clearTimeout(timer);
        this.wake = () => this.heard();
        resolve(came);
      };
      this.wake = () => done(true);
    });
  }

  wake = () => this.heard();

  end(sentence) {
    this.ended ||= sentence;
    this.wake();
  }

  /** Check a length before the body is read. */
  static judge(size, limit) {
    if (size === 0) throw new Wrong(MALFORMED, "a frame of length 0");
    if (size > limit) throw new Wrong(TOO_LARGE, `a frame of ${size} bytes; the limit is ${limit}`);
  }
}

/** WebSocket of a browser or of Node 22. Each message is a payload. */
export class WebSocketLine extends Line {
  #payloads = [];

  /** Open a connection. Throws TypeError or SyntaxError for an invalid address, Error if the connection fails. */
  static async open(address, seconds) {
    if (typeof WebSocket === "undefined") throw new TypeError(`${address}: ${NO_WEBSOCKET}`);
    const line = new WebSocketLine();
    line.socket = new WebSocket(address);
    line.socket.binaryType = "arraybuffer";
    let open = false;
    line.socket.onopen = () => {
      open = true;
      line.wake();
    };
    line.socket.onmessage = ({ data }) => {
      line.#payloads.push(data);
      line.wake();
    };
    line.socket.onerror = () => line.end(open ? "the connection is lost" : "no server, or the server refuses this page");
    line.socket.onclose = ({ code }) => line.end(`the server's stream ended (${code})`);
    if (!(await line.wait(seconds))) line.end(`no answer within ${seconds} s`);
    if (open) return line;
    line.destroy();
    throw new Error(line.ended);
  }

  send(payloads) {
    for (const payload of payloads) this.socket.send(payload);
  }

  take(limit) {
    const data = this.#payloads.shift();
    if (data === undefined) return undefined;
    if (typeof data === "string") throw new Wrong(MALFORMED, "a text message");
    Line.judge(data.byteLength, limit);
    return new Uint8Array(data);
  }

  /** Close after pending data are sent. */
  close() {
    this.socket.close(1000);
  }

  destroy() {
    this.socket.onmessage = this.socket.onerror = this.socket.onclose = null;
    this.socket.close();
  }
}
