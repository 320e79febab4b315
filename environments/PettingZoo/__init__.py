"""Environments of PettingZoo: each agent is a row of a connection."""
