"""Homomorphic layers as a service: results, what the server receives, wrong bytes, deaths, and limits."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hummingbird.errors import ConfigError, HummingbirdError, InputError, PeerError
from hummingbird.he.runtime import messages
from hummingbird.he.runtime.client import Client
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.memory import at_client
from hummingbird.he.runtime.server import Server
from hummingbird.he.service.client import RemoteModel
from hummingbird.he.service.server import MAX_CALLS, Service
from hummingbird.kernels.ciphertexts import pack, unpack
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc import service
from tests.support import python
from tests.support.chance import DEVIATIONS, chi_square_limit
from tests.support.dealers import Authority
from tests.support.he_service import close, images, served
from tests.support.paths import ROOT
from tests.support.patience import HANG, NEVER, until


@pytest.fixture(scope="module")
def address(server: Server) -> Iterator[str]:
    with served(Service(server)) as here:
        yield here


# Results --------------------------------------------------------------------------------------------------------------


def test_outputs_are_those_of_torch_and_all_work_is_counted(address: str, net: nn.Module) -> None:
    x, done = images(3), []
    with RemoteModel(address, timeout=HANG) as model:
        outputs = model(x, progress=done.append)
        public = model.public
        seeds = 16 * sum(len(list(turn.up())) for turn in public.turns)
        up = sum(public.up_bytes(turn.sent) for turn in public.turns) + seeds
        down = sum(public.down_bytes(back, back.count) for turn in public.turns for back in turn.returns)
        assert public.batch_bytes() == (up, down)
        openings = sum(len(messages.opening(model._digest, number)) for number in range(len(public.turns)))
        assert (model.sent_bytes, model.received_bytes) == (up + openings, down)
    assert outputs.shape == (3, 5) and close(outputs, net, x)
    assert sum(done) == pytest.approx(3)


def test_more_images_than_slots_go_in_batches(address: str, net: nn.Module) -> None:
    with RemoteModel(address, timeout=HANG) as model:
        x = images(model.public.slots + 2)
        one, two = model(x, in_flight=1), model(x, in_flight=2)
    assert one.shape == two.shape == (len(x), 5) and close(one, net, x) and close(two, net, x)


def test_several_clients_at_once(address: str, net: nn.Module) -> None:
    outputs: dict[int, Tensor] = {}

    def client(seed: int) -> None:
        with RemoteModel(address, timeout=HANG) as model:
            outputs[seed] = model(images(2, seed))

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert sorted(outputs) == list(range(6))
    assert all(close(result, net, images(2, seed)) for seed, result in outputs.items())


@pytest.mark.parametrize(
    "x", [images(2)[:, :, :5], images(2).flatten(1), images(2) * float("nan"), images(2)[:0]], ids=str
)
def test_wrong_images_are_an_error_before_anything_is_sent(address: str, x: Tensor) -> None:
    with RemoteModel(address, timeout=HANG) as model:
        with pytest.raises(InputError):
            model(x)
        assert model.sent_bytes == 0


def test_mutual_tls(server: Server, net: nn.Module, tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    with served(Service(server), ours.issue("server", "localhost")) as address:
        with RemoteModel(address, tls=ours.issue("client"), timeout=HANG) as model:
            assert close(model(images(2)), net, images(2))


# What the server receives ---------------------------------------------------------------------------------------------


class Recorder(Service):
    """A service that keeps every message it is sent, by call."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.calls: list[list[bytes]] = []

    def _turn(self, requests, context):  # type: ignore[no-untyped-def]
        self.calls.append([])

        def recorded(kept: list[bytes]) -> Iterator[bytes]:
            for request in requests:
                kept.append(request)
                yield request

        yield from super()._turn(recorded(self.calls[-1]), context)


@pytest.fixture(scope="module")
def recorded(server: Server) -> tuple[Public, list[Tensor], list[bytes], bytes, Client]:
    """Four runs on one and the same image, all slots filled with it: c_0 of every run's first turn, all seeds, every
    byte that was sent, and the client with its key.
    """
    recorder = Recorder(server)
    with served(recorder) as address, RemoteModel(address, timeout=HANG) as model:
        x = images(1).expand(model.public.slots, -1, -1, -1)
        for _ in range(4):
            model(x)
        public, client = model.public, model._client
    bodies, seeds = [], []
    for number, call in enumerate(recorder.calls):
        assert set(json.loads(call[0])) == {"format", "release", "digest", "turn"}  # the opening: nothing of the input
        turn = number % len(public.turns)
        stream = iter(call[1:])
        slices = [
            messages.read_upload(public, turn, *cut, lambda stream=stream: next(stream))
            for cut in public.turns[turn].up()
        ]
        assert next(stream, None) is None  # nothing but the slices
        seeds += [piece.seed for piece in slices]
        if turn == 0:
            bodies.append(torch.cat([piece.body for piece in slices]))
    return public, bodies, seeds, b"".join(message for call in recorder.calls for message in call), client


def test_the_server_receives_neither_key_nor_input(recorded) -> None:  # type: ignore[no-untyped-def]
    public, bodies, seeds, sent, client = recorded
    ring = public.parameters.ring
    assert len(set(seeds)) == len(seeds) and all(len(seed) == 16 for seed in seeds)
    secret = client._key._secret
    plain = ring.intt(secret)
    for form in (secret, plain, plain.to(torch.int8), plain.to(torch.int64), pack(ring, secret), pack(ring, plain)):
        data = form.numpy().tobytes()
        assert all(data[at : at + 24] not in sent for at in range(0, 240, 24))
    for value in images(1).flatten().tolist():  # of 36 pixels, as the client might hold them
        for kind in (np.float32, np.float64):
            assert np.full(3, value, kind).tobytes() not in sent


ALLOWED = (chi_square_limit(64) - 63) / 126**0.5


def chi_square(residues: Tensor, q: int) -> float:
    """Chi-square of centred residues in 64 equal cells, in standard deviations from its mean for uniform ones
    (mean 63, variance 126).
    """
    cells = ((residues.long() + q // 2) * 64 // q).flatten().bincount(minlength=64).double()
    expected = residues.numel() / 64
    return (float(((cells - expected) ** 2 / expected).sum()) - 63) / 126**0.5


def test_ciphertexts_look_uniform_and_are_unrelated(recorded) -> None:  # type: ignore[no-untyped-def]
    public, bodies, *_ = recorded
    primes, count = public.parameters.primes, bodies[0].numel()
    for body in bodies:
        for level, q in enumerate(primes):
            assert abs(chi_square(body[:, level], q)) < ALLOWED
    for first, second in zip(bodies, bodies[1:], strict=False):  # the same image under the same key
        equal = int((first == second).sum())
        assert equal < 20  # about count / 2^26 are, which is 0.002
        product = (first.double() / primes[0] * second.double() / primes[0]).sum() * 12 / count**0.5
        assert abs(float(product)) < DEVIATIONS  # correlation, in deviations
        assert abs(chi_square((first[:, 0] - second[:, 0]).remainder(primes[0]) - primes[0] // 2, primes[0])) < ALLOWED


def test_the_uniformity_test_can_fail(recorded) -> None:  # type: ignore[no-untyped-def]
    public, bodies, *_ = recorded
    q, body = public.parameters.primes[0], bodies[0][:, 0]
    assert chi_square(body // 2, q) > 100  # half of the range
    assert chi_square(torch.where(torch.arange(body.shape[-1]) % 50 == 0, 0, body), q) > ALLOWED  # 2 % in the clear


# Bytes of others ------------------------------------------------------------------------------------------------------


def exchange(address: str, requests: list[bytes]) -> list[bytes]:
    """The answer that a foreign program gets from a turn."""
    channel = rpc_client.connect(address, timeout=HANG)
    try:
        return list(rpc_client.exchange(channel, "Turn", iter(requests), timeout=HANG))
    finally:
        channel.close()


def refusal(address: str, requests: list[bytes]) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        exchange(address, requests)
    refusals = ("FAILED_PRECONDITION", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
    assert caught.value.code().name in refusals, caught.value
    return str(caught.value.details())


@pytest.fixture(scope="module")
def turn_0(server: Server) -> list[bytes]:
    """The messages of a valid first turn."""
    public, batch = server.public, Client(server.public).begin(images(2))
    sent = [message for sent in batch.uploads(0) for message in messages.pack_upload(public, sent)]
    return [messages.opening(messages.digest(public.to_json().encode())), *sent]


def test_openings_of_others_are_refused(address: str, turn_0: list[bytes]) -> None:
    opening, slices = json.loads(turn_0[0]), turn_0[1:]
    assert len(exchange(address, turn_0)) > 0

    def changed(**fields: object) -> str:
        return refusal(address, [json.dumps({**opening, **fields}).encode(), *slices])

    assert "client (0.0.9) speaks format 99, the server (" in changed(format=99, release="0.0.9")
    assert "description of the net differs" in changed(digest="0" * 64)
    for turn in (-1, 2, 1.5, True, None, "0", 1 << 80):
        assert "malformed message: turn" in changed(turn=turn)
    for bad in (b"", b"[]", b"{", b"\xff" * 9, b"[" * 100_000, b'{"format": ' + b"9" * 5000 + b"}"):
        refusal(address, [bad, *slices])


def test_damaged_slices_are_refused_and_the_service_goes_on(
    address: str, net: nn.Module, server: Server, turn_0: list[bytes]
) -> None:
    rng, opening = random.Random(0), turn_0[0]
    stream = b"".join(turn_0[1:])
    ring = server.public.parameters.ring
    size = ring.degree * 26 // 8  # of one polynomial; residues of 2^26 - 1 are above every prime
    too_large = stream[:16] + bytes([255]) * size + stream[16 + size :]
    assert "not below its prime" in refusal(address, [opening, *cut(too_large)])
    assert "ended before" in refusal(address, [opening, *cut(stream[:-1])])
    assert "ended before" in refusal(address, [opening])
    assert "malformed message" in refusal(address, [opening, *cut(stream + b"x")[:-1], cut(stream)[-1] + b"x"])
    for _ in range(20):
        at, size = rng.randrange(len(stream)), rng.randrange(1, 4096)
        damaged = stream[:at] + rng.randbytes(size) + stream[at + rng.randrange(2 * size) :]
        with suppress(grpc.RpcError):  # some are valid ciphertexts, of nothing
            exchange(address, [opening, *cut(damaged)])
    with pytest.raises(InputError):
        unpack(ring, torch.zeros(12, dtype=torch.uint8), (1, len(ring.primes), ring.degree))
    with RemoteModel(address, timeout=HANG) as model:
        assert close(model(images(2)), net, images(2))


def cut(stream: bytes) -> list[bytes]:
    """Into messages of at most a chunk."""
    return [stream[at : at + service.CHUNK] for at in range(0, len(stream), service.CHUNK)] or [b""]


class Liar(Service):
    """A service that changes what it says. change: of the description or of an answer's message."""

    def __init__(self, server: Server, *, text: Callable[[bytes], bytes] = bytes, answer: object = bytes) -> None:
        super().__init__(server)
        self._text, self._answer = text(self._text), answer
        self._digest = messages.digest(self._text)

    def _turn(self, requests, context):  # type: ignore[no-untyped-def]
        for message in super()._turn(requests, context):
            yield self._answer(message)  # type: ignore[operator]


def test_answers_of_a_liar_are_errors(server: Server) -> None:
    for answer in (
        lambda message: message[:-1],
        lambda message: message + b"x",
        lambda message: bytes([255]) * len(message),
        lambda message: b"",
    ):
        with served(Liar(server, answer=answer)) as address, RemoteModel(address, timeout=HANG) as model:
            with pytest.raises(PeerError, match="server unix:"):
                model(images(2))


def test_descriptions_of_a_liar_are_errors(server: Server) -> None:
    rng, text = random.Random(1), server.public.to_json().encode()

    def damaged() -> bytes:
        at = rng.randrange(len(text))
        return text[:at] + rng.randbytes(rng.randrange(1, 9)) + text[at + rng.randrange(9) :]

    for case in (b"", b"[]", b"null", text[:-1], text + b"}", *(damaged() for _ in range(60))):
        with suppress(HummingbirdError):  # a digit may change without harm
            Client(Public.from_json(case))
    for case in (b"", b"[]", text[:-1]):
        with served(Liar(server, text=lambda _, case=case: case)) as address, pytest.raises(HummingbirdError):
            RemoteModel(address, timeout=HANG)


def test_parameters_that_are_not_secure_are_refused_by_the_client(server: Server) -> None:
    fields = json.loads(server.public.to_json())
    fields["degree"] = 1024  # the primes are 1 mod 2048 too, and 52 bits are twice what this degree allows
    text = json.dumps(fields).encode()
    with served(Liar(server, text=lambda _: text)) as address:
        with pytest.raises(ConfigError, match="log2 Q is 52.0"):
            RemoteModel(address, timeout=HANG)


def test_a_net_that_takes_too_much_memory_is_refused_before_anything_is_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is dishonestly large for a machine of 64 GB, and an honest one where less is allowed."""
    monkeypatch.setattr("hummingbird.he.service.client.installed", lambda device: 64 * 10**9)
    fields = json.loads(server.public.to_json())
    back = fields["turns"][-1]["returns"][0]
    for key, value in (("shape", [1 << 24]), ("rows", 1 << 24), ("places", 1), ("tile", 1)):
        back[key] = value
    text = json.dumps(fields).encode()
    with served(Liar(server, text=lambda _: text)) as address:
        with pytest.raises(ConfigError, match=r"takes 1\d\d\.\d\d GB here, allowed are 64\.00.*\nhint"):
            RemoteModel(address, timeout=HANG)
    with served(Service(server)) as address:
        with pytest.raises(ConfigError, match=r"allowed are 0\.00"):
            RemoteModel(address, timeout=HANG, memory=1000)
        with RemoteModel(address, timeout=HANG, memory=at_client(server.public)) as model:  # one batch at a time
            assert model(torch.zeros(2 * server.public.slots, *server.public.input_shape), in_flight=2).isfinite().all()


# Deaths and limits ----------------------------------------------------------------------------------------------------


def test_a_silent_client_ends_its_turn_and_leaves_its_room(server: Server, net: nn.Module, turn_0: list[bytes]) -> None:
    made, ended = Service(server, turns=1, idle=1.0), threading.Event()
    with served(made) as address:

        def stalls() -> Iterator[bytes]:
            yield turn_0[0]
            ended.wait(HANG)

        channel = rpc_client.connect(address, timeout=HANG)
        with pytest.raises(grpc.RpcError) as caught:
            list(rpc_client.exchange(channel, "Turn", stalls(), timeout=HANG))
        assert "sent nothing for 1 s" in str(caught.value.details())
        ended.set()
        channel.close()
        made._idle = NEVER  # the next client is not to run into it
        with RemoteModel(address, timeout=HANG) as model:
            assert close(model(images(2)), net, images(2))


def test_a_cancelled_client_leaves_its_room(server: Server, net: nn.Module, turn_0: list[bytes]) -> None:
    made = Service(server, turns=1, idle=NEVER)
    with served(made) as address:
        channel, holding = rpc_client.connect(address, timeout=HANG), threading.Event()

        def stalls() -> Iterator[bytes]:
            yield turn_0[0]
            holding.wait(HANG)

        call = rpc_client.exchange(channel, "Turn", stalls(), timeout=HANG)
        until(lambda: made.room.at_work == 1, "a turn to begin")
        call.cancel()
        holding.set()
        with RemoteModel(address, timeout=HANG) as model:
            assert close(model(images(2)), net, images(2))
        channel.close()
        until(lambda: made.room.at_work == 0, "the last turn's end, a moment after its last message has come")


def test_a_killed_client_leaves_its_room(server: Server, net: nn.Module) -> None:
    made = Service(server, turns=1, idle=NEVER)
    with served(made) as address:
        code = (
            "import sys, time; from hummingbird.rpc import client as rpc_client\n"
            "def requests():\n    yield sys.argv[2].encode()\n    time.sleep(3600)\n"
            "channel = rpc_client.connect(sys.argv[1])\n"
            "list(rpc_client.exchange(channel, 'Turn', requests(), timeout=3600))"
        )
        opening = messages.opening(messages.digest(server.public.to_json().encode())).decode()
        client = python.Popen([sys.executable, "-c", code, address, opening], cwd=ROOT)
        until(lambda: made.room.at_work == 1, "a turn to begin")
        client.kill()
        client.wait()
        with RemoteModel(address, timeout=HANG) as model:
            assert close(model(images(2)), net, images(2))


def test_waiting_for_room_ends(server: Server, turn_0: list[bytes]) -> None:
    made = Service(server, turns=1, idle=1.0)
    assert made.room.enter("another").wait(0)
    with served(made) as address:
        assert "1 turns are at work" in refusal(address, turn_0)
        for _ in range(MAX_CALLS - 1):
            made.room.enter(None)
        assert f"{MAX_CALLS} turns are at work or waiting" in refusal(address, turn_0)


def test_limits_are_checked_when_a_service_starts(server: Server) -> None:
    for turns in (0, MAX_CALLS + 1):
        with pytest.raises(ConfigError, match="turns at a time"):
            Service(server, turns=turns)
    with pytest.raises(ConfigError, match="allowed are 0.00"):
        Service(server, memory=1000)
    assert Service(server, turns=9, memory=2 * server.memory).room.places == 2


def test_a_dead_service_is_an_error_not_a_hang(address: str) -> None:
    with RemoteModel(address, timeout=HANG) as model:
        model.close()
        with pytest.raises((PeerError, ValueError)):
            model(images(2))
    with pytest.raises(PeerError, match="nothing answers"):
        RemoteModel("127.0.0.1:1", timeout=0.3)
