"""The nets that `bench_serve` serves: their images, the service's processes, and a batch of one between the parties."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.errors import HummingbirdError, PeerError
from hummingbird.serving.client import Client
from models import get_model, load_checkpoint
from scripts.bench.link import free_port
from scripts.program import ROOT
from scripts.train.data import DATASETS, load

_START = 300.0  # seconds for a service to start
_REPEATS = 32
PAUSE = 0.02  # seconds before each lone request, and each batch of one


@dataclass(frozen=True)
class Net:
    """A net of `models` with its checkpoint and windows. count: images of the test split. request: images of a request.
    inferred: images in `infer`'s run, which is long enough for the dealer to keep up or not.
    """

    name: str
    dataset: str
    weights: str
    bits: str
    count: int
    request: int
    inferred: int

    def images(self) -> tuple[Tensor, Tensor]:
        """Images (count, C, H, W) and labels."""
        images, labels = load(self.dataset, "test")
        return images[: self.count], labels[: self.count]

    def net(self) -> nn.Module:
        """The net with its weights."""
        classes = DATASETS[self.dataset].classes
        return load_checkpoint(ROOT / "checkpoints" / self.weights, get_model(self.name, classes)).eval()

    def plain(self, images: Tensor) -> Tensor:
        """The plain net's answers (n,)."""
        net = self.net()
        with torch.no_grad():
            return torch.cat([net(part).argmax(1) for part in images.split(100)])

    @property
    def shape(self) -> str:
        """The shape of an image, as options have it."""
        return "x".join(map(str, DATASETS[self.dataset].shape))

    @property
    def words(self) -> list[str]:
        """Options of `infer` and `serve` that name the net."""
        words = ["--model", "models:get_model", self.name, str(DATASETS[self.dataset].classes)]
        words += ["--weights", str(ROOT / "checkpoints" / self.weights)]
        return [*words, "--bits", str(ROOT / "checkpoints" / self.bits)]

    def infer(self, batch: int) -> list[str]:
        """Options of `infer` on `inferred` images, in batches of `batch`."""
        data = ["--data", "scripts.bench.serve_net:repeated", self.dataset, str(self.inferred)]
        return [*self.words, *data, "--batch", str(batch)]


NETS = {
    net.name: net
    for net in (
        Net("digits", "digits", "digits.pt", "digits.bits.json", 500, 8, 20_000),
        Net("resnet18", "cifar10", "resnet18-cifar10.pt", "resnet18-cifar10-8-64.bits.json", 512, 1, 512),
    )
}


def repeated(dataset: str, count: str) -> tuple[Tensor, Tensor]:
    """So many images of a test split and their labels, from the start again where it is shorter."""
    images, labels = load(dataset, "test")
    chosen = torch.arange(int(count)) % len(images)
    return images[chosen], labels[chosen]


def batch_of_one(net: Net, image: Tensor) -> float:
    """Seconds in which two idle parties share an image (1, C, H, W), compute on it and open the result: a median."""
    bits = hummingbird.BitConfig.load(ROOT / "checkpoints" / net.bits)
    seconds: list[float] = hummingbird.launch(_alone, net.net(), bits, image)[0]
    return statistics.median(seconds)


def _alone(session: hummingbird.Session, net: nn.Module, bits: hummingbird.BitConfig, image: Tensor) -> list[float]:
    private, seconds = hummingbird.convert_model(net, bits), []
    for _ in range(_REPEATS):
        time.sleep(PAUSE)
        session.channel.exchange_text("ready")
        started = time.perf_counter()
        shared = hummingbird.cryptensor(image if session.rank == 0 else None, src=0)
        private(shared).get_plain_text(dst=0)
        seconds.append(time.perf_counter() - started)
    return seconds[2:]  # the first ones learn what material a run needs


class ServedGroup:
    """A group of two parties and a dealer on this host, whose ports stay when it is started again.

    words: options of `serve` that name what it serves. most: images of a batch.
    """

    def __init__(self, words: list[str], most: int) -> None:
        ports = [free_port() for _ in range(3)]
        self.addresses = [f"127.0.0.1:{port}" for port in ports[:2]]
        self.metrics = f"http://127.0.0.1:{ports[2]}/metrics"  # of party 0
        metrics = ["--metrics", f"127.0.{{rank}}.1:{ports[2]}"]  # loopback at both parties
        self._words = ["serve", *words, "--max-batch", str(most), "--listen", *self.addresses, *metrics]
        self._said: IO[str] = tempfile.TemporaryFile("w+")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the processes. HummingbirdError by `wait` if they do not answer within five minutes."""
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": str(ROOT)}
        launcher = [sys.executable, "-m", "hummingbird", "run", "--parties", "2", "--", "-m", "hummingbird"]
        self._process = subprocess.Popen(
            [*launcher, *self._words], cwd=ROOT, env=environment, stdout=self._said, stderr=self._said
        )

    def wait(self) -> None:
        """Wait until the parties answer."""
        assert self._process is not None
        _wait(self.addresses, self._process, self._said)

    def signal(self, number: int) -> None:
        """Send a signal to the parties and the dealer."""
        for pid in _offspring(self._process.pid) if self._process is not None else []:
            os.kill(pid, number)

    def stop(self) -> None:
        """End the processes in order."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _offspring(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have started."""
    text = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [each for child in map(int, text.split()) for each in (child, *_offspring(child))]


@contextmanager
def running(net: Net, most: int) -> Iterator[tuple[list[str], str]]:
    """A service of two parties and a dealer on this host: the parties' addresses, and that of party 0's metrics.

    HummingbirdError if it does not answer within five minutes.
    """
    group = ServedGroup([*net.words, "--input", net.shape], most)
    group.start()
    try:
        group.wait()
        yield group.addresses, group.metrics
    finally:
        group.stop()


def _wait(addresses: list[str], process: subprocess.Popen[bytes], said: IO[str]) -> None:
    deadline = time.monotonic() + _START
    while True:
        try:
            Client(addresses, timeout=5.0).close()
            return
        except PeerError as error:
            if process.poll() is not None:
                said.seek(0)
                what = f"the service has ended with code {process.returncode}:\n{said.read()}"
                raise HummingbirdError(what) from None
            if time.monotonic() > deadline:
                raise HummingbirdError(f"the service does not answer: {error.what}") from None
            time.sleep(0.5)
