"""Races of TORCS, by the name of a track."""
