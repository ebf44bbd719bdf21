"""How the parties of a run find each other, and agree on seeds and on a dealer.

torchrun's variables name a store (env://); addresses and a token for the run go through it. Everything else goes
through sockets between all pairs.
"""

from __future__ import annotations

import atexit
import datetime
import os
import socket

import torch
import torch.distributed as dist
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from hummingbird.errors import AgreementError, EnvironmentProblem, PeerError
from hummingbird.mpc.agreement import agree
from hummingbird.mpc.dealer.client import DealerClient
from hummingbird.mpc.dealer.command import spawn_local
from hummingbird.mpc.dealer.store import StoreDealer
from hummingbird.prg import SEED_BYTES, derive, new_seed
from hummingbird.wire import connect as wire
from hummingbird.wire.channel import Channel
from hummingbird.wire.service import Tls


def environment() -> tuple[int, int]:
    if "RANK" not in os.environ:
        return 0, 1
    try:
        rank, parties = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        raise EnvironmentProblem(
            "RANK is set but WORLD_SIZE is not a number", hint="start the parties with torchrun"
        ) from None
    if not 0 <= rank < parties:
        raise EnvironmentProblem(f"RANK={rank} is not below WORLD_SIZE={parties}")
    return rank, parties


_DIGITS = 20  # of a slot's number
_epoch = 0


def meet(rank: int, parties: int, tls: Tls | None, timeout: float) -> tuple[Channel, bytes]:
    """Addresses and a run token through torchrun's store (env://), then sockets between all pairs."""
    global _epoch
    wait = datetime.timedelta(seconds=timeout)
    try:
        # torch.distributed stays at the user's disposal (Gloo on CPU; NCCL beside it where there is CUDA); private
        # messages do not use it.
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            shared, _, _ = next(iter(dist.rendezvous("env://", rank, parties, timeout=wait)))
            shared.set_timeout(wait)
            dist.init_process_group(
                backend, store=dist.PrefixStore(_life(), shared), rank=rank, world_size=parties, timeout=wait
            )
            atexit.register(_end_process_group)
        store = dist.PrefixStore(f"{_life()}/{_epoch}", dist.distributed_c10d._get_default_store())
        _epoch += 1
        host = _own_address(parties)
        server = wire.listen(host)
        if rank == 0:
            store.set("token", new_seed().hex())
        store.set(f"address/{rank}", f"{host}:{server.getsockname()[1]}")
        keys = [f"address/{peer}" for peer in range(parties)]
        store.wait(["token", *keys], wait)
        addresses = [
            (text.rpartition(":")[0], int(text.rpartition(":")[2]))
            for text in (store.get(key).decode() for key in keys)
        ]
        token = bytes.fromhex(store.get("token").decode())
        if len(token) != SEED_BYTES:
            raise ValueError("another program's token is in the store")
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise PeerError(
            f"the {parties} parties did not meet within {timeout:g} s: {reason}",
            where=f"party {rank}",
            hint="start as many parties as torchrun was told; MASTER_ADDR and MASTER_PORT must be reachable from all",
        ) from None
    contexts = tls.contexts() if tls else None
    return wire.connect(rank, addresses, server, token, timeout, contexts), token


def _life() -> str:
    """Where in torchrun's store this life of the parties meets: `--max-restarts` keeps the store, with the addresses of
    the dead.
    """
    return f"hummingbird/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _end_process_group() -> None:
    """At exit: Gloo's threads abort a process that ends with them still running, once in a few times."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _own_address(parties: int) -> str:
    """The address of the interface that leads to MASTER_ADDR; EnvironmentProblem if other hosts cannot reach it."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))  # no packet is sent: this only chooses a route
        address = str(probe.getsockname()[0])
    if address.startswith("127.") and os.environ.get("LOCAL_WORLD_SIZE", str(parties)) != str(parties):
        raise EnvironmentProblem(
            f"MASTER_ADDR={master} is loopback on this host, so that parties on others cannot connect to it",
            hint="give an address of the network's interface; some hosts map their own name to 127.0.1.1",
        )
    return address


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
            raise AgreementError(f"party {peer} sent no X25519 key", where=f"party {channel.rank}") from None
        return derive(secret, "zero sharing", direction, size=size)

    rank, parties = channel.rank, channel.parties
    following, previous = (rank + 1) % parties, (rank - 1) % parties
    return {"next": shared(following, rank), "prev": shared(previous, previous), "local": new_seed(size)}


def open_store(
    channel: Channel, path: str | os.PathLike[str], timeout: float, device: torch.device | str = "cpu"
) -> StoreDealer:
    """This party's folder of a store, which must be of one set at all parties; they go on with the highest slot that
    any of them has not used. 2 rounds.
    """
    store = StoreDealer(path, rank=channel.rank, parties=channel.parties, timeout=timeout, device=device)
    try:
        agree(channel, "store", store.facts)
        for text in channel.exchange_text(str(store.next_slot)).values():
            if not text.isdecimal() or len(text) > _DIGITS:
                raise AgreementError(f"a party sent {text[:40]!r} for its next slot", where=f"party {channel.rank}")
            store.skip_to(int(text))
    except BaseException:
        store.close()
        raise
    return store


def join_dealer(
    channel: Channel,
    dealer: str | None,
    token: bytes,
    tls: Tls | None,
    timeout: float,
    cipher: str,
    device: torch.device,
) -> DealerClient:
    """Party 0 names the dealer (and starts one on this host if none is given); all join under an id derived from the
    run's token.
    """
    if dealer is None and os.environ.get("LOCAL_WORLD_SIZE", str(channel.parties)) != str(channel.parties):
        raise EnvironmentProblem(
            "the parties run on several hosts and no dealer is named",
            hint="start one on a host of its own, `python -m hummingbird dealer --listen ...`, and give its address",
        )
    address = dealer or ""
    if dealer is None and channel.rank == 0:
        address, _ = spawn_local(channel.parties, timeout)
    texts = channel.exchange_text(address)
    address = address if channel.rank == 0 else texts[0]
    session_id = derive(token, "dealer session")
    return DealerClient(
        address,
        session=session_id,
        rank=channel.rank,
        parties=channel.parties,
        tls=tls if dealer else None,
        timeout=timeout,
        cipher=cipher,
        device=device,
    )
