"""A model of the service: what a workload needs of machines, and what it gets of them (docs/scaling.md).

Pure functions of numbers. Times are microseconds and bytes are bytes unless a name says otherwise.
"""
