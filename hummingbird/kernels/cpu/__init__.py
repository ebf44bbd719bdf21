"""The operations in C++ (csrc/), called through ctypes, which releases Python's lock meanwhile."""
