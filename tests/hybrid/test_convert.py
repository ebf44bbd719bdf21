"""Trained nets to plans: every layer against torch exactly, units and rings, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError, ModelError
from hummingbird.hybrid import ideal, plan_json
from hummingbird.hybrid.convert import convert_model, make_plan
from hummingbird.hybrid.plan import Gate, Model, at_rest
from tests.support.hybrid_nets import NETS, WINDOWS, Residual, Several, exact, images, same

WIDE = BitConfig(BitWindow(20, 0), input_range=1.0)
SEED = bytes(range(16))


def logits(model: Model, x: torch.Tensor) -> torch.Tensor:
    """Logits of both sides' shares, with ideal gates and products."""
    masks, hidden = ideal.drawn(model.plan, SEED, len(x))
    return model.plan.decode(ideal.run(model, model.plan.encode(x), masks, hidden))


@pytest.mark.parametrize("name", NETS)
def test_a_plan_computes_its_net_exactly_where_nothing_is_rounded(name: str) -> None:
    make, shape = NETS[name]
    net, x = exact(make()), images(shape)
    model = make_plan(net, shape, BitConfig(WIDE.default, WINDOWS.get(name, {}), input_range=1.0))
    with torch.no_grad():
        expected = net.double()(x.double()).float()
    assert expected.abs().max() > 0.1
    assert torch.equal(logits(model, x), expected)
    # Layers read what is known before any layer.
    resting = at_rest(model.plan)
    assert all(step.inputs[0].index in resting for step in model.plan.linears.values())


def test_rounded_weights_move_logits_by_no_more_than_their_rounding() -> None:
    """Random weights, an average over 9 places: 1/55 a layer, three deviations and the factor of two of a bad draw."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.AvgPool2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 5)
    )
    x = images((2, 8, 8), 16)
    model = make_plan(net, (2, 8, 8), WIDE)
    with torch.no_grad():
        expected = net(x)
    got = logits(model, x)
    assert (got - expected).square().mean().sqrt() < 6 / 55 * 3**0.5 * expected.square().mean().sqrt()
    assert not torch.equal(got, expected)


def test_a_value_that_is_read_twice_has_one_mask_in_the_larger_ring() -> None:
    plan = make_plan(exact(Residual()), (2, 6, 6), WIDE).plan
    rings: dict[int, list[int]] = {}
    for step in plan.linears.values():
        rings.setdefault(step.inputs[0].index, []).append(step.ring)
    shared = [number for number, found in rings.items() if len(found) == 2]
    assert shared and all(plan.steps[number].ring >= max(rings[number]) for number in rings)
    assert all(plan.masked[number] is plan.steps[number] for number in shared)


def test_a_relu_goes_behind_its_max_pooling_on_shares_cut_before() -> None:
    make, shape = NETS["max pooling"]
    plan = make_plan(exact(make()), shape, BitConfig(BitWindow(20, 4), input_range=1.0)).plan
    gates = [(gate.name, gate.kind, gate.width, gate.shape) for gate in plan.gates.values()]
    assert [gate[2:] for gate in gates] == [(17, (1, 3, 4, 2)), (17, (1, 3, 2, 2)), (16, (3, 2, 2))]
    assert gates[-1][:2] == ("1", "relu")
    # Within the pooling nothing is read but 17 bits; the ReLU's result is the next layer's.
    assert [gate.ring for gate in plan.gates.values()] == [17, 16, plan.steps[-1].ring]


@pytest.mark.parametrize("clamp", [nn.ReLU6(), nn.Hardtanh(-1.0, 2.0)], ids=["relu6", "hardtanh"])
def test_both_ends_of_a_clamp_are_one_gate(clamp: nn.Module) -> None:
    """One message each way online, as for a ReLU, of twice as many numbers."""
    net = exact(nn.Sequential(nn.Conv2d(1, 3, 3), clamp, nn.Flatten(), nn.Linear(48, 5)))
    (gate,) = make_plan(net, (1, 6, 6), WIDE).plan.gates.values()
    assert gate.kind == "relu" and gate.count == 2 * 48


def test_windows_follow_the_unit_that_holds_the_weights() -> None:
    """Weights half as large take a bit more of fraction, and a ring that is a bit larger; the gate stays."""
    net = exact(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
    bits = BitConfig(BitWindow(18, 8), input_range=1.0)
    plan = make_plan(net, (8,), bits).plan
    net[0].weight.data /= 2
    other = make_plan(net, (8,), bits).plan
    assert other.steps[1].ring == plan.steps[1].ring + 1 and other.steps[2].attrs["m"] == plan.steps[2].attrs["m"] + 1
    gates = [next(iter(found.gates.values())) for found in (plan, other)]
    assert gates[0].width == gates[1].width == 10 and gates[0].unit == gates[1].unit == 2.0**-8


def test_every_problem_of_a_net_is_named() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act, self.norm = nn.Conv2d(1, 2, 3), nn.GELU(), nn.Softmax(1)
            self.pool = nn.AvgPool2d(2, ceil_mode=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.pool(self.act(self.conv(x)))) + 1.0

    with pytest.raises(ModelError) as caught:
        make_plan(Odd(), (1, 6, 7), WIDE)
    assert {problem.name for problem in caught.value.problems} == {"act", "norm", "pool"}
    assert all(problem.hint for problem in caught.value.problems)


def test_a_last_softmax_is_to_be_left_out() -> None:
    with pytest.raises(ModelError) as caught:
        make_plan(nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), (4,), WIDE)
    assert "leave it out" in caught.value.problems[0].hint


class Joined(nn.Module):
    """PReLUs, with a slope for all and for each channel, joined along both sides, and a dimension more."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.after = nn.Conv2d(1, 3, 3), nn.Conv2d(1, 2, 3), nn.Conv2d(5, 2, 2)
        self.each, self.all, self.last = nn.PReLU(3), nn.PReLU(), nn.Linear(36, 3)
        self.each.weight.data = torch.tensor([0.3, -0.2, 0.7])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.after(torch.cat([self.each(self.one(x)), self.other(x).relu()], 1))
        found: torch.Tensor = self.last(torch.cat([self.all(x), x], -1)[:, None].flatten(1))
        return found


def test_prelu_cat_and_a_new_dimension() -> None:
    """Windows [21:4) cut to 2^-12, some eight times on the way, of which weights let less than 2^-6 through."""
    torch.manual_seed(0)
    net, x = Joined().eval(), torch.randn(3, 1, 6, 6).clamp(-4, 4)
    with torch.no_grad():
        assert torch.allclose(convert_model(net, (1, 6, 6), BitWindow(21, 4))(x), net(x), atol=2.0**-6)
    with pytest.raises(ModelError, match="a part of a value"):
        make_plan(nn.Sequential(nn.Conv2d(1, 2, 3), Part(), nn.Flatten(), nn.Linear(16, 2)), (1, 6, 6), WIDE)


class Constants(nn.Module):
    """Sums and products with tensors and numbers, of a layer's results, of a gate's, of the image and of a sum's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 3, 3), nn.Linear(12, 3)
        for name, shape in {"each": (2, 1, 1), "place": (4, 4), "c": (3, 1, 1), "one": (), "all": (3, 2, 2)}.items():
            self.register_buffer(name, torch.ones(shape))
        self.last = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x * self.each - self.place) * self.one
        x = self.conv(x) * self.c + self.one - 0.25
        x = (self.all * x.relu() - 0.5).relu() * -2
        x = self.last - self.fc((-x - x).flatten(1))
        return x * 0.5


def test_sums_and_products_with_tensors_and_numbers() -> None:
    """Windows [22:4) cut to 2^-12, and weights let through less than 2^-6 of it."""
    torch.manual_seed(0)
    net = Constants()
    for buffer in (*net.buffers(), net.last):
        buffer.data = torch.randn(buffer.shape) / 2
    net, x = net.eval(), torch.randn(3, 2, 4, 4).clamp(-2, 2)
    private = convert_model(net, (2, 4, 4), BitWindow(22, 4))
    with torch.no_grad():
        assert torch.allclose(private(x), net(x), atol=2.0**-5)
    # conv and fc have taken what follows them; the image's factors and shifts, and those behind gates, are layers.
    assert {step.name for step in private.plan.linears.values()} == {"mul", "sub", "mul_1", "conv", "mul_3", "fc"}


@pytest.mark.parametrize("windows", [{}, {"a": BitWindow(20, 0)}])
def test_several_results_are_exact_where_all_values_are_multiples_of_a_unit(windows: dict[str, BitWindow]) -> None:
    net, x = exact(Several()), images((1, 4, 4))
    private = convert_model(net, (1, 4, 4), BitConfig(BitWindow(20, 0), windows, input_range=1.0))
    twin = hummingbird.simulate(net, BitConfig(BitWindow(20, 0), windows), cut=True)
    assert same(private(x), x) and same(twin(x), x)
    assert private.plan.output.shape == (3 + 4 + 8 + 16,)


class Part(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :1]


@pytest.mark.parametrize(
    ("last", "what"),
    [
        (lambda x: x.softmax(1), "softmax is not supported"),
        (lambda x: torch.where(x > 0, 2.0, 1.0), "greater is not supported"),
        (lambda x: x * x.relu(), "a product of two values"),
        (lambda x: x.roll(1, 1), "roll is not supported"),
        (lambda x: x.unbind(1)[0], "unbind is not supported"),
    ],
)
def test_what_has_no_form_is_refused_with_the_conversion_that_takes_it(last: Callable[..., Any], what: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return last(self.layer(x))

    with pytest.raises(ModelError) as caught:
        make_plan(Net(), (4,), WIDE)
    problem = caught.value.problems[0]
    assert what in problem.what and "hummingbird.convert_model" in problem.hint


REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], BitConfig, str]] = {
    "no windows": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (4,), BitConfig(), "gate takes 2 to 24"),
    "one bit": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        (4,),
        BitConfig(BitWindow(9, 8)),
        r"1 \[9:8\)",
    ),
    "beyond the ring": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)),
        (4,),
        BitConfig(BitWindow(34, 12), input_range=1.0),
        "more than 32 bits: .*0: 3",
    ),
    "lift without a window": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        (4,),
        BitConfig(),
        "without an activation",
    ),
    "differences": (
        NETS["max pooling"][0],
        (1, 6, 6),
        BitConfig(BitWindow(20, 4), {"2": BitWindow(20, 4)}),
        r"2 \[20:4\), of values in \[20:4\)",
    ),
    "a clamp's bounds": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU6(), nn.Linear(4, 2)),
        (4,),
        BitConfig(BitWindow(19, 4)),
        r"1 \[19:4\), of the bound 6",
    ),
    "another layer": (NETS["linear"][0], (5,), BitConfig(BitWindow(20, 4), {"7": BitWindow(20, 4)}), "names"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_windows_that_no_gate_takes_are_refused(name: str) -> None:
    make, shape, bits, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message) as caught:
        make_plan(exact(make()), shape, bits)
    assert caught.value.hint


def test_a_window_of_the_last_layer_bounds_the_logits() -> None:
    net = exact(nn.Sequential(nn.Linear(64, 8)))
    bound = make_plan(net, (64,), WIDE).plan.output
    said = make_plan(net, (64,), BitConfig(BitWindow(20, 0), {"0": BitWindow(18, 0)}, input_range=1.0)).plan.output
    assert said.ring < bound.ring and said.unit == bound.unit
    assert said.unit * 2.0 ** (said.ring - 1) == 2.0


def test_images_of_another_shape_or_range_are_refused() -> None:
    plan = make_plan(exact(NETS["linear"][0]()), (5,), WIDE).plan
    with pytest.raises(InputError, match="shape"):
        plan.encode(torch.zeros(5))
    with pytest.raises(InputError, match="beyond"):
        plan.encode(torch.full((1, 5), 1.5))
    with pytest.raises(InputError, match="beyond"):
        plan.encode(torch.full((1, 5), float("nan")))
    with pytest.raises(InputError, match="int64"):
        plan.encode(torch.zeros(1, 5, dtype=torch.int64))


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="garbler"):
        make_plan(exact(NETS["linear"][0]()), (5,), WIDE, garbler="both")
    with pytest.raises(InputError, match="input_shape"):
        make_plan(exact(NETS["linear"][0]()), (0,), WIDE)
    assert isinstance(Gate("g", "gate", (), (), 4, 1.0), Gate)


def small(seed: int, rms: float, rms_last: float = 0.1) -> nn.Module:
    """A convolution and a linear layer of random weights with these root mean squares."""
    made = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    torch.manual_seed(seed)
    with torch.no_grad():
        for number, wanted in ((0, rms), (3, rms_last)):
            weight = torch.randn_like(made[number].weight)
            made[number].weight.copy_(weight * wanted / weight.square().mean().sqrt())
            made[number].bias.copy_(torch.randn_like(made[number].bias))
    return made.double()


def test_a_plan_tells_the_size_of_weights_to_a_factor_of_two_and_nothing_else_of_them() -> None:
    """SECURITY.md says so: what D and everybody who asks for the plan learns of weights."""
    windows = BitConfig(BitWindow(20, 8), {"3": BitWindow(22, 8)}, input_range=1.0)

    def told(net: nn.Module, bits: BitConfig = windows) -> str:
        return plan_json.to_json(make_plan(net, (1, 6, 6), bits).plan)

    at = 2.0**-4 * 1.001  # rounded weights are not asked for their size
    same = told(small(0, at))
    for seed, factor in ((1, 1.0), (2, 1.3), (3, 1.99)):
        assert told(small(seed, factor * at)) == same
    for factor in (0.99, 2.01):
        assert told(small(0, factor * at)) != same
    fine = BitConfig(BitWindow(20, 0), {"3": BitWindow(22, 8)}, input_range=1.0)  # which asks for finer units by itself
    assert len({told(small(0, rms), fine) for rms in (0.2, 0.5, 0.99, 15.0)}) == 1
    # Logits without a window have a ring that holds them: it tells the last layer's largest row.
    bare = BitConfig(BitWindow(20, 8), input_range=1.0)
    rings = {make_plan(small(0, at, last), (1, 6, 6), bare).plan.output.ring for last in (0.07, 0.12, 0.249)}
    assert len(rings) == 2
