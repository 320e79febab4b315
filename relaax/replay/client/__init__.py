"""The client of all replay servers, by gRPC and through shared memory.

Begin with `client`, which workers and learners use. `writer` inserts items, and `sampler` draws them.
"""
