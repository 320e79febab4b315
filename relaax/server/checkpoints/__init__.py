"""Checkpoints of a server: when they are saved, the store and its lease, and copies while it is unavailable.

Begin with `checkpointing`, the thread that saves them; `storage` opens the store.
"""
