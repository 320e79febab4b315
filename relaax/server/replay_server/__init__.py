"""The replay server: a process that serves one shard of the replay memory.

Begin with `service`, the tables and their memory; `grpc_service` and `replay_session` serve it to clients.
"""
