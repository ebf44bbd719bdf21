"""Quantities with units: parsers for options, such as `20/min`, `64GB`, `352mbit`, `2s`, and texts for tables."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping

_PER = {"/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600, "/day": 1 / 86400}
_SIZES = {
    "": 1.0,
    "B": 1.0,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
}
_LINKS = {"": 1.0, "bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0, "": 1.0}
_WORDS = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)")


def rate(text: str) -> float:
    """Parse a rate such as 5/s, 20/min, 1000/h or 3/day; returns requests per second."""
    return _parse(text, _PER, "a rate", "20/min")


def size(text: str) -> float:
    """Parse a size such as 64GB, 512MiB or 1000; returns bytes."""
    return _parse(text, _SIZES, "a size", "64GB")


def link(text: str) -> float:
    """Parse a bandwidth such as 352mbit or 10gbit; returns bits per second."""
    return _parse(text, _LINKS, "a link", "352mbit")


def seconds(text: str) -> float:
    """Parse a time such as 2s, 20ms or 24h; returns seconds."""
    return _parse(text, _TIMES, "a time", "2s")


def _parse(text: str, units: Mapping[str, float], what: str, example: str) -> float:
    """Parse a number with a unit, such as "20ms", and return it times the unit's factor.

    units: the factor of each unit, by its name in the text. what: a word for the quantity, for errors. example: a valid
    text, for errors. Raises ArgumentTypeError unless the number is finite and above 0.
    """
    found = _WORDS.fullmatch(text.strip())
    known = {name.lower(): factor for name, factor in units.items()}
    try:
        value = float(found[1]) * known[found[2].lower()] if found else math.nan
    except (ValueError, KeyError):
        value = math.nan
    if math.isnan(value):
        names = ", ".join(name for name in units if name)
        bare = next((f"; without one {name}" for name in units if name and units.get("") == units[name]), "")
        raise argparse.ArgumentTypeError(f"{text!r} is not {what} such as {example} (units: {names}{bare})")
    if not 0 < value < math.inf:
        problem = "is not above 0" if value < math.inf else "is no finite number"
        raise argparse.ArgumentTypeError(f"{text!r} {problem}: give {what} such as {example}")
    return value


def shown_seconds(value: float) -> str:
    """Format a number of seconds: 35.2 ms, 2.41 s, 30.1 min, 5.2 h."""
    if not math.isfinite(value):
        return "-"
    name = next((n for n in ("h", "min", "s") if value >= _TIMES[n] * (3 if n != "s" else 1)), "ms")
    return f"{value / _TIMES[name]:.3g} {name}"


def shown_rate(value: float) -> str:
    """Format a number of requests per second: 5.2/s, 20/min, 3.1/h."""
    name = next((n for n in ("/s", "/min", "/h") if value >= _PER[n]), "/day")
    return f"{value / _PER[name]:.3g}{name}"


def shown_bytes(value: float) -> str:
    """Format a number of bytes: 8.95 MB."""
    name = next((n for n in ("TB", "GB", "MB", "kB") if value >= _SIZES[n]), "B")
    return f"{value / _SIZES[name]:.3g} {name}"
