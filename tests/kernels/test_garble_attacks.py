"""Attacks of the evaluator on garbled tables: each succeeds on a copy without its cure, and fails on ours.

An evaluator has the key S, its labels and the tables, and knows or guesses its own bits. It wants R, which opens every
wire, or the bits that colours stand for.
"""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from hummingbird.kernels.garble import ROWS, Circuit, evaluate, garble
from hummingbird.kernels.reference import garble as reference
from tests.support.chance import chi_square_limit
from tests.support.garbling import KEY, Case, case, copy_without

WIDTH, RING = 6, 32
CIRCUIT = Circuit("relu", WIDTH, RING, "data")


class View:
    """One tile as an evaluator sees it: its labels of all wires, the gates' blocks, the rows."""

    def __init__(self, one: Case, made_by: ModuleType) -> None:
        """made_by: the reference, whose bytes are those of C++, or a copy of it."""
        assert len(one.labels) == 16
        self.hash = made_by.Hash(KEY, one.tile)
        arguments = (one.circuit, KEY, one.tile, one.delta, one.labels, one.shares, one.masks)
        tables = made_by.garble(*arguments)
        if made_by is reference:
            assert torch.equal(tables, garble(*arguments))
        blocks, self.words = made_by._cut(one.circuit, 16, tables)
        self.blocks = list(blocks)
        self.inputs, self.wires, carry = [], [], torch.zeros_like(one.held[:, 0])
        rest = iter(self.blocks)
        for i in range(WIDTH):
            a = one.held[:, i] ^ carry
            self.wires.append(a)
            self.inputs.append((a, carry))
            if i < WIDTH - 1:
                new = carry ^ self.hash(2 * i, a) ^ (a[:, :1] & 1) * next(rest)
                if i > 0:
                    new = new ^ self.hash(2 * i + 1, carry) ^ (carry[:, :1] & 1) * (next(rest) ^ a)
                carry = new


def decrypted(tile: int, number: int, x: Tensor) -> Tensor:
    key = (int.from_bytes(KEY, "little") ^ (tile << 8 | number)).to_bytes(16, "little")
    data = Cipher(algorithms.AES(key), modes.ECB()).decryptor().update(x.contiguous().numpy().tobytes())
    return torch.frombuffer(bytearray(data), dtype=torch.int64).view_as(x)


def hits(candidates: Tensor, delta: Tensor) -> int:
    """How many candidates, int64 (.., 2), are R."""
    return int((candidates == delta).all(-1).sum())


# R from one gate -----------------------------------------------------------------------------------------------------

NO_SIGMA = ("y = sigma(x).contiguous()", "y = x.contiguous()")


def inverted(one: Case, view: View) -> Tensor:
    """T ^ H(A) = H(A ^ R) ^ b R; without sigma, for b = 1, that is AES(A ^ R) ^ A: invert AES. Gate 0's b is s_0."""
    a = view.inputs[0][0]
    return decrypted(one.tile, 0, view.blocks[0] ^ view.hash(0, a) ^ a) ^ a


def test_without_sigma_aes_is_inverted() -> None:
    one = case(CIRCUIT, 16)
    assert hits(inverted(one, View(one, copy_without(NO_SIGMA))), one.delta) == int((one.shares & 1).sum()) > 0
    view = View(one, reference)
    assert hits(inverted(one, view), one.delta) == 0
    undone = reference.sigma(reference.sigma(inverted(one, view)))  # nor where the attacker knows of sigma
    assert hits(undone, one.delta) == hits(undone ^ view.inputs[0][0], one.delta) == 0


def differences(view: View) -> Tensor:
    """U ^ A of every gate's second half, XORed for each two instances of the tile."""
    found = []
    for number, (a, _) in enumerate(view.inputs[1 : WIDTH - 1], 1):
        x = view.blocks[2 * number] ^ a
        found.append(x[:, None] ^ x[None])
    return torch.stack(found)


def test_constants_as_wires_have_equal_pads() -> None:
    """Gate 0 as a whole AND: the evaluator's label of s_0 is 0, so U ^ A = H(0) ^ H(R) ^ p_0 R in a whole tile."""
    one = case(CIRCUIT, 16)
    copy = copy_without(("bit = first if i == 0 else None", "bit = None"))
    own = (one.shares[:, None] >> torch.arange(WIDTH) & 1)[:, :, None] * one.delta
    blocks, _, _ = copy._garble(one.circuit, copy.Hash(KEY, one.tile), one.delta, one.labels, own, one.shares[:, None])
    x = blocks[1] ^ one.held[:, 0]
    ones = int((one.others & 1).sum())
    assert hits(x[:, None] ^ x[None], one.delta) == 2 * ones * (16 - ones) > 0
    assert hits(differences(View(one, reference)), one.delta) == 0


@pytest.mark.parametrize("tiles_apart", [0, 1])
def test_a_slot_garbled_twice_gives_the_offset(tiles_apart: int) -> None:
    """T ^ T' = R where s_0 has changed, under one tile number; another one is the cure."""
    one = case(CIRCUIT, 16)
    other = Case(
        one.circuit, one.delta, one.labels, one.own, one.shares ^ 1, one.others, one.masks, one.tile + tiles_apart
    )
    found = View(one, reference).blocks[0] ^ View(other, reference).blocks[0]
    assert hits(found, one.delta) == (0 if tiles_apart else 16)


# Bits from the rows --------------------------------------------------------------------------------------------------


def rows(view: View) -> Tensor:
    """Rows of each wire but the first, for the colours (1, 0), (0, 1), (1, 1), as numbers: int64 (wires, 3, 16)."""
    return (view.words[: 3 * (WIDTH - 1)].view(-1, 3, 16) << 32) >> 32


def true_bits(one: Case) -> tuple[Tensor, Tensor]:
    """x_i for i < w - 1, (w - 1, 16), and b, (16,)."""
    x = one.shares + one.others
    return x >> torch.arange(WIDTH - 1)[:, None] & 1, 1 - (x >> WIDTH - 1 & 1)


def equal_pads(view: View) -> Tensor:
    """Pads of X ^ B: those of colours (0, 0) and (1, 1) are equal, so row (1, 1) is a difference of two values."""
    return rows(view)[:, 2]


def test_pads_of_a_plain_sum_are_two_and_two_equal() -> None:
    """Row (1, 1) is 2^i where both labels of colour 1 are of 1, -2^i where both are of 0, else 0."""
    one = case(CIRCUIT, 16)
    copy = copy_without(("block ^ sigma(positive ^ b * delta)", "block ^ positive ^ b * delta"))
    view, weights = View(one, copy), 1 << torch.arange(WIDTH - 1)[:, None]
    shown = equal_pads(view) // weights
    assert torch.equal(shown * weights, equal_pads(view)) and int(shown.abs().max()) == 1
    x, b = true_bits(one)
    seen_x = torch.stack([wire[:, 0] & 1 for wire in view.wires[:-1]])
    seen_b = view.wires[-1][:, 0] & 1
    for sign in (1, -1):  # the colour is the bit, or its opposite, for both wires
        known = shown == sign
        assert known.any() and torch.equal((seen_x ^ x)[known], torch.full_like(x[known], int(sign < 0)))
        assert torch.equal((seen_b ^ b).expand_as(x)[known], torch.full_like(x[known], int(sign < 0)))
    assert int((equal_pads(View(one, reference)).abs() <= 1 << WIDTH).sum()) == 0


def four(view: View) -> Tensor:
    """Row (1, 1) - row (1, 0) - row (0, 1) + row (0, 0), where pads cancel that are one for X plus one for B."""
    return (rows(view)[:, 2] - rows(view)[:, 0] - rows(view)[:, 1] << 32) >> 32


def test_pads_of_two_hashes_cancel() -> None:
    """Then the sum of four is 2^i if the labels of equal colours have equal bits, else -2^i: that is x_i ^ b."""
    one = case(CIRCUIT, 16)
    separate = (
        "hash_of(ROWS + i, block)[:, :1])[:, 0]",
        "hash_of(ROWS + i, wires[i] ^ x * delta)[:, :1] - hash_of(ROWS + i, positive ^ b * delta)[:, :1])[:, 0]",
    )
    view = View(one, copy_without(separate))
    weights = 1 << torch.arange(WIDTH - 1)[:, None]
    assert torch.equal(four(view).abs(), weights.expand(-1, 16))
    colours = torch.stack([wire[:, 0] ^ view.wires[-1][:, 0] for wire in view.wires[:-1]]) & 1
    x, b = true_bits(one)
    assert torch.equal(colours ^ (four(view) < 0).long(), x ^ b)
    assert int((four(View(one, reference)).abs() <= 1 << WIDTH).sum()) == 0


# Uniform bytes -------------------------------------------------------------------------------------------------------


ALLOWED = (chi_square_limit(256) - 255) / math.sqrt(2 * 255)


def excess(octets: Tensor) -> float:
    """Chi-square of bytes against the uniform distribution, in standard deviations from its mean."""
    expected = octets.numel() / 256
    chi = float(((octets.long().bincount(minlength=256).double() - expected) ** 2).sum()) / expected
    return (chi - 255) / math.sqrt(2 * 255)


@pytest.mark.parametrize("kind", ["relu", "lift"])
@pytest.mark.parametrize("garbler", ["data", "model"])
def test_tables_and_results_look_uniform(kind: str, garbler: str) -> None:
    """Also for one and the same input, s = 3 and p = 5, with only R, labels and masks drawn."""
    one = case(Circuit(kind, 10, 24, garbler), 20_000, "uniform")
    same = Case(one.circuit, one.delta, one.labels, one.own, one.shares * 0 + 3, one.shares * 0 + 5, one.masks)
    for each in (one, same):
        tables, _ = each.garbled()
        results = each.evaluated(tables).view(torch.uint8).view(-1, 8)[:, :3]
        for place in range(3):
            assert abs(excess(results[:, place])) < ALLOWED
        assert abs(excess(tables)) < ALLOWED
        gates = tables[: 16 * 16 * one.circuit.blocks]
        assert abs(excess(gates)) < ALLOWED


def test_the_test_of_uniform_bytes_can_fail() -> None:
    one = case(Circuit("relu", 10, 24, "data"), 20_000, "uniform")
    unmasked = garble(one.circuit, KEY, one.tile, one.delta, one.labels, one.shares, one.masks * 0)
    results = evaluate(one.circuit, KEY, one.tile, one.held, unmasked)
    assert excess(results.view(torch.uint8).view(-1, 8)[:, 2]) > 100
    assert excess(one.shares.to(torch.uint8) & 254) > 100


def test_numbers_of_hashes_are_used_once() -> None:
    """For the widest circuit: each number of a tile is asked for by one gate's half or one row, and stays below 256."""

    class Counting(reference.Hash):
        def __call__(self, number: int, x: Tensor) -> Tensor:
            asked.append(number)
            return super().__call__(number, x)

    one = case(Circuit("relu", 24, 32, "model"), 16)
    asked: list[int] = []
    hash_of = Counting(KEY, one.tile)
    blocks, words, _ = reference._garble(one.circuit, hash_of, one.delta, one.labels, one.own, None)
    assert {number: asked.count(number) for number in asked} == {number: 2 for number in range(46)} | {
        ROWS + i: 4 for i in range(23)
    }
    assert len(blocks) == 46 and len(words) == 69
