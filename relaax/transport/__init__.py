"""Transports of the clients of parameter and replay servers: gRPC channels and shared memory.

Begin with `channel` (gRPC) and `shard_link` (the choice between gRPC and shared memory).
"""
