"""A connection with a client: bytes, layers such as TLS and WebSocket, and messages with deadlines.

Begin with `peer`.
"""
