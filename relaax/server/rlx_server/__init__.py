"""The RLX server: a listening process, and a worker process with an agent for each connection.

Begin with `main.serve`, then `listening.listener` (connections) and `workers.worker` (one connection).
"""
