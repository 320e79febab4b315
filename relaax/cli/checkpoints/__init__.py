"""The command `relaax checkpoints`: list, verify, copy, export and remove checkpoints.

Begin with catalogue.py, which works on the checkpoints of a location.
"""
