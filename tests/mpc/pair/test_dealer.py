"""Sessions of two parties without a dealer: answers, prices, lanes, deaths, and what is refused."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from typing import Any

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird.bits import BitConfig, BitWindow, Rows
from hummingbird.channel import meter
from hummingbird.channel.channel import Channel
from hummingbird.cost import FREE
from hummingbird.errors import AgreementError, ConfigError, DealerError, HummingbirdError, ModelError
from hummingbird.mpc.pair.dealer import PairDealer, calls_of, slice_cost, transfers_of
from hummingbird.mpc.pair.material import PairMaterial, cost, fastest, offline_bits
from hummingbird.mpc.pair.price import KINDS, SILENT, SOFTSPOKEN
from hummingbird.mpc.plan.dry_run import dry_run
from hummingbird.mpc.protocols.boolean import And
from hummingbird.mpc.protocols.lift import Lifting
from hummingbird.mpc.protocols.masked import MaskedOpening
from hummingbird.mpc.protocols.step_tables import TableChoice, TransferKind
from tests.jobs.pair_session import NETS
from tests.support.covering import covering, every
from tests.support.pairs import columns, wrong
from tests.support.parties import Finished, channels, finish, init_alone, start, together
from tests.support.patience import HANG, until

JOB = ["-m", "tests.jobs.pair_session"]


def session(*words: object, parties: int = 2, **variables: str) -> list[Any]:
    """The processes of a run. variables: further ones of their environment."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        return start([*JOB, *map(str, words)], parties)


def rows(ended: list[Finished]) -> list[dict[str, Any]]:
    assert all(party.code == 0 for party in ended), "\n".join(party.err for party in ended)
    return [json.loads(line) for party in ended for line in party.out.splitlines()]


# Whole sessions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lanes", "dealer"), [(1, "pair:0.04:100e6"), pytest.param(2, "pair", marks=pytest.mark.slow)])
def test_a_net_is_right_and_costs_what_was_predicted(lanes: int, dealer: str) -> None:
    """Three slices in every run; a layer norm, whose mean is a quotient by 512, and its root a spline."""
    found = rows(finish(session(HANG, 2, parties=2 * lanes, LANES=str(lanes), DEALER=dealer)))
    aim = str(TableChoice("pair", transfers=transfers_of(dealer) or SOFTSPOKEN))
    assert len(found) == 4 * lanes
    for row in found:
        assert row["aim"] == aim and row["error"] < 2**-8, row
        assert row["predicted"] == row["counted"] and row["counted"][2] > 0


@pytest.mark.slow
@pytest.mark.parametrize("owner", [0, 1])
def test_private_weights(owner: int) -> None:
    """Convolutions, linear layers, factors and biases that one party has; it sends less, and both know how much."""
    found = rows(finish(session(HANG, 2, WEIGHTS=str(owner))))
    assert len(found) == 4
    for row in found:
        assert row["error"] < 2**-8 and row["predicted"] == row["counted"], row
    sent = [{row["counted"][0] for row in found if row["rank"] == rank} for rank in range(2)]
    assert [len(each) for each in sent] == [1, 1] and max(sent[owner]) < min(sent[1 - owner])


@pytest.mark.slow
@pytest.mark.parametrize("net", ["pooling", "smooth", "attention"])
def test_few_bits_of_private_weights(net: str) -> None:
    """Results are those of the twin, whose weights are rounded alike, and the prices are exact."""
    for row in rows(finish(session(HANG, 1, NET=net, WEIGHTS="1", WEIGHT_BITS="8"))):
        assert row["error"] < 2**-11 and row["predicted"] == row["counted"], row


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["public", "1"])
@pytest.mark.parametrize("protocol", ["masked", "gmw"])
@pytest.mark.parametrize("net", list(NETS))
def test_every_net_is_right(net: str, protocol: str, weights: str) -> None:
    private = {} if weights == "public" else {"WEIGHTS": weights}
    found = rows(finish(session(HANG, 1, NET=net, PROTOCOL=protocol, **private)))
    assert len(found) == 2
    for row in found:
        assert row["error"] < 2**-8 and row["predicted"] == row["counted"], row


@pytest.mark.slow
def test_an_idle_session_goes_on_after_its_timeout() -> None:
    """Party 0 tells party 1 that it is there, every quarter of the timeout."""
    found = rows(finish(session(20, 2, 30)))
    assert max(row["error"] for row in found) < 2**-8


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "dealer"), [(0, "pair"), (1, "pair:silent")])
def test_a_party_that_is_killed_ends_the_other_one(victim: int, dealer: str) -> None:
    parties = session(HANG, 10_000, DEALER=dealer)
    out = parties[1 - victim].stdout
    assert out is not None and out.readline(), parties[1 - victim].stderr.read()
    time.sleep(random.random())
    os.kill(parties[victim].pid, signal.SIGKILL)
    ended = finish(parties)
    text = ended[1 - victim].err
    assert ended[1 - victim].code == 1 and f"party {victim} closed the connection: it ended or was killed" in text, text
    assert "Traceback" not in text and "hint: " in text, text


@pytest.mark.parametrize("other", ["unix:/nowhere", "pair:silent"])
def test_parties_that_name_different_dealers(other: str) -> None:
    ended = finish(session(HANG, 1, DEALER=f"pair,{other}"))
    for party in ended:
        assert party.code == 1 and "Traceback" not in party.err, party.err
        assert "the parties disagree on dealer" in party.err and "has pair" in party.err and other in party.err


def test_kinds_of_transfers_by_name() -> None:
    found = [transfers_of(each) for each in ("pair", "pair:silent", "pair:softspoken", "pair:9000", "host:1", None, 3)]
    assert found == [SOFTSPOKEN, SILENT, SOFTSPOKEN, None, None, None, None]
    assert transfers_of("pair:silent:60") == TransferKind("silent", 60.0)
    assert transfers_of("pair:0.1:1e9") == fastest(0.1, 1e9) != fastest(0.0002, 10e9)
    for text in ("pair:loud", "pair:0.1:1e9:1e9", "pair:0.1", "pair:-1:1e9", "pair:silent:x", "pair:silent:0"):
        with pytest.raises(ConfigError, match=f"dealer='{text}'") as raised:
            transfers_of(text)
        assert '"pair:silent"' in str(raised.value) and "RTT:BANDWIDTH" in str(raised.value)


def test_aims_with_transfers() -> None:
    """Cheap transfers make more and smaller tables; the text of an aim is read back."""
    for text in ("pair", "pair:silent", "pair:silent:16", "pair:softspoken:120"):
        assert str(TableChoice.of(text)) == text and TableChoice.of(text).pair
    assert TableChoice.of("pair:softspoken") == TableChoice.of("pair") != TableChoice.of("pair:silent")
    assert [TableChoice.of(text).tables(5, 2) for text in ("pair", "pair:silent")] == [1, 2]
    for text in ("pair:loud", "pair:silent:", "pair:silent:1:2", "pair:0.1:1e9"):
        with pytest.raises(ConfigError, match="transfers"):
            TableChoice.of(text)


def test_dealers_with_different_transfers() -> None:
    def make(channel: Channel, kind: TransferKind) -> None:
        with pytest.raises(AgreementError, match="disagree on transfers.*(silent|softspoken).*(silent|softspoken)"):
            PairDealer(channel, kind)

    links = channels(2)
    together([lambda c=c, k=k: make(c, k) for c, k in zip(links, (SILENT, SOFTSPOKEN), strict=True)])


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"AIM": "latency"}, "converted with aim='latency'"),
        ({"AIM": "latency", "WEIGHTS": "0"}, "converted with aim='latency'"),
    ],
    ids=str,
)
def test_nets_that_need_a_dealer_are_refused(variables: dict[str, str], words: str) -> None:
    for party in finish(session(HANG, 1, **variables)):
        assert party.code == 1 and "Traceback" not in party.err and "hint: " in party.err
    assert words in party.err


def test_three_parties_need_a_dealer() -> None:
    for party in finish(session(HANG, 1, parties=3)):
        assert party.code == 1 and "with 3 parties: two parties can make" in party.err and "hint: " in party.err


# The thread -----------------------------------------------------------------------------------------------------------


def dealers(timeout: float = HANG, **options: Any) -> list[PairDealer]:
    return together([lambda c=c: PairDealer(c, **options) for c in channels(2, timeout)])


def close(both: list[PairDealer]) -> None:
    for dealer in both:
        dealer.close()


@pytest.mark.parametrize("transfers", KINDS.values(), ids=str)
def test_supplies_in_any_order_and_within_the_bound(transfers: TransferKind) -> None:
    """Slices that are taken in turns; the memory that is made ahead stays within the bound."""
    both = dealers(transfers=transfers, buffer_bytes=40_000)
    requests = [Lifting(300, 20, 36), And(2, 500)] * 10

    def take(dealer: PairDealer) -> list[Any]:
        supplies = [dealer.reserve(requests) for _ in range(3)]
        order = [number for _ in requests for number in (2, 0, 1)]
        return [supplies[number].correlation(requests[at // 3]) for at, number in enumerate(order)]

    done = together([lambda d=d: take(d) for d in both])
    for at, materials in enumerate(zip(*done, strict=True)):
        assert wrong(requests[at // 3], columns(requests[at // 3], materials)) == []
    assert all(dealer._supplies.most_held <= 40_000 for dealer in both)
    close(both)


def test_the_rounds_of_a_slice_are_those_that_were_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several calls, whatever the slices wait for: where a slice is cut follows from its requests alone."""
    four = [MaskedOpening(3000, 20, 12, 2, 36), And(2, 3000), Lifting(300, 20, 36), MaskedOpening(9, 5, 1, 4, 5)]
    requests = four * 2
    monkeypatch.setattr("hummingbird.mpc.pair.dealer.CALL_BYTES", sum(each.share_bytes for each in four))
    assert [len(call) for call in calls_of(requests)] == [4, 4] and slice_cost(requests).rounds > cost(requests).rounds
    counted, swap = [], Channel.swap

    def counts(self: Channel, peer: int, tensors: Any, like: Any) -> Any:
        counted.append(sum(tensor.nbytes for tensor in tensors))
        return swap(self, peer, tensors, like)

    both = dealers()
    monkeypatch.setattr(Channel, "swap", counts)

    def take(dealer: PairDealer) -> None:
        supplies = [dealer.reserve(requests) for _ in range(2)]
        for supply in supplies:
            for request in requests:
                supply.correlation(request)

    together([lambda d=d: take(d) for d in both])
    close(both)
    price = slice_cost(requests)
    assert len(counted) == 2 * 2 * price.rounds  # of both parties, for two slices
    assert 2 * price.all_bits == 8 * sum(counted) + 2 * price.frame_bits


@pytest.mark.slow
def test_a_link_that_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """No party is silent for its timeout, but the material takes longer than a link may that is not dead."""
    both, swap = dealers(timeout=2.0), Channel.swap

    def slow(self: Channel, peer: int, tensors: Any, like: Any) -> Any:
        time.sleep(0.6)
        return swap(self, peer, tensors, like)

    monkeypatch.setattr(Channel, "swap", slow)
    monkeypatch.setattr("hummingbird.mpc.pair.dealer._SLOWEST", 1e9)

    def ask(rank: int) -> None:
        with pytest.raises(DealerError, match="no correlated randomness for 4 s") as raised:
            both[rank].correlation(Lifting(300, 62, 64))
        assert "is the link to the other party too slow" in str(raised.value)

    together([lambda rank=rank: ask(rank) for rank in range(2)])
    close(both)


def test_no_meter_counts_the_thread() -> None:
    both = dealers()
    with meter.meter() as counted:
        together([lambda d=d: d.correlation(And(1, 80)) for d in both])
    assert not counted.total.bits_sent and not counted.total.rounds
    close(both)


@pytest.mark.parametrize("transfers", KINDS.values(), ids=str)
def test_parties_with_other_requests_get_an_error(transfers: TransferKind) -> None:
    both = dealers(transfers=transfers)
    asked = [And(1, 80), And(1, 96)]

    def ask(rank: int) -> None:
        with pytest.raises(HummingbirdError) as raised:
            both[rank].correlation(asked[rank])
        assert isinstance(raised.value, (AgreementError, DealerError)), raised.value

    together([lambda rank=rank: ask(rank) for rank in range(2)])
    close(both)


def test_a_slice_that_the_other_party_does_not_begin() -> None:
    both = dealers(timeout=2.0)
    with pytest.raises(HummingbirdError):
        both[0].correlation(And(1, 80))
    until(lambda: both[1]._supplies.reason, "the end of party 1's thread")  # a reservation before would be in time
    with pytest.raises(HummingbirdError, match="party 0 makes material for slice 0, which this party did not begin"):
        both[1].correlation(And(1, 80))
    close(both)


@pytest.mark.parametrize("silent", every(2, [0, 1]))
def test_a_party_that_is_silent_while_material_is_made(silent: int) -> None:
    """It has joined, and then neither makes material nor says that it is there."""
    ends = channels(2, 2.0)
    dealer = together([lambda: PairMaterial(ends[silent]), lambda: PairDealer(ends[1 - silent])])[1]
    with pytest.raises(HummingbirdError, match=f"party {silent} sent or took nothing for 2 s"):
        dealer.correlation(And(1, 80))
    dealer.close()
    ends[silent].close()


def test_closing_ends_the_threads() -> None:
    both = dealers()
    close(both)
    until(lambda: not any(dealer._supplies._thread.is_alive() for dealer in both), "the threads' end")
    with pytest.raises(DealerError, match="closed"):
        both[0].correlation(And(1, 8))


# Plans ----------------------------------------------------------------------------------------------------------------


def test_the_aim_takes_small_tables() -> None:
    aim = TableChoice.of("pair")
    assert str(aim) == "pair" and aim.pair and not aim.in_one_round(8)
    assert [aim.tables(w, 2) for w in (2, 4, 8, 16, 22)] == [1, 1, 2, 5, 5]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", every(2, ["masked", "gmw"]))
def test_every_request_of_a_plan_can_be_made(protocol: str) -> None:
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Hardswish(), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(128, 12)),
        *(nn.LayerNorm(12), nn.SiLU(), nn.Linear(12, 9), nn.Sigmoid(), nn.Softmax(-1)),
    ).eval()
    rows = {"10": Rows(-4.0, 4.0)} if protocol == "masked" else {}
    bits = BitConfig(BitWindow(20, 0)).with_rows(rows)
    private = hummingbird.convert_model(net, bits, protocol=protocol, aim="pair", example=torch.zeros(1, 3, 16, 16))
    requests = dry_run(private, (2, 3, 16, 16), 2).batch
    assert cost(requests).all_bits > 0 and not {"poly", "lines"} & {request.kind for request in requests}
    for kind in (SOFTSPOKEN, SILENT):
        aim = str(TableChoice("pair", transfers=kind))
        private = hummingbird.convert_model(net, bits, protocol=protocol, aim=aim, example=torch.zeros(1, 3, 16, 16))
        layers, requests = private.costs((2, 3, 16, 16), 2), dry_run(private, (2, 3, 16, 16), 2).batch
        assert sum(layer.cost.offline_bits for layer in layers) == offline_bits(requests, kind)


def test_functions_that_need_tables_are_named() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Softsign(), nn.Linear(4, 4), nn.LogSigmoid())
    with pytest.raises(ModelError, match="cannot make tables of logsigmoid") as raised:
        hummingbird.convert_model(net, aim="pair")
    assert [problem.name for problem in raised.value.problems] == ["1", "3"]


@covering(
    "net, window, protocol",
    [nn.Softplus(), nn.Mish(), nn.ELU(), nn.SELU(), nn.CELU(0.7), nn.GELU()],
    [BitWindow(23, 0), BitWindow(23, 12)],
    ["masked", "gmw"],
    ids=str,
)
def test_functions_with_tails_are_splines(net: nn.Module, window: BitWindow, protocol: str) -> None:
    """In a session of one party, which computes the same: far to both sides of the knots, and between them."""
    x = torch.linspace(-60, 60, 6001)[None]
    init_alone()
    try:
        private = hummingbird.convert_model(net, window, protocol=protocol, aim="pair")
        out = private(hummingbird.cryptensor(x, src=0)).get_plain_text()
    finally:
        hummingbird.uninit()
    assert float((out - net(x)).abs().max()) < 2**-12


def test_estimate_names_the_parties_own_material() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    found = hummingbird.estimate(net, (8, 4), BitWindow(20, 12), aim="pair")
    dealt = hummingbird.estimate(net, (8, 4), BitWindow(20, 12))
    assert "material ms" in str(found) and found.offline_bytes > dealt.offline_bytes
    requests = dry_run(hummingbird.convert_model(net, BitWindow(20, 12), aim="pair"), (8, 4), 2).batch
    assert found.material == slice_cost(requests) and f"in {found.material.rounds} rounds: " in str(found)
    beside = found.beside["with a dealer"]
    assert beside == dealt.total and beside.rounds != found.total.rounds
    other = str(found).split("other forms")[1].splitlines()[2].split()
    assert other[:3] == ["1", "relu", "3"] and other[5] == "2"
    with pytest.raises(ConfigError, match="3 parties without a dealer"):
        hummingbird.estimate(net, (8, 4), parties=3, aim="pair")


def test_estimate_prices_private_weights() -> None:
    """The price of the party without weights, and nothing once for the net: weights are not opened."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    public, private = (
        hummingbird.estimate(net, (8, 3, 9, 9), BitWindow(20, 12), weights=weights, aim="pair")
        for weights in ("public", 0)
    )
    assert private.offline_bytes > public.offline_bytes + 100_000 and private.setup == FREE
    layers = [layer for layer in private.layers if layer.op == "conv"]
    assert [layer.cost.rounds for layer in layers] == [1] and layers[0].cost.bits == 8 * (20 + 8 * 3 * 9 * 9 * 40 // 8)


def test_estimate_prices_few_bits_of_weights() -> None:
    """R is the window's 20 bits and those of the weights; fewer bits are encrypted, masked and opened."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    few, many = (
        hummingbird.estimate(net, (8, 3, 9, 9), BitConfig(BitWindow(20, 12), weight_bits=bits), weights=0, aim="pair")
        for bits in (8, None)
    )
    assert few.offline_bytes < 0.9 * many.offline_bytes
    (conv,) = (layer for layer in few.layers if layer.op == "conv")
    assert conv.cost.bits == 8 * (20 + 8 * 3 * 9 * 9 * 28 // 8)


def test_a_decoder_with_private_weights_is_refused() -> None:
    with pytest.raises(ConfigError, match="hold no conversations"):
        hummingbird.convert_decoder(nn.Linear(4, 4), torch.zeros(1, 3, 4), 2, weights=0, aim="pair")


def test_estimate_knows_silent_transfers() -> None:
    """They send fewer bits for a ReLU's material; the layers have their part, and the material the first extensions."""
    net = nn.Sequential(nn.Linear(4, 400), nn.ReLU(), nn.Linear(400, 4))
    silent, other = (
        hummingbird.estimate(net, (64, 4), BitWindow(20, 12), dealer=dealer) for dealer in ("pair:silent", "pair")
    )
    assert silent.offline_bytes < other.offline_bytes / 2 and (silent.aim, other.aim) == ("pair:silent", "pair")
    assert silent.material is not None and silent.material.all_bits > 8 * silent.offline_bytes
    far = hummingbird.estimate(net, (64, 4), BitWindow(20, 12), dealer="pair:0.1:1e9", bandwidth=1e9, rtt=0.1)
    assert far.aim == f"pair:{fastest(0.1, 1e9)}" and f"dealer pair:0.1:1e+09 is {far.aim}" in str(far)
    times = {name: float(ms.replace(",", "")) for name, ms in re.findall(r"(pair[:\w]*) ([\d,.]+) ms", far.making)}
    assert list(times) == [far.aim, "pair", "pair:silent"] and times[far.aim] == min(times.values())
    for words in ({"dealer": "pair", "aim": "rounds"}, {"dealer": "host:1"}):
        with pytest.raises(ConfigError, match="dealer="):
            hummingbird.estimate(net, (64, 4), BitWindow(20, 12), **words)
