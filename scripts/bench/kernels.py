"""Every kernel alone, on a GPU: equal to its definition, and its share of what the card can do.

    python -m scripts.bench.kernels --device cuda --json kernels.json
    python -m scripts.bench.kernels --device cuda --check --triton
    python -m scripts.bench.kernels --device cuda --tune lift mask_words --json sizes.json
    python -m scripts.bench.kernels --elements 67

A share is of the roof that is nearer: bytes read and written at least, against a copy on the device, or operations of
one type, against a plain matrix product of that type, or for 32-bit integers against 64 a cycle in each multiprocessor.
All kernels are compared with the plain torch version on the CPU, at a smaller size than is timed. On a CPU the kernels
in Triton run in its interpreter: that shows that they are right, and nothing about speed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hummingbird.commands.output import check_outputs
from hummingbird.commands.program import device_name, machine
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.kernels.cpu import library
from hummingbird.kernels.shares.packing import Words
from hummingbird.kernels.streams import Drawn
from hummingbird.progress import progress_line
from hummingbird.table import text_table
from scripts.bench.kernel_cases import TUNED, Case, cases, interpret
from scripts.program import add_json, main_of, new_parser, write_rows

CHECKED = 1003  # elements that are compared before larger ones are timed
BUDGET = 0.3  # seconds for the runs of a kernel
_LANES = 64  # 32-bit integer operations a cycle in a multiprocessor (compute capability 8.0 and 9.0)


@contextmanager
def definitions() -> Iterator[None]:
    """Within this block the CPU computes by the plain torch versions."""
    kept, library.available = library.available, lambda: False  # type: ignore[assignment]
    try:
        yield
    finally:
        library.available = kept  # type: ignore[assignment]


def on(device: torch.device, value: Any, keys: dict[Tensor, Tensor] | None = None) -> Any:
    """A kernel's argument or result, its tensors moved; of a key, by which parts of one stream are known, once."""
    keys = {} if keys is None else keys
    if isinstance(value, Drawn):
        if value.key not in keys:
            keys[value.key] = value.key.to(device)
        return replace(value, key=keys[value.key])
    if isinstance(value, Words):
        return value.to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(on(device, part, keys) for part in value)
    return value


def equal(one: Any, other: Any) -> bool:
    """Whether two results are the same, tensor by tensor."""
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one.cpu(), other.cpu())


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Median time of a call, after one to warm up; several calls a sample where one is short beside a launch."""

    def sample(calls: int) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - started) / calls

    sample(1)
    once = sample(1)
    calls = max(1, min(100, int(BUDGET / 5 / max(once, 1e-7))))
    return statistics.median(sample(calls) for _ in range(5)) if once < BUDGET / 5 else once


def product_rate(size: int, dtype: torch.dtype, device: torch.device) -> float | None:
    """Multiply-adds a second of torch's own square product; None where torch has none of this type."""
    a, b = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    multiply = torch._int_mm if dtype == torch.int8 else torch.mm
    try:
        return float(size) ** 3 / seconds(lambda: multiply(a, b), device)
    except RuntimeError:
        return None


def integer_rate(device: torch.device) -> float | None:
    """32-bit integer operations a second at the card's highest clock; None where nvidia-smi does not tell it."""
    if device.type != "cuda":
        return None
    words = ["nvidia-smi", "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=30).stdout.split()
        return 1e6 * float(said[0]) * _LANES * torch.cuda.get_device_properties(device).multi_processor_count
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return None


def roofs(device: torch.device, small: bool) -> dict[str, float]:
    """Bytes, and operations of each type, a second."""
    source = torch.ones(1 << (16 if small else 30), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    found: dict[str, float | None] = {"bytes": 2 * source.numel() / seconds(lambda: target.copy_(source), device)}
    found["float64"] = product_rate(64 if small else 4096, torch.float64, device)
    found["int8"] = product_rate(64 if small else 8192, torch.int8, device)
    found["int32"] = integer_rate(device)
    return {name: rate for name, rate in found.items() if rate is not None}


def check(case: Case, device: torch.device) -> dict[str, Any]:
    """One row; HummingbirdError for a result that is not the definition's."""
    with definitions():
        wanted = case.definition(*case.arguments)
    if not equal(case.run(*on(device, case.arguments)), wanted):
        raise HummingbirdError("a kernel's result is not that of its definition", where=case.name)
    return {"kernel": case.name, "by": "triton" if case.triton else "torch", "equal": True}


def measure(case: Case, device: torch.device, roof: dict[str, float]) -> dict[str, Any]:
    """Time, rates, and the share of the nearer roof."""
    arguments = on(device, case.arguments)
    took = seconds(lambda: case.run(*arguments), device)
    rates = {"bytes": case.octets / took, case.unit: case.operations / took}
    shares = {name: rate / roof[name] for name, rate in rates.items() if name in roof}
    limit = max(shares, key=lambda name: shares[name])
    return {
        "elements": case.elements,
        "microseconds": 1e6 * took,
        "gigabytes_per_second": rates["bytes"] / 1e9,
        "operations": case.unit,
        "g_operations_per_second": rates[case.unit] / 1e9,
        "limit": limit,
        "share_of_roof_percent": 100 * shares[limit],
    }


def tuned(names: list[str], found: list[Case], device: torch.device) -> Iterator[dict[str, Any]]:
    """Search the sizes of kernels' tiles and keep them for this card: a row for each, as soon as it is found."""
    from hummingbird.kernels.gpu import sizes

    of = {case.name: case for case in found}
    for name in names:
        case = of[TUNED[name]]
        run = partial(case.run, *on(device, case.arguments))
        best = sizes.tune({name: run}, lambda call: seconds(call, device))
        if device.type == "cuda":
            sizes.keep(device_name(str(device)), best)
        yield {"kernel": name, "sizes": best[name]}


def run(args: argparse.Namespace) -> None:
    """Compare all kernels, measure them, print the table, write the rows."""
    if args.elements < 1:
        raise InputError("at least one", where="--elements")
    name, device = device_name(args.device), torch.device(args.device)
    check_outputs(args)
    if device.type == "cpu":
        interpret()

    if args.tune:
        rows = []
        for row in tuned(args.tune, list(cases(args.elements, device)), device):
            print(f"{row['kernel']}: {row['sizes']}", flush=True)
            rows.append(row)
            _write(args, rows, name)  # a search that is stopped leaves what it has found
        return

    def chosen(elements: int) -> Iterator[Case]:
        found = [case for case in cases(elements, device) if case.triton or not args.triton]
        return iter(progress_line(found, unit="kernel"))

    rows = [check(case, device) for case in chosen(args.elements if args.check else min(args.elements, CHECKED))]
    if args.check:
        print(f"{len(rows)} kernels on {name}: each equal to its definition")
    else:
        roof = roofs(device, small=device.type == "cpu")
        rows = [row | measure(case, device, roof) for row, case in zip(rows, chosen(args.elements), strict=True)]
        head = ("kernel", "by", "elements", "us", "GB/s", "operations", "G/s", "limit", "share %")
        keys = ("elements", "microseconds", "gigabytes_per_second", "operations", "g_operations_per_second")
        cells = [[_text(row[key]) for key in ("kernel", "by", *keys, "limit", "share_of_roof_percent")] for row in rows]
        print(text_table(head, cells, left=2))
        print("\nroofs: " + ", ".join(f"{rate / 1e9:,.0f} G {unit}/s" for unit, rate in roof.items()))
        rows += [{"roof": unit, "g_per_second": rate / 1e9} for unit, rate in roof.items()]
    _write(args, rows, name)


def _write(args: argparse.Namespace, rows: list[dict[str, Any]], name: str) -> None:
    write_rows(args.json, [row | {"device": name, **machine()} for row in rows])


def _text(value: Any) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = new_parser(__doc__)
    p.add_argument("--device", default="cpu", help="cuda, or cpu for Triton's interpreter (default)")
    p.add_argument("--elements", type=int, default=1 << 24, help="ring elements of each operand (default: %(default)s)")
    p.add_argument("--check", action="store_true", help="compare only, without times")
    p.add_argument("--triton", action="store_true", help="only the kernels in Triton")
    text = "search the sizes of these kernels' tiles instead, and keep them for this card: minutes"
    p.add_argument("--tune", nargs="+", choices=tuple(TUNED), metavar="KERNEL", help=f"{text}; of {', '.join(TUNED)}")
    add_json(p)
    return p


main = main_of(parser, run)


if __name__ == "__main__":
    sys.exit(main())
