"""Speed of the linear layers on shares: every distinct convolution and linear shape of a net, one thread.

    python -m scripts.bench.linear --model resnet18 --batch 8 64 --json linear.json

On a CPU each shape is run in turns as a private net runs it (`hummingbird.ring`), exact in the bits that are read
(--bits, with weights of 19), exact mod 2^64, as for private weights, and as torch runs it on int64 by itself. With
--device cuda the ways of kernels/gpu/products.py take turns that are exact for the shape. A multiply-add is counted for
every weight that an output element reads, those that fall on padding included.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from hummingbird import graph, ring
from hummingbird.commands.output import check_outputs
from hummingbird.commands.program import machine
from hummingbird.errors import EnvironmentProblem
from hummingbird.kernels import Factor, devices
from hummingbird.kernels.cpu import library
from hummingbird.progress import progress_line
from hummingbird.table import text_table
from models import MODELS, get_model
from scripts.program import add_json, main_of, new_parser, write_rows

TORCHVISION = ("mobilenet_v2", "resnet18_imagenet", "resnet50_imagenet")  # 224 x 224


def build(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """A net with fresh weights, and the shape of one image."""
    if name in MODELS:
        return get_model(name, 10).eval(), MODELS[name].input_shape
    return torchvision.models.get_model(name.removesuffix("_imagenet")).eval(), (3, 224, 224)


def products(name: str, batch: int) -> Counter[str]:
    """The distinct products of a net as JSON texts, with how often each occurs."""
    net, image = build(name)
    steps = graph.trace(net)
    values = graph.run_all([_bare(step) for step in steps], torch.empty(batch, *image, device="meta"))
    found: Counter[str] = Counter()
    for step in steps:
        if step.op not in ("conv", "linear"):
            continue
        a = step.attrs
        options = {key: a[key] for key in ("stride", "padding", "dilation", "groups")} if step.op == "conv" else {}
        shapes = {"x": list(values[step.inputs[0].index].shape), "weight": list(a["weight"].shape)}
        found[json.dumps({"op": step.op, **shapes, "options": options})] += 1
    return found


def _bare(step: graph.Step) -> graph.Step:
    attrs = {key: value.to("meta") if isinstance(value, Tensor) else value for key, value in step.attrs.items()}
    return graph.Step(step.name, step.op, step.inputs, attrs)


Run = Callable[[], Tensor]
_MARK = "64 bits"  # the general product, which the others are checked against


def seconds(runs: dict[str, Run], budget: float, device: torch.device) -> dict[str, float]:
    """Median time of a call of each, in turns, after a first one: 3 to 100 calls, for about the budget each.

    Processor time on a CPU, where all runs on this thread: other programs count as little as possible.
    """
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in runs}
    started = time.perf_counter()
    while not (rounds := len(next(iter(times.values())))) or (
        rounds < 4 or time.perf_counter() - started < budget * len(runs) and rounds < 101
    ):
        for name, run in runs.items():
            before = clock()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times[name].append(clock() - before)
    return {name: statistics.median(of[1:]) for name, of in times.items()}


def contestants(product: dict[str, Any], bits: int, device: torch.device, with_torch: bool) -> dict[str, Run]:
    """The ways to one product, by name."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-(2**63), 2**63 - 1, product["x"], generator=generator).to(device)
    weight = torch.randint(-(2**18), 2**18, product["weight"], generator=generator).to(device)
    options, conv = product["options"], product["op"] == "conv"
    op = f"conv{x.dim() - 2}d" if conv else "matmul"
    held = weight if conv else weight.t().contiguous()  # as mpc/layers/linear.py holds it
    factor = Factor(ring.arranged(op, held, options.get("groups", 1)))
    runs: dict[str, Run] = {_MARK: lambda: ring.bilinear(op, x, held, **options)}
    read = lambda: ring.bilinear(op, x, factor, bits, **options)  # noqa: E731
    if device.type == "cuda":
        return runs | _by_every_way(read, bits, factor.bits, math.prod(product["weight"][1:]))
    runs[f"{bits} bits"] = read
    if with_torch:
        plain = getattr(torch.nn.functional, op) if conv else None
        runs["torch"] = lambda: plain(x, weight, None, **options) if plain else torch.matmul(x, held)
    return runs


def _by_every_way(run: Run, bits: int, weight_bits: int, terms: int) -> dict[str, Run]:
    """A product on a GPU by each of its ways that is exact."""
    from hummingbird.kernels.gpu import products

    def forced(name: str) -> Tensor:
        chosen, products.way = products.way, lambda *_: name
        try:
            return run()
        finally:
            products.way = chosen

    exact = {
        "digits": products.digits_exact(bits, weight_bits, terms),
        "limbs": products.limb_count(bits, weight_bits, terms) > 0,
    }
    return {name: functools.partial(forced, name) for name in products.WAYS if exact.get(name, True)}


def measure(
    product: dict[str, Any], bits: int, budget: float, device: torch.device, with_torch: bool
) -> dict[str, Any]:
    """One row: shapes, multiply-adds, and their number per second in every way."""
    runs = contestants(product, bits, device, with_torch)
    expected = runs[_MARK]()
    for name, run in runs.items():
        read = 64 if name == "torch" else bits
        if ((run() ^ expected) << (64 - read)).any():
            raise SystemExit(f"error: a wrong product for {product}: {name}")
    multiply_adds = expected.numel() * math.prod(product["weight"][1:])
    options = product["options"]
    row: dict[str, Any] = {
        "op": product["op"],
        "input": "x".join(map(str, product["x"])),
        "weight": "x".join(map(str, product["weight"])),
        "stride": options.get("stride", [1])[0],
        "groups": options.get("groups", 1),
        "bits": bits,
        "device": "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device),
        "million_multiply_adds": multiply_adds / 1e6,
    }
    for name, taken in seconds(runs, budget, device).items():
        key = name.replace(" ", "_")
        row[f"{key}_milliseconds"] = taken * 1e3
        row[f"{key}_g_multiply_adds_per_second"] = multiply_adds / 1e9 / taken
    return row


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = new_parser(__doc__)
    p.add_argument("--model", nargs="+", default=["resnet18"], choices=[*sorted(MODELS), *TORCHVISION])
    p.add_argument("--batch", nargs="+", type=int, default=[8, 64], help="images at once (default 8 64)")
    p.add_argument("--bits", type=int, default=40, help="low bits that are read (default 40: before a ReLU of [20:12))")
    p.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    p.add_argument("--isa", choices=library.ISAS, help="instructions of a CPU (default: the best that it has)")
    p.add_argument("--budget", type=float, default=0.2, help="seconds for a shape, each way (default 0.2)")
    p.add_argument("--no-torch", action="store_true", help="leave torch's own int64 products out")
    add_json(p)
    return p


def run(args: argparse.Namespace) -> None:
    """Measure, print the table, write the rows."""
    check_outputs(args)
    if args.isa and not (library.available() and library.set_isa(args.isa)):
        raise EnvironmentProblem("this processor, or this installation, lacks it", where=f"--isa {args.isa}")
    torch.set_num_threads(1)
    devices.keep_freed_memory()  # as in a session
    runs = [
        (name, batch, json.loads(text), count)
        for name in args.model
        for batch in args.batch
        for text, count in products(name, batch).items()
    ]
    rows = [
        {
            "model": name,
            "batch": batch,
            "layers": count,
            **measure(product, args.bits, args.budget, torch.device(args.device), not args.no_torch),
        }
        for name, batch, product, count in progress_line(runs, unit="shape")
    ]
    ways = [key.removesuffix("_milliseconds") for key in rows[0] if key.endswith("_milliseconds")]
    head = ("model", "op", "input", "weight", "stride", "groups", "layers", "M mul-adds")
    cells = [
        (
            *(r[key] for key in ("model", "op", "input", "weight")),
            *(f"{r[key]}" for key in ("stride", "groups", "layers")),
            f"{r['million_multiply_adds']:.2f}",
            *(f"{r[f'{way}_g_multiply_adds_per_second']:.1f}" if f"{way}_milliseconds" in r else "" for way in ways),
        )
        for r in rows
    ]
    print(text_table((*head, *(f"{way.replace('_', ' ')} G/s" for way in ways)), cells, left=4))
    for name in args.model:
        for batch in args.batch:
            print(f"\n{name}, batch {batch}, all layers:", end="")
            own = [r for r in rows if (r["model"], r["batch"]) == (name, batch)]
            work = sum(r["layers"] * r["million_multiply_adds"] for r in own)
            for way in ways:
                if all(f"{way}_milliseconds" in r for r in own):
                    total = sum(r["layers"] * r[f"{way}_milliseconds"] for r in own)
                    print(f" {way.replace('_', ' ')} {total / batch:.2f} ms per image, {work / total:.1f} G/s;", end="")
    print()
    write_rows(args.json, [{**row, **machine()} for row in rows])


main = main_of(parser, run)


if __name__ == "__main__":
    sys.exit(main())
