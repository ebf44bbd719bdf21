"""Nothing that a party receives depends on the other party's fields: bits are uniform, also beside each of these."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird.kernels import unpack_words
from hummingbird.mpc.correlations.provider import SharedBit, Wraps
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.pair.material import RECIPES
from hummingbird.mpc.pair.transfers import SentRot
from hummingbird.mpc.protocols.beaver import SquarePair, Triple
from hummingbird.mpc.protocols.lift import Lifting
from hummingbird.mpc.protocols.lifted_product import LiftedProduct
from hummingbird.mpc.protocols.masked import MaskedOpening
from hummingbird.mpc.protocols.rows import LiftedSquares
from hummingbird.mpc.protocols.thresholds import MaskedThresholds
from hummingbird.mpc.protocols.truncation import Selection
from tests.support.chance import DEVIATIONS
from tests.support.pairs import Seen, bits_of, sides, stepwise

N = 1 << 13
REQUESTS: list[tuple[Request[Any], float]] = [
    (MaskedOpening(N, 20, 12, 2, 36), 31.0),
    (MaskedOpening(N, 20, 12, 2, 36), 0.28),
    (MaskedOpening(N, 3, 0, 1, 5), 1000.0),
    (MaskedThresholds(N, 2, 12, 8, 1, 20, 1), 31.0),
    (Lifting(N, 7, 16), 31.0),
    (Selection(N, 3), 31.0),
    (SharedBit((N,)), 31.0),
    (Wraps((N,)), 31.0),
    (SquarePair((N,), bits=9), 31.0),
    (Triple((N,), (N,), "mul", {}, bits=9), 31.0),
    (LiftedSquares((N, 1), 5, 12), 31.0),
    (LiftedProduct((N,), (N,), value=5, factor=4, product=12), 31.0),
    (LiftedProduct((N,), (N,), value=6, factor=6, product=6), 31.0),
    (LiftedProduct((N,), (N,), value=6, factor=6, product=6, cut=4), 31.0),
]


def seen_by_both(request: Request[Any], transfer_bits: float) -> Seen:
    recipe = RECIPES[request.kind]
    price = recipe.price(request, transfer_bits)
    return stepwise([recipe.make(request, side, transfer_bits) for side in sides(N, price.main, price.back)])


def bits_received(messages: list[Tensor]) -> Tensor:
    """The bits of all messages: a row for each bit of a value, (rows, N)."""
    rows = []
    for message in messages:
        if message.dim() > 1:  # planes
            rows.append(bits_of(message).view(-1, N))
        elif width := 8 * message.numel() // N:
            words = unpack_words(message, N, width)
            rows.append(words >> torch.arange(width)[:, None] & 1)
    return torch.cat(rows).to(torch.int8)


def bits_kept(request: Request[Any], fields: dict[str, Tensor], free: bool = False) -> Tensor:
    """The bits of a party's fields, tables left out, likewise. free: only of the uniform ones."""
    rows = []
    for name, item in (request.free if free else request.parts).items():
        found = fields[name]
        if item.kind == "ring":
            rows += [found.reshape(-1, N) >> bit & 1 for bit in range(item.width)]
        elif item.kind == "packed" and not name.startswith("table"):
            rows.append(bits_of(found).reshape(-1, N))
        elif item.kind == "bit":
            rows.append(found.reshape(-1, N))
    return torch.cat(rows).to(torch.int8)


def largest(one: Tensor, other: Tensor | None = None) -> float:
    """The largest imbalance of a row of bits, or of the xor of a row of each, in standard deviations."""
    first = 1 - 2 * one.float()
    second = torch.ones(1, N) if other is None else 1 - 2 * other.float()
    return float((first @ second.T).abs().max()) / N**0.5


@pytest.mark.parametrize(("request_", "transfer_bits"), REQUESTS, ids=str)
def test_every_bit_received_is_uniform_and_independent(request_: Request[Any], transfer_bits: float) -> None:
    seen = seen_by_both(request_, transfer_bits)
    for rank in range(2):
        if not any(message.numel() for message in seen.messages[1 - rank]):
            continue
        received = bits_received(seen.messages[1 - rank])
        other, own = (bits_kept(request_, seen.results[at]) for at in (1 - rank, rank))
        assert largest(received) < DEVIATIONS and largest(received, other) < DEVIATIONS
        # A derived share may follow from both parties' others, as a square is even or odd with its root. A uniform
        # field of one party is independent of each bit that the other one holds.
        assert largest(other) < DEVIATIONS
        assert largest(bits_kept(request_, seen.results[1 - rank], free=True), own) < DEVIATIONS


def test_words_without_pads_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: words that nothing hides depend on the sender's fields."""

    hide = SentRot.hide_bits

    def shown(self: SentRot, value: Tensor) -> tuple[Tensor, Tensor]:
        share, _ = hide(self, value)
        return share, value  # without pads

    monkeypatch.setattr(SentRot, "hide_bits", shown)
    request = Lifting(N, 7, 16)
    seen = seen_by_both(request, 31.0)
    received, other = bits_received(seen.messages[0]), bits_kept(request, seen.results[0])
    assert max(largest(received), largest(received, other)) > DEVIATIONS
