"""The parts that all services share: health, metrics, log, and the end."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from hummingbird.errors import (
    AccessError,
    EnvironmentProblem,
    PeerError,
)
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc.admission import Record
from hummingbird.rpc.server import ServiceConfig, ServiceProgram
from hummingbird.rpc.telemetry import Log
from tests.support.patience import HANG, until
from tests.support.ports import free_port
from tests.support.services import HANDLERS, asked, file_of, health_or_none, started

# Health, metrics, log -------------------------------------------------------------------------------------------------


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG) as page:
        lines = page.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_a_watcher_hears_of_changes_and_no_value_is_logged(tmp_path: Path) -> None:
    path, (alice,) = file_of(tmp_path, "alice")
    address, log, told = f"unix:{tmp_path}/s", tmp_path / "log", list[int]()
    with ServiceProgram("test", ServiceConfig((address,), tokens=path, log=str(log))) as program:
        program.serve(HANDLERS)
        program.ready()
        with grpc.insecure_channel(address) as channel:
            watched = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=HANG)
            told.append(next(watched)[1])
            secret = b"a value that is nobody's business"
            assert asked(address, "Echo", secret, token=alice) == secret
            with pytest.raises(AccessError):
                asked(address, "Echo", secret)
            program.ready(False)
            told.append(next(watched)[1])
            watched.cancel()
    assert told == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    calls = [(line["method"], line["outcome"]) for line in lines if line["event"] == "call"]
    assert calls == [("Ping", "OK"), ("Echo", "OK"), ("Ping", "UNAUTHENTICATED")]
    assert "nobody" not in log.read_text()


def test_strangers_do_not_fill_the_log(tmp_path: Path) -> None:
    log = Log("test", str(tmp_path / "log"))
    begun = time.monotonic()
    for _ in range(1000):
        log.call(Record("Ping", None, "UNAUTHENTICATED", 0.0, 0, 0))
    log.call(Record("Ping", "alice", "OK", 0.0, 0, 0))
    log.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert 11 <= len(lines) <= 10 * (2 + time.monotonic() - begun) + 1 and "alice" in lines[-1]


def test_a_full_disk_costs_lines_and_no_answers() -> None:
    log = Log("test", "/dev/full")
    log.call(Record("Ping", None, "OK", 0.0, 0, 0))
    assert log.lost == 1
    with pytest.raises(EnvironmentProblem, match="cannot write the log"):
        Log("test", "/dev/full/log")


def test_a_port_for_figures_that_is_taken(tmp_path: Path) -> None:
    config = ServiceConfig((f"unix:{tmp_path}/s",), metrics=f"127.0.0.1:{free_port()}")
    with ServiceProgram("test", config), pytest.raises(EnvironmentProblem, match="cannot offer metrics"):
        ServiceProgram("test", config)


# The end --------------------------------------------------------------------------------------------------------------


def waiting(address: str) -> tuple[threading.Thread, list[bytes | str]]:
    """A call that the job's method holds for as long as its file is missing, and what became of it."""
    ended: list[bytes | str] = []

    def run() -> None:
        try:
            ended.append(asked(address, "Wait", b""))
        except PeerError as error:
            ended.append(error.what)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ended


def test_grace_ends_and_a_second_signal_does_at_once(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    for grace, first, code in (("0.5", signal.SIGINT, 0), ("600", signal.SIGTERM, -signal.SIGTERM)):
        go = tmp_path / f"go{grace}"
        command = [sys.executable, "-m", "tests.jobs.service", "--listen", address, "--go", str(go), "--grace", grace]
        with started(command) as process:
            thread, ended = waiting(address)
            until(lambda go=go: Path(f"{go}.inside").exists())
            process.send_signal(first)
            until(lambda: process.poll() is not None or health_or_none(address) != "SERVING")
            if code:
                process.send_signal(signal.SIGTERM)
            assert process.wait(HANG) == code
            thread.join(HANG)
            assert isinstance(ended[0], str)


def test_an_error_while_waiting_drains_and_is_raised(tmp_path: Path) -> None:
    def look() -> None:
        raise EnvironmentProblem("a worker died")

    before: list[Callable[..., object] | int | None] = [signal.getsignal(signal.SIGTERM)]
    with pytest.raises(EnvironmentProblem, match="a worker died"):
        with ServiceProgram("test", ServiceConfig((f"unix:{tmp_path}/s",))) as program:
            program.serve(HANDLERS)
            program.wait(look)
    assert before == [signal.getsignal(signal.SIGTERM)]
    with pytest.raises(PeerError, match="nothing answers"):
        rpc_client.connect(f"unix:{tmp_path}/s", timeout=0.2)
