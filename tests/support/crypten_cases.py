"""CrypTen's functions on shared tensors, beside torch's: what to call, on what, and how far they may be apart.

Inputs are multiples of 2^-16, so that sharing them is exact. A bound is in units of 2^-16 where a function is exact up
to rounding: a private product or a division by a number errs by a unit, a constant by half a unit times its factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.crypten.adapter import crypten

UNIT = 2.0**-16


class Case(NamedTuple):
    """`private(*shared inputs)` must be within `bound` of `plain(*inputs)`, in shape too."""

    private: Callable[..., Any]
    plain: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    bound: float


def grid(*shape: int, low: float = -4.0, high: float = 4.0, seed: int = 0) -> Tensor:
    """Multiples of 2^-16 between two numbers."""
    random = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return (random * (high - low) + low).mul(2**16).round() / 2**16


def both(function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A call that reads the same for CrypTen's tensors and torch's."""
    return function, function


X, Y, SQUARE, CUBE = grid(4, 5), grid(4, 5, seed=1), grid(4, 4, seed=2), grid(2, 3, 4, seed=3)
ROW, ONE, NONE = grid(5, seed=4), grid(1, 1, seed=5), grid(seed=6)
IMAGE, KERNEL = grid(2, 3, 8, 8, low=-2, high=2, seed=7), grid(4, 3, 3, 3, low=-1, high=1, seed=8)
LINE, TAPS = grid(2, 3, 9, seed=9), grid(4, 3, 3, low=-1, high=1, seed=10)
POSITIVE, UNITS = grid(4, 5, low=0.1, high=4, seed=11), grid(4, 5, low=0.05, high=1, seed=12)
LARGE = grid(4, 5, low=-30000, high=30000, seed=13)
INDEX = torch.tensor([3, 0, 2])
WHERE = torch.tensor([[0, 1, 2, 3, 0], [3, 2, 1, 0, 1]])
PUBLIC = grid(4, 5, seed=14)


def arithmetic() -> Iterator[tuple[str, Case]]:
    """Sums, products and quotients."""
    for name, a, b in (
        ("", X, Y),
        (" row", X, ROW),
        (" one", X, ONE),
        (" 0-d", X, NONE),
        (" 0-d first", NONE, X),
        (" both grow", X[:, :1], ROW),
        (" transposed", SQUARE.t(), SQUARE),
        (" expanded", ONE.expand(4, 5), X),
        (" two expanded", ONE.expand(1, 3), ONE.expand(4, 3)),
        (" strided", X[::2, ::2], Y[::2, 1:4]),
        (" 0-d both", NONE, NONE),
    ):
        yield f"add{name}", Case(*both(lambda a, b: a + b), (a, b), 0.0)
        yield f"sub{name}", Case(*both(lambda a, b: a - b), (a, b), 0.0)
        yield f"mul{name}", Case(*both(lambda a, b: a * b), (a, b), UNIT)
        yield f"gt{name}", Case(lambda a, b: a > b, lambda a, b: (a > b).float(), (a, b), 0.0)
        yield f"eq{name}", Case(lambda a, b: a == b, lambda a, b: (a == b).float(), (a, b), 0.0)
        yield f"add public{name}", Case(lambda a, b=b: a + b, lambda a, b=b: a + b, (a,), 0.0)
        yield f"public add{name}", Case(lambda a, b=b: b + a, lambda a, b=b: b + a, (a,), 0.0)
        yield f"public sub{name}", Case(lambda a, b=b: b - a, lambda a, b=b: b - a, (a,), 0.0)
        yield f"mul public{name}", Case(lambda a, b=b: a * b, lambda a, b=b: a * b, (a,), 4 * UNIT)
        yield f"public gt{name}", Case(lambda a, b=b: a > b, lambda a, b=b: (a > b).float(), (a,), 0.0)
    for number in (3, -3, 0, 1.0, 0.5, -2.75, 1e-5, 1e-3, 3000.5, 1 / 3, 1e5, 1 / 3000.5):
        yield f"add {number:g}", Case(*both(lambda a, n=number: a + n), (X,), UNIT)
        yield f"rsub {number:g}", Case(*both(lambda a, n=number: n - a), (X,), UNIT)
        relative = max(4 * abs(number) * 2.0**-16, 0) if number != int(number) else 0.0
        yield f"mul {number:g}", Case(*both(lambda a, n=number: a * n), (X,), UNIT + relative)
        if number:
            error = UNIT + 4 / abs(number) * 2.0**-16
            yield f"div {number:g}", Case(*both(lambda a, n=number: a / n), (X,), error)
            yield f"div_ {number:g}", Case(*both(lambda a, n=number: a.clone().div_(n)), (X,), error)
        yield f"gt {number:g}", Case(lambda a, n=number: a > n, lambda a, n=number: (a > n).float(), (X,), 0.0)
    divisors = torch.tensor([1.0, -3.0, 7.0, 0.5, 2.5])
    yield "div tensor", Case(*both(lambda a: a / divisors), (X,), 2.0**-13)
    yield "div int tensor", Case(*both(lambda a: a / torch.tensor([1, 3, 7, 10, 65536])), (X,), 4 * UNIT)
    yield "mul int tensor", Case(*both(lambda a: a * torch.tensor([1, 3, 7, 10, 65536])), (X,), 0.0)
    yield "mul bool tensor", Case(*both(lambda a: a * torch.tensor([True, False, True, True, False])), (X,), 0.0)
    yield "mul large", Case(*both(lambda a: a * 0.75), (LARGE,), 2 * UNIT)
    yield "mul private large", Case(*both(lambda a, b: a * b), (LARGE, UNITS), UNIT)
    yield "div large", Case(*both(lambda a: a / 7), (LARGE,), 2 * UNIT)
    yield "square large", Case(*both(lambda a: a.square()), (grid(4, 5, low=-15, high=15),), UNIT)
    yield "neg", Case(*both(lambda a: -a), (X,), 0.0)
    yield "matmul", Case(*both(lambda a, b: a @ b), (X, Y.t()), UNIT)
    yield "matmul public", Case(*both(lambda a: a @ PUBLIC.t()), (X,), UNIT)
    yield "matmul batched", Case(*both(lambda a, b: a @ b), (CUBE, grid(4, 2)), UNIT)
    yield "matmul batches", Case(*both(lambda a, b: a @ b), (CUBE, CUBE.transpose(1, 2)), UNIT)
    yield "matmul vector", Case(*both(lambda a, b: a @ b), (X, ROW), UNIT)
    yield "matmul vectors", Case(*both(lambda a, b: a @ b), (ROW, ROW), UNIT)
    yield "dot", Case(*both(lambda a, b: a.dot(b)), (ROW, grid(5, seed=20)), 5 * UNIT)
    yield "ger", Case(*both(lambda a, b: a.ger(b)), (ROW, grid(3, seed=20)), UNIT)
    yield "square", Case(*both(lambda a: a.square()), (X,), UNIT)
    for power in (0, 1, 2, 3, 4, 5, 6, 7, 9):
        small = UNITS * 1.5
        yield f"pow {power}", Case(*both(lambda a, p=power: a.pow(p)), (small,), 60 * UNIT)
        yield f"pow odd sign {power}", Case(*both(lambda a, p=power: a**p), (-small,), 60 * UNIT)
    coefficients = [0.5, -0.25, 0.125]
    yield (
        "polynomial",
        Case(
            lambda a: a.polynomial(coefficients),
            lambda a: sum(c * a ** (i + 1) for i, c in enumerate(coefficients)),
            (UNITS,),
            4 * UNIT,
        ),
    )
    for name, change in (
        ("add_", lambda a, b: a.clone().add_(b)),
        ("sub_", lambda a, b: a.clone().sub_(b)),
        ("mul_", lambda a, b: a.clone().mul_(b)),
        ("copy_", lambda a, b: [(c := a.clone()), c.copy_(b)][0]),
    ):
        yield name, Case(*both(change), (X, Y), UNIT)
        yield (
            f"{name} row",
            Case(*both(change), (X, ROW), UNIT) if name != "copy_" else Case(*both(change), (X, Y), 0.0),
        )

    def inplace(a: Any, b: Any) -> Any:
        a = a.clone()
        a += b
        a -= 0.5
        a *= b
        a /= 4
        return a

    yield "in place", Case(*both(inplace), (X, Y), 2 * UNIT)


def bits() -> Iterator[tuple[str, Case]]:
    """Results of comparisons, which have no fraction, in further operations."""
    for name, use in {
        "times half": lambda b, x: b * 0.5,
        "plus half": lambda b, x: b + 0.5,
        "half minus": lambda b, x: 0.5 - b,
        "over two": lambda b, x: b / 2,
        "over 0.5": lambda b, x: b / 0.5,
        "mean": lambda b, x: b.mean(),
        "mean of a dimension": lambda b, x: b.mean(0),
        "times public": lambda b, x: b * PUBLIC,
        "plus public": lambda b, x: b + PUBLIC,
        "times x": lambda b, x: b * x,
        "x times": lambda b, x: x * b,
        "plus x": lambda b, x: b + x,
        "x minus": lambda b, x: x - b,
        "matmul public": lambda b, x: b @ PUBLIC.t(),
        "matmul x": lambda b, x: b @ x.t(),
        "square": lambda b, x: b * b,
        "greater than half": lambda b, x: (b > 0.5) * 1.0,
        "sum": lambda b, x: b.sum(1),
        "one minus": lambda b, x: 1 - b,
        "cumsum": lambda b, x: b.cumsum(1),
        "sum_ of both": lambda b, x: x.clone().add_(b),
        "bits plus_ x": lambda b, x: b.clone().add_(x),
        "bits times_ x": lambda b, x: b.clone().mul_(x),
        "var": lambda b, x: b.var(),
        "pad": lambda b, x: F.pad(b, (1, 1), value=0.5) if isinstance(b, Tensor) else b.pad((1, 1), value=0.5),
        "index_add": lambda b, x: x.index_add(0, torch.tensor([1, 0, 2, 1]), b),
        "scatter_add": lambda b, x: x.scatter_add(0, WHERE, b),
        "scatter": lambda b, x: x.scatter(0, WHERE % 4, b),
        "setitem": lambda b, x: _set(x.clone(), (slice(1, 3),), b[1:3]),
        "setitem of bits": lambda b, x: _set(b.clone(), (slice(1, 3),), x[1:3]),
        "copy_": lambda b, x: _copy(x.clone(), b),
    }.items():
        yield (
            f"bits: {name}",
            Case(lambda x, y, use=use: use(x > y, x), lambda x, y, use=use: use((x > y).float(), x), (X, Y), 30 * UNIT),
        )
    for name in ("cat", "stack"):
        for order in ((0, 1), (1, 0)):
            join, plain = getattr(crypten, name), getattr(torch, name)
            yield (
                f"bits: {name} {order}",
                Case(
                    lambda x, y, join=join, order=order: join([[x, x > y][i] for i in order]),
                    lambda x, y, plain=plain, order=order: plain([[x, (x > y).float()][i] for i in order]),
                    (X, Y),
                    0.0,
                ),
            )


def _set(x: Any, index: Any, value: Any) -> Any:
    x[index] = value
    return x


def _copy(x: Any, y: Any) -> Any:
    x.copy_(y)
    return x


def shapes() -> Iterator[tuple[str, Case]]:
    """Functions that move elements."""
    for name, move in {
        "view": lambda x: x.view(5, 4),
        "reshape": lambda x: x.t().reshape(-1),
        "expand": lambda x: x[:, None].expand(4, 3, 5),
        "expand whole": lambda x: x[:1, :1].expand(6, 6),
        "unbind": lambda x: x.unbind(0)[1],
        "unbind 1": lambda x: x.unbind(1)[2],
        "unbind one": lambda x: x[:1, :1].unbind(1)[0],
        "split": lambda x: x.split(2, 1)[1],
        "split sizes": lambda x: x.split([1, 4], dim=1)[1],
        "flatten": lambda x: x.flatten(),
        "t": lambda x: x.t(),
        "transpose": lambda x: x.transpose(0, 1),
        "permute": lambda x: x.permute(1, 0),
        "squeeze": lambda x: x[:1].squeeze(0),
        "unsqueeze": lambda x: x.unsqueeze(1),
        "narrow": lambda x: x.narrow(1, 1, 3),
        "index": lambda x: x[1:, 2],
        "index 0-d": lambda x: x[1, 2],
        "index steps": lambda x: x[::2, ::3],
        "index list": lambda x: x[[0, 2]],
        "index none": lambda x: x[None, :, None],
        "index mask": lambda x: x[PUBLIC > 0],
        "index tensor": lambda x: x[INDEX],
        "index_select": lambda x: x.index_select(0, INDEX),
        "gather": lambda x: x.gather(0, WHERE),
        "take": lambda x: x.take(INDEX),
        "flip": lambda x: x.flip(0),
        "flip all": lambda x: x.flip(0, 1),
        "roll": lambda x: x.roll(2, 1),
        "roll all": lambda x: x.roll(3),
        "repeat": lambda x: x.repeat(2, 3),
        "unfold": lambda x: x.unfold(1, 2, 1),
        "cumsum": lambda x: x.cumsum(1),
        "sum": lambda x: x.sum(),
        "sum dim": lambda x: x.sum(0),
        "sum keep": lambda x: x.sum(1, keepdim=True),
        "sum dims": lambda x: x.sum((0, 1)),
        "trace": lambda x: x.trace(),
        "clone": lambda x: x.clone(),
        "contents of one": lambda x: x[:1, :1],
    }.items():
        yield name, Case(*both(move), (X,), 0.0)
        # A private product after it: its operands travel as they lie in memory.
        yield (
            f"{name}, squared",
            Case(*both(lambda x, move=move: move(x).square()), (grid(4, 5, low=-1, high=1),), UNIT),
        )
    yield "mean", Case(*both(lambda x: x.mean()), (X,), UNIT)
    yield "mean dim", Case(*both(lambda x: x.mean(1)), (X,), UNIT)
    yield "mean keep", Case(*both(lambda x: x.mean(dim=0, keepdim=True)), (X,), UNIT)
    yield "mean dims", Case(*both(lambda x: x.mean((0, 2))), (CUBE,), UNIT)
    yield "mean 0-d", Case(*both(lambda x: x.mean()), (NONE,), UNIT)
    for name, take in {
        "var": lambda x: x.var(),
        "var dim": lambda x: x.var(1),
        "var dim named": lambda x: x.var(dim=1),
        "var biased": lambda x: x.var(1, unbiased=False),
        "var unbiased": lambda x: x.var(1, unbiased=True),
        "var all biased": lambda x: x.var(unbiased=False),
        "var keep": lambda x: x.var(0, keepdim=True),
        "var two": lambda x: x[:2].var(0),
        "var two biased": lambda x: x[:2].var(0, unbiased=False),
    }.items():
        yield name, Case(*both(take), (X,), 40 * UNIT)
    yield "prod", Case(*both(lambda x: x.prod(1)), (UNITS,), 8 * UNIT)
    yield "prod all", Case(*both(lambda x: x.prod()), (UNITS[:2, :3],), 8 * UNIT)
    yield "prod keep", Case(lambda x: x.prod(1, keepdim=True), lambda x: x.prod(1, keepdim=True), (UNITS,), 8 * UNIT)
    yield "take dim", Case(lambda x: x.take(INDEX, 0), lambda x: x[INDEX], (X,), 0.0)
    yield "set", Case(lambda x, y: _then(x.clone(), lambda c: c.set(y)), lambda x, y: y, (X, Y), 0.0)
    yield "shallow_copy", Case(lambda x: x.shallow_copy(), lambda x: x, (X,), 0.0)
    yield "setitem", Case(*both(lambda x, y: _set(x.clone(), (slice(0, 2), 1), y[2:, 3])), (X, Y), 0.0)
    yield (
        "setitem public",
        Case(lambda x: _set(x.clone(), 1, PUBLIC[1]), lambda x: _set(x.clone(), 1, PUBLIC[1]), (X,), 0.0),
    )
    yield "setitem number", Case(*both(lambda x: _set(x.clone(), (0, 1), 0.5)), (X,), 0.0)
    yield "index_add", Case(*both(lambda x, y: x.index_add(0, INDEX, y[:3])), (X, Y), 0.0)
    yield "index_add public", Case(*both(lambda x: x.index_add(0, INDEX, PUBLIC[:3])), (X,), 0.0)
    yield "scatter_add", Case(*both(lambda x, y: x.scatter_add(0, WHERE, y)), (X, Y), 0.0)
    yield "scatter_add public", Case(*both(lambda x: x.scatter_add(0, WHERE, PUBLIC)), (X,), 0.0)
    yield "scatter", Case(*both(lambda x, y: x.scatter(0, INDEX[:, None], y)), (X, Y), 0.0)
    yield "scatter public", Case(*both(lambda x: x.scatter(0, INDEX[:, None], PUBLIC)), (X,), 0.0)
    yield "pad", Case(lambda x: x.pad((1, 2)), lambda x: F.pad(x, (1, 2)), (X,), 0.0)
    yield (
        "pad value",
        Case(lambda x: x.pad((1, 2, 0, 1), value=-0.75), lambda x: F.pad(x, (1, 2, 0, 1), value=-0.75), (X,), 0.0),
    )
    for name in ("cat", "stack"):
        join, plain = getattr(crypten, name), getattr(torch, name)
        for dim in (0, 1, -1):
            yield (
                f"{name} {dim}",
                Case(
                    lambda x, y, j=join, d=dim: j([x, y], dim=d),
                    lambda x, y, p=plain, d=dim: p([x, y], dim=d),
                    (X, Y),
                    0.0,
                ),
            )
        yield f"torch.{name}", Case(*both(lambda x, y, p=plain: p([x, y])), (X, Y), 0.0)


def _then(x: Any, change: Callable[[Any], Any]) -> Any:
    change(x)
    return x
