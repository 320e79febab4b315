"""The parameter server: a process that holds a shard of the global parameters and applies updates to it.

Begin reading at `main.serve`, then `command.assembly.assemble` and `service.core.ParameterServerCore`.
"""
