"""Connections of clients: spaces and values, sessions, retries, and the wire.

Begin with `client`, then `session`.
"""
