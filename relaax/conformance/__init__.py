"""Checks that a client or a server, in any language, follows protocol/RLX.md: the command `relaax conformance`.

Begin with `check_client` in `client` and `check_server` in `server`, which list the rules and check them.
"""
