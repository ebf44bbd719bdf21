"""Many clients of one server: fair turns, more than there is room for, and connections that break."""

from __future__ import annotations

import tempfile
import threading

import pytest
import torch
from prometheus_client import CollectorRegistry
from torch import Tensor, nn

from hummingbird.errors import OverloadError, PeerError, UnavailableError
from hummingbird.he.compile.convert import convert_model
from hummingbird.he.runtime.client import Client, ClientBatch
from hummingbird.he.runtime.server import Server
from hummingbird.he.service.client import RemoteModel
from hummingbird.he.service.server import Service, turns_of
from hummingbird.rpc import service
from tests.support.he_service import SHAPE, close, images, served
from tests.support.patience import HANG, until

# Room -----------------------------------------------------------------------------------------------------------------


def test_who_has_the_fewest_at_work_is_next() -> None:
    room = turns_of(2, 40)
    greedy, polite = [room.enter("greedy") for _ in range(4)], [room.enter("polite") for _ in range(2)]
    order = [place.wait(0) for place in (*greedy, *polite)]  # all of the first come before the second
    assert order == [True, True, False, False, False, False] and (room.at_work, room.waiting) == (2, 4)
    greedy[0].leave()
    assert polite[0].taken and not greedy[2].taken  # which was before it
    greedy[1].leave()
    assert greedy[2].taken and not polite[1].taken  # of equals the first
    polite[0].leave()
    assert polite[1].taken and not greedy[3].taken
    for place in (greedy[2], polite[1]):
        place.leave()
    assert greedy[3].taken
    greedy[3].leave()
    assert (room.at_work, room.waiting, room.calls.taken, len(room._at_work)) == (0, 0, 0, 0)


def test_one_caller_does_not_fill_the_house() -> None:
    room = turns_of(1, 8)
    hers = [room.enter("alice"), room.enter("alice")]
    with pytest.raises(OverloadError, match="2 turns of yours"):
        room.enter("alice")
    others = [room.enter(None) for _ in range(6)]
    with pytest.raises(OverloadError, match="8 turns are at work or waiting"):
        room.enter("bob")
    assert hers[0].wait(0) and not hers[1].wait(0)
    hers[1].leave()  # while it waits
    room.enter("bob").leave()
    for place in (hers[0], *others):
        place.leave()
    assert room.at_work == room.waiting == 0


def test_more_clients_than_there_is_room_for_are_all_served(
    server: Server, net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hummingbird.he.service.server.RETRY", 0.2)
    made = Service(server, turns=2)
    made.room = turns_of(2, 3)
    outputs: dict[int, Tensor] = {}
    repeated: list[int] = []

    def client(seed: int) -> None:
        with RemoteModel(address, timeout=HANG) as model:
            outputs[seed] = model(images(2, seed))
            repeated.append(model.repeated)

    held = [made.room.enter(None) for _ in range(3)]
    with served(made) as address:
        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        with RemoteModel(address, timeout=HANG) as model, pytest.raises(OverloadError, match="3 turns") as caught:
            model._timeout = 0.5  # for this call: it is to run into it
            model(images(1))
        assert caught.value.retry_after == 0.2
        for place in held:
            place.leave()
        for thread in threads:
            thread.join(HANG)
    assert sorted(outputs) == list(range(8)) and sum(repeated) > 0
    assert all(close(result, net, images(2, seed)) for seed, result in outputs.items())
    assert made.room.at_work == made.room.waiting == 0


def test_turns_are_among_the_metrics(server: Server) -> None:
    made, registry = Service(server, turns=2), CollectorRegistry()
    made.measure(registry)
    places = [made.room.enter(None) for _ in range(3)]
    assert [place.wait(0) for place in places] == [True, True, False]
    figures = {"turns_at_work": 2, "turns_waiting": 1, "places": 2}
    assert {name: registry.get_sample_value(f"hummingbird_he_{name}") for name in figures} == figures


# Connections that break -----------------------------------------------------------------------------------------------


class Breaking(Service):
    """Breaks its calls off, each after so many messages of its answer as `plan` says; later ones are whole."""

    def __init__(self, server: Server, plan: list[int]) -> None:
        super().__init__(server)
        self.plan, self.calls = plan, 0

    def _turn(self, requests, context):  # type: ignore[no-untyped-def]
        most = self.plan[self.calls] if self.calls < len(self.plan) else 1 << 30
        self.calls += 1
        if most < 0:  # before anything is read
            raise UnavailableError("this server is stopping")
        for number, message in enumerate(super()._turn(requests, context)):
            if number == most:
                raise UnavailableError("this server is stopping")
            yield message


@pytest.mark.parametrize("plan", [[-1], [0], [-1, 0, 0, -1]], ids=str)
def test_a_turn_that_broke_is_repeated_and_no_other(server: Server, net: nn.Module, plan: list[int]) -> None:
    made, x, done = Breaking(server, plan), images(3), list[float]()
    with served(made) as address, RemoteModel(address, timeout=HANG) as model:
        key = model._client._key
        outputs = model(x, progress=done.append)
        assert model._client._key is key and model.repeated == len(plan)
        assert made.calls == len(plan) + len(server.public.turns)
        predicted = model.precision[0].predicted
        model(x)
        assert torch.allclose(model.precision[0].predicted, predicted, atol=0.1)  # nothing was counted twice
    assert close(outputs, net, x) and sum(done) == pytest.approx(3)


def test_a_break_in_the_middle_of_an_answer_counts_nothing_twice(net: nn.Module) -> None:
    """At the client as pure computation: half of an answer, then the turn once more."""
    wide = nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 2)).eval()
    model = convert_model(wide, (4,))
    x, client = torch.rand(5, 4), Client(model.public)
    whole, broken = client.begin(x), client.begin(x)
    bits: dict[ClientBatch, list[Tensor]] = {whole: [], broken: []}
    for batch in (whole, broken):
        for number in range(2):
            for attempt in range(2 if batch is broken else 1):
                turn = model.server.turn(number)
                ups = batch.uploads(number)
                if batch is broken and attempt == 0 and number == 1:
                    next(ups)  # and the connection breaks before the second slice
                    continue
                for sent in ups:
                    turn.receive(sent)
                backs = list(turn.downloads())
                assert len(backs) == (2 if number == 0 else 1)
                for back in backs if attempt or batch is whole else backs[:-1]:
                    batch.receive(back)
            bits[batch].append(batch.precision.predicted)
    first, second = whole.result(), broken.result()
    with torch.inference_mode():
        assert (first - wide(x)).abs().max() < 2**-7 and (second - wide(x)).abs().max() < 2**-7
    # These bits are half the logarithm of the values' energy: errors of 2^-12 change it by less than 2^-10.
    assert all(torch.allclose(a, b, atol=0.01) for a, b in zip(*bits.values(), strict=True))
    assert torch.allclose(whole.precision.measured, broken.precision.measured, atol=1.0)


@pytest.mark.parametrize("same", [True, False])
def test_a_server_that_comes_back_is_found_and_another_net_is_refused(
    server: Server, net: nn.Module, same: bool
) -> None:
    """Stopped in the middle of a client's first turn; the next process goes on with it, if it has the same net."""
    successor = server if same else convert_model(nn.Sequential(nn.Flatten(), nn.Linear(36, 5)).eval(), SHAPE).server
    gone, results = threading.Event(), list[Tensor | str]()

    class Struck(Service):
        def _turn(self, requests, context):  # type: ignore[no-untyped-def]
            next(requests)
            gone.set()
            until(lambda: not context.is_active())
            yield b""

    def run() -> None:
        try:
            results.append(model(images(2)))
        except PeerError as error:
            results.append(str(error))

    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/s"
        running = service.serve(Struck(server).handlers(), address)
        with RemoteModel(address, timeout=HANG) as model:
            thread = threading.Thread(target=run)
            thread.start()
            assert gone.wait(HANG)
            running.stop(0).wait()
            until(lambda: model.repeated > 0)
            again = service.serve(Service(successor).handlers(), address)
            thread.join(HANG)
        again.stop(0).wait()
    (result,) = results
    if same:
        assert isinstance(result, Tensor) and close(result, net, images(2))
    else:
        assert "description of the net differs" in str(result)


def test_a_server_that_breaks_every_time_is_given_up(server: Server) -> None:
    class Always(Service):
        def _turn(self, requests, context):  # type: ignore[no-untyped-def]
            next(requests)
            yield b""
            raise UnavailableError("the machine is ill")

    with served(Always(server)) as address, RemoteModel(address, timeout=HANG) as model:
        with pytest.raises(UnavailableError, match="the machine is ill"):
            model(images(1))
        assert model.repeated == 8
