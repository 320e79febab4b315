"""Levels of DeepMind Lab, by their name."""
