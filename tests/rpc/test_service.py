"""gRPC addresses and mutual TLS, and the stand-in dealer."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import warnings

import grpc
import pytest

from hummingbird.errors import DealerError, EnvironmentProblem, InputError, PeerError, TrustError
from hummingbird.mpc.dealer.client import DealerClient, LocalDealer
from hummingbird.mpc.dealer.server import DealerService, handlers
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc import service
from hummingbird.rpc.security import check_own_folder
from hummingbird.rpc.service import Tls
from tests.support.correlation_checks import CASES, take_and_check
from tests.support.dealers import Authority
from tests.support.patience import HANG, NEVER, until
from tests.support.ports import free_port


def test_local_stand_in():
    with pytest.warns(UserWarning, match="NO privacy"):
        LocalDealer(0, 2, [bytes(16), bytes(16)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = LocalDealer(0, 1, [os.urandom(16)])
    (taken,) = take_and_check([alone])
    assert [material.offline_bits for material in taken] == [request.correction_bits for request, _ in CASES]
    with pytest.raises(InputError):
        LocalDealer(2, 2, [bytes(16), bytes(16)])


@pytest.mark.parametrize(
    "address", ["0.0.0.0:5000", "192.0.2.1:5000", "example.org:5000", "[::]:5000", "unix.example:1"]
)
def test_plain_text_stays_on_this_host(address):
    for function in (lambda: service.serve({}, address), lambda: rpc_client.connect(address, timeout=1)):
        with pytest.raises(TrustError, match="plain text") as caught:
            function()
        assert "mutual TLS" in caught.value.hint


@pytest.mark.parametrize(
    "address", ["", "5000", "localhost", "localhost:", ":5000", "::1:5000", "host:0", "host:x", "unix:"]
)
def test_malformed_addresses(address):
    with pytest.raises(InputError):
        rpc_client.connect(address, timeout=1)
    with pytest.raises(InputError, match="107 bytes"):
        service.serve({}, "unix:/" + "x" * 107)


def test_a_folder_of_this_user_alone(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, link = tmp_path / "own", tmp_path / "link"
    own.mkdir(mode=0o700)
    link.symlink_to(own)
    check_own_folder(own / "socket", "here")
    for mode in (0o750, 0o705, 0o710, 0o720, 0o740, 0o701):
        own.chmod(mode)
        with pytest.raises(TrustError, match="is not a folder of this user alone"):
            check_own_folder(own / "socket", "here")
    own.chmod(0o700)
    with pytest.raises(TrustError, match="is not a folder of this user alone"):
        check_own_folder(link / "socket", "here")
    monkeypatch.setattr(os, "geteuid", lambda: own.stat().st_uid + 1)
    with pytest.raises(TrustError, match="is not a folder of this user alone"):
        check_own_folder(own / "socket", "here")


def test_a_unix_socket_is_for_its_user_alone(tmp_path) -> None:
    """Whoever can write to it can call the service. Other files of the program are made as before."""
    mask = os.umask(0)
    try:
        server = service.serve({}, f"unix:{tmp_path}/s")
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
        assert os.umask(0) == 0
    finally:
        os.umask(mask)
    server.stop(0).wait()


def test_an_address_in_use_is_not_taken_over(running, tmp_path):
    with pytest.raises(EnvironmentProblem, match="in use"):
        service.serve({}, running.address)
    with socket.socket(socket.AF_UNIX) as killed:  # what a killed server leaves behind
        killed.bind(str(tmp_path / "s"))
    service.serve({}, f"unix:{tmp_path}/s").stop(0).wait()
    address = f"127.0.0.1:{free_port()}"
    first = service.serve({}, address)
    with pytest.raises(EnvironmentProblem, match="cannot listen"):
        service.serve({}, address)
    first.stop(0).wait()


def test_unreachable_address():
    with pytest.raises(PeerError, match="nothing answers: .*(refused|Deadline Exceeded)"):
        rpc_client.connect("127.0.0.1:1", timeout=0.3)


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """A dealer with mutual TLS on loopback, its authority, and another authority."""
    folder = tmp_path_factory.mktemp("tls")
    ours, theirs = Authority(folder, "ours"), Authority(folder, "theirs")
    certificate = ours.issue("dealer", "localhost")
    address = f"localhost:{free_port()}"
    server = service.serve(handlers(DealerService()), address, certificate)
    yield address, ours, theirs
    server.stop(0).wait()


def joined(
    address: str, rank: int, tls: Tls | None, session: bytes | None = None, timeout: float = NEVER
) -> DealerClient:
    return DealerClient(address, session=session or os.urandom(16), rank=rank, parties=2, tls=tls, timeout=timeout)


def test_mutual_tls_works(secure):
    address, ours, _ = secure
    session = os.urandom(16)
    clients = [joined(address, rank, ours.issue(f"party-{rank}"), session) for rank in range(2)]
    take_and_check(clients, CASES[:4])
    for client in clients:
        client.close()


def relay(source: socket.socket, sink: socket.socket, delay: float) -> None:
    """Pass on what comes, `delay` seconds late, until either end is closed."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            time.sleep(delay)
            sink.sendall(data)


def test_tls_over_a_long_line(secure):
    """A handshake of 0.4 s round trip, longer than the wait between attempts."""
    address, ours, _ = secure
    with socket.create_server(("127.0.0.1", 0)) as line:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, _ = line.accept()
                    far = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
                    for ends in ((near, far), (far, near)):
                        threading.Thread(target=relay, args=(*ends, 0.2), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        rpc_client.connect(f"localhost:{line.getsockname()[1]}", ours.issue("party-0"), timeout=HANG).close()


def test_tls_over_a_unix_socket(secure, tmp_path):
    _, ours, _ = secure
    server = service.serve({}, f"unix:{tmp_path}/s", ours.issue("dealer", "localhost"))
    rpc_client.connect(f"unix:{tmp_path}/s", ours.issue("party-0"), timeout=HANG).close()
    server.stop(0).wait()


def test_certificate_of_another_party_is_refused(secure):
    address, ours, _ = secure
    with pytest.raises(DealerError, match="certificate of party 0 is for 'party-1', expected 'party-0'"):
        joined(address, 0, ours.issue("party-1"))
    with pytest.raises(DealerError, match="certificate of party 0 is for 'sha256:"):  # it names nobody
        joined(address, 0, ours.issue("", "client.example"))


def test_plain_service_is_no_match_for_a_tls_client(running, secure):
    _, ours, _ = secure
    with pytest.raises(DealerError, match="TLS failed|connection is refused"):
        joined(running.address, 0, ours.issue("party-0"), timeout=HANG)


def test_unusable_certificate_files(secure, tmp_path):
    address, ours, _ = secure
    good, other = ours.issue("party-0"), ours.issue("party-1")
    missing, rubbish = tmp_path / "missing.pem", tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")
    cases = [
        (Tls(missing, good.key, good.ca), missing, "cannot read a TLS file: No such file"),
        (Tls(good.cert, rubbish, good.ca), rubbish, "not a usable TLS file"),
        (Tls(good.cert, good.key, rubbish), rubbish, "not a usable TLS file"),
        (Tls(good.cert, other.key, good.ca), other.key, "the key does not belong to the certificate"),
    ]
    for tls, path, message in cases:
        for use in (lambda tls=tls: joined(address, 0, tls), lambda tls=tls: service.serve({}, "127.0.0.1:9", tls)):
            with pytest.raises(EnvironmentProblem, match=message) as caught:
                use()
            assert caught.value.where == str(path)
        with pytest.raises(EnvironmentProblem, match=message):
            tls.contexts()


def test_contexts_for_plain_sockets(secure):
    """The pair that the parties' channel uses: both sides must show a certificate of the authority."""
    _, ours, theirs = secure

    def meet(client: Tls, server: Tls) -> str:
        left, right = socket.socketpair()
        names = []

        def accept():
            try:
                with server.contexts()[1].wrap_socket(right, server_side=True) as end:
                    end.sendall(b"x")
                    names.append(dict(entry[0] for entry in end.getpeercert()["subject"])["commonName"])
            except OSError:
                right.close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            with client.contexts()[0].wrap_socket(left, server_hostname="party-1") as end:
                assert end.recv(1) in (b"x", b"")
        finally:
            left.close()
            thread.join()
        return names[0] if names else ""

    one, two = ours.issue("party-0"), ours.issue("party-1")
    assert meet(one, two) == "party-0"
    with pytest.raises(OSError, match="[Hh]ostname"):
        meet(two, one)
    with pytest.raises(OSError, match="CERTIFICATE|certificate|alert"):
        meet(theirs.issue("party-0"), two)


def test_threads_of_a_busy_moment_end_though_calls_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls one at a time, far more often than a thread may be without work: one thread does them all."""
    monkeypatch.setattr(service, "_IDLE", 0.5)
    before, pool, gate = set(threading.enumerate()), service._Pool(), threading.Event()
    together = [pool.submit(gate.wait, HANG) for _ in range(8)]
    there = [thread for thread in threading.enumerate() if thread not in before]
    assert len(there) == 8
    gate.set()
    assert all(future.result(HANG) for future in together)

    def one_left() -> bool:
        assert pool.submit(lambda: "done").result(HANG) == "done"
        return sum(thread.is_alive() for thread in there) <= 1

    until(one_left, "the threads to end")


def test_old_connections_are_made_anew_and_no_call_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a caller whose certificate is no longer good does not stay for ever. A call that has begun goes on."""
    monkeypatch.setattr(service, "_AGE_MS", 300)
    peers, enough = list[str](), threading.Event()

    def name(request: bytes, context: grpc.ServicerContext) -> bytes:
        peers.append(context.peer())
        return request

    def slow(request: bytes, context: grpc.ServicerContext):
        yield b"first"
        enough.wait(HANG)
        yield b"last"

    address = f"127.0.0.1:{free_port()}"
    server = service.serve({"Name": name, "Slow": slow}, address)
    try:
        with rpc_client.connect(address, timeout=HANG) as channel:
            streamed = rpc_client.stream(channel, "Slow", b"", timeout=HANG)
            assert next(streamed) == b"first"

            def renewed() -> bool:
                assert rpc_client.call(channel, "Name", b"x", timeout=HANG) == b"x"
                return len(set(peers)) > 3

            until(renewed, "four connections of one channel")
            enough.set()
            assert list(streamed) == [b"last"]
    finally:
        server.stop(0).wait()
