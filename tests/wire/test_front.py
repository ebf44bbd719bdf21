"""What all services share: who is let in, health, metrics, log, limits, and the end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from hummingbird.__main__ import main
from hummingbird.errors import (
    AccessError,
    ConfigError,
    EnvironmentProblem,
    HummingbirdError,
    InputError,
    NotFoundError,
    OverloadError,
    PeerError,
    StoreError,
    TrustError,
    UnavailableError,
)
from hummingbird.wire import service
from hummingbird.wire.front import Front, ServiceConfig
from hummingbird.wire.gate import Limits, caller_name
from hummingbird.wire.tokens import Tokens, line_of, new_token, read_token
from hummingbird.wire.trust import Tls
from tests.support.dealers import Authority
from tests.support.paths import ROOT
from tests.support.patience import HANG, until


def asked(address: str, method: str, data: bytes = b"", *, timeout: float = HANG, **caller: object) -> bytes:
    """One call on a channel of its own."""
    channel = service.connect(address, timeout=timeout, **caller)  # type: ignore[arg-type]
    try:
        return service.call(channel, method, data, timeout=timeout)
    except grpc.RpcError as error:
        raise service.explain(error, address) from None
    finally:
        channel.close()


def name(request: bytes, context: grpc.ServicerContext) -> bytes:
    return repr(caller_name(context)).encode()


HANDLERS = {"Name": name, "Echo": lambda request, context: request}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def file_of(folder: Path, *names: str) -> tuple[Path, list[str]]:
    """A service's file of tokens, and the tokens."""
    tokens = [new_token() for _ in names]
    path = folder / "tokens"
    path.write_text("# who may call\n\n" + "".join(map(line_of, names, tokens)))
    path.chmod(0o600)
    return path, tokens


# Who is let in --------------------------------------------------------------------------------------------------------


def test_tokens_name_their_callers(tmp_path: Path) -> None:
    path, (alice, bob) = file_of(tmp_path, "alice", "bob")
    with Front("test", ServiceConfig((f"unix:{tmp_path}/s",), tokens=path)) as front:
        front.serve(HANDLERS)
        address = f"unix:{tmp_path}/s"
        assert asked(address, "Name", token=alice) == b"'alice'" and asked(address, "Name", token=bob) == b"'bob'"
        with pytest.raises(AccessError, match="wants a token"):
            asked(address, "Name")
        for wrong in (new_token(), alice[:-1], alice + "0", alice.upper(), "x"):
            with pytest.raises(AccessError, match="does not know the token"):
                asked(address, "Name", token=wrong)
        channel = service.connect(address, timeout=HANG, token=alice)
        path.write_text(path.read_text().replace("alice", "# alice"))
        with pytest.raises(grpc.RpcError) as caught:  # on an open connection too
            service.call(channel, "Name", b"", timeout=HANG)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        path.chmod(0o666)
        with pytest.raises(AccessError, match="cannot read its tokens"):
            os.utime(path, (1, 1))
            asked(address, "Name", token=bob)
        channel.close()


def test_tokens_over_tls_of_the_server_alone(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    issued, (path, (alice,)) = ours.issue("server", "localhost"), file_of(tmp_path, "alice")
    address = f"localhost:{free_port()}"
    with Front("test", ServiceConfig((address,), tls=Tls(issued.cert, issued.key), tokens=path)) as front:
        front.serve(HANDLERS)
        assert asked(address, "Name", tls=Tls(ca=ours.path), token=alice) == b"'alice'"
        with pytest.raises(AccessError, match="wants a token"):
            asked(address, "Name", tls=Tls(ca=ours.path))
        with pytest.raises(AccessError, match="wants a token"):  # a certificate is no token
            asked(address, "Name", tls=ours.issue("alice"))
        with pytest.raises(PeerError, match="TLS failed"):
            asked(address, "Name", tls=Tls(ca=Authority(tmp_path, "theirs").path), token=alice)
        with pytest.raises(PeerError, match="refused"):  # nobody sends a token in plain text unawares
            asked(address, "Name", token=alice)


def test_certificates_name_their_callers(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    address = f"localhost:{free_port()}"
    with Front("test", ServiceConfig((address,), tls=ours.issue("server", "localhost"))) as front:
        front.serve(HANDLERS)
        assert asked(address, "Name", tls=ours.issue("carol")) == b"'carol'"


def test_what_does_not_go_together_is_refused_before_anything_listens(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    issued, (path, _) = ours.issue("server", "localhost"), file_of(tmp_path, "alice")
    alone = Tls(issued.cert, issued.key)
    with pytest.raises(TrustError, match="not by both"):
        ServiceConfig(("unix:x",), tls=issued, tokens=path)
    for wrong in ({"cert": issued.cert}, {"key": issued.key, "ca": issued.ca}, {}):
        with pytest.raises(TrustError, match="TLS needs"):
            Tls(**wrong)
    for tls, tokens, match in (
        (alone, None, "certificate or a token"),  # whoever comes would be let in
        (Tls(ca=issued.ca), path, "needs a certificate"),
        (None, path, "plain text"),
    ):
        with Front("test", ServiceConfig(("0.0.0.0:9",), tls=tls, tokens=tokens)) as front:
            with pytest.raises(TrustError, match=match):
                front.serve(HANDLERS)
    with pytest.raises(TrustError, match="authority"):
        service.connect("localhost:9", alone, timeout=1)
    with pytest.raises(TrustError, match="both sides"):
        alone.contexts()


def test_files_of_tokens_that_are_wrong(tmp_path: Path) -> None:
    path, (token,) = file_of(tmp_path, "alice")
    good = path.read_text()
    for text, match in (
        ("", "holds no token"),
        (good + "alice\n", "line 4"),
        (good + f"al/ice {'0' * 64}\n", "not a name"),
        (good + f"bob {'0' * 63}\n", "line 4"),
        (good + good.replace("alice", "bob"), "same token"),
        ("al " + token + "\n" + "x" * 9, "line 2"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=match):
            Tokens(path)
    path.write_text(good)
    path.chmod(0o620)
    with pytest.raises(EnvironmentProblem, match="mode 620"):
        Tokens(path)
    with pytest.raises(EnvironmentProblem, match="No such file"):
        Tokens(tmp_path / "none")


def test_the_command_makes_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["token", "alice", "--tokens", f"{tmp_path}/tokens", "--out"]
    assert main([*words, f"{tmp_path}/alice"]) == 0
    assert main([*words, f"{tmp_path}/alice2"]) == 0  # a second one, before the first is removed
    token = read_token(tmp_path / "alice")
    assert token not in (tmp_path / "tokens").read_text() and token not in capsys.readouterr().out
    assert (tmp_path / "alice").stat().st_mode & 0o777 == (tmp_path / "tokens").stat().st_mode & 0o777 == 0o600
    with Front("test", ServiceConfig((f"unix:{tmp_path}/s",), tokens=tmp_path / "tokens")) as front:
        front.serve(HANDLERS)
        for file in ("alice", "alice2"):
            assert asked(f"unix:{tmp_path}/s", "Name", token=read_token(tmp_path / file)) == b"'alice'"
    assert main([*words, f"{tmp_path}/alice"]) == 1 and "is there already" in capsys.readouterr().err
    assert main(["token", "a b", "--tokens", f"{tmp_path}/t", "--out", f"{tmp_path}/b"]) == 1
    assert not (tmp_path / "t").exists() and not (tmp_path / "b").exists()
    (tmp_path / "alice").chmod(0o644)
    with pytest.raises(EnvironmentProblem, match="others may read it"):
        read_token(tmp_path / "alice")


def test_expired_certificates_are_refused_with_words(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    expired = ours.issue("expired", "localhost", hours=-1)
    with pytest.raises(EnvironmentProblem, match=r"the certificate expired 20\d\d-.* UTC") as caught:
        service.serve({}, "unix:x", expired)
    assert caught.value.where == str(expired.cert)
    with pytest.raises(EnvironmentProblem, match="expired"):
        service.connect("localhost:9", expired, timeout=1)
    address, (cert, key) = (
        f"localhost:{free_port()}",
        (Path(str(file)).read_bytes() for file in (expired.cert, expired.key)),
    )
    server = grpc.server(None)  # one whose certificate has expired since it began
    server.add_secure_port(address, grpc.ssl_server_credentials([(key, cert)]))
    server.start()
    with pytest.raises(PeerError, match="TLS failed.*(expired|EXPIRED)"):
        service.connect(address, Tls(ca=ours.path), timeout=HANG)
    server.stop(0)


# Errors on the wire ---------------------------------------------------------------------------------------------------

CASES: list[tuple[Exception, str, type[PeerError]]] = [
    (InputError("bad"), "INVALID_ARGUMENT", PeerError),
    (ConfigError("bad"), "INVALID_ARGUMENT", PeerError),
    (TrustError("no"), "PERMISSION_DENIED", AccessError),
    (AccessError("no"), "PERMISSION_DENIED", AccessError),
    (OverloadError("much", retry_after=2.5), "RESOURCE_EXHAUSTED", OverloadError),
    (UnavailableError("gone"), "UNAVAILABLE", UnavailableError),
    (NotFoundError("none"), "NOT_FOUND", NotFoundError),
    (StoreError("used", hint="deal more"), "FAILED_PRECONDITION", PeerError),
    (ValueError("a secret: 4711"), "INTERNAL", PeerError),
]


@pytest.mark.parametrize("error, code, kind", CASES, ids=lambda case: type(case).__name__)
def test_errors_have_their_status_and_their_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception, code: str, kind: type[PeerError]
) -> None:
    def fail(request: bytes, context: grpc.ServicerContext) -> bytes:
        raise error

    def late(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"first"
        raise error

    server = service.serve({"Fail": fail, "Late": late}, f"unix:{tmp_path}/s")
    channel = service.connect(f"unix:{tmp_path}/s", timeout=HANG)
    for call in (
        lambda: service.call(channel, "Fail", b"", timeout=HANG),
        lambda: list(service.stream(channel, "Late", b"", timeout=HANG)),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code().name == code
        told = service.explain(caught.value, "server x")
        assert type(told) is kind and told.where == "server x" and "4711" not in str(told)
        if isinstance(error, HummingbirdError):
            assert (told.what, told.hint) == (error.what, error.hint)
        if isinstance(error, OverloadError):
            assert isinstance(told, OverloadError) and told.retry_after == 2.5 and "2.5 s" in told.hint
    assert "4711" not in caplog.text and ("ValueError" in caplog.text) == (code == "INTERNAL")
    channel.close()
    server.stop(0).wait()


# Health, metrics, log -------------------------------------------------------------------------------------------------


def health(address: str, asks: str = "") -> str:
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        answer = check(health_pb2.HealthCheckRequest(service=asks).SerializeToString(), timeout=HANG)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(health_pb2.HealthCheckResponse.FromString(answer).status)


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG) as page:
        lines = page.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_health_metrics_and_log(tmp_path: Path) -> None:
    ours, port = Authority(tmp_path, "ours"), free_port()
    path, (alice,) = file_of(tmp_path, "alice")
    address, log = f"unix:{tmp_path}/s", tmp_path / "log"
    config = ServiceConfig((address,), tokens=path, metrics=str(port), log=str(log))
    with Front("he-server", config) as front:
        front.serve(HANDLERS)
        assert health(address) == "NOT_SERVING" and scraped(port)["hummingbird_ready"] == 0
        front.ready()
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
            front.ready(False)
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


def test_the_end_of_a_certificate_is_a_metric(tmp_path: Path) -> None:
    port, issued = free_port(), Authority(tmp_path, "ours").issue("server", "localhost", hours=1)
    config = ServiceConfig((f"unix:{tmp_path}/s",), tls=issued, metrics=f"127.0.0.1:{port}")
    with Front("test", config):
        left = scraped(port)['hummingbird_certificate_expiry_timestamp_seconds{file="cert"}'] - time.time()
        assert 0 < left <= 3600
        with pytest.raises(EnvironmentProblem, match="cannot offer metrics"):
            Front("test", config)


# Limits ---------------------------------------------------------------------------------------------------------------


class Held:
    """A method that waits until it is let go."""

    def __init__(self) -> None:
        self.inside, self.go = threading.Semaphore(0), threading.Event()

    def __call__(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.inside.release()
        assert self.go.wait(HANG)
        return b"done"


def begun(held: Held, channel: grpc.Channel, count: int) -> list[threading.Thread]:
    threads = [
        threading.Thread(target=service.call, args=(channel, "Held", b"x"), kwargs={"timeout": HANG})
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert held.inside.acquire(timeout=HANG)
    return threads


def test_a_caller_with_many_calls_is_told_to_wait_and_others_are_served(tmp_path: Path) -> None:
    path, (alice, bob) = file_of(tmp_path, "alice", "bob")
    address, held = f"unix:{tmp_path}/s", Held()
    limits = Limits(requests=5, per_client=3, client_bytes=9 << 20)
    with Front("test", ServiceConfig((address,), tokens=path, limits=limits)) as front:
        front.serve({**HANDLERS, "Held": held})
        hers, his = (service.connect(address, timeout=HANG, token=token) for token in (alice, bob))
        threads = begun(held, hers, 3)
        with pytest.raises(grpc.RpcError) as caught:
            service.call(hers, "Echo", b"", timeout=HANG)
        told = service.explain(caught.value, "x")
        assert isinstance(told, OverloadError) and "3 calls of yours" in told.what and told.retry_after > 0
        assert service.call(his, "Echo", b"x", timeout=HANG) == b"x"
        threads += begun(held, his, 2)
        with pytest.raises(grpc.RpcError) as caught:
            service.call(his, "Echo", b"", timeout=HANG)
        assert "5 calls are at work" in str(caught.value.details())
        assert health(address) == "NOT_SERVING"  # which is asked for all the same
        held.go.set()
        for thread in threads:
            thread.join(HANG)
        assert service.call(hers, "Echo", b"x", timeout=HANG) == b"x"
        for channel in (hers, his):
            channel.close()


def test_bytes_of_a_caller_are_bounded(tmp_path: Path) -> None:
    path, (alice,) = file_of(tmp_path, "alice")
    with Front(
        "test", ServiceConfig((f"unix:{tmp_path}/s",), tokens=path, limits=Limits(client_bytes=3 << 20))
    ) as front:
        front.serve(HANDLERS)
        channel = service.connect(f"unix:{tmp_path}/s", timeout=HANG, token=alice)
        for size, fits in ((1 << 20, True), (2 << 20, False), (1 << 20, True)):  # request and answer are both held
            try:
                assert len(service.call(channel, "Echo", bytes(size), timeout=HANG)) == size and fits
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and not fits
        channel.close()


def test_a_slow_reader_and_a_slow_sender_hold_up_nobody(tmp_path: Path) -> None:
    """More of both than there may be calls at work: each is cancelled after its time, others go on meanwhile."""
    address, ended = f"unix:{tmp_path}/s", threading.Semaphore(0)

    def much(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(ended.release)
        for _ in range(64):
            yield bytes(service.CHUNK)

    with Front("test", ServiceConfig((address,), limits=Limits(requests=8, stall=1.0))) as front:
        front.serve({**HANDLERS, "Much": much})
        silent = threading.Event()
        channel, other = (service.connect(address, timeout=HANG) for _ in range(2))
        unread = [service.stream(channel, "Much", b"", timeout=HANG) for _ in range(4)]
        unsent = [
            service.exchange(channel, "Echo", iter(lambda: silent.wait() or b"", b""), timeout=HANG) for _ in range(3)
        ]
        until(lambda: front.gate.in_flight == 7)
        assert service.call(other, "Echo", b"x", timeout=HANG) == b"x"
        until(lambda: front.gate.in_flight == 0)
        for call in unread:
            assert ended.acquire(timeout=HANG)
            with pytest.raises(grpc.RpcError):
                list(call)
        for call in unsent:
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
            assert caught.value.code() == grpc.StatusCode.CANCELLED
        silent.set()
        assert list(service.stream(other, "Much", b"", timeout=HANG))[-1] == bytes(service.CHUNK)
        for each in (channel, other):
            each.close()


def idle(address: str, count: int) -> list[socket.socket]:
    """Connections that say nothing after gRPC's greeting."""
    host, _, port = address.rpartition(":")
    opened = []
    for _ in range(count):
        opened.append(socket.create_connection((host, int(port)), timeout=HANG))
        opened[-1].sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    return opened


def is_open(connection: socket.socket) -> bool:
    """Whether the other side has not closed it."""
    connection.settimeout(0)
    try:
        while data := connection.recv(1 << 12):
            assert data
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_idle_connections_do_not_stop_a_client_that_has_one(tmp_path: Path, count: int) -> None:
    """Twice as many as may be open: a client with a connection works on, and one that comes later is served then."""
    import resource

    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < count + 2000:
        pytest.skip("this host allows too few open files")
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "tests.jobs.service", "--listen", address, "--max-connections", str(count // 2)]
    with started(command) as process:
        channel = service.connect(address, timeout=HANG)
        resource.setrlimit(resource.RLIMIT_NOFILE, (count + 2000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        opened = idle(address, count)
        for _ in range(20):
            assert service.call(channel, "Echo", b"x", timeout=HANG) == b"x"
        assert sum(map(is_open, opened)) < count // 2
        for each in opened:
            each.close()
        assert asked(address, "Echo", b"y") == b"y"
        channel.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG) == 0


# The end --------------------------------------------------------------------------------------------------------------


class started:
    """A process that has said its first line, killed at the end."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> subprocess.Popen[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "listening on " in line, line + (self.process.stderr.read() if self.process.stderr else "")
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


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
        channel = service.connect(address, timeout=HANG)
        thread, ended = waiting(address)
        until(lambda: (tmp_path / "go.inside").exists())
        process.send_signal(signal.SIGTERM)
        until(lambda: health(address) == "NOT_SERVING")
        with pytest.raises(grpc.RpcError) as caught:
            service.call(channel, "Echo", b"", timeout=HANG)
        told = service.explain(caught.value, "x")
        assert isinstance(told, UnavailableError) and told.what == "this server is stopping"
        with pytest.raises(UnavailableError, match="is stopping"):
            service.connect(address, timeout=0.5)
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


def health_or_none(address: str) -> str | None:
    try:
        return health(address)
    except grpc.RpcError:
        return None


def test_an_error_while_waiting_drains_and_is_raised(tmp_path: Path) -> None:
    def look() -> None:
        raise EnvironmentProblem("a worker died")

    before: list[Callable[..., object] | int | None] = [signal.getsignal(signal.SIGTERM)]
    with pytest.raises(EnvironmentProblem, match="a worker died"):
        with Front("test", ServiceConfig((f"unix:{tmp_path}/s",))) as front:
            front.serve(HANDLERS)
            front.wait(look)
    assert before == [signal.getsignal(signal.SIGTERM)]
    with pytest.raises(PeerError, match="nothing answers"):
        service.connect(f"unix:{tmp_path}/s", timeout=0.2)
