"""The commands of `relaax cluster`."""
