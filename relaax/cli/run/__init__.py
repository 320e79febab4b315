"""The command `relaax run`: the whole service and its environments on one machine.

Begin with experiment.py, which runs one experiment from its first process to its summary.
"""
