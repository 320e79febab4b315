"""Tokens, certificates, and failures counted by network address.

Begin reading at `tls` and `tokens`, which read the secrets of a configuration; `strikes` blocks addresses.
"""
