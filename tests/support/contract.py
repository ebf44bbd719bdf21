"""The services of the package, as the contract of tests/rpc/test_contract.py meets them: programs, and who calls them.

A `ServiceCase` says how a service's program is started with the smallest net or table, which methods it has, and what
a request is that it answers. `Started` is one at work, with files and figures; `Held` a call whose message is unsent.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch

from hummingbird import records, ring
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.he.runtime import messages as he
from hummingbird.he.runtime.client_spec import Public
from hummingbird.hybrid import messages as hybrid
from hummingbird.hybrid.plan_json import read_description
from hummingbird.hybrid.proxy_view import read_proxy_view
from hummingbird.hybrid.service import Service
from hummingbird.mpc.dealer.server import JoinAnswer, JoinRequest
from hummingbird.pir import Owner, Source, dpf
from hummingbird.pir import messages as pir
from hummingbird.prg import CIPHERS, new_seed
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc import service, telemetry
from hummingbird.rpc.admission import MAX_MESSAGE
from hummingbird.rpc.security import Tls
from hummingbird.serving.description import Described
from hummingbird.serving.message import MAX_BYTES, Request, joined, split
from hummingbird.version import VERSION
from tests.jobs.contract import PYTHON
from tests.support import python
from tests.support.dealers import Authority, Live
from tests.support.hybrid import model
from tests.support.parties import environment
from tests.support.paths import ROOT
from tests.support.patience import HANG, until
from tests.support.ports import free_port
from tests.support.services import file_of
from tests.support.serving_nets import doubled

REQUESTS, EACH, NAMED = 8, 4, 2  # calls at work: in all, of one name, of the second name
ROWS = torch.arange(200.0).view(50, 4)
IMAGE = torch.tensor([[0.5, 0.25, -0.5, 1.0]])


@dataclass(frozen=True)
class Caller:
    """Who calls: by a certificate, or by a token."""

    name: str
    tls: Tls | None = None
    token: str | None = None


class Held:
    """A call whose message is not sent before `send`: at work at a service, which waits for it. timeout: seconds."""

    def __init__(self, channel: grpc.Channel, method: str, timeout: float = HANG) -> None:
        self._sent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = rpc_client.exchange(channel, method, iter(self._sent.get, None), timeout=timeout)

    def send(self, message: bytes) -> None:
        self._sent.put(message)
        self._sent.put(None)

    def answer(self) -> bytes:
        """All that the service says; grpc.RpcError where it ends the call."""
        return b"".join(self._call)

    def refusal(self) -> grpc.RpcError:
        """The error that the call ends with."""
        try:
            self.answer()
        except grpc.RpcError as error:
            return error
        finally:
            self._sent.put(None)  # ends the thread that would send
        raise AssertionError("the call was not refused")

    def cancel(self) -> None:
        self._call.cancel()
        self._sent.put(None)


# The services ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServiceCase:
    """A service. words: its command, in a folder. methods: besides Ping, by name; `streams` those of two streams, and
    `brief` those that compute nothing. method: the one that `request` is for: its messages, one for each process, of a
    caller, whose answers are `right`. callers: four names. tokens: whether callers may show tokens. idle: whether it
    has an option for the longest silence of a stream. largest: bytes of a message.
    """

    name: str
    words: Callable[[World, Path], list[str]] = lambda world, folder: []
    methods: Sequence[str] = ()
    streams: Sequence[str] = ()
    brief: Sequence[str] = ()
    method: str = ""
    request: Callable[[Sequence[grpc.Channel], str, float], list[bytes]] = lambda channels, caller, seconds: []
    right: Callable[[Sequence[grpc.Channel], list[bytes]], bool] = lambda channels, answers: False
    callers: Sequence[str] = ("alice", "bob", "carol", "dave")
    tokens: bool = True
    idle: bool = False
    largest: int = MAX_MESSAGE
    processes: int = 1
    command: str = ""  # where it is another word than the name

    def __str__(self) -> str:
        return self.command or self.name


def _as_json(message: object) -> bytes:
    return records.write(message).encode()


def _he_right(channels: Sequence[grpc.Channel], answers: list[bytes]) -> bool:
    return Public.from_json(answers[0]).input_shape == (1, 6, 6)


def _pir_request(channels: Sequence[grpc.Channel], caller: str, seconds: float) -> list[bytes]:
    return [pir.pack_query("xor", dpf.generate(torch.tensor([3, 9]), len(ROWS))[0])]


def _pir_right(channels: Sequence[grpc.Channel], answers: list[bytes]) -> bool:
    state, found, signature = pir.unpack_answer(answers[0], 2, Source.of(ROWS).facts, signed=False)
    return state.version == 0 and found.shape == (2, 16) and signature is None


def _dealer_request(channels: Sequence[grpc.Channel], caller: str, seconds: float) -> list[bytes]:
    rank = int(caller.rpartition("-")[2] or 0)
    return [_as_json(JoinRequest(new_seed(), rank, 8, VERSION, next(iter(CIPHERS))))]


def _dealer_right(channels: Sequence[grpc.Channel], answers: list[bytes]) -> bool:
    return len(records.read(answers[0], JoinAnswer, name="answer").seed) == 16


def _served(channels: Sequence[grpc.Channel]) -> Described:
    return Described.read(rpc_client.call(channels[0], "Describe", b"", timeout=HANG), "party 0")


def _party_request(channels: Sequence[grpc.Channel], caller: str, seconds: float) -> list[bytes]:
    told = _served(channels)
    known, deadline = told.service, int(1e3 * (told.clock + seconds))
    bodies = split(ring.encode(IMAGE, known.scale), known.bits, known.parties)
    id, claim = new_seed(), new_seed()
    return [Request(id, claim, deadline, 1, body).to_bytes(known, rank) for rank, body in enumerate(bodies)]


def _party_right(channels: Sequence[grpc.Channel], answers: list[bytes]) -> bool:
    known = _served(channels).service
    with torch.no_grad():
        return bool((ring.decode(joined(answers, 1, known), known.result_scale) - doubled()(IMAGE)).abs().max() < 1e-2)


_OPENING = hybrid.CallOpening().pack()
_PARTY: dict[str, Any] = {
    "methods": ("Ask", "Describe"),
    "brief": ("Describe",),
    "method": "Ask",
    "request": _party_request,
    "right": _party_right,
    "largest": MAX_BYTES,
    "processes": 2,
}
CASES = [  # those with tokens first, those without a method last
    ServiceCase(
        "he-server",
        lambda world, folder: ["--model", "tests.support.he_service:small_net", "--input", "1x6x6"],
        ("Public", "Turn"),
        streams=("Turn",),
        method="Public",
        request=lambda channels, caller, seconds: [he.opening()],
        right=_he_right,
        idle=True,
    ),
    ServiceCase(
        "pir-server",
        lambda world, folder: [
            *("--table", str(world.table), "--party", "0"),
            *("--owner", str(world.owner), "--journal", str(folder / "journal")),
        ],
        ("Describe", "Answer", "Update", "Offer", "Switch", "PastUpdate", "Metrics"),
        method="Answer",
        request=_pir_request,
        right=_pir_right,
    ),
    ServiceCase(
        "gc-server",
        lambda world, folder: [
            *("--model", "tests.hybrid.test_programs:net", "--input", "1x6x6"),
            *("--bits", str(world.bits), "--store", str(folder / "store")),
        ],
        ("Public", "Keys", "Input", "Session", "Offline", "Online"),
        streams=("Session", "Offline", "Online"),
        method="Public",
        request=lambda channels, caller, seconds: [_OPENING],
        right=lambda channels, answers: read_description(answers[0]).input.shape == (1, 6, 6),
        idle=True,
    ),
    ServiceCase(
        "gc-proxy",
        lambda world, folder: ["--store", str(folder / "store"), "--slots", "1"],
        ("Public", "Slot", "Key"),
        method="Public",
        request=lambda channels, caller, seconds: [_OPENING],
        right=lambda channels, answers: read_proxy_view(answers[0])[0].input.shape == (1, 4, 4),
    ),
    ServiceCase(
        "serve",
        lambda world, folder: [
            *("--model", "tests.support.serving_nets:doubled", "--input", "4", "--window", "30:0"),
        ],
        **_PARTY,
    ),
    ServiceCase("serve", lambda world, folder: [], tokens=False, command=PYTHON, **_PARTY),
    ServiceCase(
        "dealer",
        lambda world, folder: [],
        ("Join", "Correct", "Stay", "Leave"),
        method="Join",
        request=_dealer_request,
        right=_dealer_right,
        callers=("party-0", "party-1", "party-2", "party-3"),
        tokens=False,
    ),
    ServiceCase(
        "keeper",
        lambda world, folder: [
            *("--model", "tests.support.serving_nets:doubled", "--input", "4x4", "--images", "12"),
            *("--keep", "2", "--out", str(folder / "kept")),
        ],
        tokens=False,
        command="deal",
    ),
]


# The world around them ------------------------------------------------------------------------------------------------


class World:
    """Authorities, files, and a net's server behind proxies, for all services of a module's tests."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hb"))  # pytest's own may be too long for a socket's path
        self.ours, self.theirs = Authority(self.folder, "ours"), Authority(self.folder, "theirs")
        self.table, self.owner, self.bits = (self.folder / name for name in ("t.npy", "owner", "bits.json"))
        np.save(self.table, ROWS.numpy())
        self.owner.write_text(Owner().public.hex())
        self.bits.write_text(BitConfig(BitWindow(20, 6)).to_json())
        self._ends = ExitStack()
        behind = Service(model(), self.folder / "behind")
        self._ends.callback(behind.close)
        self.behind = {tls: f"unix:{self.folder}/behind-{tls}" for tls in (False, True)}
        for tls, address in self.behind.items():
            certificate = self.ours.issue("behind", "localhost") if tls else None
            server = service.serve(behind.handlers(), address, certificate)
            self._ends.callback(lambda server=server: server.stop(0).wait())

    def close(self) -> None:
        self._ends.close()
        shutil.rmtree(self.folder)


class Started:
    """A service as its program, which is held before it is ready until `go`; killed at the end.

    tls: mutual, at a port of localhost; without, at a Unix socket, for callers with tokens where it knows them.
    hours: for which its certificate is good.
    """

    def __init__(self, case: ServiceCase, world: World, *, tls: bool, hours: float = 1) -> None:
        self.case, self.world, self.tls = case, world, tls
        self.folder = Path(tempfile.mkdtemp(prefix="hb", dir=world.folder))
        ranks = range(case.processes)
        self.held = [self.folder / str(rank) for rank in ranks]
        self.pages, self.logs = [free_port() for _ in ranks], [self.folder / f"log-{rank}" for rank in ranks]
        self.addresses: list[str] = []
        if case.methods:
            self.addresses = [f"localhost:{free_port()}" if tls else f"unix:{self.folder}/s{rank}" for rank in ranks]
        self.callers = [Caller(name) for name in case.callers]
        self.live: list[Live] = []
        if tls:
            mine = [Live(self.folder / f"caller-{name}", world.ours.issue(name)).tls for name in case.callers]
            self.callers = [Caller(*pair) for pair in zip(case.callers, mine, strict=True)]
            self.live = [Live(self.folder / f"tls-{rank}", self.certificate(rank, hours)) for rank in ranks]
        elif case.tokens:
            self.tokens, known = file_of(self.folder, *case.callers)
            self.callers = [Caller(*pair) for pair in zip(case.callers, [None] * 4, known, strict=True)]
        port = free_port()
        self.processes = [self._start(rank, port) for rank in ranks]

    def certificate(self, rank: int, hours: float = 1) -> Tls:
        """One for this service's program."""
        return self.world.ours.issue(f"party-{rank}", f"party-{rank}", "localhost", hours=hours)

    def _start(self, rank: int, port: int) -> subprocess.Popen[str]:
        case = self.case
        self.held[rank].mkdir()
        words = [str(case), *case.words(self.world, self.folder)]
        words += ["--metrics", str(self.pages[rank]), "--log", str(self.logs[rank])]
        if case.methods:
            words += ["--grace", str(HANG), "--max-requests", str(REQUESTS), "--max-per-client", str(EACH)]
            words += [f"{case.callers[1]}={NAMED}", "--listen", self.addresses[rank]]
        if case.idle:
            words += ["--idle", "2"]
        if case.name == "gc-proxy":
            words += ["--server", self.world.behind[self.tls]]
        if self.tls:
            words += [f"--tls-{name}={getattr(self.live[rank].tls, name)}" for name in ("cert", "key", "ca")]
        elif case.tokens:
            words += ["--tokens", str(self.tokens)]
        with (self.folder / f"out-{rank}").open("wb") as out:
            return (python.Popen if rank else python.Parent)(  # the first one may start a dealer
                [sys.executable, "-m", "tests.jobs.contract", str(self.held[rank]), *words],
                cwd=ROOT,
                env=environment(rank, case.processes, port),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def said(self) -> str:
        """All that its processes have printed."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("out-*")))

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """`until`, as long as its processes run."""

        def met() -> object:
            assert all(process.poll() is None for process in self.processes), self.said()
            return condition()

        until(met, f"{self.case}: {what}")

    def hold(self) -> Started:
        """Return when all of its processes are about to say that they are ready."""
        self.wait(lambda: all((path / "inside").exists() for path in self.held), "to start")
        return self

    def go(self) -> Started:
        """Let it say that it is ready, and wait until it does."""
        for path in self.held:
            (path / "go").touch()
        self.wait(lambda: all(self.page("/readyz", rank)[0] == 200 for rank in range(len(self.pages))), "to be ready")
        return self

    def hasty(self, yes: bool) -> None:
        """Whether silent callers are cut off."""
        for path in self.held:
            (path / "hasty").touch() if yes else (path / "hasty").unlink()

    # What it is asked -------------------------------------------------------------------------------------------------

    def channel(self, caller: Caller, rank: int = 0) -> grpc.Channel:
        """A connection of its own, which has been answered."""
        return rpc_client.connect(self.addresses[rank], caller.tls, HANG, token=caller.token, largest=-1)

    def answered(self, caller: Caller, *open: grpc.Channel) -> None:
        """One request is answered, and rightly. open: a connection for its first message."""
        channels = [*open, *(self.channel(caller, rank) for rank in range(len(open), self.case.processes))]
        try:
            parts = self.case.request(channels, caller.name, HANG)
            calls = [
                rpc_client.begin(channel, self.case.method, part, timeout=HANG)
                for channel, part in zip(channels, parts, strict=True)
            ]
            assert self.case.right(channels, [call.result() for call in calls])
        finally:
            for channel in channels[len(open) :]:
                channel.close()

    def message(self, caller: Caller, seconds: float = HANG) -> bytes:
        """The first message of a good request. seconds: to its deadline, where it has one."""
        channel = self.channel(caller)
        try:
            return self.case.request([channel], caller.name, seconds)[0]
        finally:
            channel.close()

    def health(self, name: str = telemetry.READY) -> str:
        """The word of its health service."""
        return telemetry.ask(self.addresses[0], self.callers[0].tls, HANG, name)

    def page(self, path: str, rank: int = 0) -> tuple[int, str]:
        """Status and text of a page of its HTTP port; 0 while there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.pages[rank]}{path}", timeout=HANG) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def figures(self, rank: int = 0) -> dict[str, float]:
        """Its figures, by name and labels."""
        lines = self.page("/metrics", rank)[1].splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}

    def at_work(self, count: int) -> None:
        """Wait until so many calls are at work."""
        self.wait(lambda: self.figures()["hummingbird_requests_in_flight"] == count, f"{count} calls to be at work")

    def events(self, rank: int = 0) -> list[dict[str, Any]]:
        """The lines of its log."""
        return [json.loads(line) for line in self.logs[rank].read_text().splitlines()]

    def calls(self) -> list[dict[str, Any]]:
        """The lines of calls of its log."""
        return [event for event in self.events() if event["event"] == "call"]

    # Its end ----------------------------------------------------------------------------------------------------------

    def terminate(self, rank: int = 0) -> None:
        """SIGTERM."""
        self.processes[rank].send_signal(signal.SIGTERM)

    def ended(self, rank: int = 0) -> int:
        """The exit code."""
        return self.processes[rank].wait(HANG)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def bomb(path: Path) -> bytes:
    """A pickle that makes a folder where somebody loads it."""

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(path),)

    return pickle.dumps(Bomb())
