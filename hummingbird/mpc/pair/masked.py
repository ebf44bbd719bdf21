"""Material of masked openings and of thresholds: masks, step tables, and random bits times the mask.

One mask with its tables (masks.py) serves all thresholds of a value; each threshold has two random bits of its own, r_b
with its product with lambda, and r_s.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from hummingbird.cost import packed
from hummingbird.mpc.pair import masks
from hummingbird.mpc.pair.carry import best_digit
from hummingbird.mpc.pair.lockstep import Rounds, together
from hummingbird.mpc.pair.price import PairPrice, beside
from hummingbird.mpc.pair.recipe import PairRecipe, RandomBit, flag, flag_price, random_bit, random_bit_price
from hummingbird.mpc.pair.transfers import Side
from hummingbird.mpc.protocols.masked import MaskedOpening
from hummingbird.mpc.protocols.thresholds import MaskedThresholds


def _opening(request: MaskedOpening, side: Side, transfer_bits: float) -> Rounds[dict[str, Tensor]]:
    shape = masks.best(request.k, request.m, request.ring, transfer_bits)
    return (yield from opening(request, side, shape))


def opening(request: MaskedOpening, side: Side, shape: masks.MaskShape) -> Rounds[dict[str, Tensor]]:
    """Make a party's fields of a masked opening, with masks of this shape."""
    (share, tables), wrap = yield from together(
        masks.drawn(side, shape, request.sizes), flag(side, request.ring - request.k)
    )
    choice = yield from random_bit(side, request.ring, (request.ring, share))
    return {
        "mask": share,
        "choice_bits": choice.bit,
        "wrap_bits": wrap.bit,
        "carry": -over(share, request.k),
        "choice": choice.flag,
        "wrap": wrap.flag,
        "product": choice.products[0],
        **{f"table_{place}": table for place, table in enumerate(tables)},
    }


def opening_price(request: MaskedOpening, shape: masks.MaskShape) -> PairPrice:
    """Return the price of `opening`."""
    return _opening_price(shape, tuple(request.sizes))


@cache  # it is asked for several times in each call
def _opening_price(shape: masks.MaskShape, tables: tuple[int, ...]) -> PairPrice:
    drawn = masks.price(shape, tables) | flag_price(shape.ring - shape.k)
    return drawn + random_bit_price(shape.ring, shape.ring)


def over(share: Tensor, k: int) -> Tensor:
    """Return the part of a share above its low k bits, as a number: share / 2^k rounded down, int64; 0 for k = 64."""
    return share >> k if k < 64 else torch.zeros_like(share)


def _thresholds(request: MaskedThresholds, side: Side, transfer_bits: float) -> Rounds[dict[str, Tensor]]:
    k, ring, sizes = request.k, max(request.ring, request.k), request.sizes
    choices: list[RandomBit]
    wraps: list[RandomBit]
    each, square = range(request.knots), None
    if request.squares:
        shape = masks.MaskShape(k, request.m, ring, k, best_digit(transfer_bits))
        drawn = yield from masks.squared(side, shape, sizes, ring)
        share, square, tables = drawn.share, drawn.square, drawn.tables
        numbers = (ring, share), (ring, square)
        choices, wraps = yield from together(
            together(*(random_bit(side, ring, *numbers) for _ in each)),
            together(*(random_bit(side, ring - k, (ring - k - 1, share)) for _ in each)),
        )
    else:
        shape = masks.best(k, request.m, ring, transfer_bits)
        (share, tables), wraps = yield from together(
            masks.drawn(side, shape, sizes), together(*(flag(side, ring - k) for _ in each))
        )
        choices = yield from together(*(random_bit(side, request.ring, (request.ring, share)) for _ in each))
    made = {
        "mask": share,
        "bits": torch.stack([torch.stack([r_b.bit, r_s.bit]) for r_b, r_s in zip(choices, wraps, strict=True)]),
        "carry": -over(share, k),
        "choice": torch.stack([r_b.flag for r_b in choices]),
        "wrap": torch.stack([r_s.flag for r_s in wraps]),
        "product": torch.stack([r_b.products[0] for r_b in choices]),
        **{f"table_{place}": table for place, table in enumerate(tables)},
    }
    if square is not None:
        made["square"] = square
        made["choice_square"] = torch.stack([r_b.products[1] for r_b in choices])
        made["wrap_product"] = torch.stack([r_s.products[0] for r_s in wraps])
    return made


def _thresholds_price(request: MaskedThresholds, transfer_bits: float) -> PairPrice:
    k, ring, sizes, knots = request.k, max(request.ring, request.k), request.sizes, request.knots
    if request.squares:
        drawn = masks.squared_price(masks.MaskShape(k, request.m, ring, k, best_digit(transfer_bits)), sizes, ring)
        wraps = [random_bit_price(ring - k, ring - k - 1)] * knots
        return drawn + beside(*[random_bit_price(ring, ring, ring)] * knots, *wraps)
    drawn = masks.price(masks.best(k, request.m, ring, transfer_bits), sizes)
    flags = [flag_price(ring - k)] * knots
    return beside(drawn, *flags) + beside(*[random_bit_price(request.ring, request.ring)] * knots)


def _whole_tables(request: MaskedOpening | MaskedThresholds, fields: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leave of tables those of the request's values; the spare bits of a table's last byte are 0."""
    cut = dict(fields)
    for place, size in enumerate(request.sizes):
        name, bits = f"table_{place}", request.count << size
        cut[name] = fields[name][: packed(bits)].clone()
        if spare := -bits % 8:
            cut[name][-1] &= 255 >> spare
    return cut


THRESHOLDS = PairRecipe(MaskedThresholds, lambda request: request.count, _thresholds_price, _thresholds, _whole_tables)
MASKED = PairRecipe(
    MaskedOpening,
    lambda request: request.count,
    lambda request, transfer_bits: opening_price(
        request, masks.best(request.k, request.m, request.ring, transfer_bits)
    ),
    _opening,
    _whole_tables,
)
