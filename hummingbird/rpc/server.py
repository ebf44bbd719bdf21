"""The servers of a program: limits, health, metrics, log, and an orderly end.

    with ServiceProgram("he-server", config) as program:  # handles SIGTERM and SIGINT from here on
        program.serve(service.handlers())                # listens; health says NOT_SERVING
        program.ready()                                  # health says SERVING
        print(program.line, flush=True)
        program.wait()                                   # until a signal
    # drained: new calls are refused as UNAVAILABLE; running calls have ended, or `grace` seconds have passed

A second signal ends the process at once, or has no effect (`second`).
"""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import grpc

from hummingbird.errors import TrustError, needs
from hummingbird.rpc import spans
from hummingbird.rpc.admission import Admission, Limits, Record
from hummingbird.rpc.security import Certificates, Tls, Tokens
from hummingbird.rpc.service import Brief, Exchange, Method, serve
from hummingbird.rpc.signals import Flag
from hummingbird.rpc.telemetry import Health, Log

if TYPE_CHECKING:
    from hummingbird.rpc.metrics import Metrics

GRACE = 30.0  # seconds
_POLL = 0.2  # seconds between two checks whether the program is to end
_LAST = 1.0  # seconds for the last status to reach its caller
_FILES = 512  # file descriptors beside those of connections
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class ServiceConfig:
    """An operator's configuration of a server program; `rpc.options.service_of` reads it from command-line options.

    listen: the addresses, unix:PATH or HOST:PORT. tls: certificate files: all three for callers with certificates, cert
    and key alone for callers with tokens. tokens: the token file. metrics: [HOST:]PORT of the page for Prometheus;
    None: no page. log: a file, "-" for standard error, None: no log. trace: whether to record spans (spans.py). limits:
    limits on callers. grace: seconds that calls at work may take to end.
    Raises TrustError if callers are to show both certificates and tokens.
    """

    listen: tuple[str, ...]
    tls: Tls | None = None
    tokens: Path | None = None
    metrics: str | None = None
    log: str | None = None
    trace: bool = False
    limits: Limits = field(default_factory=Limits)
    grace: float = GRACE

    def __post_init__(self) -> None:
        if self.tokens is not None and self.tls is not None and self.tls.mutual:
            hint = "with tokens, name no authority of callers (--tls-ca)"
            raise TrustError("callers are known by certificates or by tokens, not by both", hint=hint)


class ServiceProgram:
    """Runs the servers of a program with their health, log and metrics, in a `with` block, at whose end they stop.

    name: of the program. config: addresses, certificates, limits and so on. `metrics`: the numbers for Prometheus, or
    None if the configuration has no address for them; a service adds its own to `metrics.registry`. second: whether a
    second signal ends the process at once; False for a program that a launcher starts: a service manager may signal
    both, and the launcher passes its signal on, so that the program gets one stop as two signals.
    Raises errors of `rpc.service.serve`, Tokens, Log and Page, and EnvironmentProblem for metrics without
    prometheus-client.
    """

    def __init__(self, name: str, config: ServiceConfig, *, second: bool = True) -> None:
        self.name, self.config, self._second = name, config, second
        self.line = f"{name} listening on {' '.join(config.listen)}"
        self.told = Flag()  # set when the program is to end
        self._health = Health()
        self._ends = ExitStack()
        self._servers: list[grpc.Server] = []
        limits = replace(config.limits, connections=_room_for(config.limits.connections))
        if config.trace:
            spans.enable()
        with ExitStack() as ends:
            tokens = None if config.tokens is None else Tokens(config.tokens)
            self._log = None if config.log is None else Log(name, config.log)
            if self._log is not None:
                ends.callback(self._log.close)
            self._certificates = None
            if config.tls is not None:
                self._certificates = Certificates(config.tls, lambda: self.say("certificates renewed"))
            self.metrics: Metrics | None = None
            self.gate = Admission(limits, tokens, self._ended)
            for gate in (self.gate, self._health.gate):
                gate.watch()
                ends.callback(gate.close)
            if config.metrics is not None:
                with needs("serve", "--metrics"):
                    from hummingbird.rpc.metrics import Metrics, Page
                self.metrics = Metrics(self._certificates, lambda: self.gate.in_flight)
                page = Page(self.metrics.registry, config.metrics, lambda: self._health.serving)
                ends.callback(page.close)
            self._ends = ends.pop_all()

    def serve(self, handlers: Mapping[str, Method | Exchange | Brief], address: str | None = None) -> None:
        """Start a server of methods at an address; health probes get NOT_SERVING until `ready`.

        handlers: methods by name, as for `rpc.service.serve`. address: by default the first one in the configuration.
        """
        address = self.config.listen[0] if address is None else address
        health = (self._health.gate, self._health.handlers())
        if self.metrics is not None:
            self.metrics.offer(handlers)
        self._servers.append(serve(handlers, address, self._certificates, gate=self.gate, health=health))
        self.say("listening", address=address)

    def ready(self, yes: bool = True) -> None:
        """Let this program's health service say that it serves (SERVING) or, if `yes` is false, that it does not."""
        if self._health.set(yes and not self.stopping):
            self.say("ready" if self._health.serving else "not ready")
        if self.metrics is not None:
            self.metrics.ready.set(self._health.serving)

    def part(self, name: str, serving: bool | None) -> None:
        """Let the health service say whether a part of this program serves. serving: None for a part that is gone."""
        self._health.part(name, serving)

    @property
    def stopping(self) -> bool:
        """Whether this program was told to end."""
        return self.told.is_set()

    def wait(self, look: Callable[[], object] = lambda: None) -> None:
        """Wait until this program is told to end. look: called five times a second meanwhile; its errors are raised."""
        while not self.told.wait(_POLL):
            look()

    def stop(self) -> None:
        """Tell this program to end, as a signal does; returns at once."""
        self.told.set()

    def __enter__(self) -> ServiceProgram:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._ends.callback(signal.signal, number, signal.signal(number, self._on_signal))
        return self

    def __exit__(self, *_: object) -> None:
        self.told.set()
        with self._ends:
            self.ready(False)
            self.say("draining", at_work=self.gate.in_flight)
            in_time = self.gate.drain(self.config.grace)
            for ended in [server.stop(_LAST if in_time else 0) for server in self._servers]:
                ended.wait(2 * _LAST)
            self.say("stopped", in_time=in_time)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.told.set()
        for each in _SIGNALS if self._second else ():
            signal.signal(each, signal.SIG_DFL)

    def _ended(self, record: Record) -> None:
        if self.metrics is not None:
            self.metrics.count(record)
        if self._log is not None:
            self._log.call(record)

    def say(self, event: str, **fields: object) -> None:
        """Write a line to this program's log, if it has one. event: what has happened. fields: more facts, by name."""
        if self._log is not None:
            self._log.event(event, **fields)


def _room_for(connections: int) -> int:
    """Return how many connections this process can have open, at most `connections`; each takes one open file.

    First raises the process's soft limit of open files as far as needed for this, up to the hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else min(connections, max(soft - _FILES, soft // 2))
