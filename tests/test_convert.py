"""The converter: all problems or a whole net, windows by name, inputs checked first, prices that hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.convert import convert_model, register_converter, validate_model
from hummingbird.cost import FREE
from hummingbird.errors import ConfigError, InputError, ModelError
from hummingbird.mpc.session import session as sessions

UNIT = 2.0**-16
SMALL = BitWindow(24, 0)


pytestmark = pytest.mark.usefixtures("nothing_is_left")


class Block(nn.Module):
    """A reused ReLU, a residual sum, a function between the modules."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.pool, self.drop, self.fc = nn.MaxPool2d(2), nn.Dropout(0.5), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.conv2(x) + x)
        return self.fc(self.drop(torch.flatten(self.pool(x), 1)))


def block() -> tuple[Block, Tensor]:
    return Block().eval(), torch.randn(2, 3, 4, 4)


def private_output(net: nn.Module, x: Tensor, *args: object) -> Tensor:
    return convert_model(net, *args)(hummingbird.cryptensor(x)).get_plain_text()  # type: ignore[arg-type]


# Problems -------------------------------------------------------------------------------------------------------------


class Hopeless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.LocalResponseNorm(2), nn.ReLU())
        self.up, self.head = nn.Upsample(scale_factor=2, mode="area"), nn.ModuleDict({"act": nn.Hardshrink()})

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(self.body(x))
        return torch.floor(self.head["act"](x)) + x.cumsum(1)


def test_all_problems_are_listed_by_name_with_hints_and_nothing_is_converted() -> None:
    net = Hopeless()
    built = []
    register_converter(nn.ReLU, lambda module: built.append(module) or nn.Identity())
    problems = validate_model(net)
    names = [problem.name for problem in problems]
    assert {"body.1", "up", "head.act"} <= set(names) and len(names) == len(set(names)) == 5
    assert all(problem.what and problem.hint for problem in problems)
    with pytest.raises(ModelError) as caught:
        convert_model(net)
    assert caught.value.problems == problems
    assert all(name in str(caught.value) for name in names) and "5 problem(s)" in str(caught.value)
    assert built == []


def test_a_problem_that_many_layers_have_is_told_once_and_listed_for_each() -> None:
    net = nn.Sequential(*(nn.Hardshrink() for _ in range(24)), nn.LocalResponseNorm(2), nn.CrossMapLRN2d(2))
    problems = validate_model(net)
    assert [problem.name for problem in problems] == [str(number) for number in range(26)]
    with pytest.raises(ModelError) as caught:
        convert_model(net)
    assert caught.value.problems == problems
    first, *lines = str(caught.value).splitlines()
    assert "26 problem(s)" in first
    assert lines[0].startswith("  0, 1, 2 and 21 more: Hardshrink is not in the vocabulary  [hint: ")
    assert [line[:6] for line in lines[1:3]] == ["  24: ", "  25: "] and "every place" in lines[3]
    assert "every place" not in str(ModelError(problems[21:])) and "21, 22, 23: Hardshrink" in str(
        ModelError(problems[21:])
    )


def test_a_net_without_problems_has_none() -> None:
    assert validate_model(Block()) == []


def test_what_is_no_net_is_an_input_error() -> None:
    for thing in ("net", None, Block, torch.zeros(3)):
        with pytest.raises(InputError, match=r"expected a torch\.nn\.Module"):
            convert_model(thing)  # type: ignore[arg-type]


def scaled(net: nn.Module, factor: float) -> nn.Module:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(factor)
    return net


class Fixed(nn.Module):
    """x * a + b for constants."""

    def __init__(self, a: object, b: object) -> None:
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x: Tensor) -> Tensor:
        return x * self.a + self.b


@pytest.mark.parametrize(
    ("net", "names"),
    [
        (
            nn.Sequential(nn.Flatten(), scaled(nn.Linear(4, 4), 1e12), nn.ReLU(), scaled(nn.Linear(4, 4), 1e12)),
            ["1", "3"],
        ),
        (nn.Sequential(nn.Flatten(), scaled(nn.Linear(4, 4), float("nan"))), ["1"]),
        (Fixed(1e12, 1.0), ["mul"]),
        (Fixed(2.0, 1e12), ["add"]),
        (Fixed(2.0, float("nan")), ["add"]),
    ],
    ids=["weights", "nan weights", "factor", "constant", "nan constant"],
)
def test_numbers_that_fixed_point_cannot_hold_are_problems_with_a_name(net: nn.Module, names: list[str]) -> None:
    assert [problem.name for problem in validate_model(net)] == names
    with pytest.raises(ModelError):
        convert_model(net)


def test_a_constant_tensor_factor_is_converted_or_refused_by_name(alone: sessions.Session) -> None:
    """(x - mean) / std with tensors: never a torch error from inside the converter."""
    x, factor = torch.randn(2, 3, 4, 4), torch.tensor([0.5, 2.0, -1.25]).view(3, 1, 1)
    net = Fixed(nn.Parameter(factor), 0.25)
    if problems := validate_model(net):
        assert [problem.name for problem in problems] == ["mul"] and problems[0].hint
        with pytest.raises(ModelError):
            convert_model(net)
    else:
        assert float((private_output(net, x) - (x * factor + 0.25)).abs().max()) < 8 * UNIT


# Windows --------------------------------------------------------------------------------------------------------------


def test_bits_as_window_config_path_and_none(tmp_path: Path) -> None:
    net, _ = block()

    def windows(bits: object) -> dict[str, str]:
        private = convert_model(net, bits)  # type: ignore[arg-type]
        return {planned.name: planned.window for planned in private.costs((1, 3, 4, 4), 2) if planned.window}

    names = ["relu", "relu#1", "pool"]
    assert windows(None) == dict.fromkeys(names, "[64:0)")
    assert windows(SMALL) == dict.fromkeys(names, "[24:0)") | {"pool": "[25:0)"}  # before its ReLU, of both signs
    config = BitConfig(SMALL, {"relu": BitWindow(20, 12), "pool": BitWindow(21, 0)})
    expected = {"relu": "[20:12)", "relu#1": "[20:12)", "pool": "[21:0)"}
    assert windows(config) == expected
    config.save(tmp_path / "bits.json")
    assert windows(tmp_path / "bits.json") == windows(str(tmp_path / "bits.json")) == expected
    split = BitConfig(SMALL, {"relu": BitWindow(20, 12), "relu#1": BitWindow(18, 2)})
    assert windows(split) == {"relu": "[20:12)", "relu#1": "[18:2)", "pool": "[24:0)"}


def test_windows_of_layers_that_the_net_lacks_are_refused() -> None:
    net, _ = block()
    for name in ("layer9.relu", "conv1", "relu#2"):  # conv1 is there and does not compare
        with pytest.raises(ConfigError, match=name) as caught:
            convert_model(net, BitConfig(layers={name: SMALL}))
        assert "relu, relu#1, pool" in caught.value.hint


@pytest.mark.parametrize("bits", [20, (20, 0), {"k": 20, "m": 0}, torch.tensor(3)])
def test_bits_of_another_type_are_refused(bits: object) -> None:
    with pytest.raises(ConfigError, match="expected a BitConfig, a BitWindow or a path"):
        convert_model(nn.ReLU(), bits)  # type: ignore[arg-type]


def test_a_window_beyond_what_is_left_of_the_ring_is_refused_before_anything_runs(alone: sessions.Session) -> None:
    """Behind a linear layer the shares carry 16 bits more before a window as coarse as these. gmw: [64:50) would begin
    at bit 66; masked: 48 are left, at which a window is cut off.
    """
    net, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    for protocol, good, bad, what in (
        ("gmw", BitWindow(64, 47), BitWindow(64, 50), "begins above the 64-bit ring"),
        ("masked", BitWindow(64, 46), BitWindow(64, 47), "fewer than two of the 48 bits"),
        ("masked", BitWindow(60, 46), BitWindow(60, 47), "fewer than two of the 48 bits"),
    ):
        with pytest.raises(ConfigError) as caught:
            convert_model(net, bad, protocol=protocol)
        assert caught.value.where == "1" and str(bad) in caught.value.what and what in caught.value.what
        private = convert_model(net, good, protocol=protocol)
        assert private(hummingbird.cryptensor(x)).get_plain_text().shape == (2, 4)


@pytest.mark.parametrize(
    "layer",
    [
        nn.ReLU(),
        nn.ReLU6(),
        nn.LeakyReLU(0.3),
        nn.PReLU(4),
        nn.Hardtanh(-0.1, 0.1),
        nn.Sigmoid(),
        nn.Hardswish(),
        nn.Softmax(1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_no_bits_make_a_layer_the_identity(alone: sessions.Session, layer: nn.Module) -> None:
    linear, x = nn.Linear(6, 4), torch.randn(3, 6)
    net = nn.Sequential(linear, layer)
    with torch.no_grad():
        expected = linear(x)
    private = convert_model(net, BitWindow(0, 0))
    with hummingbird.meter() as m:
        got = private(hummingbird.cryptensor(x)).get_plain_text()
    # 6 products of rounded factors below 4, and a truncation.
    assert float((got - expected).abs().max()) < 6 * 4 * UNIT
    priced = {planned.name: planned.cost for planned in private.costs((3, 6), 2)}
    assert priced["1"] == FREE and m.rows["1"].bits_sent == 0


def test_no_bits_make_a_pool_take_the_first_place(alone: sessions.Session) -> None:
    x = torch.randn(2, 3, 6, 6)
    for pool in (nn.MaxPool2d(2), nn.AdaptiveMaxPool2d(3)):
        got = private_output(pool, x, BitWindow(0, 0))
        assert float((got - x[:, :, ::2, ::2]).abs().max()) <= UNIT


# Weights and protocol -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["private", "0", None, -1, 1.0, True, False, [0]])
def test_weights_of_another_kind_are_refused(weights: object) -> None:
    with pytest.raises(ConfigError, match="weights="):
        convert_model(nn.ReLU(), weights=weights)  # type: ignore[arg-type]


def test_weights_of_a_party_that_is_not_there_are_refused(alone: sessions.Session) -> None:
    convert_model(nn.ReLU(), weights=0)
    with pytest.raises(ConfigError, match="weights=1"):
        convert_model(nn.ReLU(), weights=1)


def test_unknown_protocol() -> None:
    with pytest.raises(ConfigError, match="unknown protocol 'yao'"):
        convert_model(nn.ReLU(), protocol="yao")


@pytest.mark.parametrize("constant", [torch.full((4,), 0.5), torch.tensor(0.5)], ids=["vector", "number"])
def test_constant_tensors_are_the_owners_when_weights_are_private(constant: Tensor) -> None:
    """A learned offset would else be read from party 0's net, whoever owns the weights."""
    net = Fixed(2.0, nn.Parameter(constant))
    assert "private to party 1" in repr(convert_model(net, weights=1).get_submodule("add"))
    assert "private" not in repr(convert_model(net, weights="public").get_submodule("add"))
