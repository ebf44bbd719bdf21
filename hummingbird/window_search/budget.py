"""A budget as people write it: 8/64 of all bits, 120kB, 0.05 seconds."""

from __future__ import annotations

from fractions import Fraction

from hummingbird.errors import ConfigError

_SIZES = {"kB": 1000, "MB": 1000_000}
_HINTS = {"bits": "a fraction of 64 bits, such as 8/64", "bytes": "such as 120kB or 1.5MB", "seconds": "such as 0.05"}


def read_budget(text: str, objective: str, where: str = "budget") -> Fraction:
    """A budget in the unit of an objective. ConfigError for what is no number, not above 0, or above 1 in bits."""
    size, factor = text, 1
    if objective == "bytes" and text[-2:] in _SIZES:
        size, factor = text[:-2], _SIZES[text[-2:]]
    above, *below = size.split("/")
    hint = _HINTS.get(objective, "a number above 0")
    try:
        if below and objective != "bits":
            raise ValueError("a fraction of what?")
        (divisor,) = below or ["1"]
        budget = Fraction(above) / Fraction(divisor) * factor
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"{text!r} is no budget of {objective}", where=where, hint=hint) from None
    if budget <= 0 or (objective == "bits" and budget > 1):
        raise ConfigError(f"a budget of {text} {objective}", where=where, hint=hint)
    return budget
