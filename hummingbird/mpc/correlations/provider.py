"""Correlations for CrypTen's own functions, which request them through crypten/run.py."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.request import Request, shape


class WordTripleShares(NamedTuple):
    """A party's xor shares of uniform words a and b, and of c = a & b."""

    a: Tensor
    b: Tensor
    c: Tensor


@dataclass(frozen=True)
class WordTriple(Request[WordTripleShares]):
    """Request for uniform 64-bit words a and b, and for c = a & b, all xor-shared.

    size0, size1: the shapes of a and b.
    """

    kind = "binary"
    size0: tuple[int, ...] = shape()
    size1: tuple[int, ...] = shape()

    @cached_property
    def free(self) -> Fields:
        return {"a": Field("words", self.size0), "b": Field("words", self.size1)}

    @cached_property
    def derived(self) -> Fields:
        return {"c": Field("words", tuple(torch.broadcast_shapes(self.size0, self.size1)))}

    def derive(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"c": a & b}

    def shares(self, **tensors: Tensor) -> WordTripleShares:
        return WordTripleShares(**tensors)


class SharedBitShares(NamedTuple):
    """A party's shares of random bits: xor shares, int64 words 0 or 1, and additive shares of the bits as numbers."""

    binary: Tensor
    arithmetic: Tensor


@dataclass(frozen=True)
class SharedBit(Request[SharedBitShares]):
    """Request for random bits, one for each element of a tensor, with xor shares and additive shares of each bit.

    shape: of the tensor.
    """

    kind = "b2a"
    shape: tuple[int, ...] = shape()

    @cached_property
    def free(self) -> Fields:
        return {"binary": Field("bit", self.shape)}

    @cached_property
    def derived(self) -> Fields:
        return {"arithmetic": Field("ring", self.shape)}

    def derive(self, binary: Tensor) -> dict[str, Tensor]:
        return {"arithmetic": binary}

    def shares(self, **tensors: Tensor) -> SharedBitShares:
        return SharedBitShares(**tensors)


class WrapShares(NamedTuple):
    """A party's additive shares of random numbers r, and of how often the signed sum of all shares of r overflows."""

    r: Tensor
    wraps: Tensor


@dataclass(frozen=True)
class Wraps(Request[WrapShares]):
    """Request for uniform numbers r, and for how often the parties' shares of r, added up as signed numbers, overflow.

    Each overflow above 2^63 - 1 counts as 1, each one below -2^63 as -1 (Knott et al., appendix C).
    shape: of r.
    """

    kind = "wraps"
    shape: tuple[int, ...] = shape()

    @cached_property
    def free(self) -> Fields:
        return {"r": Field("ring", self.shape, apart=True)}

    @cached_property
    def derived(self) -> Fields:
        return {"wraps": Field("ring", self.shape)}

    def derive(self, r: list[Tensor]) -> dict[str, Tensor]:
        count, total = torch.zeros(self.shape, dtype=torch.int64), r[0]
        for part in r[1:]:
            after = total + part
            count -= ((total < 0) & (part < 0) & (after >= 0)).long()
            count += ((total >= 0) & (part >= 0) & (after < 0)).long()
            total = after
        return {"wraps": count}

    def shares(self, **tensors: Tensor) -> WrapShares:
        return WrapShares(**tensors)
