"""Worlds of MiniWorld, by name."""
