"""Services of a private net between parties, `masked` and `gmw`, with a store that was dealt or a streaming dealer.

Or two parties make the material with each other, during a request or in advance: then both compute and send for it, in
rounds of its own, and a stored token is larger, as each party keeps its shares of all fields.

Bits and rounds are the net's own prices (`PrivateNet.costs`), the requests to the dealer are those of its dry run, and
a token is a slot of a store, whose corrections go to the parties by rotation. Seconds come from a profile. A request is
one slice; two slices run at a time, one computes while the other's messages are on the wire (mpc/plan/microbatch.py).

The transit: the client sends every party a share of the inputs, and receives a share of the results from each, all over
the client's own link (`cost.asking`; serving/message.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from hummingbird.capacity.profile import Measurement, Profile, Seconds
from hummingbird.capacity.service import Host, Phase, Rounds, Send, Service, WorkStep, chain, check_count
from hummingbird.channel.channel import Channel
from hummingbird.cost import FREE, Cost, asking
from hummingbird.errors import ConfigError
from hummingbird.graph import calls
from hummingbird.graph.interpreter import run_all
from hummingbird.kernels.shares.packing import plain
from hummingbird.mpc.correlations.request import Material, ReceiverRotation, Request, corrections, expand, received_by
from hummingbird.mpc.dealer.folder import PAIR, places
from hummingbird.mpc.pair.dealer import calls_of, slice_cost
from hummingbird.mpc.pair.material import PairMaterial
from hummingbird.mpc.pair.price import KINDS, PairCost, Stock
from hummingbird.mpc.plan import microbatch
from hummingbird.mpc.plan.dry_run import Zeros, alone, dry_run
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.protocols.step_tables import TableChoice, TransferKind
from hummingbird.prg import new_seed
from hummingbird.report import BANDWIDTH, RTT
from hummingbird.serving.plan import input_bits, result_bits

# Seconds of a slice of a private net on this machine, without a link: one party computes, the others send zeros -------
#
# A party's messages and its work depend on shapes alone (mpc/plan/dry_run.py). Three parts are timed separately:
# computing, expanding a party's seeds, and the dealer's work.


class _Again(Zeros):
    """A dealer that gives a measured party its material without delay, so that only the party's own work is timed.

    All material is zeros. It is made while the first slice runs, and every further slice gets it again.
    """

    def __init__(self, slice_shape: tuple[int, ...]) -> None:
        super().__init__(slice_shape)
        self._made: list[Material] = []

    def correlation(self, request: Request[Any]) -> Material:
        at = len(self.requests)
        if at < len(self._made):
            self.requests.append(request)
            return self._made[at]
        self._made.append(super().correlation(request))
        return self._made[-1]

    def begin(self) -> None:
        """Begin another slice: empty the list of requests, so that the material is dealt again from the first request
        on.
        """
        self.requests = []


def kind_of(private: PrivateNet) -> str:
    """Return the name under which a profile has the measured seconds of such nets: "mpc" and the net's protocol.

    It is the `kind` of the profile's rows, such as "mpc masked"; if two parties make the material, "mpc masked pair",
    or "mpc masked pair:silent" with silent transfers.
    """
    made = f" {TableChoice(PAIR, transfers=KINDS[private.transfers.name])}" if _by_pair(private) else ""
    return f"mpc {private.facts['protocol']}{made}"


def _by_pair(private: PrivateNet) -> bool:
    return TableChoice.of(private.facts["aim"]).pair


def digest(private: PrivateNet, shape: Sequence[int], parties: int) -> str:
    """Return the SHA-256 of all facts that determine a slice's work, by which a profile finds its measured seconds.

    They are the net's architecture, windows and protocol, the owner of its weights, the slice's shape, the number of
    parties and, if two parties make the material, the aim: it says how.
    """
    names = ("architecture", "bits", "protocol", "weights", *(("aim",) if _by_pair(private) else ()))
    facts = {name: private.facts[name] for name in names}
    words = {**facts, "shape": list(shape), "parties": parties}
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


def amounts(
    private: PrivateNet, shape: Sequence[int], parties: int, requests: Sequence[Request[Any]]
) -> dict[str, float]:
    """Count each kind of work in a slice; return the counts by name.

    The names are "products" (of layers with weights), "values" (of all layers), "bits" (that each party sends online),
    "offline_bits", "share_bytes" (of the dealt shares), "layers" and "slices", which is 1. shape: of the slice.
    requests: the slice's requests to the dealer, from a dry run.
    """
    planned = private.costs(shape, parties)
    total = sum((step.cost for step in planned), FREE)
    with FlopCounterMode(display=False) as flops:
        run_all(private._graph, *calls.on_meta(private._graph, shape))
    return {
        "products": flops.get_total_flops() / 2,
        "values": float(sum(step.breadth for step in planned)),
        "bits": float(total.bits),
        "offline_bits": float(total.offline_bits),
        "share_bytes": float(sum(request.share_bytes for request in requests)),
        "layers": float(sum(step.range is not None for step in planned)),
        "slices": 1.0,
    }


def measure(name: str, private: PrivateNet, shape: Sequence[int], parties: int = 2, repeats: int = 10) -> Measurement:
    """Measure one party's seconds for a slice on this machine, without a network; return a row of a profile.

    name: of the row. shape: of the slice. Each part (computing, expanding seeds, dealing) runs `repeats` times, after
    one run to warm up. Of a net of aim "pair" the parts are computing and making the material with another party.
    Raises InputError if the net's private weights are shared already.
    """
    requests = dry_run(private, shape, parties).batch
    turns, seeds = ReceiverRotation(parties).take(requests), [new_seed() for _ in range(parties)]

    def expanded() -> None:
        for turn, request in zip(turns, requests, strict=True):
            for share in expand(request, turn, seeds[1], 1).values():
                plain(share)

    def dealt() -> None:
        for turn, request in zip(turns, requests, strict=True):
            corrections(request, turn, seeds)

    dealer = _Again(tuple(shape))
    with alone(private, parties, 0, dealer) as twin:

        def computed() -> None:
            dealer.begin()
            twin.run(shape)

        dealer.begin()
        dealer._made.clear()  # material of the setup
        seconds = {"compute": samples(computed, repeats)}
    if requests and _by_pair(private):
        seconds["make"] = _making(requests, private.transfers, repeats)
    elif requests:
        seconds |= {"expand": samples(expanded, repeats), "deal": samples(dealt, repeats)}
    work = amounts(private, shape, parties, requests)
    return Measurement(kind_of(private), name, digest(private, shape, parties), work, seconds)


def _making(requests: Sequence[Request[Any]], transfers: TransferKind, repeats: int) -> tuple[float, ...]:
    """Measure one party's seconds for the material of a slice that it makes with another party, `repeats` times.

    Both parties are threads of this process, which wait for each other: a sample is half of the seconds that all
    processors worked, divided by torch's threads. One run more warms up.
    """
    ways, found = [socket.socketpair() for _ in range(2)], list[float]()

    def party(rank: int) -> PairMaterial:
        peer = 1 - rank
        return PairMaterial(Channel(rank, 2, {peer: ways[rank][0]}, {peer: ways[peer][1]}, _SILENCE), transfers)

    def make(party: PairMaterial) -> None:
        for some in calls_of(requests):
            party.make(some)

    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as ends:
        for end in itertools.chain(*ways):
            ends.callback(end.close)  # before the pool waits: a thread that waits for one that failed ends too
        both = list(pool.map(party, range(2)))
        for _ in range(1 + repeats):
            started = time.process_time()
            list(pool.map(make, both))
            found.append((time.process_time() - started) / 2 / torch.get_num_threads())
    return tuple(found[1:])


def samples(work: Callable[[], object], repeats: int) -> tuple[float, ...]:
    """Measure the seconds of `repeats` calls of `work`, after one call to warm up; returns the seconds of each call."""
    work()
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return tuple(found)


# The services --------------------------------------------------------------------------------------------------------

CLIENT, DEALER = "client", "dealer"
PAIR_STORE = "pair-store"
DEALERS = ("stream", "store", PAIR, PAIR_STORE)
_SILENCE = 60.0  # seconds that a thread waits for the other one
_SOURCES = {
    "stream": "a dealer that streams",
    "store": "a store",
    PAIR: "material that the two parties make",
    PAIR_STORE: "a store that the two parties make",
}
_IN_TURNS = 2  # slices of a lane under way at a time


def masked(
    private: PrivateNet,
    shape: Sequence[int],
    profile: Profile,
    dealer: str = "stream",
    parties: int = 2,
    lanes: int = 1,
) -> Service:
    """Make the model (`Service`) of a service whose parties compute a net that was converted with protocol "masked".

    Each request is a slice of `shape` (B, ...). profile: the measured seconds. dealer: "stream": it makes material
    during the request, as the dealer that `serve` starts; "store": it deals slots in advance while the parties' stores
    have room (`Hosts.store` is the size of a store). For a net of aim "pair", "pair": the two parties make it during
    the request; or "pair-store": in advance. parties: their number. lanes: number of lanes of each party.
    All links, the client's too, are those of a data centre: `Service.at` sets others.
    Raises ConfigError for a net of another protocol, a batch of several slices, or a profile without the net's rows.

    >>> private = hummingbird.convert_model(net, BitWindow(20, 12))
    >>> service = capacity.masked(private, (1, 4), capacity.load_profile("profile.json"), dealer="store")
    >>> service.token_bytes  # of one image's material, at each party
    {'party-0': 65536, 'party-1': 65536}
    >>> service.at(capacity.Hosts(store=1e9)).most_tokens
    15258
    """
    return _service("masked", private, tuple(shape), profile, dealer, parties, lanes)


def gmw(
    private: PrivateNet,
    shape: Sequence[int],
    profile: Profile,
    dealer: str = "stream",
    parties: int = 2,
    lanes: int = 1,
) -> Service:
    """Make the model (`Service`) of a service whose parties compute a net that was converted with protocol "gmw".

    Each request is a slice of `shape` (B, ...). The arguments and errors are those of `masked`, which makes such models
    for nets of the other protocol.

    >>> private = hummingbird.convert_model(net, BitWindow(20, 12), protocol="gmw")
    >>> service = capacity.gmw(private, (1, 4), capacity.load_profile("profile.json"))
    >>> list(service.hosts), service.refill
    (['party-0', 'party-1', 'dealer', 'client'], None)
    """
    return _service("gmw", private, tuple(shape), profile, dealer, parties, lanes)


def _service(
    protocol: str,
    private: PrivateNet,
    shape: tuple[int, ...],
    profile: Profile,
    dealer: str,
    parties: int,
    lanes: int,
) -> Service:
    _check(protocol, private, shape, dealer, parties, lanes)
    requests = dry_run(private, shape, parties).batch
    work, mark = amounts(private, shape, parties, requests), digest(private, shape, parties)
    kind, pair = kind_of(private), dealer in (PAIR, PAIR_STORE)
    names: tuple[str, ...] = ("compute", "make") if pair else ("compute", "expand", "deal")
    names = names if requests else ("compute",)
    seconds = {part: profile.seconds(kind, part, work, mark) for part in names}
    cost = sum((step.cost for step in private.costs(shape, parties)), FREE)
    roles = [f"party-{rank}" for rank in range(parties)]
    steps = _online(roles, cost, seconds, profile)
    received = {role: requests if pair else received_by(rank, parties, requests) for rank, role in enumerate(roles)}
    slots = {role: size for role, own in received.items() if (size := places(own, whole=pair)[1])}
    stored = dealer in ("store", PAIR_STORE) and bool(slots)
    offline = (
        _made(roles, slice_cost(requests, Stock(private.transfers)), seconds, profile) if pair and requests else []
    )
    if requests and not pair:
        sent = {role: sum(request.correction_bits for request in own) / 8 for role, own in received.items()}
        offline = [WorkStep("deal", profile.compute(DEALER, seconds["deal"]))]
        offline += [
            WorkStep(f"corrections {role}", Send(DEALER, role, size), ("deal",) if stored else ())
            for role, size in (slots if stored else sent).items()  # a slot is padded to whole pages
            if size
        ]
    if not stored:  # in parallel: material made first is sent and used first
        steps += offline
    host = Host(cores=profile.threads * lanes, up=BANDWIDTH, down=BANDWIDTH)
    hosts = dict.fromkeys([*roles, DEALER] if requests and not pair else roles, host)
    transit = _transit(roles, private, shape)
    if transit is not None:
        hosts[CLIENT] = Host(up=BANDWIDTH, down=BANDWIDTH)
    return Service(
        name=f"{protocol}, {_SOURCES[dealer if stored or pair else 'stream']}, slices of {shape}",
        hosts=hosts,
        request=Phase(tuple(steps), seconds["compute"].factors),
        refill=Phase(tuple(offline), seconds["make" if pair else "deal"].factors) if stored else None,
        session=_setup(roles, private.setup_cost(parties)),
        transit=transit,
        token_bytes=slots if stored else {},
        slots=_IN_TURNS * lanes,
        images=shape[0],
        rtt=RTT,
        notes=(profile.origin(*seconds.values()),),
    )


def _check(protocol: str, private: PrivateNet, shape: tuple[int, ...], dealer: str, parties: int, lanes: int) -> None:
    if private.facts["protocol"] != protocol:
        what = f"a net of protocol {private.facts['protocol']}"
        hint = f'convert_model(net, bits, protocol="{protocol}")'
        raise ConfigError(what, where=f"capacity.{protocol}", hint=hint)
    if dealer not in DEALERS:
        raise ConfigError(f"dealer={dealer!r}", where="dealer", hint=f"one of {', '.join(DEALERS)}")
    made, pair = _by_pair(private), dealer in (PAIR, PAIR_STORE)
    if made != pair or (pair and parties != 2):
        what = f"dealer={dealer!r} for {parties} parties and a net of aim {private.facts['aim']!r}"
        raise ConfigError(
            what, where="dealer", hint='two parties make material of aim "pair" alone, and a dealer others'
        )
    check_count(parties, "parties", 2, "parties")
    check_count(lanes, "lanes", 1, "lanes")
    largest = private.breadth(shape, parties)
    slices = microbatch.cut(shape, largest, private.images_per_slice) if private.rowwise(shape) else [shape]
    if len(slices) > 1:
        hint = f"plan requests of one slice: {slices[0][1]} images"
        raise ConfigError(f"a batch of {shape[0]} images runs as {len(slices)} slices", where="shape", hint=hint)


def _online(roles: list[str], cost: Cost, seconds: dict[str, Seconds], profile: Profile) -> list[WorkStep]:
    """Return the steps (`WorkStep`) of all parties for one slice.

    The parties compute, then send all bits, then wait for all rounds. At the same time they expand the seeds of a later
    slot. roles: the parties' host names. cost: the price of the slice. seconds: of the parts "compute" and, if the
    slice needs material, "expand". profile: names the number of threads on which these seconds were measured.
    """
    computing = [WorkStep(f"compute {role}", profile.compute(role, seconds["compute"])) for role in roles]
    after = tuple(step.name for step in computing)
    sending = [
        WorkStep(f"{one} to {other}", Send(one, other, cost.bits / 8 / (len(roles) - 1)), after)
        for one in roles
        for other in roles
        if one != other
    ]
    steps = [*computing, *sending, WorkStep("rounds", Rounds(cost.rounds), tuple(step.name for step in sending))]
    if "expand" in seconds:
        steps += [WorkStep(f"expand {role}", profile.compute(role, seconds["expand"])) for role in roles]
    return steps


def _made(roles: list[str], cost: PairCost, seconds: dict[str, Seconds], profile: Profile) -> list[WorkStep]:
    """Return the steps by which two parties make the material of a slice: they compute, send all bits, wait for rounds.

    roles: the parties' host names. cost: of the material. seconds: of the part "make".
    """
    making = [WorkStep(f"make {role}", profile.compute(role, seconds["make"])) for role in roles]
    after, pairs = tuple(step.name for step in making), (tuple(roles), tuple(reversed(roles)))
    sending = [WorkStep(f"material {a} to {b}", Send(a, b, cost.all_bits / 16), after) for a, b in pairs]
    return [*making, *sending, WorkStep("rounds of material", Rounds(cost.rounds), tuple(s.name for s in sending))]


def _transit(roles: list[str], private: PrivateNet, shape: tuple[int, ...]) -> Phase | None:
    """Return the transit phase: the client sends shares of a slice's inputs, and the parties send shares of its
    results.

    roles: the parties' host names. shape: of the slice. The messages follow one another on the client's link. None for
    a net with public inputs, which cannot be served (serving/plan.py).
    """
    if any(step.op == "public" for step in private.plan):
        return None
    bits, results = input_bits(private.plan), sum(math.prod(made) for _, made in private.results(shape)[1])

    def asked(parties: int) -> tuple[int, int]:
        return asking(parties, math.prod(shape), bits, results, result_bits(private.plan))

    (last, _), (up, down), others = asked(1), asked(len(roles)), roles[:-1]  # the last party gets no seed, but words
    sent = {**dict.fromkeys(others, (up - last) / len(others)), roles[-1]: last}
    return chain(
        *((f"input to {role}", Send(CLIENT, role, size)) for role, size in sent.items()),
        ("there", Rounds(1)),
        *((f"result from {role}", Send(role, CLIENT, down / len(roles))) for role in roles),
        ("back", Rounds(1)),
    )


def _setup(roles: list[str], cost: Cost) -> Phase | None:
    """Return the phase at the start of a session that opens the masked private weights, once; None if weights are
    public.

    The parties open the weights minus uniform masks, so the weights stay secret. roles: the parties' host names. cost:
    the price of this opening.
    """
    if cost == FREE:
        return None
    sends = [
        WorkStep(f"weights {one} to {other}", Send(one, other, cost.bits / 8 / (len(roles) - 1)))
        for one in roles
        for other in roles
        if one != other
    ]
    return Phase((*sends, WorkStep("rounds", Rounds(cost.rounds), tuple(step.name for step in sends))))
