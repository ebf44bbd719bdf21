"""Products of masks, for products of private values: protocols/beaver.py, and protocols/weight_mask.py for weights.

All but the masks of weights are in Z_2^bits: the bits of a share above are anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.parameters import LIMIT, number, one_of, options, shape, width
from hummingbird.mpc.correlations.request import Request, Shares


class TripleShares(NamedTuple):
    """Shares of masks a and b, and of c, their product; int32 where at most 32 bits count."""

    a: Tensor
    b: Tensor
    c: Tensor


@dataclass(frozen=True)
class _Product(Request[Shares]):
    """c = op(a, b, **kwargs) in Z_2^bits, for op of `ring.BILINEAR` and sizes as in torch."""

    size0: tuple[int, ...] = shape()
    size1: tuple[int, ...] = shape()
    op: str = one_of(ring.BILINEAR)
    kwargs: dict[str, Any] = options()
    bits: int = width()

    def check(self) -> None:
        _check_margins(self.size0, self.size1, self.op, self.kwargs)

    @cached_property
    def derived(self) -> Fields:
        size = _product_shape(self.size0, self.size1, self.op, self.kwargs)
        return {"c": Field("ring", size, width=self.bits)}

    def derive(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"c": ring.bilinear(self.op, a.long(), b.long(), self.bits, **self.kwargs)}


@dataclass(frozen=True)
class Triple(_Product[TripleShares]):
    """a, b uniform; c = op(a, b, **kwargs)."""

    kind = "additive"

    @cached_property
    def free(self) -> Fields:
        return {"a": Field("ring", self.size0, width=self.bits), "b": Field("ring", self.size1, width=self.bits)}

    def shares(self, **tensors: Tensor) -> TripleShares:
        return TripleShares(**tensors)


class FixedMaskShares(NamedTuple):
    """A share of the mask of a weight."""

    mask: Tensor


@dataclass(frozen=True)
class FixedMask(Request[FixedMaskShares]):
    """b uniform, the same whenever the key is."""

    kind = "fixed"
    shape: tuple[int, ...] = shape()
    key: int = number()

    @cached_property
    def free(self) -> Fields:
        return {"mask": Field("ring", self.shape, key=self.key)}

    def shares(self, **tensors: Tensor) -> FixedMaskShares:
        return FixedMaskShares(**tensors)


class FixedTripleShares(NamedTuple):
    """Shares of a fresh mask a, and of c = op(a, b) with the b that the parties have."""

    a: Tensor
    c: Tensor


@dataclass(frozen=True)
class FixedTriple(_Product[FixedTripleShares]):
    """a uniform; c = op(a, b, **kwargs) with the b of `FixedMask`, of the same key."""

    kind = "linear"
    key: int = number()

    @cached_property
    def free(self) -> Fields:
        b = Field("ring", self.size1, key=self.key, earlier=True)  # in Z_2^64, for products of any width
        return {"a": Field("ring", self.size0, width=self.bits), "b": b}

    def shares(self, **tensors: Tensor) -> FixedTripleShares:
        return FixedTripleShares(**tensors)


class SquareShares(NamedTuple):
    """Shares of a mask r and of r^2."""

    r: Tensor
    square: Tensor


@dataclass(frozen=True)
class SquarePair(Request[SquareShares]):
    """r uniform in Z_2^bits; r^2."""

    kind = "square"
    shape: tuple[int, ...] = shape()
    bits: int = width()

    @cached_property
    def free(self) -> Fields:
        return {"r": Field("ring", self.shape, width=self.bits)}

    @cached_property
    def derived(self) -> Fields:
        return {"square": Field("ring", self.shape, width=self.bits)}

    def derive(self, r: Tensor) -> dict[str, Tensor]:
        return {"square": r.long() * r}

    def shares(self, **tensors: Tensor) -> SquareShares:
        return SquareShares(**tensors)


class RowShares(NamedTuple):
    """Shares of masks a and b, of the sums of each row's a^2, and of a b."""

    a: Tensor
    b: Tensor
    squares: Tensor
    products: Tensor


@dataclass(frozen=True)
class RowProducts(Request[RowShares]):
    """a uniform in Z_2^64, of this shape, b in Z_2^bits for each row, the last dimension; sums of a^2, and a b."""

    kind = "rows"
    shape: tuple[int, ...] = shape()
    bits: int = width()

    def check(self) -> None:
        if not self.shape:
            raise ValueError("no rows")

    @cached_property
    def free(self) -> Fields:
        return {"a": Field("ring", self.shape), "b": Field("ring", (*self.shape[:-1], 1), width=self.bits)}

    @cached_property
    def derived(self) -> Fields:
        sums, products = (*self.shape[:-1], 1), Field("ring", self.shape, width=self.bits)
        return {"squares": Field("ring", sums), "products": products}

    def derive(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"squares": (a * a).sum(-1, keepdim=True), "products": a * b}

    def shares(self, **tensors: Tensor) -> RowShares:
        return RowShares(**tensors)


def _product_shape(size0: Sequence[int], size1: Sequence[int], op: str, kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Shape of the product, found by torch on tensors that hold no data."""
    if op == "mul":  # for broadcasting on the meta device torch first imports its compiler, 1.6 s
        return tuple(torch.broadcast_shapes(size0, size1))
    a, b = torch.empty(size0, device="meta"), torch.empty(size1, device="meta")
    return tuple(getattr(torch, op)(a, b, **kwargs).shape)


def _check_margins(size0: Sequence[int], size1: Sequence[int], op: str, kwargs: dict[str, Any]) -> None:
    """Raise ValueError if a convolution's input with its margins and, transposed, its gaps exceeds the limit.

    The result's size does not bound them: dilation takes away what padding adds.
    """
    if not op.startswith("conv"):
        return
    spatial = int(op[-2])

    def option(name: str, default: int) -> list[int]:
        value = kwargs.get(name, default)
        return value * (spatial // len(value)) if isinstance(value, list) else [value] * spatial

    sides, margins, reach = size0[-spatial:], option("padding", 0), [0] * spatial
    if op.startswith("conv_transpose"):
        sides = [n * step for n, step in zip(sides, option("stride", 1), strict=True)]
        reach = [by * (n - 1) for by, n in zip(option("dilation", 1), size1[-spatial:], strict=True)]
    margins = [abs(far - margin) for far, margin in zip(reach, margins, strict=True)]
    padded = math.prod(size0[:-spatial]) * math.prod(n + 2 * m for n, m in zip(sides, margins, strict=True))
    if padded > LIMIT:
        raise ValueError(f"an input with its margins exceeds {LIMIT} elements")
