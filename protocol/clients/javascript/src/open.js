// The line of an address.

import { WebSocketLine } from "./line.js";

/** Open the line of an address: ws://, wss://, or HOST:PORT, which only Node has. */
export async function open(address, tls, seconds) {
  if (/^wss?:/.test(address)) {
    if (tls) throw new TypeError("tls is for HOST:PORT: with wss:// the browser decides, and in Node NODE_EXTRA_CA_CERTS");
    return WebSocketLine.open(address, seconds);
  }
  if (!globalThis.process?.versions?.node) throw new TypeError(`a page connects to ws:// and wss:// alone, not to ${address}`);
  const { TcpLine } = await import("./tcp.js");
  return TcpLine.open(address, tls, seconds);
}
