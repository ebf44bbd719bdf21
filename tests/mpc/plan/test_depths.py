"""Steps that open side by side: depths worked out by hand, predicted messages, the results of one step at a time."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird import convert
from hummingbird.bits import BitWindow
from hummingbird.channel import meter
from hummingbird.cost import FREE
from hummingbird.errors import ConfigError, ModelError, PeerError
from hummingbird.mpc.correlations.request import Material, Request
from hummingbird.mpc.dealer.client import LocalDealer
from hummingbird.mpc.plan import builders, depths, prices
from hummingbird.mpc.plan.depths import Depths
from hummingbird.mpc.plan.dry_run import dry_run
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.prg import derive
from tests.fuzz import make as fuzz
from tests.support.covering import every
from tests.support.parties import channels, share, together

pytestmark = pytest.mark.filterwarnings("ignore:LocalDealer offers NO privacy")
SHAPE = (2, 3, 6, 6)
SEEDS = [bytes([rank]) * 16 for rank in range(3)]


def conv(inputs: int, size: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, 4, size, padding=size // 2), nn.ReLU())


class Inception(nn.Module):
    """Four branches as GoogLeNet has them, each of another depth."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.three = conv(3), nn.Sequential(conv(3), conv(4, 3))
        self.pool, self.flat = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(3)), nn.Conv2d(3, 2, 1)
        self.last = nn.Linear(14 * 36, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([self.one(x), self.three(x), self.pool(x), self.flat(x)], 1).flatten(1)).relu()


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.shortcut = conv(3), conv(4), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return (self.second(x) + self.shortcut(x)).relu().flatten(1)


class Mixed(nn.Module):
    """Branches of other kinds: a table of polynomials, a product, a norm, and one that only some of them read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.a(x).sigmoid(), self.b(x).relu()
        other = self.norm(x).mean(1, keepdim=True)
        return torch.maximum(gate * value, other).flatten(1)


class ByStep(LocalDealer):
    """The stand-in dealer, whose material depends on the layer that asks, and not on who asked before."""

    def __init__(self, rank: int, parties: int) -> None:
        super().__init__(rank, parties, SEEDS[:parties])
        self.asked = Counter[str]()

    def _deal(self, request: Request[Any], conversation: int) -> Material:
        layer = meter.current_layer()
        self.asked[layer] += 1
        seeds = [derive(seed, layer, self.asked[layer]) for seed in self._seeds]
        return LocalDealer(self.rank, self.parties, seeds).correlation(request)


def run(private: PrivateNet, x: Tensor, parties: int) -> tuple[list[Tensor], list[list[str]], meter.Meter]:
    """Every party's share of the result, and its requests in order; the meter counts all parties."""
    opened = [Session(rank, parties, c, ByStep(rank, parties)) for rank, c in enumerate(channels(parties))]
    torch.manual_seed(1)
    shares = share((x * 2**16).long(), parties)

    def party(session: Session) -> tuple[Tensor, list[str]]:
        (work,) = private.begin(session, Shared(shares[session.rank]))
        out = private.run(session, work).share
        return out, [str(request) for request in private._requests[tuple(x.shape), parties]]

    private._set_up_for = opened[0].run
    try:
        with meter.meter() as m:
            found = together([lambda s=s: party(s) for s in opened])
    finally:
        for session in opened:
            session.channel.close()
    return [out for out, _ in found], [requests for _, requests in found], m


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no step run beside another one."""
    of = Depths.of

    def alone(reads: Any, rounds: Any, alone: Any, breadths: Any) -> Depths:
        return of(reads, rounds, range(len(reads)), breadths)

    monkeypatch.setattr(prices, "Depths", type("Depths", (), {"of": alone}))


def total(private: PrivateNet, parties: int, shape: tuple[int, ...] = SHAPE) -> Any:
    return sum((step.cost for step in private.costs(shape, parties)), FREE)


# Depths ---------------------------------------------------------------------------------------------------------------


def test_steps_begin_as_soon_as_what_they_read_has_ended() -> None:
    # 0: input; 1 and 2 read it; 3 sends nothing and only 4 reads it; 4 reads 1 and 3
    found = Depths.of([[], [0], [0], [0], [1, 3], [2, 4]], [0, 2, 4, 0, 1, 1], [], [1, 10, 20, 300, 40, 50])
    assert found.rounds == 5 and found.starts == (0, 0, 0, 2, 2, 4)
    assert found.beside == {1, 2, 4} and found.leads == {2} and found.order == (0, 1, 2, 3, 4, 5)
    assert found.breadth == 300 and 20 + 40 < 300
    assert Depths.of([[], [0], [0], [0], [1, 3], [2, 4]], [0, 2, 4, 0, 1, 1], [], [1, 10, 20, 5, 40, 50]).breadth == 60


def test_a_chain_is_as_it_was() -> None:
    found = Depths.of([[], [0], [1], [0], [2, 3]], [0, 2, 2, 0, 1], [], [5, 6, 7, 8, 9])
    assert found == Depths(tuple(range(5)), (0, 0, 2, 0, 4), frozenset(), frozenset(), 5, 9)


def test_nothing_runs_beside_a_registered_module() -> None:
    reads, rounds = [[], [0], [0], [0], [1, 2, 3]], [0, 2, 3, 1, 1]
    for place in range(1, 4):
        found = Depths.of(reads, rounds, [place], [1] * 5)
        ends = [start + length for start, length in zip(found.starts, rounds, strict=True)]
        assert place not in found.beside
        assert all(ends[other] <= found.starts[place] for other in range(1, place))
        assert all(found.starts[other] >= ends[place] for other in range(place + 1, 5))


@pytest.mark.parametrize("most", [1, 2, 3, 256])
def test_random_nets_have_an_order_and_one_leader_for_every_shared_round(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(depths, "AT_ONCE", most)
    for trial in range(200):
        pick = random.Random(trial).randrange
        count = 2 + pick(12)
        reads = [sorted({pick(number) for _ in range(1 + pick(3))}) if number else [] for number in range(count)]
        rounds = [pick(4) if number else 0 for number in range(count)]
        alone = [number for number in range(1, count) if pick(8) == 0]
        found = Depths.of(reads, rounds, alone, [1] * count)
        place = {number: at for at, number in enumerate(found.order)}
        ends = [start + length for start, length in zip(found.starts, rounds, strict=True)]
        assert sorted(found.order) == list(range(count)) and found.leads <= found.beside
        for number in range(count):
            for source in reads[number]:
                assert place[source] < place[number] and ends[source] <= found.starts[number]
        at_work = [
            [number for number in range(count) if rounds[number] and found.starts[number] <= depth < ends[number]]
            for depth in range(found.rounds)
        ]
        for steps in map(set, at_work):
            assert len(steps) == 1 or (len(found.leads & steps) == 1 and steps <= found.beside)
            assert len(steps) <= most
        assert found.rounds == sum(rounds[number] for number in set(range(count)) - (found.beside - found.leads))
        assert not found.beside & set(alone)


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "protocol", "parties"),
    every(3, [(Inception, "masked", 2), (Inception, "gmw", 3), (Mixed, "masked", 3), (Mixed, "gmw", 2)]),
)
def test_branches_give_what_one_step_at_a_time_gives_in_fewer_rounds(
    monkeypatch: pytest.MonkeyPatch, made: type[nn.Module], protocol: str, parties: int
) -> None:
    """The same material for the same layer: equal shares, bit for bit; and every message as predicted, by layer."""
    net, x = made().eval(), torch.randn(SHAPE)
    private = convert.build(net, BitWindow(22, 2), protocol=protocol)
    outs, requests, m = run(private, x, parties)
    price = total(private, parties)
    for row in m.rows.values():
        assert (row.rounds, row.bits_sent) == (row.rounds_predicted, row.bits_predicted), row.layer
        assert row.offline_bits == row.offline_bits_predicted, row.layer
    assert (m.total.rounds, m.total.bits_sent) == (parties * price.rounds, parties * price.bits)
    assert all(each == requests[0] for each in requests)
    assert requests[0] == [str(request) for request in dry_run(private, SHAPE, parties).batch]
    with torch.no_grad():
        assert float((sum(outs) / 2**16 - net(x)).abs().max()) < 0.05  # type: ignore[operator]

    one_by_one(monkeypatch)
    before = convert.build(net, BitWindow(22, 2), protocol=protocol)
    same, asked, slower = run(before, x, parties)
    price_before = total(before, parties)
    shared = price_before.rounds - price.rounds
    assert shared > 0 and price.offline_bits == price_before.offline_bits
    assert price_before.bits - price.bits == 8 * 20 * (parties - 1) * shared
    assert slower.total.rounds - m.total.rounds == parties * shared
    assert sum(step.shared for step in private.costs(SHAPE, parties)) == shared
    assert all(torch.equal(one, other) for one, other in zip(outs, same, strict=True))
    assert sorted(asked[0]) == sorted(requests[0])


def test_more_steps_than_run_at_once_wait_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at a time: the pool's branch begins when a ReLU has ended. Messages are as priced, the result is right."""
    monkeypatch.setattr(depths, "AT_ONCE", 2)
    net, x = Inception().eval(), torch.randn(SHAPE)
    private = convert.build(net, BitWindow(22, 2))
    outs, requests, m = run(private, x, 2)
    price, dry = total(private, 2), [str(request) for request in dry_run(private, SHAPE, 2).batch]
    monkeypatch.undo()
    all_at_once = convert.build(net, BitWindow(22, 2))
    assert total(all_at_once, 2).rounds < price.rounds == m.total.rounds // 2
    assert m.total.bits_sent == 2 * price.bits and private.breadth(SHAPE, 2) < all_at_once.breadth(SHAPE, 2)
    assert requests[0] == requests[1] == dry
    with torch.no_grad():
        assert float((sum(outs) / 2**16 - net(x)).abs().max()) < 0.05  # type: ignore[operator]


def compare_random_net(monkeypatch: pytest.MonkeyPatch, number: int) -> int | None:
    """Run a random net of the fuzz with branches and without; return how many rounds the branches saved.

    None: the net is refused, as functions without tails are, whose ranges are not given here.
    """
    made = fuzz.recipe(number)
    net, x = made.build()

    def private() -> PrivateNet:
        return convert.build(net, None, "public", made.protocol, example=x, aim=made.aim)

    try:
        first = private()
    except (ConfigError, ModelError):
        return None
    outs, requests, m = run(first, x, made.parties)
    for row in m.rows.values():
        assert (row.rounds, row.bits_sent) == (row.rounds_predicted, row.bits_predicted), (number, row.layer)
    assert requests[0] == [str(request) for request in dry_run(private(), x.shape, made.parties).batch]
    with monkeypatch.context() as patched:
        one_by_one(patched)
        same, _, slower = run(private(), x, made.parties)
    assert all(torch.equal(one, other) for one, other in zip(outs, same, strict=True)), number
    saved = slower.total.rounds - m.total.rounds
    assert slower.total.bits_sent - m.total.bits_sent == 8 * 20 * (made.parties - 1) * saved
    return saved


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("numbers", [[5], range(5, 129, fuzz.BRANCHED)])
def test_random_nets_with_branches(monkeypatch: pytest.MonkeyPatch, numbers: Sequence[int]) -> None:
    branched = [number for number in numbers if "branch" in fuzz.recipe(number).kinds]
    saved = [rounds for number in branched if (rounds := compare_random_net(monkeypatch, number)) is not None]
    assert min(saved) >= 0 < max(saved) and len(saved) > len(branched) / 2


def test_a_residual_net_runs_on_one_thread_in_the_order_of_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    private = convert.build(Residual().eval(), BitWindow(22, 2))
    found = private._price(SHAPE, 2).depths
    assert not found.beside and found.order == tuple(range(len(private.plan)))
    with_depths = private.costs(SHAPE, 2)
    one_by_one(monkeypatch)
    assert with_depths == convert.build(Residual().eval(), BitWindow(22, 2)).costs(SHAPE, 2)


def test_slices_are_cut_by_what_is_at_work_at_once() -> None:
    private = convert.build(Inception().eval(), BitWindow(22, 2))
    costs = {step.name: step for step in private.costs(SHAPE, 2)}
    largest = max(step.breadth for step in costs.values())
    first = sum(costs[name].breadth for name in ("one.1", "three.0.1", "pool.0"))
    assert private.breadth(SHAPE, 2) == first > largest


def test_an_error_in_a_branch_ends_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    private = convert.build(Inception().eval(), BitWindow(22, 2))
    layer = private.get_submodule("three.0.1")

    def fails(*_: Any) -> None:
        raise PeerError("gone", where="", hint="")

    monkeypatch.setattr(layer, "forward", fails)
    with pytest.raises(PeerError, match="gone") as caught:
        run(private, torch.randn(SHAPE), 2)
    assert caught.value.where == "three.0.1"
    assert not any(thread.name == "hummingbird-branch" for thread in threading.enumerate()), "threads of branches stay"


class Cubed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.entr(x) * 0 + x**3


class ByCrypTen(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.square() * x


def test_a_registered_module_runs_alone(alone: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(builders.CUSTOM, Cubed, lambda module: ByCrypTen())

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cubed = Cubed()

        def forward(self, x: Tensor) -> Tensor:
            return x.relu() + self.cubed(x) + (x + 1).relu()

    private, x = hummingbird.convert_model(Net(), BitWindow(24, 0)), torch.rand(3, 4)
    assert not private._price((3, 4), 2).depths.beside
    out = private(hummingbird.cryptensor(x)).get_plain_text()
    assert float((out - Net()(x)).abs().max()) < 9 * 2.0**-16
