"""Run the processes of a training on the machines of a Ray cluster.

Begin with `machines` (the cluster as a `Host` of processes) and `keeper` (the actor that owns one process).
"""
