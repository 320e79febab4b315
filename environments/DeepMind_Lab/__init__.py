"""Levels of DeepMind Lab, by name."""
