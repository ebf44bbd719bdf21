"""Measured seconds of a machine: samples of pieces of work, from which the seconds of other work are composed.

A row is one piece of work: its amount of each kind of work (multiplications, values, bits, ...), and samples of the
seconds of its parts, on `threads` cores. The seconds of measured work are its own samples. Other work is composed,

    seconds = sum over kinds of  c_kind * amount_kind,   c >= 0, with the least relative error over the rows' medians,

and the error of the composition is the leave-one-out error over the measured rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from hummingbird import kernels, records
from hummingbird.capacity.service import Compute, check_count, check_number
from hummingbird.errors import ConfigError, InputError
from hummingbird.fitting import nonnegative
from hummingbird.records import field
from hummingbird.version import VERSION as RELEASE

FORMAT = "hummingbird-profile"
VERSION = 1
_MOST_TEXT = 64 << 20  # bytes
_MOST_FACTORS = 256
_NUMBER = records.anything("a number")  # the record's own __post_init__ checks it
STEADY = 0.25  # largest spread of a valid measurement: beyond it the machine was busy with other work


@dataclass(frozen=True)
class Measurement:
    """One measured piece of work, a row of a profile.

    kind: the kind of service that does the work, such as "mpc masked"; seconds of work that was not measured are fitted
    to all rows of its kind. name: of the work. digest: a hash that identifies this work. amounts: how many units of
    each kind of work, such as products or bits, it has, by name. seconds: maps each part of the work, such as
    "compute", "expand" or "deal", to the measured seconds of several runs.
    """

    kind: str = field(records.text(1024))
    name: str = field(records.text(1024))
    digest: str = field(records.text(1024))
    amounts: Mapping[str, float] = field(records.mapping(_NUMBER, 1024))
    seconds: Mapping[str, tuple[float, ...]] = field(records.mapping(records.many(_NUMBER, 1 << 20), 1024))

    def __post_init__(self) -> None:
        for name, amount in self.amounts.items():
            check_number(amount, f"row {self.name}: amounts.{name}", 0, "work")
        for part, samples in self.seconds.items():
            if not samples:
                raise ConfigError("no samples", where=f"row {self.name}: seconds.{part}", hint="one or more")
            for sample in samples:
                check_number(sample, f"row {self.name}: seconds.{part}", 0, "seconds", above=True)


def spread(samples: Sequence[float]) -> float:
    """Compute the interquartile range of samples, divided by their median; 0 for a single sample."""
    if len(samples) < 2:
        return 0.0
    first, middle, third = statistics.quantiles(samples, n=4, method="inclusive")
    return (third - first) / middle


@dataclass(frozen=True)
class Seconds:
    """The seconds that one part of a piece of work takes, measured or composed from measurements of other work.

    mean: the mean over runs. factors: the measured seconds of several runs, divided by their mean. error: the relative
    error of composed seconds; 0 for measured ones.
    """

    mean: float
    factors: tuple[float, ...]
    error: float


@dataclass(frozen=True)
class Profile:
    """The measurements of one machine.

    machine: its description (`commands.program.machine`). threads: number of threads on which all work was measured.
    rows: the measurements.
    """

    machine: Mapping[str, str]
    threads: int
    rows: tuple[Measurement, ...]

    def __post_init__(self) -> None:
        check_count(self.threads, "threads", 1, "threads")

    def seconds(self, kind: str, part: str, amounts: Mapping[str, float], digest: str = "") -> Seconds:
        """Return the seconds that one part of a piece of work takes.

        kind: of the service that does the work, such as "mpc masked". part: such as "compute". amounts: how many units
        of each kind of work there are, by name. digest: identifies the work. If a row of this profile has this digest,
        the result is the row's measured seconds; else the seconds are composed from `amounts`, by a fit to all rows of
        this kind. Raises ConfigError if no such work was measured.
        """
        rows = [row for row in self.rows if row.kind == kind and part in row.seconds]
        same = [row for row in rows if digest and row.digest == digest]
        if not same and len(rows) < 2:
            raise ConfigError(f"no measurements of {kind}: {part}", where="profile", hint=command(kind))
        used = same[:1] or rows
        spread = sorted(sample / statistics.median(row.seconds[part]) for row in used for sample in row.seconds[part])
        spread = spread[:: -(-len(spread) // _MOST_FACTORS)]
        mean = statistics.fmean(spread)
        factors = tuple(factor / mean for factor in spread)
        if same:
            return Seconds(mean * statistics.median(same[0].seconds[part]), factors, 0.0)
        return Seconds(mean * _composed(rows, part, amounts), factors, _error(rows, part))

    def compute(self, host: str, seconds: Seconds) -> Compute:
        """Make the work (`Compute`) of a step on `host` that takes `seconds` on `Profile.threads` of the
        host's cores.
        """
        return Compute(host, seconds.mean * self.threads, self.threads)

    def origin(self, *parts: Seconds) -> str:
        """Return a note for users: whether the seconds of some work were measured or composed, and on which machine.

        parts: the seconds of each part of the work. For composed seconds the note has the relative error of the sum of
        all parts, as if all parts erred in the same direction. A note on measurements that vary too much is added.
        """
        error = sum(part.error * part.mean for part in parts) / sum(part.mean for part in parts)
        composed = f"composed of its layers (error {100 * error:.0f} % on what was measured)"
        how = composed if error else "measured"
        found = f"seconds {how}: {self.machine.get('cpu', 'an unnamed CPU')}, {self.threads} thread(s)"
        if (widest := max(spread(part.factors) for part in parts)) > STEADY:
            found += f"\nthe samples of a part spread by {100 * widest:.0f} %, which is no measurement: "
            found += "calibrate again, on an idle machine"
        return found

    def to_text(self) -> str:
        """Return the profile as JSON."""
        file = ProfileFile(machine=self.machine, threads=self.threads, rows=self.rows)
        return records.write(file, indent=1) + "\n"


@dataclass(frozen=True, kw_only=True)
class ProfileFile:
    """A profile as a record, for its file; the fields are in the file's order."""

    format: str = records.constant(FORMAT)
    version: int = records.constant(VERSION)
    machine: Mapping[str, str] = field(records.mapping(records.anything(), 256))
    threads: int = field(_NUMBER)
    rows: tuple[Measurement, ...] = field(records.many(records.record(Measurement), 1 << 20))


def command(kind: str) -> str:
    """Return a sentence for an error's hint: which command measures rows of this kind for a profile.

    kind: such as "mpc masked"; its first word is a section of the program `calibrate`.
    """
    return f"python -m scripts.tools.calibrate --only {kind.split()[0]} --json profile.json measures them"


def _composed(rows: Sequence[Measurement], part: str, amounts: Mapping[str, float]) -> float:
    """Compute the seconds of one part of a piece of work from other work that was measured.

    They are a sum: for each kind of work, the amount times the seconds of one unit, which are fitted to the rows. rows:
    the measurements. part: such as "compute". amounts: how many units of each kind of work there are, by name. Raises
    ConfigError for a kind of work that no row has.
    """
    names = sorted({name for row in rows for name in row.amounts})
    if unknown := sorted(set(amounts) - set(names)):
        raise ConfigError(f"no measurement of {unknown[0]}", where="profile", hint="calibrate with this release")
    table = [[row.amounts.get(n, 0.0) / statistics.median(row.seconds[part]) for n in names] for row in rows]
    found = nonnegative(torch.tensor(table, dtype=torch.float64)).tolist()
    return sum(each * amounts.get(name, 0.0) for each, name in zip(found, names, strict=True))


def _error(rows: Sequence[Measurement], part: str) -> float:
    """Return how wrong composed seconds are: the mean relative error over these rows, for one part of their work.

    For each row the part's seconds are composed from all other rows, and compared with the median of the measured
    seconds. part: such as "compute".
    """
    errors = []
    for row in rows:
        measured = statistics.median(row.seconds[part])
        others = [other for other in rows if other is not row]
        known = {name for other in others for name in other.amounts}
        amounts = {name: amount for name, amount in row.amounts.items() if name in known}
        errors.append(abs(_composed(others, part, amounts) / measured - 1))
    return statistics.fmean(errors)


def load(path: str | PathLike[str]) -> Profile:
    """Read a profile from a file.

    Raises InputError for a damaged file, another release, or other kernels than are active.

    >>> profile = capacity.load_profile("profile.json")  # python -m scripts.tools.calibrate --json profile.json
    >>> sorted({row.kind for row in profile.rows})
    ['crypten', 'he client-aided', 'mpc gmw', 'mpc masked', 'pir']
    """
    where = str(path)
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        hint = "python -m scripts.tools.calibrate --json profile.json writes one"
        raise InputError(f"cannot be read: {error}", where=where, hint=hint) from None
    return from_text(text, where)


def from_text(text: str, where: str) -> Profile:
    """Parse the text that `Profile.to_text` returned; return the profile.

    where: the file, for errors. Raises InputError for a damaged text, another release, or other kernels than are
    active.
    """
    hint = "python -m scripts.tools.calibrate --json profile.json writes one"
    how: Any = {"name": "profile", "where": where, "hint": hint}
    data = records.parse(text, most=_MOST_TEXT, **how)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f"no {FORMAT}", where=where, hint=hint)
    if (version := data.get("version")) != VERSION:
        what = f"version {str(version)[:32]} of the format, this release reads {VERSION}"
        raise InputError(what, where=where, hint=hint)
    found = records.of(data, ProfileFile, **how)
    _check_machine(found.machine, where)
    kind = records.through(records.anything(), lambda file: Profile(file.machine, file.threads, file.rows), str)
    profile: Profile = records.of(found, kind, **how)
    return profile


def _check_machine(machine: Mapping[str, Any], where: str) -> None:
    """Raise InputError unless a profile's measurements are from this release and with the kernels that are active here.

    machine: the profile's description of the measured machine. where: the file, for the error.
    """
    for name, has, here in (
        ("release", machine.get("hummingbird"), RELEASE),
        ("kernels", machine.get("kernels"), kernels.active()),
    ):
        if has != here:
            what = f"measured with {name} {str(has)[:32]}, here are {name} {here}"
            hint = "calibrate again with what is here: python -m scripts.tools.calibrate --json profile.json"
            raise InputError(what, where=where, hint=hint)
