"""Scenarios of ViZDoom, by name."""
