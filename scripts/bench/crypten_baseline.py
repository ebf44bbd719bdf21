"""CrypTen 0.4.1 as it is shipped, on the same net: its communicator, its provider, its random numbers, its ReLU.

Only the import shim is ours. Its own reader of PyTorch nets (ONNX) does not work on current PyTorch, so the net's
steps are called on CrypTen's tensors one by one. The meter counts bits as one party sends them (CrypTen's own counter
assumes more), and takes the provider's time apart, because CrypTen makes its triples while it computes.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hummingbird import cost, graph
from hummingbird.channel import meter
from hummingbird.commands.output import check_outputs
from hummingbird.commands.program import end
from hummingbird.crypten.adapter import MPCTensor, crypten
from hummingbird.errors import InputError
from hummingbird.graph import Step
from hummingbird.progress import progress_line
from models import MODELS, load_checkpoint
from scripts.train.data import DATASETS, load
from scripts.train.images import net_for


def _watch() -> None:
    """Have the meter count what CrypTen's communicator sends and waits, and its provider's time; nothing else
    changes.
    """
    communicator = crypten.communicator.DistributedCommunicator

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(communicator, name)

        def call(this: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = tensor if isinstance(tensor, list) else [tensor]
            sends = name == "all_reduce" or this.get_rank() != (args[0] if args else kwargs["dst"])
            started = time.perf_counter()
            try:
                return original(this, tensor, *args, **kwargs)
            finally:
                bits = 64 * sum(t.nelement() for t in tensors) * sends
                meter.count(rounds=1, bits=bits, waited=time.perf_counter() - started)

        return call

    for name in ("all_reduce", "reduce", "gather"):
        setattr(communicator, name, counted(name))
    provider = type(crypten.mpc.get_default_provider())

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                meter.count(offline_seconds=time.perf_counter() - started)

        return call

    for name in provider.TRACEABLE_FUNCTIONS:
        setattr(provider, name, timed(getattr(provider, name)))


def start() -> int:
    """CrypTen's own init, with the meter watching; returns the rank."""
    os.environ["RENDEZVOUS"] = "env://"  # its default is a file of its own at every rank
    crypten.init()
    atexit.register(torch.distributed.destroy_process_group)  # else Gloo's threads may abort the process as it ends
    torch.set_num_threads(1)  # CrypTen with more threads than cores per party is slower here
    _watch()
    rank: int = crypten.communicator.get().get_rank()
    return rank


def _conv(x: MPCTensor, a: dict[str, Any]) -> MPCTensor:
    options = {key: a[key] for key in ("stride", "padding", "dilation", "groups")}
    out = getattr(x, f"conv{len(a['stride'])}d")(a["weight"], **options)
    return out if a["bias"] is None else out + a["bias"].view(-1, *[1] * len(a["stride"]))


Relu = Callable[[MPCTensor], MPCTensor]
Price = Callable[[int], cost.Cost]


def _shipped(count: int) -> cost.Cost:
    return cost.crypten_shipped_relu(count, crypten.communicator.get().get_world_size())


def evaluate(step: Step, inputs: Sequence[Any], relu: Relu = MPCTensor.relu) -> Any:
    """One step on CrypTen tensors. relu: computes a ReLU."""
    a = step.attrs
    if step.op == "conv":
        return _conv(inputs[0], a)
    if step.op == "linear":
        return inputs[0].matmul(a["weight"].t()) + a["bias"]
    if step.op == "relu":
        return relu(inputs[0])
    if step.op == "avg_pool":
        return inputs[0].avg_pool2d(a["kernel"], stride=a["stride"], padding=a["padding"])
    if step.op == "max_pool":
        return inputs[0].max_pool2d(a["kernel"], stride=a["stride"], padding=a["padding"])
    if step.op == "adaptive_avg_pool":
        return inputs[0].avg_pool2d(
            tuple(n // out for n, out in zip(inputs[0].size()[-2:], a["output_size"], strict=True))
        )
    if step.op == "add":
        return inputs[0] + inputs[1]
    if step.op == "flatten":
        return inputs[0].flatten(a["start"], a["end"])
    if step.op == "square":
        return inputs[0].square()
    if step.op in ("input", "output"):
        return inputs[0]
    raise InputError(f"the baseline has no {step.op!r}", where=step.name)


def infer(steps: list[Step], x: MPCTensor, relu: Relu = MPCTensor.relu, price: Price = _shipped) -> MPCTensor:
    """The whole net, every step a row of the meter. relu: computes a ReLU; price: of a number of them."""

    def compute(number: int, step: Step, inputs: tuple[Any, ...]) -> Any:
        priced = price(inputs[0].nelement()) if step.op == "relu" else cost.FREE
        with meter.layer(step.name, step.op, priced):
            return evaluate(step, inputs, relu)

    net = graph.Interpreter(steps)
    values = net.start(x)
    net.run(values, compute)
    return values[len(steps) - 1]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", required=True, choices=sorted(MODELS))
    p.add_argument("--checkpoint", type=Path)
    p.add_argument("--dataset", choices=sorted(DATASETS), default="digits")
    p.add_argument("--data", type=Path)
    p.add_argument("--images", type=int)
    p.add_argument("--batch", type=int, default=100)
    p.add_argument("--json", type=Path)
    args = p.parse_args()
    check_outputs(args)
    net = net_for(args.model, args.dataset).eval()
    rank = start()
    if args.checkpoint:
        load_checkpoint(args.checkpoint, net)
    steps = graph.trace(net)
    images, labels = load(args.dataset, "test", args.data)
    images, labels = images[: args.images], labels[: args.images]
    logits: list[Tensor] = []
    crypten.communicator.get().barrier()
    started = time.perf_counter()
    with crypten.no_grad(), meter.meter() as m, progress_line(total=len(images), unit="image", quiet=rank != 0) as bar:
        for begin in range(0, len(images), args.batch):
            batch = images[begin : begin + args.batch]
            out = infer(steps, crypten.cryptensor(batch, src=0)).get_plain_text(dst=0)
            if rank == 0:
                logits.append(out)
            bar.update(len(batch))
    seconds = time.perf_counter() - started
    if rank == 0 and args.json:
        got = torch.cat(logits)
        with torch.no_grad():
            plain = net(images)
        batches, total = -(-len(images) // args.batch), m.total
        figures = {
            "protocol": "CrypTen 0.4.1",
            "images": len(images),
            "accuracy_private_percent": 100 * float((got.argmax(1) == labels).double().mean()),
            "accuracy_plain_percent": 100 * float((plain.argmax(1) == labels).double().mean()),
            "largest_logit_error": float((plain - got).abs().max()),
            "largest_logit": float(plain.abs().max()),
            "seconds": seconds,
            "online_seconds": seconds - total.offline_seconds,
            "offline_seconds": total.offline_seconds,
            "online_kilobytes_per_image": total.bits_sent / 8e3 / len(images),
            "offline_kilobytes_per_image": total.offline_bits_predicted / 8e3 / len(images),  # from a dealer's triples
            "rounds_per_batch": total.rounds / batches,
        }
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(end(main, lambda: "interrupted: nothing was written"))
