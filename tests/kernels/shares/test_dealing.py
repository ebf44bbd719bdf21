"""Corrections of masked openings by one pass in C++: the definition's, byte for byte, for every number of parties."""

from __future__ import annotations

import ctypes
import itertools

import pytest
import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.cpu import library
from hummingbird.kernels.reference import shares
from hummingbird.kernels.shares.opening import deal_masks
from hummingbird.kernels.shares.packing import plain
from hummingbird.kernels.streams import Drawn
from hummingbird.mpc.correlations.request import ReceiverTurn, corrections, expand, received
from hummingbird.mpc.protocols.masked import MaskedOpening
from hummingbird.prg import Stream, derive
from tests.support.covering import covering

RUN = 512  # elements that the C++ does at a time (csrc/words.h)
SIZES = [0, 1, 7, 8, RUN - 1, RUN, RUN + 1, 2 * RUN + 9]
# k, m, tables and ring: one and several tables, of 1 to 8 bits; nothing beyond k; 64 bits of everything.
WINDOWS = [(20, 12, 2, 36), (20, 12, 1, 64), (20, 13, 1, 20), (64, 56, 8, 64), (24, 0, 6, 40), (2, 0, 1, 30)]
WHOLE = [(*window, 1) for window in WINDOWS]


def fields(request: MaskedOpening, seeds: list[bytes]) -> list[list[Drawn]]:
    """All parties' shares of what is free, and all but party 0's of the rest, not drawn yet."""
    streams = [Stream(seed) for seed in seeds]
    free = [[item.leave(stream) for stream in streams] for item in request.free.values()]
    return free + [[item.leave(stream) for stream in streams[1:]] for item in request.derived.values()]


def seeds(parties: int) -> list[bytes]:
    return [derive(bytes(16), "dealing", party) for party in range(parties)]


def dealt(request: MaskedOpening, left: list[list[Drawn]], how: object) -> list[Tensor]:
    assert callable(how)
    found: list[Tensor] = how(
        left, request.count, request.k, request.m, request.ring, request.sizes, bool(request.whole)
    )
    return found


@covering("n, parties", SIZES, [1, 2, 3])
def test_one_pass_is_the_definition(isa: str, n: int, parties: int) -> None:
    for window in WINDOWS + WHOLE:
        request = MaskedOpening(n, *window)
        left = fields(request, seeds(parties))
        got, expected = (dealt(request, left, how) for how in (deal_masks, shares.deal_masks))
        assert all(one.equal(other) for one, other in zip(got, expected, strict=True)), window


def test_many_threads_deal_what_one_does() -> None:
    """Enough elements for the kernel to start threads."""
    request, before = MaskedOpening(100_000, 20, 12, 2, 36), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(corrections(request, ReceiverTurn(1, 5), seeds(2)))
    finally:
        torch.set_num_threads(before)
    assert all(one.equal(other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("whole", [0, 1])
@pytest.mark.parametrize("cipher", [16, 32])
@pytest.mark.parametrize(("parties", "receiver"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_shares_stand_for_what_the_masks_decide(parties: int, receiver: int, cipher: int, whole: int) -> None:
    """Seeds that pack, and those that draw whole words, whoever is sent the corrections: shares of all parties add up
    to r_b lambda.
    """
    n, k, ring = 1000, 20, 36
    request, turn = MaskedOpening(n, k, 12, 2, ring, whole), ReceiverTurn(receiver, 3)
    mine = [derive(bytes(16), "shares", party, size=cipher) for party in range(parties)]
    drawn = [expand(request, turn, seed, rank) for rank, seed in enumerate(mine)]
    drawn[turn.receiver] |= received(request, corrections(request, turn, mine))
    found = [request.shares(**words) for words in drawn]

    def total(name: str, bits: int) -> Tensor:
        parts = [plain(getattr(share, name)).long() & ((1 << bits) - 1) for share in found]
        return torch.stack(parts).sum(0)

    summands, low = total("mask", k), (1 << ring) - 1
    if whole:
        assert all(share.carry is None for share in found)
    else:
        assert (total("carry", ring) & ((1 << ring - k) - 1)).equal(summands >> k)
    choice = total("choice", ring) & low
    assert set(choice.tolist()) == {0, 1}
    assert (total("product", ring) & low).equal(choice * (summands & ((1 << k) - 1)))


def test_nothing_is_written_behind_the_end(isa: str) -> None:
    for n, whole in itertools.product((1, 9, RUN, RUN + 3), (False, True)):
        k, m, ring, sizes = 20, 12, 36, [4, 4]
        widths = [ring - k, ring, ring - k, ring, 16, 16]
        outs = [torch.full(((n * bits + 7) // 8 + 64,), 0xA5, dtype=torch.uint8) for bits in widths]
        keys, firsts = torch.zeros(2, 4, dtype=torch.int32), (ctypes.c_int64 * 9)(*range(0, 9000, 1000))
        places = [None, *outs[1:]] if whole else outs
        pointers = (ctypes.c_void_p * 6)(*[None if out is None else out.data_ptr() for out in places])
        library.handle().hb_deal_masks(
            keys.data_ptr(), 2, n, k, m, ring, 2, (ctypes.c_int * 2)(*sizes), firsts, pointers, 1
        )
        assert all(bool((out[-64:] == 0xA5).all()) for out in outs)
        assert [bool((out == 0xA5).all()) for out in outs] == [whole, *[False] * 5]


def test_words_that_are_drawn_otherwise_are_refused() -> None:
    request = MaskedOpening(9, 20, 12, 2, 36)
    left = fields(request, seeds(2))
    for place, wrong in ((0, left[0][0]), (3, left[4][0]), (1, left[2][0])):
        mixed = [list(shares) for shares in left]
        mixed[place][-1] = wrong
        with pytest.raises(InputError, match="expected"):
            dealt(request, mixed, deal_masks)
