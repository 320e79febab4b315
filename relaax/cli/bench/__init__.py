"""The command `relaax bench`: measure the speed of an experiment on this machine, part by part.

Begin with benchmark.py, which runs the parts in turn.
"""
