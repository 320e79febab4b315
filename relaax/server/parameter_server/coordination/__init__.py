"""How the shards of a parameter server act as one: shard 0 leads, the others follow."""
