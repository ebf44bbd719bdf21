"""A plan for the lookups of one inference: a small hot table, the full table, and companions stored with each row.

The three techniques of Lam et al. (ASPLOS 2024, section 4), each optional: partial batch retrieval (`BatchCode` with
one choice; the cuckoo code can replace it), a hot table, and co-location. Every inference sends the same number of keys
in the same order: for the hot table's buckets, then for the full table's. A hot row gets a key in the hot table if
possible, otherwise in the full table, which holds all rows. A row without a key is dropped, which is not visible in the
messages; its embedding is a zero vector. Companions arrive with the row that stores them, and need no key.

The plan is public. The client's computing time depends on the wanted rows: send queries at fixed times, not when the
keys are ready.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hummingbird import records
from hummingbird.errors import AgreementError, ConfigError, HummingbirdError, InputError
from hummingbird.pir.batching.batch_code import Assignment, BatchCode, checked
from hummingbird.pir.table import Facts
from hummingbird.records import field

_FILE = "hummingbird plan 1"
_MOST_TEXT = 1 << 30  # bytes
_HINT = "Plan.to_json and search.pir_plan --plan make such files"
# Errors from a damaged file; torch raises RuntimeError for ragged and for deeply nested lists.
_DAMAGED = (ValueError, TypeError, OverflowError, RuntimeError, HummingbirdError)


class Lookup(NamedTuple):
    """The keys that one inference sends, and where the client finds the wanted rows in the answers.

    inside: int64 (keys,), for each key the position that it selects in its bucket, the hot table's keys first.
    key: int64 (N,), for each wanted row the number of the key that brings it; -1 for a dropped row.
    part: int64 (N,), for each wanted row its place in the record that this key brings: 0 if the record is the row's
    own, c if the row is companion number c of the record's row.
    """

    inside: Tensor
    key: Tensor
    part: Tensor


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A plan as a record, for its file. hot_rows, companions: lists of row numbers, checked later, as tensors."""

    format: str = records.constant(_FILE)
    full: BatchCode = field(records.record(BatchCode))
    hot: BatchCode | None = field(records.maybe(records.record(BatchCode)))
    hot_rows: Any = field(records.anything("a list of rows"))
    companions: Any = field(records.anything("lists of rows"))


@dataclass(frozen=True, eq=False)
class Plan:
    """A public plan for the lookups of an inference, which the client and both servers share.

    full: the batch code of the table with all rows.
    hot: the batch code of the hot table, a small second table with a copy of the rows most often wanted; None: there is
    no hot table. hot_rows: numbers of the rows in it, int64 (H,).
    companions: for each row the C other rows that are stored in its record too, int64 (rows, C), -1 for none; None: no
    companions. A key that selects a record brings all of its rows.
    Raises ConfigError if these do not fit each other.

    >>> from pathlib import Path
    >>> plan = pir.Plan(pir.BatchCode.cuckoo(rows=1000, wanted=8))
    >>> plan.keys, len(plan.codes)
    (12, 1)
    >>> Path("plan.json").write_text(plan.to_json()) == len(plan.to_json())
    True
    >>> pir.Plan.load(Path("plan.json")).keys
    12
    """

    full: BatchCode
    hot: BatchCode | None = None
    hot_rows: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    companions: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.hot_rows) != (self.hot.rows if self.hot else 0):
            hint = "the hot table's code has a row for each hot row"
            raise ConfigError(f"{len(self.hot_rows)} hot rows and a code {self.hot}", where="Plan", hint=hint)
        if self.companions is not None and len(self.companions) != self.full.rows:
            what = f"companions of {len(self.companions)} rows in a table of {self.full.rows}"
            raise ConfigError(what, where="Plan", hint="one line of companions for each row")

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Load a plan from a file that has the text of `to_json`. Raises InputError for any other file."""
        try:
            found = records.read(path.read_bytes(), PlanFile, name="plan", most=_MOST_TEXT, where=str(path), hint=_HINT)
            rows = found.full.rows
            beside = None if found.companions is None else _rows(found.companions, -1, rows, 2)
            plan = cls(found.full, found.hot, _rows(found.hot_rows, 0, rows, 1), beside)
        except InputError:
            raise
        except OSError as error:
            raise InputError(f"cannot read the plan: {error.strerror}", where=str(path)) from None
        except _DAMAGED as error:
            raise InputError(f"malformed plan: {str(error)[:200]}", where=str(path), hint=_HINT) from None
        return plan

    def to_json(self) -> str:
        """Return the plan as the text of a file that clients and both servers `load`; the plan is public."""
        beside = None if self.companions is None else self.companions.tolist()
        file = PlanFile(full=self.full, hot=self.hot, hot_rows=self.hot_rows.tolist(), companions=beside)
        return records.write(file) + "\n"

    @cached_property
    def where_hot(self) -> dict[int, int]:
        """The position of each hot row in the hot table: a dict from row number to position."""
        return {row: place for place, row in enumerate(self.hot_rows.tolist())}

    @property
    def codes(self) -> tuple[BatchCode, ...]:
        """The batch codes of the plan's tables, in the order in which their keys are sent: a tuple.

        First comes the hot table's code, if there is a hot table, then the code of the table with all rows.
        """
        return (self.hot, self.full) if self.hot else (self.full,)

    @property
    def keys(self) -> int:
        """Number of keys that every inference sends to each server."""
        return sum(code.keys for code in self.codes)

    @property
    def parts(self) -> int:
        """Number of rows in a record: one for the row itself, and one for each companion."""
        return 1 + (0 if self.companions is None else self.companions.shape[1])

    def facts(self, code: BatchCode, table: Facts) -> Facts:
        """Return the facts (size and type) of one bucket of a batch code; the server of its buckets reports them as its
        own.

        code: the batch code, one of `codes`. table: the facts of the table for which the plan is made.
        """
        return replace(table, rows=code.bucket_rows, dim=self.parts * table.dim, parts=self.parts)

    def table(self, bucket: Facts) -> Facts:
        """Compute the facts (size and type) of the table for which the plan is made, from those of one bucket.

        bucket: facts of a bucket of any of the plan's tables, as its server reports them. Raises AgreementError for a
        bucket of another plan.
        """
        if bucket.parts != self.parts:
            what = f"a bucket holds {bucket.text()}, this plan's {self.parts} rows in one"
            raise AgreementError(what, where="Plan", hint="client and servers need the same plan")
        return replace(bucket, rows=self.full.rows, dim=bucket.dim // self.parts, parts=1)

    def layouts(self) -> list[Tensor]:
        """Return for each batch code of the plan the rows to store in its buckets: int64 (buckets, bucket_rows, parts).

        A position in a bucket has the record of one row: the number of this row, and those of its companions. -1 stands
        for zeros in place of a row.
        """
        return [self._layout(code, code is self.hot) for code in self.codes]

    def touched(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        """List which records must be changed, in each of the plan's tables, when some rows change.

        rows: numbers of the changed rows, int64 (N,). Returns a pair of tensors for each of `codes`: the numbers of the
        records in that table, int64 (n,), and the numbers of the rows that each of these records holds, int64 (n,
        parts), -1 for zeros in place of a row.
        """
        rows = rows.unique()
        if self.companions is not None:  # all records that contain one of the rows
            rows = torch.cat([rows, torch.isin(self.companions, rows).any(1).nonzero().flatten()]).unique()
        found = []
        for code in self.codes:
            own = torch.isin(self.hot_rows, rows).nonzero().flatten() if code is self.hot else rows
            stored = self.hot_rows[own] if code is self.hot else own
            found.append((own, self._records(stored)))
        return found

    def _layout(self, code: BatchCode, hot: bool) -> Tensor:
        places = code.layout()
        return self._records(torch.where(places < 0, -1, self.hot_rows[places]) if hot else places)

    def _records(self, rows: Tensor) -> Tensor:
        """Return which rows are stored in the records of some rows: numbers of rows, int64 (*, parts).

        A record has the row itself first, and then its companions; -1 stands for zeros in place of a row.
        rows: numbers of rows, int64 (*), -1 for an empty record.
        """
        if self.companions is None:
            return rows[..., None]
        beside = torch.where(rows[..., None] < 0, -1, self.companions[rows])
        return torch.cat([rows[..., None], beside], -1)

    def look_up(self, wanted: Tensor) -> Lookup:
        """Decide which keys bring the wanted rows, keys of the hot table or of the full table; return a `Lookup`.

        wanted: numbers of rows, int64 (N,); equal rows share a key. If there are too few keys, earlier rows get them.
        Raises InputError for a row that is not in the table.
        """
        distinct = list(dict.fromkeys(checked(wanted, self.full.rows)))
        number = {row: place for place, row in enumerate(distinct)}
        brought = self._brought(distinct, number)
        placing = _Placing(self, distinct)
        cover: dict[int, tuple[int, int]] = {}  # wanted row: the row whose record has it, and the part
        for row in _chosen(brought):
            if placing.place(row):
                cover[row] = (row, 0)
        for row in list(cover):
            for part, other in brought[row]:
                cover.setdefault(other, (row, part))
        for row in range(len(distinct)):
            if row not in cover and placing.place(row):
                cover[row] = (row, 0)
                for part, other in brought[row]:
                    cover.setdefault(other, (row, part))
        keys, missing = placing.keys(), (-1, 0)
        sources = [cover.get(number[row], missing) for row in wanted.tolist()]
        key = [keys[row] if row >= 0 else -1 for row, _ in sources]
        parts = torch.tensor([part for _, part in sources], dtype=torch.int64)
        return Lookup(placing.inside(), torch.tensor(key, dtype=torch.int64), parts)

    def _brought(self, distinct: list[int], number: dict[int, int]) -> list[list[tuple[int, int]]]:
        """List for each wanted row which other wanted rows come with it, because they are its companions.

        distinct: the wanted rows, each once. number: maps a wanted row to its index in `distinct`.
        Returns a list for each wanted row. It has a pair for each such companion: its place in the record, and its
        index in `distinct`.
        """
        if self.companions is None:
            return [[] for _ in distinct]
        beside = self.companions[torch.tensor(distinct, dtype=torch.int64)].tolist()
        return [[(part, number[row]) for part, row in enumerate(rows, 1) if row in number] for rows in beside]


def _rows(listed: Any, least: int, size: int, dim: int) -> Tensor:
    """Convert row numbers from a file, a list or lists of lists, to a tensor int64 of `dim` dimensions.

    listed: the lists. least: the smallest number allowed. size: number of rows in the table; the largest number allowed
    is size - 1. Raises ValueError for other numbers.
    """
    rows = torch.tensor(listed) if listed else torch.empty(0, dtype=torch.int64)
    if rows.dim() != dim or rows.dtype != torch.int64 or not ((rows >= least) & (rows < size)).all():
        raise ValueError("rows that are not in the table")
    return rows


def _chosen(brought: list[list[tuple[int, int]]]) -> list[int]:
    """Choose a few wanted rows whose records together hold all wanted rows, by a greedy set cover.

    brought: for each wanted row a list of pairs, one for each other wanted row in its record: the place in the record,
    and the row's index. Returns the indices of the chosen rows, ascending.
    """
    covered: set[int] = set()
    chosen = []
    for row in sorted(range(len(brought)), key=lambda row: -len(brought[row])):
        if row not in covered:
            chosen.append(row)
            covered.update(other for _, other in brought[row])
    return sorted(chosen)


class _Placing:
    """Gives the keys of a plan's two tables to wanted rows: a key of the hot table first, else one of the full table.

    distinct: the wanted rows, each once; methods name a row by its index in this list.
    """

    def __init__(self, plan: Plan, distinct: list[int]) -> None:
        hot = [(number, plan.where_hot[row]) for number, row in enumerate(distinct) if row in plan.where_hot]
        self._hot_number = {number: place for place, (number, _) in enumerate(hot)}
        self._hot = Assignment(plan.hot, [row for _, row in hot]) if plan.hot else None
        self._full = Assignment(plan.full, distinct)

    def place(self, number: int) -> bool:
        """Find a key for a wanted row: one of the hot table if that holds the row and has a key left, else one of the
        full table.

        The hot table is a small second table of the rows most often wanted. number: the row's index in the list
        `distinct` of wanted rows. Returns whether there is a key for the row.
        """
        hot = self._hot_number.get(number)
        return (hot is not None and self._hot is not None and self._hot.place(hot)) or self._full.place(number)

    def keys(self) -> list[int]:
        """Return for each wanted row the number of its key, -1 for a row without a key.

        The hot table's keys are numbered first.
        """
        if self._hot is None:
            return self._full.keys
        before = self._hot.code.keys
        keys = [key + before if key >= 0 else -1 for key in self._full.keys]
        for number, place in self._hot_number.items():
            if self._hot.keys[place] >= 0:
                keys[number] = self._hot.keys[place]
        return keys

    def inside(self) -> Tensor:
        """Return for every key the position that it selects in its bucket, int64 (keys,). The hot table's keys come
        first.
        """
        return torch.cat([part.inside() for part in (self._hot, self._full) if part is not None])
