"""Byte-pair pieces: text as numbers of pieces of words, and the text again from the numbers.

Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (ACL 2016), on bytes as GPT-2 has it: the
first 256 pieces are the bytes, so that any text has numbers. Each later piece joins two earlier ones: learned as the
neighbours that stand side by side most often in a text. A word is cut with the blank before it, so that the numbers of
a text are those of its words in a row, and give exactly that text again.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

BYTES = 256
LONGEST = 16  # bytes of a piece: a table of them is a tensor
Pair = tuple[bytes, bytes]
_WORD = re.compile(r" ?\S+|\s")  # every character of a text is in one match


class Pieces:
    """The pieces of a vocabulary, numbered: the bytes, then joined ones in the order in which they were learned.

    joined: the joined ones, each of 2 to LONGEST bytes, none of them zero. Raises ValueError for others, and for one
    that comes twice.

        pieces = Pieces.learn({" the": 9, " then": 4, "\\n": 2}, 259)   # joined: " t", " th", " the"
        pieces.numbers(" the")                                          # [258]
        pieces.text([258, 110])                                         # " then"
    """

    def __init__(self, joined: Iterable[bytes]) -> None:
        self.all = [*(bytes([value]) for value in range(BYTES)), *joined]
        self._number = {piece: number for number, piece in enumerate(self.all)}
        bad = [piece for piece in self.all[BYTES:] if not 2 <= len(piece) <= LONGEST or 0 in piece]
        if bad or len(self._number) < len(self.all):
            what = f"{bad[0]!r} as a piece" if bad else "a piece that comes twice"
            raise ValueError(f"{what}\nhint: joined pieces have 2 to {LONGEST} bytes, none of them zero, and differ")

    @classmethod
    def learn(cls, counts: Mapping[str, int], size: int) -> Pieces:
        """Learn `size` pieces from words, each with the blank before it, and how often each is there.

        Of neighbours equally frequent the first by their bytes are joined first. Fewer pieces are returned where the
        words have no more neighbours to join. Takes about 10 s for 4,096 pieces of 33,000 words.
        """
        words = [([bytes([value]) for value in word.encode()], count) for word, count in counts.items()]
        pairs: Counter[Pair] = Counter()
        holders: dict[Pair, set[int]] = {}  # the words in which a pair is, or was
        for place, (word, count) in enumerate(words):
            for pair in _neighbours(word):
                pairs[pair] += count
                holders.setdefault(pair, set()).add(place)
        queue = [(-count, pair) for pair, count in pairs.items()]
        heapq.heapify(queue)
        joined: dict[bytes, None] = {}
        while len(joined) < size - BYTES and queue:
            count, best = heapq.heappop(queue)
            if not count or -count != pairs[best]:
                continue  # its count has changed since, and it is in the queue with the new one
            joined[best[0] + best[1]] = None
            changed: set[Pair] = set()
            for place in holders[best]:
                word, times = words[place]
                later = _join(word, best)
                words[place] = (later, times)
                for pair in _neighbours(word):
                    pairs[pair] -= times
                for pair in _neighbours(later):
                    pairs[pair] += times
                    holders.setdefault(pair, set()).add(place)
                changed.update(_neighbours(word), _neighbours(later))
            for pair in changed:
                heapq.heappush(queue, (-pairs[pair], pair))
        return cls(joined)

    @classmethod
    def of_table(cls, table: Tensor) -> Pieces:
        """Return the pieces that `table` made a tensor of."""
        return cls(bytes(row).rstrip(b"\0") for row in table.tolist())

    def table(self) -> Tensor:
        """Return the joined pieces as uint8 (pieces - 256, LONGEST), filled with zeros at the end."""
        rows = [list(piece.ljust(LONGEST, b"\0")) for piece in self.all[BYTES:]]
        return torch.tensor(rows, dtype=torch.uint8).view(-1, LONGEST)

    def numbers(self, text: str) -> list[int]:
        """Return the numbers of the pieces of a text: in each word, the piece learned first is joined first."""
        return [number for word in _WORD.findall(text) for number in self._word(word)]

    def text(self, numbers: Iterable[int]) -> str:
        """Return the text of some pieces; bytes that are no UTF-8 together become U+FFFD."""
        return b"".join(self.all[number] for number in numbers).decode(errors="replace")

    def _word(self, word: str) -> list[int]:
        parts = [bytes([value]) for value in word.encode()]
        while True:
            found = [self._number.get(a + b, len(self.all)) for a, b in zip(parts, parts[1:], strict=False)]
            if not found or min(found) == len(self.all):
                return [self._number[part] for part in parts]
            place = found.index(min(found))
            parts[place : place + 2] = [parts[place] + parts[place + 1]]


def _neighbours(word: list[bytes]) -> list[Pair]:
    """Return the pairs of a word's parts that may be joined."""
    return [(a, b) for a, b in zip(word, word[1:], strict=False) if len(a) + len(b) <= LONGEST]


def _join(word: list[bytes], pair: Pair) -> list[bytes]:
    found: list[bytes] = []
    for part in word:
        if found and (found[-1], part) == pair:
            found[-1] += part
        else:
            found.append(part)
    return found
