"""The command `relaax doctor`: check an installation, a configuration and a machine for problems.

Begin with command.py, which lists the checks.
"""
