"""Products of private values of which one is known to be small, as in squeeze and excitation: plans and results."""

from __future__ import annotations

import json
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import EXACT, BitWindow
from hummingbird.convert import build
from hummingbird.errors import InputError
from hummingbird.mpc.functions.tabulated import Tabulated
from hummingbird.mpc.layers import products
from hummingbird.mpc.layers.averaging import AdaptiveAvgPool
from hummingbird.mpc.layers.layer import Layer, Lift, held
from hummingbird.mpc.layers.products import Multiply
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.protocols.lifted_product import Operand
from hummingbird.mpc.session.session import Session
from tests.support.covering import covering, every
from tests.support.gates import ACTIVATIONS, block
from tests.support.operations import Function
from tests.support.parties import succeed

COARSE = BitWindow(20, 12)
Kind = TypeVar("Kind", bound=Layer)


def layer(net: PrivateNet, kind: type[Kind]) -> Kind:
    (found,) = (step.layer for step in net.plan if isinstance(step.layer, kind))
    return found


def lifts(net: PrivateNet, shape: tuple[int, ...]) -> list[int]:
    """How many values each of the net's lifts takes, of sums too."""
    costs = net.costs(shape, 2)
    counts = []
    for step, planned in zip(net.plan, costs, strict=True):
        if isinstance(step.layer, Lift) or getattr(step.layer, "lifts_sums", False):
            counts.append(planned.elements)
    return counts


@covering("activation, gate, parties", ACTIVATIONS, [nn.Sigmoid, nn.Hardsigmoid], [2, 3])
def test_no_gated_value_is_lifted_under_coarse_windows(activation: str, gate: type[nn.Module], parties: int) -> None:
    x = torch.rand(2, 3, 6, 6) - 0.5
    for first in (True, False):
        net = block(activation, gate, first)
        found = lifts(build(net, COARSE), tuple(x.shape))
        # Of 2 x 8 x 36 none: sums of a pooling, the output, and results of fewer channels behind more bits of fraction.
        assert set(found) <= {2 * 8, 2 * 6 * 36, 2 * 4 * 36}
        if gate is nn.Sigmoid and activation == "silu":
            assert 2 * 4 * 36 not in found
        got = hummingbird.simulate(net, COARSE, mode="exact", parties=parties, seed=1)(x)
        # Comparisons may be wrong for values below 1/16, of any activation.
        assert float((got - net(x)).detach().abs().max()) < 0.12


@covering(
    "window, protocol, parties, activation, first",
    [(bits, *kind) for kind in (("masked", 2), ("masked", 3), ("gmw", 2)) for bits in (EXACT, BitWindow(22, 0))],
    [(activation, first) for first in (True, False) for activation in ACTIVATIONS],
    ids=str,
)
def test_gated_nets_agree_with_torch(
    window: BitWindow, protocol: str, parties: int, activation: str, first: bool
) -> None:
    net, x = block(activation, nn.Sigmoid, first), torch.rand(2, 3, 6, 6) - 0.5
    found = hummingbird.simulate(net, window, protocol=protocol, parties=parties, mode="exact", seed=1)(x)
    assert float((found - net(x)).detach().abs().max()) < 2.0**-9


def test_operands_are_opened_in_the_bits_that_they_have() -> None:
    """A table's results have 10 bits of fraction for [20:12): 10 + 3 + 3 for |x| < 2^3, and 10 + 1 + 3 for the gate."""
    private = build(block("silu"), COARSE)
    multiply = layer(private, Multiply)
    assert multiply._opened(64) == [(6, 10 + held(1)), (6, 10 + held(3))] == [(6, 14), (6, 16)]
    (step,) = (step for step in private.plan if step.layer is multiply)
    assert (step.scale, step.valid) == (20, 64)
    assert multiply.label() == "opens 14 and 16 bits"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parties", "windows", "activations"), every(3, [(2, 1, ["silu"]), (2, 3, [*ACTIVATIONS]), (3, 3, [*ACTIVATIONS])])
)
def test_what_a_block_sends_is_what_was_predicted(parties: int, windows: int, activations: list[str]) -> None:
    ended = succeed(["-m", "tests.jobs.gates", str(windows), *activations], parties)
    errors = json.loads(ended[0].out.strip().splitlines()[-1])
    assert len(errors) == windows * len(activations)
    for name, error in errors.items():
        assert error < (0.12 if ":12)" in name else 2.0**-9), name


def test_values_at_their_bounds_are_right() -> None:
    """Clamps meet their bounds: 1 and 2, in the bits that are opened for values below 2 and 4."""
    net = nn.Sequential(Function(lambda x: x.clamp(-1.0, 1.0) * x.clamp(-2.0, 2.0))).eval()
    x = torch.cat([torch.full((50,), 5.0), torch.full((50,), -5.0), torch.linspace(-3, 3, 101)]).view(1, -1)
    for window, error in ((EXACT, 2.0**-14), (BitWindow(32, 12), 0.4)):
        found = hummingbird.simulate(net, window, mode="exact", parties=3, seed=0)(x)
        assert float((found - net(x)).detach().abs().max()) < error


def test_one_bit_fewer_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: an operand at its bound in two bits fewer, one of which is for what windows let pass."""
    original = products.lifted_product.product

    def narrower(session: Session, x: Operand, y: Operand, bits: int) -> Tensor:
        return original(session, x._replace(k=x.k - 2), y, bits)

    monkeypatch.setattr(products.lifted_product, "product", narrower)
    net = nn.Sequential(Function(lambda x: x.clamp(-1.0, 1.0) * x.clamp(-2.0, 2.0))).eval()
    x = torch.full((1, 4000), 5.0)
    assert float((hummingbird.simulate(net, mode="exact", seed=0)(x) - net(x)).abs().max()) > 1


class Glu(nn.Module):
    """A table's result times a linear layer's, of which nothing is known, as in SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.down, self.act = nn.Linear(6, 9), nn.Linear(6, 9), nn.Linear(9, 4), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.down(self.act(self.a(x)) * self.b(x)))


def test_each_operand_has_the_bits_that_are_opened_of_it() -> None:
    """The table is opened in 6 + 10 bits and not lifted before; the other, which is, in all that are read of it."""
    torch.manual_seed(2)
    net = Glu().eval()
    private = build(net, COARSE)
    multiply = layer(private, Multiply)
    table, other = multiply._opened(multiply._ring)
    assert table == (6, 16) and other[1] == multiply._ring
    assert layer(private, Tabulated).look_up(36).bits == 16
    assert [step.name for step in private.plan if isinstance(step.layer, Lift)] == ["b.lift"]
    x = torch.randn(5, 6)
    for parties in (2, 3):
        found = hummingbird.simulate(net, COARSE, mode="exact", parties=parties, seed=0)(x)
        assert float((found - net(x)).detach().abs().max()) < 0.1


def test_two_values_of_any_size_are_multiplied_as_before() -> None:
    """Nothing is known of either: both are opened in all bits that are read, which costs what Beaver's product does."""
    net = nn.Sequential(Function(lambda x: x * (x + 1.0)), nn.ReLU())
    multiply = layer(build(net, BitWindow(18, 0)), Multiply)
    assert [bits for _, bits in multiply._opened(multiply._ring)] == [34, 34]
    x = torch.randn(3, 40)
    assert float((hummingbird.simulate(net, mode="exact", seed=0)(x) - net(x)).abs().max()) < 2.0**-12


def test_gmw_multiplies_in_the_whole_ring() -> None:
    multiply = layer(build(block("relu"), COARSE, protocol="gmw"), Multiply)
    assert multiply.label() == "" and multiply.constants() == ()


# Means ----------------------------------------------------------------------------------------------------------------


def test_sums_are_lifted_in_place_of_values() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU()).eval()
    private = build(net, COARSE)
    pool = layer(private, AdaptiveAvgPool)
    assert pool.lifts_sums
    assert pool._sizes[:2] == (6, 10 + held(3) + 18)
    x = torch.rand(2, 3, 16, 16) - 0.5
    for parties in (2, 3):
        found = hummingbird.simulate(net, COARSE, mode="exact", parties=parties, seed=0)(x)
        assert float((found - net(x)).detach().abs().max()) < 0.07


@pytest.mark.parametrize("side", [64, pytest.param(512, marks=pytest.mark.slow)])
def test_a_mean_of_a_large_sum_is_right(side: int) -> None:
    """Values at the end of their window, up to 2^18 of them, the most: their sum in the bits opened for it."""
    net = nn.Sequential(nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(1, 2, 1, bias=False), nn.ReLU()).eval()
    net[2].weight.data = torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)
    private = build(net, COARSE)
    pool = layer(private, AdaptiveAvgPool)
    assert pool.lifts_sums
    x = torch.full((1, 1, side, side), 7.9)
    found = hummingbird.simulate(net, COARSE, mode="exact", seed=0)(x).flatten()
    assert abs(float(found[0]) - 7.9) < 0.01 and float(found[1]) == 0
    with pytest.raises(InputError, match=r"sums of 2\^18 are lifted"):
        private.costs((1, 1, 1024, 512), 2)


def test_a_mean_of_values_of_any_size_lifts_the_values() -> None:
    """Behind two linear layers the ring holds no sum of so many: their own lift is what it was."""
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 2, 1)).eval()
    private = build(net)
    assert not layer(private, AdaptiveAvgPool).lifts_sums
    x = torch.rand(2, 3, 8, 8) - 0.5
    found = hummingbird.simulate(net, mode="exact", seed=0)(x)
    assert float((found - net(x)).detach().abs().max()) < 2.0**-12


class Weighted(nn.Module):
    """A softmax's result, whose scale is higher than a product takes, times other values."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * torch.softmax(x, -1)


@pytest.mark.parametrize("bits", [None, COARSE])
def test_a_factor_of_a_higher_scale_is_rounded_before(bits: BitWindow | None) -> None:
    torch.manual_seed(0)
    x = torch.rand(3, 10) + 0.25
    got = hummingbird.simulate(Weighted().eval(), bits, mode="exact", seed=1)(x)
    assert float((got - Weighted()(x)).abs().max()) <= 2.0**-7
