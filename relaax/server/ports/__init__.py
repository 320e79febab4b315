"""The ports of a server: gRPC, guarded against strangers, and shared memory for processes of the same host."""
