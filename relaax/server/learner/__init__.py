"""The learner: a process that samples replay memory and computes gradients.

Begin with `process`, the steps from start to end; `learning` has the loop and the metrics.
"""
