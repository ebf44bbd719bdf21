"""Terms of recurrent layers' inputs: which functions read them, and what a clamp of them changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitConfig, Rows
from hummingbird.errors import ConfigError
from hummingbird.graph import by_time, clamped, input_terms, run, trace
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.simulation.simulate import ExactNet, FastSimulator, Parties
from tests.support.covering import every

TIME, FEATURES, WIDTH = 4, 3, 5
LOUD = 30.0  # a factor of the first weights: what the input adds is far beyond the bend of a sigmoid or a tanh


class Recurrent(nn.Module):
    """The states of a recurrent layer, and what `more` makes of the input."""

    def __init__(self, layer: nn.RNNBase, more: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.layer, self.more = layer, more

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0]
        return out if self.more is None else out + self.more(x)


class Own(nn.Module):
    """A step of time that is written out; `also` reads what the input adds, too."""

    def __init__(self, also: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.input, self.state, self.also = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, WIDTH), also

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[:, 0, :1]).expand(-1, WIDTH)
        for a in self.input(x).unbind(1):
            h = self.also(torch.tanh(a + self.state(h)), a)
        return h


def loud(kind: type[nn.RNNBase], layers: int = 1, **options: Any) -> nn.RNNBase:
    torch.manual_seed(0)
    layer = kind(FEATURES, WIDTH, layers, batch_first=True, **options)
    for name, weight in layer.named_parameters():
        if name.startswith("weight_ih_l0"):
            weight.data.mul_(LOUD)
    return layer


def inputs(count: int, time: int = TIME) -> Tensor:
    return torch.randn(count, time, FEATURES, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize(
    ("layer", "columns"),
    [
        (loud(nn.LSTM), {"gates_l0": (0, 3 * WIDTH), "g_l0": (3 * WIDTH, 4 * WIDTH)}),
        (loud(nn.GRU), {"gates_l0": (0, 2 * WIDTH), "n_l0": (2 * WIDTH, 3 * WIDTH)}),
        (loud(nn.RNN), {"h_l0": (0, WIDTH)}),
        (loud(nn.LSTM, 2), {"gates_l0": (0, 3 * WIDTH), "g_l0": (3 * WIDTH, 4 * WIDTH)}),
        (loud(nn.RNN, bidirectional=True), {"h_l0": (0, WIDTH), "h_l0_reverse": (0, WIDTH)}),
    ],
    ids=["lstm", "gru", "rnn", "two lstms", "two directions"],
)
def test_the_functions_of_the_first_layer_read_terms_of_the_input(
    layer: nn.RNNBase, columns: dict[str, tuple[int, int]]
) -> None:
    steps = by_time(trace(Recurrent(layer).eval(), example=inputs(1)))
    found = input_terms(steps)
    assert {name for name in found if "#" not in name} == {f"layer.{name}" for name in columns}
    for name, term in found.items():
        assert (term.start, term.stop) == columns[name.partition("#")[0].removeprefix("layer.")]
        assert term.total is not None and steps[term.total].op == "add", "the first step of time adds a bias"


@pytest.mark.parametrize(
    "also",
    [lambda h, a: h + a, lambda h, a: h * torch.relu(a), lambda h, a: h - torch.tanh(a), lambda h, a: h + a[:, :1]],
    ids=["sum", "relu", "tanh", "slice"],
)
def test_a_term_that_something_else_reads_is_none(also: Callable[[Tensor, Tensor], Tensor]) -> None:
    """A clamp would change the other reader's value."""
    assert not input_terms(by_time(trace(Own(also).eval(), example=inputs(1))))


def test_a_clamp_changes_no_value_within_and_cuts_those_beyond() -> None:
    net, x = Recurrent(loud(nn.LSTM)).eval(), inputs(8)
    steps = by_time(trace(net, example=x[:1]))
    wide = clamped(steps, {"layer.g_l0": (-1e3, 1e3), "layer.gates_l0": (-1e3, 1e3)})
    assert [step.name for step in wide if step.op == "hardtanh"] == ["layer.gates_l0.input", "layer.g_l0.input"]
    assert torch.equal(run(wide, x), run(steps, x))
    assert float((run(clamped(steps, {"layer.g_l0": (-0.5, 0.5)}), x) - run(steps, x)).abs().max()) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("protocol", ["masked", "gmw"])
def test_found_ranges_clamp_loud_inputs_and_results_stay(kind: type[nn.RNNBase], protocol: str) -> None:
    net = Recurrent(loud(kind, 2)).eval()
    rows = hummingbird.find_rows(net, inputs(64, TIME + 3), error=2.0**-10, headroom=1.0)
    told = [name for name, found in rows.items() if found.state is not None]
    assert told and all("_l0" in name for name in told), "the upper layer's input is a state"
    config, x = BitConfig(rows=rows), inputs(5, TIME + 3)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for factor in (1.0, 20.0):  # any louder input is clamped
            wanted = net(factor * x)
            twin = hummingbird.simulate(net, config, protocol, seed=0, example=x)
            assert float((twin(factor * x) - wanted).abs().max()) < 0.01
            exact = hummingbird.simulate(net, config, protocol, mode="exact", seed=0, example=x)
            assert float((exact(factor * x) - wanted).abs().max()) < 0.01


class Twice(nn.Module):
    """One LSTM on two inputs, from zeros or from a learned state, or on its own result."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = loud(nn.LSTM), kind
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH, generator=torch.Generator().manual_seed(0)))
        self.other = nn.Linear(WIDTH, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        state = self.first.expand(-1, x.shape[0], -1).contiguous()
        given = (state, state) if self.kind == "learned" else None
        out: Tensor = self.layer(x, given)[0]
        second = self.other(out) if self.kind == "on itself" else 0.5 * x.flip(1)
        return out - self.layer(second, given)[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", every(2, ["learned", "zeros", "on itself"]))
def test_a_layer_that_is_called_twice_is_clamped_at_both_calls_or_at_none(kind: str) -> None:
    net, x = Twice(kind).eval(), inputs(3)
    rows = hummingbird.find_rows(net, inputs(64), error=2.0**-10, headroom=1.0)
    told = [name for name, found in rows.items() if found.state is not None]
    assert told == (["layer.gates_l0", "layer.g_l0"] if kind == "learned" else [])
    exact = hummingbird.simulate(net, BitConfig(rows=rows), mode="exact", seed=0, example=x)
    with torch.no_grad():
        assert float((exact(x) - net(x)).abs().max()) < 0.01


class OnItself(nn.Module):
    """An LSTM on its own states, which are not known for all time steps at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(FEATURES, FEATURES, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(self.layer(x)[0])[0]
        return out


def test_a_state_is_refused_where_one_of_the_calls_cannot_be_clamped() -> None:
    with pytest.raises(ConfigError, match="have a state"):
        rows = {"layer.g_l0": Rows(-9, 9, state=1.0)}
        hummingbird.convert_model(OnItself().eval(), BitConfig(rows=rows), example=inputs(1))


@pytest.mark.slow
def test_inputs_that_all_lie_on_one_side_have_a_range_without_a_state() -> None:
    layer = loud(nn.LSTM)
    layer.bias_ih_l0.data.add_(300.0)
    net, x = Recurrent(layer).eval(), inputs(16)
    rows = hummingbird.find_rows(net, x)
    assert all(found.state is None for found in rows.values())
    with torch.no_grad():
        twin = hummingbird.simulate(net, BitConfig(rows=rows), mode="exact", seed=0, example=x)
        assert float((twin(x) - net(x)).abs().max()) < 0.01


@pytest.mark.slow
def test_a_saved_net_is_clamped_as_before(tmp_path: Path) -> None:
    net, x = Recurrent(loud(nn.GRU)).eval(), inputs(4)
    rows = hummingbird.find_rows(net, inputs(64), error=2.0**-10)
    assert any(found.state is not None for found in rows.values())
    hummingbird.save(net, tmp_path / "net", bits=BitConfig(rows=rows), example=x)
    saved: PrivateNet[Any] = hummingbird.load(tmp_path / "net")
    assert "layer.gates_l0.input" in saved.comparing_layers
    with torch.no_grad():
        assert float((Parties(2, 1, x.device).run(ExactNet(saved), x) - net(x)).abs().max()) < 0.01


@pytest.mark.slow
def test_the_clamps_price_is_two_rounds_and_tables_are_smaller() -> None:
    net, x = Recurrent(loud(nn.LSTM)).eval(), inputs(32)
    rows = hummingbird.find_rows(net, x, error=2.0**-10)
    wide = {}
    for name, found in rows.items():
        own = 2 * LOUD if found.state is not None else found.most
        wide[name] = Rows(-own, own, error=found.error)
    shape = (1, TIME, FEATURES)
    clamps, without = (hummingbird.estimate(net, shape, BitConfig(rows=each), aim="latency") for each in (rows, wide))
    assert clamps.rounds <= without.rounds + 3 and clamps.offline_bytes < 0.6 * without.offline_bytes


@pytest.mark.slow
def test_training_runs_on_the_plain_net() -> None:
    """Its layers have no clamp of the input: there the argument is clamped."""
    net, x = Recurrent(loud(nn.LSTM)).eval(), inputs(4)
    rows = hummingbird.find_rows(net, inputs(32), error=2.0**-10)
    assert any(found.state is not None for found in rows.values())
    twin = hummingbird.simulate(net, BitConfig(rows=rows), seed=0, example=x)
    out = twin(x)
    assert out.requires_grad and float((out - net(x)).detach().abs().max()) < 0.01
    assert isinstance(twin, FastSimulator)
    twin.set_bits(BitConfig())
    with torch.no_grad():
        assert float((twin(x) - net(x)).abs().max()) < 0.01
    twin.set_bits(BitConfig(rows=rows))
    with torch.no_grad():
        assert float((twin(x) - net(x)).abs().max()) < 0.01


def test_states_of_other_functions_are_refused() -> None:
    net, x = Recurrent(loud(nn.LSTM)).eval(), inputs(1)
    with pytest.raises(ConfigError, match="have a state, but the layer reads no sum.*\n.*find_rows"):
        hummingbird.convert_model(net, BitConfig(rows={"layer.c_l0": Rows(-4, 4, state=1.0)}), example=x)
    with pytest.raises(ConfigError, match="less than half"):
        Rows(-4, 4, state=4.0)
    with pytest.raises(ConfigError, match="rows .* of a softmax"):
        hummingbird.convert_model(nn.Sequential(nn.Softmax(1)), BitConfig(rows={"0": Rows(-4, 4, state=1.0)}))


def test_rows_with_a_state_are_written_and_read() -> None:
    config = BitConfig(rows={"layer.g_l0": Rows(-19, 19.5, error=2.0**-10, state=6.5)})
    assert BitConfig.from_json(config.to_json()) == config and "state=6.5" in repr(config)
