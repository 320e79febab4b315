"""Check whether a client or a server, in any language, keeps to protocol/RLX.md."""
