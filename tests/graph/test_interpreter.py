"""The one walk over steps: what a step is given, when a value goes, where a run may be cut, gone on from, changed."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hummingbird.errors import InputError
from hummingbird.graph import OPS, Interpreter, Ref, Step, run, run_all, trace
from hummingbird.graph.steps import compact, map_refs, refs


@dataclass(frozen=True)
class Planned:
    """A step of another kind, as those of plans are."""

    op: str
    inputs: tuple[Any, ...]
    layer: Callable[..., Any]


class Value:
    """Something that can be looked at from outside, and is no equal of any other."""


def step(number: int, *inputs: Any) -> Step:
    return Step(f"s{number}", "input" if number == 0 else "custom", inputs)


# Step 1 is read by the next step and, within tuples, by the last one; step 2 twice by one step; step 5 by nobody.
BRANCHES = [step(0), step(1, Ref(0)), step(2, Ref(1)), step(3, Ref(2), Ref(2)), step(4, (Ref(3), (Ref(1),))), step(5)]


def random_steps(chance: random.Random) -> list[Step]:
    steps = [step(0)]
    for number in range(1, chance.randint(2, 12)):
        read = [Ref(chance.randrange(number)) for _ in range(chance.randint(1, 3))]
        steps.append(step(number, *read) if chance.random() < 0.5 else step(number, (read[0], tuple(read[1:])), 7))
    return steps


def needed(steps: list[Step], done: list[int], later: list[int]) -> set[int]:
    """Steps whose values are read later, or by nobody: from the definition."""
    read = {ref.index for number in (*done, *later) for ref in refs(steps[number].inputs)}
    read_later = {ref.index for number in later for ref in refs(steps[number].inputs)}
    return {0, *done} & read_later | {number for number in {0, *done} if number not in read}


# Arguments ------------------------------------------------------------------------------------------------------------


def test_references_are_replaced_in_nested_tuples_and_nothing_else_is() -> None:
    inputs = (Ref(1), (Ref(0), (Ref(1), 7)), (), 2, None, "x", slice(0, 2))
    got = map_refs(inputs, lambda ref: ("a", "b")[ref.index])
    assert got == ("b", ("a", ("b", 7)), (), 2, None, "x", slice(0, 2))
    assert [ref.index for ref in refs(inputs)] == [1, 0, 1]


def test_a_value_that_is_a_tuple_is_given_as_it_is() -> None:
    """The result of chunk: its parts may be anything, even references."""
    parts = (Ref(0), "part")
    net = Interpreter([step(0), step(1, Ref(0)), step(2, (Ref(1), Ref(1)))])
    seen: list[Any] = []

    def compute(number: int, step: Step, arguments: tuple[Any, ...]) -> Any:
        seen.append(arguments)
        return parts if number == 1 else arguments[0]

    net.run(net.start("x"), compute)
    assert seen == [("x",), ("x",), ((parts, parts),)] and seen[2][0][0] is parts


def test_an_inputs_argument_is_its_own_value() -> None:
    net = Interpreter([step(0), step(1, Ref(0))])
    values = net.start(3)
    net.run(values, lambda number, step, arguments: arguments[0] + 1)
    assert values == {1: 5}


@pytest.mark.parametrize("given", [(), (1, 2)])
def test_a_wrong_number_of_inputs_is_refused(given: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=rf"takes 1 input\(s\), got {len(given)}"):
        Interpreter(BRANCHES).start(*given)


def test_steps_of_plans_run_too() -> None:
    steps = [
        Planned("input", (), lambda x: x),
        Planned("a", (Ref(0),), lambda x: x + 1),
        Planned("b", ((Ref(0), Ref(1)), 5), lambda pair, number: [*pair, number]),
    ]
    net = Interpreter(steps)
    values = net.start(1)
    net.run(values, lambda number, step, arguments: step.layer(*arguments))
    assert values == {2: [1, 2, 5]}


# Liveness -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(30))
def test_a_value_is_gone_after_its_last_reader_and_not_before(number: int) -> None:
    """Looked at through weak references while every step runs, without the garbage collector: nothing else holds it."""
    steps = random_steps(random.Random(number)) if number else BRANCHES
    net, made = Interpreter(steps), list[weakref.ref[Value]]()
    order = list(range(len(steps)))

    def alive() -> set[int]:
        return {index for index, ref in enumerate(made) if ref() is not None}

    def compute(number: int, step: Step, arguments: tuple[Any, ...]) -> Any:
        assert alive() == needed(steps, order[:number], order[number:]) & set(range(number))
        value = Value()
        made.append(weakref.ref(value))
        return value

    gc.disable()
    try:
        values = net.start(Value())
        net.run(values, compute)
        assert alive() == set(values) == needed(steps, order, [])
        del values
        assert not alive()
    finally:
        gc.enable()


def test_the_looking_finds_a_value_that_stays() -> None:
    """The test above can fail: with `keep`, and with a step that holds what it was given."""
    net, made, held = Interpreter(BRANCHES, keep=True), list[weakref.ref[Value]](), list[Any]()

    def compute(number: int, step: Step, arguments: tuple[Any, ...]) -> Any:
        held.append(arguments)
        value = Value()
        made.append(weakref.ref(value))
        return value

    values = net.start(Value())
    net.run(values, compute)
    assert all(ref() is not None for ref in made) and set(values) == set(range(len(BRANCHES)))
    del values
    assert [ref() is not None for ref in made] == [True, True, True, True, False, False]  # as arguments of later steps


def test_every_value_that_nobody_reads_is_a_result() -> None:
    steps = [step(0), step(1, Ref(0)), step(2, Ref(0)), step(3, Ref(1)), step(4, Ref(1))]
    net = Interpreter(steps)
    values = net.start("x")
    net.run(values, lambda number, step, arguments: f"{step.name}({arguments[0]})")
    assert values == {2: "s2(s0(x))", 3: "s3(s1(s0(x)))", 4: "s4(s1(s0(x)))"}


def test_the_last_reader_is_the_last_to_run_not_the_one_of_the_highest_number() -> None:
    """As for the client of encrypted inference, whose turns take up branches in an order of their own."""
    steps = [step(0), step(1, Ref(0)), step(2, Ref(0)), step(3, Ref(2)), step(4, Ref(3), Ref(1))]
    net = Interpreter(steps, order=(0, 2, 3, 1, 4))
    values = net.start("x")
    net.run(values, lambda *_: "", (0, 2, 3))
    assert set(values) == {0, 3}
    net.run(values, lambda *_: "", (1, 4))
    assert set(values) == {4}


# Stop, go on, change --------------------------------------------------------------------------------------------------


def shown(way: str, since: int = 0) -> Callable[[int, Step, tuple[Any, ...]], str]:
    """Values that tell how they were made: in this way from step `since` on, before it in way "a"."""
    return lambda number, step, arguments: f"{step.name}{way if number >= since else 'a'}{arguments}"


@pytest.mark.parametrize("seed", range(10))
def test_a_run_goes_on_twice_from_where_it_stopped(seed: int) -> None:
    """From every place, in two ways, as if it had never stopped. What later steps read is there, and no more."""
    steps = random_steps(random.Random(seed))
    net, numbers = Interpreter(steps), list(range(len(steps)))
    for stop in range(len(steps) + 1):
        state = net.start("x")
        net.run(state, shown("a"), range(stop))
        assert set(state) == needed(steps, numbers[:stop], numbers[stop:])
        before = dict(state)
        for way in "ab":
            values, whole = dict(state), net.start("x")
            net.run(values, shown(way), range(stop, len(steps)))
            net.run(whole, shown(way, stop))
            assert values == whole
        assert state == before


def test_going_on_without_a_copy_spends_the_state() -> None:
    """Why a state that is gone on from twice is copied."""
    net = Interpreter(BRANCHES)
    state = net.start("x")
    net.run(state, lambda *_: "", range(2))
    net.run(state, lambda *_: "", range(2, 6))
    with pytest.raises(KeyError):
        net.run(state, lambda *_: "", range(2, 6))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.last = nn.Linear(3, 3), nn.ReLU(), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        low, high = torch.cat([self.relu(x) + x, x], 1).chunk(2, 1)
        return self.last(torch.cat([high, low], 1))


def test_a_step_is_overridden() -> None:
    """It gets what the step would have got, and later steps what it gave."""
    torch.manual_seed(0)
    net, x = Residual().eval(), torch.randn(4, 3)
    steps = trace(net)

    def doubled(number: int, step: Step, arguments: tuple[Any, ...]) -> Any:
        return 2 * arguments[0] if step.name == "relu" else OPS[step.op](step.attrs, *arguments)

    interpreter = Interpreter(steps)
    values = interpreter.start(x)
    interpreter.run(values, doubled)
    y = net.first(x)
    expected = net.last(torch.cat([y, 2 * y + y], 1))
    assert torch.equal(values[len(steps) - 1], expected) and not torch.equal(run(steps, x), expected)


def test_run_is_the_last_of_all_values() -> None:
    net, x = Residual().eval(), torch.randn(4, 3)
    steps = trace(net)
    values = run_all(steps, x)
    assert len(values) == len(steps) and torch.equal(values[-1], run(steps, x)) and torch.equal(values[0], x)
    assert torch.equal(run(steps, x), net(x))
    with pytest.raises(InputError, match="takes 1 input"):
        run(steps, x, x)


def test_inputs_that_nobody_reads_stay() -> None:
    """An evaluation gives them a value, by their places; of other steps the last one keeps what it needs."""
    inputs, last = [Step("x", "input"), Step("m", "public")], Step("out", "output", (Ref(3),))
    found = compact([*inputs, step(2, Ref(1)), step(3, Ref(0)), last])
    assert [each.name for each in found] == ["x", "m", "s3", "out"]
    assert [[*refs(each.inputs)] for each in found] == [[], [], [Ref(0)], [Ref(2)]]
