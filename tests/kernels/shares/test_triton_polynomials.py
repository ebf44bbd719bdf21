"""Triton's kernels for tables of polynomials are the reference's, integer for integer: interpreted, and on a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton import interpret, run

PROGRAM = """
import sys, torch
from hummingbird.kernels.gpu import polynomials as gpu
from hummingbird.kernels.gpu.sizes import DEFAULTS
from hummingbird.kernels.reference import shares as reference
from hummingbird.kernels.shares.packing import Packed
from hummingbird.kernels.streams import Drawn, chacha20_key
from hummingbird.prg import Stream

device, sizes = torch.device(sys.argv[1]), [int(word) for word in sys.argv[2].split(",")]
forms = int(sys.argv[3])  # numbers of other parties
if device.type == "cpu":  # the interpreter computes whole tiles
    DEFAULTS.update(dict.fromkeys(("evaluate_opened", "deal_polynomials"), {"LANES": 32}))
source = Stream(bytes(16))
keys = [chacha20_key(bytes([party] * 32), device) for party in range(3)]

def words(n, dtype=torch.int64):
    return source.words(n, dtype=dtype).to(device)

def left(key, first, n, width):
    return Drawn(key, first, (n,), torch.int32 if width <= 32 else torch.int64)

def same(got, expected, *case):
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and one.equal(other), case

TABLES = [(2, 5, [24, 36]), (4, 12, [24, 36, 48, 60]), (1, 0, [1, 64]), (7, 9, [24, 33])]
TABLES += [(3, 20, [22, 42, 62]), (8, 10, [7, 17, 27, 37])]
for n, (w, m, widths) in zip(sizes, TABLES, strict=False):
    degree, opened, count = len(widths) - 1, words(n), n << w
    packed = [Packed(reference.pack_words(words(count), width), (count,), width) for width in widths]
    drawn = [left(keys[0], 3 + (5 << power), count, width) for power, width in enumerate(widths)]
    stored = [words(count, torch.int32 if power % 2 else torch.int64) for power in range(degree + 1)]
    for given in (packed, drawn, stored, [packed[0], *stored[1:-1], drawn[-1]]):
        case = opened, given, m, w, 2 + degree * m
        same([gpu.evaluate_opened(*case)], [reference.evaluate_opened(*case)], "look up", n, w, type(given[0]))
    pieces, mask = source.words(1 << w, degree + 1) >> 18, words(n)
    for others in (keys[1:2], keys, [])[:forms]:
        shares = [[left(key, 9 + (7 << power), count, width) for key in others] for power, width in enumerate(widths)]
        case = pieces, mask, shares, m, widths
        same(gpu.deal_polynomials(*case), reference.deal_polynomials(*case), "deal", n, w, len(others))
print("same")
"""


def test_triton_computes_the_same() -> None:
    assert interpret(PROGRAM, "cpu", "9", "1").endswith("same\n")


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["9,9,2049,17,33,9", "40,300,5,9,301,1"])
def test_triton_computes_the_same_with_every_table(sizes: str) -> None:
    assert interpret(PROGRAM, "cpu", sizes, "3").endswith("same\n")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_computes_the_same() -> None:
    assert run(PROGRAM, "cuda", f"{(1 << 18) + 77},1000003,{1 << 14},65537,9999,1003", "3").endswith("same\n")
