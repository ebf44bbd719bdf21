"""The parties' channel, over real sockets between threads: exact exchange, and one clear error for everything else."""

from __future__ import annotations

import contextlib
import datetime
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from torch import Tensor

from hummingbird.errors import AgreementError, HummingbirdError, PeerError
from hummingbird.prg import new_seed
from hummingbird.wire import channel as wire
from hummingbird.wire import connect as connecting
from hummingbird.wire import meter
from hummingbird.wire.channel import Channel
from hummingbird.wire.service import Tls
from tests.parties import channels, together

SLACK = 3.0  # seconds that a busy machine may add
BIG = 1 << 20  # words: 8 MB, above all socket buffers


@pytest.fixture(autouse=True)
def layer_per_thread(monkeypatch: pytest.MonkeyPatch) -> threading.local:
    """The current layer is a fact of the process; here, where threads are parties, of the thread."""
    place = threading.local()
    monkeypatch.setattr(meter, "current_layer", lambda: getattr(place, "layer", ""))
    return place


def run(functions: Sequence[Callable[[], Any]]) -> list[Any]:
    """Every function's result or error of ours; anything else fails the test."""

    def caught(function: Callable[[], Any]) -> Any:
        try:
            return function()
        except HummingbirdError as error:
            return error

    return together([lambda f=f: caught(f) for f in functions], timeout=30)


@contextlib.contextmanager
def opened(parties: int, timeout: float = 20.0) -> Iterator[list[Channel]]:
    made = channels(parties, timeout)
    try:
        yield made
    finally:
        for channel in made:
            channel.close()


def payload(rank: int, words: int) -> list[Tensor]:
    torch.manual_seed(rank)
    return [torch.randint(-(2**63), 2**63 - 1, (words, 2)), torch.randint(0, 256, (words, 3), dtype=torch.uint8)]


# Exchange -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("words", [0, 1, 1000, 1 << 19], ids=["empty", "small", "above a buffer", "10 MB"])
def test_everybody_gets_what_the_others_sent(parties: int, words: int) -> None:
    if parties == 4 and words > 1000:
        pytest.skip("three parties show it")
    sent = [payload(rank, words) for rank in range(parties)]
    with opened(parties) as made, meter.meter() as m:
        results = run([lambda c=c: [c.exchange(*sent[c.rank]) for _ in range(2)] for c in made])
    for rank, both in enumerate(results):
        for received in both:
            assert sorted(received) == [peer for peer in range(parties) if peer != rank]
            for peer, tensors in received.items():
                assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(tensors, sent[peer], strict=True))
    # All parties report to this process's meter.
    assert m.total.bits_sent == 2 * parties * (parties - 1) * 8 * (20 + words * (16 + 3))
    assert m.total.rounds == 2 * parties


def test_a_party_alone_exchanges_nothing() -> None:
    with opened(1) as (alone,):
        assert alone.exchange(torch.ones(3)) == {} and alone.exchange_text("x") == {} and alone.others == []


def test_views_and_other_types() -> None:
    base = torch.arange(24).view(4, 6)
    values = [base.t()[::2], torch.ones(2, dtype=torch.float64), torch.tensor(3.5), torch.tensor([True, False])]
    with opened(2) as (a, b):
        got, _ = run([lambda: b.exchange(*values)[0], lambda: a.exchange(*values)])
        assert all(torch.equal(x, y) and x.shape == y.shape for x, y in zip(got, values, strict=True))


def test_many_small_messages_stay_in_order() -> None:
    with opened(2) as (a, b):

        def talk(channel: Channel) -> list[int]:
            return [int(next(iter(channel.exchange(torch.tensor([i])).values()))[0]) for i in range(500)]

        assert run([lambda: talk(a), lambda: talk(b)]) == [list(range(500))] * 2


def test_point_to_point() -> None:
    big = torch.randint(0, 9, (BIG,))
    with opened(3) as (a, b, c):
        got = run(
            [
                lambda: (a.send(1, big), a.send(2, torch.tensor([7]))),
                lambda: b.receive(0, [torch.empty_like(big)])[0],
                lambda: c.receive(0, [torch.zeros(1, dtype=torch.int64)])[0],
            ]
        )
    assert torch.equal(got[1], big) and got[2].item() == 7


def test_texts() -> None:
    texts = ["", "ä" * 1000, "x" * (1 << 19)]
    with opened(3) as made:
        got = run([lambda c=c: c.exchange_text(texts[c.rank]) for c in made])
    for rank, received in enumerate(got):
        assert received == {peer: texts[peer] for peer in range(3) if peer != rank}


# Disagreement ---------------------------------------------------------------------------------------------------------


def disagree(first: Callable[[Channel], Any], second: Callable[[Channel], Any], timeout: float = 10.0) -> list[Any]:
    with opened(2, timeout) as (a, b):
        return run([lambda: first(a), lambda: second(b)])


@pytest.mark.parametrize("size", [4, BIG], ids=["small", "8 MB"])
def test_another_shape_is_an_agreement_error_at_both_that_names_both(size: int) -> None:
    errors = disagree(
        lambda c: c.exchange(torch.zeros(size).long()), lambda c: c.exchange(torch.zeros(size + 1).long())
    )
    for error in errors:
        assert type(error) is AgreementError, error
        assert f"int64[{size}]" in str(error) and f"int64[{size + 1}]" in str(error), error
        assert "party 0" in str(error) and "party 1" in str(error) and error.hint


def test_another_type_of_the_same_length() -> None:
    for error in disagree(lambda c: c.exchange(torch.zeros(2).long()), lambda c: c.exchange(torch.zeros(2).double())):
        assert type(error) is AgreementError and "int64[2]" in str(error) and "float64[2]" in str(error)


def test_another_layer(layer_per_thread: threading.local) -> None:
    def at(name: str) -> Callable[[Channel], Any]:
        def go(channel: Channel) -> Any:
            layer_per_thread.layer = name
            return channel.exchange(torch.zeros(3))

        return go

    for error in disagree(at("layer1.relu"), at("layer2.relu")):
        assert type(error) is AgreementError and "'layer1.relu'" in str(error) and "'layer2.relu'" in str(error)


def test_a_text_where_a_tensor_was_expected() -> None:
    for error in disagree(lambda c: c.exchange_text("hello"), lambda c: c.exchange(torch.zeros(5, dtype=torch.uint8))):
        assert type(error) is AgreementError and "a text" in str(error) and "uint8[5]" in str(error)


@pytest.mark.parametrize("delay", [0.0, 0.2], ids=["", "late thread"])
def test_one_big_one_small(monkeypatch: pytest.MonkeyPatch, delay: float) -> None:
    """The word about the place must not overtake the big message, whose thread may begin late."""
    serve = Channel._serve

    def late(self: Channel, *arguments: Any) -> None:
        time.sleep(delay)
        serve(self, *arguments)

    monkeypatch.setattr(Channel, "_serve", late)
    for error in disagree(lambda c: c.exchange(torch.zeros(BIG)), lambda c: c.exchange(torch.zeros(1))):
        assert type(error) is AgreementError and f"float32[{BIG}]" in str(error) and "float32[1]" in str(error)


def test_disagreement_of_one_of_three_reaches_all() -> None:
    """Parties 0 and 1 agree; everybody must end with an error, and soon, once those who fail say so."""

    def party(channel: Channel) -> Any:
        try:
            return channel.exchange(torch.zeros(3 if channel.rank == 2 else 4)), channel.exchange(torch.zeros(1))
        except HummingbirdError as error:
            channel.abort(str(error))
            return error

    started = time.monotonic()
    with opened(3) as made:
        errors = run([lambda c=c: party(c) for c in made])
    assert all(isinstance(error, (AgreementError, PeerError)) for error in errors), errors
    assert any(isinstance(error, AgreementError) for error in errors)
    assert time.monotonic() - started < 10


# Ends -----------------------------------------------------------------------------------------------------------------


def test_the_reason_of_an_abort_is_delivered_to_all() -> None:
    def waits(channel: Channel) -> Any:
        return channel.exchange(torch.zeros(3))

    with opened(3) as (a, b, c):
        results = run([lambda: a.abort("the disk is full\nhint: buy one"), lambda: waits(b), lambda: waits(c)])
    for rank, error in enumerate(results[1:], 1):
        assert type(error) is PeerError and "party 0 stopped: the disk is full" in str(error)
        assert "buy one" in str(error) and f"party {rank}" in error.where


@pytest.mark.parametrize("size", [3, BIG], ids=["small", "8 MB"])
@pytest.mark.parametrize("delay", [0.0, 0.2])
def test_the_reason_is_found_by_a_party_that_sends(size: int, delay: float) -> None:
    """Also when it lies behind frames that nobody read, and when the failing send runs in another thread."""

    def stops(channel: Channel) -> None:
        channel.send(1, torch.zeros(2))
        channel.abort("because")

    def sends(channel: Channel) -> Any:
        time.sleep(delay)
        for _ in range(3):
            channel.send(0, torch.zeros(size))
            time.sleep(0.05)
        return channel.receive(0, [torch.zeros(2)]), channel.receive(0, [torch.zeros(2)])

    for _ in range(3):
        _, error = disagree(stops, sends)
        assert type(error) is PeerError and "party 0 stopped: because" in str(error), error


def test_the_reason_survives_a_big_exchange() -> None:
    for _ in range(10):
        _, error = disagree(lambda c: c.abort("because"), lambda c: c.exchange(torch.zeros(BIG)))
        assert type(error) is PeerError and "because" in str(error), error


def test_an_abort_during_a_big_send_is_no_data() -> None:
    """A reason written between two pieces of a message would be taken for its bytes."""

    def torn(channel: Channel) -> None:
        channel._send(1, [torch.zeros(BIG)])
        time.sleep(0.1)
        channel.abort("changed my mind")

    def slow(channel: Channel) -> Any:
        time.sleep(0.3)
        return channel.receive(0, [torch.zeros(BIG)])[0]

    result = disagree(torn, slow)[1]
    assert isinstance(result, PeerError) or not bool(result.any())


def test_a_closed_peer() -> None:
    _, error = disagree(lambda c: c.close(), lambda c: c.exchange(torch.zeros(3)))
    assert type(error) is PeerError and "party 0 closed the connection" in str(error)


def test_closing_and_aborting_twice() -> None:
    with opened(2) as (a, b):
        a.abort("x")
        a.abort("y")
        a.close()
        assert a.closed
        for call in (
            lambda: a.exchange(torch.zeros(1)),
            lambda: a.send(1, torch.zeros(1)),
            lambda: a.exchange_text(""),
        ):
            with pytest.raises(PeerError, match="the session has ended"):
                call()
        b.close()


@pytest.mark.parametrize("size", [4, BIG], ids=["small", "8 MB"])
@pytest.mark.parametrize("timeout", [0.3, 1.0])
def test_silence_ends_with_the_timeout(size: int, timeout: float) -> None:
    started = time.monotonic()
    with opened(2, timeout) as (a, _):
        with pytest.raises(PeerError, match=f"sent or took nothing for {timeout:g} s") as caught:
            a.exchange(torch.zeros(size))
        elapsed = time.monotonic() - started
        a.abort(str(caught.value))  # the peer still takes nothing
    assert timeout * 0.9 <= elapsed < timeout + SLACK
    assert time.monotonic() - started < timeout + 2.0 + SLACK
    assert "hummingbird.init(timeout=...)" in caught.value.hint


def test_a_mismatch_with_a_silent_peer_ends_too() -> None:
    started = time.monotonic()
    with opened(2, 0.5) as (a, b):
        b.send(0, torch.zeros(7))  # and then nothing more
        with pytest.raises(AgreementError, match=r"float32\[3\]"):
            a.exchange(torch.zeros(3))
    assert time.monotonic() - started < 0.5 + 2.0 + SLACK


def test_a_slow_reader_is_not_a_silent_one() -> None:
    """Twice the timeout in total, but never silent for so long: 24 MB in pieces."""

    def slowly(channel: Channel) -> int:
        total, connection = 0, channel._incoming[0]
        while total < 20 + 24 * BIG:
            time.sleep(0.01)
            total += len(connection.recv(1 << 18))
        return total

    started = time.monotonic()
    _, total = disagree(lambda c: c.send(1, torch.zeros(3 * BIG).long()), slowly, timeout=0.8)
    assert total == 20 + 24 * BIG and time.monotonic() - started > 0.8


# Garbage --------------------------------------------------------------------------------------------------------------

HEADER = struct.Struct("!2sBBIIQ")


@contextlib.contextmanager
def victim(timeout: float = 0.5) -> Iterator[tuple[Channel, socket.socket]]:
    """Party 0 of two, and the raw end of the connection on which it hears party 1."""
    ours, to_peer = socket.socketpair()
    from_peer, heard = socket.socketpair()
    channel = Channel(0, 2, {1: ours}, {1: heard}, timeout)
    try:
        yield channel, from_peer
    finally:
        channel.close()
        to_peer.close()
        from_peer.close()


@pytest.mark.parametrize(
    ("header", "what"),
    [
        (HEADER.pack(b"xx", 1, 0, 0, 0, 0), "speaks wire version b'xx'"),
        (HEADER.pack(b"hb", 2, 0, 0, 0, 0), "speaks wire version 2, party 0 speaks 1"),
        (HEADER.pack(b"hb", 0, 0, 0, 0, 0), "wire version 0"),
        (HEADER.pack(b"hb", 1, 0, 5, 0, 0), "sent frame 5, party 0 expected frame 0"),
        (b"GET / HTTP/1.1\r\nHost: a", "wire version b'GE'"),
    ],
)
def test_wrong_headers(header: bytes, what: str) -> None:
    with victim() as (channel, peer):
        peer.sendall(header)
        with pytest.raises(AgreementError, match=what) as caught:
            channel.receive(1, [torch.zeros(1)])
        assert caught.value.hint


def test_a_length_that_lies_allocates_nothing() -> None:
    for length in (2**64 - 1, 2**40, 5):
        with victim() as (channel, peer):
            checksum = channel._checksum([torch.zeros(1)])
            peer.sendall(HEADER.pack(b"hb", 1, 0, 0, checksum, length) + bytes(5))
            peer.close()
            with pytest.raises(HummingbirdError):
                channel.receive(1, [torch.zeros(1)])
    for kind in range(256):
        with victim(0.3) as (channel, peer):
            peer.sendall(HEADER.pack(b"hb", 1, kind, 0, 0, 2**63))
            peer.close()
            with pytest.raises(HummingbirdError):
                channel.exchange_text("x")


def test_garbage_gives_our_errors_and_nothing_else() -> None:
    rng = random.Random(1)
    for number in range(300):
        noise = rng.randbytes(rng.randrange(0, 200))
        header = HEADER.pack(
            b"hb" if rng.random() < 0.8 else rng.randbytes(2),
            1 if rng.random() < 0.8 else rng.randrange(256),
            rng.randrange(5),
            0 if rng.random() < 0.8 else rng.randrange(2**32),
            rng.randrange(2**32),
            rng.choice([0, 4, len(noise), 2**20, 2**63]),
        )
        with victim(1.0) as (channel, peer):
            peer.sendall((header if number % 3 else b"") + noise)
            peer.close()
            for call in (lambda c=channel: c.exchange(torch.zeros(1)), lambda c=channel: c.exchange_text("a")):
                try:
                    result = call()
                except HummingbirdError:
                    continue
                assert list(result) == [1] and isinstance(result[1], (str, list))  # a frame that happened to be right


def test_every_truncation_of_a_frame_is_a_lost_peer() -> None:
    frame = HEADER.pack(b"hb", 1, 0, 0, 0, 4) + b"abcd"
    for end in range(len(frame)):
        with victim() as (channel, peer):
            good = HEADER.pack(b"hb", 1, 0, 0, channel._checksum([torch.zeros(1)]), 4) + b"abcd"
            peer.sendall(good[:end])
            peer.close()
            with pytest.raises(PeerError, match="party 1 closed the connection"):
                channel.receive(1, [torch.zeros(1)])


# Connecting -----------------------------------------------------------------------------------------------------------


def meet(
    parties: int,
    timeout: float = 10.0,
    tls: Sequence[Any] | None = None,
    tokens: Sequence[bytes] | None = None,
    before: Callable[[list[tuple[str, int]]], Any] | None = None,
) -> list[Any]:
    """`connect` at every party, then one exchange; results or errors."""
    servers = [connecting.listen("127.0.0.1") for _ in range(parties)]
    addresses = [server.getsockname()[:2] for server in servers]
    token = new_seed()
    kept = before(addresses) if before else None

    def join(rank: int) -> Any:
        contexts = tls[rank] if tls else None
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
    monkeypatch.setattr(connecting, "_HELLO", 0.5)
    assert meet(2, 20.0, before=strangers) == [{1: 1}, {0: 0}]


def test_another_token_is_no_party() -> None:
    started = time.monotonic()
    errors = meet(2, 1.0, tokens=[new_seed(), new_seed()])
    assert all(isinstance(error, PeerError) for error in errors), errors
    assert any("did not connect within 1 s" in str(error) for error in errors)
    assert time.monotonic() - started < 1.0 + 2.0 + SLACK


def test_a_party_that_does_not_come() -> None:
    server = connecting.listen("127.0.0.1")
    free = socket.create_server(("127.0.0.1", 0))
    nobody = free.getsockname()[:2]
    free.close()
    started = time.monotonic()
    with pytest.raises(PeerError, match=f"cannot connect to party 1 at 127.0.0.1:{nobody[1]}") as caught:
        connecting.connect(0, [server.getsockname()[:2], nobody], server, new_seed(), 2.0)
    assert caught.value.where == "party 0" and time.monotonic() - started < 2.0 + SLACK


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

    def issue(self, name: str) -> Tls:
        key, stem = ec.generate_private_key(ec.SECP256R1()), self.folder / f"{self.label}-{name}"
        stem.with_suffix(".crt").write_bytes(self._sign(name, key.public_key(), [name]))
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
    monkeypatch.setattr(connecting, "_HELLO", 0.5)
    assert meet(2, 20.0, tls=secured(2, authorities[0]), before=strangers) == [{1: 1}, {0: 0}]


def intruder(kind: str, ours: Authority, theirs: Authority) -> Any:
    if kind == "another name":
        return ours.issue("party-7").contexts()
    if kind == "another party's name":
        return ours.issue("party-0").contexts()
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
    ["another name", "another party's name", "another authority", "no certificate, no check", "plain text"],
)
def test_without_the_right_certificate_nobody_is_a_party(authorities: tuple[Authority, Authority], kind: str) -> None:
    """The token alone, known to the intruder here, does not make a party 1; party 0 never exchanges a word with it."""
    ours, theirs = authorities
    started = time.monotonic()
    timeout = 1.5
    results = meet(2, timeout, tls=[ours.issue("party-0").contexts(), intruder(kind, ours, theirs)])
    assert isinstance(results[0], PeerError), results
    assert isinstance(results[1], HummingbirdError), results
    assert time.monotonic() - started < timeout + 2.0 + SLACK


def test_a_party_cannot_take_the_place_of_another(authorities: tuple[Authority, Authority]) -> None:
    """Party 2 of the same authority knows the token too, and is first to connect to party 0 as party 1."""
    token, client = new_seed(), authorities[0].issue("party-2").contexts()[0]

    def impostor(addresses: list[tuple[str, int]]) -> list[socket.socket]:
        plain = socket.create_connection(addresses[0])

        def speak() -> None:
            with contextlib.suppress(OSError):
                connection = client.wrap_socket(plain, server_hostname="party-0")
                connection.sendall(connecting._secret(token, 1))
                connection.recv(1)

        threading.Thread(target=speak, daemon=True).start()
        return [plain]

    results = meet(2, 10.0, tls=secured(2, authorities[0]), tokens=[token] * 2, before=impostor)
    assert results == [{1: 1}, {0: 0}]


def test_big_messages_over_tls(authorities: tuple[Authority, Authority]) -> None:
    """Both directions at once, and an error with its reason at the end."""
    servers = [connecting.listen("127.0.0.1") for _ in range(2)]
    addresses = [server.getsockname()[:2] for server in servers]
    token, contexts, sent = new_seed(), secured(2, authorities[0]), [payload(rank, 1 << 18) for rank in range(2)]

    def party(rank: int) -> Any:
        channel = connecting.connect(rank, addresses, servers[rank], token, 10.0, contexts[rank])
        received = [channel.exchange(*sent[rank])[1 - rank] for _ in range(3)]
        assert all(torch.equal(a, b) for got in received for a, b in zip(got, sent[1 - rank], strict=True))
        if rank == 0:
            channel.abort("enough")
            return None
        return channel.exchange(torch.zeros(BIG))

    error = run([lambda: party(0), lambda: party(1)])[1]
    assert type(error) is PeerError and "party 0 stopped: enough" in str(error)


def test_frames_are_documented() -> None:
    assert wire.HEADER_BYTES == HEADER.size == 20
    with victim() as (channel, _), victim() as (other, _):
        tensors = [torch.zeros(2, 3, dtype=torch.int64), torch.zeros(1, dtype=torch.uint8)]
        assert wire.describe(tensors) == "int64[2, 3], uint8[1]"
        assert channel._checksum(tensors) == other._checksum(tensors) != channel._checksum(tensors[:1])
