"""More of tests/support/crypten_cases.py: comparisons, windows of images, and approximations."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.crypten.adapter import crypten
from tests.support.crypten_cases import (
    IMAGE,
    KERNEL,
    LARGE,
    LINE,
    NONE,
    POSITIVE,
    PUBLIC,
    TAPS,
    UNIT,
    Case,
    X,
    Y,
    arithmetic,
    bits,
    both,
    grid,
    shapes,
)


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
        yield (
            f"{name} number",
            Case(lambda a, c=compare: c(a, 0), lambda a, p=plain: p(a, torch.tensor(0.0)), (edge,), 0.0),
        )
    yield "max", Case(*both(lambda x: x.max()), (X,), 0.0)
    yield "max one", Case(*both(lambda x: x[:1, :1].max()), (X,), 0.0)
    yield "max 0-d", Case(*both(lambda x: x.max()), (NONE,), 0.0)
    yield "min", Case(*both(lambda x: x.min()), (X,), 0.0)
    yield "max large", Case(*both(lambda x: x.max()), (LARGE * 1024,), 0.0)
    for dim in (0, 1, -1, -2):
        yield f"max {dim}", Case(*both(lambda x, d=dim: x.max(d)[0]), (X,), 0.0)
        yield f"min {dim}", Case(*both(lambda x, d=dim: x.min(d)[0]), (X,), 0.0)
        yield f"max keep {dim}", Case(*both(lambda x, d=dim: x.max(d, keepdim=True)[0]), (X,), 0.0)
        yield (
            f"argmax {dim}",
            Case(lambda x, d=dim: x.argmax(d, one_hot=False), lambda x, d=dim: x.argmax(d).float(), (X,), 0.0),
        )
        yield (
            f"argmin {dim}",
            Case(lambda x, d=dim: x.argmin(d, one_hot=False), lambda x, d=dim: x.argmin(d).float(), (X,), 0.0),
        )
        yield (
            f"argmax one-hot {dim}",
            Case(lambda x, d=dim: x.argmax(d), lambda x, d=dim: _one_hot(x, d), (X,), 0.0),
        )
    yield "argmax", Case(lambda x: x.argmax(one_hot=False), lambda x: x.argmax().float(), (X,), 0.0)
    yield "max of many", Case(*both(lambda x: x.max(1)[0]), (grid(2, 40),), 0.0)
    yield "max of ties", Case(*both(lambda x: x.max(1)[0]), (grid(4, 6).round(),), 0.0)
    yield "where", Case(lambda x, y: crypten.where(x > y, x, y), lambda x, y: torch.where(x > y, x, y), (X, Y), 0.0)
    yield (
        "where public",
        Case(lambda x, y: crypten.where(PUBLIC > 0, x, y), lambda x, y: torch.where(PUBLIC > 0, x, y), (X, Y), UNIT),
    )
    yield "where method", Case(lambda x, y: x.where(x > y, y), lambda x, y: torch.where(x > y, x, y), (X, Y), 0.0)
    yield (
        "where numbers",
        Case(lambda x: crypten.where(x > 0, 0.5, 0.25), lambda x: torch.where(x > 0, 0.5, 0.25), (X,), 0.0),
    )
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
        yield (
            f"conv2d{name}",
            Case(
                lambda x, k, o=options: x.conv2d(k, **o),
                lambda x, k, o=options: F.conv2d(x, k, **o),
                (IMAGE, KERNEL),
                error,
            ),
        )
        yield (
            f"conv2d public{name}",
            Case(
                lambda x, o=options: x.conv2d(KERNEL, **o),
                lambda x, o=options: F.conv2d(x, KERNEL, **o),
                (IMAGE,),
                error,
            ),
        )
        if name != " all":
            yield (
                f"conv1d{name}",
                Case(
                    lambda x, k, o=options: x.conv1d(k, **o),
                    lambda x, k, o=options: F.conv1d(x, k, **o),
                    (LINE, TAPS),
                    error,
                ),
            )
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
    yield (
        "conv2d grouped",
        Case(lambda x, k: x.conv2d(k, groups=3), lambda x, k: F.conv2d(x, k, groups=3), (IMAGE, depth), error),
    )
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
                Case(
                    lambda x, o=options: x.max_pool2d(3, **o), lambda x, o=options: F.max_pool2d(x, 3, **o), (x,), 0.0
                ),
            )
            yield (
                f"avg_pool2d{kind}{name}",
                Case(
                    lambda x, o=options: x.avg_pool2d(3, **o),
                    lambda x, o=options: F.avg_pool2d(x, 3, **o),
                    (x,),
                    2 * UNIT,
                ),
            )
    yield "max_pool2d pair", Case(lambda x: x.max_pool2d((2, 3)), lambda x: F.max_pool2d(x, (2, 3)), (IMAGE,), 0.0)
    yield (
        "max_pool2d dilated",
        Case(lambda x: x.max_pool2d(2, dilation=2), lambda x: F.max_pool2d(x, 2, dilation=2), (IMAGE,), 0.0),
    )
    yield (
        "max_pool2d dilated 3",
        Case(
            lambda x: x.max_pool2d(3, dilation=2, stride=1, padding=1),
            lambda x: F.max_pool2d(x, 3, dilation=2, stride=1, padding=1),
            (IMAGE,),
            0.0,
        ),
    )
    yield (
        "max_pool2d ceil",
        Case(lambda x: x.max_pool2d(3, ceil_mode=True), lambda x: F.max_pool2d(x, 3, ceil_mode=True), (IMAGE,), 0.0),
    )
    yield (
        "max_pool2d pads",
        Case(lambda x: x.max_pool2d(3, padding=(1, 0)), lambda x: F.max_pool2d(x, 3, padding=(1, 0)), (low,), 0.0),
    )
    yield (
        "avg_pool2d pair",
        Case(
            lambda x: x.avg_pool2d((2, 3), stride=(1, 2)),
            lambda x: F.avg_pool2d(x, (2, 3), stride=(1, 2)),
            (IMAGE,),
            2 * UNIT,
        ),
    )
    for size in ((1, 1), (2, 2), (3, 5), (4, 8), (8, 8)):
        yield (
            f"adaptive_avg_pool2d {size}",
            Case(
                lambda x, s=size: x.adaptive_avg_pool2d(s),
                lambda x, s=size: F.adaptive_avg_pool2d(x, s),
                (IMAGE,),
                4 * UNIT,
            ),
        )
        yield (
            f"adaptive_max_pool2d {size}",
            Case(
                lambda x, s=size: x.adaptive_max_pool2d(s), lambda x, s=size: F.adaptive_max_pool2d(x, s), (IMAGE,), 0.0
            ),
        )
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
    """Approximations; docs/limits.md names their ranges. Each bound is the method's own error, or twice what was
    measured on the range where none is known (CrypTen's logarithm: 8 Householder terms twice).
    """
    wide = torch.cat(
        [grid(190, low=-8, high=8, seed=40), torch.tensor([-3000.0, -600, -513, -257, -40, 40, 255, 257, 700, 3000])]
    )
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
    """Every case of both files, by name."""
    found: dict[str, Case] = {}
    for group in (arithmetic, bits, shapes, comparisons, windows, smooth):
        for name, case in group():
            assert name not in found, name
            found[name] = case
    return found
