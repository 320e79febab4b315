"""Goofspiel, a card game with action masks."""
