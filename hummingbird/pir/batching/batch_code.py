"""Batch codes: look up k rows of one table with a fixed number of keys, each for a part of the table.

The rows are spread over `buckets` small tables, each row to `choices` of them. A client always sends `rounds` keys to
every bucket. choices = 3 is a cuckoo batch code (Angel, Chen, Laine and Setty, "PIR with compressed queries", IEEE S&P
2018, section 4): every wanted row picks one of its three buckets, such that no bucket gets more rows than keys. With
1.5 k buckets nearly every set of k rows has such an assignment, and the total work is that of 3 tables. choices = 1 is
the partial batch retrieval of Lam et al. (ASPLOS 2024, section 4): each bucket yields one row per round, and a round
has the work of one table.

Buckets form `choices` groups of equal size B. Each group has a public permutation p of the rows, which puts row i into
the group's bucket p(i) mod B, at position p(i) div B. Every bucket has ceil(rows / B) positions, so all keys have equal
size, and a client computes a row's position without a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird import prg, records
from hummingbird.errors import ConfigError, InputError
from hummingbird.kernels.lookups import MOST_ROWS
from hummingbird.records import field

_MOST_KEYS = 1 << 24
_ROUNDS = 4  # of the permutation
_KEPT = 1 << 18  # rows of the largest table whose permutations are cached, 2 MiB each
_SEED = bytes(prg.SEED_BYTES)
_SEEDS = records.hexadecimal(*prg.CIPHERS.values())


class Schedule(NamedTuple):
    """The keys that a client sends for its wanted rows, by the rule of a `BatchCode`.

    inside: int64 (keys,), for each key the position in its bucket that it selects; 0 for a dummy, which is a key for no
    row.
    key: int64 (N,), for each wanted row the number of its key; -1 for a dropped row, which gets no key.
    """

    inside: Tensor
    key: Tensor


@dataclass(frozen=True)
class BatchCode:
    """A public, fixed rule that stores each row of a table in several buckets, and assigns keys to wanted rows.

    A bucket is a small table, to which every inference sends `rounds` keys. rows: number of rows in the table. buckets:
    number of buckets, a multiple of `choices`. choices: in how many buckets each row is stored. seed: of the
    permutations that distribute the rows; not secret. Key n goes to bucket n div rounds. Raises ConfigError for numbers
    that do not fit each other.

    >>> code = pir.BatchCode.cuckoo(rows=2**20, wanted=64)
    >>> code.buckets, code.bucket_rows, code.keys  # 96 keys for 64 rows, each to a table of 2^15 rows
    (96, 32768, 96)
    """

    rows: int = field(records.whole(1, MOST_ROWS))
    buckets: int = field(records.whole(1, MOST_ROWS))
    choices: int = field(records.whole(1, MOST_ROWS), default=3)
    rounds: int = field(records.whole(1, MOST_ROWS), default=1)
    seed: bytes = field(_SEEDS, default=_SEED)

    def __post_init__(self) -> None:
        if min(self.rows, self.buckets, self.choices, self.rounds) < 1:
            raise ConfigError(f"{self}: a number below 1", where="BatchCode", hint="all are 1 or more")
        if self.rows > MOST_ROWS or self.keys > _MOST_KEYS:
            hint = f"at most 2^40 rows and {_MOST_KEYS} keys"
            raise ConfigError(f"{self.rows} rows, {self.keys} keys", where="BatchCode", hint=hint)
        if self.buckets % self.choices:
            hint = f"take {self.buckets + -self.buckets % self.choices}"
            raise ConfigError(f"{self.buckets} buckets in {self.choices} groups", where="BatchCode", hint=hint)
        if self.buckets // self.choices > self.rows:
            hint = "fewer buckets: a code saves nothing when more rows are wanted than there are"
            raise ConfigError(f"{self.buckets} buckets for {self.rows} rows", where="BatchCode", hint=hint)

    @classmethod
    def cuckoo(cls, rows: int, wanted: int, expansion: float = 1.5, seed: bytes = _SEED) -> BatchCode:
        """Make a code that stores each row in 3 buckets, for inferences that want up to `wanted` rows.

        rows: number of rows in the table. expansion: number of buckets for each wanted row; the number of all buckets
        is rounded up to a multiple of 3. seed: as for `BatchCode`.
        """
        groups = math.ceil(expansion * wanted / 3)
        return cls(rows, 3 * max(1, min(groups, rows)), seed=seed)

    @property
    def keys(self) -> int:
        """Number of keys that a client sends to each server for every inference."""
        return self.buckets * self.rounds

    @property
    def bucket_rows(self) -> int:
        """Number of positions for rows in every bucket; some positions may be empty."""
        return -(-self.rows // (self.buckets // self.choices))

    def places(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return where rows are stored: the numbers of their buckets, and their positions in these buckets.

        rows: numbers of rows, int64 (N,). Both results are int64 (N, choices): a row is stored in `choices` buckets,
        and each column has one of them.
        """
        group = self.buckets // self.choices
        spread = torch.stack([self._permuted(rows, choice) for choice in range(self.choices)], 1)
        return spread % group + group * torch.arange(self.choices), spread // group

    def layout(self) -> Tensor:
        """Return the number of the row at each position of each bucket, int64 (buckets, bucket_rows); -1: an empty
        position.
        """
        group = self.buckets // self.choices
        parts = []
        for choice in range(self.choices):
            spread = torch.full((group * self.bucket_rows,), -1)
            spread[self._permuted(torch.arange(self.rows), choice)] = torch.arange(self.rows)
            parts.append(spread.view(self.bucket_rows, group).t())
        return torch.cat(parts)

    def schedule(self, wanted: Tensor) -> Schedule:
        """Assign keys to the wanted rows, so that each key goes to a bucket in which its row is stored; returns a
        `Schedule`.

        wanted: numbers of rows, int64 (N,); equal rows share a key. As many rows as possible get a key, earlier rows
        first. Raises InputError for a row that is not in the table.
        """
        distinct = list(dict.fromkeys(checked(wanted, self.rows)))
        assignment = Assignment(self, distinct)
        for number in range(len(distinct)):
            assignment.place(number)
        key_of = dict(zip(distinct, assignment.keys, strict=True))
        return Schedule(assignment.inside(), torch.tensor([key_of[row] for row in wanted.tolist()], dtype=torch.int64))

    def _permuted(self, rows: Tensor, choice: int) -> Tensor:
        if self.rows > _KEPT:
            return _permute(rows, self.rows, self.seed, choice)
        return _permutation(self.rows, self.seed, choice)[rows]


def _permute(x: Tensor, rows: int, seed: bytes, choice: int) -> Tensor:
    """Apply a pseudo-random permutation of 0 .. rows - 1 to some row numbers; return the new numbers, int64 (N,).

    x: the row numbers, int64 (N,). rows: number of rows in the table. seed: the batch code's. choice: which of the
    code's permutations; it has `choices` of them.
    The functions x -> a x + c and x -> x ^ (x >> half) are applied in turn; they are bijections modulo the smallest
    power of two that holds all rows. All are repeated while the result is not the number of a row (Black and Rogaway,
    CT-RSA 2002).
    """
    bits = (rows - 1).bit_length()
    mask, half = (1 << bits) - 1, max(1, (bits + 1) // 2)
    words = prg.Stream(prg.derive(seed, "batch code", choice)).words(_ROUNDS, 2).tolist()

    def mixed(x: Tensor) -> Tensor:
        for factor, addend in words:
            x = (x * (factor | 1) + addend) & mask  # wraps at 2^64, of which 2^bits is a divisor
            x = x ^ (x >> half)
        return x

    out = mixed(x)
    while bool((beyond := out >= rows).any()):
        out = torch.where(beyond, mixed(out), out)
    return out


@lru_cache(maxsize=32)
def _permutation(rows: int, seed: bytes, choice: int) -> Tensor:
    """Return a pseudo-random permutation of all row numbers of a table, int64 (rows,); results are cached.

    rows: number of rows. seed: the batch code's. choice: which of the code's permutations; it has `choices` of them.
    For small tables only: with 30 rows a cached call takes 17 us, computing the permutation (`_permute`) 690 us.
    """
    return _permute(torch.arange(rows), rows, seed, choice)


class Assignment:
    """Gives keys to wanted rows, one row after another, with augmenting paths (Kuhn, 1955).

    Each key selects one position of one bucket. A row can have any key of the buckets in which it is stored.
    code: the batch code, which says where rows are stored. rows: the wanted rows, by their numbers in the table;
    methods name a row by its index in this list. keys: for each row of the list the number of its key, -1 if it has
    none.
    A row that has a key may later get another key instead, of another of its buckets, but it never ends without one.
    The sets of rows that can have keys together are the independent sets of a transversal matroid; so placing the most
    important rows first finds the most important set. The search for one row visits every key at most once.
    """

    def __init__(self, code: BatchCode, rows: Sequence[int]) -> None:
        buckets, inside = code.places(torch.tensor(rows, dtype=torch.int64))
        self.code, self._choices, self._inside = code, buckets.tolist(), inside.tolist()
        self._owner = [-1] * code.keys  # number of the row that each key serves
        self.keys = [-1] * len(rows)

    def place(self, number: int) -> bool:
        """Find a key for row `number` (its index in `rows`), if need be by giving other rows other keys.

        Returns False, and changes nothing, if there is no key for it.
        """
        rounds, reached = self.code.rounds, dict[int, int]()  # key: number of the row that would move to it
        queue = [number]
        for row in queue:
            for bucket in self._choices[row]:
                for key in range(bucket * rounds, (bucket + 1) * rounds):
                    if key in reached:
                        continue
                    reached[key] = row
                    if self._owner[key] < 0:
                        self._move(key, number, reached)
                        return True
                    queue.append(self._owner[key])
        return False

    def _move(self, key: int, number: int, reached: dict[int, int]) -> None:
        """Give row `number` a key, after a search has found one, and move other rows to other keys where this is
        needed.

        The row takes the key of another row, which takes the key of a third one, and so on; the last row takes the free
        key.
        key: the free key that the search found. reached: for each key that the search visited, the number of the row
        that takes it.
        """
        row = -1
        while row != number:
            row = reached[key]
            before, self.keys[row], self._owner[key] = self.keys[row], key, row
            key = before

    def inside(self) -> Tensor:
        """Return for each key the position in its bucket that it selects, int64 (keys,).

        A key without a row is a dummy and selects position 0; servers cannot distinguish it from other keys.
        """
        out = [0] * len(self._owner)
        for key, row in enumerate(self._owner):
            if row >= 0:
                out[key] = self._inside[row][self._choices[row].index(key // self.code.rounds)]
        return torch.tensor(out, dtype=torch.int64)


def checked(wanted: Tensor, rows: int) -> list[int]:
    """Convert the numbers of the wanted rows, int64 (N,), to a list.

    rows: number of rows in the table. Raises InputError for a row that is not in the table; the error names no row.
    """
    if wanted.dtype != torch.int64 or wanted.ndim != 1:
        what = f"wanted rows {wanted.dtype} {tuple(wanted.shape)}"
        raise InputError(what, where="wanted", hint="int64 (N,)")
    numbers: list[int] = wanted.tolist()
    if numbers and not 0 <= min(numbers) <= max(numbers) < rows:
        raise InputError("a wanted row is not in the table", where="wanted", hint=f"rows are 0 to {rows - 1}")
    return numbers
