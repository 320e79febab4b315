"""The host's engine: networks computed by numpy and kernels that numba compiles."""
