"""Which bits of a share decide a ReLU: one window [k:m) per layer, kept in a versioned JSON file.

A share s in Z_2^64 (fixed point, scale 2^16) is cut to (s >> m) mod 2^w, w = k - m: bits m..k-1. The sign of the sum
of the cut shares is the sign of x when -2^(k-1) <= x < 2^(k-1), up to the carry of the low m bits (HummingBird,
section 4).
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hummingbird.errors import ConfigError

FORMAT = "hummingbird-bits"
VERSION = 1


@dataclass(frozen=True, order=True)
class BitWindow:
    """Bits m..k-1 of each share, 0 <= m <= k <= 64. `BitWindow(64, 0)` is exact; w = 0 makes the layer an identity."""

    k: int
    m: int

    def __post_init__(self) -> None:
        if (
            not (isinstance(self.k, int) and isinstance(self.m, int))
            or isinstance(self.k, bool)
            or isinstance(self.m, bool)
        ):
            raise ConfigError(f"a window takes two integers, got k={self.k!r}, m={self.m!r}")
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

    @property
    def w(self) -> int:
        """Number of bits kept."""
        return self.k - self.m

    def __str__(self) -> str:
        return f"[{self.k}:{self.m})"


EXACT = BitWindow(64, 0)


@dataclass(frozen=True)
class BitConfig:
    """A window for every layer that compares: `layers` by qualified name, `default` for the rest.

    provenance: how the windows were found (net hash, data, seed, accuracy, command): carried, not interpreted.
    """

    default: BitWindow = EXACT
    layers: Mapping[str, BitWindow] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def window(self, name: str) -> BitWindow:
        """The window of a layer; the second call of a reused module, `name#1`, falls back to `name`."""
        return self.layers.get(name, self.layers.get(name.partition("#")[0], self.default))

    def check_names(self, names: Iterable[str]) -> None:
        """Raise ConfigError if a layer is named that is not among `names` (the layers of the net that compare)."""
        known = list(names)
        known_set = set(known) | {name.partition("#")[0] for name in known}
        unknown = sorted(set(self.layers) - known_set)
        if unknown:
            raise ConfigError(
                f"the bit configuration names {unknown}, which the net lacks",
                hint=f"layers that compare in this net: {', '.join(known) or 'none'}",
            )

    def to_json(self) -> str:
        """The file's text (docs/bit-config.md)."""
        layers = {name: {"k": window.k, "m": window.m} for name, window in sorted(self.layers.items())}
        default = {"k": self.default.k, "m": self.default.m}
        data = {
            "format": FORMAT,
            "version": VERSION,
            "default": default,
            "layers": layers,
            "provenance": dict(self.provenance),
        }
        return json.dumps(data, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str = "bit configuration") -> BitConfig:
        """Parse `to_json`'s text; ConfigError for another format, another version, unknown keys or wrong windows."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"not a JSON file: {error}", where=where) from None
        except RecursionError:
            raise ConfigError("not such a file: its values are nested too deeply", where=where) from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ConfigError(
                f"not a {FORMAT} file", where=where, hint='the first key must be "format": "hummingbird-bits"'
            )
        if data.get("version") != VERSION:
            raise ConfigError(
                f"bit configuration version {data.get('version')!r}, this release reads version {VERSION}",
                where=where,
                hint="write it again with this release",
            )
        extra = set(data) - {"format", "version", "default", "layers", "provenance"}
        layers = data.get("layers", {})
        if extra or not isinstance(layers, dict) or not isinstance(data.get("provenance", {}), dict):
            raise ConfigError(f"unknown or malformed keys {sorted(extra) or 'layers, provenance'}", where=where)
        return cls(
            default=_window(data.get("default", {"k": 64, "m": 0}), f"{where}: default"),
            layers={name: _window(value, f"{where}: {name}") for name, value in layers.items()},
            provenance=data.get("provenance", {}),
        )

    def save(self, path: str | Path) -> None:
        """Write `to_json()` to a file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> BitConfig:
        """Read a file written by `save`; ConfigError says what is wrong with it."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot read the bit configuration: {error.strerror}", where=str(path)) from None
        except UnicodeDecodeError:
            raise ConfigError("not a JSON file: it is not text in UTF-8", where=str(path)) from None
        return cls.from_json(text, where=str(path))


def _window(value: Any, where: str) -> BitWindow:
    if not isinstance(value, dict) or set(value) != {"k", "m"}:
        raise ConfigError(f'a window is {{"k": ..., "m": ...}}, got {reprlib.repr(value)}', where=where)
    try:
        return BitWindow(value["k"], value["m"])
    except ConfigError as error:
        raise ConfigError(error.what, where=where, hint=error.hint) from None
