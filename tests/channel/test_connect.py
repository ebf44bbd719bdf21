"""How the parties find each other: only those who know the token, and with TLS have the certificate, get in."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hummingbird.channel import connect as connecting
from hummingbird.channel.handshake import GO, HELLO_BYTES, Hello, listen
from hummingbird.errors import HummingbirdError, PeerError
from hummingbird.prg import new_seed
from hummingbird.rpc.service import Tls
from tests.channel.test_channel import BIG, payload, run
from tests.support.covering import every
from tests.support.patience import HANG, NEVER

HELLO = 2.0  # seconds that a stranger may take, and a party needs less, on a busy machine too


# Connecting -----------------------------------------------------------------------------------------------------------


def meet(
    parties: int,
    timeout: float = NEVER,
    tls: Sequence[Any] | None = None,
    tokens: Sequence[bytes] | None = None,
    before: Callable[[list[tuple[str, int]]], Any] | None = None,
    late: dict[int, Callable[[], object]] | None = None,
    host: str = "127.0.0.1",
    told: dict[int, tuple[str, int]] | None = None,
) -> list[Any]:
    """`connect` at every party, then one exchange; results or errors. late: what a party does first. told: addresses
    that the others are told in place of true ones.
    """
    servers = [listen(host) for _ in range(parties)]
    addresses = [server.getsockname()[:2] for server in servers]
    token = new_seed()
    kept = before(addresses) if before else None
    addresses = [(told or {}).get(rank, address) for rank, address in enumerate(addresses)]

    def join(rank: int) -> Any:
        contexts = tls[rank] if tls else None
        (late or {}).get(rank, bool)()
        made = connecting.connect(rank, addresses, servers[rank], tokens[rank] if tokens else token, timeout, contexts)
        try:
            return {peer: int(got[0]) for peer, got in made.exchange(torch.tensor(rank)).items()}
        finally:
            made.close()

    try:
        return run([lambda r=r: join(r) for r in range(parties)])
    finally:
        for server in servers:
            server.close()
        for connection in kept or []:
            connection.close()


@pytest.mark.parametrize("parties", [2, 3, 4])
def test_parties_meet(parties: int) -> None:
    everybody = range(parties)
    assert meet(parties) == [{peer: peer for peer in everybody if peer != rank} for rank in everybody]


def strangers(addresses: list[tuple[str, int]]) -> list[socket.socket]:
    """Connections to party 0 that are nobody's: garbage, an early end, a reset, a guess at the token, and silence."""
    kept = []
    for kind in ("garbage", "end", "reset", "guess", "short", "silence"):
        connection = socket.create_connection(addresses[0])
        kept.append(connection)
        if kind == "garbage":
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 3)
        elif kind == "end":
            connection.close()
        elif kind == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        elif kind == "guess":
            connection.sendall(bytes(16) + (1).to_bytes(4, "little"))
        elif kind == "short":
            connection.sendall(b"abc")
            connection.shutdown(socket.SHUT_WR)
    return kept


def test_strangers_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "_HELLO", HELLO)
    assert meet(2, before=strangers) == [{1: 1}, {0: 0}]


def test_few_strangers_are_let_in_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "_HELLO", HELLO)
    monkeypatch.setattr(connecting, "_STRANGERS", 2)
    there, take = list[int](), connecting._Joining._take

    def counted(self: connecting._Joining, *given: Any) -> None:
        take(self, *given)
        there.append(sum(step.stranger for step in self._steps))

    monkeypatch.setattr(connecting._Joining, "_take", counted)
    silent = lambda addresses: [socket.create_connection(addresses[0]) for _ in range(6)]  # noqa: E731
    assert meet(2, before=silent) == [{1: 1}, {0: 0}] and max(there) == 2


@pytest.mark.parametrize("secure", every(2, [True, False]))
def test_one_deadline_for_setting_up_a_connection(
    authorities: tuple[Authority, Authority], monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    """A stranger sends a byte now and then, each of them in time: of a hello, or of a TLS record behind a true one."""
    monkeypatch.setattr(connecting, "_HELLO", HELLO)
    token, dropped = new_seed(), threading.Event()
    head = Hello(1, 0, True).hello(token) if secure else b""

    def dripping(addresses: list[tuple[str, int]]) -> list[socket.socket]:
        connection = socket.create_connection(addresses[0])

        def drip() -> None:
            with contextlib.suppress(OSError):
                connection.sendall(head)
                for byte in itertools.chain(b"\x16\x03\x01\x40\x00", itertools.repeat(1)):
                    connection.sendall(bytes([byte]))
                    time.sleep(HELLO / 8)
            dropped.set()

        threading.Thread(target=drip, daemon=True).start()
        return [connection]

    tls = secured(2, authorities[0]) if secure else None
    late = {1: lambda: dropped.wait(HANG)}
    assert meet(2, tls=tls, tokens=[token] * 2, before=dripping, late=late) == [{1: 1}, {0: 0}]
    assert dropped.is_set()


def test_silent_strangers_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other they would take as long as they like."""
    monkeypatch.setattr(connecting, "_HELLO", NEVER)

    def crowd(addresses: list[tuple[str, int]]) -> list[socket.socket]:
        return [socket.create_connection(addresses[0]) for _ in range(connecting._STRANGERS - 8)]

    assert meet(2, before=crowd) == [{1: 1}, {0: 0}]


def test_more_strangers_than_there_is_room_for_are_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "_HELLO", HELLO)
    monkeypatch.setattr(connecting, "_STRANGERS", 4)

    def crowd(addresses: list[tuple[str, int]]) -> list[socket.socket]:
        return [socket.create_connection(addresses[0]) for _ in range(9)]

    assert meet(2, before=crowd) == [{1: 1}, {0: 0}]


def test_another_token_is_no_party() -> None:
    errors = meet(2, tokens=[new_seed(), new_seed()])
    assert all(isinstance(error, PeerError) for error in errors), errors
    assert any("closed the connection while the parties met" in str(error) for error in errors)


def test_a_party_that_does_not_come() -> None:
    server = listen("127.0.0.1")
    free = socket.create_server(("127.0.0.1", 0))
    nobody = free.getsockname()[:2]
    free.close()
    with pytest.raises(PeerError, match=f"cannot connect to party 1 at 127.0.0.1:{nobody[1]}") as caught:
        connecting.connect(0, [server.getsockname()[:2], nobody], server, new_seed(), NEVER)
    assert caught.value.where == "party 0"


def test_a_party_that_hangs_is_missed_at_the_deadline() -> None:
    server, other = listen("127.0.0.1"), listen("127.0.0.1")
    with pytest.raises(PeerError, match=r"^parties \[1\] did not connect within 1 s"):
        connecting.connect(0, [each.getsockname()[:2] for each in (server, other)], server, new_seed(), 1.0)
    other.close()


@pytest.mark.parametrize("how", ["killed", "ends"])
def test_a_party_that_dies_while_they_meet_is_not_waited_for(how: str) -> None:
    """One that was reached and has not connected itself: killed with the connection unread, or after it was read."""
    server, other = listen("127.0.0.1"), listen("127.0.0.1")
    addresses = [each.getsockname()[:2] for each in (server, other)]

    def die() -> None:
        connection, _ = other.accept()
        if how == "ends":
            connection.recv(HELLO_BYTES, socket.MSG_WAITALL)
        connection.close()

    dying = threading.Thread(target=die)
    dying.start()
    with pytest.raises(PeerError, match="^party 1 closed the connection while the parties met") as caught:
        connecting.connect(0, addresses, server, new_seed(), NEVER)
    assert caught.value.where == "party 0"
    dying.join(HANG)
    other.close()


# TLS ------------------------------------------------------------------------------------------------------------------


class Authority:
    """A certificate authority that writes PEM files."""

    def __init__(self, folder: Path, label: str) -> None:
        self.folder, self.label = folder, label
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.path = folder / f"{label}.pem"
        self.path.write_bytes(self._sign(label, self.key.public_key(), []))

    def _sign(self, name: str, public: Any, names: Sequence[str]) -> bytes:
        now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
        subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in (name, self.label))
        builder = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number(), now - day, now + day)
        builder = builder.add_extension(x509.BasicConstraints(ca=not names, path_length=None), critical=True)
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), critical=False
            )
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, *hosts: str) -> Tls:
        key, stem = ec.generate_private_key(ec.SECP256R1()), self.folder / f"{self.label}-{name}"
        stem.with_suffix(".crt").write_bytes(self._sign(name, key.public_key(), [name, *hosts]))
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        stem.with_suffix(".key").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
        return Tls(stem.with_suffix(".crt"), stem.with_suffix(".key"), self.path)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    folder = tmp_path_factory.mktemp("tls")
    return Authority(folder, "ours"), Authority(folder, "theirs")


def secured(parties: int, authority: Authority) -> list[Any]:
    return [authority.issue(f"party-{rank}").contexts() for rank in range(parties)]


@pytest.mark.parametrize("parties", [2, 3])
def test_parties_with_certificates_meet(authorities: tuple[Authority, Authority], parties: int) -> None:
    everybody = range(parties)
    expected = [{peer: peer for peer in everybody if peer != rank} for rank in everybody]
    assert meet(parties, tls=secured(parties, authorities[0])) == expected


def test_strangers_do_not_disturb_tls(
    authorities: tuple[Authority, Authority], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "_HELLO", HELLO)
    assert meet(2, tls=secured(2, authorities[0]), before=strangers) == [{1: 1}, {0: 0}]


def intruder(kind: str, ours: Authority, theirs: Authority) -> Any:
    if kind == "another name":
        return ours.issue("party-7").contexts()
    if kind == "another party's name":
        return ours.issue("party-0").contexts()
    if kind == "TLS 1.2":
        for context in (pair := ours.issue("party-1").contexts()):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        return pair
    if kind == "another authority":
        return theirs.issue("party-1").contexts()
    pair = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if kind == "no certificate, no check":
        pair[0].check_hostname = False
        pair[0].verify_mode = ssl.CERT_NONE
        ours.issue("party-1")
        pair[1].load_cert_chain(ours.folder / "ours-party-1.crt", ours.folder / "ours-party-1.key")
        return pair
    assert kind == "plain text"
    return None


@pytest.mark.parametrize(
    "kind",
    ["another name", "another party's name", "another authority", "TLS 1.2", "no certificate, no check", "plain text"],
)
def test_without_the_right_certificate_nobody_is_a_party(authorities: tuple[Authority, Authority], kind: str) -> None:
    """The token alone, known to the intruder here, does not make a party 1; party 0 never exchanges a word with it."""
    ours, theirs = authorities
    results = meet(2, 1.5, tls=[ours.issue("party-0").contexts(), intruder(kind, ours, theirs)])
    assert isinstance(results[0], PeerError), results
    assert isinstance(results[1], HummingbirdError), results


def test_a_party_cannot_take_the_place_of_another(authorities: tuple[Authority, Authority]) -> None:
    """Party 2 of the same authority knows the token too, and connects to party 0 as party 1, before that one does."""
    token, client, over = new_seed(), authorities[0].issue("party-2").contexts()[0], threading.Event()

    def impostor(addresses: list[tuple[str, int]]) -> list[socket.socket]:
        plain = socket.create_connection(addresses[0])

        def speak() -> None:
            try:
                plain.sendall(Hello(1, 0, True).hello(token))
                with client.wrap_socket(plain, server_hostname="party-0") as connection:
                    connection.recv(HELLO_BYTES)
                    connection.sendall(GO)
            except OSError:
                pass  # it is no party 1
            finally:
                over.set()

        threading.Thread(target=speak, daemon=True).start()
        return [plain]

    how: dict[str, Any] = {"before": impostor, "late": {1: lambda: over.wait(HANG)}}
    assert meet(2, tls=secured(2, authorities[0]), tokens=[token] * 2, **how) == [{1: 1}, {0: 0}]


def test_big_messages_over_tls(authorities: tuple[Authority, Authority]) -> None:
    """Both directions at once, and an error with its reason at the end."""
    servers = [listen("127.0.0.1") for _ in range(2)]
    addresses = [server.getsockname()[:2] for server in servers]
    token, contexts, sent = new_seed(), secured(2, authorities[0]), [payload(rank, 1 << 18) for rank in range(2)]

    def party(rank: int) -> Any:
        channel = connecting.connect(rank, addresses, servers[rank], token, HANG, contexts[rank])
        received = [channel.exchange(*sent[rank])[1 - rank] for _ in range(3)]
        assert all(torch.equal(a, b) for got in received for a, b in zip(got, sent[1 - rank], strict=True))
        if rank == 0:
            channel.abort("enough")
            return None
        return channel.exchange(torch.zeros(BIG))

    error = run([lambda: party(0), lambda: party(1)])[1]
    assert type(error) is PeerError and "party 0 stopped: enough" in str(error)


def test_an_address_that_other_hosts_cannot_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from hummingbird.errors import EnvironmentProblem
    from hummingbird.mpc.session import listener

    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert listener.own_address(2) == "127.0.0.1"  # all on this host
    with pytest.raises(EnvironmentProblem, match="loopback"):
        listener.own_address(3)
