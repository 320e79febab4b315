"""Environments of gymnasium, by their id."""
