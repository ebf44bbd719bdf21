"""The operations in C++ (csrc/), called through ctypes, which lets go of Python's lock meanwhile."""
