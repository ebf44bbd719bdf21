"""Functions of one value as expressions: what texts mean, which calls of torch become them, and which steps join."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird.graph import problems, run, trace
from hummingbird.graph.ops import functions
from hummingbird.graph.ops.functions import CALLS, Tail, is_expression, of, parsed, spelled, tails, value
from tests.graph.ops.test_vocabulary import Call

X = torch.linspace(0.1, 0.9, 24).view(2, 12)


# Expressions ----------------------------------------------------------------------------------------------------------


def test_a_text_is_read_as_it_was_spelled() -> None:
    text = spelled("mul", "x", spelled("pow", spelled("add", "x", -0.5), 1e-05))
    assert text == "mul(x,pow(add(x,-0.5),1e-05))"
    assert parsed(text) == ("mul", ("x",), ("pow", ("add", ("x",), -0.5), 1e-05))
    assert of("exp(add(x,x))", "neg(x)") == "exp(add(neg(x),neg(x)))"
    assert torch.allclose(value("div(1.0,add(x,exp(neg(x))))", X), 1 / (X + torch.exp(-X)))


@pytest.mark.parametrize("name", CALLS)
def test_every_function_of_an_expression_is_torchs(name: str) -> None:
    count, function = CALLS[name]
    text = spelled(name, *["x", 2.0, 3.0][:count])
    x = X + 1 if name == "acosh" else X
    assert is_expression(text)
    assert torch.equal(value(text, x), function(x, *[2.0, 3.0][: count - 1]))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2.0",
        "y",
        "exp",
        "exp()",
        "exp(x",
        "exp(x))",
        "exp(x,x)",
        "add(x)",
        "exp(2.0)",
        "__import__(x)",
        "exp(1e999)",
    ]
    + ["exp(x);", "add(x,1.0) ", "exp(" * 60 + "x" + ")" * 60, "add(x," * 40 + "x" + ")" * 40 + "," * 2000, "exp(x)\n"],
)
def test_other_texts_are_refused(text: str) -> None:
    assert not is_expression(text)


def test_random_texts_are_read_or_refused() -> None:
    """No text of a stranger raises anything but ValueError, or takes long."""
    generator = torch.Generator().manual_seed(0)
    pieces = ["x", "exp", "add", "mul", "(", ")", ",", "1.0", "-2", "e5", " ", "1e", "."]
    for _ in range(3000):
        length = int(torch.randint(1, 12, (), generator=generator))
        text = "".join(pieces[i] for i in torch.randint(0, len(pieces), (length,), generator=generator).tolist())
        if is_expression(text):
            assert value(text, X).shape == X.shape


@pytest.mark.parametrize(
    ("text", "left", "right"),
    [
        ("sigmoid(x)", 0, 0),
        ("tanhshrink(x)", 1, 1),
        ("gelu(x)", 0, 1),
        ("mul(x,erf(x))", -1, 1),
        ("logsigmoid(x)", 1, 0),
        ("exp(x)", 0, None),
        ("log(x)", None, None),
        ("sin(x)", None, None),
        ("mul(x,1.5)", None, None),
    ],
)
def test_tails(text: str, left: int | None, right: int | None) -> None:
    """Beyond a tail's end the function is within 2^-15 of a line through its value there."""
    found = tails(text)
    assert [tail and tail.slope for tail in found] == [left, right]
    for tail, side in zip(found, (-1, 1), strict=True):
        if tail is not None:
            x = tail.at + side * torch.cat([torch.linspace(0, 50, 2001), 2.0 ** torch.arange(6, 20)]).double()
            line = value(text, torch.tensor([tail.at], dtype=torch.float64)) + tail.slope * (x - tail.at)
            assert float((value(text, x) - line).abs().max()) <= 2.0**-15


@pytest.mark.parametrize("middle", [1000.0, 200.0, 64.5, 10.1])
def test_a_bump_is_not_missed(middle: float) -> None:
    left, right = tails(
        spelled("exp", spelled("neg", spelled("square", spelled("mul", spelled("sub", "x", middle), 8.0))))
    )
    assert left is None or right is None or left.at <= middle <= right.at


def test_a_function_that_rises_has_a_tail_at_zero() -> None:
    assert tails("expm1(x)", rises=True)[1] == Tail(0.0, 1)


# Calls of torch ---------------------------------------------------------------------------------------------------

MODULES = [
    nn.Softplus(2.0, 10.0),
    nn.Mish(),
    nn.LogSigmoid(),
    nn.Softsign(),
    nn.Tanhshrink(),
    nn.ELU(0.7),
    nn.CELU(1.5),
]
MODULES += [nn.SELU(), nn.Softshrink(0.3), nn.RReLU(0.1, 0.3)]
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: getattr(torch, name, None) or getattr(F, name) for name in functions._OF_ONE.split()},
    "method": lambda x: x.exp() + x.log1p() + x.rsqrt(),
    "in place": lambda x: (x * 1).exp_().sin_(),
    "aliases": lambda x: torch.arctan(x) + x.arccos() + torch.arcsin(x),
    "division": lambda x: x / (1 + x),
    "a number over a value": lambda x: 3 / (x + 1),
    "a constant over a value": lambda x: torch.ones(12) / (x + 1),
    "powers": lambda x: x**1.5 + x**-2 + 2**x + x.pow(-1) + torch.pow(x, 0.3),
    "roots": lambda x: x.sqrt() + x**0.5 + x**-0.5 + torch.rsqrt(x),
    "softplus": lambda x: F.softplus(x, 3, 5) + F.softplus(x),
    "elu": lambda x: F.elu(x - 0.5, 0.3) + F.celu(x - 0.5, alpha=2.0) + F.selu(x - 0.5),
    "degrees": lambda x: torch.deg2rad(x) + x.rad2deg(),
    "logit, eps": lambda x: torch.logit(x, 0.2) + torch.logit(x, eps=0.3),
}


@pytest.mark.parametrize("net", MODULES, ids=lambda net: type(net).__name__)
def test_modules(net: nn.Module) -> None:
    x = 4 * X - 2
    assert torch.allclose(run(trace(nn.Sequential(net.eval())), x), net(x), atol=1e-6)


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    x = X + 1 if name == "acosh" else X
    steps = trace(Call(FORMS[name]))
    assert torch.allclose(run(steps, x), FORMS[name](x), rtol=1e-5, atol=1e-6)
    assert not problems(Call(FORMS[name]))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x.floor(), "jumps"),
        (lambda x: F.hardshrink(x), "jumps"),
        (lambda x: x**x, "base"),
        (lambda x: (-2) ** x, "positive"),
        (lambda x: F.celu(x, -1.0), "positive"),
        (lambda x: F.softplus(x, 0.0), "positive"),
        (lambda x: x ** float("inf"), "finite"),
    ],
)
def test_what_is_no_smooth_function_is_refused(function: Callable[[Tensor], Tensor], words: str) -> None:
    (problem, *_) = problems(Call(function))
    assert words in f"{problem.what} {problem.hint}"


def test_a_saved_net_has_its_functions(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(12, 4), nn.Mish(), nn.ELU(0.5)).eval()
    hummingbird.save(net, tmp_path / "net")
    assert torch.allclose(hummingbird.saving.load_net(tmp_path / "net")(X), net(X), atol=1e-6)


# Several steps as one -------------------------------------------------------------------------------------------------


def _read_twice(x: Tensor) -> Tensor:
    y = torch.sigmoid(x)
    return torch.exp(y) + y.flatten(1)


COMPOSED: dict[str, tuple[Callable[[Tensor], Tensor], list[str]]] = {
    "swish": (lambda x: x * torch.sigmoid(1.7 * x), ["mul(x,sigmoid(mul(x,1.7)))"]),
    "mish": (lambda x: x * torch.tanh(F.softplus(x)), ["mul(x,tanh(softplus(x,1.0,20.0)))"]),
    "reversed": (lambda x: 1 / (1 + torch.exp(-x)), ["div(1.0,add(exp(neg(x)),1.0))"]),
    "two sources": (lambda x: torch.sigmoid(x[:, :6]) * torch.tanh(x[:, 6:]), []),
    "an inner value is read": (_read_twice, ["exp(x)"]),
    "behind a layer": (lambda x: torch.exp(F.relu(x) - 1) + 1, ["exp(sub(x,1.0))"]),
    "an activation and a line": (lambda x: 2 * torch.sigmoid(x) - 1, []),
    "a kink inside": (lambda x: torch.tanh(F.elu(x - 0.5)), ["mul(expm1(x),1.0)"]),
    "no tail once joined": (lambda x: x * x * torch.sigmoid(x), []),
    "a constant for each column": (lambda x: torch.exp(x * torch.arange(12.0)), ["exp(x)"]),
    "an inner step of a call": (lambda x: torch.tanh(F.selu(x - 0.5)) * 0.5, []),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_compositions(name: str) -> None:
    function, texts = COMPOSED[name]
    steps = trace(Call(function))
    found = [step.attrs["expression"] for step in steps if step.op == "function"]
    assert found == texts or (not texts and all(text == "mul(expm1(x),1.6732632423543772)" for text in found))
    assert torch.allclose(run(steps, X), function(X), atol=1e-6)


@pytest.mark.parametrize("name", ["swish", "mish", "behind a layer", "an inner step of a call"])
def test_a_simulation_with_gradients_finds_the_source_of_a_composition(name: str) -> None:
    function, _ = COMPOSED[name]
    net = nn.Sequential(nn.Linear(12, 12), Call(function)).eval()
    rows = hummingbird.find_rows(net, X)
    twin = hummingbird.simulate(net, hummingbird.BitConfig().with_rows(rows), seed=0)
    found = twin(X.requires_grad_())  # the net's own modules run
    assert found.requires_grad and torch.allclose(found, net(X), atol=2e-3)
    (mine,), (torchs,) = (torch.autograd.grad(y.sum(), X) for y in (found, net(X)))
    assert torch.allclose(mine, torchs, atol=5e-3)
    X.requires_grad_(False)
