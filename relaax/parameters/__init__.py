"""The parameter service as a worker sees it: interfaces, the client and its transports."""
