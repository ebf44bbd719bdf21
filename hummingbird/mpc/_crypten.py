"""The seam: the only module that imports CrypTen.

CrypTen 0.4.1 gives the ring, `MPCTensor`, and functions such as sigmoid or matmul on it. Four things are replaced
before use, by `install`:

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
from hummingbird.errors import EnvironmentProblem, InputError, TrustError
from hummingbird.prg import Stream
from hummingbird.ring import SCALE
from hummingbird.wire import meter
from hummingbird.wire.channel import Channel

_REGISTRATION = "torch.onnx._internal.registration"
SHIMMED = importlib.util.find_spec(_REGISTRATION) is None
if SHIMMED:
    _stand_in = types.ModuleType(_REGISTRATION)
    _stand_in.registry = object()  # type: ignore[attr-defined]
    sys.modules[_REGISTRATION] = _stand_in

try:
    import crypten
    from crypten import communicator
    from crypten.mpc import MPCTensor
    from crypten.mpc.primitives import ArithmeticSharedTensor, BinarySharedTensor, beaver
    from crypten.mpc.provider.provider import TupleProvider
except ImportError as error:
    raise EnvironmentProblem(
        f"CrypTen 0.4.1 cannot be imported: {error}",
        hint="SKLEARN_ALLOW_DEPRECATED_SKLEARN_PACKAGE_INSTALL=True pip install crypten==0.4.1",
    ) from error

wraps_truncate = beaver.truncate  # CrypTen's own, for divisors that are no power of two

__all__ = ["ArithmeticSharedTensor", "BinarySharedTensor", "MPCTensor", "TupleProvider", "crypten", "wraps_truncate"]


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


class _Done:
    """A request that has been served already."""

    def wait(self) -> None:
        return None


def _plain(x: Any) -> Tensor:
    x = x.data if not isinstance(x, Tensor) else x
    return x.tensor() if type(x).__name__ == "CUDALongTensor" else x


def _to_json(obj: Any) -> str:
    """Sizes, numbers, strings and lists of them; anything else would need pickle and is refused."""
    return json.dumps(list(obj) if isinstance(obj, torch.Size) else obj)


class PartyCommunicator(communicator.Communicator):
    """CrypTen's communicator interface over a `Channel`; a collective is one round of frames, all to all."""

    instance: PartyCommunicator | None = None

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.reset_communication_stats()

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
        cls.instance = None

    def get_rank(self) -> int:
        return self.channel.rank

    def get_world_size(self) -> int:
        return self.channel.parties

    def get_name(self) -> str:
        return f"party {self.channel.rank}"

    def _combine(self, tensors: list[Tensor], received: list[list[Tensor]], op: Any) -> list[Tensor]:
        out = [t.clone() for t in tensors]
        for theirs in received:
            for mine, other in zip(out, theirs, strict=True):
                if op == torch.distributed.ReduceOp.BXOR:
                    mine.bitwise_xor_(other)
                elif op == torch.distributed.ReduceOp.SUM:
                    mine.add_(other)
                else:
                    raise EnvironmentProblem(f"reduction {op} is not supported", where="PartyCommunicator")
        return out

    def _opening(
        self, tensors: list[Tensor], cost_of: Callable[[int], cost.Cost]
    ) -> contextlib.AbstractContextManager[None]:
        """Openings by the user, outside every layer, are a row of their own in the meter."""
        if meter.current_layer():
            return contextlib.nullcontext()
        return meter.layer("opening", "open", cost_of(sum(t.numel() * t.element_size() for t in tensors)))

    def all_reduce(self, input: Any, op: Any = torch.distributed.ReduceOp.SUM, batched: bool = False) -> Any:
        tensors = [_plain(t) for t in (input if batched else [input])]
        with self._opening(tensors, lambda size: cost.opening(self.channel.parties, size)):
            out = self._combine(tensors, list(self.channel.exchange(*tensors).values()), op)
        return out if batched else out[0]

    def _check_rank(self, dst: object) -> None:
        if type(dst) is not int or not 0 <= dst < self.channel.parties:
            hint = f"the rank of the party that is to learn the value, 0 to {self.channel.parties - 1}"
            raise InputError(f"dst={dst!r} names no party of {self.channel.parties}", where="get_plain_text", hint=hint)

    def reduce(self, input: Any, dst: int, op: Any = torch.distributed.ReduceOp.SUM, batched: bool = False) -> Any:
        self._check_rank(dst)
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

    def scatter(self, scatter_list: list[Any], src: int, size: Any = None, device: Any = None) -> Tensor:
        mine = _plain(scatter_list[self.channel.rank])
        if self.channel.rank == src:
            for peer in self.channel.others:
                self.channel.send(peer, _plain(scatter_list[peer]))
            return mine
        return self.channel.receive(src, [mine if size is None else torch.empty(size, dtype=torch.long)])[0]

    def broadcast(self, input: Any, src: int, group: Any = None, batched: bool = False) -> Any:
        tensors = [_plain(t) for t in (input if batched else [input])]
        if self.channel.rank == src:
            for peer in self.channel.others:
                self.channel.send(peer, *tensors)
        else:
            for mine, theirs in zip(tensors, self.channel.receive(src, tensors), strict=True):
                mine.copy_(theirs)
        return input

    def send(self, tensor: Any, dst: int) -> None:
        self.channel.send(dst, _plain(tensor))

    def recv(self, tensor: Any, src: int | None = None) -> Tensor:
        assert src is not None, "name the sender: src=RANK"
        return self.channel.receive(src, [_plain(tensor)])[0]

    def isend(self, tensor: Any, dst: int) -> _Done:
        self.send(tensor, dst)
        return _Done()

    def irecv(self, tensor: Any, src: int | None = None) -> _Done:
        _plain(tensor).copy_(self.recv(tensor, src))
        return _Done()

    def barrier(self) -> None:
        self.channel.exchange_text("barrier")

    def broadcast_obj(self, obj: Any, src: int, group: Any = None) -> Any:
        received = self.channel.exchange_text(_to_json(obj) if self.channel.rank == src else "null")
        return obj if self.channel.rank == src else json.loads(received[src])


# Randomness ---------------------------------------------------------------------------------------------------------


class _EveryDevice(dict[Any, Stream]):
    """CrypTen keeps a generator per device; here one stream serves all, and words move to the device."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = stream

    def __missing__(self, device: Any) -> Stream:
        return self.stream


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
    """Put our communicator, randomness, provider and N-party truncation in place of CrypTen's.

    seeds: `prev`, `next` (shared with the neighbouring parties), `local` (this party's own).
    """
    communicator.DistributedCommunicator = PartyCommunicator
    PartyCommunicator.instance = PartyCommunicator(channel)
    for name in ("prev", "next", "local"):
        crypten.generators[name] = _EveryDevice(Stream(seeds[name], device))
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
