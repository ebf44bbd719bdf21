"""The seam: the only module that imports CrypTen.

CrypTen 0.4.1 gives the ring, `MPCTensor`, and functions such as sigmoid or matmul on it. What it computes wrong is put
right in fixed_point.py and functions.py, what cannot be had is refused in refusals.py. Four things are replaced before
use, by `install`:

* an import that current PyTorch lacks (`torch.onnx._internal.registration`) gets an empty stand-in: only CrypTen's
  ONNX reader used it;
* its communicator, by one over wire/channel.py: every wait bounded, no pickle, every bit counted;
* its randomness (Mersenne Twister words from 64-bit seeds, of which torch uses 32 bits on CPU), by prg.py;
* its default provider, in which party 0 knows every triple and so learns every secret, by the dealer.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from hummingbird import cost
from hummingbird.errors import AgreementError, EnvironmentProblem, InputError, TrustError
from hummingbird.prg import Stream
from hummingbird.ring import SCALE
from hummingbird.wire import meter
from hummingbird.wire.channel import MAX_TEXT, Channel

_REGISTRATION = "torch.onnx._internal.registration"
SHIMMED = importlib.util.find_spec(_REGISTRATION) is None
if SHIMMED:
    _stand_in = types.ModuleType(_REGISTRATION)
    _stand_in.registry = object()  # type: ignore[attr-defined]
    sys.modules[_REGISTRATION] = _stand_in

try:
    import crypten
    from crypten import communicator
    from crypten.config import cfg
    from crypten.cryptensor import CrypTensor
    from crypten.encoder import FixedPointEncoder
    from crypten.gradients import AutogradBatchNorm, AutogradVariance
    from crypten.mpc import MPCTensor
    from crypten.mpc.primitives import ArithmeticSharedTensor, BinarySharedTensor, beaver
    from crypten.mpc.provider.provider import TupleProvider
    from crypten.mpc.ptype import ptype
except ImportError as error:
    raise EnvironmentProblem(
        f"CrypTen 0.4.1 cannot be imported: {error}",
        hint="SKLEARN_ALLOW_DEPRECATED_SKLEARN_PACKAGE_INSTALL=True pip install crypten==0.4.1",
    ) from error

__all__ = [
    "ArithmeticSharedTensor",
    "AutogradBatchNorm",
    "AutogradVariance",
    "BinarySharedTensor",
    "CrypTensor",
    "FixedPointEncoder",
    "MPCTensor",
    "TupleProvider",
    "beaver",
    "cfg",
    "crypten",
    "ptype",
]


# Tensors ------------------------------------------------------------------------------------------------------------


def share_of(x: MPCTensor) -> Tensor:
    """This party's additive share, int64."""
    share = x.share
    return share.tensor() if type(share).__name__ == "CUDALongTensor" else share


def scale_of(x: MPCTensor) -> int:
    """Bits of fraction of a shared tensor."""
    return int(x.encoder.scale).bit_length() - 1


def from_share(share: Tensor, scale: int = SCALE) -> MPCTensor:
    """A CrypTen tensor from this party's share, int64, with `scale` bits of fraction."""
    return MPCTensor.from_shares(share, precision=scale)


# Communicator -------------------------------------------------------------------------------------------------------


def _plain(x: Any) -> Tensor:
    x = x.data if not isinstance(x, Tensor) else x
    return x.tensor() if type(x).__name__ == "CUDALongTensor" else x


def _to_json(obj: Any) -> str:
    """Numbers, strings, sizes, lists and dictionaries of them, as text that reads back as the same."""
    obj = list(obj) if isinstance(obj, torch.Size) else obj
    try:
        text = json.dumps(obj)
        same = json.loads(text) == obj
    except (TypeError, ValueError):
        same = False
    if not same:
        raise InputError(
            f"an object of type {type(obj).__name__} cannot travel: it would take pickle, which runs what it is sent",
            where="crypten.communicator",
            hint="send numbers, text, lists and dictionaries with text for keys; tensors by broadcast, send and recv",
        )
    if len(text.encode()) > MAX_TEXT:
        raise InputError(f"an object of {len(text.encode())} bytes is too long", hint=f"at most {MAX_TEXT} bytes travel")
    return text


class _Done:
    """A request that has been served already."""

    def wait(self) -> None:
        return None


class _Receipt:
    """A tensor to be received when it is waited for, so that the sending can come first."""

    def __init__(self, receive: Callable[[], Tensor], into: Tensor) -> None:
        self._receive, self._into = receive, into

    def wait(self) -> None:
        self._into.copy_(self._receive())


class PartyCommunicator(communicator.Communicator):
    """CrypTen's communicator interface over a `Channel`; a collective is one round of frames, all to all."""

    instance: PartyCommunicator | None = None

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._name = f"party {channel.rank}"

    @classmethod
    def is_initialized(cls) -> bool:
        return cls.instance is not None

    @classmethod
    def get(cls) -> PartyCommunicator | None:
        return cls.instance

    @classmethod
    def initialize(cls, *args: Any, **kwargs: Any) -> None:
        raise EnvironmentProblem("CrypTen is started by hummingbird.init(), not by crypten.init()")

    @classmethod
    def shutdown(cls) -> None:
        raise EnvironmentProblem("CrypTen is ended by hummingbird.uninit(), not by crypten.uninit()")

    def get_rank(self) -> int:
        return self.channel.rank

    def get_world_size(self) -> int:
        return self.channel.parties

    def get_name(self) -> str:
        return self._name

    def set_name(self, name: str) -> None:
        self._name = name

    def get_distributed_backend(self) -> str:
        return "hummingbird"

    def get_ttp_rank(self) -> int:
        raise EnvironmentProblem("no party is a trusted third party", hint="the dealer is hummingbird's: init(dealer=...)")

    def _no_statistics(self) -> Any:
        raise EnvironmentProblem(
            "CrypTen's statistics are not kept: they count elements, not bytes",
            where="crypten.communicator",
            hint="with hummingbird.meter() as m: ...; print(m.table())",
        )

    print_communication_stats = get_communication_stats = reset_communication_stats = _no_statistics

    def _party(self, rank: Any, name: str, other: bool = False) -> int:
        """InputError, before anything is sent, unless `rank` is a party's, and with `other` another one's."""
        if not isinstance(rank, int) or not 0 <= rank < self.channel.parties or (other and rank == self.channel.rank):
            whom = f"no {'other ' if other else ''}party of {self.channel.parties}"
            raise InputError(f"{name}={rank} names {whom}", where=f"party {self.channel.rank}", hint="ranks begin at 0")
        return rank

    def _combine(self, tensors: list[Tensor], received: list[list[Tensor]], op: Any) -> list[Tensor]:
        out = [t.clone() for t in tensors]
        for theirs in received:
            for mine, other in zip(out, theirs, strict=True):
                if op == torch.distributed.ReduceOp.BXOR:
                    mine.bitwise_xor_(other)
                else:
                    mine.add_(other)
        return out

    def _supported(self, op: Any) -> None:
        if op not in (torch.distributed.ReduceOp.SUM, torch.distributed.ReduceOp.BXOR):
            raise EnvironmentProblem(
                f"reduction {op} is not supported", where="crypten.communicator", hint="SUM and BXOR are; or all_gather"
            )

    def _opening(
        self, tensors: list[Tensor], cost_of: Callable[[int], cost.Cost]
    ) -> contextlib.AbstractContextManager[None]:
        """Openings by the user, outside every layer, are a row of their own in the meter."""
        if meter.current_layer():
            return contextlib.nullcontext()
        return meter.layer("opening", "open", cost_of(sum(t.numel() * t.element_size() for t in tensors)))

    def all_reduce(self, input: Any, op: Any = torch.distributed.ReduceOp.SUM, batched: bool = False) -> Any:
        self._supported(op)
        tensors = [_plain(t) for t in (input if batched else [input])]
        with self._opening(tensors, lambda size: cost.opening(self.channel.parties, size)):
            out = self._combine(tensors, list(self.channel.exchange(*tensors).values()), op)
        return out if batched else out[0]

    def reduce(self, input: Any, dst: int, op: Any = torch.distributed.ReduceOp.SUM, batched: bool = False) -> Any:
        self._supported(op)
        self._party(dst, "dst")
        tensors = [_plain(t) for t in (input if batched else [input])]
        with self._opening(tensors, lambda size: cost.to_one(self.channel.parties, size, self.channel.rank != dst)):
            gathered = self._gather(tensors, dst)
        if gathered is None:
            return None
        out = self._combine(tensors, gathered, op)
        return out if batched else out[0]

    def _gather(self, tensors: list[Tensor], dst: int) -> list[list[Tensor]] | None:
        if self.channel.rank == dst:
            received = [self.channel.receive(peer, tensors) for peer in self.channel.others]
            self.channel.count_round()
            return received
        self.channel.send(dst, *tensors)
        self.channel.count_round()
        return None

    def gather(self, tensor: Any, dst: int) -> list[Any]:
        self._party(dst, "dst")
        tensor = _plain(tensor)
        received = self._gather([tensor], dst)
        if received is None:
            return [None]
        parts = [part[0] for part in received]
        return parts[:dst] + [tensor] + parts[dst:]

    def all_gather(self, tensor: Any) -> list[Tensor]:
        tensor = _plain(tensor)
        received = self.channel.exchange(tensor)
        return [received[rank][0] if rank in received else tensor for rank in range(self.channel.parties)]

    def scatter(self, scatter_list: Any, src: int, size: Any = None, device: Any = None) -> Tensor:
        """Party `src` gives a tensor for each party; the others give such a list too, or the `size` of theirs, int64."""
        rank = self.channel.rank
        if self._party(src, "src") == rank or size is None:
            if not isinstance(scatter_list, (list, tuple)) or len(scatter_list) != self.channel.parties:
                hint = "one tensor for each party, or size= at those that receive"
                raise InputError(f"party {rank} gives no list for {self.channel.parties}", where="scatter", hint=hint)
            mine = _plain(scatter_list[rank])
        else:
            mine = torch.empty(size, dtype=torch.long, device=device)
        if rank == src:
            for peer in self.channel.others:
                self.channel.send(peer, _plain(scatter_list[peer]))
        else:
            mine = self.channel.receive(src, [mine])[0]
        self.channel.count_round()
        return mine

    def broadcast(self, input: Any, src: int, group: Any = None, batched: bool = False) -> Any:
        """Party `src`'s values, in place at the others."""
        self._party(src, "src")
        tensors = [_plain(t) for t in (input if batched else [input])]
        if self.channel.rank == src:
            for peer in self.channel.others:
                self.channel.send(peer, *tensors)
        else:
            if any(0 in t.stride() and t.numel() > 1 for t in tensors):
                raise InputError("an expanded tensor cannot take other values", where="broadcast", hint="x.clone()")
            for mine, theirs in zip(tensors, self.channel.receive(src, tensors), strict=True):
                mine.copy_(theirs)
        self.channel.count_round()
        return input

    def send(self, tensor: Any, dst: int) -> None:
        self.channel.send(self._party(dst, "dst", other=True), _plain(tensor))

    def recv(self, tensor: Any, src: int | None = None) -> Tensor:
        return self.channel.receive(self._party(src, "src", other=True), [_plain(tensor)])[0]

    def isend(self, tensor: Any, dst: int) -> _Done:
        self.send(tensor, dst)
        return _Done()

    def irecv(self, tensor: Any, src: int | None = None) -> _Receipt:
        self._party(src, "src", other=True)
        return _Receipt(lambda: self.recv(tensor, src), _plain(tensor))

    def barrier(self) -> None:
        self.channel.exchange_text("barrier")

    def send_obj(self, obj: Any, dst: int, group: Any = None) -> None:
        """An object as JSON text of at most 1 MiB."""
        data = torch.frombuffer(bytearray(_to_json(obj).encode()), dtype=torch.uint8)
        self.send(torch.tensor(data.numel()), dst)
        self.send(data, dst)

    def recv_obj(self, src: int, group: Any = None) -> Any:
        """What party `src` sends by `send_obj`."""
        size = int(self.recv(torch.tensor(0), src))
        if not 0 < size <= MAX_TEXT:
            raise AgreementError(f"party {src} announces an object of {size} bytes", where=f"party {self.channel.rank}")
        return _from_json(self.recv(torch.empty(size, dtype=torch.uint8), src).numpy().tobytes(), src)

    def broadcast_obj(self, obj: Any, src: int, group: Any = None) -> Any:
        """An object as JSON text of at most 1 MiB."""
        text = _to_json(obj) if self._party(src, "src") == self.channel.rank else "null"
        received = self.channel.exchange_text(text)
        return obj if self.channel.rank == src else _from_json(received[src].encode(), src)


def _from_json(data: bytes, src: int) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise AgreementError(f"party {src} sent an object that is no JSON text", where="crypten.communicator") from None


# Randomness ---------------------------------------------------------------------------------------------------------


class _EveryDevice(dict[Any, Stream]):
    """CrypTen keeps a generator per device; here one stream serves all, and words move to the device."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = stream

    def __missing__(self, device: Any) -> Stream:
        return self.stream


class _Global(dict[Any, torch.Generator]):
    """The generator that all parties share, for what is public among them: which elements a dropout drops.

    Its seed is the sum of a word of every party: 64 bits and a round, at the first use.
    """

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def __missing__(self, device: Any) -> torch.Generator:
        seed = crypten.generators["local"][None].words(1)
        for theirs in self._channel.exchange(seed).values():
            seed = seed + theirs[0]
        self[device] = torch.Generator(device=device).manual_seed(int(seed))
        return self[device]


def _ring_element(size: Any, ring_size: int = 2**64, generator: Stream | None = None, **kwargs: Any) -> Tensor:
    return _kbit(size, ring_size.bit_length() - 1, generator, **kwargs)


def _kbit(size: Any, bitlength: int | None = None, generator: Stream | None = None, **kwargs: Any) -> Tensor:
    """Replaces CrypTen's two generators: uniform words of `bitlength` bits (64: the whole ring) from prg.py."""
    stream = generator or crypten.generators["local"][None]
    shape = (size,) if isinstance(size, int) else tuple(size)
    words = stream.words(*shape)
    if bitlength is not None and bitlength < 64:
        words = words & ((1 << bitlength) - 1)
    device = kwargs.get("device")
    return words.to(device) if device is not None else words


_RANDOM_USERS = (
    "common.rng",
    "mpc.primitives.arithmetic",
    "mpc.primitives.binary",
    "mpc.provider.tfp_provider",
    "mpc.provider.ttp_provider",
)


def _refuse_first_party(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise TrustError(
        "CrypTen's trusted-first-party provider lets party 0 know every secret and is not available",
        hint="hummingbird.init() uses a dealer instead; it implements the same interface",
    )


def install(
    channel: Channel,
    seeds: dict[str, bytes],
    provider: TupleProvider,
    truncate: Callable[[ArithmeticSharedTensor, int], ArithmeticSharedTensor],
    device: torch.device | str = "cpu",
) -> None:
    """Put our communicator, randomness, provider and truncation in place of CrypTen's.

    seeds: `prev`, `next` (shared with the neighbouring parties), `local` (this party's own).
    """
    communicator.DistributedCommunicator = PartyCommunicator
    PartyCommunicator.instance = PartyCommunicator(channel)
    for name in ("prev", "next", "local"):
        crypten.generators[name] = _EveryDevice(Stream(seeds[name], device))
    crypten.generators["global"] = _Global(channel)
    for module in _RANDOM_USERS:
        users = sys.modules[f"crypten.{module}"]
        for name, function in (("generate_random_ring_element", _ring_element), ("generate_kbit_random_tensor", _kbit)):
            if hasattr(users, name):
                setattr(users, name, function)
    first_party = sys.modules["crypten.mpc.provider.tfp_provider"].TrustedFirstParty
    for name in TupleProvider.TRACEABLE_FUNCTIONS:
        setattr(first_party, name, _refuse_first_party)
    crypten.mpc.get_default_provider = lambda: provider
    beaver.truncate = truncate


@contextlib.contextmanager
def lent(
    channel: Channel,
    seeds: dict[str, bytes],
    provider: TupleProvider,
    truncate: Callable[[ArithmeticSharedTensor, int], ArithmeticSharedTensor],
) -> Iterator[None]:
    """`install` for the time of this block; what was in place before, streams included, comes back as it was."""
    kept = PartyCommunicator.instance, dict(crypten.generators), crypten.mpc.get_default_provider, beaver.truncate
    install(channel, seeds, provider, truncate)
    try:
        yield
    finally:
        PartyCommunicator.instance, generators, crypten.mpc.get_default_provider, beaver.truncate = kept
        crypten.generators.update(generators)


def uninstall() -> None:
    """End CrypTen's session; the weak parts stay replaced."""
    PartyCommunicator.instance = None
