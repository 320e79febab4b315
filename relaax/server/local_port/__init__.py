"""Serve processes of the same host by Unix socket and shared memory."""
