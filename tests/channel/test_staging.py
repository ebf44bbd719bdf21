"""Messages of tensors on a GPU: nothing is read before its copy has passed. A GPU of threads stands in for one."""

from __future__ import annotations

import contextlib
import queue
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird.channel import channel as channels_module
from hummingbird.channel import staging
from hummingbird.channel.staging import Aside, Staging, staging_of
from tests.support.parties import channels, together
from tests.support.patience import HANG, until

CPU = torch.device("cpu")


class Event:
    """Something that a stream has come past."""

    def __init__(self) -> None:
        self.passed = threading.Event()

    def synchronize(self) -> None:
        assert self.passed.wait(HANG)


class Stream:
    """Work in order, by a thread, while the gate is open."""

    def __init__(self, device: torch.device) -> None:
        self.gate, self._queue = threading.Event(), queue.SimpleQueue[Callable[[], Any]]()
        self.gate.set()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            work = self._queue.get()
            assert self.gate.wait(HANG)
            work()

    def then(self, work: Callable[[], Any]) -> None:
        self._queue.put(work)

    def record_event(self) -> Event:
        event = Event()
        self.then(event.passed.set)
        return event

    def wait_event(self, event: Event) -> None:
        self.then(event.synchronize)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())


class Cuda:
    """In place of `torch.cuda`: streams of this kind, one of them where kernels go."""

    Stream = Stream

    def __init__(self) -> None:
        self.compute = Stream(CPU)
        self.chosen = threading.local()

    def current_stream(self, device: torch.device) -> Stream:
        return self.compute

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.chosen.stream = stream
        yield


class Staged(Staging):
    """Copies are work of the chosen stream; memory is noticed that must be kept."""

    def __init__(self) -> None:
        super().__init__(CPU, Cuda())
        self.kept: list[tuple[Tensor, Stream]] = []

    @property
    def compute(self) -> Stream:
        """Where kernels go."""
        return self._cuda.compute

    @property
    def incoming(self) -> Stream:
        return self._incoming

    def buffer(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def _copy(self, to: Tensor, x: Tensor) -> None:  # type: ignore[override]
        to.zero_()
        self._cuda.chosen.stream.then(lambda: to.copy_(x))

    def _keep(self, tensor: Tensor, stream: Stream) -> None:  # type: ignore[override]
        self.kept.append((tensor, stream))


class Hasty(Staged):
    """Waits for nothing: what the tests below must notice."""

    def fetch(self, tensors: Any) -> Any:
        out, _ = super().fetch(tensors)
        return out, self._late.record_event()

    def land(self, tensor: Tensor) -> Tensor:
        waiting = self._cuda.compute.wait_event
        self._cuda.compute.wait_event = lambda event: None
        try:
            return super().land(tensor)
        finally:
            self._cuda.compute.wait_event = waiting

    def __init__(self) -> None:
        super().__init__()
        self._late = Stream(CPU)  # no copies are there


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Two channels whose tensors count as a GPU's, and their staging: `request.param`, or the real one on threads."""
    made, stage = channels(2), getattr(request, "param", Staged)()
    monkeypatch.setattr(channels_module, "staging_of", lambda tensors: stage)
    yield (*made, stage)
    for one in made:
        one.close()


def sent(one: Any, seconds: float) -> bool:
    """Whether something has come from the other party within so many seconds."""
    return bool(select.select([one._incoming[1 - one.rank]], [], [], seconds)[0])


WORDS = torch.arange(1000)


def made_late(stage: Staged) -> Tensor:
    """A tensor whose kernel has not run yet."""
    out = torch.zeros_like(WORDS)
    stage.compute.gate.clear()
    stage.compute.then(lambda: out.copy_(WORDS))
    return out


def test_a_frame_leaves_when_its_tensor_is_there_and_the_sender_goes_on(pair: Any) -> None:
    zero, one, stage = pair
    late = made_late(stage)
    (future,) = zero._send([1], [late])  # returns
    assert not sent(one, 0.05) and not future.done()
    stage.compute.gate.set()
    (got,) = one.receive(0, [WORDS])
    stage.compute.record_event().synchronize()
    assert got.equal(WORDS)
    zero._finish([1], [future])
    assert any(tensor is late and stream is stage._outgoing for tensor, stream in stage.kept)


@pytest.mark.parametrize("pair", [Hasty], indirect=True)
def test_that_check_can_fail_on_the_way_out(pair: Any) -> None:
    zero, one, stage = pair
    zero._send([1], [made_late(stage)])
    assert sent(one, HANG)
    one._header(0)
    assert one._read(0, 8 * len(WORDS)).view(torch.int64).equal(torch.zeros_like(WORDS))
    stage.compute.gate.set()


@pytest.mark.parametrize("pair", [Staged, Hasty], indirect=True)
def test_kernels_wait_for_what_has_come(pair: Any) -> None:
    zero, one, stage = pair
    zero.send(1, WORDS)
    stage.incoming.gate.clear()
    (got,) = one.receive(0, [WORDS])  # returns
    seen: list[Tensor] = []
    stage.compute.then(lambda: seen.append(got.clone()))
    after = stage.compute.record_event()
    if isinstance(stage, Hasty):
        after.synchronize()
        assert seen[0].equal(torch.zeros_like(WORDS))
        stage.incoming.gate.set()
        return
    assert not after.passed.wait(0.05)
    stage.incoming.gate.set()
    after.synchronize()
    assert seen[0].equal(WORDS)
    assert any(stream is stage.compute and tensor.data_ptr() == got.data_ptr() for tensor, stream in stage.kept)


def test_frames_keep_their_order_and_their_memory(pair: Any) -> None:
    """Short and long ones, views, bytes after words; three are under way before any is copied."""
    zero, one, stage = pair
    torch.manual_seed(0)
    frames = [
        [torch.randint(-(2**63), 2**63 - 1, (n, 3))[:, 1:], torch.randint(0, 256, (n,), dtype=torch.uint8)]
        for n in (0, 1, 5, 70_000, 1)
    ]
    stage.compute.gate.clear()
    futures = [zero._send([1], frame)[0] for frame in frames[:3]]
    stage.compute.gate.set()

    def rest() -> None:
        zero._finish([1] * 3, futures)
        for frame in frames[3:]:
            zero.send(1, *frame)

    _, got = together([rest, lambda: [one.receive(0, frame) for frame in frames]])
    stage.compute.record_event().synchronize()
    assert all(a.equal(b) for x, y in zip(got, frames, strict=True) for a, b in zip(x, y, strict=True))


def test_an_exchange_copies_once_for_all_parties(monkeypatch: pytest.MonkeyPatch) -> None:
    made, stage, copied = channels(3), Staged(), []
    monkeypatch.setattr(channels_module, "staging_of", lambda tensors: stage)
    fetch = stage.fetch
    monkeypatch.setattr(stage, "fetch", lambda tensors: copied.append(len(tensors)) or fetch(tensors))
    got = together([lambda c=c: c.exchange(WORDS + c.rank) for c in made])
    stage.compute.record_event().synchronize()
    for rank, received in enumerate(got):
        assert all(received[peer][0].equal(WORDS + peer) for peer in range(3) if peer != rank)
        made[rank].close()
    assert copied == [1, 1, 1]


def test_material_comes_beside_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a ring of four buffers, none of which is filled again before its copy has passed. What computes, and
    messages, go on meanwhile; only who takes the material waits for it.
    """
    monkeypatch.setattr(staging, "SLOT_BYTES", 800)
    stage = Staged()
    aside = stage._aside
    aside.gate.clear()
    got: list[Tensor] = []

    def bring() -> None:
        with stage.aside():
            got.append(stage.bring(WORDS[:400]))
            got.append(stage.bring(WORDS.clone()))  # 8,000 bytes

    thread = threading.Thread(target=bring)
    thread.start()
    until(lambda: len(got) == 1 and len(stage._ring) == 4, "four buffers")  # 3,200 bytes fit
    stage.compute.record_event().synchronize()
    stage.incoming.record_event().synchronize()
    assert thread.is_alive() and len(got) == 1
    aside.gate.set()
    thread.join(HANG)
    stage.take(stage.event(), got)
    stage.compute.record_event().synchronize()
    assert got[0].equal(WORDS[:400]) and got[1].equal(WORDS)
    assert sum(stream is stage.compute for _, stream in stage.kept) == 2


@pytest.mark.parametrize("taken", [True, False])
def test_who_takes_material_waits_for_it(taken: bool) -> None:
    stage, seen = Staged(), []
    stage._aside.gate.clear()
    with stage.aside():
        got = stage.bring(WORDS)
    if taken:
        staging.Ready(stage, stage.event()).take([got])
    stage.compute.then(lambda: seen.append(got.clone()))
    after = stage.compute.record_event()
    assert after.passed.wait(0.05 if taken else HANG) is not taken
    stage._aside.gate.set()
    after.synchronize()
    assert seen[0].equal(WORDS) is taken


def test_the_cpu_needs_none() -> None:
    assert staging_of([WORDS, WORDS.int()]) is None and staging_of([]) is None
    with Aside(CPU) as aside:
        assert aside.bring([WORDS])[0] is WORDS
    assert aside.ready is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_nothing_is_lost_on_a_gpu() -> None:
    """Many frames of all sizes, whose kernels run late, and whose memory is used again at once."""
    made = channels(2)
    sizes = torch.randint(1, 1 << 20, (200,), generator=torch.Generator().manual_seed(0)).tolist()

    def party(rank: int) -> Any:
        total = torch.zeros((), dtype=torch.int64, device="cuda")
        for number, size in enumerate(sizes):
            torch.cuda._sleep(200_000)  # cycles
            words = torch.arange(size, device="cuda") * (number + rank)
            (got,) = made[rank].exchange(words)[1 - rank]
            total += (got != torch.arange(size, device="cuda") * (number + 1 - rank)).sum()
            del words, got
        return int(total)

    try:
        assert together([lambda rank=rank: party(rank) for rank in (0, 1)]) == [0, 0]
    finally:
        for one in made:
            one.close()
