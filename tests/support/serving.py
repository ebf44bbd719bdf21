"""Services for tests: the parties of `serve` as processes, and requests as a foreign client could send them."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import grpc
import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.prg import new_seed
from hummingbird.rpc import client as rpc_client
from hummingbird.serving.client import Client
from hummingbird.serving.description import ServiceDescription
from hummingbird.serving.message import Request, split
from tests.support.parties import Finished, finish, start
from tests.support.patience import HANG, until
from tests.support.ports import free_port

DIGITS = ("--model", "models:get_model", "digits", "10", "--weights", "checkpoints/digits.pt", "--input", "1x8x8")


class Service:
    """Parties of `serve` on unix sockets, from the first answer until the end of the block.

    metrics: whether every party offers figures, which `figures` reads. token: of a caller, where they show tokens.
    folder: of the sockets, which stays; None: a new one.
    """

    def __init__(
        self,
        *options: str,
        parties: int = 2,
        lanes: int = 1,
        metrics: bool = False,
        module: str = "hummingbird",
        token: str | None = None,
        folder: Path | None = None,
    ) -> None:
        self._token, self._stays = token, folder is not None
        self.folder = Path(tempfile.mkdtemp()) if folder is None else folder  # pytest's may be too long for a socket
        self.addresses = [f"unix:{self.folder}/{rank}.sock" for rank in range(parties)]
        self._ports = [free_port() for _ in range(parties)] if metrics else []
        command = ["-m", module, "serve", *options, "--listen", f"unix:{self.folder}/{{rank}}.sock"]
        command += ["--lanes", str(lanes)] if lanes > 1 else []

        def each(rank: int) -> list[str]:
            return ["--metrics", str(self._ports[rank // lanes])] if metrics else []

        self.processes: list[subprocess.Popen[str]] = start(command, parties * lanes, each)

    def __enter__(self) -> Service:
        until(self._ready, "a service to start")
        return self

    def _ready(self) -> bool:
        assert all(process.poll() is None for process in self.processes), self.stop()
        try:
            Client(self.addresses, timeout=2.0, token=self._token).close()
        except Exception:  # noqa: BLE001 - not yet; what it says at last is the tests' matter
            time.sleep(0.2)
            return False
        return True

    def client(self, timeout: float = HANG, model: str = "") -> Client:
        """A client of its own."""
        return Client(self.addresses, timeout=timeout, token=self._token, model=model)

    def figures(self, party: int) -> dict[str, float]:
        """The figures of a party, by name and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._ports[party]}/metrics", timeout=HANG) as page:
            lines = page.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}

    def stop(self, number: int = signal.SIGTERM) -> list[Finished]:
        """End all parties, and return how they ended."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)
        return finish(self.processes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        if not self._stays:
            shutil.rmtree(self.folder, ignore_errors=True)


def served(ended: Sequence[Finished]) -> tuple[int, int]:
    """Images and batches that party 0 says it has served, at an orderly end."""
    assert all(party.code == 0 for party in ended), [party.err for party in ended]
    found = re.search(r"served (\d+) [a-z ]+ in (\d+) batches", ended[0].out)
    assert found, ended[0].out
    return int(found[1]), int(found[2])


class Foreign:
    """A client of one's own making: every part of a request can be another one than it should be."""

    def __init__(self, service: Service) -> None:
        with service.client() as client:
            self.service: ServiceDescription = client.service
            self.addresses = service.addresses
        self.channels = [rpc_client.connect(address, timeout=HANG) for address in self.addresses]
        self.claim = new_seed()

    def messages(self, images: Tensor, seconds: float = HANG, **changed: object) -> list[bytes]:
        """The parts of a good request; changed: fields that are others."""
        bodies = split(ring.encode(images), self.service.bits, self.service.parties)
        return self.of(bodies, seconds, **{"images": len(images), **changed})

    def of(self, bodies: Sequence[bytes], seconds: float = HANG, **changed: object) -> list[bytes]:
        """The parts of a request with these bodies; changed: fields that are others, "images" among them."""
        fields = {"id": new_seed(), "claim": self.claim, "deadline": int(1e3 * (time.time() + seconds)), **changed}
        return [
            Request(body=body, **fields).to_bytes(self.service, rank)  # type: ignore[arg-type]
            for rank, body in enumerate(bodies)
        ]

    def begin(self, messages: Sequence[bytes | None]) -> list[grpc.Future]:
        """Calls to the parties for which there is a message."""
        return [
            rpc_client.begin(self.channels[rank], "Ask", message, timeout=HANG)
            for rank, message in enumerate(messages)
            if message is not None
        ]

    def refusal(self, rank: int, message: bytes) -> str:
        """The words with which one party refuses a message."""
        (call,) = self.begin([message if place == rank else None for place in range(rank + 1)])
        try:
            call.result()
        except grpc.RpcError as error:
            return str(error.details())
        raise AssertionError("the message was not refused")

    def close(self) -> None:
        for channel in self.channels:
            channel.close()


def biases(words: Tensor, bits: int) -> Tensor:
    """How far each of the low bits of many words (n, ...) is from fair, in standard deviations; the largest."""
    ones = torch.stack([((words >> place) & 1).double().mean(0) for place in range(bits)])
    return ((ones - 0.5).abs() * 2 * len(words) ** 0.5).max()
