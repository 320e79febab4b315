"""The command `relaax eval`."""
