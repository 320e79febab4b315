"""The command `relaax cluster`: train on the machines of a Ray cluster.

Begin with command.py. controller.py is the process that runs a training there.
"""
