"""A shard of the model: parameters, optimizer and counters, and their part of a checkpoint.

Begin reading at `shard.Shard`.
"""
