"""Start, watch, restart and stop the processes of a run, on this machine or on another host.

Begin with `Process` in `process` (one process) and `Host` in `host` (where processes run and how they find each other).
"""
