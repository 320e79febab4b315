"""Environments of gymnasium, by id."""
