"""Kernels in the Triton language (the compiler that comes with torch, not the server) for CUDA devices."""
