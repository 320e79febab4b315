"""Neural networks: their specification, flat parameters and initial values, engines, and distributions over actions.

Begin with `specification.NetworkSpec`, then `interfaces` (what an engine does) and `engine` (which one is used).
"""
