"""The private net: names, results, inputs checked first, prices that hold, custom layers, owned weights."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird import cost, ring
from hummingbird.bits import BitWindow
from hummingbird.channel import meter
from hummingbird.convert import build, convert_model, register_converter, validate_model
from hummingbird.cost import Cost
from hummingbird.crypten import tensors
from hummingbird.crypten.adapter import MPCTensor, from_share, share_of
from hummingbird.errors import AgreementError, EnvironmentProblem, InputError
from hummingbird.mpc.layers.layer import Layer, Spec
from hummingbird.mpc.session import session as sessions
from hummingbird.mpc.session.sharing import Shared
from tests.support.parties import init_alone, succeed, together
from tests.support.parties import sessions as make_sessions
from tests.test_convert import SMALL, UNIT, block, private_output, scaled

pytestmark = pytest.mark.usefixtures("nothing_is_left")


# The private net ------------------------------------------------------------------------------------------------------


def test_qualified_names_repr_and_comparing_layers(alone: sessions.Session) -> None:
    net, _ = block()
    private = convert_model(nn.Sequential(nn.Sequential(net)), SMALL, 0)
    modules = dict(private.named_modules())
    kept = {f"0.0.{name}" for name in ("conv1", "relu", "relu#1", "conv2", "pool", "fc")}
    assert kept <= set(modules) and not {"0.0.bn1", "0.0.drop"} & set(modules)
    assert all(isinstance(modules[name], Layer) for name in kept)
    assert private.get_submodule("0.0.fc") is modules["0.0.fc"]
    assert private.comparing_layers == ["0.0.relu", "0.0.pool", "0.0.relu#1"]  # the second ReLU is behind the pooling
    text = repr(private)
    assert "PrivateNet(" in text and "protocol masked" in text and "3 layers with a window" in text
    assert "window [24:0), 24 bits" in text and "private to party 0" in text


def test_a_net_is_set_up_by_its_first_call_and_never_runs_without(alone: sessions.Session) -> None:
    x = hummingbird.cryptensor(torch.randn(2, 4))
    for weights in ("public", 0):
        private = build(nn.Linear(4, 3).eval(), weights=weights)  # as `convert_model` before `init`
        with pytest.raises(InputError, match="not set up in this session") as caught:
            private.forward(alone, tensors.shared(x))
        assert "set_up()" in caught.value.hint
        called = private(x).get_plain_text()
        again = tensors.tensor(private.forward(alone, tensors.shared(x))).get_plain_text()
        assert float((again - called).abs().max()) < 2 * UNIT


class Awkward(nn.Module):
    """Modules whose names the private net uses itself."""

    def __init__(self) -> None:
        super().__init__()
        self.plan, self.costs, self.set_up, self.comparing_layers = (
            nn.Linear(4, 4),
            nn.ReLU(),
            nn.Linear(4, 3),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.comparing_layers(self.set_up(self.costs(self.plan(x))))


def test_names_that_the_private_net_uses_itself(alone: sessions.Session) -> None:
    net, x = Awkward(), torch.randn(5, 4)
    private = convert_model(net, SMALL)
    assert {"plan", "costs", "set_up", "comparing_layers"} <= set(dict(private.named_modules()))
    with torch.no_grad():
        error = float((private(hummingbird.cryptensor(x)).get_plain_text() - net(x)).abs().max())
    assert error < 2 * 4 * 4 * UNIT


def test_private_result_is_the_plain_one(alone: sessions.Session) -> None:
    net, x = block()
    private = convert_model(net, SMALL)
    shared = hummingbird.cryptensor(x)
    with torch.no_grad():
        expected = net(x)
    # Three layers of at most 36 products, factors below 4, the errors of one layer amplified by the next ones' weights.
    first, second = private(shared).get_plain_text(), private(shared).get_plain_text()
    assert float((first - expected).abs().max()) < 3 * 36 * 4 * UNIT
    assert float((first - second).abs().max()) < 3 * 36 * 4 * UNIT
    # Any batch size runs in the same private net.
    assert private(hummingbird.cryptensor(x[:1])).get_plain_text().shape == (1, 5)


def test_the_callers_net_is_left_as_it_is(alone: sessions.Session) -> None:
    net, x = block()
    net.train()
    before = copy.deepcopy(net.state_dict())
    private = convert_model(net, SMALL, 0)
    private(hummingbird.cryptensor(x))
    after = net.state_dict()
    assert list(before) == list(after) and all(torch.equal(before[key], after[key]) for key in before)
    assert net.training and net.drop.training and type(net.relu) is nn.ReLU
    assert not any(parameter.grad is not None for parameter in net.parameters())
    # Later changes of the caller's net do not reach the private one.
    one = private(hummingbird.cryptensor(x)).get_plain_text()
    scaled(net, 100.0)
    assert float((private(hummingbird.cryptensor(x)).get_plain_text() - one).abs().max()) < 3 * 36 * 4 * UNIT


def test_training_mode_makes_no_difference(alone: sessions.Session) -> None:
    net, x = block()
    net.bn1.running_mean.uniform_(-1, 1)
    expected = private_output(net, x, SMALL)
    got = private_output(net.train(), x, SMALL)
    assert float((got - expected).abs().max()) < 3 * 36 * 4 * UNIT


# Inputs ---------------------------------------------------------------------------------------------------------------


def test_wrong_inputs_are_refused_before_anything_runs(alone: sessions.Session) -> None:
    net, x = block()
    private = convert_model(net, SMALL)
    good = hummingbird.cryptensor(x)
    wrong = [
        (x, "takes a CrypTen tensor, got Tensor"),
        (None, "got NoneType"),
        (hummingbird.cryptensor(x[:, :2]), r"cannot take an input of shape \(2, 2, 4, 4\)"),
        (hummingbird.cryptensor(torch.randn(2, 3, 8, 8)), r"shape \(2, 3, 8, 8\)"),
        (hummingbird.cryptensor(x[0, 0]), r"shape \(4, 4\)"),
        (from_share(share_of(good), 20), r"scale 2\^20, expected 2\^16"),
    ]
    for value, what in wrong:
        with hummingbird.meter() as m, pytest.raises(InputError, match=what) as caught:
            private(value)
        assert caught.value.where == "input" and m.rows == {}
    assert private(good).size() == (2, 5)


def test_cryptensor_refuses_what_it_cannot_share(alone: sessions.Session) -> None:
    for value, what in (
        (torch.ones(2).long(), "floating-point"),
        (torch.tensor([float("nan")]), "NaN"),
        (torch.tensor([2.0**30]), "range"),
        (torch.ones([1] * 9), "at most 8 dimensions, got 9"),
        ([1.0], "must give a tensor, got list"),
        (None, "must give a tensor, got NoneType"),
    ):
        with pytest.raises(InputError, match=what):
            hummingbird.cryptensor(value)  # type: ignore[arg-type]
    for src in (1, -1):
        with pytest.raises(InputError, match="names no party of 1"):
            hummingbird.cryptensor(torch.ones(1), src=src)
    for shape in ((), (0, 3), (1,) * 8):
        assert hummingbird.cryptensor(torch.ones(shape)).get_plain_text().shape == shape


@pytest.mark.parametrize("words", [[-1, 2], [9, 1], [1 << 40, 1], [2, 3, -1]], ids=str)
def test_a_shape_that_is_none_is_an_error_at_who_is_told_it(words: list[int]) -> None:
    zero, one = make_sessions(2)
    try:
        padded = torch.tensor(words + [0] * (9 - len(words)))

        def tell() -> None:
            with meter.layer("input", "share", cost.sharing(2, True)):
                zero.channel.send(1, padded)
                zero.channel.count_round()

        def hear() -> None:
            with meter.layer("input", "share", cost.sharing(2, False)):
                tensors._broadcast_shape(one, None, 0)

        with pytest.raises(AgreementError, match="party 0 sent a malformed shape"):
            together([tell, hear])
    finally:
        for session in (zero, one):
            session.channel.close()


def test_without_a_session_there_is_an_error_with_a_hint() -> None:
    private = convert_model(nn.ReLU())
    for call in (lambda: hummingbird.cryptensor(torch.ones(1)), lambda: private(None)):
        with pytest.raises(EnvironmentProblem, match=r"call hummingbird\.init\(\) first"):
            call()


def test_init_twice_and_again(alone: sessions.Session) -> None:
    with pytest.raises(EnvironmentProblem, match="initialized already"):
        hummingbird.init()
    net, x = block()
    private = convert_model(net, SMALL)
    owned = convert_model(net, SMALL, 0)
    private(hummingbird.cryptensor(x))
    hummingbird.uninit()
    hummingbird.uninit()
    init_alone()
    private(hummingbird.cryptensor(x))
    with pytest.raises(InputError, match="shared in an earlier session"):
        owned(hummingbird.cryptensor(x))


# Prices ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["public", 0])
@pytest.mark.parametrize("window", [BitWindow(64, 0), BitWindow(20, 8), BitWindow(10, 8), BitWindow(0, 0)], ids=str)
def test_the_meter_predicts_what_costs_says(alone: sessions.Session, weights: str | int, window: BitWindow) -> None:
    net, x = block()
    private = convert_model(net, window, weights)
    with hummingbird.meter() as m:
        private(hummingbird.cryptensor(x))
    planned = {step.name: step for step in private.costs(tuple(x.shape), 1)}
    assert {name for name in m.rows if name != "input"} <= set(planned)
    for name, row in m.rows.items():
        if name != "input":
            expected = planned[name].cost
            assert (row.rounds_predicted, row.bits_predicted) == (expected.rounds, expected.bits) == (0, 0)
            assert row.bits_sent == row.rounds == 0
            assert row.offline_bits_predicted == row.offline_bits == expected.offline_bits, name
            assert row.elements == planned[name].elements and row.window == planned[name].window


def test_costs_are_per_batch_and_grow_with_it() -> None:
    private = convert_model(block()[0], SMALL)
    one, eight = ({s.name: s for s in private.costs((batch, 3, 4, 4), 2)} for batch in (1, 8))
    assert one["relu"].elements * 8 == eight["relu"].elements == 8 * 4 * 16
    assert one["relu"].cost.rounds == eight["relu"].cost.rounds
    assert one["relu"].cost.bits < eight["relu"].cost.bits < 8 * one["relu"].cost.bits
    with pytest.raises(InputError, match=r"shape \(8, 3\)"):
        private.costs((8, 3), 2)


# Custom layers --------------------------------------------------------------------------------------------------------


class Triple(nn.Module):
    """3x, written with functions that are not in the vocabulary."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, x).abs() * torch.sign(x) * 3


class PrivateTriple(Layer):
    def cost(self, inputs: object, parties: int) -> Cost:
        assert [type(spec) for spec in inputs] == [Spec]  # type: ignore[attr-defined]
        return Cost(0, 0, 0)

    def forward(self, session: sessions.Session, x: Shared) -> Shared:
        assert x.scale == ring.SCALE  # a custom layer sees scale 2^16, whatever came before it
        return Shared(x.share * 3)


def test_a_registered_module_is_converted(alone: sessions.Session) -> None:
    net = nn.Sequential(nn.Linear(4, 4), Triple(), nn.ReLU())
    x = torch.randn(3, 4)
    given: list[nn.Module] = []

    def build(module: nn.Module) -> nn.Module:
        given.append(module)
        return PrivateTriple()

    register_converter(Triple, build)
    assert validate_model(net) == []
    private = convert_model(net, SMALL)
    assert isinstance(dict(private.named_modules())["1"], PrivateTriple)
    assert {type(module) for module in given} == {Triple} and not any(module is net[1] for module in given)
    with torch.no_grad():
        expected = (3 * net[0](x)).relu()
    with hummingbird.meter() as m:
        got = private(hummingbird.cryptensor(x)).get_plain_text()
    assert float((got - expected).abs().max()) < 3 * 4 * 4 * UNIT
    assert m.rows["1"].calls == 1 and "0.lift" in m.rows


def test_a_registered_module_written_with_crypten_functions(alone: sessions.Session) -> None:
    class ByCrypTen(nn.Module):
        def forward(self, x: MPCTensor) -> MPCTensor:
            return x * 3

    register_converter(Triple, lambda module: ByCrypTen())
    x = torch.randn(3, 4)
    got = private_output(nn.Sequential(Triple(), nn.ReLU()), x, SMALL)
    assert float((got - 3 * x.relu()).abs().max()) < 4 * UNIT


# Between real parties -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_private_weights_are_nowhere_in_the_clear() -> None:
    """The program is in tests/jobs/programs.py; it looks through the memory of both parties, for either owner."""
    ended = succeed(["-m", "tests.jobs.programs", "private_weights"], 2)
    results = json.loads(ended[0].out.strip().splitlines()[-1])
    assert len(results) == 2
    assert all(result["error"] <= result["bound"] for result in results), results
