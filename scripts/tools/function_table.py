"""Costs of functions of one value as tables: bytes, rounds and the largest error of each.

Every function is looked up by the code of two parties, which share all numbers of the range in steps of 2^-11, for
instance 2^14 + 1 numbers for the range [-4, 4]. The errors that are asked for are 2^-9 and 2^-11.

    python -m scripts.tools.function_table
    python -m scripts.tools.function_table --only exp log --json rows.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitConfig, Rows
from hummingbird.errors import HummingbirdError
from hummingbird.progress import progress_line
from hummingbird.simulation.observe import find_rows
from scripts.program import add_json, columns, main_of, maybe, new_parser, write_rows


class Case(NamedTuple):
    """A function, and the range of its argument."""

    function: Callable[[Tensor], Tensor]
    least: float = -4.0
    most: float = 4.0


class Net(nn.Module):
    """A net that computes one function of its input, and nothing else."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


CASES: dict[str, Case] = {
    "exp": Case(torch.exp, -4, 1),
    "exp2": Case(torch.exp2, -4, 2),
    "expm1": Case(torch.expm1, -4, 1),
    "log": Case(torch.log, 0.25, 8),
    "log2": Case(torch.log2, 0.25, 8),
    "log10": Case(torch.log10, 0.25, 8),
    "log1p": Case(torch.log1p, -0.75, 7),
    "sqrt": Case(torch.sqrt, 0.25, 8),
    "rsqrt": Case(torch.rsqrt, 0.25, 8),
    "reciprocal": Case(torch.reciprocal, 0.25, 4),
    "sin": Case(torch.sin),
    "cos": Case(torch.cos),
    "tan": Case(torch.tan, -1.25, 1.25),
    "sinh": Case(torch.sinh, -2, 2),
    "cosh": Case(torch.cosh, -2, 2),
    "asin": Case(torch.asin, -0.875, 0.875),
    "acos": Case(torch.acos, -0.875, 0.875),
    "atan": Case(torch.atan),
    "asinh": Case(torch.asinh),
    "acosh": Case(torch.acosh, 1.25, 8),
    "atanh": Case(torch.atanh, -0.875, 0.875),
    "erf": Case(torch.erf),
    "erfc": Case(torch.erfc),
    "erfinv": Case(torch.erfinv, -0.875, 0.875),
    "logit": Case(torch.logit, 0.125, 0.875),
    "sinc": Case(torch.sinc),
    "lgamma": Case(torch.lgamma, 0.5, 6),
    "digamma": Case(torch.digamma, 0.5, 6),
    "sigmoid": Case(torch.sigmoid),
    "tanh": Case(torch.tanh),
    "silu": Case(F.silu),
    "gelu": Case(F.gelu),
    "gelu, tanh": Case(lambda x: F.gelu(x, approximate="tanh")),
    "softplus": Case(F.softplus),
    "softplus, beta 2": Case(lambda x: F.softplus(x, 2.0)),
    "mish": Case(F.mish),
    "logsigmoid": Case(F.logsigmoid),
    "softsign": Case(F.softsign),
    "tanhshrink": Case(F.tanhshrink),
    "elu": Case(F.elu),
    "celu, alpha 2": Case(lambda x: F.celu(x, 2.0)),
    "selu": Case(F.selu),
    "pow 1.5": Case(lambda x: x**1.5, 0.125, 4),
    "pow -1": Case(lambda x: x**-1.0, 0.25, 4),
    "pow -2": Case(lambda x: x**-2.0, 0.5, 4),
    "pow 1/3": Case(lambda x: x ** (1 / 3), 0.125, 4),
    "2 to the x": Case(lambda x: 2**x, -4, 2),
    "1 / x, negative": Case(lambda x: 1 / x, -4, -0.25),
    "x / (1 + exp(x))": Case(lambda x: x / (1 + torch.exp(x))),
    "quick GELU": Case(lambda x: x * torch.sigmoid(1.702 * x)),
    "GELU, written out": Case(_gelu_tanh),
    "mish, written out": Case(lambda x: x * torch.tanh(F.softplus(x))),
    "sigmoid, written out": Case(lambda x: 1 / (1 + torch.exp(-x))),
    "tanh of GELU": Case(lambda x: torch.tanh(F.gelu(x))),
    "log(x * x + 1/2)": Case(lambda x: torch.log(x * x + 0.5)),
    "exp(-x * x)": Case(lambda x: torch.exp(-x * x)),
    "sin(x) / (x * x + 1)": Case(lambda x: torch.sin(x) / (x * x + 1)),
    "sqrt(x * x + 1)": Case(lambda x: torch.sqrt(x * x + 1)),
    "squared sine": Case(lambda x: torch.sin(x) ** 2),
    "cosine, scaled": Case(lambda x: 0.5 * (1 + torch.cos(0.75 * x))),
}
ERRORS = 2.0**-9, 2.0**-11


def measured(case: Case, error: float) -> dict[str, Any]:
    """Look up every number of a case's range; return the bytes for a value, rounds and the largest error.

    error: the error that is asked for.
    """
    net = Net(case.function).eval()
    x = torch.arange(case.least, case.most + 2.0**-12, 2.0**-11).view(-1, 1)
    (name,) = find_rows(net, x, headroom=0.0, error=error)
    bits = BitConfig().with_rows({name: Rows(case.least, case.most, error=error)})
    costs = hummingbird.estimate(net, (1, 1), bits)
    looked = costs.layers[next(i for i, layer in enumerate(costs.layers) if layer.name == name)].cost
    twin = hummingbird.simulate(net, bits, mode="exact", seed=0)
    with torch.no_grad():
        wrong = float((twin(x).double() - case.function(x.double())).abs().max())
    return {
        "asked_error": error,
        "largest_error": wrong,
        "offline_bytes": looked.offline_bits / 8,
        "rounds": looked.rounds,
        "inputs": len(x),
    }


SHOWN = (
    ("function", "{function}"),
    ("range", "[{least:g}, {most:g}]"),
    ("asked", "{asked_error:.1e}"),
    ("largest error", maybe("largest_error", ".1e")),
    ("bytes", maybe("offline_bytes", ",.0f")),
    ("rounds", maybe("rounds", ".0f")),
)


def parser() -> argparse.ArgumentParser:
    p = new_parser(__doc__)
    p.add_argument("--only", nargs="+", choices=CASES, metavar="NAME", help="these functions alone")
    add_json(p)
    return p


def run(args: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    for name in progress_line(args.only or list(CASES), unit="function"):
        case = CASES[name]
        for error in ERRORS:
            row = {"function": name, "least": case.least, "most": case.most, "asked_error": error}
            try:
                rows.append(row | measured(case, error))
            except HummingbirdError as refused:
                rows.append(row | {"refused": refused.what})
        write_rows(args.json, rows)
    print(columns(rows, SHOWN))
    for row in rows:
        if "refused" in row:
            print(f"{row['function']} is refused: {row['refused']}")


main = main_of(parser, run)
if __name__ == "__main__":
    sys.exit(main())
