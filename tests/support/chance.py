"""Bounds that chance exceeds in less than one look of 10^12, so that no test fails by its draws."""

from __future__ import annotations

import math

_DRAWS = 28.5  # e^-28.5 = 4e-13

# Of a fair coin's count, in units of sqrt(n) / 2: beyond it with chance below 2 exp(-DEVIATIONS^2 / 2) (Hoeffding
# 1963); of a mean of many independent numbers likewise, as nearly as it is normal.
DEVIATIONS = math.sqrt(2 * (_DRAWS + math.log(2)))  # 7.6


def chi_square_limit(cells: int) -> float:
    """A bound that chi-square of so many cells exceeds with chance e^-28.5 (Laurent and Massart 2000, lemma 1)."""
    return cells - 1 + 2 * math.sqrt(_DRAWS * (cells - 1)) + 2 * _DRAWS
