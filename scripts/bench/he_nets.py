"""Rows of scripts/bench/he.py: whole nets on ciphertexts, in one process and over a local socket.

In one process, client and server take turns on one thread, and each second is counted to one of: encrypt (drawing the
randomness too), server, decrypt, and client (packing values into polynomials, activations). Over a socket, the server
is `python -m hummingbird he-server` and the client this process, with one thread each.
"""

from __future__ import annotations

import itertools
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.commands.program import device_name
from hummingbird.he.compile.convert import convert_model
from hummingbird.he.runtime.client import Client
from hummingbird.he.runtime.memory import predicted
from hummingbird.he.runtime.server import Server
from hummingbird.he.scheme import ckks
from hummingbird.he.service.client import RemoteModel
from models import get_model, trained
from scripts.bench.party import serving
from scripts.program import ROOT
from scripts.train.data import load

INPUT_RANGE = 3.0  # MNIST's pixels, normalised, are from -0.43 to 2.83
PRUNED = ("impala-cifar10", "impala-cifar10-sparse")  # a net, and the same with nine of ten weights pruned
CHECKPOINTS = {"relu": "checkpoints/cryptonets-relu.pt", "square": "checkpoints/cryptonets-square.pt"}


@dataclass
class Net:
    """A net, its mode, inputs with labels where there are any, and a bound on inputs where the plan needs one."""

    net: nn.Module
    mode: str
    images: Tensor
    labels: Tensor | None = None
    bound: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return tuple(self.images.shape[1:])


def cryptonets(activation: str, data: str | None, count: int) -> Net:
    """CryptoNets as shipped, and the first `count` of MNIST's test images."""
    net = trained("cryptonets", 10, str(ROOT / CHECKPOINTS[activation]), activation=activation)
    images, labels = load("mnist", "test", data)
    if activation == "relu":
        return Net(net, "client-aided", images[:count], labels[:count])
    return Net(net, "polynomial", images[:count], labels[:count], INPUT_RANGE)


def mobilenet(size: int, count: int) -> Net:
    """MobileNetV2 0.35 with random weights, batch-norm statistics from two batches, and random images."""
    torch.manual_seed(0)
    net = get_model("mobilenetv2", 1000).train()
    with torch.no_grad():
        for _ in range(2):
            net(torch.randn(32, 3, size, size))
    return Net(net.eval(), "client-aided", torch.randn(count, 3, size, size))


def impala(weights: str, data: str | None, count: int) -> Net:
    """Impala's net for CIFAR-10 as shipped, `weights` a name of PRUNED, and the first `count` test images."""
    images, labels = load("cifar10", "test", data)
    net = trained("impala-cifar10", 10, str(ROOT / f"checkpoints/{weights}.pt"))
    return Net(net, "client-aided", images[:count], labels[:count])


def zeros(net: nn.Module) -> float:
    """Which part of the weights of a net's layers is zero."""
    weights = [weight for weight in net.parameters() if weight.dim() > 1]
    return sum(int((weight == 0).sum()) for weight in weights) / sum(weight.numel() for weight in weights)


class Clock:
    """Seconds by part: `clock.timed("encrypt", function)` counts the time in a function."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - started

        return run


@contextmanager
def client_clock() -> Iterator[Clock]:
    """A clock of encryption and decryption, wherever they are called."""
    clock = Clock()
    kept = ckks.Coins.__init__, ckks.SecretKey.encrypt, ckks.SecretKey.decrypt
    ckks.Coins.__init__ = clock.timed("encrypt", kept[0])  # type: ignore[method-assign]
    ckks.SecretKey.encrypt = clock.timed("encrypt", kept[1])  # type: ignore[method-assign]
    ckks.SecretKey.decrypt = clock.timed("decrypt", kept[2])  # type: ignore[method-assign]
    try:
        yield clock
    finally:
        ckks.Coins.__init__, ckks.SecretKey.encrypt, ckks.SecretKey.decrypt = kept  # type: ignore[method-assign]


def run_batch(client: Client, server: Server, images: Tensor, clock: Clock) -> Tensor:
    """One batch, with the server's time on the clock."""
    batch = client.begin(images)
    for number in range(len(server.public.turns)):
        turn = clock.timed("server", server.turn)(number)
        receive = clock.timed("server", turn.receive)
        for sent in batch.uploads(number):
            receive(sent)
        answers = turn.downloads()
        compute = clock.timed("server", lambda answers=answers: next(answers, None))
        while (back := compute()) is not None:
            batch.receive(back)
    return batch.result()


def in_process(
    name: str, given: Net, advance: Callable[[float], object], passes: int = 1, device: str = "cpu"
) -> dict[str, Any]:
    """One row: milliseconds per image, median over the full batches of all passes but the first, where they went, and
    the outputs against torch's.
    """
    torch.set_num_threads(1)
    model = convert_model(given.net, given.shape, mode=given.mode, input_range=given.bound, device=device)
    server, client = model.server, Client(model.server.public, device)
    slots = server.public.slots
    outputs, times, parts = [], [], []
    for number, images in itertools.product(range(passes), given.images.split(slots)):
        with client_clock() as clock:
            started = time.perf_counter()
            result = run_batch(client, server, images, clock)
            seconds = time.perf_counter() - started
        if not number:
            outputs.append(result)
        if len(images) == slots or not times:
            times.append(seconds)
            parts.append({**clock.seconds, "client": seconds - sum(clock.seconds.values())})
        advance(len(images))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9  # Linux counts in KiB
    times, parts = times[1:] or times, parts[1:] or parts  # the first one finds its memory page by page
    each = 1e3 / min(slots, len(given.images))
    public = server.public
    up = sum(public.up_bytes(turn.sent) for turn in public.turns)
    down = sum(public.down_bytes(back, back.count) for turn in public.turns for back in turn.returns)
    row = {
        "net": name,
        "mode": given.mode,
        "degree": public.parameters.degree,
        "modulus_bits": public.parameters.bits,
        "slots": slots,
        "images": len(given.images),
        "milliseconds_per_image": each * statistics.median(times),
        **{
            f"{part}_milliseconds_per_image": each * statistics.median(p.get(part, 0.0) for p in parts)
            for part in ("encrypt", "server", "decrypt", "client")
        },
        "kilobytes_up_per_image": up / slots / 1e3,
        "kilobytes_down_per_image": down / slots / 1e3,
        "peak_gigabytes": peak,
        "device": device_name(device),
        "predicted_gigabytes": predicted(model.plan).process / 1e9,
    }
    return row | compare(torch.cat(outputs), in_the_clear(given), given.labels)


def in_the_clear(given: Net) -> Tensor:
    """Torch's outputs for all images."""
    with torch.inference_mode():
        return torch.cat([given.net(x) for x in given.images.split(256)])


def compare(outputs: Tensor, expected: Tensor, labels: Tensor | None) -> dict[str, Any]:
    """Errors against torch in float32, and accuracies."""
    row: dict[str, Any] = {
        "largest_error": float((outputs - expected).abs().max()),
        "largest_output": float(expected.abs().max()),
        "other_answers": int((outputs.argmax(1) != expected.argmax(1)).sum()),
    }
    if labels is not None:
        row["accuracy"] = float((outputs.argmax(1) == labels).float().mean())
        row["torch_accuracy"] = float((expected.argmax(1) == labels).float().mean())
    return row


@contextmanager
def server_process(activation: str, given: Net, port: int = 0) -> Iterator[str]:
    """The address of a server of CryptoNets, a process of its own with one thread; port: of loopback, 0 for a path."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"127.0.0.1:{port}" if port else f"unix:{folder}/he.sock"
        words = ["he-server", "--model", "models:trained", "cryptonets", "10", CHECKPOINTS[activation]]
        words += [f"activation={activation}", "--input", "x".join(map(str, given.shape)), "--mode", given.mode]
        words += ["--listen", address, *([] if given.bound is None else ["--range", str(given.bound)])]
        with serving(words, ready="he-server listening"):
            yield address


def over_a_socket(name: str, activation: str, given: Net, repeats: int, port: int = 0) -> dict[str, Any]:
    """One row: images per second of all images, median of some runs after one to warm up."""
    torch.set_num_threads(1)
    times = []
    with server_process(activation, given, port) as address, RemoteModel(address) as model:
        for _ in range(repeats + 1):
            started = time.perf_counter()
            outputs = model(given.images)
            times.append(time.perf_counter() - started)
        sent, received = model.sent_bytes, model.received_bytes
    runs = len(times) * len(given.images)
    row = {
        "net": name,
        "processes": 2,
        "images": len(given.images),
        "images_per_second": len(given.images) / statistics.median(times[1:]),
        "kilobytes_up_per_image": sent / runs / 1e3,
        "kilobytes_down_per_image": received / runs / 1e3,
    }
    return row | compare(outputs, in_the_clear(given), given.labels)
