"""How the parties of a run connect to each other, and agree on seeds and on a dealer.

Through torchrun's store (env://) they exchange addresses, a token of the run, and the address of a dealer on this host
(meeting.py). Everything else goes through sockets between each pair of parties, one for each lane: first the parties
compare what they have read in the store.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from hummingbird.channel import connect as wire
from hummingbird.channel import meter
from hummingbird.channel.channel import Channel
from hummingbird.errors import (
    AgreementError,
    ConfigError,
    EnvironmentProblem,
    HummingbirdError,
    InputError,
    PeerError,
    TrustError,
)
from hummingbird.mpc.dealer.bucket import is_url
from hummingbird.mpc.dealer.bucket_store import BucketStore
from hummingbird.mpc.dealer.client import DealerClient
from hummingbird.mpc.dealer.command import spawn_local
from hummingbird.mpc.dealer.folder import find
from hummingbird.mpc.dealer.kept import is_kept
from hummingbird.mpc.dealer.kept_store import KeptStore, SetStore
from hummingbird.mpc.dealer.sealing import read_key
from hummingbird.mpc.dealer.store import StoreDealer
from hummingbird.mpc.session.lanes import Gathering, LaneLinks, LanePosition
from hummingbird.mpc.session.listener import Listener, several_hosts
from hummingbird.mpc.session.meeting import (
    Card,
    Late,
    Meeting,
    attend,
    call_store,
    run_store,
    serve_store,
    serves_store,
)
from hummingbird.mpc.session.session import Session, agree
from hummingbird.mpc.session.shared_port import SharedPort
from hummingbird.prg import SEED_BYTES, derive, new_seed
from hummingbird.rpc.security import check_own_folder, loopback, split
from hummingbird.rpc.service import Tls

PAIR = "pair"  # in place of a dealer's address: the two parties make the material
_DIGITS = 20  # most digits of a slot's number
_ADDRESS = 256  # bytes of an address that lane 0 tells its party's other lanes
_served: list[dist.Store] = []  # the run's store, if this process serves it: it must outlive a session


class Sockets(NamedTuple):
    """Sockets by which this process takes connections of the run's other processes.

    server: the party's listening socket at the first of its lanes on this host; None at other lanes.
    links: Unix sockets between the lanes of this party on this host, by lane, each with the lane's token. The first
        lane has one to each other lane, any other lane one to the first.
    """

    server: socket.socket | None
    links: dict[int, wire.Link]

    def again(self, purpose: str) -> Sockets:
        """Return copies of these sockets, for a further connection with tokens of its own. purpose: its name."""
        server = None if self.server is None else self.server.dup()
        links = {lane: (derive(token, purpose), link.dup()) for lane, (token, link) in self.links.items()}
        return Sockets(server, links)

    def close(self) -> None:
        """Close all sockets by which this process takes connections."""
        for end in (self.server, *(link for _, link in self.links.values())):
            if end is not None:
                end.close()


def meet(
    place: LanePosition, listener: Listener, tls: Tls | None, timeout: float, dealing: bool
) -> tuple[Meeting, Sockets, LaneLinks | None]:
    """Meet all processes of the run in torchrun's store (env://); return a `Meeting` and this process's sockets.

    The `Meeting` is what all processes know then, such as all addresses. The third result are the links to the other
    lanes of this party; None if it has one lane.
    place: this process's party and lane.
    listener: where the party takes connections.
    tls: certificates, for the links between lanes.
    timeout: seconds.
    dealing: whether rank 0 starts a dealer on this host, for all lanes.
    Raises PeerError, AgreementError, DealerError, TrustError and EnvironmentProblem.
    """
    deadline, lanes = time.monotonic() + timeout, None
    with contextlib.ExitStack() as failed:
        try:
            store = _open_store(place, deadline, timeout)
            server, address = listener.open(place.world) if place.lane == place.first else (None, "")
            if server is not None:
                failed.callback(server.close)
            star, center = listener.open_star(place) if place.lanes > 1 and not place.lane else (None, "")
            if star is not None:
                failed.callback(star.close)
            corridor = SharedPort.open(place)
            failed.callback(corridor.close)
            card = Card(address, place.lanes, corridor.path, center, place.near)
            start = partial(_start_dealer, place, timeout) if dealing else str
            meeting = attend(store, place.rank, place.world, card, deadline, start)
            _agree_on_lanes(meeting, place)
            if dealing and meeting.dealer:
                _check_own_dealer(meeting.dealer, place)
            corridor.join(meeting.cards[place.party * place.lanes + place.first].corridor, deadline)
            if place.lanes > 1:
                lanes = _link_lanes(meeting, star, place, tls, timeout)
        except (Late, RuntimeError, ValueError, OSError) as error:
            raise _not_met(error, place, deadline, timeout) from None
        failed.pop_all()
    tokens = [derive(meeting.token, "lane", lane) for lane in range(place.lanes)]
    links = {lane: (tokens[lane], link) for lane, link in corridor.links.items()}
    return replace(meeting, token=tokens[place.lane]), Sockets(server, links), lanes


def _check_own_dealer(address: str, place: LanePosition) -> None:
    """Raise TrustError unless this user owns the socket of the dealer that party 0 has started.

    Another user's dealer could read the run.
    address: the dealer's.
    place: this lane.
    """
    if not address.startswith("unix:/"):
        what = f"the roll of rank 0 names a dealer at {address!r}, and not one that party 0 has started on this host"
        hint = "somebody else writes into the store at MASTER_ADDR and MASTER_PORT: who can reach that port?"
        raise TrustError(what, where=place.name, hint=hint)
    check_own_folder(address.removeprefix("unix:"), place.name)


def _not_met(error: Exception, place: LanePosition, deadline: float, timeout: float) -> PeerError:
    reason = str(error).partition("\n")[0] or type(error).__name__
    if isinstance(error, Late):
        reason = f"nothing was heard of {' and '.join(map(place.name_of, error.missing))}"
    late = isinstance(error, Late) or time.monotonic() > deadline
    return PeerError(
        f"the {place.parties} parties did not meet{f' within {timeout:g} s' if late else ''}: {reason}",
        where=place.name,
        hint="start as many parties as torchrun was told; MASTER_ADDR and MASTER_PORT must be reachable from all",
    )


def _open_store(place: LanePosition, deadline: float, timeout: float) -> dist.Store:
    """Connect to torchrun's store, in which the processes of a run meet; return the store.

    Each call makes a new connection, since the store's host may have restarted. Only a process that serves the store
    keeps it for later runs.
    deadline: a value of time.monotonic.
    timeout: seconds for one call of the store.
    """
    if _served:
        return _served[0]
    store = run_store(place.rank, place.world, deadline, timeout)
    if serves_store(place.rank):
        _served.append(store)
    return store


def _link_lanes(
    meeting: Meeting, server: socket.socket | None, place: LanePosition, tls: Tls | None, timeout: float
) -> LaneLinks:
    """Connect lane 0 of this party with its other lanes, and open a store that they share; return both as `LaneLinks`.

    Lane 0 serves the store at the address of these connections, and tells its port over them.
    server: the listening socket for these connections at lane 0; None at other lanes. Other arguments: as for
    `connect`. Raises PeerError, RuntimeError or OSError if another lane does not come, and TrustError as `_star`.
    """
    token, wait = derive(meeting.token, "star", place.party), datetime.timedelta(seconds=timeout)
    address = meeting.cards[place.party * place.lanes].star
    channel, host = _star(place, server, address, token, tls, timeout), split(address)[0]
    try:
        with meter.uncounted():
            if server is not None:
                store = serve_store(host, 0, wait)
                port = store.port
                for lane in range(1, place.lanes):
                    channel.send(lane, torch.tensor([port]))
            else:
                port = int(channel.receive(0, [torch.zeros(1, dtype=torch.int64)])[0])
                reach = partial(dist.TCPStore, host, port, is_master=False, timeout=wait)
                store = call_store(time.monotonic() + timeout, reach, port=port)
    except BaseException:
        channel.close()
        raise
    return LaneLinks(channel, store, port)


def _star(
    place: LanePosition, server: socket.socket | None, address: str, token: bytes, tls: Tls | None, timeout: float
) -> Channel:
    """Connect lane 0 of this party with each of its other lanes, and return the channel, whose ranks are lanes.

    server: lane 0's listening socket; None at other lanes. address: of that socket. token: 16 secret bytes.
    Raises PeerError, and TrustError for lanes on several hosts without certificates: results would cross their network
    in clear.
    """
    host, port = split(address)
    if tls is None and not loopback(host):
        what = f"the lanes of party {place.party} are on several hosts, and there are no certificates"
        hint = "results pass between these hosts: tls=Tls(...), --tls-cert and so on (docs/certificates.md)"
        raise TrustError(what, where=place.name, hint=hint)
    names = [place.name_of(place.party * place.lanes + lane) for lane in range(place.lanes)]
    contexts, certificate = tls.contexts() if tls else None, f"party-{place.party}"
    return wire.star(place.lane, names, (host, port), server, token, timeout, certificate, contexts)


def lanes_beside(session: Session, tls: Tls | None) -> Channel:
    """Open a second channel between lane 0 of this party and its other lanes, for other threads, and return it.

    It is authenticated as the first one, over which lane 0 tells the others its address and a token. Every lane calls
    this, and waits for the slowest one. Raises PeerError, EnvironmentProblem, and InputError for certificates.
    """
    place, links = session.place, session.links
    assert links is not None, "a party with one lane"
    session.gathering.arrive()
    server, told = None, torch.zeros(_ADDRESS + SEED_BYTES, dtype=torch.uint8)
    with contextlib.ExitStack() as end, meter.uncounted():
        if place.lane == 0:
            server, address = session.listener.open_star(place)
            end.callback(server.close)
            word = address.encode().ljust(_ADDRESS, b"\0") + new_seed()
            for lane in range(1, place.lanes):
                links.channel.send(lane, torch.frombuffer(bytearray(word), dtype=torch.uint8))
        else:
            word = links.channel.receive(0, [told])[0].numpy().tobytes()
            address = word[:_ADDRESS].rstrip(b"\0").decode()
        return _star(place, server, address, word[_ADDRESS:], tls, session.channel.timeout)


def connect(meeting: Meeting, ends: Sockets, place: LanePosition, tls: Tls | None, timeout: float) -> Channel:
    """Connect this lane to the same lane of all other parties, and return the channel.

    meeting: has the addresses of all processes.
    ends: this process's sockets, from `meet`.
    place: this lane.
    timeout: seconds.
    Raises PeerError, AgreementError, and InputError for wrong certificates.
    """
    try:
        mates = [_listening(meeting, party, place) for party in range(place.parties)]
        contexts, lane = tls.contexts() if tls else None, place.lane if place.lanes > 1 else None
    except InputError:
        ends.close()
        raise AgreementError("the roll of rank 0 has no address for a party", where=place.name) from None
    except BaseException:
        ends.close()
        raise
    return wire.connect(place.party, mates, ends.server, meeting.token, timeout, contexts, lane, ends.links)


def _listening(meeting: Meeting, party: int, place: LanePosition) -> tuple[str, int]:
    """Return the address at which this lane of another party is reached: that of the first lane of the same host.

    Raises InputError if there is none.
    """
    start = party * place.lanes
    cards = meeting.cards[start : start + place.lane + 1]
    return next((card for card in reversed(cards) if card.address), cards[0]).endpoint


def agree_on_roll(channel: Channel, meeting: Meeting, place: LanePosition) -> None:
    """Check in 1 round that all parties have read equal addresses, of parties and of a dealer on this host.

    meeting: what this process has read in torchrun's store.
    The messages go over the parties' own channel. So the parties detect addresses that somebody else has written into
    the store, unless this somebody also controls an unencrypted channel. Raises AgreementError, which names both sides.
    """
    told = {f"the address of {place.name_of(rank)}": card.address for rank, card in enumerate(meeting.cards)}
    hint = "somebody else writes into the store at MASTER_ADDR and MASTER_PORT: who can reach that port?"
    agree(channel, "init", {"the dealer that party 0 has started": meeting.dealer, **told}, hint)


def beside(session: Session, tls: Tls | None) -> Channel:
    """Open a second channel between the parties of a session, for other threads, and return it.

    It is authenticated as the first one, over which it takes 1 round. Only lane 0 of each party calls this. Raises
    PeerError, AgreementError, EnvironmentProblem, and InputError for certificates.
    """
    channel, place = session.channel, session.place
    server, address = session.listener.open(place.world)
    said = {channel.rank: f"{address} {new_seed().hex()}"}
    try:
        said |= channel.exchange_text(said[channel.rank])
        cards = [said[rank].split(" ") for rank in range(channel.parties)]
        mates = [split(where) for where, _ in cards]
        token = derive(bytes.fromhex(cards[0][1]), "beside")
        contexts, lane = tls.contexts() if tls else None, place.lane if place.lanes > 1 else None
    except (ValueError, HummingbirdError) as error:
        server.close()
        if isinstance(error, HummingbirdError) and not isinstance(error, InputError):
            raise
        raise AgreementError("a party sent no address", where=channel.name) from None
    return wire.connect(place.party, mates, server, token, channel.timeout, contexts, lane)


def _agree_on_lanes(meeting: Meeting, place: LanePosition) -> None:
    for rank, card in enumerate(meeting.cards):
        if card.lanes != place.lanes:
            raise AgreementError(
                f"the parties disagree on lanes: rank {place.rank} has {place.lanes}, rank {rank} has {card.lanes}",
                where="init",
                hint="all processes must give the same number of lanes, by lanes= or HUMMINGBIRD_LANES",
            )
        if rank // place.lanes == place.party and card.near != place.near:
            raise AgreementError(
                f"the hosts of party {place.party} differ: rank {place.rank} is one of {len(place.here)} lanes on its "
                f"host, rank {rank} one of {card.near or card.lanes}",
                where="init",
                hint="each host of a party has equally many of its lanes: --nproc_per_node of torchrun",
            )


def _start_dealer(place: LanePosition, timeout: float) -> str:
    """Start a dealer on this host that serves one session for each lane; return the dealer's address.

    timeout: seconds until the dealer must listen.
    """
    return spawn_local(place.parties, timeout, place.lanes)[0]


def check_dealer(place: LanePosition) -> None:
    """Raise EnvironmentProblem if the parties are on several hosts.

    A dealer that party 0 starts serves only its own host.
    place: has the number of processes.
    """
    if several_hosts(place.world):
        raise EnvironmentProblem(
            "the parties run on several hosts and no dealer is named",
            hint="start one on a host of its own, `python -m hummingbird dealer --listen ...`, and give its address",
        )


def connect_pair(
    channel: Channel,
    meeting: Meeting,
    ends: Sockets,
    gathering: Gathering,
    tls: Tls | None,
    timeout: float,
) -> Channel:
    """Connect this lane to the same lane of the other party a second time, for material; return that channel.

    channel: the first one, by which the lanes wait until each has it: 1 round.
    meeting, tls, timeout: as for `connect`.
    ends: sockets from `Sockets.again(PAIR)`. gathering: of this party's lanes, which wait for each other.
    """
    try:
        gathering.arrive(timeout)
        channel.exchange_text(PAIR)
        again = replace(meeting, token=derive(meeting.token, PAIR))
    except BaseException:
        ends.close()
        raise
    return connect(again, ends, gathering.place, tls, timeout)


def zero_sharing_seeds(channel: Channel, size: int) -> dict[str, bytes]:
    """Agree with the other parties, by X25519 in 1 round, on the seeds from which neighbours draw shares of zero.

    Returns three seeds of `size` bytes: "next" and "prev", which this party shares with the next and with the previous
    party, and "local", which it has alone. Two parties share a seed for each direction.
    """
    private = X25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    keys = channel.exchange_text(public.hex())

    def shared(peer: int, direction: int) -> bytes:
        """Derive a seed from the key exchange with party `peer`, and return it.

        direction: selects one of the two seeds that two parties share: the rank of the party that comes before the
            other one.
        Raises AgreementError if the other party sent no key.
        """
        try:
            secret = private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(keys[peer])))
        except ValueError:
            raise AgreementError(f"{channel.names[peer]} sent no X25519 key", where=channel.name) from None
        return derive(secret, "zero sharing", direction, size=size)

    rank, parties = channel.rank, channel.parties
    following, previous = (rank + 1) % parties, (rank - 1) % parties
    return {"next": shared(following, rank), "prev": shared(previous, previous), "local": new_seed(size)}


def open_store(
    channel: Channel,
    path: str | os.PathLike[str],
    place: LanePosition,
    timeout: float,
    device: torch.device | str = "cpu",
    key: str | os.PathLike[str] | None = None,
) -> StoreDealer | SetStore:
    """Open this lane's part of a store of material, and return it: a `StoreDealer`, or one of sets for a kept store or
    an object store.

    path: this party's folder, the folder that holds party-RANK, that of a kept store, or the URL of an object store;
        {rank} in it stands for the rank. All parties must have parts of one store. A store that two parties made is a
        kept store in the folder of each lane.
    key: this party's key file, for an object store; {rank} in it stands for the rank.
    timeout: seconds that requests wait for material.
    device: where the shares are needed.
    The parties compare their stores, and skip the slots that any party has used: 2 rounds. A kept store instead waits
    for its first set of slots, and an object store for the first need of one.
    """
    party, parties, lane, lanes, _ = place
    if is_url(path) != (key is not None):
        what = "an object store without a key" if key is None else "a key for a store that is no object store"
        hint = (
            "init(store=URL, store_key=FILE), or --store URL --store-key FILE; python -m hummingbird keys makes a key"
        )
        raise ConfigError(what, where="store_key", hint=hint)
    if key is not None:
        return BucketStore(channel, str(path), read_key(str(key).replace("{rank}", str(party))), place, timeout, device)
    for root in (Path(str(path).replace("{rank}", str(party))), find(path, party, lane)):
        if is_kept(root):
            return KeptStore(channel, root, place, timeout, device)
    store = StoreDealer(path, rank=party, parties=parties, lane=lane, lanes=lanes, timeout=timeout, device=device)
    try:
        agree(channel, "store", store.facts)
        for text in channel.exchange_text(str(store.next_slot)).values():
            if not text.isdecimal() or len(text) > _DIGITS:
                raise AgreementError(f"a party sent {text[:40]!r} for its next slot", where=channel.name)
            store.skip_to(int(text))
    except BaseException:
        store.close()
        raise
    return store


def join_dealer(
    channel: Channel,
    address: str,
    meeting: Meeting,
    tls: Tls | None,
    timeout: float,
    cipher: str,
    device: torch.device,
) -> DealerClient:
    """Join this lane's session at the dealer with this address, and return the client.

    channel: to the other parties.
    meeting: the session's id follows from its token.
    timeout: seconds within which the dealer must answer.
    cipher: the cipher that expands the seeds, one of `prg.CIPHERS`.
    device: where the shares are made.
    """
    return DealerClient(
        address,
        session=derive(meeting.token, "dealer session"),
        rank=channel.rank,
        parties=channel.parties,
        tls=tls,
        timeout=timeout,
        cipher=cipher,
        device=device,
    )
