"""Coordination of the shards of a parameter server: shard 0 leads, the others follow."""
