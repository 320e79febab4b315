"""The command `relaax suite`: train and evaluate in several environments and seeds.

Begin with jobs.py, which runs the jobs.
"""
