"""Checks of a caller's tensors, and their ring elements, before anything is shared or sent."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.errors import InputError

MOST = 2.0**20  # the magnitude below which private inference is right (docs/limits.md)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def encoded(x: Any, where: str, limit: float | None = None) -> Tensor:
    """Return a real tensor as ring elements, round(x * 2^16), int64, of the same shape.

    where: the tensor's name in errors. limit: the largest |x| allowed, up to 2^30; None: 2^20, the limit that holds in
    any net. Raises InputError for anything but a real tensor within the limit.
    """
    if not isinstance(x, Tensor):
        hint = "torch.as_tensor(x, dtype=torch.float32)"
        raise InputError(f"expected a tensor, got {type(x).__name__}", where=where, hint=hint)
    if x.layout != torch.strided or x.is_nested or x.is_quantized:
        kind = "a nested" if x.is_nested else "a quantized" if x.is_quantized else f"a {x.layout}"
        raise InputError(f"expected a dense tensor, got {kind} one", where=where, hint="x.to_dense(), x.dequantize()")
    if x.is_meta:
        raise InputError("expected a tensor with values, got one on the meta device", where=where, hint="give the data")
    if x.dtype not in _FLOATS:
        what = f"expected a floating-point tensor, got {x.dtype}"
        raise InputError(what, where=where, hint="call .float() first")
    code = ring.encode(x, where=where, limit=limit)
    if limit is None and x.numel() and float(x.detach().abs().max()) > MOST:
        what = "expected values below 2^20 in magnitude, got a larger one"
        hint = "divide the column by a power of two, and multiply its weights by it"
        raise InputError(what, where=where, hint=hint)
    return code


def numbered(x: Any, where: str, rows: int) -> Tensor:
    """Return row numbers as int64 on the CPU, after a check that all of them are in [0, rows).

    x: an integer tensor of row numbers. rows: how many rows the table has. where: the tensor's name in errors. Raises
    InputError for anything else. The error names no row number: its text may end up in a log.
    """
    if not isinstance(x, Tensor) or x.dtype not in (torch.int32, torch.int64) or x.layout != torch.strided:
        got = f"{x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"expected a dense tensor of row numbers, got {got}", where=where, hint="int64, or int32")
    places = x.detach().cpu().to(torch.int64)
    if places.numel() and not (int(places.min()) >= 0 and int(places.max()) < rows):
        hint = f"this table's rows are 0 to {rows - 1}"
        raise InputError("a row number is outside of the table", where=where, hint=hint)
    return places


def check_limit(limit: Any, where: str) -> None:
    """Raise InputError unless `limit`, the largest |x| that an input may have, is None or a positive number.

    where: the limit's name in the error.
    """
    number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
    if limit is not None and not (number and math.isfinite(limit) and limit > 0):
        hint = "a positive number, such as the net's input_range, or None"
        raise InputError(f"limit={limit!r}", where=where, hint=hint)
