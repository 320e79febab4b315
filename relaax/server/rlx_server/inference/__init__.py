"""One process that acts for all workers of an RLX server (`relaax-rlx-server.inference: shared`).

`keeper` starts it from the server, `process` and `parameter_source` run in it, and `shared_actor` runs in the workers.
"""
