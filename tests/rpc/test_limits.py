"""Limits on one caller of a service, so that others are served."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from hummingbird.errors import (
    OverloadError,
)
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc import service
from hummingbird.rpc.admission import Limits, Quota
from hummingbird.rpc.server import ServiceConfig, ServiceProgram
from tests.support.patience import HANG, until
from tests.support.ports import free_port
from tests.support.services import HANDLERS, asked, file_of, health, started


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
        threading.Thread(target=rpc_client.call, args=(channel, "Held", b"x"), kwargs={"timeout": HANG})
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert held.inside.acquire(timeout=HANG)
    return threads


def test_the_last_room_is_for_names_that_hold_little() -> None:
    """However many names take as much as each may have, another one finds room."""
    room = Quota("calls", "at work", most=256, each=64)
    for name in range(24):
        with pytest.raises(OverloadError):
            while True:
                room.enter(str(name))
    assert room.taken < 256
    room.check("another")
    room.leave("0", 64)
    room.check("another", 9)
    with pytest.raises(OverloadError, match="the room that is left is for callers with few"):
        room.check("another", 10)
    with pytest.raises(OverloadError, match="64 calls of yours are at work, the most"):
        room.check("another", 65)
    nameless = Quota("calls", "at work", most=4, each=1)
    nameless.enter(None, 4)
    with pytest.raises(OverloadError, match="4 calls are at work, the most"):
        nameless.check(None)


def test_a_full_service_says_what_it_is_to_who_asks(tmp_path: Path) -> None:
    """Brief calls have room of their own, which silent callers do not fill either."""
    path, (alice, bob) = file_of(tmp_path, "alice", "bob")
    address, held = f"unix:{tmp_path}/s", Held()
    with ServiceProgram("test", ServiceConfig((address,), tokens=path, limits=Limits(requests=3))) as program:
        program.serve({"Held": held, "Who": service.Brief(HANDLERS["Name"])})
        hers = rpc_client.connect(address, timeout=HANG, token=alice)
        threads = begun(held, hers, 3)
        silent = threading.Event()
        unsent = [
            rpc_client.exchange(hers, "Who", iter(lambda: silent.wait() or b"", b""), timeout=HANG) for _ in range(20)
        ]
        until(lambda: program.gate.in_flight == 3 + 16)
        assert asked(address, "Who", token=bob) == b"'bob'"
        silent.set()
        for call in unsent:
            call.cancel()
        held.go.set()
        for thread in threads:
            thread.join(HANG)
        hers.close()


def test_bytes_of_a_caller_are_bounded(tmp_path: Path) -> None:
    path, (alice,) = file_of(tmp_path, "alice")
    with ServiceProgram(
        "test", ServiceConfig((f"unix:{tmp_path}/s",), tokens=path, limits=Limits(client_bytes=3 << 20))
    ) as program:
        program.serve(HANDLERS)
        channel = rpc_client.connect(f"unix:{tmp_path}/s", timeout=HANG, token=alice)
        for size, fits in ((1 << 20, True), (2 << 20, False), (1 << 20, True)):  # request and answer are both held
            try:
                assert len(rpc_client.call(channel, "Echo", bytes(size), timeout=HANG)) == size and fits
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and not fits
        channel.close()


def test_messages_of_a_stream_are_small(tmp_path: Path) -> None:
    """A few of them are kept, and are counted as so many bytes of this size."""
    echo = service.Exchange(lambda requests, context: requests)
    with ServiceProgram("test", ServiceConfig((f"unix:{tmp_path}/s",))) as program:
        program.serve({"Each": echo})
        channel = rpc_client.connect(f"unix:{tmp_path}/s", timeout=HANG)
        for size in (service.CHUNK, service.CHUNK + 1):
            answers = rpc_client.exchange(channel, "Each", iter([bytes(size)]), timeout=HANG)
            if size == service.CHUNK:
                assert list(answers) == [bytes(size)]
                continue
            with pytest.raises(grpc.RpcError) as caught:
                list(answers)
            assert f"a message of {size} bytes" in str(caught.value.details())
        channel.close()


def test_a_slow_reader_and_a_slow_sender_hold_up_nobody(tmp_path: Path) -> None:
    """More of both than there may be calls at work: each is cancelled after its time, others go on meanwhile."""
    address, ended = f"unix:{tmp_path}/s", threading.Semaphore(0)

    def much(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(ended.release)
        for _ in range(64):
            yield bytes(service.CHUNK)

    with ServiceProgram("test", ServiceConfig((address,), limits=Limits(requests=8, stall=1.0))) as program:
        program.serve({**HANDLERS, "Much": much})
        silent = threading.Event()
        channel, other = (rpc_client.connect(address, timeout=HANG) for _ in range(2))
        unread = [rpc_client.stream(channel, "Much", b"", timeout=HANG) for _ in range(4)]
        unsent = [
            rpc_client.exchange(channel, "Echo", iter(lambda: silent.wait() or b"", b""), timeout=HANG)
            for _ in range(3)
        ]
        until(lambda: program.gate.in_flight == 7)
        assert rpc_client.call(other, "Echo", b"x", timeout=HANG) == b"x"
        until(lambda: program.gate.in_flight == 0)
        for call in unread:
            assert ended.acquire(timeout=HANG)
            with pytest.raises(grpc.RpcError):
                list(call)
        for call in unsent:
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
            assert caught.value.code() == grpc.StatusCode.CANCELLED
        silent.set()
        assert list(rpc_client.stream(other, "Much", b"", timeout=HANG))[-1] == bytes(service.CHUNK)
        for each in (channel, other):
            each.close()


def test_a_call_that_goes_on_for_ever_is_ended(tmp_path: Path) -> None:
    """Its caller reads all that comes, so that nothing stands still."""
    address = f"unix:{tmp_path}/s"

    def on_and_on(data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        while context.is_active():
            time.sleep(0.01)
            yield b"more"

    with ServiceProgram("test", ServiceConfig((address,), limits=Limits(seconds=1.0))) as program:
        program.serve({**HANDLERS, "On": on_and_on})
        with rpc_client.connect(address, timeout=HANG) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                for _ in rpc_client.stream(channel, "On", b"", timeout=HANG):
                    pass
            assert caught.value.code() == grpc.StatusCode.CANCELLED
            assert rpc_client.call(channel, "Echo", b"x", timeout=HANG) == b"x"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def unread_checks(address: str, count: int, method: str = "Check") -> socket.socket:
    """A connection that asks for health so many times, and that lets no byte of an answer come."""
    host, _, port = address.rpartition(":")
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/grpc.health.v1.Health/{method}",
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(  # as literals (RFC 7541, 6.2.2)
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers.items()
    )
    window = (4).to_bytes(2, "big") + (0).to_bytes(4, "big")  # SETTINGS_INITIAL_WINDOW_SIZE
    data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, window)
    for number in range(count):
        stream = 2 * number + 1
        data += frame(1, 4, stream, block) + frame(0, 1, stream, bytes(5))
    connection = socket.create_connection((host, int(port)), timeout=HANG)
    connection.sendall(data)
    return connection


@pytest.mark.parametrize("method, each, connections", [("Check", 8, 1), ("Check", 8, 10), ("Watch", 2, 10)])
def test_connections_that_leave_answers_unread_do_not_turn_health_off(
    tmp_path: Path, method: str, each: int, connections: int
) -> None:
    with ServiceProgram("test", ServiceConfig((address := f"127.0.0.1:{free_port()}",))) as program:
        program.serve(HANDLERS)
        program.ready()
        gate = program._health.gate
        attackers = [unread_checks(address, 60, method) for _ in range(connections)]
        until(lambda: gate.in_flight >= min(each * connections, 70))
        for _ in range(5):
            assert health(address) == "SERVING"
        with grpc.insecure_channel(address) as channel:
            watched = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=HANG)
            assert next(watched)
        for each_one in attackers:
            each_one.close()
        until(lambda: gate.in_flight == 0)


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
        channel = rpc_client.connect(address, timeout=HANG)
        resource.setrlimit(resource.RLIMIT_NOFILE, (count + 2000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        opened = idle(address, count)
        for _ in range(20):
            assert rpc_client.call(channel, "Echo", b"x", timeout=HANG) == b"x"
        deadline = time.monotonic() + HANG  # a busy server closes those that are too many a little later
        while sum(map(is_open, opened)) >= count // 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for each in opened:
            each.close()
        assert asked(address, "Echo", b"y") == b"y"
        channel.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG) == 0
