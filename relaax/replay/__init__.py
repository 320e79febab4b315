"""Replay memory: tables and limiters (`table`), the client of the replay servers that hold them (`client`), and both
in one process (`local`).
"""
