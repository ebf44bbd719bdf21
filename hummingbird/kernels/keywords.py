"""Keywords of a lookup table: their hash, and the records where their rows may be.

A table by keyword has three segments of S records. BLAKE2b, keyed by a public seed, gives two words h and t of 64 bits;
t is the keyword's tag, 1 in place of 0. With M the finalizer of splitmix64, and G = 0x9E3779B97F4A7C15, its row may be
at

    p_0 = h mod S        p_s = S s + (p_0 + (M(t + s G) mod S)) mod S,  s = 1, 2.

So one position and the tag, which is in the record, give the other two, and a row can be moved without its keyword, as
in cuckoo filters (Fan, Andersen, Kaminsky and Mitzenmacher, "Cuckoo filter: practically better than Bloom", CoNEXT
2014).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.registry import best

SEGMENTS = 3


def hash_keywords(data: Tensor, offsets: Tensor, seed: bytes) -> Tensor:
    """Hash n keywords; return h and t of each, int64 (n, 2), to be read as unsigned words.

    data: uint8, the keywords' bytes one after another. offsets: int64 (n + 1,), where each begins in `data`; the last
    one is the end. seed: 16 bytes.
    """
    where = "kernels.hash_keywords"
    if data.dtype != torch.uint8 or offsets.dtype != torch.int64 or data.dim() != 1 or offsets.dim() != 1:
        raise InputError("expected data uint8 (size,), offsets int64 (n + 1,)", where=where)
    if not len(offsets) or int(offsets[0]) < 0 or int(offsets[-1]) > len(data) or bool((offsets.diff() < 0).any()):
        raise InputError("offsets do not fit the data", where=f"{where}(offsets)")
    return best(hash_keywords, data, offsets)(data, offsets, seed)


def place_keywords(digests: Tensor, segment: int, tags: Tensor, moves: int = 10_000) -> int:
    """Give each of n keywords one of its positions, by cuckoo hashing: write its tag there.

    digests: from `hash_keywords`. segment: S, the records of a segment. tags: int64 (3 S,), 0 where there is none;
    changed in place. moves: most of other tags for one keyword. Returns -1; or the number of the first keyword whose
    tag is there already; or -2 if a keyword found no position: then `tags` lacks one, and another seed is needed.
    """
    _check_keywords(digests, segment, tags, "kernels.place_keywords")
    return int(best(place_keywords, digests, tags)(digests, segment, tags, moves))


def find_keywords(digests: Tensor, segment: int, tags: Tensor) -> Tensor:
    """Find the records that have the tags of n keywords; return their numbers, int64 (n,), -1 for none.

    digests, segment, tags: as for `place_keywords`.
    """
    _check_keywords(digests, segment, tags, "kernels.find_keywords")
    return best(find_keywords, digests, tags)(digests, segment, tags)


def _check_keywords(digests: Tensor, segment: int, tags: Tensor, where: str) -> None:
    if digests.dtype != torch.int64 or digests.shape[1:] != (2,) or tags.dtype != torch.int64:
        raise InputError("expected digests int64 (n, 2), tags int64", where=where)
    if segment < 1 or tags.shape != (SEGMENTS * segment,):
        raise InputError(f"tags {tuple(tags.shape)} of {SEGMENTS} segments of {segment}", where=f"{where}(tags)")


def positions(first: np.ndarray, tags: np.ndarray, segment: int) -> np.ndarray:
    """Compute the three positions of n keywords: numbers of records, int64 (n, 3).

    first: uint64 (n,), any number that is p_0 mod S, such as h. tags: uint64 (n,). segment: S.
    """
    size = np.uint64(segment)
    places = [np.uint64(s) * size + (first % size + _offsets(tags, s, size)) % size for s in range(SEGMENTS)]
    return np.stack(places, 1).astype(np.int64)


def first_position(places: np.ndarray, tags: np.ndarray, segment: int) -> np.ndarray:
    """Compute p_0, uint64 (n,), of the keywords that have these tags, uint64 (n,), at these records, int64 (n,)."""
    size, out = np.uint64(segment), places.astype(np.uint64) % np.uint64(segment)
    for s in range(1, SEGMENTS):
        own = places // segment == s
        out[own] = (out[own] + size - _offsets(tags[own], s, size)) % size
    return out


def _offsets(tags: np.ndarray, s: int, size: np.uint64) -> np.ndarray:
    """Compute M(t + s G) mod S for tags t; 0 for s = 0."""
    if not s:
        return np.zeros_like(tags)
    x = tags + np.uint64(s * 0x9E3779B97F4A7C15 % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) % size
