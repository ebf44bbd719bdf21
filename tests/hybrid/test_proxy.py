"""Users behind a proxy: results, few bytes, tickets that serve once, slots of users who never come."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hummingbird.errors import ConfigError, HummingbirdError, InputError, OverloadError, PeerError
from hummingbird.he import bfv
from hummingbird.he.bfv import noise
from hummingbird.hybrid import messages, prices
from hummingbird.hybrid.client import Connection
from hummingbird.hybrid.message_stream import MessageStream
from hummingbird.hybrid.plan import Model, Step
from hummingbird.hybrid.proxy import MAX_USERS, Proxy
from hummingbird.hybrid.proxy_view import proxy_view, read_proxy_view
from hummingbird.hybrid.switched import Image, Keys, keys_of
from hummingbird.hybrid.user import ProxiedNet
from hummingbird.hybrid.users import INPUTS, MOST_KEYS, ConnectedUsers
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc import service
from hummingbird.rpc.admission import Admission
from hummingbird.rpc.security import Tokens
from tests.hybrid.test_arithmetic import images
from tests.support import hybrid_nets
from tests.support.bfv_cases import UNLIKELY, chi_square
from tests.support.hybrid import close, model, serving
from tests.support.hybrid_nets import same, several
from tests.support.patience import HANG, NEVER, until
from tests.support.services import asked, file_of


@contextmanager
def proxied(
    made: Model, folder: Path, slots: int = 2, gate: Admission | None = None, **options: Any
) -> Iterator[tuple[str, str, Proxy]]:
    """Addresses of a server and a proxy, and the proxy, whose users pass `gate`."""
    with serving(made, folder / "m", **options) as (server, _):
        with Connection(server, folder / "p", timeout=HANG) as connection:
            offered = Proxy(connection, slots)
            address = f"unix:{server.removeprefix('unix:')}.proxy"
            served = service.serve(offered.handlers(), address, gate=gate)
            try:
                until(lambda: connection.ready == slots, "slots to be prepared")
                yield server, address, offered
            finally:
                served.stop(0).wait()
                offered.close()


def counted(net: ProxiedNet, offered: Proxy, kind: str, images: int) -> None:
    """Every message of a user, and of the proxy for it, has the predicted size; the reports say so."""
    connection, plan = offered._connection, offered._connection.plan
    assert net.once == prices.user_once(plan, kind)
    assert net.online == {name: images * count for name, count in prices.user(plan, kind).items()}
    until(lambda: offered.served[kind] == images, "the proxy to have counted")
    online = {name: count for name, count in connection.online.items() if name != "opening"}
    assert online == {name: images * count for name, count in prices.proxied(plan, kind).items()}
    for report in (net.report(), offered.report()):
        lines = [line.split() for line in report.splitlines()[2:] if line.strip("-")]
        assert lines[-1][0] == "all" and all(line[-1] == line[-2] for line in lines)


@pytest.mark.parametrize("kind", INPUTS)
def test_several_results_in_their_structure(tmp_path: Path, kind: str) -> None:
    x = hybrid_nets.images((1, 4, 4), 2)
    with proxied(several(), tmp_path) as (server, address, offered):
        with ProxiedNet(server, address, input=kind, timeout=HANG) as net:
            assert same(net(x), x)
            counted(net, offered, kind, 2)


@pytest.mark.parametrize("garbler", ["data", "model"])
def test_users_have_the_logits_for_few_bytes(tmp_path: Path, garbler: str) -> None:
    made, x = model(garbler), images(4).float()
    with proxied(made, tmp_path) as (server, address, offered), ProxiedNet(server, address, timeout=HANG) as net:
        assert close(net(x[:2]), made, x[:2])
        plan, opening = made.plan, len(messages.UserOpening(plan="0" * 64, input="shares").pack())
        shares = 2 * messages.words_bytes(plan.output.count, plan.output.ring)
        each = opening + 32 + 48 + messages.words_bytes(plan.input.count, plan.input.ring) + shares
        assert net.online.total() == 2 * each
        counted(net, offered, "shares", 2)
        for at in (2, 3):
            until(lambda: offered._connection.ready == 2, "slots to be prepared again")
            assert close(net(x[at : at + 1]), made, x[at : at + 1])
        with pytest.raises(InputError):
            net(x * 100)


@pytest.mark.parametrize("garbler", ["data", "model"])
def test_users_send_encrypted_images(tmp_path: Path, garbler: str) -> None:
    made, x = model(garbler), images(2).float()
    with proxied(made, tmp_path) as (server, address, offered):
        with ProxiedNet(server, address, input="switched", timeout=HANG) as net:
            assert close(net(x), made, x)
            assert net.online.total() < 2 * 54_000
            counted(net, offered, "switched", 2)
            until(lambda: offered._connection.ready == 2, "slots to be prepared again")
            net._name = bytes(16)
            with pytest.raises(PeerError, match="does not have this user's key"):
                net(x[:1])
        with pytest.raises(HummingbirdError, match="input='plain'"):
            ProxiedNet(server, address, input="plain")


def test_a_proxy_sees_an_encrypted_image_under_a_mask() -> None:
    image, user, proxy = Image(Step("x", "input", (), (8000,), 14, 1.0)), bfv.Secret.new(), bfv.Secret.new()
    keys = Keys.from_bytes(keys_of(user, proxy.public().to_bytes()))
    x = torch.full((1, 8000), 5)
    sent, rho = image.masked(keys, image.encrypt(user, x))
    seen = image.decrypt(proxy, sent)
    assert torch.equal(seen, x - rho & (1 << 14) - 1) and chi_square(seen, 0, 1 << 14) < UNLIKELY


def test_images_whose_noise_would_tell_of_their_user_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A switched ciphertext's 2^32 hides in a ring of 32 bits for 255 values; the model's side looks at each key."""
    few = Step("x", "input", (), (255,), 32, 1.0)
    Image(few).check()
    with pytest.raises(ConfigError, match="2\\^-30 is allowed"):
        Image(replace(few, shape=(257,))).check()
    with proxied(model(), tmp_path, slots=0) as (server, address, _):
        monkeypatch.setattr(noise, "MOST_DISTANCE", 2.0**-90)
        with pytest.raises(HummingbirdError, match="2\\^-30 is allowed"):
            ProxiedNet(server, address, input="switched", timeout=HANG)


def slot_of(address: str, digest: str, **caller: str) -> bytes:
    """A slot that a user asks for."""
    return asked(address, "Slot", messages.UserOpening(plan=digest, input="shares").pack(), **caller)


def bring(server: str, request: bytes) -> bytes:
    """A server's answer to a user's input."""
    return asked(server, "Input", request)


def test_a_ticket_serves_once_and_only_for_this_net(tmp_path: Path) -> None:
    made = model()
    with proxied(made, tmp_path, slots=1) as (server, address, offered):
        connection = offered._connection
        digest = bytes.fromhex(connection.digest)
        ticket = slot_of(address, connection.digest)[:16]
        x = bytes(messages.words_bytes(made.plan.input.count, made.plan.input.ring))
        for wrong, what in (
            (digest + bytes(16) + x, "no slot waits for this ticket"),
            (bytes(32) + ticket + x, "another net, windows or weights"),
            (digest + ticket + x[1:], "malformed message"),
            (b"", "another net, windows or weights"),
            (digest + ticket, "malformed message"),
        ):
            with pytest.raises(PeerError, match=what):
                bring(server, wrong)
        assert bring(server, digest + ticket + x)
        with pytest.raises(PeerError, match="no slot waits for this ticket"):
            bring(server, digest + ticket + x)


class Slow(dict[str, Any]):
    """Tickets, where two callers may look at the same time, and each then has what it found."""

    def __init__(self) -> None:
        super().__init__()
        self.both = threading.Barrier(2)

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        with contextlib.suppress(threading.BrokenBarrierError):
            self.both.wait(1.0)  # in vain, where one has to wait for the other
        return found


def test_a_ticket_serves_one_of_two_who_bring_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = ConnectedUsers.__init__

    def slowly(users: ConnectedUsers, *arguments: Any) -> None:
        begin(users, *arguments)
        users._waiting = Slow()

    monkeypatch.setattr(ConnectedUsers, "__init__", slowly)
    made = model()
    with proxied(made, tmp_path) as (server, address, offered):
        connection, size = offered._connection, messages.words_bytes(made.plan.input.count, made.plan.input.ring)
        ticket = slot_of(address, connection.digest)[:16]
        ended = list[Any]()

        def brought() -> None:
            try:
                ended.append(bring(server, bytes.fromhex(connection.digest) + ticket + bytes(size)))
            except PeerError as error:
                ended.append(error)

        together = [threading.Thread(target=brought) for _ in range(2)]
        for thread in together:
            thread.start()
        for thread in together:
            thread.join(HANG)
        refused = [each for each in ended if isinstance(each, PeerError)]
        assert len(ended) == 2 and len(refused) == 1 and "no slot waits" in str(refused[0]), ended


def test_a_user_who_never_comes_burns_a_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hummingbird.hybrid.users.USER_SECONDS", 1.0)
    made = model()
    with proxied(made, tmp_path, slots=1, idle=NEVER) as (server, address, offered):
        connection = offered._connection
        slot = slot_of(address, connection.digest)
        until(lambda: offered._users.taken == 0, "the call to end")
        assert not list((tmp_path / "m").glob("*/slot-0000000"))
        with pytest.raises(PeerError, match="no slot waits"):
            size = messages.words_bytes(made.plan.input.count, made.plan.input.ring)
            bring(server, bytes.fromhex(connection.digest) + slot[:16] + bytes(size))
        until(lambda: connection.ready == 1, "another slot")


@pytest.mark.parametrize("side", ["p", "m/*"])
def test_a_user_is_served_after_a_damaged_slot(tmp_path: Path, side: str) -> None:
    made, x = model(), images(2).float()
    with proxied(made, tmp_path) as (server, address, offered), ProxiedNet(server, address, timeout=HANG) as net:
        (path,) = tmp_path.glob(f"{side}/slot-0000000")
        path.write_bytes(b"x" * 100)
        assert close(net(x[:1]), made, x[:1])
        until(lambda: offered._users.taken == 0, "the place to be free")
        until(lambda: offered._connection.ready == 2, "slots to be prepared again")
        assert close(net(x), made, x)


def test_a_proxy_without_slots_says_so(tmp_path: Path) -> None:
    with proxied(model(), tmp_path, slots=0) as (server, address, _), ProxiedNet(server, address, timeout=HANG) as net:
        says = r"no slot is ready \(at the proxy\).*\nhint: others are being prepared"
        for _ in range(MAX_USERS + 1):  # who is refused holds no place
            with pytest.raises(PeerError, match=says):
                net(images(1).float())


def test_ends_of_a_plan_are_read_as_they_are_written_and_nothing_else() -> None:
    plan, digest = model().plan, "ab" * 32
    text = proxy_view(plan, digest)
    read, found = read_proxy_view(text)
    assert found == digest and read.input_range == plan.input_range
    for mine, theirs in ((read.input, plan.input), (read.output, plan.output)):
        assert (mine.shape, mine.ring, mine.unit) == (theirs.shape, theirs.ring, theirs.unit)
    for bad in (b"", b"[]", b"{}", text[:-1], text.replace(b"14", b"99"), text.replace(b"[1, 4, 4]", b"[1, -4]")):
        with pytest.raises(InputError):
            read_proxy_view(bad)


def test_a_proxy_of_another_plan_is_refused(tmp_path: Path) -> None:
    with proxied(model(), tmp_path) as (server, address, _), ProxiedNet(server, address, timeout=HANG) as net:
        net._digest = "00" * 32
        with pytest.raises(HummingbirdError, match="another net, windows or weights"):
            net(images(1).float())


@pytest.mark.parametrize("kind", ["shares", "switched"])
def test_the_model_s_side_marks_a_slot_as_used_before_it_sends_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    sends, sent, made = MessageStream.send, [], model()

    def send(link: MessageStream, name: str, data: Any) -> None:
        if link.where == "the data's side":
            lines = [path.read_bytes().splitlines() for path in (tmp_path / "m").glob("*/used")]
            sent.append((name, sum(map(len, lines)) - len(lines)))
        sends(link, name, data)

    with proxied(made, tmp_path, slots=1) as (server, address, offered):
        offered._ended.set()  # prepares no more
        monkeypatch.setattr(MessageStream, "send", send)
        with ProxiedNet(server, address, input=kind, timeout=HANG) as net:
            net(images(1).float())
        assert [name for name, _ in sent][:2] == ["done", "switched" if kind == "switched" else "relu: bits"]
        assert {used for _, used in sent} == {1}, sent


@pytest.mark.slow
def test_one_absent_user_does_not_hold_all_places(tmp_path: Path) -> None:
    """It has two of them; when they are given up others have them, and that name has none for a while."""
    made = model()
    path, (alice, bob) = file_of(tmp_path, "alice", "bob")
    options: dict[str, Any] = {"slots": MAX_USERS, "gate": Admission(tokens=Tokens(path)), "idle": 5.0}
    with proxied(made, tmp_path, **options) as (_, address, offered):
        digest = offered._connection.digest
        for _ in range(2):
            slot_of(address, digest, token=alice)
        for _ in range(MAX_USERS):
            with pytest.raises(OverloadError, match="2 users of yours"):
                slot_of(address, digest, token=alice)
        slot_of(address, digest, token=bob)
        until(lambda: offered._users.taken == 0, "the places to be free")
        with pytest.raises(OverloadError, match="2 users of yours"):
            slot_of(address, digest, token=alice)
        slot_of(address, digest, token=bob)


def test_one_user_s_keys_are_in_nobody_else_s_way(tmp_path: Path) -> None:
    made = model()
    path, (alice, bob) = file_of(tmp_path, "alice", "bob")
    with proxied(made, tmp_path) as (_, _, offered):
        public, digest = offered._public, offered._connection.digest
        keys = bytes.fromhex(digest) + keys_of(bfv.Secret.new(), public)
    with serving(made, tmp_path / "m", gate=Admission(tokens=Tokens(path))) as (server, here):
        mine = asked(server, "Keys", keys, token=bob).hex()
        channel = rpc_client.connect(server, timeout=HANG, token=alice)
        hers = [rpc_client.call(channel, "Keys", keys, timeout=HANG).hex() for _ in range(MOST_KEYS)]
        channel.close()
        known = here._users._keys
        assert len(known) == MOST_KEYS and mine in known and hers[0] not in known and hers[1] in known
