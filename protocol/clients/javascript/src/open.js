// Opens the transport of an address.

import { WebSocketLine } from "./line.js";

/** Open the transport of an address: ws://, wss://, or HOST:PORT (only in Node). */
export async function open(address, tls, seconds) {
  if (/^wss?:/.test(address)) {
    if (tls) throw new TypeError("tls applies only to HOST:PORT: for wss:// use the browser's settings, or NODE_EXTRA_CA_CERTS in Node");
    return WebSocketLine.open(address, seconds);
  }
  if (!globalThis.process?.versions?.node) throw new TypeError(`a page can only connect to ws:// and wss://, not to ${address}`);
  const { TcpLine } = await import("./tcp.js");
  return TcpLine.open(address, tls, seconds);
}
