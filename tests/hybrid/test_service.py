"""The model's side as a service: results, stores that fit, bytes of others, deaths, limits."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hummingbird import he
from hummingbird.__main__ import main
from hummingbird.bits import BitWindow
from hummingbird.errors import (
    AgreementError,
    HummingbirdError,
    InputError,
    OverloadError,
    PeerError,
    StoreError,
)
from hummingbird.he.service import server as he_server
from hummingbird.he.service.client import RemoteModel
from hummingbird.hybrid import client, messages
from hummingbird.hybrid.client import RemoteNet
from hummingbird.hybrid.convert import make_plan
from hummingbird.hybrid.plan import LinearWeights, Model
from hummingbird.hybrid.service import MAX_CALLS
from hummingbird.rpc import service
from tests.hybrid.test_arithmetic import images
from tests.support import he_service, hybrid_nets
from tests.support.covering import every
from tests.support.dealers import Authority
from tests.support.hybrid import close, model, serving
from tests.support.hybrid_nets import same, several
from tests.support.patience import HANG, NEVER, until


@pytest.mark.parametrize("garbler", every(2, ["data", "model"]))
def test_logits_are_those_of_the_plan_over_restarts_of_both(tmp_path: Path, garbler: str) -> None:
    made, x = model(garbler), images(5).float()
    for _ in range(2):
        with serving(made, tmp_path / "m") as (address, _), RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
            told: list[int] = []
            net.prepare(3, told.append)
            assert told == [1, 1, 1]
            assert close(net(x[:2]), made, x[:2])
        with serving(made, tmp_path / "m") as (address, _), RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
            assert net.ready == 1
            told = []
            assert close(net(x, progress=told.append), made, x)  # the others are dealt meanwhile
            assert told == [1] * 5 and net.ready == 0
    assert not list(tmp_path.glob("**/slot-*"))


@pytest.mark.parametrize("garbler", every(2, ["model", "data"]))
def test_several_results_in_their_structure(tmp_path: Path, garbler: str) -> None:
    made, x = several(), hybrid_nets.images((1, 4, 4))
    made = replace(made, plan=replace(made.plan, garbler=garbler))
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "labels.npy", np.zeros(3, dtype=np.int64))
    with serving(made, tmp_path / "m") as (address, _):
        with RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
            assert same(net(x), x)
        given = ["gc-client", "--server", address, "--store", f"{tmp_path}/d", "--images", f"{tmp_path}/x.npy"]
        assert main([*given, "--out", f"{tmp_path}/out.npz"]) == 0
        assert main([*given, "--labels", f"{tmp_path}/labels.npy"]) == 1
    written = np.load(tmp_path / "out.npz")
    assert [*written] == ["a", "b.0", "y", "x"]
    found = {"a": written["a"], "b": [written["b.0"], 3, None], "y": written["y"], "x": written["x"]}
    as_tensor = {key: torch.from_numpy(value) for key, value in found.items() if key != "b"}
    assert same({**found, **as_tensor, "b": [torch.from_numpy(written["b.0"]), 3, None]}, x)


def test_numbers_that_forward_reads_from_weights_stay_with_the_server(tmp_path: Path) -> None:
    """By both kinds of service; windows [21:5) are cut to 2^-11, beside logits of order 1."""
    net, x = Read().eval(), torch.randn(3, 4).clamp(-4, 4)
    with torch.no_grad():
        wanted = net(x)
    with serving(make_plan(net, (4,), BitWindow(21, 5)), tmp_path / "m") as (address, _):
        with RemoteNet(address, tmp_path / "d", timeout=HANG) as remote:
            assert torch.allclose(remote(x), wanted, atol=2.0**-5)
    for mode in ("client-aided", "polynomial"):
        server = he.convert_model(Read(mode == "client-aided").eval(), (4,), mode).server
        with he_service.served(he_server.Service(server)) as address, RemoteModel(address, timeout=HANG) as model:
            told = model.public.to_json()
            assert "0.3127" not in told and "1.7313" not in told
            with torch.no_grad():
                assert torch.allclose(model(x), Read(mode == "client-aided").eval()(x), atol=5e-3)


class Read(torch.nn.Module):
    """A factor and a shift that are read as numbers."""

    def __init__(self, relu: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.relu = torch.nn.Linear(4, 5), torch.nn.Linear(5, 2), relu
        self.factor = torch.nn.Parameter(torch.tensor(0.31273))
        self.register_buffer("shifts", torch.tensor([1.73131, -0.5]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) * self.factor.item()
        x = self.last((x.relu() if self.relu else x) + self.shifts.tolist()[0])
        return x / self.shifts.tolist()[1]


def test_an_error_waits_for_no_slot_but_the_one_being_dealt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after the first of six images, while the third slot is being dealt: no fourth one is."""
    made, x = model(), images(6).float()
    close_supply, room = client._Supply.close, threading.Semaphore(2)
    begun: list[bool] = []

    def begin(*_: object) -> nullcontext[None]:
        begun.append(True)
        assert room.acquire(timeout=HANG)
        return nullcontext()

    def interrupt(_: int) -> None:
        until(lambda: len(begun) == 3, "the third slot to begin")
        raise KeyboardInterrupt

    def closing(supply: client._Supply) -> None:
        def go_on() -> None:
            until(lambda: supply._closed, "the supply to be closed")
            room.release(6)

        threading.Thread(target=go_on, daemon=True).start()
        close_supply(supply)

    monkeypatch.setattr(client._Supply, "close", closing)
    with serving(made, tmp_path / "m") as (address, offered), RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
        offered._sessions.room = begin  # type: ignore[assignment, method-assign]
        with pytest.raises(KeyboardInterrupt):
            net(x, in_flight=1, progress=interrupt)
        assert len(begun) == 3 and net.ready >= 1
        assert close(net(x[:2]), made, x[:2])


def test_several_clients_at_once(tmp_path: Path) -> None:
    made, right = model(), {}

    def ask(number: int, address: str) -> None:
        x = images(2).float() / (1 + number)
        with RemoteNet(address, tmp_path / f"d{number}", timeout=HANG) as net:
            right[number] = close(net(x), made, x)

    with serving(made, tmp_path / "m") as (address, _):
        threads = [threading.Thread(target=ask, args=(number, address)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG)
    assert right == dict.fromkeys(range(4), True)


def test_mutual_tls(tmp_path: Path) -> None:
    made, ours = model(), Authority(tmp_path, "ours")
    with serving(made, tmp_path / "m", ours.issue("server", "localhost")) as (address, _):
        with RemoteNet(address, tmp_path / "d", tls=ours.issue("client"), timeout=HANG) as net:
            assert close(net(images(1).float()), made, images(1).float())


@pytest.mark.parametrize(
    "x", [torch.zeros(2, 1, 4), torch.zeros(0, 1, 4, 4), torch.full((1, 1, 4, 4), 9.0), torch.zeros(1, 1, 4, 4).long()]
)
def test_wrong_images_are_an_error_before_anything_is_sent(tmp_path: Path, x: torch.Tensor) -> None:
    with serving(model(), tmp_path / "m") as (address, _), RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
        with pytest.raises(InputError):
            net(x)
        assert not net.online and not net.offline


def test_stores_of_other_nets_sessions_and_sides_are_refused(tmp_path: Path) -> None:
    made = model()
    with serving(made, tmp_path / "m") as (address, _), RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
        net.prepare(1)
        with pytest.raises(StoreError, match="another process is using this store"):
            RemoteNet(address, tmp_path / "d", timeout=HANG)
        with pytest.raises(StoreError, match="another process is using this store"):
            with serving(made, tmp_path / "m"):
                pass
    changed = {**made.parameters, 5: LinearWeights(made.parameters[5].weight + 1, made.parameters[5].bias)}
    for other in (Model(made.plan, changed), model("model")):
        with (
            serving(other, tmp_path / "m") as (address, _),
            pytest.raises(AgreementError, match="another net, windows"),
        ):
            RemoteNet(address, tmp_path / "d", timeout=HANG)
    with serving(made, tmp_path / "m2") as (address, _):
        with pytest.raises(AgreementError):  # the same net on another server, which has another secret
            RemoteNet(address, tmp_path / "d", timeout=HANG)
    (session,) = [path for path in (tmp_path / "m").iterdir() if path.is_dir()]
    with serving(made, tmp_path / "m") as (address, _), pytest.raises(AgreementError, match="of the model's side"):
        RemoteNet(address, session, timeout=HANG)
    session.rename(tmp_path / "gone")
    with serving(made, tmp_path / "m") as (address, _), RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
        with pytest.raises(PeerError, match="the server has no session"):
            net(images(1).float())


def test_a_slot_is_used_once_whatever_the_other_side_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A store that is set back to an earlier copy: the other side's ledgers refuse what it has used."""
    with serving(model(), tmp_path / "m") as (address, _):
        with RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
            net.prepare(2)
            kept = {path: path.read_bytes() for path in (tmp_path / "d").iterdir()}
            net(images(2).float())
            net.prepare(1)
        for path in (tmp_path / "d").iterdir():
            path.unlink()
        for path, data in kept.items():
            path.write_bytes(data)
        with RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
            with pytest.raises(PeerError, match="slot 2 has been handed out already"):
                net(images(1).float())  # slots 0 and 1 are not ready at the server
            told = [record.message.partition(" is not ready")[0] for record in caplog.records]
            assert told == [f"another slot is used: slot {slot}" for slot in range(2)]
            net.prepare(1)  # slot 3


def test_slots_that_the_client_has_lost_are_removed_at_the_server(tmp_path: Path) -> None:
    with serving(model(), tmp_path / "m") as (address, _):
        with RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
            net.prepare(3)
        for lost in (0, 2):  # as when the client is killed before it has written them
            (tmp_path / "d" / f"slot-000000{lost}").unlink()
        with RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
            net.prepare(1)
            assert net.ready == 2
        assert sorted(path.name[-1] for path in (tmp_path / "m").glob("*/slot-*")) == ["1", "2", "3"]


@pytest.mark.parametrize("side", ["d", "m/*"])
def test_a_client_goes_on_after_damaged_slots(tmp_path: Path, caplog: pytest.LogCaptureFixture, side: str) -> None:
    made, x = model(), images(3).float()
    with serving(made, tmp_path / "m") as (address, _), RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
        net.prepare(3)
        for slot in (0, 1):
            (path,) = tmp_path.glob(f"{side}/slot-000000{slot}")
            path.write_bytes(b"x" * 100)
        told: list[int] = []
        assert close(net(x, progress=told.append), made, x) and told == [1] * 3
        assert net.ready == 0 and len(net.online) and net.side.store._dealt.next == 5
        assert [record.message[:33] for record in caplog.records] == ["another slot is used: slot-000000"] * 2
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "TRIES", 2)
            net.prepare(3)
            for path in tmp_path.glob(f"{side}/slot-*"):
                path.write_bytes(b"x" * 100)
            with pytest.raises(HummingbirdError, match="is damaged"):
                net(x[:1])
            assert net.ready == 1  # what was spare is used, and nothing dealt


def test_a_limit_of_the_servers_disk(tmp_path: Path) -> None:
    made = model()
    with serving(made, tmp_path / "m", disk=30_000) as (address, offered):
        assert offered._side.slot_bytes > 10_000
        with RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
            net.prepare(2)
            with pytest.raises(PeerError, match="is above the limit"):
                net.prepare(1)
            assert close(net(images(2).float()), made, images(2).float())
            net.prepare(2)
    with pytest.raises(HummingbirdError, match="disk is 0"):
        with serving(made, tmp_path / "m", disk=0):
            pass


def test_a_foreign_service_is_an_error(tmp_path: Path) -> None:
    for text in (b"", b"{}", b"0" * 64, b"0" * 64 + b'{"format": 1}'):
        address = f"unix:{tmp_path}/s"
        server = service.serve({"Public": lambda data, context, text=text: text}, address)
        try:
            with pytest.raises(HummingbirdError):
                RemoteNet(address, tmp_path / "d", timeout=HANG)
        finally:
            server.stop(0).wait()


def test_a_silent_client_ends_its_call_and_burns_its_slot_alone(tmp_path: Path) -> None:
    made = model()
    with serving(made, tmp_path / "m", idle=1.0) as (address, offered):
        with RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
            net.prepare(2)
            slot = net.side.take()
            with net.call("Online", net.online) as link:
                net.side.open(link, slot)  # and no input
                with pytest.raises(PeerError, match="nothing came for 1 s, awaited: input"):
                    link.receive("bits", 1)
            with net.call("Offline", net.offline) as link:
                link.send(
                    "opening",
                    messages.OfflineOpening(plan=net.digest, session=net.side.store.header.session, first=0).pack(),
                )
                with pytest.raises(PeerError, match="nothing came for 1 s, awaited: key"):
                    link.receive("reply", 1)
            until(lambda: offered._calls.taken == 0, "both calls to end")
            offered._idle = NEVER  # the next one is not to run into it
            assert close(net(images(1).float()), made, images(1).float())


def test_a_silent_server_is_an_error(tmp_path: Path) -> None:
    with serving(model(), tmp_path / "m") as (address, offered), RemoteNet(address, tmp_path / "d") as net:
        net._timeout = 1.0
        until_end = threading.Event()
        offered._side.prepare = lambda *_: until_end.wait(HANG)  # type: ignore[method-assign]
        with pytest.raises(PeerError, match="nothing came for 1 s"):
            net.prepare(1)
        until_end.set()


def test_a_server_has_room_for_so_many_calls(tmp_path: Path) -> None:
    with serving(model(), tmp_path / "m") as (address, offered), RemoteNet(address, tmp_path / "d") as net:
        for _ in range(MAX_CALLS):
            offered._calls.enter(None)
        with pytest.raises(OverloadError, match=f"{MAX_CALLS} calls are at work or waiting, the most"):
            net.prepare(1)
        for _ in range(MAX_CALLS):
            offered._calls.leave(None)
        net.prepare(1)
