"""Evaluate what was learned: play episodes from given seeds, teach nothing, and compare with published scores."""
