"""How the parties of a run come together, and agree on seeds and on a dealer.

torchrun's variables name a store (env://); addresses, a token for the run, and the address of a dealer on this host go
through it (meeting.py). Everything else goes through sockets between all pairs of parties, for each lane its own.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from hummingbird.errors import AgreementError, EnvironmentProblem, HummingbirdError, PeerError
from hummingbird.mpc.agreement import agree
from hummingbird.mpc.dealer.client import DealerClient
from hummingbird.mpc.dealer.command import spawn_local
from hummingbird.mpc.dealer.kept import is_kept
from hummingbird.mpc.dealer.kept_store import KeptStore
from hummingbird.mpc.dealer.store import StoreDealer
from hummingbird.mpc.lanes import Place, open_group
from hummingbird.mpc.meeting import Card, Late, Meeting, attend, run_store, serves_store
from hummingbird.prg import derive, new_seed
from hummingbird.wire import connect as wire
from hummingbird.wire.channel import Channel
from hummingbird.wire.service import Tls

_DIGITS = 20  # of a slot's number
_served: list[dist.Store] = []  # the run's store, where this process is its server: it must outlive a session


def meet(place: Place, timeout: float, dealing: bool) -> tuple[Meeting, socket.socket]:
    """Meet all processes of the run in torchrun's store (env://); returns where this one listens, too.

    dealing: rank 0 starts a dealer on this host, for all lanes. Raises PeerError, AgreementError, DealerError and
    EnvironmentProblem.
    """
    deadline = time.monotonic() + timeout
    try:
        store = _open_store(place, deadline, timeout)
        host = _own_address(place.world)
        server = wire.listen(host)
        card = Card(f"{host}:{server.getsockname()[1]}", place.lanes)
        start = partial(_start_dealer, place, timeout) if dealing else str
        meeting = attend(store, place.rank, place.world, card, deadline, start)
        _agree_on_lanes(meeting, place)
        if place.lanes > 1:
            open_group(meeting.store, place, timeout)
    except (Late, RuntimeError, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        if isinstance(error, Late):
            reason = f"nothing was heard of {' and '.join(map(place.name_of, error.missing))}"
        late = isinstance(error, Late) or time.monotonic() > deadline
        raise PeerError(
            f"the {place.parties} parties did not meet{f' within {timeout:g} s' if late else ''}: {reason}",
            where=place.name,
            hint="start as many parties as torchrun was told; MASTER_ADDR and MASTER_PORT must be reachable from all",
        ) from None
    return replace(meeting, token=derive(meeting.token, "lane", place.lane)), server


def _open_store(place: Place, deadline: float, timeout: float) -> dist.Store:
    """The run's store. Clients connect anew for every meeting: the host of its server may have been started again."""
    if _served:
        return _served[0]
    store = run_store(place.rank, place.world, deadline, timeout)
    if serves_store(place.rank):
        _served.append(store)
    return store


def connect(meeting: Meeting, server: socket.socket, place: Place, tls: Tls | None, timeout: float) -> Channel:
    """Connect this lane of all parties. Raises PeerError, and InputError for certificates."""
    mates = [card.endpoint for card in meeting.cards[place.lane :: place.lanes]]
    contexts, lane = tls.contexts() if tls else None, place.lane if place.lanes > 1 else None
    return wire.connect(place.party, mates, server, meeting.token, timeout, contexts, lane)


def beside(channel: Channel, place: Place, tls: Tls | None) -> Channel:
    """Another channel of the same parties, with the same proof, for threads of their own: 1 round over the first.

    Raises PeerError, AgreementError, and InputError for certificates.
    """
    host = _own_address(place.world)
    server = wire.listen(host)
    said = {channel.rank: f"{host} {server.getsockname()[1]} {new_seed().hex()}"}
    try:
        said |= channel.exchange_text(said[channel.rank])
        cards = [said[rank].split(" ") for rank in range(channel.parties)]
        mates = [(mate, int(port)) for mate, port, _ in cards]
        if not all(0 < port < 1 << 16 for _, port in mates):
            raise ValueError
        token = derive(bytes.fromhex(cards[0][2]), "beside")
    except (ValueError, HummingbirdError) as error:
        server.close()
        if isinstance(error, HummingbirdError):
            raise
        raise AgreementError("a party sent no address", where=channel.name) from None
    contexts, lane = tls.contexts() if tls else None, place.lane if place.lanes > 1 else None
    return wire.connect(place.party, mates, server, token, channel.timeout, contexts, lane)


def _agree_on_lanes(meeting: Meeting, place: Place) -> None:
    for rank, card in enumerate(meeting.cards):
        if card.lanes != place.lanes:
            raise AgreementError(
                f"the parties disagree on lanes: rank {place.rank} has {place.lanes}, rank {rank} has {card.lanes}",
                where="init",
                hint="all processes must give the same number of lanes, by lanes= or HUMMINGBIRD_LANES",
            )


def _start_dealer(place: Place, timeout: float) -> str:
    """Start a dealer on this host, for a session of each lane; returns its address."""
    return spawn_local(place.parties, timeout, place.lanes)[0]


def _own_address(world: int) -> str:
    """The address of the interface that leads to MASTER_ADDR; EnvironmentProblem if other hosts cannot reach it."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))  # no packet is sent: this only chooses a route
        address = str(probe.getsockname()[0])
    if address.startswith("127.") and _several_hosts(world):
        raise EnvironmentProblem(
            f"MASTER_ADDR={master} is loopback on this host, so that parties on others cannot connect to it",
            hint="give an address of the network's interface; some hosts map their own name to 127.0.1.1",
        )
    return address


def _several_hosts(world: int) -> bool:
    """Whether torchrun has started some of the processes on other hosts."""
    return os.environ.get("LOCAL_WORLD_SIZE", str(world)) != str(world)


def check_dealer(place: Place) -> None:
    """EnvironmentProblem if a dealer on this host would have to serve parties on others."""
    if _several_hosts(place.world):
        raise EnvironmentProblem(
            "the parties run on several hosts and no dealer is named",
            hint="start one on a host of its own, `python -m hummingbird dealer --listen ...`, and give its address",
        )


def zero_sharing_seeds(channel: Channel, size: int) -> dict[str, bytes]:
    """Seeds of `size` bytes shared with the next and the previous party, by Diffie-Hellman on X25519.

    With two parties there is one per direction.
    """
    private = X25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    keys = channel.exchange_text(public.hex())

    def shared(peer: int, direction: int) -> bytes:
        """The seed that party `direction` shares with its successor."""
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
    place: Place,
    timeout: float,
    device: torch.device | str = "cpu",
) -> StoreDealer | KeptStore:
    """This lane's folder of a store, which must be of one set at all parties; they go on with the highest slot that
    any of them has not used. 2 rounds. Of a kept store the set that is next, once there is one.
    """
    party, parties, lane, lanes = place
    root = Path(str(path).replace("{rank}", str(party)))
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
    """Join the dealer at this address under an id derived from the lane's token."""
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
