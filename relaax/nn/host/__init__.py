"""The host's engine: networks computed by numpy and by compiled kernels.

Begin with `engine`, then `network`, which uses `dense` or `trunk`.
"""
