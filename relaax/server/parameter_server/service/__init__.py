"""The service of a shard for workers, over any transport: registration, pushes, pulls and reports.

Begin reading at `service.ParameterService` and `core.ParameterServerCore`.
"""
