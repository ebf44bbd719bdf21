"""The masked opening's Triton kernels are the reference's, byte for byte: in the interpreter, and on a GPU.

A tile is 2048 elements; sizes here end inside tiles, lanes and bytes. k, m and widths reach their ends.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.covering import every
from tests.support.paths import ROOT
from tests.support.triton import interpret, run

PROGRAM = """
import sys, torch
from hummingbird.kernels.streams import chacha20_key
from hummingbird.kernels.streams import Drawn
from hummingbird.kernels.gpu import shares as gpu
from hummingbird.kernels.reference import shares as reference
from hummingbird.kernels.shares.packing import Packed
from hummingbird.mpc.protocols.masked import MaskedOpening
from hummingbird.prg import Stream

device, sizes = torch.device(sys.argv[1]), [int(word) for word in sys.argv[2].split(",")]
forms = int(sys.argv[3])  # of operands, for each kernel, at most
source, key = Stream(bytes(16)), chacha20_key(bytes(range(32)), device)

def words(n, dtype=torch.int64):
    return source.words(n, dtype=dtype).to(device)

def octets(n):
    return source.bytes(n).to(device)

def left(first, n, dtype=torch.int64):
    return Drawn(key, first, (n,), dtype)

def same(got, expected, *case):
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and one.equal(other), case

WINDOWS = [(6, 3, 16, 9), (20, 12, 16, 36), (1, 0, 0, 1), (64, 58, 62, 64), (8, 5, 1, 8), (33, 25, 3, 60)]
WINDOWS += [(25, 20, 0, 40)]
for n, (k, m, shift, ring) in zip(sizes, WINDOWS, strict=False):
    share, narrow = words(n), torch.int32 if k <= 32 else torch.int64
    for mask in (left(3, n, narrow), words(n, narrow), words(n))[:forms]:
        frame = reference.mask_words(share, mask, shift, k)
        same([gpu.mask_words(share, mask, shift, k)], [frame], "mask_words", n, k)
    frames = [frame, reference.mask_words(share, mask, 0, k), frame]
    same([gpu.open_words(frames, n, k)], [reference.open_words(frames, n, k)], "open_words", n, k)
    table, plane = ((n << k - m) + 7) // 8, (n + 7) // 8
    drawn = left(7, table, torch.uint8), left(1, plane, torch.uint8), left((1 << 31) + 5, plane, torch.uint8)
    stored = octets(table), octets(plane), octets(plane)
    for first, operands in ((False, drawn), (True, stored), (True, (stored[0], *drawn[1:])))[:forms]:
        opened, both = reference.compare_opened(frames, *operands, n, k, m, first)
        same(gpu.compare_opened(frames, *operands, n, k, m, first), (opened, both), "compare", n, k, first)
    packed = [Packed(reference.pack_words(words(n), width), (n,), width) for width in (ring - k, ring, ring - k, ring)]
    kinds = [left(9 * place, n, dtype) for place, dtype in enumerate([narrow, torch.int32, torch.int64] * 2)][:5]
    mixed = [left(2, n, narrow), *packed]
    for first, operands in ((False, kinds), (True, mixed), (True, [words(n) for _ in kinds]))[:forms]:
        expected = reference.lift(opened, both, *operands, k, first)
        same(gpu.lift(opened, both, *operands, k, first), expected, "lift", n, k, first)
        own = share, None, *operands[2:]
        expected = reference.lift(opened, both, *own, k, first)
        same(gpu.lift(opened, both, *own, k, first), expected, "lift of whole shares", n, k, first)

DEALT = [(6, 3, 1, 9, 1), (20, 12, 1, 36, 2), (5, 0, 2, 5, 3), (9, 6, 1, 10, 1), (12, 7, 1, 64, 1), (64, 36, 4, 64, 2)]
DEALT += [(34, 28, 1, 60, 3)]
DEALT.insert(4, (20, 12, 2, 40, 2))  # two tables of four bits
for n, (k, m, tables, ring, parties) in zip(sizes, DEALT, strict=False):
    for whole in (0, 1)[:forms]:
        request = MaskedOpening(n, k, m, tables, ring, whole)
        keys, fields, first = [chacha20_key(bytes([party] * 32), device) for party in range(parties)], [], 1
        for place, item in enumerate([*request.free.values(), *request.derived.values()]):
            of = keys if place < 3 else keys[1:]
            fields.append([Drawn(one, first, item.shape, item.dtype) for one in of])
            first += -(-item.share_bytes // 64)
        given = fields, n, k, m, ring, request.sizes, bool(whole)
        same(gpu.deal_masks(*given), reference.deal_masks(*given), "deal", n, k, m, whole)
print("same")
"""


MUTATE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("hummingbird.kernels.gpu.tiles", sys.argv[4])
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
"""
MUTATIONS = [
    ("mask_words", "for _ in range(10)", "for _ in range(9)"),  # ChaCha18
    ("mask_words", "<< (j * WIDTH - BITS * k)", "<< (j * WIDTH - BITS * k + 1)"),
    ("open_words", "<< (64 - j * WIDTH % 64)", "<< (63 - j * WIDTH % 64)"),
    ("open_words", "mask=byte < size % BYTES", "mask=byte < size % BYTES - 1"),  # the stream's last byte
]
# Streams amid other bytes, from any byte on, and with whole and parts of tiles, lanes and loads.
WIDTHS = """
import sys, torch
from hummingbird.kernels.gpu import shares as gpu
from hummingbird.kernels.gpu.sizes import DEFAULTS
from hummingbird.kernels.reference import shares as reference
from hummingbird.prg import Stream

DEFAULTS["open_words"]["LANES"] = 32
source = Stream(bytes(16))
for width in map(int, sys.argv[1].split(",")):
    ends = [(1, 0), (512, 16)] if width in (1, 20, 21, 38, 63) else []
    for n, start in [(37, 3), (557, 8), *ends]:
        frame = reference.pack_words(source.words(n), width)
        amid = source.bytes(start + len(frame) + 16)
        amid[start : start + len(frame)] = frame
        got = gpu.open_words([amid[start : start + len(frame)]] * 2, n, width)
        assert got.equal(reference.open_words([frame] * 2, n, width)), (width, n)
"""


def test_triton_computes_the_same() -> None:
    """Every kernel with operands in one form, in the smallest window; 13 words of 6 bits end beyond a word of 64."""
    assert interpret(PROGRAM, "cpu", "13", "1").endswith("same\n")


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["9,9", "9,40,9,33,2100", "9,2100,4097,300,15,33,2049"])
def test_triton_computes_the_same_in_every_form(sizes: str) -> None:
    assert interpret(PROGRAM, "cpu", sizes, "3").endswith("same\n")


# Fewer bits than a byte, words that end within bytes and loads, and words of 64 bits.
@pytest.mark.parametrize("widths", ["5,21,64", pytest.param(",".join(map(str, range(65))), marks=pytest.mark.slow)])
def test_words_of_every_width_are_unpacked(widths: str) -> None:
    interpret(WIDTHS, widths)


@pytest.mark.parametrize(("found", "right", "wrong"), every(4, MUTATIONS))
def test_a_wrong_kernel_is_found(found: str, right: str, wrong: str, tmp_path: Path) -> None:
    source = (ROOT / "hummingbird/kernels/gpu/tiles.py").read_text()
    assert source.count(right) == 1
    (tmp_path / "tiles.py").write_text(source.replace(right, wrong))
    with pytest.raises(AssertionError, match=f"AssertionError: \\('{found}'"):
        interpret(MUTATE + PROGRAM, "cpu", "13", "1", str(tmp_path / "tiles.py"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_computes_the_same() -> None:
    assert run(PROGRAM, "cuda", f"9,{(1 << 22) + 77},1000003,{1 << 20},65537,999999,400001", "3").endswith("same\n")
