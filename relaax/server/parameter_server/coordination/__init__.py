"""The coordination of a parameter server's shards: shard 0 leads, and the others follow.

Begin reading at `coordinator.Coordinator`, then `leader.Leader` and `follower.Follower`.
"""
