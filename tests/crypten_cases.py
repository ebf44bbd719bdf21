"""CrypTen's functions on shared tensors, beside torch's: what to call, on what, and how far they may be apart.

Inputs are multiples of 2^-16, so that sharing them is exact. A bound is in units of 2^-16 where a function is exact up to
rounding: a private product or a division by a number errs by a unit, a constant by half a unit times its factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.mpc._crypten import crypten

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
        size = 4 * max(abs(number), 1)
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
        yield f"{name} row", Case(*both(change), (X, ROW), UNIT) if name != "copy_" else Case(*both(change), (X, Y), 0.0)

    def inplace(a: Any, b: Any) -> Any:
        a = a.clone()
        a += b
        a -= 0.5
        a *= b
        a /= 4
        return a

    yield "in place", Case(*both(inplace), (X, Y), 2 * UNIT)


def bits() -> Iterator[tuple[str, Case]]:
    """What comparisons return has no fraction: what happens to it next."""
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
        yield f"{name}, squared", Case(*both(lambda x, move=move: move(x).square()), (grid(4, 5, low=-1, high=1),), UNIT)
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
    yield "setitem public", Case(lambda x: _set(x.clone(), 1, PUBLIC[1]), lambda x: _set(x.clone(), 1, PUBLIC[1]), (X,), 0.0)
    yield "setitem number", Case(*both(lambda x: _set(x.clone(), (0, 1), 0.5)), (X,), 0.0)
    yield "index_add", Case(*both(lambda x, y: x.index_add(0, INDEX, y[:3])), (X, Y), 0.0)
    yield "index_add public", Case(*both(lambda x: x.index_add(0, INDEX, PUBLIC[:3])), (X,), 0.0)
    yield "scatter_add", Case(*both(lambda x, y: x.scatter_add(0, WHERE, y)), (X, Y), 0.0)
    yield "scatter_add public", Case(*both(lambda x: x.scatter_add(0, WHERE, PUBLIC)), (X,), 0.0)
    yield "scatter", Case(*both(lambda x, y: x.scatter(0, INDEX[:, None], y)), (X, Y), 0.0)
    yield "scatter public", Case(*both(lambda x: x.scatter(0, INDEX[:, None], PUBLIC)), (X,), 0.0)
    yield "pad", Case(lambda x: x.pad((1, 2)), lambda x: F.pad(x, (1, 2)), (X,), 0.0)
    yield "pad value", Case(lambda x: x.pad((1, 2, 0, 1), value=-0.75), lambda x: F.pad(x, (1, 2, 0, 1), value=-0.75), (X,), 0.0)
    for name in ("cat", "stack"):
        join, plain = getattr(crypten, name), getattr(torch, name)
        for dim in (0, 1, -1):
            yield (
                f"{name} {dim}",
                Case(lambda x, y, j=join, d=dim: j([x, y], dim=d), lambda x, y, p=plain, d=dim: p([x, y], dim=d), (X, Y), 0.0),
            )
        yield f"torch.{name}", Case(*both(lambda x, y, p=plain: p([x, y])), (X, Y), 0.0)


def _then(x: Any, change: Callable[[Any], Any]) -> Any:
    change(x)
    return x


def comparisons() -> Iterator[tuple[str, Case]]:
    """Comparisons and what is made of them."""
    close = torch.cat([X[:2], X[2:].round()])
    other = torch.cat([X[:1], Y[1:2], X[2:].round()])
    edge = torch.tensor([2.0**29, -(2.0**29), 2.0**30 - 64, -(2.0**30) + 64, 0.0, UNIT, -UNIT])
    for name in ("gt", "ge", "lt", "le", "eq", "ne"):
        compare = lambda a, b, name=name: getattr(a, name)(b)  # noqa: E731
        plain = lambda a, b, name=name: getattr(a, name)(b).float()  # noqa: E731
        yield f"{name} ties", Case(compare, plain, (close, other), 0.0)
        yield f"{name} public", Case(lambda a, c=compare: c(a, other), lambda a, p=plain: p(a, other), (close,), 0.0)
        yield f"{name} edges", Case(compare, plain, (edge, edge.flip(0)), 0.0)
        yield f"{name} number", Case(lambda a, c=compare: c(a, 0), lambda a, p=plain: p(a, torch.tensor(0.0)), (edge,), 0.0)
    yield "max", Case(*both(lambda x: x.max()), (X,), 0.0)
    yield "max one", Case(*both(lambda x: x[:1, :1].max()), (X,), 0.0)
    yield "max 0-d", Case(*both(lambda x: x.max()), (NONE,), 0.0)
    yield "min", Case(*both(lambda x: x.min()), (X,), 0.0)
    yield "max large", Case(*both(lambda x: x.max()), (LARGE * 1024,), 0.0)
    for dim in (0, 1, -1, -2):
        yield f"max {dim}", Case(*both(lambda x, d=dim: x.max(d)[0]), (X,), 0.0)
        yield f"min {dim}", Case(*both(lambda x, d=dim: x.min(d)[0]), (X,), 0.0)
        yield f"max keep {dim}", Case(*both(lambda x, d=dim: x.max(d, keepdim=True)[0]), (X,), 0.0)
        yield f"argmax {dim}", Case(lambda x, d=dim: x.argmax(d, one_hot=False), lambda x, d=dim: x.argmax(d).float(), (X,), 0.0)
        yield f"argmin {dim}", Case(lambda x, d=dim: x.argmin(d, one_hot=False), lambda x, d=dim: x.argmin(d).float(), (X,), 0.0)
        yield (
            f"argmax one-hot {dim}",
            Case(lambda x, d=dim: x.argmax(d), lambda x, d=dim: _one_hot(x, d), (X,), 0.0),
        )
    yield "argmax", Case(lambda x: x.argmax(one_hot=False), lambda x: x.argmax().float(), (X,), 0.0)
    yield "max of many", Case(*both(lambda x: x.max(1)[0]), (grid(2, 40),), 0.0)
    yield "max of ties", Case(*both(lambda x: x.max(1)[0]), (grid(4, 6).round(),), 0.0)
    yield "where", Case(lambda x, y: crypten.where(x > y, x, y), lambda x, y: torch.where(x > y, x, y), (X, Y), 0.0)
    yield "where public", Case(lambda x, y: crypten.where(PUBLIC > 0, x, y), lambda x, y: torch.where(PUBLIC > 0, x, y), (X, Y), UNIT)
    yield "where method", Case(lambda x, y: x.where(x > y, y), lambda x, y: torch.where(x > y, x, y), (X, Y), 0.0)
    yield "where numbers", Case(lambda x: crypten.where(x > 0, 0.5, 0.25), lambda x: torch.where(x > 0, 0.5, 0.25), (X,), 0.0)
    yield "relu", Case(*both(lambda x: x.relu()), (X,), 0.0)
    yield "relu large", Case(*both(lambda x: x.relu()), (LARGE * 2048,), 0.0)
    yield "relu6", Case(lambda x: x.relu6(), F.relu6, (X * 4,), 0.0)
    yield "hardtanh", Case(lambda x: x.hardtanh(), F.hardtanh, (X,), 0.0)
    yield "hardtanh range", Case(lambda x: x.hardtanh(-0.5, 2.25), lambda x: F.hardtanh(x, -0.5, 2.25), (X,), 2 * UNIT)
    yield "abs", Case(*both(lambda x: x.abs()), (X,), 0.0)
    yield "sign", Case(lambda x: x.sign(), lambda x: torch.where(x < 0, -1.0, 1.0), (X,), 0.0)
    yield "norm 1", Case(*both(lambda x: x.norm(1)), (X,), 0.0)
    yield "norm inf", Case(*both(lambda x: x.norm(float("inf"))), (X,), 0.0)
    yield "norm inf dim", Case(*both(lambda x: x.norm(float("inf"), 1)), (X,), 0.0)


def _one_hot(x: Tensor, dim: int) -> Tensor:
    return torch.zeros_like(x).scatter(dim, x.argmax(dim, keepdim=True), 1.0)


def windows() -> Iterator[tuple[str, Case]]:
    """Convolutions and pools."""
    error = 27 * UNIT
    for name, options in {
        "": {},
        " padded": {"padding": 1},
        " strided": {"stride": 2},
        " dilated": {"dilation": 2, "padding": 2},
        " all": {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)},
    }.items():
        yield f"conv2d{name}", Case(lambda x, k, o=options: x.conv2d(k, **o), lambda x, k, o=options: F.conv2d(x, k, **o), (IMAGE, KERNEL), error)
        yield f"conv2d public{name}", Case(lambda x, o=options: x.conv2d(KERNEL, **o), lambda x, o=options: F.conv2d(x, KERNEL, **o), (IMAGE,), error)
        if name != " all":
            yield f"conv1d{name}", Case(lambda x, k, o=options: x.conv1d(k, **o), lambda x, k, o=options: F.conv1d(x, k, **o), (LINE, TAPS), error)
            yield (
                f"conv_transpose2d{name}",
                Case(
                    lambda x, k, o=options: x.conv_transpose2d(k, **o),
                    lambda x, k, o=options: F.conv_transpose2d(x, k, **o),
                    (IMAGE, KERNEL.transpose(0, 1)),
                    error,
                ),
            )
            yield (
                f"conv_transpose1d{name}",
                Case(
                    lambda x, k, o=options: x.conv_transpose1d(k, **o),
                    lambda x, k, o=options: F.conv_transpose1d(x, k, **o),
                    (LINE, TAPS.transpose(0, 1)),
                    error,
                ),
            )
    depth = grid(3, 1, 3, 3, seed=30, low=-1, high=1)
    yield "conv2d grouped", Case(lambda x, k: x.conv2d(k, groups=3), lambda x, k: F.conv2d(x, k, groups=3), (IMAGE, depth), error)
    low = IMAGE - 600
    for name, x in (("", IMAGE), (" negative", low), (" expanded", IMAGE[:1, :1].expand(2, 3, 8, 8))):
        for kind, options in {
            "": {},
            " padded": {"padding": 1},
            " strided": {"stride": 1},
            " strided padded": {"stride": 2, "padding": 1},
        }.items():
            yield (
                f"max_pool2d{kind}{name}",
                Case(lambda x, o=options: x.max_pool2d(3, **o), lambda x, o=options: F.max_pool2d(x, 3, **o), (x,), 0.0),
            )
            yield (
                f"avg_pool2d{kind}{name}",
                Case(lambda x, o=options: x.avg_pool2d(3, **o), lambda x, o=options: F.avg_pool2d(x, 3, **o), (x,), 2 * UNIT),
            )
    yield "max_pool2d pair", Case(lambda x: x.max_pool2d((2, 3)), lambda x: F.max_pool2d(x, (2, 3)), (IMAGE,), 0.0)
    yield "max_pool2d dilated", Case(lambda x: x.max_pool2d(2, dilation=2), lambda x: F.max_pool2d(x, 2, dilation=2), (IMAGE,), 0.0)
    yield "max_pool2d dilated 3", Case(lambda x: x.max_pool2d(3, dilation=2, stride=1, padding=1), lambda x: F.max_pool2d(x, 3, dilation=2, stride=1, padding=1), (IMAGE,), 0.0)
    yield "max_pool2d ceil", Case(lambda x: x.max_pool2d(3, ceil_mode=True), lambda x: F.max_pool2d(x, 3, ceil_mode=True), (IMAGE,), 0.0)
    yield "max_pool2d pads", Case(lambda x: x.max_pool2d(3, padding=(1, 0)), lambda x: F.max_pool2d(x, 3, padding=(1, 0)), (low,), 0.0)
    yield "avg_pool2d pair", Case(lambda x: x.avg_pool2d((2, 3), stride=(1, 2)), lambda x: F.avg_pool2d(x, (2, 3), stride=(1, 2)), (IMAGE,), 2 * UNIT)
    for size in ((1, 1), (2, 2), (3, 5), (4, 8), (8, 8)):
        yield f"adaptive_avg_pool2d {size}", Case(lambda x, s=size: x.adaptive_avg_pool2d(s), lambda x, s=size: F.adaptive_avg_pool2d(x, s), (IMAGE,), 4 * UNIT)
        yield f"adaptive_max_pool2d {size}", Case(lambda x, s=size: x.adaptive_max_pool2d(s), lambda x, s=size: F.adaptive_max_pool2d(x, s), (IMAGE,), 0.0)
    mean, var, weight, bias = grid(3), grid(3, low=0.5, high=2), grid(3), grid(3)
    yield (
        "batchnorm",
        Case(
            lambda x, w, b: x.batchnorm(w, b, mean, var, training=False),
            lambda x, w, b: F.batch_norm(x, mean, var, w, b),
            (IMAGE, weight, bias),
            2.0**-11,
        ),
    )
    yield (
        "batchnorm training",
        Case(
            lambda x, w, b: x.batchnorm(w, b, training=True),
            lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
            (IMAGE, weight, bias),
            0.05,
        ),
    )


def smooth() -> Iterator[tuple[str, Case]]:
    """Approximations; README's "Limits" names their ranges. Each bound is the method's own error, or twice what was
    measured on the range where none is known (CrypTen's logarithm: 8 Householder terms twice).
    """
    wide = torch.cat([grid(190, low=-8, high=8, seed=40), torch.tensor([-3000.0, -600, -513, -257, -40, 40, 255, 257, 700, 3000])])
    exponents = torch.cat([grid(100, low=-20, high=2), torch.tensor([-1e5, -3000.0, -600, -513, -511, -257])])
    # (1 + x / 2^8)^(2^8) is e^x (1 - x^2 / 2^9), to first order. x^2 e^x is 4 e^2 at most for x up to 2: 29.6 / 2^9.
    # Rounding: 2^8 times a relative half unit of the first factor and as much of the squarings, times e^2.
    limit = 29.6 / 2**9 * 1.1 + 4 * 2**8 * UNIT * math.e**2
    numbers, roots = grid(200, low=0.01, high=200), grid(200, low=0.1, high=150)
    for name, private, plain, x, bound in (
        ("exp", lambda x: x.exp(), torch.exp, exponents, limit),
        ("log", lambda x: x.log(), torch.log, numbers, 0.12),
        ("sqrt", lambda x: x.sqrt(), torch.sqrt, roots, 0.04),
        ("inv_sqrt", lambda x: x.inv_sqrt(), torch.rsqrt, roots, 0.04),
        ("reciprocal", lambda x: x.reciprocal(), torch.reciprocal, numbers, 0.12),
        ("reciprocal small", lambda x: x.reciprocal(), torch.reciprocal, numbers[numbers > 1], 2.0**-12),
        ("reciprocal negative", lambda x: x.reciprocal(), torch.reciprocal, -numbers[numbers > 1], 2.0**-12),
        ("division of 3", lambda x: 3 / x, lambda x: 3 / x, numbers[numbers > 1], 3 * 2.0**-12),
        # Newton's three steps from 3/4 leave (1/2)^8 at most; exp's error comes in with a slope of 1 at most, below 0.
        ("sigmoid", lambda x: x.sigmoid(), torch.sigmoid, wide, 2.0**-8 + 2.0**-8),
        ("tanh", lambda x: x.tanh(), torch.tanh, wide, 2 * (2.0**-8 + 2.0**-8)),
        ("erf", lambda x: x.erf(), torch.erf, wide, 2 * (2.0**-8 + 2.0**-8) + 4e-4),
        ("cos", lambda x: x.cos(), torch.cos, wide[:190], 0.08),
        ("sin", lambda x: x.sin(), torch.sin, wide[:190], 0.08),
        ("norm 2", lambda x: x.norm(), lambda x: x.norm(), X, 0.04),
        ("norm dim", lambda x: x.norm(2, 1), lambda x: x.norm(2, 1), X, 0.04),
        ("pow -1", lambda x: x.pow(-1), lambda x: x.pow(-1), POSITIVE, 2.0**-8),
        ("pow -2", lambda x: x.pow(-2), lambda x: x.pow(-2), POSITIVE[POSITIVE > 1], 2.0**-8),
        # e^(1.5 log x): a relative error of 1.5 times the logarithm's, and exp's own at 2, on values up to 8.
        ("pos_pow", lambda x: x.pos_pow(1.5), lambda x: x.pow(1.5), POSITIVE, 8 * (1.5 * 0.015 + 0.01)),
    ):
        yield name, Case(private, plain, (x,), bound)
    for length in (2, 10, 300, 1000):
        for spread in (0, 1, 1000):
            logits = grid(4, length, low=-spread, high=spread) if spread else torch.zeros(4, length)
            # exp errs by 4 e^-2 / 2^9 at most below 0, in the numerator and, weighted, in the sum: 1.1 / 2^9.
            yield f"softmax {length} {spread}", Case(*both(lambda x: x.softmax(1)), (logits,), 2 * 1.1 / 2**9 + 2.0**-9)
            yield f"log_softmax {length} {spread}", Case(*both(lambda x: x.log_softmax(1)), (logits,), 0.12)
    yield "private division", Case(*both(lambda a, b: a / b), (X, POSITIVE[:, :1] + 1), 4 * 2.0**-12 + UNIT)
    yield "softmax of one", Case(*both(lambda x: x.softmax(1)), (X[:, :1],), 0.0)
    yield "cosine_similarity", Case(lambda a, b: a.cosine_similarity(b), F.cosine_similarity, (X, Y), 0.04)


def cases() -> dict[str, Case]:
    """All of them by name."""
    found: dict[str, Case] = {}
    for group in (arithmetic, bits, shapes, comparisons, windows, smooth):
        for name, case in group():
            assert name not in found, name
            found[name] = case
    return found
