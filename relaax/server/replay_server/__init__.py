"""The process that holds a shard of the replay memory."""
