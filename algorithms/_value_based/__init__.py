"""What methods that act by action values share: keys, network, and the agent of async_q, async_sarsa and n_step_q.

It is no algorithm: those are the packages that export it under their names, each with its own `Config`.
"""
