"""Services of private nets: their bytes, rounds and tokens are those of the net, the dealer and a store."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path

import pytest
import torch
from torch import nn

from hummingbird import convert_model
from hummingbird.bits import BitWindow
from hummingbird.capacity import Hosts, Phase, Rounds, Send, Service
from hummingbird.capacity.limit import capacity_of, loads
from hummingbird.capacity.nets import amounts, digest, gmw, masked, measure
from hummingbird.capacity.profile import Measurement, Profile
from hummingbird.commands.program import machine
from hummingbird.cost import FREE
from hummingbird.errors import ConfigError
from hummingbird.mpc.dealer.deal import deal
from hummingbird.mpc.pair.dealer import slice_cost
from hummingbird.mpc.pair.price import Stock
from hummingbird.mpc.plan.dry_run import dry_run
from hummingbird.mpc.plan.net import PrivateNet
from tests.support.pair_keeping import made as pair_made

SHAPE = (3, 2, 6, 6)


def net(weights: str | int = "public", protocol: str = "masked", aim: str | None = None) -> PrivateNet:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)).eval()
    return convert_model(layers, BitWindow(20, 12), weights, protocol, aim=aim)


def profile(private: PrivateNet, parties: int = 2, shape: tuple[int, ...] = SHAPE) -> Profile:
    return Profile(machine(), 1, (measure("small", private, shape, parties, repeats=2),))


def worked(private: PrivateNet) -> dict[str, float]:
    return amounts(private, SHAPE, 2, dry_run(private, SHAPE, 2).batch)


def sent(phase: Phase | None) -> dict[tuple[str, str], float]:
    works = [step.work for step in phase.steps] if phase else []
    return {(work.source, work.target): work.bytes for work in works if isinstance(work, Send)}


def rounds(phase: Phase) -> list[float]:
    return [step.work.rounds for step in phase.steps if isinstance(step.work, Rounds)]


def test_a_store_has_the_bytes_that_are_dealt(tmp_path: Path) -> None:
    private = net()
    service = masked(private, SHAPE, profile(private), "store")
    plan = dry_run(private, SHAPE, 2)
    deal(tmp_path, setup=plan.setup, steps=[plan.batch], shape=SHAPE, slots=3, parties=2, facts=private.facts)
    sizes = {role: (tmp_path / role / "lane-0/corrections").stat().st_size for role in ("party-0", "party-1")}
    assert {role: 3 * size for role, size in service.token_bytes.items()} == sizes
    assert sent(service.refill) == {("dealer", role): size / 3 for role, size in sizes.items()}
    assert service.at(Hosts(store=10 * max(sizes.values()))).most_tokens == 30


@pytest.mark.parametrize(("make", "aim"), [(masked, "pair"), (gmw, "pair"), (masked, "pair:silent")])
def test_two_parties_without_a_dealer_make_what_is_used(make: object, aim: str, tmp_path: Path) -> None:
    """Both compute and send half of the bits in the rounds of the material; a token is all fields, at each party."""
    private = net(protocol=make.__name__, aim=aim)  # type: ignore[attr-defined]
    measured, requests = profile(private), dry_run(private, SHAPE, 2).batch
    (row,) = measured.rows
    assert row.kind.endswith(f" {aim}") and set(row.seconds) == {"compute", "make"} and len(row.seconds["make"]) == 2
    cost = sum((step.cost for step in private.costs(SHAPE, 2)), FREE)
    price = slice_cost(requests, Stock(private.transfers))
    streamed, stored = (make(private, SHAPE, measured, dealer) for dealer in ("pair", "pair-store"))  # type: ignore[operator]
    assert list(streamed.hosts) == list(stored.hosts) == ["party-0", "party-1", "client"]
    assert streamed.refill is None and not streamed.token_bytes
    assert rounds(streamed.request) == [cost.rounds, price.rounds]
    made = {step.name: step.work for step in streamed.request.steps}
    seconds = statistics.median(row.seconds["make"])
    for one, other in ((0, 1), (1, 0)):
        assert made[f"material party-{one} to party-{other}"].bytes == price.all_bits / 16  # type: ignore[union-attr]
        assert made[f"make party-{one}"].core_seconds == pytest.approx(seconds)  # type: ignore[union-attr]
    assert (
        stored.refill is not None
        and rounds(stored.refill) == [price.rounds]
        and rounds(stored.request) == [cost.rounds]
    )
    assert sum(sent(stored.refill).values()) == price.all_bits / 8
    roots = pair_made(tmp_path, 1, requests=requests, slots=1)
    sizes = {f"party-{rank}": (root / "set-000001/corrections").stat().st_size for rank, root in enumerate(roots)}
    assert stored.token_bytes == sizes
    dealt = masked(net(), SHAPE, profile(net()), "store").token_bytes
    assert make is not masked or all(sizes[role] >= dealt[role] for role in sizes)  # whole pages


@pytest.mark.parametrize(
    ("aim", "dealer"), [("pair", "stream"), ("pair", "store"), (None, "pair"), (None, "pair-store")]
)
def test_another_maker_than_that_of_the_net_is_refused(aim: str | None, dealer: str) -> None:
    private = net(aim=aim)
    with pytest.raises(ConfigError, match=f"dealer='{dealer}' for 2 parties and a net of aim"):
        masked(private, SHAPE, Profile(machine(), 1, ()), dealer)


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("make", [masked, gmw])
def test_bits_and_rounds_are_the_prices(make: object, parties: int) -> None:
    private = net(protocol=make.__name__)  # type: ignore[attr-defined]
    cost = sum((step.cost for step in private.costs(SHAPE, parties)), FREE)
    measured = profile(private, parties)
    for dealer in ("store", "stream"):
        service: Service = make(private, SHAPE, measured, dealer, parties)  # type: ignore[operator]
        between = {pair: size for pair, size in sent(service.request).items() if "dealer" not in pair}
        assert len(between) == parties * (parties - 1) and rounds(service.request) == [cost.rounds]
        by_party = sum(size for (source, _), size in between.items() if source == "party-0")
        assert by_party == pytest.approx(cost.bits / 8)
        assert service.images == 3 and not service.session
        assert (service.refill is None) == (dealer == "stream")
        if dealer == "stream":
            dealt = {role: size for (source, role), size in sent(service.request).items() if source == "dealer"}
            assert len(dealt) > 1 and sum(dealt.values()) == cost.offline_bits / 8


def test_a_streamed_request_takes_the_longest_of_three() -> None:
    """The parties' own steps, or the busiest link: that of the dealer carries the corrections of both parties."""
    private = net()
    service = masked(private, SHAPE, profile(private), "stream")
    steps = {step.name: step for step in service.request.steps}
    for slow in (Hosts(bandwidth=10.0), Hosts(rtt=1e3)):  # beside which the seconds of computing are nothing
        there = service.at(slow)
        ends = [there.step_seconds(steps[name]) for name in ("compute party-0", "party-0 to party-1", "rounds")]
        links = {used: amount / capacity_of(there, used) for used, amount in loads(there, there.request).items()}
        both = sum(there.step_seconds(steps[f"corrections party-{rank}"]) for rank in range(2))
        assert links["dealer", "up"] == pytest.approx(both)
        assert there.seconds(there.request) == pytest.approx(max(sum(ends), *links.values()), rel=1e-3)


def test_private_weights_are_opened_once_a_session() -> None:
    private = net(weights=0)
    service = masked(private, SHAPE, profile(private), "store")
    assert service.session is not None and rounds(service.session) == [private.setup_cost(2).rounds]
    assert sent(service.session)["party-0", "party-1"] == private.setup_cost(2).bits / 8


def test_other_weights_are_the_same_work() -> None:
    """Which a profile knows again; other windows, shapes, parties and ways to make material are others."""
    nets = [nn.Sequential(nn.Linear(6, 5), nn.ReLU()).eval() for _ in range(2)]
    first, second = (digest(convert_model(each, BitWindow(20, 12)), (1, 6), 2) for each in nets)
    assert first == second
    wider = convert_model(nets[0], BitWindow(21, 12))
    others = [digest(wider, (1, 6), 2), digest(convert_model(nets[0], BitWindow(20, 12)), (2, 6), 2)]
    others += [digest(convert_model(nets[0], BitWindow(20, 12)), (1, 6), 3)]
    pairs = [convert_model(nets[0], BitWindow(20, 12), aim=aim) for aim in ("pair", "pair:silent", "pair:silent:60")]
    assert len({first, *others, *(digest(each, (1, 6), 2) for each in pairs)}) == 7


def test_work_is_counted() -> None:
    """Products of the convolution and the linear layer; the ReLU's 3 * 64 values are among those side by side."""
    private = net()
    found = worked(private)
    assert found["products"] == 3 * (4 * 16 * 2 * 9 + 64 * 5)
    assert found["offline_bits"] == sum(step.cost.offline_bits for step in private.costs(SHAPE, 2))


def test_a_net_that_was_not_measured_is_composed() -> None:
    """Seconds that are a sum of the amounts are found exactly, and the error of composing says so."""
    private = net()

    def row(number: int) -> Measurement:
        work = {name: float(pow(number, place, 23) + 1) for place, name in enumerate(worked(private), 1)}
        second = 1e-3 * work["products"] + 1e-4 * work["layers"] + 1e-4 * work["slices"]
        return Measurement(
            "mpc masked", f"{number}", "", work, {part: (second,) for part in ("compute", "expand", "deal")}
        )

    made = Profile(machine(), 1, tuple(row(number) for number in range(2, 22)))
    service = masked(private, SHAPE, made, "store")
    work = worked(private)
    right = 1e-3 * work["products"] + 1e-4 * work["layers"] + 1e-4
    compute = next(step.work for step in service.request.steps if step.name == "compute party-0")
    assert compute.core_seconds == pytest.approx(right, rel=1e-6)  # type: ignore[union-attr]
    assert "composed of its layers (error 0 %" in service.notes[0]


def test_work_on_two_threads_takes_the_seconds_that_it_was_measured_to_take() -> None:
    private = net()
    measured = dataclasses.replace(profile(private), threads=2)
    service = masked(private, SHAPE, measured, "store")
    seconds = measured.seconds("mpc masked", "compute", worked(private), digest(private, SHAPE, 2))
    (step,) = (step for step in service.request.steps if step.name == "compute party-0")
    assert service.step_seconds(step) == pytest.approx(seconds.mean)


def test_what_does_not_fit_is_refused() -> None:
    private = net()
    measured = profile(private)
    with pytest.raises(ConfigError, match="a net of protocol masked"):
        gmw(private, SHAPE, measured)
    with pytest.raises(ConfigError, match="dealer='none'"):
        masked(private, SHAPE, measured, "none")
    with pytest.raises(ConfigError, match="no measurements of mpc masked: compute"):
        masked(private, (5, *SHAPE[1:]), measured)
    private.images_per_slice = 2
    with pytest.raises(ConfigError, match="runs as 2 slices"):
        masked(private, SHAPE, measured)
