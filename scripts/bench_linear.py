"""Speed of the linear layers on shares: every distinct convolution and linear shape of a net, one thread.

    python -m scripts.bench_linear --model resnet18 --batch 8 64 --json linear.json

Each shape is run as a private net runs it (`hummingbird.ring`, exact mod 2^64) and as torch runs it on int64 by itself.
A multiply-add is counted for every weight that an output element reads, those that fall on padding included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the project's folder must be importable
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torchvision
from torch import Tensor, nn
from tqdm import tqdm

from hummingbird import graph, ring
from hummingbird.commands.files import check_outputs
from hummingbird.commands.program import end, machine
from hummingbird.kernels import heap
from hummingbird.table import text_table
from models import MODELS, get_model

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


def seconds(run: Callable[[], Tensor], budget: float) -> float:
    """Median time of a call after a first one; at least three calls, or one where a single call exceeds the budget."""
    started = time.perf_counter()
    run()
    times = [time.perf_counter() - started]
    if times[0] < budget:
        times = []
    while not times or len(times) < 3 and times[0] < budget or sum(times) < budget and len(times) < 100:
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def measure(product: dict[str, Any], budget: float, with_torch: bool) -> dict[str, Any]:
    """One row: shapes, multiply-adds, and their number per second here and in torch."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-(2**63), 2**63 - 1, product["x"], generator=generator)
    weight = torch.randint(-(2**18), 2**18, product["weight"], generator=generator)
    options = product["options"]
    if product["op"] == "conv":
        op = f"conv{x.dim() - 2}d"
        plain = getattr(torch.nn.functional, op)
        ours = lambda: ring.bilinear(op, x, weight, **options)  # noqa: E731
        theirs = lambda: plain(x, weight, None, **options)  # noqa: E731
    else:
        op, columns = "matmul", weight.t().contiguous()  # as mpc/linear.py holds it
        ours = lambda: ring.bilinear("matmul", x, columns)  # noqa: E731
        theirs = lambda: torch.matmul(x, columns)  # noqa: E731
    out = ours()
    if with_torch and not torch.equal(out, theirs()):
        raise SystemExit(f"error: a wrong product for {product}")
    multiply_adds = out.numel() * weight[0].numel()
    times = seconds(ours, budget)
    row: dict[str, Any] = {
        "op": op,
        "input": "x".join(map(str, product["x"])),
        "weight": "x".join(map(str, product["weight"])),
        "stride": options.get("stride", [1])[0],
        "groups": options.get("groups", 1),
        "million_multiply_adds": multiply_adds / 1e6,
        "milliseconds": times * 1e3,
        "g_multiply_adds_per_second": multiply_adds / 1e9 / times,
    }
    if with_torch:
        times = seconds(theirs, budget)
        row["torch_milliseconds"] = times * 1e3
        row["torch_g_multiply_adds_per_second"] = multiply_adds / 1e9 / times
    return row


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", nargs="+", default=["resnet18"], choices=[*sorted(MODELS), *TORCHVISION])
    p.add_argument("--batch", nargs="+", type=int, default=[8, 64], help="images at once (default 8 64)")
    p.add_argument("--budget", type=float, default=0.2, help="seconds for a shape, each side (default 0.2)")
    p.add_argument("--no-torch", action="store_true", help="leave torch's own int64 products out")
    p.add_argument("--json", type=Path, help="write the rows to a file")
    args = p.parse_args()
    check_outputs(args)
    torch.set_num_threads(1)
    heap.keep()  # as in a session
    runs = [
        (name, batch, json.loads(text), count)
        for name in args.model
        for batch in args.batch
        for text, count in products(name, batch).items()
    ]
    rows = [
        {"model": name, "batch": batch, "layers": count, **measure(product, args.budget, not args.no_torch)}
        for name, batch, product, count in tqdm(runs, unit="shape", leave=False)
    ]
    head = ("model", "op", "input", "weight", "stride", "groups", "layers", "M mul-adds", "ms", "G/s", "torch G/s")
    cells = [
        (
            r["model"],
            r["op"],
            r["input"],
            r["weight"],
            f"{r['stride']}",
            f"{r['groups']}",
            f"{r['layers']}",
            f"{r['million_multiply_adds']:.2f}",
            f"{r['milliseconds']:.2f}",
            f"{r['g_multiply_adds_per_second']:.1f}",
            "" if args.no_torch else f"{r['torch_g_multiply_adds_per_second']:.1f}",
        )
        for r in rows
    ]
    print(text_table(head, cells, left=4))
    for name in args.model:
        for batch in args.batch:
            own = [r for r in rows if (r["model"], r["batch"]) == (name, batch)]
            total = sum(r["layers"] * r["milliseconds"] for r in own)
            work = sum(r["layers"] * r["million_multiply_adds"] for r in own)
            slowest = min(r["g_multiply_adds_per_second"] for r in own)
            print(
                f"\n{name}, batch {batch}: {total:.1f} ms in all, {total / batch:.2f} ms per image, "
                f"{work / total:.1f} G multiply-adds/s, slowest shape {slowest:.1f}",
                end="",
            )
    print()
    if args.json:
        for row in rows:
            row |= machine()
        args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(end(main, lambda: "interrupted: nothing was written"))
