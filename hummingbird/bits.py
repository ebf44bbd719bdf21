"""Bit configurations: for each layer the window [k:m) of bits that decides a ReLU's sign, in a versioned JSON file.

A share s in Z_2^64 (fixed point, scale 2^16) is cut to (s >> m) mod 2^w, w = k - m: bits m..k-1. The sign of the sum
of the cut shares is the sign of x when -2^(k-1) <= x < 2^(k-1), up to the carry of the low m bits (HummingBird,
section 4).

A window with q also rounds: the layer's results are multiples of 2^(q-16), while k and m still count bits at scale
2^16. The lowest q bits are never opened, and bits max(m, q)..k-1 decide.

A configuration may also hold assumptions on the rows of softmaxes and norms, and on the values of functions (`Rows`).
"""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from hummingbird import records
from hummingbird.errors import ConfigError
from hummingbird.records import field as record_field

FORMAT = "hummingbird-bits"
VERSION = 3
_WHOLE = 16  # fraction bits of a layer's input and output, `ring.SCALE`: the most that q can round away
_MOST_WEIGHT_BITS = 20  # `ring.WEIGHT_SCALE`
_DEEPEST = 32  # nesting of provenance, far below the limit of Python's stack
_MOST_TEXT, _MOST_LAYERS = 16 << 20, 1 << 16  # bytes and layers of a file
_NUMBER = records.anything("a number")  # the record's own __post_init__ checks it


@dataclass(frozen=True, order=True)
class BitWindow:
    """A window: a comparison decides on the bits m..k-1 of each share, 0 <= m <= k <= 64.

    `BitWindow(64, 0)` compares exactly; `BitWindow(0, 0)` makes the layer an identity, such as a ReLU that is dropped.
    q: by how many of the 16 fraction bits the layer's results are rounded, 0 <= q <= 16; 0: no rounding.
    Raises ConfigError for other numbers, and for any other window without a bit: k = m, or k <= q with q > 0.

    >>> window = BitWindow(20, 12)  # right for -8 <= x < 8; values in [0, 1/16) may become 0
    >>> window.w, window.low
    (8, 12)
    >>> BitWindow(12, 20)
    Traceback (most recent call last):
        ...
    hummingbird.errors.ConfigError: window [12:20) has k < m
    hint: k is the upper bit, m the lower; BitWindow(20, 12) keeps 8 bits
    """

    k: int = record_field(_NUMBER)
    m: int = record_field(_NUMBER)
    q: int = record_field(_NUMBER, missing=True, default=0)

    def __post_init__(self) -> None:
        if not all(type(number) is int for number in (self.k, self.m, self.q)):
            got = f"k={self.k!r}, m={self.m!r}" + ("" if type(self.q) is int and self.q == 0 else f", q={self.q!r}")
            raise ConfigError(f"a window takes {'two' if 'q' not in got else 'three'} integers, got {got}")
        if self.k > 64 or self.m < 0:
            raise ConfigError(f"window [{self.k}:{self.m}) leaves the 64-bit ring", hint="use 0 <= m <= k <= 64")
        if self.k < self.m:
            raise ConfigError(
                f"window [{self.k}:{self.m}) has k < m",
                hint="k is the upper bit, m the lower; BitWindow(20, 12) keeps 8 bits",
            )
        if self.k == self.m and self.k != 0:
            raise ConfigError(
                f"window [{self.k}:{self.m}) keeps no bit", hint="write BitWindow(0, 0) to drop the ReLU (identity)"
            )
        if not 0 <= self.q <= _WHOLE:
            what = f"window {self} rounds away {self.q} of {_WHOLE} fraction bits"
            raise ConfigError(what, hint=f"use 0 <= q <= {_WHOLE}; q = 6 leaves 10 bits of fraction")
        if self.q and not self.q < self.k:
            what = f"window {self} keeps no bit: the lowest q = {self.q} are rounded away"
            raise ConfigError(what, hint="use q < k, or BitWindow(0, 0) to drop the ReLU (identity)")

    @property
    def low(self) -> int:
        """The number of the lowest bit of a share that decides a sign with this window: the larger of m and q."""
        return max(self.m, self.q)

    @property
    def w(self) -> int:
        """How many bits of a share decide a sign with this window: k - `low`."""
        return self.k - self.low

    def __str__(self) -> str:
        return f"[{self.k}:{self.m})" + (f" q={self.q}" if self.q else "")


@dataclass(frozen=True)
class Rows:
    """An assumption on every row of a softmax or of a norm, or on every value of a function, which costs less then.

    A row that breaks the assumption gives a random result, and no error. For a softmax over x, the assumption is: x
    minus the mean of its row is in [least, most], where least < 0 < most, and the mean of exp(x - mean) over a row is
    at most `sum` (None: the maximum that the range allows). For a norm, or another root of a row's squares: the number
    under the root, such as variance + eps, is 0 or in [least, most], 0 < least; no `sum`. For a function of one value,
    such as GELU or log, the value is in [least, most], and its result may err by `error` (None: as the window's m says,
    or 2^-12 if the function has no window). For a function of a recurrent layer, `state` bounds the magnitude of what
    the state adds to the value: then what the input adds is clamped to [least + state, most - state], for all time
    steps at once. Raises ConfigError for numbers that are not finite, least >= most, a sum below 1, an error below
    2^-12, and a state from which nothing is left for the input.

    >>> from hummingbird.bits import Rows
    >>> net = torch.nn.Sequential(net, torch.nn.Softmax(1))
    >>> config = BitConfig().with_rows({"1": Rows(-2, 2)})
    >>> hummingbird.estimate(net, (20, 4), config).rounds < hummingbird.estimate(net, (20, 4)).rounds
    True
    """

    least: float = record_field(_NUMBER)
    most: float = record_field(_NUMBER)
    sum: float | None = record_field(_NUMBER, left_out=True, default=None)
    error: float | None = record_field(_NUMBER, left_out=True, default=None)
    state: float | None = record_field(_NUMBER, left_out=True, default=None)

    def __post_init__(self) -> None:
        for name, value in (item for item in vars(self).items() if item[1] is not None or item[0] in ("least", "most")):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(abs(value)):
                raise ConfigError(f"{name} = {value!r} of rows", hint="a finite number")
            object.__setattr__(self, name, float(value))
        if not self.least < self.most:
            raise ConfigError(f"rows between {self.least:g} and {self.most:g}", hint="least is below most")
        if self.sum is not None and self.sum < 1:
            what = f"rows whose exponentials are {self.sum:g} on average"
            raise ConfigError(what, hint="the mean of exp(x - mean) is 1 or more for all rows")
        if self.error is not None and self.error < 2.0**-12:
            raise ConfigError(f"an error of {self.error:g}", hint="2**-12 or more: values have 16 bits of fraction")
        if self.state is not None and not 0 <= 2 * self.state < self.most - self.least:
            what = f"rows between {self.least:g} and {self.most:g} of which a state adds up to {self.state:g}"
            raise ConfigError(what, hint="0 or more, and less than half of most - least")

    def __str__(self) -> str:
        more = "".join(f" {name}={part:.6g}" for name, part in [*vars(self).items()][2:] if part is not None)
        return f"[{self.least:.6g}, {self.most:.6g}]{more}"


EXACT = BitWindow(64, 0)
_LAYERS = records.mapping(records.record(BitWindow), _MOST_LAYERS)
_PROVENANCE = records.mapping(records.anything(), _MOST_LAYERS, 1 << 16)
_SHOWN = 12  # lines for windows, and for rows, in a repr


class Frozen(dict[str, Any]):
    """A dict whose entries cannot be changed."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a bit configuration cannot change: make a new one, BitConfig(default, layers, provenance)")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> Frozen:
        return self  # its values are immutable too

    def __reduce__(self) -> tuple[type[Frozen], tuple[dict[str, Any]]]:
        return Frozen, (dict(self),)


@dataclass(frozen=True, repr=False)
class BitConfig:
    """A configuration of windows: it has one for every layer that compares. It is immutable and hashable.

    layers: windows by the layers' qualified names. default: the window of all other layers.
    provenance: how the windows were found (accuracy, seed, command ...). `check_use` compares its `net`, `protocol` and
        `parties` with the use of the windows; the other entries are only kept.
    input_range: the largest |input| for which the windows were made; None if not known.
    rows: assumptions on the rows of softmaxes and norms, by qualified name; none for layers that are not named.
    weight_bits: bits of fraction of the weights of linear layers and convolutions, and of factors, from 1 to 20. Fewer
        make layers cheaper. None: 20, and public weights before a coarse window have fewer, down to 16.
    Raises ConfigError, which names the layer, for invalid windows and rows, and for values that JSON cannot hold.

    >>> config = BitConfig(BitWindow(20, 12), layers={"1": BitWindow(18, 10)})
    >>> config.save("bits.json")
    >>> BitConfig.load("bits.json") == config
    True
    >>> config.window("1"), config.window("another")
    (BitWindow(k=18, m=10, q=0), BitWindow(k=20, m=12, q=0))
    """

    default: BitWindow = EXACT
    layers: Mapping[str, BitWindow] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    input_range: float | None = None
    rows: Mapping[str, Rows] = field(default_factory=dict)
    weight_bits: int | None = None

    def __post_init__(self) -> None:
        for what, value in (("layers", self.layers), ("provenance", self.provenance), ("rows", self.rows)):
            if not isinstance(value, Mapping):
                raise ConfigError(f"expected a mapping, got {type(value).__name__}", where=what)
        for where, window in (("default", self.default), *self.layers.items()):
            if not isinstance(where, str):
                raise ConfigError(f"a layer's name is a string, got {where!r}", where="layers")
            if not isinstance(window, BitWindow):
                pair = isinstance(window, (tuple, list)) and len(window) in (2, 3)
                hint = f"BitWindow({', '.join(map(repr, window))})" if pair else "BitWindow(20, 12) keeps bits 12 to 19"
                raise ConfigError(f"expected a BitWindow, got {window!r}", where=where, hint=hint)
        for name, assumed in self.rows.items():
            if not isinstance(name, str):
                raise ConfigError(f"a layer's name is a string, got {name!r}", where="rows")
            if not isinstance(assumed, Rows):
                raise ConfigError(f"expected Rows, got {assumed!r}", where=name, hint="Rows(least, most, sum)")
        found = self.input_range
        if found is not None and (isinstance(found, bool) or not isinstance(found, (int, float)) or not _finite(found)):
            hint = "the largest |input| as a number, 0 or more, or None"
            raise ConfigError(f"an input range of {found!r}", where="input_range", hint=hint)
        if (bits := self.weight_bits) is not None and (type(bits) is not int or not 1 <= bits <= _MOST_WEIGHT_BITS):
            hint = f"an integer from 1 to {_MOST_WEIGHT_BITS}, or None"
            raise ConfigError(f"weights with {bits!r} bits of fraction", where="weight_bits", hint=hint)
        object.__setattr__(self, "layers", Frozen(self.layers))
        object.__setattr__(self, "rows", Frozen(self.rows))
        object.__setattr__(self, "provenance", _frozen(self.provenance, "provenance"))

    def __repr__(self) -> str:
        lines = [f"default: {self.default}", *(f"{name}: {window}" for name, window in self.layers.items())]
        if len(lines) > _SHOWN:
            lines[_SHOWN - 1 :] = [f"... {len(lines) - _SHOWN + 1} more of {len(self.layers)} layers"]
        rows = [f"rows of {name}: {assumed}" for name, assumed in self.rows.items()]
        if len(rows) > _SHOWN:
            rows[_SHOWN - 1 :] = [f"... rows of {len(rows) - _SHOWN + 1} more of {len(self.rows)} layers"]
        lines += rows
        if self.input_range is not None:
            lines.append(f"for inputs |x| <= {self.input_range:g}")
        if self.weight_bits is not None:
            lines.append(f"weights: {self.weight_bits} bits of fraction")
        if self.provenance:
            lines.append(f"provenance: {len(self.provenance)} facts of how they were found")
        return "BitConfig(\n" + "".join(f"  {line}\n" for line in lines) + ")"

    def __hash__(self) -> int:
        both = frozenset(self.layers.items()), frozenset(self.rows.items())
        return hash((self.default, *both, self.input_range, self.weight_bits))

    @property
    def windows(self) -> BitConfig:
        """A copy of this configuration without its provenance and input range."""
        return replace(self, provenance={}, input_range=None)

    def window(self, name: str) -> BitWindow:
        """Return the window of the layer with this qualified name.

        A module that a net calls several times has the names `name`, `name#1`, `name#2` ...; a call that has no window
        of its own gets that of `name`. Layers without a window get the default.
        """
        return self.layers.get(name, self.layers.get(name.partition("#")[0], self.default))

    def rows_of(self, name: str) -> Rows | None:
        """Return the assumption on the rows of the layer with this qualified name; None if there is none.

        A module that a net calls several times has the names `name`, `name#1`, ...; a call without an assumption of its
        own gets that of `name`.
        """
        return self.rows.get(name, self.rows.get(name.partition("#")[0]))

    def with_rows(self, rows: Mapping[str, Rows]) -> BitConfig:
        """Return a copy of this configuration with other assumptions on the rows of some layers, by qualified name."""
        return replace(self, rows={**self.rows, **rows})

    def check_names(self, names: Iterable[str]) -> None:
        """Raise ConfigError if this configuration has a window for a layer that the net lacks.

        names: the qualified names of the net's layers that compare.
        """
        known = list(names)
        if unknown := sorted(set(self.layers) - set(known) - {name.partition("#")[0] for name in known}):
            raise ConfigError(
                f"the bit configuration names {unknown}, which the net lacks",
                hint=f"layers that compare in this net: {', '.join(known) or 'none'}",
            )

    def check_rows(self, kinds: Mapping[str, str]) -> None:
        """Raise ConfigError if this configuration's `rows` do not fit the net.

        kinds: the qualified names of the net's layers that have rows, each with "softmax", "norm" or "function". `rows`
        may name no other layers, and its numbers must be possible for the layer.
        """
        short = {name.partition("#")[0]: kind for name, kind in kinds.items()} | dict(kinds)
        if unknown := sorted(set(self.rows) - set(short)):
            what = f"the bit configuration has rows of {unknown}, which are no softmax, norm or function of the net"
            raise ConfigError(what, hint=f"softmaxes, norms and functions of this net: {', '.join(kinds) or 'none'}")
        for name, rows in self.rows.items():
            fits, hint = {
                "softmax": (rows.least < 0 < rows.most, "values less their mean: least < 0 < most, without error"),
                "norm": (rows.least > 0 and rows.sum is None, "variances: 0 < least < most, without sum and error"),
                "function": (rows.sum is None, "the range of its values, without sum"),
            }[short[name]]
            if not fits or ((rows.error, rows.state) != (None, None) and short[name] != "function"):
                raise ConfigError(f"rows {rows} of a {short[name]}", where=name, hint=hint)

    def check_use(self, net: Callable[[], Sequence[str]], protocol: str, parties: int | None) -> None:
        """Raise ConfigError if these windows were found for another net; warn if for another protocol or party count.

        The provenance says for what they were found; an entry that it lacks is not compared. With another protocol or
        number of parties the same windows decide more signs wrongly, or have a smaller range. net: a function that
        returns the fingerprints of the net in use; the provenance must name one of them. parties: number of parties in
        use, None if not known.
        """
        if "net" in self.provenance and self.provenance["net"] not in (own := net()):
            raise ConfigError(
                f"windows that were found for net {_short(self.provenance['net'])}, but this is net {own[0][:16]}",
                where="bits",
                hint="load the weights that they were found for, or find windows for these: `python -m hummingbird "
                "find-bits`",
            )
        found = self.provenance.get("protocol", protocol), self.provenance.get("parties", parties)
        # A session of one party computes for itself.
        if found[0] != protocol or (parties not in (None, 1) and found[1] != parties):
            used = f"{protocol}" + ("" if parties is None else f" with {parties} parties")
            options = f"--protocol {protocol}" + ("" if parties is None else f" --parties {parties}")
            warnings.warn(
                f"windows that were found for protocol {found[0]} with {found[1]} parties are used for {used}: answers "
                f"may change. `python -m hummingbird validate --bits FILE {options} --model MODULE:FUNCTION --data "
                "MODULE:FUNCTION` measures how many",
                stacklevel=4,
            )

    def plain(self) -> dict[str, Any]:
        """Return this configuration as JSON values (dicts, lists, numbers), as a file has them (docs/bit-config.md)."""
        ordered = {"layers": dict(sorted(self.layers.items())), "rows": dict(sorted(self.rows.items()))}
        return records.plain(BitsFile(**(vars(self) | ordered)))

    def to_json(self) -> str:
        """Return this configuration as the text of a file of windows (docs/bit-config.md)."""
        return json.dumps(self.plain(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str = "bit configuration") -> BitConfig:
        """Read the configuration from a text of `to_json`, as `from_plain`. where: the name of its file in errors."""
        data = records.parse(text, most=_MOST_TEXT, deepest=_DEEPEST + 8, **_how(where))
        return cls.from_plain(data, where=where)

    @classmethod
    def from_plain(cls, data: Any, *, where: str = "bit configuration") -> BitConfig:
        """Make a configuration from `data`, the JSON values (dicts, lists, numbers) that a file of windows holds.

        where: the name of the file in errors. Raises ConfigError for another format or version, unknown fields, and
        invalid windows.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ConfigError(
                f"not a {FORMAT} file", where=where, hint='the first key must be "format": "hummingbird-bits"'
            )
        version = data.get("version")
        if type(version) is not int or version not in _FILES:
            raise ConfigError(
                f"bit configuration version {version!r}, this release reads versions 1 to {VERSION}",
                where=where,
                hint="write it again with this release",
            )
        kind = records.through(records.record(_FILES[version]), lambda file: file.config, lambda config: config)
        config: BitConfig = records.of(data, kind, **_how(where))
        return config

    def save(self, path: str | Path) -> None:
        """Write this configuration to a file, as the text of `to_json`; `BitConfig.load` reads it."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def of(cls, bits: BitConfig | BitWindow | str | os.PathLike[str] | None) -> BitConfig:
        """Return the configuration that a user's argument `bits` describes.

        bits: a BitConfig, one window for all layers, the path of a file, or None for exact comparisons. Raises
        ConfigError for a missing or invalid file.
        """
        if bits is None:
            return cls(EXACT)
        if isinstance(bits, BitConfig):
            return bits
        if isinstance(bits, BitWindow):
            return cls(bits)
        if isinstance(bits, (str, os.PathLike)):
            return cls.load(Path(bits))
        hint = "its windows are its attribute .bits" if isinstance(getattr(bits, "bits", None), BitConfig) else ""
        what = f"expected a BitConfig, a BitWindow or a path, got {type(bits).__name__}"
        raise ConfigError(what, where="bits", hint=hint)

    @classmethod
    def load(cls, path: str | Path) -> BitConfig:
        """Read the configuration in a file of windows. Raises ConfigError for a missing or invalid file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            what = f"cannot read the bit configuration: {error.strerror}"
            raise ConfigError(what, where=str(path), hint=_instead_of(str(path))) from None
        except UnicodeDecodeError:
            raise ConfigError("not a JSON file: it is not text in UTF-8", where=str(path)) from None
        return cls.from_json(text, where=str(path))


def _instead_of(path: str) -> str:
    """Return the hint if no file of windows can be read at `path`, which may be a budget (6/64) or a window (20:0)."""
    if re.fullmatch(r"\d+(\.\d+)?/\d+", path):
        return f'find windows for this budget first: hummingbird.prepare(net, loader, "{path}"), or the command ' + (
            f"find-bits --budget {path} --out bits.json; then give bits.json"
        )
    if window := re.fullmatch(r"\[?(\d+):(\d+)\)?", path):
        k, m = window.groups()
        return f"one window for all layers is hummingbird.BitWindow({k}, {m}), or --window {k}:{m} of a command"
    return "a file that prepare, find-bits or BitConfig.save has written; is the path right, and may this user read it?"


@dataclass(frozen=True, kw_only=True)
class BitsFile:
    """The fields of a file of windows, in its newest version. Reading checks types, and `config` the numbers."""

    format: str = records.constant(FORMAT)
    version: int = record_field(records.one_of((2, VERSION)), default=VERSION)
    default: BitWindow = record_field(records.record(BitWindow), missing=True, default=EXACT)
    layers: Mapping[str, BitWindow] = record_field(_LAYERS, missing=True, default_factory=dict)
    input_range: float | None = record_field(records.anything("a number"), left_out=True, default=None)
    rows: Mapping[str, Rows] = record_field(
        records.mapping(records.record(Rows), _MOST_LAYERS), left_out=True, default_factory=dict
    )
    weight_bits: int | None = record_field(_NUMBER, left_out=True, default=None)
    provenance: Mapping[str, Any] = record_field(_PROVENANCE, missing=True, default_factory=dict)

    @property
    def config(self) -> BitConfig:
        """The `BitConfig` that this file holds. Raises ConfigError if its windows or rows are invalid."""
        return BitConfig(**{name: getattr(self, name) for name in BitConfig.__dataclass_fields__})


def _none(value: Any) -> NoReturn:
    raise records.Fault(f"is a field of version {VERSION}")


@dataclass(frozen=True, kw_only=True)
class BitsFile2(BitsFile):
    """The fields of a file of windows of version 2, which has neither `rows` nor `weight_bits`."""

    rows: Mapping[str, Rows] = record_field(records.Kind("nothing", _none), left_out=True, default_factory=dict)
    weight_bits: int | None = record_field(records.Kind("nothing", _none), left_out=True, default=None)


@dataclass(frozen=True)
class WindowFile1:
    """One window in a file of windows of version 1: k and m, without q."""

    k: int = record_field(_NUMBER)
    m: int = record_field(_NUMBER)


_WINDOW1 = records.through(records.record(WindowFile1), lambda file: BitWindow(file.k, file.m), lambda window: window)


@dataclass(frozen=True, kw_only=True)
class BitsFile1(BitsFile2):
    """The fields of a file of windows of version 1, whose windows have no q."""

    version: int = record_field(records.one_of((1,)), default=1)
    default: BitWindow = record_field(_WINDOW1, missing=True, default=EXACT)
    layers: Mapping[str, BitWindow] = record_field(
        records.mapping(_WINDOW1, _MOST_LAYERS), missing=True, default_factory=dict
    )


_FILES: dict[int, type[BitsFile]] = {1: BitsFile1, 2: BitsFile2, VERSION: BitsFile}


def _how(where: str) -> dict[str, Any]:
    hint = "a file that prepare, find-bits or BitConfig.save has written"
    return {"name": "bit configuration", "where": where, "hint": hint, "error": ConfigError}


def _short(fingerprint: Any) -> str:
    return str(fingerprint)[:16]


def _finite(number: float) -> bool:
    """Return whether a number is at least 0 and, as a float, finite."""
    try:
        return 0 <= float(number) < math.inf
    except OverflowError:
        return False


def _frozen(value: Any, where: str, depth: int = 0) -> Any:
    """Return an immutable copy of JSON values: dicts become `Frozen`, lists tuples. where: their name in errors.

    depth: how deep in the whole value this one is nested. Raises ConfigError for values that JSON does not have.
    """
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if depth == _DEEPEST:
        raise ConfigError(f"nested deeper than {_DEEPEST}", where=where)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return Frozen({key: _frozen(inner, f"{where}.{key}", depth + 1) for key, inner in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(inner, where, depth + 1) for inner in value)
    hint = "strings, numbers, None, and lists and dicts (with strings as keys) of them"
    raise ConfigError(f"JSON has no {type(value).__name__}", where=where, hint=hint)
