"""Commands for a running service: its state, and the parameters of its environments."""
