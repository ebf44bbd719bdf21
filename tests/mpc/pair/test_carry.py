"""Carries of two random numbers: every pair of small numbers, and the rounds, bits and transfers of every digit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hummingbird.mpc.pair import carry
from hummingbird.mpc.pair.carry import Carries
from hummingbird.mpc.pair.lockstep import Rounds
from hummingbird.mpc.pair.transfers import ReceivedRot
from tests.support.pairs import Seen, bits_of, sides, stepwise

# Digits of the masks, with every size first, in the middle and last; carries into each.
SIZES = [[int(size) for size in text] for text in "1 2 3 11 111 31 32 22 13 33 3311 3331 113 4 34".split()]
N = 1 << 14


def added(sizes: list[int], n: int = N) -> Seen:
    both = sides(n, carry.price(sizes).main)
    seen = stepwise([carry.add(side, sizes) for side in both])
    assert all(side.done for side in both)
    return seen


def numbers(seen: Seen) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = (sum(bits_of(bit) << j for j, bit in enumerate(found.bits)) for found in seen.results)
    return a, b


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_pair_of_numbers(sizes: list[int]) -> None:
    seen, width = added(sizes), sum(sizes)
    first, second = seen.results
    a, b = numbers(seen)
    assert torch.equal(bits_of(first.carry ^ second.carry), a + b >> width)
    for place, (_, share) in first.into.items():
        low = (1 << place) - 1
        assert torch.equal(bits_of(share ^ second.into[place][1]), (a & low) + (b & low) >> place)
    if width <= 4:
        assert torch.bincount(a << width | b, minlength=1 << 2 * width).min() > 0


def test_wide_numbers() -> None:
    sizes = carry.digits(3, 16, 62)
    assert sizes == [3] * 5 + [1] + [3] * 15 + [1]
    seen = added(sizes, 1 << 10)
    first, second = seen.results
    a, b = numbers(seen)
    assert torch.equal(bits_of(first.carry ^ second.carry), a + b >> 62 & 1)
    assert list(first.into)[4] == 15 and 16 in first.into


def test_the_digits() -> None:
    assert carry.digits(3, 0) == [] and carry.digits(3, 12) == [3] * 4 and carry.digits(2, 3, 7) == [2, 1, 2, 2]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_what_is_sent_is_what_is_priced(sizes: list[int]) -> None:
    price, seen = carry.price(sizes), added(sizes, 160)
    sent, returned = (sum(8 * m.numel() for m in messages) for messages in seen.sent)
    assert (sent, returned) == (160 * price.sent, 160 * price.returned)
    assert len(seen.sent[0]) == len(seen.sent[1]) == price.rounds


def test_the_published_digits_of_three() -> None:
    """m + ceil(m/3) - 1 transfers and 16 m/3 - 9 bits, for m a multiple of 3."""
    for m in (3, 6, 12, 63):
        price = carry.price(carry.digits(3, m))
        assert price.transfers == m + m // 3 - 1 and price.bits == 16 * m // 3 - 9


def test_the_size_of_digits_follows_the_price_of_a_transfer() -> None:
    assert [carry.best_digit(bits) for bits in (0.0, 0.28, 3.9, 4.1, 7.9, 8.1, 31.0)] == [1, 1, 1, 2, 2, 3, 3]
    weights = {size: carry.price([3, *[size] * (60 // size)]).weight(31) for size in range(1, 6)}
    assert min(weights.values()) == weights[carry.DIGIT]


def test_a_carry_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail."""
    table = carry._table
    monkeypatch.setattr(carry, "_table", lambda own, share: table(own, None if share is None else share & 0))
    seen = added([3, 3])
    first, second = (found for found in seen.results if isinstance(found, Carries))
    a, b = numbers(seen)
    assert not torch.equal(bits_of(first.carry ^ second.carry), a + b >> 6)


def test_a_choice_that_is_sent_bare_shows_the_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack copy sends the share itself, not its difference to a random choice: the sender adds its own share."""

    def shown(seen: Seen) -> bool:
        """Whether the receiver's second message with the sender's share is the carry into the second digit."""
        first, second = seen.results
        (message,) = (m for m in seen.messages[1] if m.numel())
        return torch.equal(message ^ first.into[3][1], first.into[3][1] ^ second.into[3][1])

    def bare(self: ReceivedRot, wanted: torch.Tensor) -> Rounds[ReceivedRot]:
        yield [wanted], []
        return replace(self, choice=wanted)

    assert not shown(added([3, 3]))
    monkeypatch.setattr(ReceivedRot, "turned", bare)
    assert shown(added([3, 3]))
