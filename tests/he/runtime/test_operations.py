"""The server's arithmetic: every linear step as a map of indices, operations on registers, tiles, exactness."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird.errors import InputError, ModelError
from hummingbird.graph import OPS, Ref, Step, run, run_all, trace
from hummingbird.he.compile import bounds
from hummingbird.he.compile.builder import common, exact_norm, parts
from hummingbird.he.compile.im2col import Map, linear_map, natural, view
from hummingbird.he.compile.magnitudes import measure, shapes
from hummingbird.he.compile.placement import prepared
from hummingbird.he.runtime.operations import Form, Gather, Linear, Pick, WeightedSum
from hummingbird.he.scheme.params import choose
from hummingbird.kernels.ciphertexts import arithmetic
from tests.support.he_cases import AIDED, LINEAR, PRODUCTS, made

RING = choose(2048, 2).ring
APART = 1  # of the ones of the constant


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def applied(linear: Map, x: Tensor) -> Tensor:
    """The map on plain values (images, *shape)."""
    flat = torch.cat([x.flatten(1), torch.zeros(len(x), 1, dtype=x.dtype)], 1)
    # In two pieces, as a server may.
    half = linear.places // 2
    table = torch.cat([linear.gather.table(0, half), linear.gather.table(half, linear.places)], 1).long()
    weights = torch.ones(1, 1, table.shape[2], dtype=x.dtype) if linear.weights is None else linear.weights
    out = torch.einsum("grk,bgpk->bgrp", weights, flat[:, table]) / linear.divisor
    out = out.reshape(len(x), linear.rows, linear.places)
    out = out if linear.bias is None else out + linear.bias[:, None]
    return out.flatten(1)[:, natural(linear.shape, linear.rows, linear.last)]


def check(op: str, shape: tuple[int, ...], **attrs: Any) -> Map:
    torch.manual_seed(0)
    step, x = Step("s", op, (), attrs), numbers(2, *shape)
    linear = linear_map(step, torch.arange(math.prod(shape)).view(shape))
    wanted = OPS[op](attrs, x)
    assert linear.shape == wanted.shape[1:] and torch.allclose(applied(linear, x), wanted), (op, attrs)
    return linear


def test_convolutions_as_maps() -> None:
    for groups, stride, padding, dilation in itertools.product((1, 2), (1, 2, 3), (0, 2), (1, 2)):
        common = {"groups": groups, "bias": numbers(4)}
        two = {"stride": (stride, 1), "padding": (padding, 1), "dilation": (dilation, 1)}
        check("conv", (4, 9, 8), weight=numbers(4, 4 // groups, 3, 2), **two, **common)
        one = {"stride": (stride,), "padding": (padding,), "dilation": (dilation,)}
        check("conv", (4, 9), weight=numbers(4, 4 // groups, 3), **one, **common)
        for extra in range(min(2, max(stride, dilation))):
            weight, bias = numbers(4, 3, 3, 2), numbers(3 * groups)
            check(
                "conv_transpose", (4, 5, 6), weight=weight, bias=bias, groups=groups, output_padding=(extra, 0), **two
            )


def test_layers_as_maps() -> None:
    assert check("linear", (7,), weight=numbers(5, 7), bias=numbers(5)).places == 1
    assert check("linear", (3, 2, 7), weight=numbers(5, 7), bias=None).last
    assert check("affine", (3, 4, 5), scale=numbers(3), shift=numbers(3)).places == 20
    for op, shape in itertools.product(("add", "sub", "mul"), ((1,), (3, 1, 1), (1, 3, 1, 1), (3, 4, 5), (5,))):
        for reversed_ in (False, True) if op == "sub" else (False,):
            attrs = {"reversed": True} if reversed_ else {}
            made = check(op, (3, 4, 5), value=numbers(*shape), **attrs)
            assert made.places == (20 if math.prod(shape) in (1, 3) else 1)
    check("mul", (3, 1, 1), value=numbers(3, 4, 5))


def test_pools_as_maps() -> None:
    pool = dict.fromkeys(("kernel", "stride"), (2, 2)) | {"padding": (0, 0), "ceil_mode": False, "divisor": None}
    even = check("avg_pool", (3, 8, 7), **pool, count_include_pad=True)
    assert even.weights is None and even.divisor == 4 and even.gather.most == 4
    wide = {"kernel": (3, 2), "stride": (2, 2), "padding": (1, 1)}
    assert check("avg_pool", (3, 8, 7), **pool | wide, count_include_pad=True).weights is None
    assert check("avg_pool", (3, 8, 7), **pool | wide, count_include_pad=False).weights is not None
    assert check("avg_pool", (3, 8, 7), **pool | wide | {"ceil_mode": True}, count_include_pad=True).weights is not None
    assert check("avg_pool", (3, 8, 7), **pool | wide | {"divisor": 7}, count_include_pad=True).divisor == 7
    line = {"kernel": (3,), "stride": (2,), "padding": (1,), "ceil_mode": True, "divisor": None}
    check("avg_pool", (3, 8), **line, count_include_pad=True)
    for size, is_even in (((1, 1), True), ((4, 7), True), ((2, 3), True), ((3, 5), False)):
        assert (check("adaptive_avg_pool", (3, 8, 7), output_size=size).weights is None) == is_even
    for op, (dims, keep) in itertools.product(("mean", "sum"), (((2, 3), False), ((-1,), True), ((1, -1), False))):
        check(op, (3, 4, 5), dims=dims, keepdim=keep)


def test_views_move_positions() -> None:
    index = torch.arange(24).view(2, 3, 4)
    assert torch.equal(view(Step("p", "permute", (), {"dims": (0, 3, 1, 2)}), index), index.permute(2, 0, 1))
    padded = view(Step("p", "pad", (), {"pads": (1, 0), "value": 0.0}), index)
    assert torch.equal(padded[..., 0], torch.full((2, 3), -1)) and torch.equal(padded[..., 1:], index)
    a, b = view(Step("c", "chunk", (), {"chunks": 2, "dim": 1}), index)
    assert torch.equal(torch.cat([a, b]), index)
    assert torch.equal(view(Step("c", "cat", (), {"dim": 1}), a, b), index)


# ---- operations


def registers(count: int, size: int = 2, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    half = torch.tensor(RING.primes).view(2, 1) // 2
    return ((torch.rand(count, size, 2, 2048) * 2 - 1) * half).int()


def exact(x: Tensor) -> Tensor:
    """Residues reduced by integer arithmetic."""
    primes = torch.tensor(RING.primes).view(2, 1)
    return (torch.remainder(x + primes // 2, primes) - primes // 2).int()


def linear_operation(weights: Tensor, count: int = 1 << 30) -> Linear:
    """Rows over all of register 0, cut into parts of that many terms."""
    terms = weights.shape[2]
    gather = Gather(torch.arange(terms).int(), torch.zeros(1).long(), torch.zeros(1).long(), torch.arange(terms))
    return Linear(0, gather, tuple(part.contiguous() for part in weights.split(count, 2)), None, None)


def test_tiles_equal_the_whole() -> None:
    torch.manual_seed(1)
    step = Step("c", "conv", (), {"weight": numbers(4, 2, 3, 3), "bias": numbers(4), "groups": 2, "stride": (1, 1)} | {
        "padding": (1, 1), "dilation": (1, 1)})  # fmt: skip
    linear = linear_map(step, torch.arange(4 * 4 * 3).view(4, 4, 3))
    weights = torch.cat([linear.weights, linear.bias.view(2, 2, 1)], 2).mul(1000).round()
    operation = Linear(0, linear.gather, (weights,), 48, None)
    x = {0: registers(49)}
    whole = operation.tile(RING, x, 0, 12, APART)
    assert whole.shape == (4, 12, 2, 2, 2048)
    for size in (1, 5, 12):
        tiles = [operation.tile(RING, x, at, min(at + size, 12), APART) for at in range(0, 12, size)]
        assert torch.equal(torch.cat(tiles, 1), whole)
    out = torch.empty_like(whole)
    for at in range(0, 12, 5):
        operation.tile(RING, x, at, min(at + 5, 12), APART, out[:, at : at + 5])
    assert torch.equal(out, whole)


def test_a_split_inner_dimension_gives_the_same() -> None:
    weights = torch.randint(-1000, 1000, (1, 3, 10)).double()
    x = {0: registers(10)}
    whole = linear_operation(weights).tile(RING, x, 0, 1, APART)
    assert torch.equal(linear_operation(weights, 3).tile(RING, x, 0, 1, APART), whole)
    wanted = torch.einsum("rk,kclx->rclx", weights[0].long(), x[0].long())
    assert torch.equal(whole[:, 0], exact(wanted))


def test_weights_beyond_the_exactness_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused; without the check the results are wrong; cut into parts, they are right."""
    most = exact_norm(RING)
    weights = torch.full((1, 1, 64), float(most // 8 + 12346), dtype=torch.float64)  # 8 of them are too many
    x = {
        0: torch.stack([(torch.tensor(RING.primes) // 2).int()[:, None].expand(2, 2048) - i for i in range(64)])[
            :, None
        ]
    }
    wanted = exact(
        torch.tensor([[[int(weights[0, 0, 0]) * sum(q // 2 - i for i in range(64)) % q] for q in RING.primes]])
    )
    with pytest.raises(InputError, match="split the inner dimension"):
        linear_operation(weights).tile(RING, x, 0, 1, APART)
    cut = parts(weights, most, "layer")
    assert len(cut) > 8 and all(float(part.abs().sum(2).max()) <= most for part in cut)
    right = linear_operation(weights, cut[0].shape[2]).tile(RING, x, 0, 1, APART)
    assert torch.equal(right[0, 0], wanted.expand(1, 2, 2048))
    monkeypatch.setattr(arithmetic, "_check_exact", lambda ring, weights: 2**52)
    wrong = linear_operation(weights).tile(RING, x, 0, 1, APART)
    assert not torch.equal(wrong, right)


def test_single_weights_beyond_the_bound_cannot_be_cut() -> None:
    with pytest.raises(ModelError, match="layer: weights up to"):
        parts(torch.full((1, 1, 4), 2.0**30, dtype=torch.float64), exact_norm(RING), "layer")


def test_sums_with_factors() -> None:
    a, b = registers(3), registers(3, seed=1)
    for f, g in ((1, 1), (3, -2), (-(1 << 40), 5), (1, 1 << 23)):
        got = WeightedSum(1, 2, (f, g)).run(RING, {1: a, 2: b}, APART)
        primes = torch.tensor(RING.primes).view(2, 1)
        wanted = a.long() * torch.tensor([f % q for q in RING.primes]).view(2, 1) % primes
        wanted = wanted + b.long() * torch.tensor([g % q for q in RING.primes]).view(2, 1) % primes
        assert torch.equal(got, exact(wanted)), (f, g)


def test_picking_brings_to_one_form() -> None:
    a, b = registers(3, size=2), registers(2, size=3, seed=1)
    index = torch.tensor([4, -1, 0, 2]).int()
    constants = torch.tensor([[5, -7]]).int().expand(4, 2)
    pick = Pick((1, 2), index, (1, 2), 3, 1, constants)
    got = pick.run(RING, {1: a, 2: b}, APART)
    assert pick.form([Form(0, 2, 2), Form(3, 2, 2), Form(2, 3, 2)]) == Form(4, 3, 1)
    doubled = exact(2 * b.long())
    wanted = torch.zeros(4, 3, 1, 2048, dtype=torch.int32)
    wanted[0] = doubled[1, :, :1]
    wanted[2, :2], wanted[3, :2] = a[0, :, :1], a[2, :, :1]
    wanted[:, 0] += 5
    assert torch.equal(got.long() % RING.primes[0], wanted.long() % RING.primes[0])
    assert int(got.abs().max()) <= RING.primes[0] // 2


def test_common_units() -> None:
    for units in ([Fraction(1, 8), Fraction(3, 4)], [Fraction(1, 9), Fraction(1, 4)], [Fraction(1), Fraction(-1, 3)]):
        unit, factors, wrong = common(units)
        assert wrong == 0 and [unit * f for f in factors] == units
    odd = [Fraction(1), Fraction(RING.primes[0], 1 << 26), Fraction(12345678, 7)]
    unit, factors, wrong = common(odd)
    assert all(abs(float(unit * f / u - 1)) <= wrong for f, u in zip(factors, odd, strict=True)) and wrong < 2.0**-12
    assert all(abs(f) >> 20 == 0 or f % (1 << abs(f).bit_length() - 20) == 0 for f in factors)


# ---- bounds


BOUNDED = {**LINEAR, **PRODUCTS, "relu, max pool, softmax": AIDED["relu, max pool, softmax"]}


@pytest.mark.parametrize("case", BOUNDED.values(), ids=BOUNDED)
def test_proven_bounds_hold_and_are_no_guess(case: Any) -> None:
    """No input in range exceeds them, not even those at the ends; for one linear layer an input reaches them."""
    net, shape = made(case)
    traced = trace(net)
    steps = prepared(traced, shapes(traced, numbers(2, *shape))[0], "polynomial")
    limits = bounds.proven(steps, shape, 2.0)
    torch.manual_seed(3)
    ends = (torch.randint(0, 2, (200, *shape)) * 4 - 2).double()
    for x in (ends, numbers(200, *shape).clamp(-2, 2)):
        for step, value, limit in zip(steps, run_all(steps, x), limits, strict=True):
            if isinstance(value, Tensor):
                assert float(value.abs().max()) <= limit * (1 + 1e-9), step.name


def test_a_bound_is_reached() -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(6, 1)
    steps = trace(net)
    worst = 2.0 * torch.sign(net.weight.detach().double() * torch.sign(net.bias.detach()))
    assert float(run(steps, worst).abs()) == pytest.approx(bounds.proven(steps, (6,), 2.0)[1])


def test_gains_are_row_norms() -> None:
    """Independent errors of deviation 1 leave a layer with the root mean square of its rows' 2-norms."""
    torch.manual_seed(0)
    weight = numbers(40, 300)
    steps = [Step("x", "input"), Step("l", "linear", (Ref(0),), {"weight": weight, "bias": None})]
    found = measure(steps, numbers(4, 300))[1]
    assert found is not None
    # Four sign vectors for 40 rows: 160 values of about unit variance, 6% of deviation.
    assert found.gains[0] == pytest.approx(float(weight.square().sum(1).mean().sqrt()), rel=0.25)
