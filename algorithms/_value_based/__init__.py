"""Shared code of the action-value methods: keys, network, and the agent of async_q, async_sarsa and n_step_q.

This package is not an algorithm. The three packages export the agent under their names, each with its own `Config`;
gorila and apex use `model.py`.
"""
