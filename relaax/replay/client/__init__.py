"""The client of all replay servers, by gRPC and through shared memory.

`client` has the class that workers and learners use, `writer` inserts, and `sampler` draws.
"""
