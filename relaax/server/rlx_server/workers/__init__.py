"""Worker processes: how they start, and how each serves one connection with an agent.

Begin with `worker`.
"""
