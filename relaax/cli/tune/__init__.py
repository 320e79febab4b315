"""`relaax tune`: trials of a configuration with other values, by Optuna.

Begin with `command`.
"""
