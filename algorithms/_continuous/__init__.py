"""Shared code of the algorithms with replay memory and real actions: keys, networks, actor and learner.

This package is not an algorithm. sac and apex_dpg use it.
"""
