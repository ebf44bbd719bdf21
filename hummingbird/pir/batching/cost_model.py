"""Cost of the lookups of one inference, in closed form: bytes both ways, rows read, PRF blocks, seconds.

For a code of b buckets of r places, one key of |k| = 176 + 17 depth(r) bytes each, records of w bytes and two servers:

    up = 2 b |k|        down = 2 b w        read per server = b r w bytes
    PRF blocks per server = b (2 (nodes above the leaves) + 8 leaves),  leaves = ceil(r / 1024)      (AES; `blocks`)

Seconds are a linear model of a server, for n keys to each bucket

    s(code) = m + b (t + c_0 r w + n (a + c_1 blocks + c_2 r w + c_3 w))

with c_0 for memory that a pass reads once, and c_2 for the work of each key. The coefficients are fitted to
measurements on one machine (`Speed.fit`). Bytes exclude the constant parts of messages (headers, HTTP), about 100 bytes
each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import torch

from hummingbird.errors import InputError
from hummingbird.fitting import nonnegative
from hummingbird.kernels import lookups
from hummingbird.pir.batching.batch_code import BatchCode

_TERMS = 7  # of the model
_CHILDREN, _LEAF = 2, 8  # AES blocks for the children of a node, and for a leaf


@dataclass(frozen=True)
class Price:
    """The work and traffic of one inference's lookups, as counts.

    messages, keys: how many the client sends to each server. buckets: number of buckets.
    held: bytes of the rows in all buckets.
    up: bytes that the client sends to both servers together; down: bytes that both send back.
    rows, read: how many rows each server works through for all keys, and the bytes of these rows.
    blocks: PRF blocks (AES) that each server computes.
    """

    messages: int
    buckets: int
    held: int
    keys: int
    up: int
    down: int
    rows: int
    read: int
    blocks: int

    def __add__(self, other: Price) -> Price:
        return Price(*(own + more for own, more in zip(astuple(self), astuple(other), strict=True)))

    @property
    def bytes(self) -> int:
        """Bytes that the client sends and receives for one inference, to and from both servers together."""
        return self.up + self.down

    @property
    def work(self) -> dict[str, float]:
        """The amount of each kind of work that one server has, by the names of the fields of `Speed`."""
        return {field.name: float(n) for field, n in zip(fields(Speed), _work(self), strict=True)}


def blocks(rows: int) -> int:
    """Count the PRF blocks (AES) that a server computes to expand one key, for a table of `rows` rows; return an int.

    A key is expanded to a tree of seeds with one leaf for every 1024 rows. Every node above the leaves takes two
    blocks, for its children, and every leaf takes eight.
    """
    leaves, depth = lookups.leaves_of(rows), lookups.depth(rows)
    above = sum(-(-leaves >> (depth - level)) for level in range(depth))  # ceil(leaves / 2^(depth - level))
    return _CHILDREN * above + _LEAF * leaves


def price(codes: Sequence[BatchCode], record_bytes: int) -> Price:
    """Compute the price of one inference's lookups by a plan.

    codes: the codes of the plan's tables (`Plan.codes`). record_bytes: bytes that are stored and sent for one row,
    together with its companions.
    """
    parts = [_price(code, record_bytes) for code in codes]
    return sum(parts[1:], parts[0])


def _price(code: BatchCode, record_bytes: int) -> Price:
    keys, rows = code.keys, code.keys * code.bucket_rows
    up, down = 2 * keys * lookups.key_bytes(code.bucket_rows), 2 * keys * record_bytes
    read = rows * record_bytes
    return Price(1, code.buckets, read // code.rounds, keys, up, down, rows, read, keys * blocks(code.bucket_rows))


@dataclass(frozen=True)
class Speed:
    """Seconds that one core of a server takes for one unit of each kind of work; `seconds` predicts with it.

    The units are a message, a bucket, a byte held in buckets, a key, a PRF block, a byte read, and a byte answered.
    `fit` finds the seconds from measurements. They are right only for as many inferences in one pass over the table as
    the measurements had.
    """

    message: float
    bucket: float
    held: float
    key: float
    block: float
    read: float
    answered: float

    @classmethod
    def fit(cls, measured: Sequence[tuple[Price, float]]) -> Speed:
        """Find the seconds of each kind of work from measurements, by a fit of nonnegative numbers with small relative
        errors.

        measured: pairs (price of an inference's lookups, seconds of one core of a server). Raises InputError for fewer
        than seven measurements, or for a measurement of 0 s.
        """
        if len(measured) < _TERMS or not all(seconds > 0 for _, seconds in measured):
            raise InputError(f"{len(measured)} measurements", where="Speed.fit", hint="seven or more, of more than 0 s")
        rows = torch.tensor([[n / s for n in _work(p)] for p, s in measured], dtype=torch.float64)
        return cls(*nonnegative(rows).tolist())

    def seconds(self, price: Price) -> float:
        """Predict the seconds that one core of each server takes for one inference. price: of the
        inference's lookups.
        """
        return sum(each * count for each, count in zip(astuple(self), _work(price), strict=True))


def _work(price: Price) -> tuple[float, ...]:
    """Return the amounts of one server's work for lookups of this price, as a tuple in the order of the fields of
    `Speed`.
    """
    return price.messages, price.buckets, price.held, price.keys, price.blocks, price.read, price.down / 2


def pareto(points: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of the Pareto-optimal points, where smaller numbers are better.

    A point is Pareto-optimal if no other point is as small in all coordinates and smaller in one. Of equal points only
    the first is returned.
    """
    order = sorted(range(len(points)), key=lambda number: tuple(points[number]))
    kept: list[int] = []
    for number in order:  # later points cannot dominate earlier ones
        if not any(all(a <= b for a, b in zip(points[one], points[number], strict=True)) for one in kept):
            kept.append(number)
    return sorted(kept)
