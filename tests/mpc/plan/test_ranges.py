"""Converted nets are right for every value below the plan's floor, and for constants of every size.

All parties run their own code on their own shares (`simulate`, mode="exact"), with default windows. Every expected
result is torch's in float64; errors are told as a part of the largest result. The fixed point has 2^-16: results of
order one may err by some 2^-14 after a few layers, and nothing here may err by 2^-7, the promise for softmax.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird import ring
from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.convert import build
from hummingbird.errors import ConfigError, HummingbirdError, InputError, ModelError
from hummingbird.mpc.functions import smooth, splines
from hummingbird.mpc.layers.layer import FLOOR, MARGIN, Layer
from hummingbird.report import estimate
from tests.support.covering import covering
from tests.support.operations import SMOOTH, Function

SETTINGS = [("masked", 2), ("masked", 3), ("gmw", 2), ("gmw", 3)]


def error(net: nn.Module, x: Tensor, protocol: str, parties: int) -> float:
    """The largest difference of private inference to torch's float64, as a part of the largest result."""
    net = net.eval()
    with torch.no_grad():
        wanted = copy.deepcopy(net).double()(x.double())
    got = hummingbird.simulate(net, protocol=protocol, parties=parties, mode="exact", seed=0)(x)
    assert got.shape == wanted.shape
    return float((got - wanted).abs().max() / wanted.abs().max())


def seeded(make: object, *sizes: object) -> nn.Module:
    torch.manual_seed(3)
    return make(*sizes)  # type: ignore[operator, no-any-return]


def scaled(module: nn.Module, factor: float) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(factor)
    return module


class Residual(nn.Module):
    """Sums of values at different scales."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Linear(8, 8), nn.Linear(8, 8), nn.Hardswish()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(x) + x) + self.act(self.a(x)) * x


def swapped(x: Tensor) -> Tensor:
    """The second half before the first."""
    a, b = x.chunk(2, 1)
    return torch.cat([b, a], 1)


LARGE = {
    "hardswish, linear": (lambda: nn.Sequential(nn.Hardswish(), nn.Linear(8, 3)), 3.0),
    "hardswish, product": (lambda: Function(lambda x: F.hardswish(x) * x), 3.0),
    "hardswish, far": (lambda: nn.Sequential(nn.Hardswish(), nn.Linear(8, 3)), 1e5),
    "hardswish, residual": (Residual, 30.0),
    "two linear": (lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), 1e5),
    "five linear": (lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(5))), 1e5),
    "linear, relu, four linear": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), *(nn.Linear(8, 8) for _ in range(4)), nn.ReLU()),
        1e5,
    ),
    "leaky, linear, linear": (lambda: nn.Sequential(nn.LeakyReLU(), nn.Linear(8, 8), nn.Linear(8, 2)), 1e5),
    "prelu, linear": (lambda: nn.Sequential(nn.Linear(8, 8), nn.PReLU(8), nn.Linear(8, 2)), 1e5),
    "silu, linear": (lambda: nn.Sequential(nn.SiLU(), nn.Linear(8, 8), nn.Linear(8, 2)), 1e5),
    "linear, square": (lambda: nn.Sequential(nn.Linear(8, 8), Function(lambda x: x * x)), 1e3),
    "linear, product": (lambda: nn.Sequential(nn.Linear(8, 8), Function(lambda x: x * x.relu())), 1e3),
    "linear, square, linear": (
        lambda: nn.Sequential(nn.Linear(8, 8), Function(lambda x: x * x), nn.Linear(8, 8), nn.Linear(8, 2)),
        500.0,
    ),
    "batch norm in between": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 4)),
        1e5,
    ),
    "linear, max": (
        lambda: nn.Sequential(
            nn.Linear(8, 8),
            nn.Linear(8, 8),
            Function(lambda x: x[:, None]),
            nn.MaxPool1d(2),
            nn.Flatten(),
            nn.Linear(4, 4),
            nn.Linear(4, 2),
        ),
        1e5,
    ),
    "sum": (lambda: nn.Sequential(nn.Linear(8, 8), Function(lambda x: x.sum(1, keepdim=True)), nn.Linear(1, 2)), 1e4),
    "chunk": (
        lambda: nn.Sequential(nn.Linear(8, 8), Function(swapped), nn.Linear(8, 8), nn.Linear(8, 2)),
        1e5,
    ),
}


@covering("case, protocol, parties", LARGE, SETTINGS, quick=[*LARGE][::2])
def test_large_values_are_right(case: str, protocol: str, parties: int) -> None:
    """Products of values near 1,000 reach 2^20, linear layers 10^5: below the floor all of them."""
    make, size = LARGE[case]
    net = seeded(make)
    x = size * (2 * torch.rand(6, 8) - 1)
    assert error(net, x, protocol, parties) < 2**-10


CONSTANTS = {
    **{
        f"mean over {n} x {n}": (lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), (2, 1, n, n), 1.0)
        for n in (7, 112, 224, 511, 512)
    },
    "mean()": (lambda: Function(lambda x: x.mean((2, 3))), (2, 3, 100, 130), 1.0),
    "large kernel": (lambda: nn.AvgPool2d(150), (1, 1, 300, 300), 1.0),
    "large kernel, borders": (
        lambda: nn.AvgPool2d(31, 20, 15, ceil_mode=True, count_include_pad=False),
        (1, 1, 70, 70),
        1.0,
    ),
    "divisor": (lambda: nn.AvgPool2d(2, divisor_override=3000), (1, 1, 8, 8), 100.0),
    **{f"times {c:g}": (lambda c=c: Function(lambda x: x * c), (4, 8), 1.0) for c in (1e-6, 1e-5, -3e-4, 0.3, 1e4)},
    "over 3e4": (lambda: Function(lambda x: x / 3e4), (4, 8), 1.0),
    "plus 1e-5": (lambda: Function(lambda x: x * 1e-5 + 3e-5), (4, 8), 1.0),
    "small weights": (lambda: scaled(nn.Linear(8, 4), 1e-3), (4, 8), 1e3),
    "tiny weights": (lambda: scaled(nn.Linear(8, 4), 1e-6), (4, 8), 1.0),
    "tiny weights, plus": (
        lambda: nn.Sequential(scaled(nn.Linear(8, 4), 1e-5), Function(lambda x: x + 3e-5)),
        (4, 8),
        1.0,
    ),
    "small convolution": (lambda: scaled(nn.Conv2d(2, 3, 3), 1e-4), (2, 2, 6, 6), 1.0),
    "small transposed convolution": (lambda: scaled(nn.ConvTranspose2d(4, 6, 3, groups=2), 1e-4), (2, 4, 4, 4), 1.0),
    "small slope": (lambda: Function(lambda x: F.leaky_relu(-x.relu(), 3e-5)), (4, 8), 1e4),
    "small slopes": (lambda: nn.Sequential(Function(lambda x: -x.relu()), scaled(nn.PReLU(8), 1e-4)), (4, 8), 1e4),
    "softmax over 1,000": (lambda: nn.Softmax(1), (3, 1000), 0.01),
    "softmax over 1,000, peaked": (lambda: nn.Softmax(1), (3, 1000), 12.0),
    "softmax far": (lambda: nn.Softmax(1), (3, 10), 1e4),
    "log_softmax over 1,000": (lambda: nn.LogSoftmax(1), (3, 1000), 0.01),
    "log_softmax over 1,000, peaked": (lambda: nn.LogSoftmax(1), (3, 1000), 12.0),
    "log_softmax far": (lambda: nn.LogSoftmax(1), (3, 10), 1e4),
}


# A factor, reciprocal or weight of each kind.
QUICK = ["mean over 7 x 7", "mean over 511 x 511", "large kernel, borders", "divisor", "times 1e-06", "over 3e4"]
QUICK += ["plus 1e-5", "tiny weights, plus", "small transposed convolution", "small slopes", "softmax over 1,000"]
QUICK += ["log_softmax far", "log_softmax over 1,000, peaked"]


@covering("case, protocol, parties", CONSTANTS, [("masked", 2), ("gmw", 3)], quick=QUICK)
def test_constants_of_every_size_are_right(case: str, protocol: str, parties: int) -> None:
    """Factors, reciprocals and weights are rounded by 2^-10 of the largest; softmax errs by 2^-8 and by rounding."""
    make, shape, size = CONSTANTS[case]
    net = seeded(make)
    x = size * torch.rand(shape) if "mean" in case or "kernel" in case else size * torch.randn(shape)
    assert error(net, x, protocol, parties) < 2**-8


OPENINGS = "Lift", "LocalRescale"
FAR = torch.tensor([[-3e5, -5000.0, -400.0, -30.0, 0.0, 30.0, 400.0, 5000.0, 3e5]])


@covering(
    "name, protocol, parties",
    ["Sigmoid", "Tanh", "SiLU", "GELU", "Hardsigmoid", "Hardswish", "ReLU6"],
    SETTINGS[::3],
)
def test_activations_are_right_far_from_zero(name: str, protocol: str, parties: int) -> None:
    """Splines end on the lines that their functions approach, to within 2^-14; before a table, values are clamped."""
    net = getattr(nn, name)()
    got = hummingbird.simulate(net, protocol=protocol, parties=parties, mode="exact", seed=0)(FAR)
    allowed = SMOOTH if protocol == "masked" else 2**-14 + 9 * 2**-16
    assert float((got - net(FAR)).abs().max()) < allowed
    fast = hummingbird.simulate(net, protocol=protocol, parties=parties, seed=0)(FAR)
    # In float32 hard sigmoid's terms at 3e5 cancel to within 2^-24 of them each.
    assert float((fast - net(FAR)).abs().max()) < allowed + (name == "Hardsigmoid") * 2 * 3e5 * 2**-24


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "silu", "gelu-none", "gelu-tanh"])
def test_curves_keep_their_tolerance_and_have_no_bias(name: str) -> None:
    x, even = torch.linspace(-40, 40, 200_001, dtype=torch.float64), name in smooth._EVEN
    curve = smooth.even(name) if even else smooth.squashing(name)
    wanted = (smooth._EVEN if even else smooth._SQUASHING)[name][0](x)
    errors = (smooth.evaluate(curve, x.abs()) + x / 2 if even else smooth.evaluate(curve, x)) - wanted
    assert float(errors.abs().max()) < smooth.TOLERANCE and curve.error < smooth.TOLERANCE
    inside = x.abs() < 3
    assert abs(float(errors[inside].mean())) < smooth.TOLERANCE / 16
    assert float(errors[inside].std()) > smooth.TOLERANCE / 16


def test_curves_are_pieces_of_parabolas_in_whole_numbers() -> None:
    """In exact integer arithmetic, from knots and bends alone: value + slope (u - t_0) + sum of d_j relu(u - t_j)^2."""
    curve = smooth.squashing("tanh")
    knots = [round(float(t) * 2**16) for t in curve.knots]
    for x in (*range(-(8 << 16), 8 << 16, 9973), *knots):
        u = min(max(x, knots[0]), knots[-1])
        squares = sum(d * max(u - t, 0) ** 2 for d, t in zip(curve.bends, knots, strict=False))
        wanted = curve.value + curve.slope * (u - knots[0]) + squares
        above = [max(x - t, 0) for t in knots]
        line = sum(a * y for a, y in zip(curve.line, above, strict=True))
        factor = sum(a * y for a, y in zip(curve.factor, above, strict=True))
        assert curve.value + line + (above[0] - above[-1] - curve.center) * factor == wanted


@pytest.mark.parametrize("length", [2, 10, 1000, 50_000])
def test_splines_of_softmax_keep_theirs(length: int) -> None:
    x = torch.linspace(-40, 0, 100_001, dtype=torch.float64)
    exp = splines.evaluate(splines.exponential(length), x)
    allowed = 2**-9 * torch.exp(x).clamp(min=1 / length)
    assert bool(((exp - torch.exp(x)).abs() <= allowed * 1.05 + 2**-16).all())
    s = torch.linspace(0, torch.tensor(float(length)).log().item(), 100_001, dtype=torch.float64).exp()
    assert float(((splines.evaluate(splines.reciprocal(length), s) - 1 / s) * s).abs().max()) < 2**-9 * 1.05
    s = torch.cat([s, torch.tensor([1 - 2**-9, length * (1 + 2**-9)], dtype=torch.float64)])  # what a sum may be
    assert float((splines.evaluate(splines.logarithm(length), s) - s.log()).abs().max()) < 2**-11 * 1.05


# The plan ------------------------------------------------------------------------------------------------------------


def ranges(private: nn.Module) -> dict[str, int]:
    return {step.name: step.layer.range for step in private.plan if isinstance(step.layer, Layer)}


@pytest.mark.parametrize("protocol", ["masked", "gmw"])
@pytest.mark.parametrize("case", LARGE)
def test_no_value_falls_below_the_floor(case: str, protocol: str) -> None:
    private = build(seeded(LARGE[case][0]), protocol=protocol)
    assert min(ranges(private).values()) >= FLOOR
    for step in private.plan:
        if isinstance(step.layer, Layer):
            assert step.valid - step.scale >= FLOOR + MARGIN


def test_windows_say_how_far_values_reach_and_cost_no_opening() -> None:
    """A window reads k bits, so what is linear before it need not be right beyond them."""
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    rescaled = {
        str(bits): [step.name for step in build(net, bits).plan if step.op == "rescale"]
        for bits in (EXACT, BitWindow(20, 0))
    }
    assert rescaled == {"[64:0)": ["0.lift", "3.lift"], "[20:0)": ["0.rescale", "3.lift"]}
    exact, windowed = build(net, EXACT), build(net, BitWindow(20, 0))
    assert [type(m).__name__ for m in exact.modules() if type(m).__name__ in OPENINGS] == ["Lift", "Lift"]
    assert [type(m).__name__ for m in windowed.modules() if type(m).__name__ in OPENINGS] == ["LocalRescale", "Lift"]
    assert ranges(windowed)["2"] == 3 and ranges(exact)["2"] == 27


def test_ranges_are_printed() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    private = build(net, BitWindow(20, 12))
    assert "compares |v| < 2^3" in repr(private) and "gives |v| < 2^26" in repr(private)
    table = str(estimate(net, (4, 8), BitWindow(20, 12)))
    head, *rows = [line.split() for line in table.splitlines() if line.startswith(("layer ", "0 ", "1 ", "2  "))]
    assert "below" in head
    assert [next(cell for cell in row if cell.startswith("2^")) for row in rows] == ["2^30", "2^3", "2^26"]


@pytest.mark.parametrize(
    ("make", "x", "where"),
    [
        (lambda: Function(lambda x: x * 1e-15), (4, 8), "mul"),
        (lambda: scaled(nn.Linear(8, 4), 1e-14), (4, 8), "weight"),
        (lambda: nn.LeakyReLU(1e-9), (4, 8), "leaky_relu"),
    ],
)
def test_constants_that_cannot_be_held_are_named_before_anything_runs(make: object, x: object, where: str) -> None:
    """A factor of 1e-15 keeps less than eight bits in a ring of 64."""
    net = make().eval()  # type: ignore[operator]
    problems = hummingbird.validate_model(net)
    assert len(problems) == 1 and "so small" in problems[0].what and problems[0].hint
    with pytest.raises(ModelError, match="so small"):
        build(net)


def test_a_mean_over_too_many_places_is_refused_by_name() -> None:
    """1/n for n = 999,999 in 26 bits of fraction errs by 2^-27 n > 2^-8; 2^20 is a power of two, and exact."""
    private = build(nn.Sequential(nn.ReLU(), Function(lambda x: x.mean(1))))
    with pytest.raises(InputError, match="999,999|999999") as caught:
        private.costs((2, 999_999), 2)
    assert caught.value.where
    private.costs((2, 2**20), 2)


def test_fraction_is_exact_where_it_can_be_and_precise_elsewhere() -> None:
    for values, bits in (([0.5], 1), ([3.0, -7.0], 0), ([0.75, 0.0], 2), ([2.0**-18], 18), ([0.3], 16), ([0.0], 0)):
        assert ring.fraction(torch.tensor(values, dtype=torch.float64), 26) == bits
    for largest in (1e-7, 1e-5, 1e-3, 0.1, 10.0):
        x = torch.linspace(-largest, largest, 1001, dtype=torch.float64)
        bits = ring.fraction(x, 60)
        rounded = ring.encode(x, bits).double() / 2.0**bits
        assert float((rounded - x).abs().max()) <= 2**-10 * largest
    with pytest.raises(InputError, match="so small"):
        ring.fraction(torch.tensor([1e-6]), 16)


def test_private_weights_have_bits_by_the_inputs_range_and_small_ones_are_refused() -> None:
    """A number of bits of their own would tell the other parties how small they are."""
    net = scaled(nn.Linear(8, 4), 1e-4).eval()
    assert max(step.scale for step in build(net).plan) > 36
    with pytest.raises(ModelError, match="so small") as caught:
        build(net, weights=0)
    assert "0.00" not in str(caught.value)
    assert build(nn.Linear(8, 4).eval(), weights=0).plan[1].scale == 16 + 26  # for inputs up to 2^20 (test_columns.py)
    small = BitConfig(input_range=4.0)
    assert build(nn.Linear(8, 4).eval(), small, weights=0).plan[1].scale == 16 + 20


def test_a_window_behind_small_weights_reads_the_same_bits() -> None:
    """More bits of fraction move the window up; comparisons stay those of 2^-16."""
    torch.manual_seed(0)
    net = nn.Sequential(scaled(nn.Linear(8, 8), 1e-2), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = 10 * torch.randn(50, 8)
    twin = hummingbird.simulate(net, BitWindow(20, 0), mode="exact", seed=0)
    with torch.no_grad():
        assert float((twin(x) - net(x)).abs().max()) < 2**-10


def test_encode_refuses_what_leaves_the_ring_at_its_scale() -> None:
    for scale, bits in ((16, 30), (32, 30), (48, 14)):
        ring.encode(torch.tensor([2.0**bits - 1], dtype=torch.float64), scale)
        with pytest.raises(InputError, match=f"2\\^{bits}"):
            ring.encode(torch.tensor([2.0**bits]), scale)


def test_bounds_of_a_hardtanh_beyond_the_ring_are_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Hardtanh(-3e9, 3e9))
    with pytest.raises((ConfigError, ModelError, HummingbirdError), match="constant"):
        build(net)


def test_a_window_wider_than_what_a_value_can_be_is_cut_off() -> None:
    """Softmax leaves 8 integer bits of a value below 2: [26:0) for all layers must not be refused for them."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Softmax(1), nn.Hardswish(), nn.Linear(8, 8), nn.ReLU()).eval()
    x = torch.randn(4, 8)
    with torch.no_grad():
        got, wanted = hummingbird.simulate(net, BitWindow(26, 0), mode="exact", seed=0)(x), net(x)
    assert float((got - wanted).abs().max()) < 2**-8
    assert ranges(build(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), BitWindow(60, 0)))["1"] == 27


def test_values_without_dimensions() -> None:
    net = nn.Sequential(Function(lambda x: -x.sum()), nn.PReLU())
    got = hummingbird.simulate(net, mode="exact", seed=0)(torch.ones(1, 3))
    assert got.shape == () and abs(float(got) + 0.75) < 2**-14


ROUNDED = ("times 1e-05", "times 1e-06", "mean over 511 x 511", "mean over 224 x 224", "small weights")


@pytest.mark.parametrize("case", ROUNDED)
def test_the_fast_twin_rounds_constants_as_private_inference_does(case: str) -> None:
    """So the two differ by the rounding of values alone: half a unit of 2^-16, times the largest sum of |weights|."""
    make, shape, size = CONSTANTS[case]
    net, x = seeded(make).eval(), 1e3 * size * torch.rand(shape)
    exact = hummingbird.simulate(net, mode="exact", seed=0)(x)
    twin = hummingbird.simulate(net, seed=0)
    with torch.no_grad():
        rounded, plain = twin(x), net(x)
    assert twin(x).requires_grad == any(p.requires_grad for p in net.parameters())
    # A unit of the result, and half a unit of an input times 8 weights below 1e-3, or a mean; float32 keeps 2^-22.
    allowed = 2**-16 + float(plain.abs().max()) * 2**-20
    assert float((rounded - exact).abs().max()) <= allowed
    assert float((plain - exact).abs().max()) > 2 * float((rounded - exact).abs().max()) or allowed > 1e-4


def test_the_fast_twin_follows_weights_that_change() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    twin, x = hummingbird.simulate(net, seed=0), torch.randn(3, 4)
    with torch.no_grad():
        before = twin(x)
        net[0].weight.mul_(2)
        assert not torch.equal(twin(x), before) and float((twin(x) - net(x)).abs().max()) < 2**-12


ON_WHOLE_NUMBERS = {
    "hardtanh": (lambda x: F.hardtanh(x.argmax(1, keepdim=True), -1.5, 2.5), True),
    "avg_pool": (lambda x: F.avg_pool1d(x.argmax(2, keepdim=True) + 1, 1, 1), True),
    "pad": (lambda x: F.pad(x.argmax(1), (1, 1), value=0.5), True),
    "pad, turned over": (lambda x: F.pad(x.argmax(1).flip(1), (1, 1), value=0.5), True),
    "pad of magnitudes": (lambda x: F.pad((-x.argmax(1)).abs().roll(1, 1), (1, 1), value=0.5), True),
    "pad of the larger": (lambda x: F.pad(torch.maximum(x.argmax(1), torch.tensor(2)), (1, 1), value=0.5), True),
    "pad of a choice": (lambda x: F.pad(torch.where(x[:, 0] > 0, x.argmax(1), 7), (1, 1), value=0.5), True),
    "pad of copies": (lambda x: F.pad(x.argmax(1, True).expand(-1, 3, -1), (1, 1), value=0.5), True),
    "clamp of one side": (lambda x: F.pad(x.argmax(1).clamp(min=0.75).clamp_max(1.5), (1, 1), value=0.5), False),
    "the larger of a fraction": (
        lambda x: F.pad(torch.maximum(x.argmax(1), torch.tensor(0.5)), (1, 1), value=0.5),
        False,
    ),
    "comparison": (lambda x: F.pad((x.argmax(1) > 1.5).float(), (1, 1), value=0.5), False),
    "relu6": (lambda x: F.relu6(x.argmax(1)), False),
    "real hardtanh": (lambda x: F.hardtanh(x.argmax(1) * 0.5, -1.5, 0.75), False),
    "half": (lambda x: x.argmax(1) / 2 + 0.25, False),
    "sum": (lambda x: x.argmax(1).sum(1, keepdim=True) - 3, False),
}


@pytest.mark.parametrize("case", ON_WHOLE_NUMBERS)
def test_what_torch_would_round_behind_argmax_is_refused_and_the_rest_is_right(case: str) -> None:
    function, refused = ON_WHOLE_NUMBERS[case]
    net, x = Function(function).eval(), torch.randn(3, 4, 5)
    assert [("torch rounds" in problem.what) for problem in hummingbird.validate_model(net)] == [True] * refused
    if not refused:
        got = hummingbird.simulate(net, mode="exact", seed=0)(x)
        assert float((got - net(x)).abs().max()) < 2**-14
