"""Norms of rows in a known range: within their derived bound for every row of the range, and never too large below it."""

from __future__ import annotations

import math
import random
from collections import defaultdict

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird import cost
from hummingbird.bits import EXACT, BitConfig, Rows
from hummingbird.convert import build
from hummingbird.mpc import norms, norms_in_range
from hummingbird.mpc.layer import Lift, Spec
from hummingbird.mpc.norms import Norm
from hummingbird.mpc.polynomials import evaluate, root_at
from hummingbird.mpc.protocols import poly, rows
from hummingbird.mpc.protocols.registry import named
from hummingbird.ring import SCALE
from tests.support.operations import Function

UNIT = 2.0**-SCALE
LENGTHS = (1, 2, 3, 12, 96, 128, 768, 5000)
RANGES = {ratio: Rows(least, least * ratio) for ratio, least in ((1.01, 1e-3), (3.0, 0.4), (17.0, 2.0), (64.0, 0.05), (256.0, 40.0))}


def layer(length: int, rows: Rows, center: bool = True, eps: float = 1e-5) -> Norm:
    attrs = {"last": 1, "groups": None, "eps": eps, "center": center, "sizes": (length,)}
    return Norm(attrs, named("masked")(EXACT), rows)


def sample(length: int, rows: Rows, eps: float, scale: float = UNIT) -> Tensor:
    """Rows from end to end of the range, variance and eps together, of three kinds, with a mean besides.

    Of chance, of two values, and of one value that is not like the others, as large as a row's can be.
    """
    torch.manual_seed(length)
    variances = torch.linspace(math.log2(rows.least), math.log2(rows.most), 15, dtype=torch.float64).exp2() - eps
    chance = torch.randn(15, length, dtype=torch.float64)
    two = (torch.arange(length) % 2).double().expand(15, -1)
    alone = (torch.arange(length) == length // 2).double().expand(15, -1)
    out = []
    for kind in (chance, two, -alone):
        centered = kind - kind.mean(1, keepdim=True)
        deviation = centered.square().mean(1, keepdim=True).sqrt().clamp(min=1e-9)
        out.append(centered / deviation * variances.clamp(min=0).sqrt().unsqueeze(1) + 3 * torch.randn(15, 1))
    return (torch.cat(out) / scale).round() * scale


def bound(x: Tensor, wanted: Tensor, rows: Rows, parties: int, length: int) -> Tensor:
    """What the docstring of norms_in_range derives, and the rounding of the result: to 2^-28 or to 2^-16 by every party."""
    return wanted.abs() * (2.0**-14 + parties * 2.0**-15) + parties * 2.0**-17 + parties * 2.0**-17


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("ratio", RANGES)
@pytest.mark.parametrize("length", LENGTHS)
def test_rows_from_end_to_end_of_the_range_are_normed_within_the_bound(length: int, ratio: float, parties: int) -> None:
    assumed, eps = RANGES[ratio], 1e-5
    if length == 1:
        eps = assumed.least
    # Finer than 2^-16 in the ring: a factor of 4 before the norm leaves no rounding of the input.
    x = sample(length, assumed, eps, 2.0**-14)
    x = x[(x.var(1, unbiased=False) + eps - assumed.least >= 0) & (x.var(1, unbiased=False) + eps <= assumed.most)]
    assert len(x) >= 20
    net = nn.Sequential(nn.LayerNorm(length, eps, elementwise_affine=False)).eval()
    config = BitConfig(rows={"0": assumed})
    wanted = F.layer_norm(x, (length,), eps=eps)
    for mode in ("exact", "fast"):
        got = hummingbird.simulate(net, config, parties=parties, mode=mode, seed=1)(x.float()).double()
        error = (got - wanted).abs() / bound(x, wanted, assumed, parties, length)
        assert float(error.max()) <= 1, mode
