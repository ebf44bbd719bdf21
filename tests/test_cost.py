"""The closed forms: the published numbers, CrypTen's, and properties every price has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hummingbird import cost
from hummingbird.cost import FREE, HEADER_BYTES, Cost
from hummingbird.mpc.layers.comparing import CostTensor
from hummingbird.mpc.protocols import beaver, gmw
from hummingbird.mpc.protocols.truncation import select_price, truncate_price
from hummingbird.ring import SCALE


def maximum(n: int, length: int, relu: Callable[[int], Cost]) -> Cost:
    """The price of `Arithmetic.maximum` over `length` places for n results, with comparisons at this price."""
    comparison: Any = SimpleNamespace(
        cost=lambda count, *_: relu(count), breadth=lambda count, *_: count, undecided=0.0
    )
    prices = CostTensor(comparison, SCALE, 2)
    prices.maximum(torch.empty(length, n, device="meta"))
    return prices.total


PROTOCOLS = {
    "relu": lambda n, w, parties: gmw.relu_price(n, w, 16, parties),
    "drelu": lambda n, w, parties: gmw.drelu_price(n, w, parties),
    "maximum": lambda n, w, parties: maximum(n, 3, lambda count: gmw.relu_price(count, w, 0, parties)),
    "select": lambda n, w, parties: select_price(n, 16, parties),
    "truncate": lambda n, w, parties: truncate_price(n, parties),
    "product": lambda n, w, parties: beaver.product_price(n, n, n, parties),
    "crypten_relu": lambda n, w, parties: cost.crypten_relu(n, parties),
    "crypten_mul": lambda n, w, parties: cost.crypten_mul(n, parties),
    "crypten_square": lambda n, w, parties: cost.crypten_square(n, parties),
}


def without_headers(price: Cost, parties: int) -> int:
    """Payload bits: every round sends one frame to every other party."""
    return price.bits - price.rounds * (parties - 1) * 8 * HEADER_BYTES


def published(w: int) -> int:
    """HummingBird, section 4, written out: 2w (opening) + 4w ceil(log2 w) (adder) + 1 (B2A) + 128 (product)."""
    return 2 * w + 4 * w * math.ceil(math.log2(w)) + 1 + 128


def test_published_numbers() -> None:
    assert (gmw.published_bits(8), gmw.published_bits(6)) == (241, 213)
    assert all(gmw.published_bits(w) == published(w) for w in range(2, 65))


@pytest.mark.parametrize("n", [8, 64, 1000])
def test_crypten_is_1856_bits_and_9_rounds_per_relu_apart_from_headers(n: int) -> None:
    price = cost.crypten_relu(n, 2)
    assert price.rounds == 9
    assert without_headers(price, 2) == 1856 * n


@pytest.mark.parametrize("n", [8, 1000, 10**6])
def test_no_window_costs_more_than_published(n: int) -> None:
    for w in range(2, 65):
        price = gmw.relu_price(n, w, 16, 2)
        assert without_headers(price, 2) <= n * published(w), w
        assert price.rounds <= math.ceil(math.log2(w)) + 3, w
    assert without_headers(gmw.relu_price(n, 8, 16, 2), 2) == 87 * n < 241 * n


def test_a_two_party_relu_written_out() -> None:
    """w = 8: 7 bits for the generate bits, a tree over 7 leaves (3 pairs: 8 bits; 2 of 4: 5; 1 of 2: 2), 65 to
    select.
    """
    n = 80
    per_round = [7, 3 * 3 - 1, 3 * 2 - 1, 3 * 1 - 1]
    expected = sum(8 * (HEADER_BYTES + bits * n // 8) for bits in [*per_round, 65])
    assert gmw.relu_price(n, 8, 0, 2) == Cost(5, expected, gmw.relu_price(n, 8, 0, 2).offline_bits)


@pytest.mark.parametrize("leaves", range(1, 65))
def test_the_carry_tree_merges_all_leaves_in_logarithmic_rounds(leaves: int) -> None:
    price = gmw.carry_price(8, leaves, 2)
    assert price.rounds == (leaves - 1).bit_length()
    # leaves - 1 nodes of three bits, one less per level.
    assert without_headers(price, 2) == 8 * (3 * (leaves - 1) - price.rounds)


@pytest.mark.parametrize("w", [1, 2, 3, 8, 17, 64])
def test_carry_save_adders_bring_n_addends_down_to_two(w: int) -> None:
    for parties in range(3, 12):
        rounds, addends = 0, parties
        while addends > 2:
            addends, rounds = addends - addends // 3, rounds + 1
        tree = (w - 2).bit_length() if w > 1 else 0
        assert gmw.drelu_price(100, w, parties).rounds == (rounds + 1 + tree if w > 1 else 0)


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("parties", [2, pytest.param(3, marks=pytest.mark.slow), 5])
def test_wider_windows_and_more_elements_never_cost_less(name: str, parties: int) -> None:
    price = PROTOCOLS[name]
    for n in (1, 7, 8, 9, 1000):
        row = [price(n, w, parties) for w in range(1, 65)]
        for narrow, wide in itertools.pairwise(row):
            assert (
                narrow.bits <= wide.bits and narrow.rounds <= wide.rounds and narrow.offline_bits <= wide.offline_bits
            )
    sizes = [price(n, 8, parties) for n in range(1, 40)]
    for few, many in itertools.pairwise(sizes):
        assert few.bits <= many.bits and few.rounds == many.rounds and few.offline_bits <= many.offline_bits


@pytest.mark.parametrize("name", PROTOCOLS)
def test_batches_save_headers_only(name: str) -> None:
    """For multiples of eight elements, twice the elements are twice the payload, in the same rounds."""
    price = PROTOCOLS[name]
    for parties in (2, 3):
        one, two = price(80, 8, parties), price(160, 8, parties)
        assert without_headers(two, parties) == 2 * without_headers(one, parties)
        assert two.rounds == one.rounds and two.offline_bits == 2 * one.offline_bits


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_party_alone_sends_nothing(name: str) -> None:
    price = PROTOCOLS[name](1000, 8, 1)
    assert (price.rounds, price.bits) == (0, 0)


@pytest.mark.parametrize("parties", [1, 2, 3])
def test_crypten_has_the_products_and_truncations_of_the_protocols(parties: int) -> None:
    for n in (1, 8, 1000):
        product, cut = beaver.product_price(n, n, n, parties), truncate_price(n, parties)
        assert cost.crypten_mul(n, parties) == product + cut
        assert cost.crypten_square(n, parties) == beaver.square_price(n, parties) + cut
        assert cost.crypten_relu(n, parties) == cost.crypten_ltz(n, parties) + product


def test_no_bits_no_cost() -> None:
    assert gmw.relu_price(1000, 0, 16, 2) == FREE and maximum(1000, 9, lambda n: gmw.relu_price(n, 0, 0, 3)) == FREE
    assert gmw.drelu_price(1000, 1, 2) == FREE  # the top bit of the shares' xor is the sign: local
    assert maximum(1000, 1, lambda n: gmw.relu_price(n, 8, 0, 2)) == FREE


def test_a_maximum_takes_one_comparison_less_than_its_elements() -> None:
    for length in range(1, 20):
        price = maximum(8, length, lambda n: gmw.relu_price(n, 8, 0, 2))
        levels = (length - 1).bit_length()
        assert without_headers(price, 2) == (length - 1) * without_headers(gmw.relu_price(8, 8, 0, 2), 2)
        assert price.rounds == levels * gmw.relu_price(8, 8, 0, 2).rounds


def test_costs_add_and_multiply() -> None:
    a, b = Cost(1, 20, 300), Cost(4, 50, 6)
    assert a + b == b + a == Cost(5, 70, 306)
    assert a + FREE == a and a * 3 == a + a + a and a * 0 == FREE
    with pytest.raises(AttributeError):
        a.bits = 3  # type: ignore[misc]


def test_seconds_are_latency_and_bandwidth() -> None:
    price = Cost(10, 2_000_000, 999)
    assert price.seconds(1e6, 0.02) == pytest.approx(10 * 0.01 + 2.0)
    assert price.seconds(1e30, 0.0) == pytest.approx(0.0)
    assert (price + price).seconds(1e6, 0.02) == pytest.approx(2 * price.seconds(1e6, 0.02))


def test_single_messages() -> None:
    assert cost.opening(3, 10, 7) == Cost(1, 8 * 2 * (HEADER_BYTES + 10), 7)
    assert cost.opening(1, 10, 7) == Cost(0, 0, 7)
    assert cost.to_one(3, 10, True) == Cost(1, 8 * (HEADER_BYTES + 10)) and cost.to_one(3, 10, False) == Cost(1, 0)
    assert cost.to_one(1, 10, True) == FREE
    assert cost.sharing(3, True) == Cost(1, 8 * 2 * (HEADER_BYTES + 72)) and cost.sharing(3, False) == Cost(1, 0)
    assert [cost.packed(n) for n in (0, 1, 8, 9, 16)] == [0, 1, 1, 2, 2]
