"""A run of the parties: who takes part, how they reach each other and the dealer, and what they must agree on.

`init()` reads torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), meets the other parties, agrees
pairwise on seeds for zero sharings (X25519, so that a listener on the wire cannot derive them), joins the dealer, and
puts our parts in place of CrypTen's. Without torchrun's variables it makes a session of one party, which computes the
same and hides nothing.
"""

from __future__ import annotations

import atexit
import datetime
import json
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from torch import Tensor

from hummingbird import cost, ring
from hummingbird.errors import AgreementError, EnvironmentProblem, HummingbirdError, InputError, PeerError
from hummingbird.mpc import _crypten
from hummingbird.mpc.correlations import Request
from hummingbird.mpc.dealer.client import DealerClient
from hummingbird.mpc.dealer.command import spawn_local
from hummingbird.mpc.dealer.local import LocalDealer
from hummingbird.mpc.provider import DealerProvider
from hummingbird.mpc.select import truncate
from hummingbird.prg import derive, new_seed
from hummingbird.version import VERSION
from hummingbird.wire import connect as wire
from hummingbird.wire import meter
from hummingbird.wire.channel import Channel
from hummingbird.wire.service import Tls

DEFAULT_TIMEOUT = 120.0
_LEAVE = 2.0  # seconds for the dealer to hear that this party leaves


class Dealer(Protocol):
    """What a session asks of a dealer's client."""

    seconds_expanding: float
    seconds_waiting: float
    offline_bits: int

    def take(self, request: Request) -> list[Tensor]: ...

    def close(self) -> None: ...


@dataclass
class Session:
    """This party's place in a run: its rank, the channel to the others, and the dealer."""

    rank: int
    parties: int
    channel: Channel
    dealer: Dealer

    def take(self, request: Request, device: torch.device | None = None) -> list[Tensor]:
        """This party's shares of one piece of correlated randomness; the same requests in the same order at all
        parties.
        """
        dealer = self.dealer
        seconds, bits = dealer.seconds_expanding + dealer.seconds_waiting, dealer.offline_bits
        shares = dealer.take(request)
        meter.count(
            offline_bits=dealer.offline_bits - bits,
            offline_seconds=dealer.seconds_expanding + dealer.seconds_waiting - seconds,
        )
        return shares if device is None or device.type == "cpu" else [share.to(device) for share in shares]

    def agree(self, what: str, facts: dict[str, str]) -> None:
        """Compare facts with all parties (1 round); AgreementError, at every party, names both sides."""
        for peer, text in sorted(self.channel.exchange_text(json.dumps(facts)).items()):
            theirs = _facts(text)
            differences = []
            for key in sorted(set(facts) | set(theirs)):
                mine, other = str(facts.get(key)), str(theirs.get(key))
                if mine != other:
                    start = len(os.path.commonprefix([mine, other]))
                    mine, other = _around(mine, start), _around(other, start)
                    differences.append(f"{key}: party {self.rank} has {mine}, party {peer} has {other}")
            if differences:
                raise AgreementError(
                    f"the parties disagree on {'; on '.join(differences)}",
                    where=what,
                    hint="all parties must run the same program with the same arguments and files",
                )

    def close(self) -> None:
        """End this party's part, within seconds."""
        # gRPC waits without a limit for a call in which a signal (Ctrl-C, SIGTERM) has raised an exception.
        leaving = threading.Thread(target=self.dealer.close, daemon=True)
        try:
            leaving.start()
            leaving.join(_LEAVE)
        except RuntimeError:  # Python 3.12 starts no thread at the interpreter's end; no call is under way then
            self.dealer.close()
        self.channel.close()


def _around(text: str, place: int) -> str:
    """A long text, cut to what surrounds a place in it."""
    first, last = max(0, place - 60), place + 40
    return ("..." if first else "") + text[first:last] + ("..." if last < len(text) else "")


def _facts(text: str) -> dict[str, str]:
    """What another party says in `agree`; anything else that it may have sent differs from every fact."""
    try:
        facts = json.loads(text)
    except ValueError:
        facts = None
    return facts if isinstance(facts, dict) else {"program": "another one"}


_session: Session | None = None


def current() -> Session:
    """The session made by `init`; EnvironmentProblem if there is none."""
    if _session is None:
        raise EnvironmentProblem("no session", hint="call hummingbird.init() first")
    return _session


def is_initialized() -> bool:
    """Whether `init` has been called."""
    return _session is not None


def init(*, dealer: str | None = None, tls: Tls | None = None, timeout: float = DEFAULT_TIMEOUT) -> Session:
    """Join the run that torchrun describes, or make a session of one party.

    dealer: address of the third party that deals correlated randomness, `host:port` or `unix:path`. It must not
        collude with any party: with a party's help it could read that run's secrets. None starts one on this host,
        for runs on one host.
    tls: certificates for the parties' channel and the dealer (mutual TLS; names `party-RANK`). Without it the channel
        is plain: use it on one host or on a network that encrypts.
    timeout: the longest silence of another party or the dealer, seconds; every wait ends by then, with an error.

    Raises PeerError, AgreementError, DealerError, EnvironmentProblem.
    """
    global _session, _leaving
    if _session is not None:
        raise EnvironmentProblem(
            "hummingbird is initialized already", hint="call hummingbird.uninit() before a second init()"
        )
    rank, parties = _environment()
    seeds: dict[str, bytes]
    client: Dealer
    if parties == 1:
        channel = Channel(0, 1, {}, {}, timeout)
        own = new_seed()
        seeds = {"prev": derive(own, "zero"), "next": derive(own, "zero"), "local": derive(own, "local")}
        client = LocalDealer(0, 1, [new_seed()])
    else:
        channel, token = _meet(rank, parties, tls, timeout)
        _watch()
        try:
            session = Session(rank, parties, channel, None)  # type: ignore[arg-type]
            session.agree("init", {"hummingbird version": VERSION, "dealer": str(dealer), "TLS": str(tls is not None)})
            seeds = _zero_sharing_seeds(channel)
            client = _join_dealer(channel, dealer, token, tls, timeout)
        except BaseException as error:
            _leave(error, channel)
            raise
    _session, _leaving = Session(rank, parties, channel, client), False
    atexit.unregister(uninit)
    atexit.register(uninit)  # the last to be registered is the first to run: before the end of a dealer started above
    _crypten.install(channel, seeds, DealerProvider(_session.take), _truncate_shared)
    return _session


def uninit() -> None:
    """Leave the run in an orderly way; `init` may be called again."""
    if _session is not None:
        _leave(None, _session.channel)


def abort(error: BaseException) -> None:
    """Leave because of an error, telling the other parties why; does nothing without a session."""
    if _session is not None:
        _leave(error, _session.channel)


def _leave(error: BaseException | None, channel: Channel) -> None:
    global _session, _leaving
    _leaving = True
    try:
        if error is not None:
            channel.abort(reason_of(error))
        if _session is not None:
            _session.close()
        channel.close()
    finally:
        _session, _leaving = None, error is not None
        _crypten.uninstall()


def reason_of(error: BaseException) -> str:
    """What other parties may read: our own errors in full, foreign ones by type (their text may hold data)."""
    return str(error) if isinstance(error, HummingbirdError) else type(error).__name__


# Private tensors ----------------------------------------------------------------------------------------------------


def cryptensor(x: Tensor | None = None, src: int = 0) -> _crypten.MPCTensor:
    """Share party `src`'s tensor among all parties: a CrypTen tensor, scale 2^16.

    x: real tensor at party `src`, of at most 8 dimensions, |x| < 2^30. Other parties give None, or a tensor whose
        shape is checked.
    Sends the shape only, in 1 round: the shares come from seeds that neighbouring parties hold. Raises InputError and
    AgreementError.
    """
    session = current()
    if not 0 <= src < session.parties:
        raise InputError(f"src={src} names no party of {session.parties}", where="cryptensor")
    if session.rank == src and not isinstance(x, Tensor):
        hint = "the party that src names gives the tensor, the others may give None"
        raise InputError(f"party {src} must give a tensor, got {type(x).__name__}", where="cryptensor", hint=hint)
    encoded = ring.encode(x, where="cryptensor") if session.rank == src and x is not None else None
    with meter.layer("input", "share", cost.sharing(session.parties, session.rank == src)):
        shape = _broadcast_shape(session, encoded, src)
        if x is not None and tuple(x.shape) != shape:
            raise AgreementError(
                f"party {session.rank} expects shape {tuple(x.shape)}, party {src} shares shape {shape}",
                where="cryptensor",
                hint="use the same batch size everywhere",
            )
        share = _crypten.ArithmeticSharedTensor.PRZS(shape).share
        return _crypten.from_share(share + encoded if encoded is not None else share)


def _broadcast_shape(session: Session, x: Tensor | None, src: int) -> tuple[int, ...]:
    words = torch.zeros(9, dtype=torch.int64)
    if x is not None:
        if x.dim() > 8:
            raise InputError(
                f"a private tensor has at most 8 dimensions, got {x.dim()}", where="cryptensor", hint="reshape it"
            )
        words[0] = x.dim()
        words[1 : 1 + x.dim()] = torch.tensor(x.shape, dtype=torch.int64)
        for peer in session.channel.others:
            session.channel.send(peer, words)
    else:
        words = session.channel.receive(src, [words])[0]
    session.channel.count_round()
    if not 0 <= int(words[0]) <= 8 or bool((words < 0).any()):
        raise AgreementError(f"party {src} sent a malformed shape", where="cryptensor")
    return tuple(int(n) for n in words[1 : 1 + int(words[0])])


def share_secret(encoded: Tensor | None, shape: tuple[int, ...], src: int) -> Tensor:
    """This party's additive share, int64, of ring elements that party `src` holds; the shape is known: nothing is
    sent.
    """
    share = _crypten.ArithmeticSharedTensor.PRZS(shape).share
    return share + encoded if current().rank == src and encoded is not None else share


def _truncate_shared(x: Any, divisor: int) -> Any:
    """CrypTen's N-party division by a public integer: exact to one unit for powers of two, CrypTen's own protocol
    otherwise.
    """
    several = isinstance(divisor, Tensor) and divisor.numel() != 1
    shift = 0 if several else int(divisor).bit_length() - 1
    if several or divisor != 1 << shift:
        return _crypten.wraps_truncate(x, divisor)
    x.share = truncate(current(), x.share.reshape(-1), shift).view(x.share.shape)
    return x


# Meeting ------------------------------------------------------------------------------------------------------------


def _environment() -> tuple[int, int]:
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


_epoch = 0


def _meet(rank: int, parties: int, tls: Tls | None, timeout: float) -> tuple[Channel, bytes]:
    """Addresses and a run token through torchrun's store (env://), then sockets between all pairs."""
    global _epoch
    wait = datetime.timedelta(seconds=timeout)
    try:
        # torch.distributed stays at the user's disposal (Gloo on CPU; NCCL beside it where there is CUDA); private
        # messages do not use it.
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, init_method="env://", timeout=wait)
            atexit.register(_end_process_group)
        store = dist.PrefixStore(f"hummingbird/{_epoch}", dist.distributed_c10d._get_default_store())
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
    except (RuntimeError, ValueError, OSError) as error:
        raise PeerError(
            f"the {parties} parties did not meet within {timeout:g} s: {str(error).splitlines()[0]}",
            where=f"party {rank}",
            hint="start as many parties as torchrun was told; MASTER_ADDR and MASTER_PORT must be reachable from all",
        ) from None
    contexts = tls.contexts() if tls else None
    return wire.connect(rank, addresses, server, token, timeout, contexts), token


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


def _zero_sharing_seeds(channel: Channel) -> dict[str, bytes]:
    """Seeds shared with the next and the previous party, by Diffie-Hellman on X25519; with two parties, one per
    direction.
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
        return derive(secret, "zero sharing", direction)

    rank, parties = channel.rank, channel.parties
    following, previous = (rank + 1) % parties, (rank - 1) % parties
    return {"next": shared(following, rank), "prev": shared(previous, previous), "local": new_seed()}


def _join_dealer(channel: Channel, dealer: str | None, token: bytes, tls: Tls | None, timeout: float) -> Dealer:
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
    )


# Ending -------------------------------------------------------------------------------------------------------------

_watching = False
_leaving = False  # set while this party leaves, and after it has left because of an error


def _watch() -> None:
    """Make every way out of this process one that the other parties hear of."""
    global _watching
    if _watching:
        return
    _watching = True
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        abort(error)
        before(kind, error, trace)

    sys.excepthook = hook
    # Launchers stop the remaining processes with SIGTERM when one has failed; the default action would end this one
    # without a word.
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second signal ends the process at once
    if _leaving:
        return  # the reason is known already, and must reach the other parties and the user
    rank = _session.rank if _session else os.environ.get("RANK", "?")
    raise PeerError(
        "this party was told to stop (SIGTERM)",
        where=f"party {rank}",
        hint="launchers do so when another party has failed: see its message",
    )
