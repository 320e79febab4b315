"""A table of replay memory in one process: items, frames, priorities, writers and the limiter of rates."""
