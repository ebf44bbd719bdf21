"""Norms: within their derived bound at every variance that fixed point holds, and noise beyond it is announced."""

from __future__ import annotations

import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hummingbird
from hummingbird.bits import EXACT, BitWindow
from hummingbird.convert import build
from hummingbird.errors import InputError
from hummingbird.mpc.functions.polynomials import ROOT_AT, evaluate
from hummingbird.mpc.layers import norms
from hummingbird.mpc.layers.arithmetic import REALS
from hummingbird.mpc.layers.layer import Spec
from hummingbird.mpc.layers.norms import Norm
from hummingbird.mpc.protocols import beaver, poly
from hummingbird.mpc.protocols.lift import lift_price
from hummingbird.mpc.protocols.registry import PROTOCOLS, named
from hummingbird.mpc.protocols.truncation import truncate_price
from hummingbird.ring import SCALE
from tests.support.covering import covering, every
from tests.support.operations import Function
from tests.support.parties import succeed

UNIT = 2.0**-SCALE


def rows(length: int, deviations: torch.Tensor) -> torch.Tensor:
    """A row for each deviation, (rows, length), with a mean besides."""
    torch.manual_seed(3)
    return torch.randn(len(deviations), length) * deviations.unsqueeze(1) + deviations.unsqueeze(1).clamp(max=3)


@covering(
    "protocol, parties, length, eps",
    [("masked", 2), ("gmw", 3)],
    [(1, 1e-5), (12, 1e-5), (64, 1e-12), (768, 1e-6)],
)
def test_rows_of_every_variance_are_normed_within_the_bound(
    protocol: str, parties: int, length: int, eps: float
) -> None:
    # From a hundredth of what fixed point tells apart to almost the largest sum of squares.
    least, most = -12.0, norms.TOP / 2 - math.log2(max(length, 4)) / 2 - 2
    x = rows(length, torch.linspace(least, most, 40).exp2())
    x = (x / UNIT).round() * UNIT
    net = Function(lambda x: F.layer_norm(x, (length,), eps=eps))
    got = hummingbird.simulate(net.eval(), protocol=protocol, parties=parties, mode="exact")(x).double()
    wanted = F.layer_norm(x.double(), (length,), eps=eps)
    variance = x.double().var(1, unbiased=False, keepdim=True) + eps
    bound = wanted.abs() * (2.0**-14 + parties * 2.0**-15) + 2.0**-15 * variance.rsqrt() + UNIT
    told_apart = (variance >= norms.FLAT).expand_as(wanted)
    assert bool(((got - wanted).abs() <= bound)[told_apart].all())
    assert bool((got.abs() <= wanted.abs() * 1.001 + bound).all())  # flatter rows give less, never more


def test_the_root_is_within_its_tolerance_for_all_lengths() -> None:
    u = torch.linspace(0.25, 1.0, 30001, dtype=torch.float64)
    for length in (1, 2, 3, 100, 768, norms.LONGEST):
        got = norms.splines.evaluate(norms.root(length), u)
        assert float((got / (length / u).sqrt() - 1).abs().max()) <= norms._TOLERANCE * 1.01


def test_the_table_of_the_root_keeps_its_part_of_the_bound_and_is_never_more_for_flatter_rows() -> None:
    table, u = norms.looked_up(), torch.arange(-8, (1 << 18) + 9, dtype=torch.float64) * 2.0**-18  # all of them
    got, inside = evaluate(table, u - ROOT_AT), u >= 0.25 - 2.0**-16
    unit = 2.0**-SCALE  # it rounds to, and coefficients by half of a quarter of, four times
    assert float((got * u.clamp(min=0).sqrt() - 1)[inside].abs().max()) <= 2.0**-15 + unit
    flat = (u > 0) & ~inside
    assert bool((got[flat] <= u[flat].rsqrt() * (1 + 2.0**-14) + unit).all()) and float(got.max()) < 8


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 1.0])
@pytest.mark.parametrize("length", [1, 3, 64, 768, norms.LONGEST])
def test_places_reach_from_eps_to_the_top_and_fit_the_ring(length: int, eps: float) -> None:
    least, count = norms.places(length * max(eps, norms.FLAT))
    assert least * 4.0 ** (count + 1) == 2.0**norms.TOP
    assert least <= length * max(eps, norms.FLAT) < 4 * least
    # Of a row's factor before it is cut, in the ring: root(length) at scale 32, times 2^count and 2^15.
    assert 2 * math.sqrt(length) * 2.0 ** (2 * SCALE + count) < 2.0**62


def test_a_row_beyond_the_range_is_announced_where_values_can_be_seen() -> None:
    net = nn.LayerNorm(4, elementwise_affine=False).eval()
    with torch.no_grad(), pytest.warns(UserWarning, match="squares of a row"):
        hummingbird.simulate(net)(torch.tensor([[0.0, 0.0, 0.0, 2.0**17]]))
    with pytest.raises(InputError, match="rows whose sums of squares, with eps, are 4e.09 or more"):
        build(nn.LayerNorm(4, eps=1e9)).costs((1, 4), 2)
    with pytest.raises(InputError, match="at most"):
        build(nn.GroupNorm(1, 1)).costs((1, 1, 2 * norms.LONGEST), 2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_price_of_a_norm_is_the_sum_written_out(protocol: str) -> None:
    n, length, parties = 10, 64, 3
    exact = named(protocol)(EXACT)
    attrs = {"last": 1, "groups": None, "eps": 1e-5, "center": True, "sizes": (length,)}
    _, count = norms.places(length * 1e-5)
    knots = len(norms.root(length).knots)
    look_up = poly.price(n, norms.looked_up(), 21, parties) + lift_price(n, 21, 64, parties)
    spline = lift_price(n, 18, 64, parties) + exact.cost(n, SCALE, parties, knots)
    assert Norm(attrs, exact).cost([Spec((n, length), SCALE)], parties) == (
        truncate_price(n, parties)
        + beaver.rows_price(n * length, n, parties, 64)
        + exact.cost(n, SCALE, parties, 2 * count)
        + beaver.product_price(n, n, n, parties)
        + (look_up if protocol == "masked" else spline)
        + beaver.product_price(n, n, n, parties)
        + lift_price(n, 47, 64, parties)
    )


def test_a_norm_has_no_window_and_its_twin_computes_its_formula() -> None:
    net = nn.Sequential(nn.LayerNorm(6), nn.ReLU()).eval()
    private = build(net, BitWindow(20, 12))
    assert private.comparing_layers == ["1"]
    x = torch.randn(5, 6)
    twin = hummingbird.simulate(net)
    with torch.no_grad():
        got, wanted = twin(x), net(x)
        assert 0 < float((got - wanted).abs().max()) < 2.0**-11
        (norm,) = (step.layer for step in private.plan if isinstance(step.layer, Norm))
        assert float((F.relu(norm.formula(REALS, x)) - got).abs().max()) < 2.0**-15


@pytest.mark.slow
@pytest.mark.parametrize(("parties", "owners"), every(3, [(2, "1"), (2, "public 0 1"), (3, "public 0 1 2")]))
def test_norms_that_are_written_out_run_between_parties(parties: int, owners: str) -> None:
    """Rounds and bits are the predicted ones."""
    ended = succeed(["-m", "tests.jobs.written_norms", *owners.split()], parties)
    found = json.loads(ended[0].out.strip().splitlines()[-1])
    assert len(found) == len(owners.split())
    for result in found:
        assert 0 < result["error"] < result["bound"]
