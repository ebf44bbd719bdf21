"""ReLUs behind max poolings: which change places, and that nothing else of the net does."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird import graph
from hummingbird.errors import InputError
from hummingbird.graph.ops.pools import places


class Net(nn.Module):
    """A net of one convolution and what `rest` makes of its result."""

    def __init__(self, rest: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.rest = nn.Conv2d(2, 3, 3, padding=1), rest

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.conv(x))


def residual(y: Tensor) -> Tensor:
    z = y.relu()
    return F.max_pool2d(z, 3, 1, 1) + z


def sized(y: Tensor) -> Tensor:
    z = y.relu()
    return F.max_pool2d(z, 2).reshape(z.size(0), -1)


def twice(y: Tensor) -> Tensor:
    z = y.relu()
    return torch.cat([F.max_pool2d(z, 2), F.max_pool2d(z, 2, padding=1)[..., 1:, 1:]], 1)


def branches(y: Tensor) -> Tensor:
    return F.max_pool2d(y.relu(), 2) + F.max_pool2d(-y, 2).relu() + F.avg_pool2d(y.relu(), 2)


MOVED: dict[str, tuple[Callable[[Tensor], Tensor], list[str]]] = {
    "alone": (lambda y: F.max_pool2d(y.relu(), 2), ["max_pool", "relu"]),
    "with padding": (lambda y: F.max_pool2d(F.relu(y), 3, 2, 1, ceil_mode=True) * 2, ["max_pool", "relu", "mul"]),
    "adaptive": (lambda y: F.adaptive_max_pool2d(y.relu_(), 2), ["adaptive_max_pool", "relu"]),
    "two poolings": (
        lambda y: F.max_pool2d(F.max_pool2d(y.relu(), 2), 2).flatten(1),
        ["max_pool", "max_pool", "relu", "flatten"],
    ),
    "two ReLUs": (lambda y: F.max_pool2d(y.relu().relu(), 2), ["max_pool", "relu", "relu"]),
    "one of three branches": (
        branches,
        ["max_pool", "relu", "neg", "max_pool", "relu", "add", "relu", "avg_pool", "add"],
    ),
}
LEFT: dict[str, Callable[[Tensor], Tensor]] = {
    "the pooling first": lambda y: F.max_pool2d(y, 2).relu(),
    "a residual branch": residual,
    "its size is read": sized,
    "two poolings of one ReLU": twice,
    "another pooling": lambda y: F.avg_pool2d(y.relu(), 2),
    "another function": lambda y: F.max_pool2d(F.leaky_relu(y), 2),
    "something between": lambda y: F.max_pool2d(y.relu() - 1, 2),
}


def check(net: nn.Module) -> tuple[list[graph.Step], list[graph.Step], dict[str, list[str]]]:
    """Both orders, with all values but those of the exchanged steps compared."""
    steps = graph.trace(net.eval())
    order, passed = graph.pools_first(steps)
    assert sorted(step.name for step in order) == sorted(step.name for step in steps)
    x = torch.randn(3, 2, 8, 8)
    before, after = (dict(zip([s.name for s in of], graph.run_all(of, x), strict=True)) for of in (steps, order))
    exchanged = {*passed, *sum(passed.values(), [])}
    for name in before.keys() - exchanged:
        same = (
            torch.equal(before[name], after[name]) if isinstance(before[name], Tensor) else before[name] == after[name]
        )
        assert same, name
    assert torch.equal(graph.run(order, x), graph.run(steps, x))
    return steps, order, passed


@pytest.mark.parametrize("name", MOVED)
def test_a_pooling_comes_before_the_relu_that_it_alone_reads(name: str) -> None:
    rest, ops = MOVED[name]
    steps, order, passed = check(Net(rest))
    assert [step.op for step in order if step.op not in ("input", "conv", "output")] == ops and passed
    assert [step.op for step in steps] != [step.op for step in order]
    again, more = graph.pools_first(order)
    assert not more and [str(step) for step in again] == [str(step) for step in order]


@pytest.mark.parametrize("name", LEFT)
def test_other_nets_are_left_as_they_are(name: str) -> None:
    steps, order, passed = check(Net(LEFT[name]))
    assert not passed and [str(step) for step in order] == [str(step) for step in steps]


def test_a_pooling_names_every_relu_that_it_passes() -> None:
    _, _, passed = check(Net(MOVED["two ReLUs"][0]))
    assert [len(relus) for relus in passed.values()] == [2]
    _, _, passed = check(Net(MOVED["two poolings"][0]))
    assert len(passed) == 2 and len({name for relus in passed.values() for name in relus}) == 1


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_a_pooling_window_looks_at_torch_s_places(ceil_mode: bool) -> None:
    """Every small size and option: also where the last window would begin in the padding on the right. Where a window
    looks at padding alone, torch gives -inf, and the sizes are refused.
    """
    options = itertools.product(range(1, 9), range(1, 5), range(1, 5), range(3), (1, 2))
    for option in options:
        size, kernel, stride, padding, dilation = option
        if padding > kernel // 2 or size + 2 * padding < dilation * (kernel - 1) + 1:
            continue  # refused by torch
        x = -torch.randperm(size).double() - 1
        wanted = F.max_pool1d(x[None, None], kernel, stride, padding, dilation, ceil_mode)[0, 0]
        if not bool(wanted.isfinite().all()):
            with pytest.raises(InputError, match="covers padding only"):
                places(*option, ceil_mode)
            continue
        assert torch.equal(x[places(*option, ceil_mode)].amax(0), wanted), option
