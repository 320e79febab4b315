"""The command `relaax plan`: estimate the machines for a number of environments, and the first bottleneck.

Begin with command.py. The model itself is in relaax.planning.
"""
