"""Hand-written kernels, and what surrounds them.

Each is imported, or compiled, only where its compiler (numba, Triton, NVRTC) is there and it is the faster way.
"""
