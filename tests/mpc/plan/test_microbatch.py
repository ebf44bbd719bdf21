"""Large batches in slices, two of them in turns: the same results, the predicted messages, one order at all parties."""

from __future__ import annotations

import json
import os
import signal
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitWindow
from hummingbird.channel import interleave, meter
from hummingbird.channel.channel import Channel
from hummingbird.channel.interleave import Interleave, pass_on
from hummingbird.convert import convert_model
from hummingbird.cost import FREE
from hummingbird.crypten import tensors
from hummingbird.crypten.adapter import MPCTensor
from hummingbird.mpc.functions import smooth
from hummingbird.mpc.functions.tabulated import Tabulated
from hummingbird.mpc.layers.softmax import Softmax
from hummingbird.mpc.plan import builders, microbatch
from hummingbird.mpc.plan import net as nets
from hummingbird.mpc.protocols import interfaces as compare
from hummingbird.mpc.protocols.gmw import PrivateAnd
from hummingbird.mpc.protocols.masked import MaskedOpening
from hummingbird.mpc.protocols.step_tables import fewest_rounds
from hummingbird.mpc.session import session as sessions
from tests.support.operations import Function
from tests.support.parties import channels, succeed, together
from tests.support.patience import HANG, NEVER

UNIT = 2.0**-16
SHAPE = (3, 6, 6)


def block() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 5)).eval()


def images_per_slice(monkeypatch: pytest.MonkeyPatch, net: nets.PrivateNet, images: int) -> None:
    """Let memory be enough for this many images at once."""
    largest = max(step.elements for step in net.costs((1, *SHAPE), 1))
    monkeypatch.setattr(microbatch, "SLICE_BYTES", images * largest * microbatch.ELEMENT_BYTES)


@pytest.mark.parametrize(
    ("batch", "size", "expected"), [(7, 3, [3, 3, 1]), (6, 2, [2, 2, 2]), (2, 1, [1, 1]), (5, 9, [5])]
)
def test_slices_give_what_one_piece_gives(
    alone: sessions.Session, monkeypatch: pytest.MonkeyPatch, batch: int, size: int, expected: list[int]
) -> None:
    net = block()
    private, x = convert_model(net, BitWindow(24, 0)), torch.randn(batch, *SHAPE)
    images_per_slice(monkeypatch, private, size)
    done: list[int] = []
    with meter.meter() as m:
        out = private(hummingbird.cryptensor(x), progress=done.append).get_plain_text()
    with torch.no_grad():
        assert float((out - net(x)).abs().max()) < 27 * 4 * UNIT
    assert sorted(done, reverse=True) == sorted(expected, reverse=True) and sum(done) == batch
    assert m.rows["1"].calls == len(expected) and m.rows["1"].offline_bits == m.rows["1"].offline_bits_predicted


def test_later_slices_reserve_what_the_first_one_has_asked_for(
    alone: sessions.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, x = convert_model(block(), BitWindow(24, 0)), torch.randn(4, *SHAPE)
    images_per_slice(monkeypatch, private, 2)
    reserve, reserved = alone.dealer.reserve, []

    def listen(requests: object) -> object:
        reserved.append(requests)
        return reserve(requests)  # type: ignore[arg-type]

    monkeypatch.setattr(alone.dealer, "reserve", listen)
    private(hummingbird.cryptensor(x))
    private(hummingbird.cryptensor(x))
    assert reserved[:2] == [None, None]
    assert reserved[2] == reserved[3] and [request.kind for request in reserved[2]][0] == "masked"


class Cubed(nn.Module):
    """x^3, which has a private form in CrypTen's functions."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.entr(x) * 0 + x**3


class ByCrypTen(nn.Module):
    def forward(self, x: MPCTensor) -> MPCTensor:
        return x.square() * x


def test_cryptens_functions_draw_on_the_supply_of_their_slice(
    alone: sessions.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slices of two batches are interleaved: each supply hears the requests of one of them, in order."""
    monkeypatch.setitem(builders.CUSTOM, Cubed, lambda module: ByCrypTen())
    private, x = convert_model(nn.Sequential(Cubed(), nn.ReLU()), BitWindow(24, 0)), torch.rand(3, 4)
    reserve, asked = alone.dealer.reserve, []
    heard: list[list[object]] = []

    def listen(requests: object) -> object:
        supply, number = reserve(requests), len(heard)  # type: ignore[arg-type]
        heard.append([])

        def correlation(request: object) -> object:
            asked.append(number)
            heard[number].append(request)
            pass_on()  # as an opening between several parties does
            return supply.correlation(request)  # type: ignore[arg-type]

        return SimpleNamespace(correlation=correlation)

    monkeypatch.setattr(alone.dealer, "reserve", listen)
    for _ in range(2):  # the second time the requests are known, and a supply refuses any other
        works = [private.begin(alone, tensors.shared(hummingbird.cryptensor(x)))[0] for _ in range(2)]
        for out in Interleave().run([lambda work=work: private.run(alone, work) for work in works]):
            assert float((tensors.tensor(out).get_plain_text() - x**3).abs().max()) < 6 * UNIT
    assert len(heard) == 4 and len(heard[0]) > 4 and all(requests == heard[0] for requests in heard)
    assert asked[:4] == [0, 1, 0, 1]
    assert sessions.current() is alone


def test_slices_in_flight(alone: sessions.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    assert microbatch.in_flight(torch.device("cpu")) == 2 and microbatch.in_flight(torch.device("cuda:1")) == 3
    net = block()
    private, x, together = convert_model(net, BitWindow(24, 0)), torch.randn(7, *SHAPE), []
    images_per_slice(monkeypatch, private, 1)
    monkeypatch.setattr(microbatch, "in_flight", lambda device: 3)
    run = Interleave.run
    monkeypatch.setattr(Interleave, "run", lambda self, work: together.append(len(work)) or run(self, work))
    with torch.no_grad():
        assert (private(hummingbird.cryptensor(x)).get_plain_text() - net(x)).abs().max() < 27 * 4 * UNIT
    assert together == [3]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(0, keepdim=True),
        lambda x: x.flatten(1).softmax(0),
        lambda x: x.flatten(1).argmax(-2),
        lambda x: x.transpose(0, 1).relu(),
        lambda x: torch.cat([x, x], 0),
        lambda x: x.sum(),
        lambda x: x[1:],
    ],
)
def test_nets_that_mix_images_are_not_cut(
    alone: sessions.Session, monkeypatch: pytest.MonkeyPatch, function: object
) -> None:
    private = convert_model(Function(function), BitWindow(24, 0))  # type: ignore[arg-type]
    monkeypatch.setattr(microbatch, "SLICE_BYTES", 1)
    assert len(private._slices(alone, (4, *SHAPE))) == 1
    for net in (block(), nn.Sequential(block(), Function(lambda x: x.argmax(1)), Function(lambda x: x + 1))):
        assert len(convert_model(net)._slices(alone, (4, *SHAPE))) == 4


# What a slice counts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "times"),
    [
        (nn.ReLU(), 1),
        (nn.Hardtanh(), 2),
        (nn.Hardswish(), 2),
        (nn.Hardsigmoid(), 2),
        (nn.SiLU(), None),  # a table of polynomials
        (nn.Softmax(1), None),
        (nn.MaxPool2d(3, 1, 1), 3),  # along one dimension, then along the other, as many places as before
        (nn.AdaptiveMaxPool2d(1), 1),
        (nn.Conv2d(3, 3, 3, padding=1), 1),
    ],
)
def test_a_layer_counts_all_values_that_it_works_on(
    alone: sessions.Session, monkeypatch: pytest.MonkeyPatch, layer: nn.Module, times: int | None
) -> None:
    private = convert_model(layer)
    (step,) = [step for step in private.costs((1, *SHAPE), 1) if step.op not in ("input", "output", "rescale")]
    (mine,) = [part.layer for part in private.plan if part.name == step.name]
    values = 3 * 6 * 6
    # Dealt coefficients take as much memory as a quarter as many comparisons: of 2^7 cubics, and of the tables of e^x.
    knots = 1 << (7 - 2) if isinstance(mine, Tabulated) else 1
    if isinstance(mine, Softmax):
        found = mine.tables(3)
        assert found is not None
        knots = 1 << (found.exp.w - 2)
    assert step.breadth == values * (knots if times is None else times)
    assert times is not None or knots > 4
    monkeypatch.setattr(microbatch, "SLICE_BYTES", 2 * step.breadth * microbatch.ELEMENT_BYTES)
    assert [part.images for part in private._slices(alone, (5, *SHAPE))] == [2, 2, 1]


def test_no_slice_is_larger_than_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    for images in range(1, 40):
        for fitting in range(1, 20):
            monkeypatch.setattr(microbatch, "SLICE_BYTES", (10 * fitting + 9) * microbatch.ELEMENT_BYTES)
            sizes = [part.images for part in microbatch.cut((images, 3), images * 10, None)]
            assert sum(sizes) == images and max(sizes) <= fitting and len(sizes) == -(-images // fitting)
            sizes = [part.images for part in microbatch.cut((images, 3), images * 10, 2)]
            assert sum(sizes) == images and max(sizes) <= min(2, fitting)


@pytest.mark.parametrize("protocol", ["masked", "gmw"])
def test_one_image_with_more_comparisons_than_fit_is_compared_in_parts(
    alone: sessions.Session, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """The same values; every part has rounds of its own, and the prediction says so."""
    torch.manual_seed(4)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 5)).eval()
    x = torch.randn(1, *SHAPE)
    whole = convert_model(net, protocol=protocol)(hummingbird.cryptensor(x)).get_plain_text()
    before = convert_model(net, protocol=protocol).costs((1, *SHAPE), 2)
    monkeypatch.setattr(compare, "AT_ONCE", 100)
    private = convert_model(net, protocol=protocol)
    with meter.meter() as m:
        parts = private(hummingbird.cryptensor(x)).get_plain_text()
    # Shares are rounded by one unit here or there, which the layers after it multiply by less than 16.
    assert float((whole - parts).abs().max()) < 16 * UNIT
    after = private.costs((1, *SHAPE), 2)
    at = [step.op for step in after].index("sigmoid")
    knots = {"masked": 2, "gmw": len(smooth.squashing("sigmoid").knots)}[protocol]  # of the clamp, or of the spline
    parts = -(-64 // (100 // knots))
    rest = {"masked": 1, "gmw": 2}[protocol]  # rounds after all comparisons: the table, or the product and its lift
    assert after[at].cost.rounds - rest == (before[at].cost.rounds - rest) * parts
    assert after[at].cost.rounds > before[at].cost.rounds
    assert m.rows["1"].offline_bits == m.rows["1"].offline_bits_predicted


def test_the_largest_part_is_within_the_limit_of_a_request() -> None:
    for window in (BitWindow(8, 0), BitWindow(20, 12), BitWindow(64, 0)):
        for protocol in ("masked", "gmw"):
            if protocol == "masked":
                MaskedOpening(compare.AT_ONCE, window.k, window.m, fewest_rounds(window.w), ring=64)
            else:
                PrivateAnd(window.w, compare.AT_ONCE)


# Turns --------------------------------------------------------------------------------------------------------------


def test_turns_alternate_and_one_runs_at_a_time() -> None:
    order: list[str] = []
    inside = threading.Lock()

    def work(name: str, steps: int) -> str:
        for step in range(steps):
            assert inside.acquire(blocking=False), "two run at the same time"
            order.append(f"{name}{step}")
            inside.release()
            pass_on()
        return name

    for _ in range(20):
        order.clear()
        assert Interleave().run([lambda: work("a", 4), lambda: work("b", 2)]) == ["a", "b"]
        assert order == ["a0", "b0", "a1", "b1", "a2", "a3"]
        order.clear()
        Interleave().run([lambda: work("a", 2), lambda: work("b", 1), lambda: work("c", 3)])
        assert order == ["a0", "b0", "c0", "a1", "c1", "c2"]
    pass_on()  # outside of a run: nothing happens


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_ends_both_and_is_raised(failing: int) -> None:
    reached: list[int] = []

    def work(number: int) -> None:
        pass_on()
        if number == failing:
            raise ValueError(f"number {number}")
        pass_on()
        pass_on()
        reached.append(number)

    with pytest.raises(ValueError, match=f"number {failing}"):
        Interleave().run([lambda: work(0), lambda: work(1)])
    assert reached == []


def test_a_signal_does_not_wait_for_the_other_ones_message() -> None:
    waiting, message = threading.Event(), threading.Event()

    def first() -> None:
        pass_on()

    def second() -> None:
        waiting.set()
        message.wait(NEVER)

    def interrupt() -> None:
        waiting.wait(HANG)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        Interleave().run([first, second])
    message.set()


def test_the_time_of_the_other_one_is_not_counted_as_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"a": [1.0, 4.0], "b": [16.0, 64.0]}  # computed before and after the turn is passed on
    now = [0.0]
    for module in (meter, interleave):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def work(name: str) -> None:
        with meter.layer(name, "relu", FREE):
            now[0] += seconds[name][0]
            pass_on()
            now[0] += seconds[name][1]

    with meter.meter() as m:
        Interleave().run([lambda: work("a"), lambda: work("b")])
    assert {name: row.compute_seconds for name, row in m.rows.items()} == {"a": 5.0, "b": 80.0}


@pytest.mark.parametrize("sizes", [(10, 10), (40_000, 10), (10, 40_000), (40_000, 40_000), (10, 40_000, 10)])
def test_messages_of_some_in_turns_keep_their_order(sizes: tuple[int, ...]) -> None:
    """Short ones are written at once, long ones by a thread: a short one must not overtake."""
    opened = channels(2)

    def party(channel: Channel) -> list[Tensor]:
        def work(number: int) -> Tensor:
            total = torch.full((sizes[number],), channel.rank + number)
            for _ in range(30):
                (theirs,) = channel.exchange(total)[1 - channel.rank]
                total = total + theirs
            return total

        return Interleave().run([lambda number=number: work(number) for number in range(len(sizes))])

    first, second = together([lambda c=c: party(c) for c in opened])
    for mine, theirs in zip(first, second, strict=True):
        assert torch.equal(mine, theirs)
    for channel in opened:
        channel.close()


@pytest.mark.slow
@pytest.mark.parametrize(("parties", "weights"), [(2, "public"), (3, "1")])
def test_slices_between_real_parties(parties: int, weights: str) -> None:
    """The program is in tests/jobs/programs.py: it checks messages against predictions at every party."""
    ended = succeed(["-m", "tests.jobs.programs", "slices", weights], parties)
    result = json.loads(ended[0].out.strip().splitlines()[-1])
    assert result["slices"] == 4 and result["error"] <= 27 * 4 * UNIT
