"""How two parties make the material of one kind of request: records; and random bits times shared numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.pair.encrypted import PairKeys
from hummingbird.mpc.pair.lockstep import Rounds, together
from hummingbird.mpc.pair.price import BACK, ROT, TURNED, TURNED_BACK, PairPrice, beside, halves, returned, words
from hummingbird.mpc.pair.transfers import Rot, Side

Kind = TypeVar("Kind", bound=Request[Any])


@dataclass(frozen=True)
class Part:
    """Values for which one party sends the main transfers.

    n: how many, a multiple of 16. sender: the party. price: for each value.
    """

    n: int
    sender: int
    price: PairPrice


def halved(values: int, price: PairPrice) -> list[Part]:
    """Divide values into two parts: party 0 sends for the first, party 1 for the second; none for no values."""
    return [Part(n, sender, price) for sender, n in enumerate(halves(values)) if n]


class MaterialRecipe(ABC, Generic[Kind]):
    """How two parties make the material of one kind of request, and its exact price.

    kind: the class of the requests. refuses: says why two parties cannot make a request of this kind; "" if they can.
    instead: the hint for a request that is refused.
    """

    kind: type[Kind]
    refuses: Callable[[Kind], str]
    instead: str

    @abstractmethod
    def parts(self, request: Kind, transfer_bits: float) -> list[Part]:
        """Return the transfers of a request. transfer_bits: the price of a transfer in bits."""

    def total(self, request: Kind, transfer_bits: float) -> PairPrice:
        """Return the price of a whole request, by default that of its parts: main transfers are party 0's."""
        parts = self.parts(request, transfer_bits)
        return beside(*((part.price.turned if part.sender else part.price).times(part.n) for part in parts))

    def primes(self, request: Kind) -> int:
        """Return modulo how many primes a request's encrypted products take keys; 0 for none."""
        return 0

    @abstractmethod
    def made(
        self,
        request: Kind,
        sides: Sequence[Side],
        keys: PairKeys | None,
        rank: int,
        transfer_bits: float,
        weights: Mapping[int, Tensor],
    ) -> Rounds[dict[str, Tensor]]:
        """Make a party's shares of a request's fields, as tensors whose first elements are those of the fields.

        sides: for each of the `parts` this party's transfers. keys: modulo at least `primes`. rank: this party's.
        weights: this party's private weights, by number.
        """


@dataclass(frozen=True)
class PairRecipe(MaterialRecipe[Kind]):
    """A recipe by which the same is done for each value of a request; party 1 sends for the second half.

    values: how many values a request has.
    price: the price for one value of a request, if a transfer costs so many bits.
    make: makes a party's shares of the fields of a request for the values of a `Side`, by name: of a field "ring" int64
        (..., n), of bits uint8 (..., n/8), of a step table uint8 (n 2^c / 8,).
    finish: turns these, joined for all values, into tensors whose first elements are those of the fields.
    """

    kind: type[Kind]
    values: Callable[[Kind], int]
    price: Callable[[Kind, float], PairPrice]
    make: Callable[[Kind, Side, float], Rounds[dict[str, Tensor]]]
    finish: Callable[[Kind, dict[str, Tensor]], dict[str, Tensor]] = lambda request, fields: fields
    refuses: Callable[[Kind], str] = lambda request: ""
    instead: str = ""

    def parts(self, request: Kind, transfer_bits: float) -> list[Part]:
        return halved(self.values(request), self.price(request, transfer_bits))

    def made(
        self,
        request: Kind,
        sides: Sequence[Side],
        keys: PairKeys | None,
        rank: int,
        transfer_bits: float,
        weights: Mapping[int, Tensor],
    ) -> Rounds[dict[str, Tensor]]:
        if not sides:
            return {name: torch.zeros(item.shape, dtype=item.dtype) for name, item in request.parts.items()}
        each = yield from together(*(self.make(request, side, transfer_bits) for side in sides))
        return self.finish(request, {name: torch.cat([half[name] for half in each], -1) for name in each[0]})


@dataclass
class RandomBit:
    """A party's shares of a random bit r, and of its products with numbers.

    bit: its xor share, packed uint8 (n/8,). flag: its additive share of r as a number. products: its additive shares of
    r times each number.
    """

    bit: Tensor
    flag: Tensor
    products: list[Tensor]


def random_bit(side: Side, width: int, *numbers: tuple[int, Tensor]) -> Rounds[RandomBit]:
    """Draw a random bit r; return shares of it mod 2^width, and of its products with shared numbers v mod 2^w.

    Both parties' random choices are their bits r^0 and r^1. With shares v = v^0 + v^1,

        r = r^0 + r^1 - 2 r^0 r^1          r v = r^0 v^0 + r^1 (1 - 2 r^0) v^0 + r^1 v^1 + r^0 (1 - 2 r^1) v^1

    numbers: for each v its width w and this party's share, int64 (n,).
    Cost: `random_bit_price`, 1 round.
    """
    rot, back = side.rot(), side.back()
    own = back.own if side.sends else rot.own
    bit = kernels.from_bits(own, side.n)
    flag, products = yield from together(rot.words(width - 1, bit), _products(rot, back, bit, numbers))
    return RandomBit(own, bit - 2 * flag, products)


def _products(rot: Rot, back: Rot, bit: Tensor, numbers: Sequence[tuple[int, Tensor]]) -> Rounds[list[Tensor]]:
    """Return shares of the products of shared numbers with the bit that both receivers' choices have as their xor.

    bit: this party's choice as a number, int64 (n,). numbers: as for `random_bit`.
    """
    signed = [(w, (1 - 2 * bit) * share) for w, share in numbers]
    both = yield from together(
        *(rot.words(w, share) for w, share in signed), *(back.words(w, share) for w, share in signed)
    )
    main, other = both[: len(numbers)], both[len(numbers) :]
    return [bit * v + one + two for (_, v), one, two in zip(numbers, main, other, strict=True)]


def times_bit(side: Side, bit: Tensor, *numbers: tuple[int, Tensor]) -> Rounds[list[Tensor]]:
    """Return shares of the products of shared numbers with a shared bit.

    bit: this party's xor share, packed uint8 (n/8,). numbers: as for `random_bit`. Cost: `times_bit_price`, 2 rounds.
    """
    rot, back = yield from together(side.rot().turned(bit), side.back().turned(bit))
    return (yield from _products(rot, back, kernels.from_bits(bit, side.n), numbers))


def times_bit_price(*numbers: int) -> PairPrice:
    """Return the price of `times_bit`: 2 transfers and 2 bits, and 2 w bits for each number of w bits."""
    return (TURNED | TURNED_BACK) + (words(*numbers) | returned(*numbers))


def random_bit_price(width: int, *numbers: int) -> PairPrice:
    """Return the price of `random_bit`: 2 transfers, and width - 1 bits and 2 w for each number."""
    return ROT | BACK | words(width - 1, *numbers) | returned(*numbers)


def flag(side: Side, width: int) -> Rounds[RandomBit]:
    """Draw a random bit without products; return shares of it, additive ones mod 2^width.

    Cost: `flag_price`: a transfer and width - 2 bits, 1 round.
    """
    rot = side.rot()
    product = yield from rot.own_words(width - 1)
    return RandomBit(rot.own, kernels.from_bits(rot.own, side.n) - 2 * product, [])


def flag_price(width: int) -> PairPrice:
    """Return the price of `flag`."""
    return ROT | words(width - 2)
