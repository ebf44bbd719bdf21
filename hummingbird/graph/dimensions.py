"""The number of dimensions of every step's value, from steps alone: no shape is known before the net has an input.

A rank is a number, INPUT where it is that of the net's input and nothing else says it, or None where it is not known.
Every operation has a rule here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hummingbird.graph.steps import Step, refs

INPUT = "input"
Rank = int | str | None
Rule = Callable[[dict[str, Any], list[Rank]], Rank]  # of attributes, and ranks of the values read, not of sizes

_SIZES = frozenset({"size", "int"})


def ranks(steps: Sequence[Step]) -> list[Rank]:
    """The rank of every step's value; of what makes several tensors (chunk, split, unbind), of each of them."""
    found: list[Rank] = []
    for step in steps:
        given = [found[ref.index] for ref in refs(step.inputs) if steps[ref.index].op not in _SIZES]
        if step.op in ("reshape", "expand"):
            found.append(_as_listed(steps, step))
        elif step.op == "getitem" and steps[step.inputs[0].index].op in ("chunk", "split", "unbind"):
            found.append(given[0])
        else:
            found.append(RULES[step.op](step.attrs, given))
    return found


def _as_listed(steps: Sequence[Step], step: Step) -> Rank:
    """As many dimensions as sizes are given, if each is one number."""
    sizes = [steps[ref.index] for ref in refs(step.inputs[1:])]
    shapes = [s for s in sizes if s.attrs.get("dim", 0) is None or isinstance(s.attrs.get("index"), slice)]
    return None if shapes else len(step.inputs) - 1


def _input(a: dict[str, Any], given: list[Rank]) -> Rank:
    return len(a["shape"]) if "shape" in a else a.get("rank") or INPUT


def _same(a: dict[str, Any], given: list[Rank]) -> Rank:
    """The largest of all values read, a constant too, by broadcasting; rows stay rows with constants that are rows."""
    constant = [a["value"].dim()] if isinstance(a.get("value"), Tensor) else []
    known = [rank for rank in given if isinstance(rank, int)]
    if len(known) == len(given):
        return max(known + constant)
    return INPUT if set(given) == {INPUT} and max(constant, default=0) <= 2 else None


def _more(count: Callable[[dict[str, Any]], int]) -> Rule:
    """So many dimensions more than the values read, where their number is known."""

    def rule(a: dict[str, Any], given: list[Rank]) -> Rank:
        known = _same({}, given)
        return known + count(a) if isinstance(known, int) else None

    return rule


def _reduced(a: dict[str, Any]) -> int:
    dims = a["dims"] if "dims" in a else (a["dim"],)
    return 0 if a["keepdim"] else -len(dims)


def _sum(a: dict[str, Any], given: list[Rank]) -> Rank:
    return 0 if a["dims"] is None else _more(_reduced)(a, given)


def _flat(a: dict[str, Any], given: list[Rank]) -> Rank:
    rank = given[0]
    if isinstance(rank, int) and rank:
        return rank - a["end"] % rank + a["start"] % rank
    return 2 if (a["start"], a["end"]) == (1, -1) else None


def _indexed(a: dict[str, Any]) -> int:
    parts = a["index"] if isinstance(a["index"], tuple) else (a["index"],)
    return sum(part is None for part in parts) - sum(type(part) is int for part in parts)


def _matmul(a: dict[str, Any], given: list[Rank]) -> Rank:
    known = [rank for rank in given if isinstance(rank, int) and rank >= 2]
    return max(known) if len(known) == len(given) else None


_ELEMENTWISE = """linear affine batch_norm relu leaky_relu prelu hardtanh sigmoid hardsigmoid tanh silu hardswish gelu
    softmax log_softmax neg square abs add sub mul maximum minimum greater cat pad norm scale_last elementwise output"""
# Dimensions stay, and there must be some of them: an input of unknown rank cannot be taken for rows.
_STAYS = """edge_pad flip roll resize pixel_shuffle pixel_unshuffle channel_shuffle root_scale causal transpose chunk
    split"""
RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _same),
    **dict.fromkeys(_STAYS.split(), _more(lambda a: 0)),
    **dict.fromkeys(("conv", "conv_transpose", "max_pool", "avg_pool"), lambda a, given: len(a["stride"]) + 2),
    **dict.fromkeys(("adaptive_avg_pool", "adaptive_max_pool"), lambda a, given: len(a["output_size"]) + 2),
    **dict.fromkeys(("mean", "sum"), _sum),
    **dict.fromkeys(("squeeze", "size", "int", "custom", "reshape", "expand", "public_call"), lambda a, given: None),
    "input": _input,
    "argmax": _more(_reduced),
    "flatten": _flat,
    "permute": lambda a, given: len(a["dims"]),
    "unsqueeze": _more(lambda a: 1),
    "stack": _more(lambda a: 1),
    "unbind": _more(lambda a: -1),
    "unflatten": _more(lambda a: len(a["sizes"]) - 1),
    "getitem": _more(_indexed),
    "matmul": _matmul,
    "einsum": lambda a, given: len(a["equation"].partition("->")[2]),
    "constant": lambda a, given: a["value"].dim() if isinstance(a["value"], Tensor) else 0,
    "pack": lambda a, given: 2,
    # Of public values; the last two read the net's input beside them, for its type.
    "public": lambda a, given: len(a["shape"]),
    "public_constant": lambda a, given: len(a["shape"]),
    "share_public": lambda a, given: given[0],
    "embedding": lambda a, given: given[0] + 1 if isinstance(given[0], int) else None,
}
