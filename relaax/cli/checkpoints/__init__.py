"""`relaax checkpoints`: lists, verifies, copies, exports and removes checkpoints."""
