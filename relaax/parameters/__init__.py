"""The worker's side of the parameter service: interfaces, the client of all shards, and its transports.

Begin with `interfaces` (what a worker calls), then `client` (how it does it).
"""
