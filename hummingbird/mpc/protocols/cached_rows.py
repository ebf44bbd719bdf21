"""Rows of private values that stay for a conversation, such as keys and values of attention, and products with them.

A row is opened once, behind a mask that stays as long as the conversation (as weight_mask.py has it for weights). With
v = d' - B, where B is the mask of all rows and d' is opened, and z = e' - A opened behind a fresh mask A of two forms
(lifted_matmul.py),

    sum over j of z v = sum of (e' - A) d' - sum of e' B + sum of A B

all but the sum of A B is local, and A B is dealt. d' and B are right mod 2^W, for a number W of the rows, so that no
term of B has two forms: a product mod 2^R with R <= W needs, of A with the top bit t of its mask lambda of k bits,

    sum of A B = sum of lambda B - 2^k sum of w t B

where w is 1 if the opened word selects the signed mask. t B is dealt for every single product, mod 2^(R - k), and not
at all for k = R: then this is Beaver's product with one operand opened before.

*What stays.* B has one key in its conversation. A conversation has a number of its own, so that no two conversations
have a mask in common. A row of B serves one row of values: rows are written in order, each once, and a row counts as
written before anything of it is sent. d' is uniform, whatever the rows are.

*Rows that are not written yet* count as zeros. In a product with the turned rows, their columns are set to 0. In a
product with the rows, x is set to 0 at their places before it is opened: then e' = A, and the terms of B cancel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird import cost, ring
from hummingbird.cost import Cost, packed
from hummingbird.errors import InputError
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.request import Request, made, number, shape
from hummingbird.mpc.protocols.lifted_matmul import terms
from hummingbird.mpc.protocols.lifted_product import Operand, masked, read, remaining, seen
from hummingbird.mpc.protocols.poly import LookUp, LookUpPrice
from hummingbird.mpc.session.session import Session


class CachedMatMulShares(NamedTuple):
    """A party's shares for a product of a value, opened behind a mask lambda of k bits, with rows behind a mask B.

    mask: this party's summand of lambda, in the low k bits.
    product: of the matrix product of lambda and B.
    carry, wrapped, top: of (sum of all summands - lambda) / 2^k; the same plus lambda's top bit t; and t B. None if no
        bit of them is needed.
    """

    mask: Tensor
    product: Tensor
    carry: Tensor | None = None
    wrapped: Tensor | None = None
    top: Tensor | None = None


class CachedRowsShares(NamedTuple):
    """A party's share of the mask of all rows that a cache can have."""

    mask: Tensor


@dataclass(frozen=True)
class CachedRowsMask(Request[CachedRowsShares]):
    """Request for the mask of a conversation's rows, uniform mod 2^bits, which serves all products with them.

    rows: (places, *batch, length).
    key: the rows' number in their conversation. All requests with one key in a conversation give equal shares.
    """

    kind = "cached_rows"
    rows: tuple[int, ...] = shape()
    key: int = number()
    bits: int = number(least=2, most=64)

    @cached_property
    def free(self) -> Fields:
        return {"mask": _mask(self.rows, self.key, self.bits)}

    def shares(self, **tensors: Tensor) -> CachedRowsShares:
        return CachedRowsShares(**tensors)


def _mask(rows: tuple[int, ...], key: int, bits: int, earlier: bool = False) -> Field:
    """Return the field of the mask of rows, or of the first of them. earlier: whether the parties have it already."""
    return Field("ring", rows, width=bits, key=key, conversation=True, earlier=earlier)


@dataclass(frozen=True)
class CachedMatMul(Request[CachedMatMulShares]):
    """Request for a fresh mask of a private matrix, and for its product with the mask of a conversation's rows.

    The fresh mask is uniform mod 2^value, of shape size0. The parties have the rows' mask already, by the
    `CachedRowsMask` with the same key and `factor` bits. Also dealt: what they need of products of both masks for a
    matrix product mod 2^product (`CachedMatMulShares`).
    size0: (*batch, i, j).
    rows: (places, *batch, length): so many of the first rows take part.
    turned: 0 for a product with the rows, where j is `places`; 1 for one with the rows as columns, where j is `length`.
    key: the rows' number in their conversation.
    """

    kind = "cached_matmul"
    size0: tuple[int, ...] = shape()
    rows: tuple[int, ...] = shape()
    turned: int = number(most=1)
    key: int = number()
    value: int = number(least=2, most=64)
    factor: int = number(least=2, most=64)
    product: int = number(least=2, most=64)

    def check(self) -> None:
        if not self.value <= self.product <= self.factor:
            raise ValueError(f"{self.product} bits of {self.value} and {self.factor}")
        if min(len(self.size0), len(self.rows)) < 2 or self.size0[:-2] != self.rows[1:-1]:
            raise ValueError(f"a matrix {self.size0} and rows {self.rows}")
        if self.size0[-1] != self._size1[-2]:
            raise ValueError(f"a matrix {self.size0} and rows {self.rows}, turned {self.turned}")

    @property
    def _size1(self) -> tuple[int, ...]:
        places, *batch, length = self.rows
        return (*batch, length, places) if self.turned else (*batch, places, length)

    @cached_property
    def free(self) -> Fields:
        return {
            "mask": Field("ring", self.size0, width=self.value, apart=True),
            "factor": _mask(self.rows, self.key, self.factor, earlier=True),
        }

    @cached_property
    def derived(self) -> Fields:
        every, left = terms(self.size0, self._size1), self.product - self.value
        fields = {
            **dict.fromkeys(("carry", "wrapped"), (self.size0, left)),
            "product": ((*every[:-2], every[-1]), self.product),
            "top": (every, left),
        }
        return {name: Field("ring", size, width=width) for name, (size, width) in fields.items() if width > 0}

    def derive(self, mask: list[Tensor], factor: Tensor) -> dict[str, Tensor]:
        a, b = read(mask, self.value), matrices(factor.long(), self.turned)
        fields = {"product": ring.bilinear("matmul", a.value, b, self.product)}
        if self.product > self.value:
            top = a.top.unsqueeze(-1) * b.unsqueeze(-3)
            fields |= {"carry": a.carry, "wrapped": a.carry + a.top, "top": top}
        return fields

    def shares(self, **tensors: Tensor) -> CachedMatMulShares:
        return CachedMatMulShares(**tensors)


def matrices(rows: Tensor, turned: int) -> Tensor:
    """Return rows, (places, *batch, length), as a stack of matrices: (*batch, places, length), or turned."""
    stack = rows.movedim(0, -2)
    return stack.transpose(-1, -2) if turned else stack


class CachedRows:
    """The rows of one cache in one conversation, as one party has them: its share of their mask, and what is opened.

    shape: of all rows that there can be: (*batch, places, length).
    key: the rows' number in their conversation.
    bits: W: the rows are opened mod 2^W, and products mod 2^W or less are right.
    `filled` is the number of rows that are written.
    Memory: 8 bytes for each element of the opened rows, 4 or 8 for each of the mask, for W <= 32 and above. The
    constructor sends nothing.
    """

    def __init__(self, session: Session, shape: Sequence[int], key: int, bits: int) -> None:
        self.shape, self.key, self.bits, self.filled = tuple(shape), key, bits, 0
        *batch, self.places, length = shape
        size = (self.places, *batch, length)
        self.mask = session.correlation(CachedRowsMask(size, key, bits)).mask
        self.opened = torch.zeros(size, dtype=torch.int64, device=self.mask.device)

    def request(self, size: Sequence[int], value: int, bits: int, turned: bool, places: int) -> CachedMatMul:
        """Return the request of a product with the first `places` rows.

        size, value: shape of the other operand, and in how many bits it is opened. bits: the product is mod 2^bits.
        """
        rows = (places, *self.opened.shape[1:])
        return made(CachedMatMul, tuple(size), rows, int(turned), self.key, value, self.bits, bits)

    def cover(self, session: Session, new: Operand) -> Tensor:
        """Return this party's message that opens new rows behind the next rows of the mask, in packed bits.

        new: the rows, (*batch, rows, length), and how they are opened.
        """
        share = new.share.movedim(-2, 0).contiguous()
        start, self.filled = self.filled, self.filled + share.shape[0]  # before anything is sent
        return masked(session, Operand(share, new.shift, self.bits), self.mask[start : self.filled])

    def write(self, parts: Sequence[Tensor], count: int) -> None:
        """Write the last `count` rows that were covered, once the messages of all parties are there: `parts`."""
        size = (count, *self.opened.shape[1:])
        like = Operand(self.opened[:count].view(size), 0, self.bits)
        self.opened[self.filled - count : self.filled] = seen(parts, like).word


def cached(session: Session, shape: Sequence[int], key: int, bits: int) -> CachedRows:
    """Return the rows that the session's conversation has under `key`; the first call begins them, without rows.

    shape, key, bits: as `CachedRows` takes them; they must be the same in each call.
    Raises InputError outside of a conversation, and for another shape or other bits. Sends nothing.
    """
    if session.conversation is None:
        what = "a layer with cached rows runs outside of a conversation"
        raise InputError(what, where="cached rows", hint="run the net's steps in a `Conversation`")
    rows: CachedRows | None = session.conversation.caches.get(key)
    if rows is None:
        rows = session.conversation.caches[key] = CachedRows(session, shape, key, bits)
    if (rows.shape, rows.bits) != (tuple(shape), bits):
        what = f"rows of {rows.shape} in {rows.bits} bits were begun under key {key}, not {tuple(shape)} in {bits}"
        raise InputError(what, where="cached rows", hint="give each cache a key of its own")
    return rows


def product(
    session: Session,
    x: Operand,
    rows: CachedRows,
    bits: int,
    *,
    turned: bool,
    places: int,
    new: Operand | None = None,
    beside: Sequence[LookUp] = (),
) -> tuple[Tensor, list[Tensor]]:
    """Compute a share of a matrix product with cached rows, mod 2^bits, int64; return it, and the look-ups' results.

    New rows are written first. Product, new rows and look-ups take one round together.
    x: the other operand, and how it is opened. With `turned` it is (*batch, i, length), and the product with the rows
        as columns is (*batch, i, places). Otherwise x is (*batch, i, places), and the product (*batch, i, length). With
        N parties, z = x / 2^shift is right within N/2 units. |z| < 2^(x.k - 2) is required, unless x.k = bits.
    bits: how many low bits of the product's shares are right, at most `rows.bits`; the bits above are arbitrary.
    places: how many of the first places take part: all written ones, and further ones, which count as zeros.
    new: rows to write, (*batch, rows, length), right mod 2^(new.shift + rows.bits); new.k is rows.bits.
    beside: look-ups whose messages travel along.
    Raises InputError, before anything is sent, if there is no place for the new rows, or if `places` leaves out rows.
    Cost: `price`.
    """
    added = 0 if new is None else new.share.shape[-2]
    written = _room(rows, added, places)
    if not turned:
        x = x._replace(share=_shown(x.share, written))
    dealt = session.correlation(rows.request(x.share.shape, x.k, bits, turned, places))
    mine = [masked(session, x, dealt.mask)]
    if new is not None:
        mine.append(rows.cover(session, new))
    mine += [word for each in beside for word in each.words]
    left, *others = zip(mine, *session.channel.exchange(*mine).values(), strict=True)
    if new is not None:
        rows.write(others.pop(0), added)
    e, wraps = seen(left, x)
    a = remaining(dealt.mask, dealt.carry, dealt.wrapped, wraps, x.k).share
    d, b = (matrices(each[:places], turned) for each in (rows.opened, rows.mask))
    out = ring.bilinear("matmul", e - a if session.rank == 0 else -a, d, bits)
    out = out - ring.bilinear("matmul", e, b.long(), bits) + dealt.product
    if dealt.top is not None:
        out = out - ((dealt.top * wraps.unsqueeze(-1)).sum(-2) << x.k)
    results = []
    for each in beside:
        count = len(each.words)
        results.append(each.result(others[:count]))
        others = others[count:]
    return _shown(out, written) if turned else out, results


def _room(rows: CachedRows, added: int, places: int) -> int:
    """Return how many rows are written once `added` more are. Raises InputError if `places` has no room for them.

    places: how many of the first places a product takes.
    """
    written = rows.filled + added
    if written > rows.places:
        what = f"{added} more rows, where {rows.places - rows.filled} of {rows.places} places are left"
        raise InputError(what, where="cached rows", hint="begin another conversation, or one with more places")
    if not written <= places <= rows.places:
        what = f"a product with {places} of {rows.places} places, of which {written} are written"
        raise InputError(what, where="cached rows", hint="take all written places, and none that do not exist")
    return written


def _shown(x: Tensor, count: int) -> Tensor:
    """Return x with 0 behind the first `count` elements of each row along the last dimension."""
    if count == x.shape[-1]:
        return x
    return torch.nn.functional.pad(x[..., :count], (0, x.shape[-1] - count))


def price(request: CachedMatMul, parties: int, new: int = 0, beside: Sequence[LookUpPrice] = ()) -> Cost:
    """Return the price of `product`: 1 round.

    request: of the product.
    new: number of elements of the new rows.
    beside: prices of the look-ups whose messages travel along.
    """
    sent = packed(math.prod(request.size0) * request.value) + packed(new * request.factor)
    sent += sum(each.payload for each in beside)
    return cost.opening(parties, sent, request.correction_bits + sum(each.offline_bits for each in beside))
