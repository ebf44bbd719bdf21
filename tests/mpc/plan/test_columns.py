"""First layers on columns as they were measured: large values with small weights, of public and private nets."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird import inputs
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.channel import interleave
from hummingbird.convert import build
from hummingbird.errors import InputError, ModelError
from hummingbird.graph import trace
from hummingbird.mpc.layers.layer import FLOOR, Lift
from hummingbird.mpc.layers.linear import Linear
from hummingbird.mpc.plan import columns
from hummingbird.mpc.plan.columns import Halved
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.simulation.simulate import Parties
from tests.support.covering import covering

COLUMNS = 6
# Mean and deviation of the first column; all others are standardised.
RAW = [(1e5, 1e4), (5e5, 1e5), (1e6, 1e4), (9e4, 1e2), (2e3, 10.0)]


def statistics(mean: float, deviation: float) -> tuple[Tensor, Tensor]:
    means, deviations = torch.zeros(COLUMNS), torch.ones(COLUMNS)
    means[0], deviations[0] = mean, deviation
    return means, deviations


def first_linear(mean: float, deviation: float, size: float = 1.0) -> nn.Sequential:
    """A net whose first layer standardises; size: of its weights on standardised values."""
    torch.manual_seed(3)
    means, deviations = statistics(mean, deviation)
    net = nn.Sequential(nn.Linear(COLUMNS, 12), nn.ReLU(), nn.Linear(12, 3))
    with torch.no_grad():
        weight = torch.randn(12, COLUMNS) * size
        net[0].weight.copy_(weight / deviations)
        net[0].bias.copy_(-(weight * means / deviations).sum(1))
    return net.eval()


def first_norm(mean: float, deviation: float) -> nn.Sequential:
    torch.manual_seed(4)
    norm = nn.BatchNorm1d(COLUMNS)
    means, deviations = statistics(mean, deviation)
    norm.running_mean, norm.running_var = means, deviations.square()
    return nn.Sequential(norm, nn.Linear(COLUMNS, 12), nn.ReLU(), nn.Linear(12, 3)).eval()


def first_conv(mean: float, deviation: float, *, groups: int = 1, transposed: bool = False) -> nn.Sequential:
    torch.manual_seed(5)
    make = nn.ConvTranspose2d if transposed else nn.Conv2d
    conv = make(COLUMNS, 12, 2, groups=groups, bias=False)
    means, deviations = statistics(mean, deviation)
    with torch.no_grad():
        if transposed:
            conv.weight.div_(deviations.view(-1, 1, 1, 1))
        else:
            conv.weight.div_(deviations.view(groups, 1, -1).expand(-1, 12 // groups, -1).reshape(12, -1, 1, 1))
    return nn.Sequential(Centered(means), conv, nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)).eval()


class Centered(nn.Module):
    """Channels less their means."""

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.register_buffer("means", means.view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x - self.means
        return out


def rows(mean: float, deviation: float, *space: int) -> Tensor:
    torch.manual_seed(6)
    means, deviations = (x.view(-1, *[1] * len(space)) for x in statistics(mean, deviation))
    return means + deviations * torch.randn(40, COLUMNS, *space).clamp(-4, 4)


def error(net: nn.Module, x: Tensor, bits: object = None, **options: object) -> float:
    """The largest error of a twin by the largest output."""
    with torch.no_grad():
        true = copy.deepcopy(net).double()(x.double())
        out = hummingbird.simulate(net, bits, seed=1, **options)(x)  # type: ignore[arg-type]
        return float((out - true).abs().max() / true.abs().max())


@covering("mean, deviation, bits, mode", RAW, [None, BitWindow(26, 0)], ["exact", "fast"], ids=str)
def test_a_linear_layer_on_raw_columns(mean: float, deviation: float, bits: object, mode: str) -> None:
    net, x = first_linear(mean, deviation), rows(mean, deviation)
    assert error(net, x, bits, mode=mode) < 2.0**-13
    assert error(first_linear(mean, deviation, 0.1), x, bits, mode=mode) < 2.0**-12


@pytest.mark.parametrize("protocol", ["masked", "gmw"])
@pytest.mark.parametrize(("mean", "deviation"), RAW)
def test_a_batch_norm_first(mean: float, deviation: float, protocol: str) -> None:
    for mode in ("exact", "fast"):
        assert error(first_norm(mean, deviation), rows(mean, deviation), protocol=protocol, mode=mode) < 2.0**-12


@pytest.mark.parametrize("form", [{}, {"groups": 3}, {"transposed": True}, {"groups": 2, "transposed": True}], ids=str)
def test_a_convolution_on_raw_channels(form: dict[str, object]) -> None:
    mean, deviation = 5e5, 1e5
    x = rows(mean, deviation, 4, 4)
    net = first_conv(mean, deviation, **form)  # type: ignore[arg-type]
    net(x)
    for mode in ("exact", "fast"):
        assert error(net, x, mode=mode) < 2.0**-12
    assert any(isinstance(step.layer, Halved) for step in build(net).plan)


def test_a_small_column_beside_a_large_one() -> None:
    """A weight of 70,000, of a column that varies by 1e-5, says nothing about one of a column of 9e5."""
    norm, x = first_norm(-9e5, 3e4)[:1], rows(-9e5, 3e4)
    norm[0].running_mean[1], norm[0].running_var[1] = 0.001, 2e-10  # type: ignore[index, union-attr, operator]
    with torch.no_grad():
        with pytest.warns(UserWarning, match="multiply column 1 of"):
            out = hummingbird.simulate(norm, mode="exact", seed=1)(x)
        assert float((out - copy.deepcopy(norm).double()(x.double()))[:, 0].abs().max()) < 2.0**-10


def small_and_large(powers: int = 0) -> tuple[nn.Sequential, Tensor]:
    """A first layer that standardises a column of 1e-3, times 2^powers, beside one of 1e5, and inputs of it."""
    means, deviations = statistics(1e5, 1e4)
    deviations[1] = 1e-3 * 2.0**powers
    net = first_linear(1e5, 1e4)
    with torch.no_grad():
        net[0].weight[:, 1] /= deviations[1]
    torch.manual_seed(6)
    return net, means + deviations * torch.randn(40, COLUMNS).clamp(-4, 4)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_both_twins_show_what_small_columns_lose(mode: str) -> None:
    """The column's rounding of 2^-17 at most, 0.4 % of its deviation, and one word about it."""
    net, x = small_and_large()
    with pytest.warns(UserWarning, match="0: weights of up to .* multiply column 1 of the inputs") as told:
        lost = error(net, x, mode=mode)
    with torch.no_grad():
        true = copy.deepcopy(net).double()
        shared = (x.double() * 2.0**16).round() / 2.0**16
        due = float((true(shared) - true(x.double())).abs().max() / true(x.double()).abs().max())
    assert due > 2.0**-10
    assert abs(lost - due) < 2.0**-13
    assert len([w for w in told if "multiply column" in str(w.message)]) == 1


def test_the_remedy_that_the_warning_names(recwarn: pytest.WarningsRecorder) -> None:
    net, x = small_and_large(10)
    assert error(net, x, mode="exact") < 2.0**-12
    assert not [w for w in recwarn if "multiply column" in str(w.message)]


def test_bits_of_inputs_that_are_too_small_to_be_shared() -> None:
    net = first_linear(0.0, 1.0)
    with pytest.raises(ModelError, match=r"0: inputs are up to 0.005 .* multiples of 2\^-16") as refused:
        build(net, BitConfig(BitWindow(20, 0), input_range=0.005))
    assert [problem.name for problem in refused.value.problems] == ["0"]
    build(net, BitConfig(BitWindow(20, 0), input_range=2.0**-7))


class Factors(nn.Module):
    """Inputs times a tensor of factors, after a ReLU: still on the scales they were measured on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factors", torch.tensor([1e-5, *[1.0] * (COLUMNS - 1)]))
        self.linear = nn.Linear(COLUMNS, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(torch.relu(x) * self.factors)
        return out


def test_factors_of_a_tensor() -> None:
    assert error(Factors().eval(), rows(5e5, 1e5), mode="exact") < 2.0**-12


def test_every_column_keeps_its_weights_at_any_range() -> None:
    """Whatever the weights: the rounding of a column is 2^-13 of its largest, or nothing beside the other columns, or
    2^-13 of a result for inputs of 2^20: of weights below 2^-20, which are doubled no more often than twelve times.
    """
    torch.manual_seed(7)
    for trial in range(60):
        net = nn.Sequential(nn.Linear(5, 8, bias=bool(trial % 2)), nn.ReLU()).eval()
        with torch.no_grad():
            net[0].weight.mul_(10.0 ** (torch.rand(5) * 14 - 10))
            if trial % 4 == 3:
                net[0].bias.mul_(10.0 ** float(torch.rand(()) * 5))
        try:
            private = build(net)
        except ModelError as refused:
            assert "largest" in str(refused)
            continue
        layers = {step.name: step.layer for step in private.plan}
        linear, halved = layers["0"], layers.get("0.columns")
        assert isinstance(linear, Linear)
        weight = linear.weight.code.double() * 2.0**-linear.fraction
        if isinstance(halved, Halved):
            weight = weight * (2.0 ** (halved.shifts - halved.fraction))[:, None]
        wanted = net[0].weight.detach().t().double()
        lost, largest = (weight - wanted).abs().amax(1), wanted.abs().amax(1)
        few = (largest * 2.0**FLOOR <= largest.max().clamp(max=1) * 2.0**-columns.NOTHING) | (
            lost <= 2.0 ** -(FLOOR + 13)
        )
        assert bool((few | (lost <= largest * 2.0**-13)).all()), trial


def test_ordinary_first_layers_stay_as_they_were() -> None:
    """No step more, and no bit: image nets, normalised and in whole grey values, and wide layers at their start."""
    torch.manual_seed(8)
    for net in (
        nn.Conv2d(3, 8, 3),
        nn.Linear(10_000, 128),
        nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3)),
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
    ):
        assert len(columns.kept(steps := trace(net.eval()))) == len(steps)


def opened(net: nn.Module, bits: BitWindow | None = None) -> list[str]:
    """Names of values that are opened under a mask, and nothing else."""
    return [step.name for step in build(net, bits).plan if isinstance(step.layer, Lift)]


def test_up_to_six_bits_cost_no_message_and_a_window_none() -> None:
    few, many = first_linear(3e3, 100.0), first_linear(5e5, 1e5)
    for net in (few, many):
        assert any(isinstance(step.layer, Halved) for step in build(net).plan)
    assert "0.columns.lift" in opened(many)
    assert "0.columns.lift" not in opened(few) + opened(many, BitWindow(20, 0))


def test_dead_columns_are_left_alone() -> None:
    """Weights that decayed to nothing can move no result."""
    net = nn.Sequential(nn.Linear(COLUMNS, 12), nn.ReLU()).eval()
    with torch.no_grad():
        net[0].weight[:, 1:3] *= torch.tensor([0.0, 1e-12])
    assert len(columns.kept(steps := trace(net))) == len(steps)


def test_hidden_layers_stay_as_they_are() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        net[2].weight[:, 0] = 1e-5
    assert len(columns.kept(steps := trace(net))) == len(steps)


# Private weights ------------------------------------------------------------------------------------------------------


class Party(nn.Module):
    """A party's net: party 0's weights are shared before the batch."""

    def __init__(self, net: PrivateNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, session: Session, x: Shared) -> Shared:
        # Interleaved by itself: the parties are so in Parties.run.
        interleave.Interleave().run([lambda: self.net.set_up(session)])
        return self.net.forward(session, x)


def private_error(net: nn.Module, x: Tensor) -> float:
    """As `error` of the exact twin, with weights of party 0."""
    with torch.no_grad():
        true = copy.deepcopy(net).double()(x.double())
        out = Parties(2, 1, x.device).run(Party(build(net, weights=0)), x)
        return float((out - true).abs().max() / true.abs().max())


@pytest.mark.parametrize(("mean", "deviation"), [(1e5, 1e4), (2e5, 5e4), (2e3, 10.0)])
def test_private_weights_of_raw_columns(mean: float, deviation: float) -> None:
    assert private_error(first_linear(mean, deviation), rows(mean, deviation)) < 2.0**-10


@pytest.mark.parametrize("net", [first_linear(9e5, 3e5, 0.2), first_norm(9e5, 3e5)], ids=["linear", "norm"])
def test_the_owner_of_private_weights_that_would_be_lost_is_told(net: nn.Module) -> None:
    with pytest.raises(ModelError, match="weights so small that, for inputs up to 1.04858e\\+06") as refused:
        build(net, weights=0)
    assert refused.value.problems[0].name == "0"
    build(net, BitConfig(BitWindow(64, 0), input_range=3.0), weights=0)  # of small inputs all are kept


class Powers(nn.Module):
    """The remedy that the refusal names."""

    def __init__(self, net: nn.Sequential) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("powers", torch.tensor([2.0**-16, *[1.0] * (COLUMNS - 1)]))
        with torch.no_grad():
            net[0].weight.div_(self.powers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x * self.powers)
        return out


def test_powers_of_two_are_the_remedy() -> None:
    net = Powers(first_linear(9e5, 3e4, 0.2)).eval()
    assert private_error(net, rows(9e5, 3e4)) < 2.0**-10


def test_the_price_of_private_weights_follows_the_inputs() -> None:
    """With windows found for images the first layer has 20 bits, as ever."""
    net, window = first_linear(0.0, 1.0), BitWindow(20, 12)
    for bits in (window, BitConfig(window, input_range=2.75)):
        assert build(net, bits, weights=0).plan[1].layer.fraction == 20  # type: ignore[union-attr]
    for most, fraction in [(1.0, 20), (2.0**14, 20), (2.0**14 + 1, 21), (2.0**17, 23), (2.0**20, 26), (2.0**29, 26)]:
        assert columns.private_bits(BitConfig(window, input_range=most)) == fraction


# Inputs ---------------------------------------------------------------------------------------------------------------


def test_an_owner_is_told_of_values_beyond_the_range() -> None:
    assert inputs.MOST == 2.0**FLOOR
    inputs.encoded(torch.tensor([-(2.0**20), 2.0**20]), "x")
    for value in (2.0**20 + 1, -3e6):
        with pytest.raises(InputError, match="below 2\\^20"):
            inputs.encoded(torch.tensor([1.0, value]), "x")
    inputs.encoded(torch.tensor([3e6]), "x", limit=2.0**24)  # for a function of one's own
