"""Any function of one value as a table, by the code of all parties: errors, ranges, refusals, random compositions."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitConfig, BitWindow, Rows
from hummingbird.errors import ConfigError
from hummingbird.graph.ops import functions
from hummingbird.mpc.functions.function_table import INTEGERS, MOST_INTEGERS, of_error, table_of
from hummingbird.mpc.functions.tabulated import FunctionInRange
from hummingbird.simulation.simulate import FastSimulator
from scripts.tools.function_table import CASES, ERRORS, Net, measured
from tests.jobs.programs import unequal
from tests.support.patience import NEVER

QUICK = ("log", "gelu", "1 / x, negative")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_every_number_of_a_range_keeps_the_error_that_is_asked_for(name: str) -> None:
    case = CASES[name]
    for error in ERRORS:
        found = measured(case, error)
        assert found["largest_error"] <= error and found["offline_bytes"] <= 16 << 10
        assert found["inputs"] == (case.most - case.least) * 2**11 + 1  # both ends, in steps of 2^-11


def test_random_roundings_err_as_the_parties_do() -> None:
    """With random roundings a table's results have the mean and the spread of those of two parties' shares."""
    net, x = nn.Sequential(nn.Tanh()), torch.linspace(-3.9, 3.9, 79)
    config = BitConfig(rows={"0": Rows(-4.0, 4.0, error=2.0**-9)})
    many = x.repeat(2000, 1)
    exact = hummingbird.simulate(net, config, mode="exact", seed=0)
    fast = hummingbird.simulate(net, config, seed=0)
    assert isinstance(fast, FastSimulator)
    with torch.no_grad():
        shared, nearest = torch.cat([exact(part) for part in many.split(250)]), fast(x.unsqueeze(0))[0]
        fast._compare.random = fast._compare.uniform
        drawn = fast(many)
    noise = 6 * float(shared.std(0).max()) / len(many) ** 0.5
    assert float((drawn - torch.tanh(x)).abs().max()) <= 2.0**-9
    assert float((drawn.mean(0) - shared.mean(0)).abs().max()) < noise
    assert float((drawn.std(0) - shared.std(0)).abs().max()) < 0.5 * float(shared.std(0).max())
    assert float(drawn.std(0).mean() / shared.std(0).mean() - 1) < 0.1
    assert float((nearest - shared.mean(0)).abs().max()) > 2 * noise, "the nearest piece is another one"


class Mixed(nn.Module):
    """Functions with tails and without, a composition, and a division."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(6, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = F.mish(x) * torch.sigmoid(2 * x) + F.elu(x)
        return self.last(torch.log(x * x + 1) / (torch.exp(-y) + 1.5))


INPUTS = 2 * torch.rand(40, 6, generator=torch.Generator().manual_seed(1)) - 1


@pytest.mark.parametrize(("protocol", "parties"), [("masked", 2), ("masked", 3), ("gmw", 2)])
def test_parties_compute_what_the_net_computes(protocol: str, parties: int) -> None:
    net = Mixed().eval()
    bits = BitConfig().with_rows(hummingbird.find_rows(net, INPUTS))
    for windows in (bits, BitConfig(rows={name: row for name, row in bits.rows.items() if name not in ("mul", "elu")})):
        twin = hummingbird.simulate(net, windows, protocol, parties, mode="exact", seed=0)
        fast = hummingbird.simulate(net, windows, protocol, parties, seed=0)
        with torch.no_grad():
            assert float((twin(INPUTS) - net(INPUTS)).abs().max()) <= parties * 2.0**-10
            assert float((fast(INPUTS) - net(INPUTS)).abs().max()) <= parties * 2.0**-10


def _answer(session: Any, net: nn.Module, bits: BitConfig, protocol: str) -> tuple[Any, list[str]]:
    private = hummingbird.convert_model(net, bits, protocol=protocol)
    with hummingbird.meter() as counted:
        out = private(hummingbird.cryptensor(INPUTS if session.rank == 0 else None, src=0)).get_plain_text()
    return out, unequal(counted)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["masked", "gmw"])
def test_two_processes_send_what_is_predicted(protocol: str) -> None:
    net = Mixed().eval()
    bits = BitConfig().with_rows(hummingbird.find_rows(net, INPUTS, error=2**-9))
    for out, bad in hummingbird.launch(_answer, net, bits, protocol, timeout=NEVER):
        assert not bad and float((out - net(INPUTS)).detach().abs().max()) <= 2.0**-6


# Ranges ---------------------------------------------------------------------------------------------------------------


def test_a_range_that_is_not_known_is_asked_for_by_name() -> None:
    net = nn.Sequential(nn.Linear(6, 6), Net(torch.log1p))
    assert hummingbird.validate_model(net) == []
    for bits in (None, BitWindow(20, 12)):
        with pytest.raises(ConfigError, match=r"log1p\(x\) is not known") as caught:
            hummingbird.convert_model(net, bits)
        assert caught.value.where == "1.log1p" and "find_rows" in caught.value.hint
    with pytest.raises(ConfigError, match="is not known"):
        hummingbird.simulate(nn.Sequential(net[0], nn.GELU(), net[1]), BitWindow(20, 12))


@pytest.mark.parametrize(
    ("function", "rows", "words"),
    [
        (torch.log, Rows(-1, 4), "no finite value at -1"),
        (torch.reciprocal, Rows(-2, 2), "no finite value at 0"),
        (torch.rsqrt, Rows(0, 4), "no finite value at 0"),
        (torch.sqrt, Rows(2**-14, 100), "no table below 16 kB"),
        (torch.exp, Rows(-20, 20), "no table below 16 kB"),
        (torch.sin, Rows(-1, 1, sum=2), "of a function"),
    ],
)
def test_a_pole_in_the_range_and_tables_that_are_too_large(function: Any, rows: Rows, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        hummingbird.estimate(Net(function), (1, 4), BitConfig(rows={function.__name__: rows}))
    assert caught.value.hint


def test_rows_with_an_error_below_what_values_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="an error of"):
        Rows(-1, 1, error=2**-15)


def test_found_ranges_stay_on_the_side_of_the_values() -> None:
    class Poles(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log(-x).flip(1) + torch.reciprocal(x.abs()).roll(1, 1) + torch.sin(F.relu(x + 2))

    rows = hummingbird.find_rows(Poles(), -torch.linspace(0.5, 3, 24).view(2, 12))
    assert (rows["log"].most, rows["reciprocal"].least) == (-0.4, 0.4)
    assert rows["sin"].least == 0 and rows["sin"].most > 1.8


def test_a_simulation_warns_of_values_beyond_the_range() -> None:
    bits = BitConfig(rows={"log": Rows(0.5, 2)})
    twin = hummingbird.simulate(Net(torch.log), bits)
    twin(torch.linspace(0.5, 2, 8).view(1, 8))
    with pytest.warns(UserWarning, match=r"log\(x\) is 3"):
        twin(torch.full((1, 8), 3.0))


def test_a_simulation_warns_of_values_beyond_the_range_of_an_activation() -> None:
    twin = hummingbird.simulate(nn.Sequential(nn.GELU()), BitConfig(rows={"0": Rows(-2, 2)}))
    twin(torch.linspace(-2, 2, 8).view(1, 8))
    with pytest.warns(UserWarning, match=r"gelu\(x\) is 3"):
        twin(torch.full((1, 8), 3.0))


def test_an_error_that_a_steep_function_cannot_keep_is_refused() -> None:
    net = Net(lambda x: torch.exp(3 * x))
    with pytest.raises(ConfigError, match="may err by .* more than 0.002") as caught:
        hummingbird.estimate(net, (1, 4), BitConfig(rows={"exp": Rows(-1, 2, error=2**-9)}))
    assert "too steep" in caught.value.hint
    assert hummingbird.estimate(net, (1, 4), BitConfig(rows={"exp": Rows(-1, 2)})).rounds == 2


@pytest.mark.parametrize("rows", [{}, {"rows": Rows(-3, 3, error=2**-8)}, {"rows": Rows(-3, 3)}])
def test_functions_that_are_constant_or_flat(rows: dict[str, Rows]) -> None:
    for function in (lambda x: x**0.0, lambda x: torch.exp(0 * x), lambda x: torch.tanh(x * 2.0**-12)):
        net = Net(function)
        (name,) = hummingbird.find_rows(net, INPUTS)
        bits = BitConfig(rows=dict.fromkeys([name], rows["rows"]) if rows else {})
        twin = hummingbird.simulate(net, bits, mode="exact", seed=0)
        assert float((twin(INPUTS) - net(INPUTS)).abs().max()) <= 2.0**-8


def test_a_range_that_begins_at_zero_stays_there() -> None:
    rows = hummingbird.find_rows(nn.Sequential(nn.ReLU(), Net(lambda x: torch.log(x + 0.5))), INPUTS)
    assert next(iter(rows.values())).least == 0


def test_a_narrow_range_and_a_larger_error_cost_less() -> None:
    net = Net(torch.exp)

    def dealt(rows: Rows) -> float:
        return hummingbird.estimate(net, (1, 100), BitConfig(rows={"exp": rows})).offline_bytes

    assert dealt(Rows(-1, 0)) < dealt(Rows(-3, 2)) < dealt(Rows(-3, 4))
    assert dealt(Rows(-3, 2, error=2**-6)) < dealt(Rows(-3, 2, error=2**-9)) < dealt(Rows(-3, 2))


@pytest.mark.parametrize(("text", "error"), [("gelu(x)", 0.008), ("sigmoid(x)", 0.004), ("exp(x)", 0.01)])
def test_a_wider_range_never_takes_fewer_bits(text: str, error: float) -> None:
    """Roundings of x and of results are as fine as the fewest bits in all want, in every range."""
    before = 0
    for step in range(8):
        end = 2.7 * 1.08**step
        found = table_of(text, of_error(text, -end / 2, end, error), 22)
        assert found is not None and before <= found.dealt and found.error(2) <= error
        before = found.dealt


def test_how_many_bits_a_value_has_does_not_depend_on_its_reader() -> None:
    """Otherwise layers before would be planned for other bits than the look-up reads."""
    for text in ("gelu(x)", "exp(x)", "softplus(x,1.0,20.0)"):
        sizes = of_error(text, -3.3, 3.1, 2**-9)
        found = [table_of(text, sizes, bits) for bits in range(1, 48)]
        assert len({table and table.table.k for table in found}) == 1


def test_a_prepared_net_knows_its_ranges() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Net(lambda x: torch.log(x + 0.5)), nn.Linear(8, 3)).eval()
    with torch.no_grad():
        prepared = hummingbird.prepare(net, (INPUTS, net(INPUTS).argmax(1)), "12/64")
    assert list(prepared.bits.rows) == ["2.log"] and prepared.choices[0].bits.rows
    layer = dict(hummingbird.convert_model(net, prepared.bits).named_modules())["2.log"]
    assert isinstance(layer, FunctionInRange)


# Random compositions --------------------------------------------------------------------------------------------------

_SMOOTH = ["sigmoid", "tanh", "silu", "gelu", "mish", "softsign", "tanhshrink", "erf", "sin", "cos", "atan", "asinh"]


def _random(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.2:
        return "x"
    name = rng.choice([*_SMOOTH, "mul", "add", "sub", "square", "softplus"])
    if name in ("mul", "add", "sub"):
        other = _random(rng, depth - 1) if rng.random() < 0.5 else repr(round(rng.uniform(-2, 2), 3))
        return functions.spelled(name, _random(rng, depth - 1), other)
    more = (1.0, 20.0) if name == "softplus" else ()
    return functions.spelled(name, _random(rng, depth - 1), *more)


class Composed(nn.Module):
    """Computes an expression by torch's own calls."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def forward(self, x: Tensor) -> Tensor:
        return functions.value(self.text, x)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 60))])
def test_random_compositions_are_right_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3):
        text = ""
        while text in ("", "x") or not functions.is_expression(text):
            text = _random(rng, 4)
        net = Composed(text)
        x = torch.linspace(-2.0, 2.0, 1000).view(10, 100)
        bits = BitConfig().with_rows(hummingbird.find_rows(net, x, headroom=0.05))
        try:
            twin = hummingbird.simulate(net, bits, mode="exact", seed=seed)
        except ConfigError as refused:
            assert "no table below" in refused.what and refused.where
            continue
        sensitivity = float((net(x.double()).diff() / x.double().diff()).abs().max()) + 1
        with torch.no_grad():
            error = float((twin(x) - net(x)).abs().max())
        steps = sum(step.op != "input" for step in hummingbird.graph.trace(net))
        assert error <= 2.0**-10 * steps * max(8.0, sensitivity**2), text


@pytest.mark.parametrize(("error", "integers"), [(0.006, 36), (2.0**-10, 31)])
def test_results_have_more_right_bits_where_that_costs_up_to_three_times_as_much(error: float, integers: int) -> None:
    sizes = of_error("gelu(x)", -3.3, 3.3, error)
    usual, wide = (table_of("gelu(x)", sizes, 64, possible=most) for most in (INTEGERS, MOST_INTEGERS))
    assert usual is not None and wide is not None
    assert (usual.bits - usual.table.scale, wide.bits - wide.table.scale) == (INTEGERS, integers)
    assert usual.dealt < wide.dealt <= 3 * usual.dealt
    assert wide.error(2) <= error * (1 + 2.0**-6)
    # What is not read costs nothing.
    assert table_of("gelu(x)", sizes, 10, possible=MOST_INTEGERS) == table_of("gelu(x)", sizes, 10)
