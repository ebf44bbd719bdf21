"""Keywords in C++ (csrc/keywords.cpp)."""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.kernels import keywords
from hummingbird.kernels.cpu.library import handle
from hummingbird.kernels.registry import implements


@implements(keywords.hash_keywords, "cpu")
def hash_keywords(data: Tensor, offsets: Tensor, seed: bytes) -> Tensor:
    """Implement `kernels.keywords.hash_keywords` in C++: BLAKE2b of keywords."""
    out = torch.empty((len(offsets) - 1, 2), dtype=torch.int64)
    handle().hb_keywords_hash(
        data.data_ptr(), offsets.data_ptr(), len(out), seed, torch.get_num_threads(), out.data_ptr()
    )
    return out


@implements(keywords.place_keywords, "cpu")
def place_keywords(digests: Tensor, segment: int, tags: Tensor, moves: int) -> int:
    """Implement `kernels.keywords.place_keywords` in C++: give each keyword one of its positions."""
    return int(handle().hb_keywords_place(digests.data_ptr(), len(digests), segment, moves, tags.data_ptr()))


@implements(keywords.find_keywords, "cpu")
def find_keywords(digests: Tensor, segment: int, tags: Tensor) -> Tensor:
    """Implement `kernels.keywords.find_keywords` in C++: find the records that have keywords' tags."""
    out = torch.empty(len(digests), dtype=torch.int64)
    handle().hb_keywords_find(
        digests.data_ptr(), len(out), segment, tags.data_ptr(), torch.get_num_threads(), out.data_ptr()
    )
    return out
