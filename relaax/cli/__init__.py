"""The command `relaax`."""
