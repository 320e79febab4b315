"""The command `relaax suite`."""
