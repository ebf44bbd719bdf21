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
    UnavailableError,
)
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc.admission import Record
from hummingbird.rpc.server import ServiceConfig, ServiceProgram
from hummingbird.rpc.status import explain
from hummingbird.rpc.telemetry import Log
from tests.support.dealers import Authority
from tests.support.patience import HANG, until
from tests.support.ports import free_port
from tests.support.services import HANDLERS, asked, file_of, health, health_or_none, started

# Health, metrics, log -------------------------------------------------------------------------------------------------


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG) as page:
        lines = page.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def page(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=HANG) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_pages_for_probes(tmp_path: Path) -> None:
    """Whether a program lives, and whether it serves; at other paths there is nothing."""
    port = free_port()
    with ServiceProgram("test", ServiceConfig((f"unix:{tmp_path}/s",), metrics=str(port))) as program:
        program.serve(HANDLERS)
        assert (page(port, "/livez"), page(port, "/readyz")) == ((200, "alive\n"), (503, "not ready\n"))
        program.ready()
        assert (page(port, "/livez")[0], page(port, "/readyz?verbose")) == (200, (200, "ready\n"))
        assert page(port, "/metrics?name[]=hummingbird_ready")[1].endswith("hummingbird_ready 1.0\n")
        for path in ("/", "/metrics/", "/anything", "/livez/ping"):
            assert page(port, path)[0] == 404, path
        program.ready(False)
        assert (page(port, "/livez")[0], page(port, "/readyz")[0]) == (200, 503)


def test_health_metrics_and_log(tmp_path: Path) -> None:
    ours, port = Authority(tmp_path, "ours"), free_port()
    path, (alice,) = file_of(tmp_path, "alice")
    address, log = f"unix:{tmp_path}/s", tmp_path / "log"
    config = ServiceConfig((address,), tokens=path, metrics=str(port), log=str(log))
    with ServiceProgram("he-server", config) as program:
        program.serve(HANDLERS)
        assert health(address) == "NOT_SERVING" and scraped(port)["hummingbird_ready"] == 0
        counted = scraped(port)
        for method in HANDLERS:  # from zero: an alert would not see the first event of a series that begins with it
            assert counted[f'hummingbird_requests_total{{method="{method}",outcome="INTERNAL"}}'] == 0
        program.ready()
        assert health(address) == health(address, "hummingbird") == "SERVING"  # without a token
        with pytest.raises(grpc.RpcError) as caught:
            health(address, "other")
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        told: list[int] = []
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
        now = scraped(port)
    assert now['hummingbird_requests_total{method="Echo",outcome="OK"}'] == 1
    assert now['hummingbird_requests_total{method="Ping",outcome="OK"}'] == 1
    assert now['hummingbird_requests_total{method="Ping",outcome="UNAUTHENTICATED"}'] == 1
    assert now['hummingbird_request_duration_seconds_count{method="Echo"}'] == 1
    assert now['hummingbird_message_bytes_total{direction="in"}'] == len(secret)
    assert now["hummingbird_requests_in_flight"] == 0 and now["process_open_fds"] > 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["event"] for line in lines if line["event"] != "call"] == [
        *("listening", "ready", "not ready", "draining", "stopped")
    ]
    calls = [line for line in lines if line["event"] == "call"]
    assert {key: calls[1][key] for key in ("service", "method", "client", "outcome", "in", "out")} == {
        "service": "he-server", "method": "Echo", "client": "alice", "outcome": "OK",
        "in": len(secret), "out": len(secret),
    }  # fmt: skip
    assert calls[2]["outcome"] == "UNAUTHENTICATED" and calls[2]["client"] is None
    assert "nobody" not in log.read_text() and alice not in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError):
        scraped(port)
    assert not (tmp_path / "ours-x.crt").exists() and ours.path.exists()


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


def test_the_end_of_a_certificate_is_a_metric(tmp_path: Path) -> None:
    port, issued = free_port(), Authority(tmp_path, "ours").issue("server", "localhost", hours=1)
    config = ServiceConfig((f"unix:{tmp_path}/s",), tls=issued, metrics=f"127.0.0.1:{port}")
    with ServiceProgram("test", config):
        left = scraped(port)['hummingbird_certificate_expiry_timestamp_seconds{file="cert"}'] - time.time()
        assert 0 < left <= 3600
        with pytest.raises(EnvironmentProblem, match="cannot offer metrics"):
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


def test_a_signal_drains(tmp_path: Path) -> None:
    address, go, log = f"unix:{tmp_path}/s", tmp_path / "go", tmp_path / "log"
    with started(
        [sys.executable, "-m", "tests.jobs.service", "--listen", address, "--go", str(go), "--log", str(log)]
    ) as process:
        assert health(address) == "SERVING"
        channel = rpc_client.connect(address, timeout=HANG)
        thread, ended = waiting(address)
        until(lambda: (tmp_path / "go.inside").exists())
        process.send_signal(signal.SIGTERM)
        until(lambda: health(address) == "NOT_SERVING")
        with pytest.raises(grpc.RpcError) as caught:
            rpc_client.call(channel, "Echo", b"", timeout=HANG)
        told = explain(caught.value, "x")
        assert isinstance(told, UnavailableError) and told.what == "this server is stopping"
        with pytest.raises(UnavailableError, match="is stopping"):
            rpc_client.connect(address, timeout=0.5)
        assert process.poll() is None and not ended
        go.touch()
        thread.join(HANG)
        assert ended == [b"done"] and process.wait(HANG) == 0
        channel.close()
    assert json.loads(log.read_text().splitlines()[-1])["in_time"] is True


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
