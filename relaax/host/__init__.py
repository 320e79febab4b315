"""Flat vectors and optimizers in the host's memory: compiled, where `relaax.tf` takes whatever device there is."""
