"""Reuse of freed memory for large tensors: `keep()`.

glibc maps every block above its threshold, 32 MiB at most, anew, and returns it to the system when it is freed; so each
large share or column matrix of a layer costs a page fault per 4 KiB. Measured (AMD EPYC, family 26, in a virtual
machine), `a + 1` on 64 MiB: 2.8 GB/s of result into fresh pages, 18 GB/s into reused ones; 0.4 GB/s if the host must
provide the pages too. With a higher threshold such blocks come from the heap, which keeps them for the next layer. The
process never gets smaller again.
"""

from __future__ import annotations

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # M_TRIM_THRESHOLD and so on, of malloc.h
_LARGEST = 1 << 30  # blocks above it are still mapped: a heap full of holes of this size would be worse than the faults


def keep() -> bool:
    """Make this process reuse freed blocks of memory of up to 1 GiB, instead of returning them to the system.

    Returns False, and changes nothing, if the C library is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # Both are ints. glibc before 2.35 refuses thresholds above 32 MiB, its own upper limit for adapting them.
    kept = bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) or bool(mallopt(_MMAP_THRESHOLD, 32 << 20))
    # One heap for all threads: a heap of another thread cannot hold blocks above 64 MiB, and would map them.
    return bool(mallopt(_ARENA_MAX, 1)) and kept and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))
