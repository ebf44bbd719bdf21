"""Nobody reads the bits of a product that the plan says nobody reads: with noise in them all results are the same.

All parties run their own code on their own shares (`simulate`, mode="exact"), with the same random numbers every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird import kernels
from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.convert import build
from hummingbird.graph import trace
from hummingbird.mpc.layers.layer import Layer
from hummingbird.mpc.layers.linear import Linear
from hummingbird.mpc.layers.products import Multiply
from hummingbird.mpc.plan.builders import builder
from hummingbird.mpc.plan.rounding_plan import Planner, digest
from hummingbird.mpc.protocols import masked
from hummingbird.serving.plan import input_bits
from tests.support.covering import covering
from tests.support.operations import cases

CASES = cases()
WINDOWS = {"exact": EXACT, "[20:12)": BitWindow(20, 12), "[18:0)": BitWindow(18, 0)}


def conv(inputs: int, outputs: int) -> nn.Module:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


class Block(nn.Module):
    """A residual block: a sum of values with different scales, pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.fc = conv(4, 8), conv(8, 8), nn.Conv2d(4, 8, 1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.b(torch.relu(self.a(x))) + self.c(x))
        return self.fc(nn.functional.max_pool2d(y, 2).mean((2, 3)))


class Product(nn.Module):
    """A product of two private values."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(4, 4), conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.a(x)) * self.b(x)


def nets() -> dict[str, nn.Module]:
    torch.manual_seed(5)
    return {
        "residual": Block(),
        # Two and more linear layers in a row: shares are rounded locally between them.
        "linear layers": nn.Sequential(conv(4, 6), nn.AvgPool2d(2), conv(6, 6), conv(6, 4), nn.ReLU(), conv(4, 3)),
        "activations": nn.Sequential(conv(4, 4), nn.Hardswish(), conv(4, 4), nn.SiLU(), conv(4, 4), nn.Sigmoid()),
        "products": Product(),
        "transposed": nn.Sequential(nn.ConvTranspose2d(4, 4, 3, 2, groups=2), nn.PReLU(4), nn.ConvTranspose2d(4, 2, 2)),
        "softmax": nn.Sequential(nn.Flatten(), nn.Linear(144, 9), nn.LeakyReLU(0.2), nn.Linear(9, 6), nn.Softmax(1)),
    }


def noisy(monkeypatch: pytest.MonkeyPatch, taken: int = 0) -> list[int]:
    """Noise in the bits of products that are not read, and in the highest `taken` of those that are; bits by call."""
    seen: list[int] = []

    def wrapped(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(a: Tensor, b: Any, *options: Any) -> Tensor:
            out, bits = product(a, b, *options), options[-1]
            seen.append(bits)
            if bits - taken > 63:
                return out
            return out ^ (torch.randint(-(2**63), 2**63 - 1, out.shape) << (bits - taken))

        return run

    for name in ("matmul", "conv2d"):
        monkeypatch.setattr(kernels, name, wrapped(getattr(kernels, name)))
    return seen


def results(net: nn.Module, x: Tensor, window: BitWindow, protocol: str, parties: int) -> Tensor:
    return hummingbird.simulate(net.eval(), window, protocol, parties, mode="exact", seed=1)(x)


@covering("name, protocol, parties, window", nets(), [("masked", 2), ("masked", 3), ("gmw", 2)], WINDOWS)
def test_results_do_not_depend_on_bits_that_are_not_read(
    monkeypatch: pytest.MonkeyPatch, name: str, protocol: str, parties: int, window: str
) -> None:
    net, x, bits = nets()[name], torch.rand(2, 4, 6, 6) - 0.5, WINDOWS[window]
    expected = results(net, x, bits, protocol, parties)
    seen = noisy(monkeypatch)
    assert torch.equal(results(net, x, bits, protocol, parties), expected)
    assert seen
    if protocol == "masked" and bits is not EXACT and name != "products":
        assert min(seen) < 52, "no product was any cheaper"


# Products of each kind: noise is in no other operation.
QUICK = ["conv2d", "conv_transpose2d groups", "batch norm, folded", "mean", "matmul", "attention"]
QUICK += ["bilinear, corners", "squeeze and excitation"]


@covering("name", CASES, quick=QUICK)
def test_no_operation_reads_them(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    case = CASES[name]
    net = nn.Sequential(case.net, nn.ReLU())
    expected = results(net, case.x, BitWindow(32, 0), "masked", 2)
    noisy(monkeypatch)
    assert torch.equal(results(net, case.x, BitWindow(32, 0), "masked", 2), expected)


def test_the_highest_bit_that_is_read_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit fewer would be a wrong answer: the plan asks for no more than is needed, and this check can fail."""
    x = torch.rand(2, 4, 6, 6) - 0.5
    for name, window in (("residual", BitWindow(18, 0)), ("linear layers", BitWindow(20, 12))):
        expected = results(nets()[name], x, window, "masked", 2)
        with monkeypatch.context() as patch:
            noisy(patch, taken=1)
            assert not torch.equal(results(nets()[name], x, window, "masked", 2), expected), name


def test_the_highest_bit_of_a_private_product_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of two private values open no more bits than are read of them, and no fewer would do."""
    x, window = torch.rand(2, 4, 6, 6) - 0.5, BitWindow(18, 0)
    net = nn.Sequential(Product(), nn.ReLU())
    (layer,) = (step.layer for step in build(net.eval(), window).plan if isinstance(step.layer, Multiply))
    assert layer.read == 18 + 16  # the window's, and the bits of fraction beside 16
    expected = results(net, x, window, "masked", 2)
    assert float((expected - net(x)).abs().max()) < 2.0**-12
    bits = property(lambda self: self.__dict__["read"] - 1, lambda self, read: self.__dict__.update(read=read))
    monkeypatch.setattr(Multiply, "read", bits)
    assert not torch.equal(results(net, x, window, "masked", 2), expected)


def test_the_plan_says_how_many_bits_are_read() -> None:
    """k and the bits of fraction beside 16 before a ReLU; where shares are rounded in between, those as well."""
    layers = {
        step.name: step.layer
        for step in build(nets()["linear layers"].eval(), BitWindow(20, 12)).plan
        if isinstance(step.layer, Linear)
    }
    assert [layers[name].fraction for name in ("0", "2", "3", "5")] == [20, 20, 16, 20]
    # 3 has 16 bits beside the window's 20; 2 is rounded by 20 before it. 0 is rounded by 20, and its mean is lifted: 18
    # bits of fraction and 22 for values up to 2^20 are read of it. 5 is lifted too: 36, and 9 behind a ReLU below 2^3.
    assert {name: layer.read for name, layer in layers.items()} == {"0": 60, "2": 56, "3": 36, "5": 45}


class Reshaped(nn.Module):
    """A ReLU of an input in another shape."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x.reshape(x.size(0), -1)).reshape(-1, 2)


ALONE = {"itself": nn.ReLU(), "flattened": nn.Sequential(nn.ReLU(), nn.Flatten()), "reshaped": Reshaped()}
NOT_ALONE = {
    "read by a layer": nn.Sequential(nn.ReLU(), nn.Linear(4, 2)),
    "of a layer": nn.Sequential(nn.Linear(4, 2), nn.ReLU()),
    "twice": nn.Sequential(nn.ReLU(), nn.ReLU()),
    "two thresholds": nn.ReLU6(),
}


def whole(net: nn.Module, window: BitWindow, protocol: str = "masked") -> list[bool]:
    found = [step.layer for step in hummingbird.convert_model(net.eval(), window, protocol=protocol).plan]
    return [layer.comparison.whole for layer in found if isinstance(layer, Layer) and layer.comparison is not None]


@pytest.mark.parametrize("name", [*ALONE, *NOT_ALONE])
def test_a_relu_alone_reads_its_input_whole(name: str) -> None:
    net = (ALONE | NOT_ALONE)[name]
    assert set(whole(net, BitWindow(20, 12))) == {name in ALONE}
    assert not any(whole(net, BitWindow(64, 0)) + whole(net, BitWindow(20, 12), "gmw"))  # nothing to save


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("parties", [2, 3])
def test_a_relu_alone_is_a_relu(name: str, parties: int) -> None:
    """Inside its window; and outside, of either result that a fair coin chooses between (protocols/law.py)."""
    x = torch.rand(50, 2, 2) * 15.9 - 7.95
    window = BitWindow(20, 2)
    found = results(ALONE[name], x, window, "masked", parties)
    assert float((found - ALONE[name](x)).abs().max()) < 2**-14
    far = torch.full((100, 2, 2), 9.0)
    assert set(results(ALONE[name], far, window, "masked", parties).flatten().tolist()) == {0.0, 16.0}
    twin = hummingbird.simulate(ALONE[name].eval(), window, "masked", parties, seed=1)(far)
    assert set(twin.flatten().tolist()) == {0.0, 16.0}
    far = -far
    assert set(results(ALONE[name], far, window, "masked", parties).flatten().tolist()) == {7.0, -9.0}
    twin = hummingbird.simulate(ALONE[name].eval(), window, "masked", parties, seed=1)(far)
    assert set(twin.flatten().tolist()) == {7.0, -9.0}


def test_a_relu_alone_is_dealt_no_carry() -> None:
    """44 bits less for each value of a window of 20, and a client's share has all 64 bits for 20."""
    private = hummingbird.convert_model(nn.ReLU().eval(), BitWindow(20, 12))
    (price,) = [item.cost for item in private.costs((1, 1000), 2) if item.cost.rounds]
    assert price == masked.relu_price(1000, 20, 12, 64, 2, whole=True)
    assert price.offline_bits == masked.relu_price(1000, 20, 12, 64, 2).offline_bits - 44 * 1000
    assert input_bits(private.plan) == 64
    read = hummingbird.convert_model(NOT_ALONE["read by a layer"].eval(), BitWindow(20, 12))
    assert input_bits(read.plan) == 20


class Quarters(nn.Module):
    """A product whose bits are moved to the left beside another one's."""

    def __init__(self, join: str, factor: float) -> None:
        super().__init__()
        self.join, self.factor = join, factor

    def forward(self, x: Tensor) -> Tensor:
        y = torch.where(x > 0.25, x, x * 0.25)
        return y + y * self.factor if self.join == "sum" else torch.cat([y, y * self.factor], 1)


class Excited(nn.Module):
    """A resized value times a softmax, beside the resized value, under a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(4, 4, 1), nn.Upsample(size=(11, 11), mode="bilinear")

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        y, gate = self.up(x), nn.functional.silu(x.mean((2, 3))).softmax(1)[:, :, None, None]
        return torch.cat([y * gate, y * 0.3], 1).softmax(1)


@covering(
    "net, bits",
    [*(Quarters(join, f) for join in ("sum", "cat") for f in (1.0, 2.0, 0.25)), Excited()],
    [EXACT, BitWindow(22, 0), BitWindow(20, 0)],
    ids=str,
)
def test_nobody_reads_more_bits_than_a_word_has(net: nn.Module, bits: BitWindow) -> None:
    """A product of an operand that is cut is right in fewer bits than a word: its reader moves the rest out."""
    torch.manual_seed(0)
    x = torch.randn(2, 4, 8, 8)
    for step in build(net.eval(), bits).plan:
        assert not isinstance(step.layer, Layer) or step.layer.read <= 64
    with torch.no_grad():
        error = (hummingbird.simulate(net, bits, mode="exact", seed=1)(x) - net(x)).abs().max()
    assert float(error) < 2.0**-10


class Reread(nn.Module):
    """A ReLU whose result is moved, and read by another one, before or after it is moved."""

    def __init__(self, moved_first: bool) -> None:
        super().__init__()
        self.moved_first = moved_first

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(x)
        if self.moved_first:
            moved = y.flatten(1)
            read = torch.relu(y)
        else:
            read = torch.relu(y)
            moved = y.flatten(1)
        return torch.cat([read.flatten(1), moved], 1)


@pytest.mark.parametrize("first", [True, False])
def test_a_relu_is_alone_if_no_layer_reads_it_behind_what_moves_it_either(first: bool) -> None:
    assert whole(Reread(first), BitWindow(20, 12)) == [False, False]
    moved_and_read = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))
    assert whole(moved_and_read, BitWindow(20, 12)) == [False]


class Two(nn.Module):
    """A linear layer with two readers, in this order."""

    def __init__(self, readers: list[str]) -> None:
        super().__init__()
        self.fc, self.readers = nn.Linear(4, 4), readers
        self.narrow, self.wide, self.whole = nn.ReLU(), nn.ReLU(), nn.Softmax(1)

    def forward(self, x: Tensor) -> Tensor:
        y, out = self.fc(x), torch.zeros(())
        for name in self.readers:
            out = getattr(self, name)(y) + out
        return out


def test_integers_of_a_value_are_those_of_the_reader_that_looks_at_most_of_them_in_any_order() -> None:
    config = BitConfig(EXACT, {"narrow": BitWindow(18, 8), "wide": BitWindow(22, 8)})

    def integers(*readers: str) -> int:
        steps = trace(Two([*readers]).eval())
        planner = Planner(builder("masked", config.windows, None), "masked")
        planner.plan(steps)
        return planner._integers[[step.name for step in steps].index("fc")]

    narrow, wide, most = integers("narrow"), integers("wide"), integers("whole")
    assert wide == narrow + 4 < most
    for pair, expected in ((("narrow", "wide"), wide), (("narrow", "whole"), most), (("wide", "whole"), most)):
        assert integers(*pair) == integers(*reversed(pair)) == expected, pair


def test_a_digest_tells_plans_apart_that_differ_in_one_fact_of_a_step() -> None:
    plan = build(nets()["residual"].eval(), BitWindow(20, 12)).plan
    number, layer = next((n, step.layer) for n, step in enumerate(plan) if isinstance(step.layer, Linear))
    step, seen = plan[number], {digest(plan)}
    changes: list[dict[str, Any]] = [{"name": "x"}, {"op": "x"}, {"scale": step.scale + 1}, {"valid": step.valid - 1}]
    for change in changes:
        seen.add(digest([*plan[:number], replace(step, **change), *plan[number + 1 :]]))
    layer.read += 1
    seen.add(digest(plan))
    layer.read -= 1
    comparison = next(s.layer.comparison for s in plan if isinstance(s.layer, Layer) and s.layer.comparison is not None)
    comparison.ring -= 1
    seen.add(digest(plan))
    assert len(seen) == 1 + len(changes) + 2
