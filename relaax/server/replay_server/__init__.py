"""The replay server: a process that serves one shard of the replay memory.

Begin reading at `service`, which has the tables and their memory limit. `grpc_service` and `replay_session` receive
the requests of clients.
"""
