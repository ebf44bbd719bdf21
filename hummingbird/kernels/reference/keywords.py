"""Keywords with hashlib, numpy and Python: their hash, and the records where their rows may be.

kernels/keywords.py has the definition.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from hummingbird.kernels import keywords
from hummingbird.kernels.registry import implements


@implements(keywords.hash_keywords, "reference")
def hash_keywords(data: Tensor, offsets: Tensor, seed: bytes) -> Tensor:
    """Implement `kernels.keywords.hash_keywords` with hashlib."""
    octets, ends = data.numpy().tobytes(), offsets.tolist()
    pairs = zip(ends, ends[1:], strict=False)
    digests = b"".join(hashlib.blake2b(octets[a:b], key=seed, digest_size=16).digest() for a, b in pairs)
    words = np.frombuffer(digests, "<u8").reshape(-1, 2).copy()
    words[:, 1] = np.maximum(words[:, 1], 1)
    return torch.from_numpy(words.view(np.int64))


@implements(keywords.place_keywords, "reference")
def place_keywords(digests: Tensor, segment: int, tags: Tensor, moves: int) -> int:
    """Implement `kernels.keywords.place_keywords` in Python: one keyword after another."""
    words, held, random = digests.numpy().view(np.uint64), tags.numpy().view(np.uint64), 1
    for number, (row, own) in enumerate(
        zip(keywords.positions(words[:, 0], words[:, 1], segment), words[:, 1], strict=True)
    ):
        places, tag, before = row.tolist(), own, -1
        if any(held[place] == tag for place in places):
            return number
        for move in range(moves + 1):
            free = [place for place in places if not held[place]]
            if free:
                held[free[0]] = tag
                break
            if move == moves:
                return -2
            random = (random * 6364136223846793005 + 1442695040888963407) % 2**64
            turn = (random >> 33) % keywords.SEGMENTS
            before = places[(turn + (places[turn] == before)) % keywords.SEGMENTS]
            tag, held[before] = held[before], tag
            first = keywords.first_position(np.array([before]), np.array([tag]), segment)
            places = keywords.positions(first, np.array([tag]), segment)[0].tolist()
    return -1


@implements(keywords.find_keywords, "reference")
def find_keywords(digests: Tensor, segment: int, tags: Tensor) -> Tensor:
    """Implement `kernels.keywords.find_keywords` with numpy."""
    words, held = digests.numpy().view(np.uint64), tags.numpy().view(np.uint64)
    places = keywords.positions(words[:, 0], words[:, 1], segment)
    there = held[places] == words[:, 1:]
    return torch.from_numpy(np.where(there.any(1), places[np.arange(len(places)), there.argmax(1)], -1))
