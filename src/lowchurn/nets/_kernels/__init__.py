"""Hand-written kernels. Each is imported only where its compiler (numba, Triton) is there and it is the faster way."""
