"""The cost of the plaintext twin: a net, and the same net with windows in place (`simulate`), turn by turn in one run.

    python -m scripts.bench.simulate --json simulate.json
    python -m scripts.bench.simulate --model resnet50 --batch 32 --windows 20:12 --threads 1

Every row is one setting: the type (float32, or bfloat16 by autocast, channels-last), threads, mode (eval: one forward
pass without gradients; training: forward, loss and backward) and window. In each round the net and then its
twins run once; a ratio is the median over rounds of twin / net, so whatever else the machine does slows both down.
Weights are random, with batch-norm statistics from a few batches, so that values are as large as in a trained net.
Windows with a small k have values beyond them, which wrap.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hummingbird
from hummingbird.commands.output import check_outputs
from hummingbird.commands.program import machine
from hummingbird.errors import InputError
from hummingbird.progress import progress_line
from models import MODELS, get_model
from scripts.bench.contest import window_of
from scripts.program import add_json, columns, main_of, new_parser, write_rows

TYPES = {"float32": torch.contiguous_format, "bfloat16": torch.channels_last}
MODES = ("eval", "training")
CLASSES, BATCHES = 10, 4  # of the net; for its batch-norm statistics


def build(name: str, batch: int) -> tuple[nn.Module, Tensor]:
    """The net with settled statistics, and a batch of random images of unit variance."""
    torch.manual_seed(0)
    net = get_model(name, CLASSES).train()
    with torch.no_grad():
        for _ in range(BATCHES):
            net(torch.randn(batch, *MODELS[name].input_shape))
    return net, torch.randn(batch, *MODELS[name].input_shape)


def step(module: nn.Module, x: Tensor, labels: Tensor, kind: str) -> Callable[[], float]:
    """One pass in the module's mode, which returns its seconds."""

    def run() -> float:
        started = time.perf_counter()
        with torch.set_grad_enabled(module.training), torch.autocast("cpu", torch.bfloat16, kind == "bfloat16"):
            out = module(x)
            loss = F.cross_entropy(out, labels) if module.training else None
        if loss is not None:
            loss.backward()
        return time.perf_counter() - started

    return run


def measure(args: argparse.Namespace, kind: str, mode: str, threads: int, bar: Any) -> list[dict[str, Any]]:
    """A row for every window."""
    torch.set_num_threads(threads)
    net, x = build(args.model, args.batch)
    net, x = net.to(memory_format=TYPES[kind]), x.to(memory_format=TYPES[kind])
    twins = {text: hummingbird.simulate(net, window_of(text), args.protocol, seed=0) for text in args.windows}
    runs = {}
    for text, module in {"": net, **twins}.items():
        runs[text] = step(module.train(mode == "training"), x, torch.arange(args.batch) % CLASSES, kind)
    took: dict[str, list[float]] = {text: [] for text in runs}
    for number in range(args.repeats + 1):  # after one to warm up
        for text, run in runs.items():
            net.zero_grad()
            seconds = run()
            if number:
                took[text].append(seconds)
        bar.update()
    return [
        {
            "model": args.model,
            "batch": args.batch,
            "protocol": args.protocol,
            "type": kind,
            "memory_format": str(TYPES[kind]).removeprefix("torch."),
            "threads": threads,
            "mode": mode,
            "window": text,
            "net_milliseconds": 1e3 * statistics.median(took[""]),
            "twin_milliseconds": 1e3 * statistics.median(took[text]),
            "ratio": statistics.median(twin / plain for twin, plain in zip(took[text], took[""], strict=True)),
            "repeats": args.repeats,
            **machine(),
        }
        for text in twins
    ]


def run(args: argparse.Namespace) -> None:
    """Measure all settings, print the table, write the rows."""
    for text in args.windows:
        window_of(text)
    for option in ("batch", "repeats"):
        if getattr(args, option) < 1:
            raise InputError("at least one", where=f"--{option}")
    if min(args.threads) < 1:
        raise InputError("at least one", where="--threads")
    check_outputs(args)
    settings = [(kind, mode, threads) for kind in args.types for threads in args.threads for mode in args.modes]
    with progress_line(total=len(settings) * (args.repeats + 1), unit="round") as bar:
        rows = [row for setting in settings for row in measure(args, *setting, bar)]
    shown = [
        *((key, f"{{{key}}}") for key in ("type", "mode", "window", "threads")),
        *(("net ms", "{net_milliseconds:.1f}"), ("twin ms", "{twin_milliseconds:.1f}"), ("ratio", "{ratio:.2f}")),
    ]
    print(f"{args.model}, batch {args.batch}, {args.protocol}; medians of {args.repeats} rounds after one to warm up\n")
    print(columns(rows, shown, left=3))
    write_rows(args.json, rows)


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = new_parser(__doc__)
    p.add_argument("--model", choices=sorted(MODELS), default="resnet18", help="default: %(default)s")
    p.add_argument("--batch", type=int, default=128, help="images at once (default: %(default)s)")
    p.add_argument("--protocol", choices=("masked", "gmw"), default="masked", help="default: %(default)s")
    shown = "windows for all layers (default: 20:12, and 17:9, which many values leave)"
    p.add_argument("--windows", nargs="+", default=["20:12", "17:9"], metavar="K:M", help=shown)
    p.add_argument("--types", nargs="+", choices=tuple(TYPES), default=list(TYPES), help="default: all")
    p.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="default: all")
    p.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="of torch (default: 1 2)")
    p.add_argument(
        "--repeats", type=int, default=11, help="rounds, of which the median is shown (default: %(default)s)"
    )
    add_json(p)
    return p


main = main_of(parser, run)


if __name__ == "__main__":
    sys.exit(main())
