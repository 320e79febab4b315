"""A model of the service: the machines that a workload needs, and the speed that it reaches (docs/scaling.md).

All functions are pure. Unless a name has another unit, times are microseconds and sizes are bytes. Begin with
`forecast`, which uses `costs` (per part), `demand` (per message) and `queueing` (waiting).
"""
