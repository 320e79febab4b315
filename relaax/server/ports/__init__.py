"""The ports of a server: gRPC with limits for unauthenticated callers, and shared memory for processes of the host.

Begin reading at `port.GrpcPort` and `local_server.LocalServer`.
"""
