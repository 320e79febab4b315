"""Checkpoints of a server: when they are made, where they are kept, and what to do if the store is away."""
