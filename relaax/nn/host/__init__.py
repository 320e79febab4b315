"""The host's engine: networks computed by numpy and by kernels that numba compiles.

Begin with `engine`, then `network`, which uses `dense` or `trunk`.
"""
