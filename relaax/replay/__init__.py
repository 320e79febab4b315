"""Replay memory: in-process tables (`table`) and the client of the replay servers (`client`).

Begin with `interfaces`, what a worker and a learner use; `local` puts both sides into one process, for tests.
"""
