"""The operations in Triton, for CUDA devices."""
