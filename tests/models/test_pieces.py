"""Pieces of words: every text comes back, the most frequent neighbours are joined first, tables and errors."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from models.pieces import BYTES, LONGEST, Pieces
from tests.conftest import seed_of

COUNTS = {" the": 9, " then": 4, " other": 3, "\n": 2, " thé": 1}


def _plainly(counts: dict[str, int], size: int) -> list[bytes]:
    """Learn pieces as Sennrich et al. write it: count all neighbours anew for each piece."""
    words = {tuple(bytes([value]) for value in word.encode()): count for word, count in counts.items()}
    joined: list[bytes] = []
    while len(joined) < size - BYTES:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, count in words.items():
            for a, b in zip(word, word[1:], strict=False):
                if len(a + b) <= LONGEST:
                    pairs[a, b] += count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        if best[0] + best[1] not in joined:
            joined.append(best[0] + best[1])
        later = {}
        for word, count in words.items():
            parts: list[bytes] = []
            for part in word:
                if parts and (parts[-1], part) == best:
                    parts[-1] += part
                else:
                    parts.append(part)
            later[tuple(parts)] = count
        words = later
    return joined


def test_the_pieces_are_those_of_the_plain_algorithm() -> None:
    draw = random.Random(seed_of("pieces"))
    for _ in range(20):
        counts = {" " + "".join(draw.choices("aabcé", k=draw.randint(1, 9))): draw.randint(1, 20) for _ in range(30)}
        size = BYTES + draw.randint(1, 60)
        assert Pieces.learn(counts, size).all[BYTES:] == _plainly(counts, size)


def test_every_text_comes_back_from_its_numbers() -> None:
    pieces, draw = Pieces.learn(COUNTS, 270), random.Random(seed_of("texts"))
    for _ in range(50):
        text = "".join(draw.choices([" the", " then", "é", " ", "\n", "\t", "日本", "x", "  ", " other"], k=30))
        numbers = pieces.numbers(text)
        assert pieces.text(numbers) == text and max(numbers) < len(pieces.all)
        assert pieces.numbers(" the then" + text)[:2] == [*pieces.numbers(" the"), *pieces.numbers(" then")][:2]
    assert pieces.numbers("") == [] and pieces.text([0xC3]) == "\ufffd"


def test_the_docstring_s_example() -> None:
    pieces = Pieces.learn({" the": 9, " then": 4, "\n": 2}, 259)
    assert pieces.all[BYTES:] == [b" t", b" th", b" the"]
    assert pieces.numbers(" the") == [258] and pieces.text([258, 110]) == " then"


def test_a_table_holds_the_pieces() -> None:
    pieces = Pieces.learn(COUNTS, 262)
    table = pieces.table()
    assert table.shape == (6, LONGEST) and table.dtype == torch.uint8
    assert Pieces.of_table(table).all == pieces.all and Pieces([]).table().shape == (0, LONGEST)


@pytest.mark.parametrize("joined", [[b"a"], [b"x" * (LONGEST + 1)], [b"a\0b"], [b"ab", b"ab"]])
def test_wrong_pieces_are_refused(joined: list[bytes]) -> None:
    with pytest.raises(ValueError, match="hint: joined pieces have 2 to 16 bytes"):
        Pieces(joined)


def test_words_without_enough_neighbours_give_fewer_pieces() -> None:
    assert len(Pieces.learn({" a": 1, "b": 2}, 300).all) == BYTES + 1
