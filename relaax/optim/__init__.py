"""Optimizers on flat vectors, and clipping of gradients.

Begin with `optimizers`; `host_optimizers` has the implementations that CPUs use, and `vector` the vectors.
"""
