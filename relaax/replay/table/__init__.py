"""A table of replay memory in one process: items, frames, priorities, writers and the rate limiter.

Begin with `table`, which uses the other modules.
"""
