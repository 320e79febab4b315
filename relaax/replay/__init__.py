"""Replay memory: in-process tables (`table`) and the client of the replay servers (`client`).

Begin with `interfaces`, which workers and learners use. `local` has a memory without servers, for tests.
"""
