"""A plan as text: read back as it was, refused where anything in it is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import InputError
from hummingbird.hybrid import arithmetic, ideal
from hummingbird.hybrid.convert import make_plan
from hummingbird.hybrid.plan import Linear, Plan
from hummingbird.hybrid.plan_json import check, from_json, to_json
from hummingbird.hybrid.proxy_view import proxy_view, read_proxy_view
from hummingbird.prg import Stream
from tests.support.hybrid_nets import NETS, WINDOWS, exact, several


def plan_of(name: str, m: int = 0) -> Plan:
    make, shape = NETS[name]
    return make_plan(exact(make()), shape, BitConfig(BitWindow(20, m), WINDOWS.get(name, {}), input_range=1.0)).plan


def test_results_that_do_not_fit_their_structure_are_refused() -> None:
    plan = several().plan
    assert to_json(from_json(to_json(plan))) == to_json(plan)
    assert read_proxy_view(proxy_view(plan, "0" * 64))[0].structure == plan.structure
    (kind, keys, parts), shapes = plan.structure, plan.output.attrs["shapes"]
    wrong: list[Any] = [
        {"structure": plan.structure},
        {"structure": plan.structure, "shapes": shapes, "more": 1},
        {"structure": plan.structure, "shapes": shapes[1:]},
        {"structure": plan.structure, "shapes": ((4,), *shapes[1:])},
        {"structure": plan.structure, "shapes": ((0,), *shapes[1:])},
        {"structure": (kind, keys, parts[1:]), "shapes": shapes},
        {"structure": ("object", (), parts), "shapes": shapes},
        {"structure": 3, "shapes": shapes},
    ]
    for attrs in wrong:
        odd = replace(plan, steps=(*plan.steps[:-1], replace(plan.steps[-1], attrs=attrs)))
        for refused in (
            lambda odd=odd: from_json(to_json(odd)),
            lambda odd=odd: read_proxy_view(proxy_view(odd, "0" * 64)),
        ):
            with pytest.raises(InputError):
                refused()


@pytest.mark.parametrize("name", NETS)
def test_every_plan_is_read_back_as_it_was(name: str) -> None:
    plan = plan_of(name)
    read = from_json(to_json(plan).encode())
    assert [vars(step) for step in read.steps] == [vars(step) for step in plan.steps]
    assert [type(step) for step in read.steps] == [type(step) for step in plan.steps]
    assert (read.garbler, read.input_range, to_json(read)) == (plan.garbler, plan.input_range, to_json(plan))


def test_another_window_is_another_text() -> None:
    assert to_json(plan_of("max pooling")) != to_json(plan_of("max pooling", 1))


def test_the_text_tells_nothing_of_the_weights() -> None:
    """Nets whose weights differ, but not in size, have one text."""
    make, shape = NETS["linear behind linear"]
    net, bits = exact(make()), BitConfig(BitWindow(20, 0), input_range=1.0)
    first = to_json(make_plan(net, shape, bits).plan)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.neg_()
    assert to_json(make_plan(net, shape, bits).plan) == first


def mutations(data: Any, words: torch.Tensor) -> Any:
    """The data with one of its numbers, names or lists replaced, at a place that the words choose."""
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            places.append((value, key))
            visit(value[key])

    visit(data)
    home, key = places[int(words[0] % len(places))]
    old = home[key]
    more = [old + 1, old - 1, old * 2, -old, old / 2] if isinstance(old, (int, float)) else []
    new = [0, 1, -1, 3, 2**70, 0.5, "", "sum", None, [], [1, 1, 1], {}, True, *more][int(words[1] % (13 + len(more)))]
    if new == {} and isinstance(home, dict):
        del home[key]
    else:
        home[key] = new
    return data


@pytest.mark.parametrize("plans", [240, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_damaged_text_is_refused_or_runs(plans: int) -> None:
    """Plans with one thing changed: what is not refused runs on both sides."""
    words, accepted = Stream(bytes(16)).words(plans, 2).abs(), 0
    names = ["groups and strides", "max pooling, no ReLU", "slopes", "sums"]
    texts = [to_json(plan_of(name)) for name in names]
    for number, row in enumerate(words):
        text = json.dumps(mutations(json.loads(texts[number % 4]), row))
        try:
            plan = from_json(text)
        except InputError as error:
            assert error.hint
            continue
        accepted += 1
        masks, hidden = ideal.drawn(plan, bytes(16), 1)

        def linear(number: int, step: Linear, x: torch.Tensor, hidden: Any = hidden) -> torch.Tensor:
            return hidden[number] + 0 * x.sum()

        for made in arithmetic.requests(plan, masks).values():
            assert made.dim() == 4
        arithmetic.offline(plan, masks, linear)
    assert plans // 100 < accepted < 3 * plans // 4  # names, units and rings that are larger than needed


@pytest.mark.parametrize("text", ["", "{}", "[]", "nan", '{"format": 1}', "[" * 100_000, b"\xff\xfe", "1" * 20])
def test_other_texts_are_refused(text: str | bytes) -> None:
    with pytest.raises(InputError):
        from_json(text)


def test_every_plan_passes_its_own_check() -> None:
    for name in NETS:
        check(plan_of(name))
