"""Plans: who does what in which turn, scales that cannot overflow, descriptions without weights that stand fuzzing."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird import he
from hummingbird.errors import ConfigError, InputError, ModelError
from hummingbird.graph.steps import refs
from hummingbird.he.compile.convert import make_plan
from hummingbird.he.runtime import memory
from hummingbird.he.runtime.client_spec import Public, client_steps
from hummingbird.he.runtime.program import Plan
from hummingbird.he.runtime.rounds import SLICE
from hummingbird.he.runtime.spec_json import REMOTE
from hummingbird.he.scheme import ckks
from hummingbird.he.scheme.params import choose
from tests.support.he_cases import AIDED, LINEAR, PRODUCTS, Fn, conv, images, made
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM

ALL = {**LINEAR, **PRODUCTS, **AIDED}


def sides(plan: Plan) -> dict[str, tuple[str, int]]:
    """Side and turn of every step."""
    return {line.name: (line.side, line.turn) for line in plan.lines}


def plan_of(function: Callable[..., Any], shape: tuple[int, ...], mode: str = "client-aided", **modules: Any) -> Plan:
    torch.manual_seed(0)
    return make_plan(Fn(function, **modules), shape, mode)


# ---- who does what


def test_activations_and_pools_of_known_values_are_the_clients() -> None:
    net = nn.Sequential(conv(1, 2, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(18, 3))
    plan = make_plan(net, (1, 8, 8))
    assert sides(plan) == {
        "0": ("encrypted", 0),
        "1": ("client", 1),
        "2": ("client", 1),
        "3": ("free", 1),
        "4": ("encrypted", 1),
    }
    first, second = plan.public.turns
    assert first.sent == 64 + 1 and first.returned == 72
    assert second.sent == 18 + 1 and second.returned == 3


def test_a_pool_of_encrypted_values_stays_with_the_server() -> None:
    plan = make_plan(
        nn.Sequential(conv(1, 2, 3), nn.AvgPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)), (1, 8, 8)
    )
    assert sides(plan)["1"] == ("encrypted", 0) and plan.public.turns[0].returned == 18


def test_a_layer_after_a_layer_is_a_refresh() -> None:
    plan = make_plan(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2)), (4,))
    assert [turn.sent for turn in plan.public.turns] == [5, 6]
    again = plan.public.turns[1].sends[0]
    assert plan.public.steps[again.value].op == REMOTE and plan.public.turns[1].steps == ()


def test_sums_of_one_turn_are_the_servers_and_of_two_the_clients() -> None:
    modules = {"a": conv(2, 3, 1), "b": conv(2, 3, 1), "c": conv(3, 3, 1)}
    plan = plan_of(lambda s, x: F.relu(s.a(x) + s.b(x)), (2, 3, 3), **modules)
    assert sides(plan)["add"] == ("encrypted", 0) and plan.public.turns[0].returned == 27
    plan = plan_of(lambda s, x: s.a(x) + s.c(F.relu(s.b(x))), (2, 3, 3), **modules)
    assert sides(plan)["add"] == ("client", 2)
    plan = plan_of(lambda s, x: s.c(y := F.relu(s.a(x))) + y, (2, 3, 3), **modules)
    assert sides(plan)["add"] == ("client", 2)


def test_zeros_and_reshaping_are_not_encrypted() -> None:
    plan = plan_of(lambda s, x: s.c(F.pad(x, (2, 2, 2, 2)).transpose(2, 3)), (1, 3, 3), c=conv(1, 2, 3))
    assert plan.public.turns[0].sent == 9 + 1


def test_half_of_a_value_is_sent_as_half() -> None:
    plan = plan_of(lambda s, x: s.c(x[:, :1]), (4, 3, 3), c=conv(1, 2, 3, bias=False))
    assert plan.public.turns[0].sent == 9 and not plan.public.turns[0].one


def test_slopes_of_a_prelu_are_weights() -> None:
    net = nn.Sequential(nn.PReLU(3), nn.Flatten(), nn.Linear(12, 2))
    plan = make_plan(net, (3, 2, 2))
    assert sides(plan)["0.slope"] == ("encrypted", 0) and sides(plan)["0.relu"] == ("client", 0)


def test_factors_of_a_norm_are_weights() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2)).eval()
    placed = sides(make_plan(net, (4,)))
    assert (placed["1.norm"], placed["1"]) == (("client", 1), ("encrypted", 1))
    inside = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)).eval()
    placed = sides(make_plan(inside, (4,)))
    assert (placed["1.norm"], placed["2"]) == (("client", 1), ("encrypted", 1)) and "1" not in placed
    x = torch.randn(3, 4)
    for each in (net, inside):
        assert torch.allclose(he.convert_model(each, (4,))(x), each(x), atol=1e-3)


def test_layers_added_share_a_scale() -> None:
    """With very different weights, the factor would otherwise eat the room of the sum."""
    a, b = conv(1, 1, 1), conv(1, 1, 1)
    a.weight.data.mul_(1000)
    plan = plan_of(lambda s, x: s.a(x) + s.b(x), (1, 2, 2), a=a, b=b)
    (combine,) = [op for op in plan.programs[0].operations if hasattr(op, "factors")]
    assert combine.factors == (1, 1)


def test_every_problem_is_listed_by_name() -> None:
    net = nn.Sequential(
        conv(1, 2, 3), nn.ReLU(), conv(2, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 2), nn.Sigmoid()
    )
    with pytest.raises(ModelError) as caught:
        make_plan(net, (1, 6, 6), "polynomial")
    assert [problem.name for problem in caught.value.problems] == ["1", "3"]  # the last sigmoid is the client's
    assert all("client-aided" in problem.hint and "x * x" in problem.hint for problem in caught.value.problems)


@pytest.mark.parametrize("mode", ["client-aided", "polynomial"])
def test_what_no_mode_can_do(mode: str) -> None:
    for net, what in [
        (nn.Sequential(nn.ReLU(), nn.Flatten()), "no layer has weights"),
        (Fn(lambda s, x: s.l(x - x.mean(0, keepdim=True)), l=nn.Linear(4, 2)), "mixes the images"),
        (nn.Sequential(nn.Linear(4, 2), nn.Softmax(0)), "mixes the images"),
        (nn.Sequential(nn.Linear(4, 2), nn.LocalResponseNorm(2)), "LocalResponseNorm is not in the vocabulary"),
    ]:
        with pytest.raises(ModelError, match=what):
            make_plan(net, (4,), mode)


def test_options_that_do_not_fit() -> None:
    net, square = nn.Linear(4, 2), made(PRODUCTS["square"])[0]
    for arguments, what in [
        ({"mode": "magic"}, "mode='magic'"),
        ({"packing": "dense"}, "packing='dense'"),
        ({"packing": "real"}, "packing='real' in client-aided"),
        ({"degree": 1000}, "degree is 1000"),
        ({"degree": 1024}, "room for 26 bits, client-aided inference needs 52"),
        ({"input_range": -1.0}, "input_range=-1.0"),
    ]:
        with pytest.raises(ConfigError, match=what):
            make_plan(net, (4,), **arguments)
    with pytest.raises(ConfigError, match="multiplies ciphertexts"):
        make_plan(square, (1, 5, 5), "polynomial", packing="coefficients")
    with pytest.raises(ConfigError, match="scale out of bounds.*primes") as caught:
        make_plan(square, (1, 5, 5), "polynomial", degree=2048)
    assert "larger degree" in caught.value.hint
    for arguments, what in [
        ({"input_shape": (5,)}, "does not take images of shape"),
        ({"input_shape": (0,)}, "input_shape"),
        ({"input_shape": (4,), "samples": torch.randn(1, 4)}, "samples are"),
        ({"input_shape": (4,), "samples": torch.full((2, 4), math.nan)}, "NaN"),
        ({"input_shape": (4,), "samples": torch.full((2, 4), 5.0), "input_range": 4.0}, "samples reach 5"),
    ]:
        with pytest.raises(InputError, match=what):
            make_plan(net, **arguments)


def test_values_that_grow_too_large_are_explained() -> None:
    net = nn.Sequential(*(Fn(lambda s, x: s.l(x * x), l=nn.Linear(4, 4)) for _ in range(3)))
    with pytest.raises(ConfigError, match="scale out of bounds: values at .* need [0-9]+ primes"):
        make_plan(net, (4,), "polynomial", degree=4096)


def test_products_of_too_many_parts_are_refused_when_the_net_is_converted() -> None:
    """Four squares in a row: the last one's factors have nine parts each, and products of more than eight are none."""
    layers = [conv(1, 4, 2), *(Fn(lambda s, x: s.l(x * x), l=conv(4, 4, 1)) for _ in range(4)), nn.Flatten()]
    with pytest.raises(ModelError, match="4.mul.*: a product of ciphertexts of 9 and 9 parts.*three squares"):
        make_plan(nn.Sequential(*layers), (1, 10, 10), "polynomial")


# ---- parameters


def test_polynomial_nets_get_the_smallest_degree() -> None:
    linear = make_plan(nn.Linear(4, 2), (4,), "polynomial").public
    assert linear.parameters == choose(4096, 4) and linear.packing == "coefficients" and linear.slots == 4096
    square = make_plan(made(PRODUCTS["square"])[0], (1, 5, 5), "polynomial").public
    assert square.parameters == choose(4096, 4) and square.packing == "real" and square.slots == 2048
    larger = make_plan(made(PRODUCTS["square"])[0], (1, 5, 5), "polynomial", degree=16384).public
    assert larger.parameters.degree == 16384


def test_samples_replace_proven_ranges() -> None:
    net = nn.Sequential(nn.Linear(200, 200), Fn(lambda s, x: x * x), nn.Linear(200, 4), Fn(lambda s, x: x * x))
    proven = make_plan(net, (200,), "polynomial")
    seen = make_plan(net, (200,), "polynomial", samples=images(50, (200,)))
    assert "proven" in proven.basis and "no proof" in seen.basis and "50 samples" in seen.basis
    assert len(seen.public.parameters.primes) < len(proven.public.parameters.primes)


def test_a_long_sum_is_split_where_no_weight_scale_is_exact() -> None:
    """Weights that need more bits than the bound leaves for so many of them."""
    net = nn.Linear(20000, 1, bias=False)
    with torch.no_grad():
        net.weight.fill_(1.0)
        net.weight[0, ::2] = -1.0001  # nearly cancels: a small output asks for fine weights
    plan = make_plan(net, (20000,), "polynomial", samples=torch.ones(2, 20000) + 0.001 * images(2, (20000,)))
    assert len(plan.programs[0].operations[0].parts) > 1


@pytest.mark.parametrize("packing", ["coefficients", "complex"])
def test_the_input_scale_cannot_overflow_and_is_the_largest(packing: str) -> None:
    torch.manual_seed(0)
    plan = make_plan(nn.Linear(30, 4), (30,), packing=packing)
    turn, parameters = plan.public.turns[0], plan.public.parameters
    for x in (1e-3, 1.0, 37.0, 1e5):
        scale = int(turn.fit(torch.tensor([[x]], dtype=torch.float64), parameters, packing))
        assert scale >= 0

        peak = math.sqrt(2) if packing == "complex" else 1

        def integers(s: int, x: float = x, peak: float = peak) -> float:
            back = turn.returns[0]
            return back.gains[0] * (peak * x * 2.0**s + 21.5) + back.one_gain * (peak * 2.0**s + 21.5)

        assert integers(scale) < parameters.modulus(2) / 2
        is_small = peak * max(1.0, x) * 2.0 ** (scale + 1) > 2**30 - 22  # int32 messages are the limit, not the modulus
        assert is_small or integers(scale + 1) > 0.99 * parameters.modulus(2) / 2
    for left in (1, 2):  # primes: what is dropped rounds by half of 1 + ||s||_1, N + 1 at most
        room = replace(turn.returns[0], primes=left).room(parameters)
        after = Fraction(room) / (parameters.modulus(2) // parameters.modulus(left))
        bound = Fraction(parameters.modulus(left), 2) - (Fraction(1 + parameters.degree, 2) if left < 2 else 0)
        assert bound * (1 - Fraction(1, 2**39)) < after <= bound
    many = turn.fit(torch.tensor([[1e30, 1e-3, 37.0, 0.0]]), parameters, packing)
    assert many.tolist() == [-1, *(int(turn.fit(torch.tensor([[x]]), parameters, packing)) for x in (1e-3, 37.0, 0.0))]


# ---- what the client is told


def tensors(value: Any) -> bool:
    """Whether there is a tensor anywhere inside."""
    if isinstance(value, (Tensor, nn.Module)):
        return True
    if isinstance(value, dict):
        return any(tensors(item) for item in value.values())
    return isinstance(value, (tuple, list)) and any(tensors(item) for item in value)


@pytest.mark.parametrize("name", ALL)
def test_a_description_survives_json_and_holds_no_weights(name: str) -> None:
    net, shape = made(ALL[name])
    public = make_plan(net, shape, "client-aided").public
    text = public.to_json()
    again = Public.from_json(text)
    assert again.to_json() == text and again.turns == public.turns and again.parameters == public.parameters
    assert not any(tensors((step.inputs, step.attrs)) for step in public.steps)
    # No parameter's value is in it, neither as it is nor rounded.
    numbers = {f"{value:.4g}" for tensor in net.state_dict().values() for value in tensor.double().flatten().tolist()}
    told = {f"{value:.4g}" for value in _numbers(json.loads(text)) if value != int(value)}
    assert not numbers & told


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [float(value)] if isinstance(value, float) else []


def test_fuzzed_descriptions_give_errors() -> None:
    """Single changes of a valid description, and what is no description at all."""
    net, shape = made(AIDED["relu, max pool, softmax"])
    text = make_plan(net, shape).public.to_json()
    for broken in ("", "{", "[]", "null", '{"version": 1}', text[:-30], "[" * 100000):
        with pytest.raises(InputError):
            Public.from_json(broken)
    chance = random.Random(0)
    refused = 0
    for _ in range(200):
        fields = json.loads(text)
        places = _places(fields)
        container, key = chance.choice(places)
        container[key] = chance.choice([None, -1, 0, 3, 1 << 40, 1.5, "x", [], {}, {"ref": 99}, {"float": "nan"}, True])
        try:
            public = Public.from_json(json.dumps(fields))
        except (InputError, ConfigError):
            refused += 1
        else:  # a change of no consequence, or another net: a client can still go by it
            assert all(back.count == math.prod(back.shape) for turn in public.turns for back in turn.returns)
            assert memory.at_client(public) > 0
    assert refused > 100


@pytest.mark.parametrize("which", ["steps", "returns"])
def test_a_value_that_is_made_twice_is_refused(which: str) -> None:
    fields = json.loads(make_plan(*made(AIDED["relu, max pool, softmax"])).public.to_json())
    turn = fields["turns"][1]
    turn[which] = turn[which] * 2
    with pytest.raises(InputError, match="twice"):
        Public.from_json(json.dumps(fields))


def test_steps_of_a_liar_that_show_a_tuple() -> None:
    """As the net's output it is refused; elsewhere it has memory of its own."""
    fields = json.loads(make_plan(*made(AIDED["relu, max pool, softmax"])).public.to_json())
    name, op, shown, attrs = fields["steps"][-1]
    fields["steps"][-1] = [name, op, {"tuple": [shown]}, attrs]
    with pytest.raises(InputError, match="no output"):
        Public.from_json(json.dumps(fields))
    fields["steps"].append([name, op, shown, attrs])
    fields["last"].append(len(fields["steps"]) - 1)
    assert memory.at_client(Public.from_json(json.dumps(fields))) > 0


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in nested lists and objects."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in list(items) for place in [(value, key), *_places(item)]]


def test_insecure_descriptions_are_refused_by_the_client() -> None:
    fields = json.loads(make_plan(nn.Linear(4, 2), (4,)).public.to_json())
    fields["primes"] = choose(4096, 4).primes
    with pytest.raises(ConfigError, match="not secure"):
        Public.from_json(json.dumps(fields))


def test_a_plan_of_another_version() -> None:
    fields = json.loads(make_plan(nn.Linear(4, 2), (4,)).public.to_json())
    with pytest.raises(InputError, match="version 7, this is 3"):
        Public.from_json(json.dumps(fields | {"version": 7}))


@pytest.mark.parametrize("name", ["relu, max pool, softmax", "residual with a layer in the branch"])
def test_streams_are_cut_in_order(name: str) -> None:
    public = make_plan(*made(AIDED[name])).public
    for turn in public.turns:
        up, down = list(turn.up()), list(turn.down())
        assert [start for start, _ in up] == [0, *(stop for _, stop in up[:-1])] and up[-1][1] == turn.sent
        assert [start for start, _, _ in down] == [0, *(stop for _, stop, _ in down[:-1])]
        assert down[-1][1] == turn.returned and all(0 < stop - start <= SLICE for start, stop, _ in down)
        for back in turn.returns:
            assert torch.equal(back.order().sort().values, torch.arange(back.count))


# ---- memory


@pytest.mark.slow
def test_predicted_memory_is_measured() -> None:
    """In a process of its own: the peak above what there was before, within a fifth."""
    code = """
import torch
from torch import nn
from hummingbird import he
torch.set_num_threads(1)
net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 1, 3, stride=4)).eval()
he.convert_model(net, (1, 3, 3))(torch.randn(1, 1, 3, 3))
model = he.convert_model(net, (1, 48, 48))
images = torch.randn(2048, 1, 48, 48)
model(images)
from hummingbird.he.runtime import memory
print(model.last.peak - model.last.before, memory.predicted(model.plan).process)
"""
    root = ROOT
    ended = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=PROGRAM)
    measured, predicted = (int(number) for number in ended.stdout.split())
    assert predicted > 2e8
    assert 0.8 * predicted < measured < 1.2 * predicted, (measured, predicted)


@pytest.mark.parametrize("name", AIDED)
def test_a_client_predicts_its_memory_from_what_it_is_told(name: str) -> None:
    plan = make_plan(*made(AIDED[name]))
    told = Public.from_json(plan.public.to_json())
    assert 0 < memory.at_client(told) == memory.predicted(plan).client <= memory.predicted(plan).process


@pytest.mark.parametrize("name", ALL)
def test_a_client_holds_what_it_still_reads_or_sends(name: str) -> None:
    """After every turn, by the definition: the values it has that a later turn, or the end, reads or sends."""
    public = make_plan(*made(ALL[name]), "polynomial" if name in PRODUCTS else "client-aided").public
    ways = [*(turn.steps for turn in public.turns), public.last]
    read = [{ref.index for index in way for ref in refs(public.steps[index].inputs)} for way in ways]
    sent = [{send.value for send in turn.sends} for turn in public.turns]
    steps = client_steps(public)
    values, known = steps.start(None), set[int]()
    for number, turn in enumerate(public.turns):
        steps.run(values, lambda *_: None, turn.steps)
        assert sent[number] <= set(values)
        back = {back.value for back in turn.returns}
        values.update(dict.fromkeys(back))
        steps.drop(values, len(public.steps) + number)
        known |= {*turn.steps, *back}
        assert set(values) == known & set().union(*read[number + 1 :], *sent[number + 1 :])
    steps.run(values, lambda *_: None, public.last)
    assert set(values) == {public.last[-1]}


def test_tiles_bound_the_server() -> None:
    """A layer whose result is only sent back is never there as a whole."""
    torch.manual_seed(0)
    plan = make_plan(nn.Sequential(conv(1, 64, 3, padding=1)), (1, 64, 64))
    program = plan.programs[0]
    whole = program.forms()[1].bytes(2048)
    assert program.streams(0) and program.memory(2048) < whole / 10 + 2 * (1 << 26)
    assert memory.predicted(plan).server < whole / 4


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_errors_below_the_target(step: int) -> None:
    """Each kind of error is below 2^-12 of a typical value: a net of a few layers keeps 9 bits or more."""
    for name in [*LINEAR, *PRODUCTS][::step]:
        net, shape = made(ALL[name])
        for line in make_plan(net, shape, "polynomial").lines:
            if line.side == "encrypted" and line.rms > 0.02:
                assert math.log2(line.rms / line.error) > ckks.PRECISION - 3, (name, line)
