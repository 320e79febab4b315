"""Tokens, certificates and failures counted by address."""
