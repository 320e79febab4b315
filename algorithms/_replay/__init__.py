"""Parts of all algorithms with replay memory: keys, table, actor and learner.

gorila, apex, sac and apex_dpg share them.
"""
