"""The parameter service as a worker sees it: interfaces, the client, and what carries its messages."""
