"""Bounds on what one caller of gc-server may take: memory, calls, sessions, disk. Each test is an attack that fails."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hummingbird.errors import OverloadError, PeerError, StoreError
from hummingbird.he import bfv
from hummingbird.hybrid import messages, sessions
from hummingbird.hybrid.client import RemoteNet
from hummingbird.hybrid.plan import Model
from hummingbird.hybrid.service import MAX_CALLS, Service
from hummingbird.hybrid.sessions import DAYS
from hummingbird.ot import cot
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc import service
from hummingbird.rpc.admission import Admission, Limits
from hummingbird.rpc.security import Tokens
from tests.hybrid.test_arithmetic import images
from tests.support.hybrid import close, model, serving
from tests.support.patience import HANG, NEVER, until
from tests.support.services import file_of


@contextmanager
def named(
    made: Model, folder: Path, limits: Limits | None = None, **options: Any
) -> Iterator[tuple[str, Service, str, str]]:
    """The address of a service for alice and bob, the service, and their tokens."""
    path, tokens = file_of(folder, "alice", "bob")
    with serving(made, folder / "m", gate=Admission(limits, Tokens(path)), **options) as (address, offered):
        yield address, offered, *tokens


def slots_for(net: RemoteNet, offered: Service, slots: int) -> Iterator[bytes]:
    """All that a call says that has so many slots dealt after the first, in zeros, whatever it is told."""
    numbering, side = offered._side.numbering, offered._side
    yield messages.OfflineOpening(plan=net.digest, session=net.side.store.header.session, first=0).pack()
    key = bfv.Secret.new().public().to_bytes()
    asked = [bytes(layer.up) for layer in side.weights.singly.values()]
    if net.plan.garbler == "model":
        rest = [bytes(cot.message_bytes(numbering.bits, False))]
    else:
        rest = [bytes(place.table_bytes) for place in numbering.places]
    for data in (key, *(each for slot in range(1, 1 + slots) for each in (slot.to_bytes(8, "little"), *asked, *rest))):
        for at in range(0, len(data), service.CHUNK):
            yield data[at : at + service.CHUNK]
    yield messages.END


@pytest.mark.slow
def test_a_caller_that_sends_and_never_reads_takes_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is dealt what the connection holds and 1 MB beyond, then nothing, and its call ends; others are served."""
    monkeypatch.setattr("hummingbird.hybrid.message_stream.AHEAD", service.CHUNK)
    made = model("model")
    with serving(made, tmp_path / "m") as (address, offered):
        with RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
            net.prepare(1)
            offered._idle = 10.0  # of which the caller's messages are no part: they have all been sent
            down = sum(net.offline[name] for name in ("conv: reply", "fc: reply", "OT"))
            slots, held = 24 * service.CHUNK // down, 12 * service.CHUNK // down
            unread = rpc_client.exchange(net._channel, "Offline", slots_for(net, offered, slots), timeout=NEVER)
            until(lambda: offered._calls.taken == 1, "the call to begin")
            until(lambda: offered._calls.taken == 0, "the call to end")
            (store,) = (tmp_path / "m").glob("*/dealt")
            assert len(store.read_bytes().splitlines()) < 3 + held
            with pytest.raises(service.grpc.RpcError) as caught:
                list(unread)
            assert "it has read nothing for 10 s, unread: " in str(caught.value.details())
            offered._idle = NEVER
            with RemoteNet(address, tmp_path / "e", timeout=HANG) as other:
                assert close(other(images(1).float()), made, images(1).float())


def test_what_a_name_s_calls_hold_is_counted_at_the_gate(tmp_path: Path) -> None:
    made = model()
    with serving(made, tmp_path / "x") as (_, offered):
        limits = Limits(client_bytes=offered.dealing_bytes + 1000)
    with named(made, tmp_path, limits) as (address, offered, alice, bob):
        with RemoteNet(address, tmp_path / "d", timeout=HANG, token=alice) as net:
            silent = threading.Event()
            call = rpc_client.exchange(net._channel, "Offline", iter(lambda: silent.wait() or b"", b""), timeout=NEVER)
            until(lambda: offered._calls.taken == 1, "the call to begin")
            with pytest.raises(OverloadError, match="your calls hold"):
                net.prepare(1)
            with RemoteNet(address, tmp_path / "e", timeout=HANG, token=bob) as other:
                other.prepare(1)
            call.cancel()
            silent.set()
            until(lambda: offered._calls.taken == 0, "the call to end")
            net.prepare(1)


def test_a_second_caller_is_served_while_another_s_calls_are_silent(tmp_path: Path) -> None:
    made, silent = model(), threading.Event()
    with named(made, tmp_path, Limits(client_bytes=1 << 40)) as (address, offered, alice, bob):
        channel = rpc_client.connect(address, timeout=HANG, token=alice)
        calls = [
            rpc_client.exchange(channel, name, iter(lambda: silent.wait() or b"", b""), timeout=NEVER)
            for name in ("Session", "Offline", "Online", "Online") * (MAX_CALLS // 4)
        ]
        until(lambda: sum(call.done() for call in calls) == 3 * MAX_CALLS // 4, "most of them to be refused")
        with RemoteNet(address, tmp_path / "d", timeout=HANG, token=bob) as net:
            assert close(net(images(2).float()), made, images(2).float())
        with pytest.raises(OverloadError, match="16 calls of yours"):
            RemoteNet(address, tmp_path / "e", timeout=HANG, token=alice)
        for call in calls:
            call.cancel()
        silent.set()
        channel.close()
        until(lambda: offered._calls.taken == 0, "the calls to end")


def test_a_name_s_sessions_have_a_bound_and_an_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS", 2)
    monkeypatch.setattr(sessions, "_OPEN", 1)  # the others are opened anew
    made, x = model(), images(1).float()

    def begun(name: str, token: str) -> None:
        with RemoteNet(address, tmp_path / name, timeout=HANG, token=token) as net:
            net.prepare(1)

    def folders() -> set[str]:
        return {path.name for path in (tmp_path / "m").iterdir() if path.is_dir()}

    with named(made, tmp_path) as (address, offered, alice, bob):
        begun("a1", alice)
        (first,) = folders()
        begun("a2", alice)
        for _ in range(2):
            with pytest.raises(
                PeerError, match=f"you have 2 sessions here, which is the limit.*\nhint: .*for {DAYS:g} days"
            ):
                begun("a3", alice)
            begun("b1", bob)  # the same again
        assert sum(session.store is not None for session in offered._sessions._sessions.values()) == 1
        with RemoteNet(address, tmp_path / "a1", timeout=HANG, token=alice) as net:
            assert close(net(x), made, x)
    day = 86400
    with named(made, tmp_path) as (address, offered, alice, bob):
        with pytest.raises(PeerError, match="you have 2 sessions here"):
            begun("a3", alice)
        for age, gone in ((DAYS - 1, False), (DAYS + 1, True)):
            os.utime(tmp_path / "m" / first, (time.time() - age * day,) * 2)
            if not gone:
                with pytest.raises(PeerError, match="you have 2 sessions here"):
                    begun("a3", alice)
        begun("a3", alice)
        assert first not in folders() and len(folders()) == len(offered._sessions) == 3
        with RemoteNet(address, tmp_path / "a1", timeout=HANG, token=alice) as net:
            with pytest.raises(PeerError, match=f"the server has no session {first[:8]}"):
                net.prepare(1)
        for path in (tmp_path / "m").iterdir():
            os.utime(path, (0, 0))
    with named(made, tmp_path):  # at its start
        assert not folders() and (tmp_path / "m" / "seed").exists()


def test_a_session_at_work_is_not_removed(tmp_path: Path) -> None:
    made = model()
    with serving(made, tmp_path / "m", days=1) as (address, offered):
        with RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
            net.prepare(1)
            (folder,) = (path for path in (tmp_path / "m").iterdir() if path.is_dir())
            with offered._sessions.use(folder.name, ""):
                os.utime(folder, (0, 0))
                RemoteNet(address, tmp_path / "e", timeout=HANG).close()
                assert folder.exists()
            RemoteNet(address, tmp_path / "f", timeout=HANG).close()
            assert not folder.exists()


def test_sessions_that_were_not_opened_count_against_the_disk(tmp_path: Path) -> None:
    made = model()
    with serving(made, tmp_path / "m") as (address, offered), RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
        net.prepare(2)
        size = offered._side.slot_bytes
        assert offered._sessions.ready[0] == 2 and offered._sessions.ready[1] >= 2 * size
    with serving(made, tmp_path / "m", disk=3 * size) as (address, offered):
        assert offered._sessions.ready[0] == 2
        with RemoteNet(address, tmp_path / "e", timeout=HANG) as other:
            with pytest.raises(PeerError, match="is above the limit"):
                other.prepare(1)
            with RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
                net(images(2).float())
            other.prepare(2)
            with pytest.raises(PeerError, match="is above the limit"):
                other.prepare(1)


def test_slots_that_are_being_dealt_count_against_the_disk(tmp_path: Path) -> None:
    with serving(model(), tmp_path / "m", disk=30_000) as (_, offered):
        with offered._sessions.room("", 20_000), pytest.raises(StoreError, match="is above the limit"):
            with offered._sessions.room("", 20_000):
                pass
        with offered._sessions.room("", 20_000):
            pass


def test_one_name_does_not_fill_the_disk(tmp_path: Path) -> None:
    made = model()
    with serving(made, tmp_path / "x") as (_, offered):
        size = offered._side.slot_bytes
    with named(made, tmp_path, disk=9 * size) as (address, _, alice, bob):
        with RemoteNet(address, tmp_path / "d", timeout=HANG, token=alice) as net:
            with pytest.raises(PeerError, match="more than is left for others"):
                net.prepare(9)
            assert net.ready == 4
        with RemoteNet(address, tmp_path / "e", timeout=HANG, token=bob) as other:
            other.prepare(1)
