"""A run of the parties: who takes part, how they reach each other and the dealer, and what they must agree on.

`init()` reads torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), meets the other parties, agrees
pairwise on seeds for zero sharings (X25519, so that a listener on the wire cannot derive them), joins the dealer, and
puts our parts in place of CrypTen's. Without torchrun's variables it makes a session of one party, which computes the
same and hides nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import itertools
import math
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

from hummingbird import cost
from hummingbird.errors import AgreementError, ConfigError, EnvironmentProblem, HummingbirdError, InputError, PeerError
from hummingbird.kernels import heap
from hummingbird.mpc import _crypten, fixed_point, functions, inputs, refusals
from hummingbird.mpc.correlations import Request
from hummingbird.mpc.dealer.local import LocalDealer
from hummingbird.mpc.division import divide
from hummingbird.mpc.meeting import agree, environment, join_dealer, meet, open_store, zero_sharing_seeds
from hummingbird.mpc.protocols.truncation import truncate
from hummingbird.mpc.provider import DealerProvider
from hummingbird.prg import CIPHERS, SEED_BYTES, derive, new_seed
from hummingbird.version import VERSION
from hummingbird.wire import meter
from hummingbird.wire.channel import Channel
from hummingbird.wire.service import Tls

DEFAULT_TIMEOUT = 120.0
_LEAVE = 2.0  # seconds for the dealer to hear that this party leaves
_START = "for a run between parties: torchrun --standalone --nproc_per_node=2 SCRIPT.py"


class Supply(Protocol):
    """The material of one slice of a net's run, in order."""

    def take(self, request: Request) -> list[Tensor]:
        """This party's shares."""


class Dealer(Protocol):
    """What a session asks of a dealer's client, which counts when it hands out (`mpc.dealer.ahead.Account`)."""

    seconds_expanding: float
    seconds_waiting: float
    dealer_seconds: float
    offline_bits: int
    slice_shape: tuple[int, ...] | None

    def take(self, request: Request) -> list[Tensor]:
        """This party's shares, outside of a net's slices."""

    def reserve(self, requests: Sequence[Request] | None) -> Supply:
        """The material of a net's next slice; None: its requests are not known yet."""

    def bind(self, name: str, digest: bytes) -> None:
        """Use this material with what has the digest only: a mask that outlives a run must not meet two secrets."""

    def admit(self, facts: dict[str, str], shapes: Sequence[tuple[int, ...]]) -> None:
        """DealerError unless there is material for a net with these facts, on slices of these shapes."""

    def close(self) -> None: ...


# The supply of the slice that this computation is at, and what it has taken (two slices take turns).
_slice: contextvars.ContextVar[tuple[Supply, list[Request]] | None] = contextvars.ContextVar("slice", default=None)


@dataclass
class Session:
    """This party's place in a run: its rank, the channel to the others, and the dealer."""

    rank: int
    parties: int
    channel: Channel
    dealer: Dealer
    device: torch.device = torch.device("cpu")  # where this party's shares are
    fixed_keys: Iterator[int] = field(default_factory=itertools.count, repr=False)  # one for each private weight

    def take(self, request: Request) -> list[Tensor]:
        """This party's shares of one piece of correlated randomness; the same requests in the same order at all
        parties.
        """
        dealer = self.dealer
        before = dealer.offline_bits, dealer.seconds_waiting, dealer.seconds_expanding, dealer.dealer_seconds
        slice_ = _slice.get()
        if slice_ is None:
            shares = dealer.take(request)
        else:
            slice_[1].append(request)
            shares = slice_[0].take(request)
        meter.count(
            offline_bits=dealer.offline_bits - before[0],
            offline_seconds=dealer.seconds_waiting - before[1],
            expanding_seconds=dealer.seconds_expanding - before[2],
            dealer_seconds=dealer.dealer_seconds - before[3],
        )
        return [share.to(self.device) for share in shares]

    @contextlib.contextmanager
    def supplied_by(self, supply: Supply) -> Iterator[list[Request]]:
        """Take from this supply in this block; what was taken is in the list."""
        taken: list[Request] = []
        token = _slice.set((supply, taken))
        try:
            yield taken
        finally:
            _slice.reset(token)

    def agree(self, what: str, facts: dict[str, str]) -> None:
        """Compare facts with all parties (1 round); AgreementError, at every party, names both sides."""
        agree(self.channel, what, facts)

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


_session: Session | None = None


def current() -> Session:
    """The session made by `init`; EnvironmentProblem if there is none."""
    if _session is None:
        raise EnvironmentProblem("no session", hint="call hummingbird.init() first")
    return _session


def is_initialized() -> bool:
    """Whether `init` has been called."""
    return _session is not None


@contextlib.contextmanager
def stand_in(session: Session) -> Iterator[None]:
    """Let `current()` be another session for the time of this block, for CrypTen's functions too (mpc/rehearsal.py)."""
    global _session
    zeros = dict.fromkeys(("prev", "next", "local"), bytes(SEED_BYTES))  # nobody hears what they would hide
    before, _session = _session, session
    _mend()
    try:
        with _crypten.lent(session.channel, zeros, DealerProvider(session.take), _truncate_shared):
            yield
    finally:
        _session = before


def init(
    *,
    dealer: str | None = None,
    store: str | os.PathLike[str] | None = None,
    tls: Tls | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    device: torch.device | str = "cpu",
) -> Session:
    """Join the run that torchrun describes, or, with a warning, make a session of one party.

    dealer: address of the third party that deals correlated randomness, `host:port` or `unix:path`. It must not
        collude with any party: with a party's help it could read that run's secrets. None starts one on this host,
        for runs on one host.
    store: instead of a dealer, what `python -m hummingbird deal` has dealt in advance: this party's folder, or the one
        that holds party-RANK; {rank} is replaced. Whoever can read two parties' folders can read their secrets.
    tls: certificates for the parties' channel and the dealer (mutual TLS; names `party-RANK`). Without it the channel
        is plain: use it on one host or on a network that encrypts.
    timeout: the longest silence of another party or the dealer, seconds; every wait ends by then, with an error.
    device: where this party's shares are, "cpu" or "cuda"; of one type at all parties, for it decides how seeds are
        expanded (prg.py).

    Raises ConfigError for options, PeerError, AgreementError, DealerError, EnvironmentProblem, and TrustError in
    CrypTen's validation mode.
    """
    global _session, _leaving
    if _session is not None:
        raise EnvironmentProblem(
            "hummingbird is initialized already", hint="call hummingbird.uninit() before a second init()"
        )
    if dealer is not None and store is not None:
        raise ConfigError(
            "a dealer and a store are given", where="init", hint="randomness comes from one of them: give exactly one"
        )
    refusals.refuse_foreign_session()
    _crypten.refuse_validation()
    rank, parties = environment()
    device = _checked_options(dealer, tls, timeout, device)
    if parties == 1 and dealer is not None:
        raise ConfigError("a dealer is given, but this process is the only party", where="init", hint=_START)
    heap.keep()
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EnvironmentProblem("this torch finds no CUDA device", where="init", hint='leave device="cpu"')
    cipher = "aes-128-ctr" if device.type == "cpu" else "chacha20"
    size = CIPHERS[cipher]
    seeds: dict[str, bytes]
    client: Dealer
    if parties == 1:
        warnings.warn(f"one party: nothing is sent and nothing is hidden; {_START}", stacklevel=2)
        channel = Channel(0, 1, {}, {}, timeout)
        own = new_seed(size)
        seeds = {"prev": derive(own, "zero"), "next": derive(own, "zero"), "local": derive(own, "local")}
        if store is None:
            client = LocalDealer(0, 1, [new_seed(size)], device)
        else:
            client = open_store(channel, store, timeout, device)
    else:
        channel, token = meet(rank, parties, tls, timeout)
        _watch()
        try:
            session = Session(rank, parties, channel, None)  # type: ignore[arg-type]
            facts = {"dealer": str(dealer), "store": str(store is not None), "TLS": str(tls is not None)}
            facts["cipher"] = cipher
            session.agree("init", {"hummingbird version": VERSION, **facts})
            seeds = zero_sharing_seeds(channel, size)
            if store is None:
                client = join_dealer(channel, dealer, token, tls, timeout, cipher, device)
            else:
                client = open_store(channel, store, timeout, device)
        except BaseException as error:
            _leave(error, channel)
            raise
    _session, _leaving = Session(rank, parties, channel, client, device), False
    atexit.unregister(uninit)
    atexit.register(uninit)  # the last to be registered is the first to run: before the end of a dealer started above
    _mend()
    _crypten.install(channel, seeds, DealerProvider(_session.take), _truncate_shared, device)
    return _session


def _mend() -> None:
    """Put right what CrypTen computes wrong, and refuse what it cannot do here."""
    fixed_point.install()
    functions.install()
    refusals.install(cryptensor, lambda what, facts: current().agree(what, facts))


def _checked_options(dealer: object, tls: object, timeout: object, device: object) -> torch.device:
    """The device, once all options are of the right kind; else ConfigError."""
    if dealer is not None and not isinstance(dealer, str):
        raise ConfigError(f"dealer={dealer!r}", where="init", hint='an address, "host:port" or "unix:path"')
    if tls is not None and not isinstance(tls, Tls):
        hint = "hummingbird.wire.service.Tls(cert=..., key=..., ca=...)"
        raise ConfigError(f"tls is a {type(tls).__name__}", where="init", hint=hint)
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not (number and math.isfinite(timeout) and timeout > 0):  # type: ignore[arg-type, operator]
        raise ConfigError(f"timeout={timeout!r}", where="init", hint="seconds, a positive number")
    try:
        found = torch.device(device)  # type: ignore[call-overload]
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda", "meta"):  # meta: shapes only
        raise ConfigError(f"device={device!r}", where="init", hint='"cpu" or "cuda"')
    return found


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


def cryptensor(x: Tensor | None = None, src: int = 0, limit: float | None = None) -> _crypten.MPCTensor:
    """Share party `src`'s tensor among all parties: a CrypTen tensor, scale 2^16.

    x: real tensor at party `src`, of at most 8 dimensions, |x| < 2^30. Other parties give None, or a tensor whose
        shape is checked.
    limit: the largest |x| that the windows were made for, such as a private net's `input_range`: party `src` shares
        nothing that has a larger value.
    Sends the shape only, in 1 round: the shares come from seeds that neighbouring parties hold. Raises InputError and
    AgreementError.
    """
    session = current()
    if type(src) is not int or not 0 <= src < session.parties:
        hint = f"the rank of the party that has the tensor, 0 to {session.parties - 1}"
        raise InputError(f"src={src!r} names no party of {session.parties}", where="cryptensor", hint=hint)
    inputs.check_limit(limit, "cryptensor")
    if session.rank == src and not isinstance(x, Tensor):
        hint = "the party that src names gives the tensor, the others may give None"
        raise InputError(f"party {src} must give a tensor, got {type(x).__name__}", where="cryptensor", hint=hint)
    if session.rank != src and not (x is None or isinstance(x, Tensor)):
        raise InputError(f"expected a tensor or None, got {type(x).__name__}", where="cryptensor")
    encoded = inputs.encoded(x, "cryptensor", limit) if session.rank == src else None
    with meter.layer("input", "share", cost.sharing(session.parties, session.rank == src)):
        shape = _broadcast_shape(session, encoded, src)
        if x is not None and tuple(x.shape) != shape:
            raise AgreementError(
                f"party {session.rank} expects shape {tuple(x.shape)}, party {src} shares shape {shape}",
                where="cryptensor",
                hint="use the same batch size everywhere",
            )
        share = _crypten.ArithmeticSharedTensor.PRZS(shape, device=session.device).share
        return _crypten.from_share(share + encoded.to(session.device) if encoded is not None else share)


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
    share = _crypten.ArithmeticSharedTensor.PRZS(shape, device=current().device).share
    return share + encoded if current().rank == src and encoded is not None else share


def _truncate_shared(x: Any, divisor: int) -> Any:
    """CrypTen's division by a public integer, in place: exact to one unit."""
    share, shift = x.share.reshape(-1), divisor.bit_length() - 1
    if divisor == 1 << shift:
        share = truncate(current(), share, shift)
    else:
        share = divide(current(), share, divisor)
    x.share = share.view(x.share.shape)
    return x


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
