"""The adapter: the only module that imports CrypTen.

CrypTen 0.4.1 provides `MPCTensor`, with functions such as sigmoid or matmul on shares. fixed_point.py and functions.py
repair wrong results, run.py refuses unsafe functions. Before use, four parts of CrypTen are replaced, the first
one at import, the others by `install`:

* a module that current PyTorch lacks (`torch.onnx._internal.registration`), by an empty stand-in: only CrypTen's ONNX
  reader used it;
* its communicator, by one over our channel (communicator.py);
* its randomness (Mersenne Twister words from 64-bit seeds, of which torch uses 32 bits on CPU), by prg.py;
* its default provider, in which party 0 knows every triple and so learns every secret, by the dealer.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hummingbird.channel.channel import Channel
from hummingbird.crypten.communicator import PartyCommunicator
from hummingbird.errors import EnvironmentProblem, TrustError
from hummingbird.mpc.session.session import ZeroSharing
from hummingbird.prg import Stream
from hummingbird.ring import SCALE

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
    from crypten.gradients import AutogradBatchNorm, AutogradDropout, AutogradFeatureDropout, AutogradVariance
    from crypten.mpc import MPCTensor
    from crypten.mpc.primitives import ArithmeticSharedTensor, BinarySharedTensor, beaver
    from crypten.mpc.provider.provider import TupleProvider
    from crypten.mpc.ptype import ptype
except ImportError as error:
    raise EnvironmentProblem(
        f"CrypTen 0.4.1 cannot be imported: {error}",
        hint="pip install crypten==0.4.1 sklearn==0.0",
    ) from error

__all__ = [
    "ArithmeticSharedTensor",
    "AutogradBatchNorm",
    "AutogradDropout",
    "AutogradFeatureDropout",
    "AutogradVariance",
    "BinarySharedTensor",
    "CrypTensor",
    "FixedPointEncoder",
    "MPCTensor",
    "PartyCommunicator",
    "TupleProvider",
    "beaver",
    "cfg",
    "communicator",
    "crypten",
    "ptype",
]


# Tensors ------------------------------------------------------------------------------------------------------------


def _inside(x: MPCTensor) -> ArithmeticSharedTensor:
    """Return the tensor of arithmetic shares that a CrypTen tensor wraps, as `x._tensor` does, but faster.

    At every ordinary access to an attribute CrypTen reads its settings, which takes longer than a layer's work.
    """
    return object.__getattribute__(x, "_tensor")


def share_of(x: MPCTensor) -> Tensor:
    """Return the additive share that this party holds of a CrypTen tensor, int64, of the tensor's shape."""
    share = _inside(x).share
    return share.tensor() if type(share).__name__ == "CUDALongTensor" else share


def scale_of(x: MPCTensor) -> int:
    """Return how many bits of fraction a shared tensor of CrypTen has."""
    return int(_inside(x).encoder.scale).bit_length() - 1


def from_share(share: Tensor, scale: int = SCALE) -> MPCTensor:
    """Return a CrypTen tensor that holds this party's additive share of a value.

    share: int64, of the value's shape. scale: the value's bits of fraction.
    `MPCTensor.from_shares` returns the same, but draws a sharing of zero for an empty tensor first.
    """
    x = MPCTensor.__new__(MPCTensor)
    x.requires_grad = False
    CrypTensor._reset_gradients(x)
    x._tensor, x.ptype = ArithmeticSharedTensor.from_shares(share, precision=scale), ptype.arithmetic
    return x


# Randomness ---------------------------------------------------------------------------------------------------------


class _EveryDevice(dict[Any, Stream]):
    """A dictionary that gives the same random stream for every device that is asked for.

    It replaces CrypTen's dictionary, which has a generator for each device. The stream draws numbers on its own device;
    they are then copied to the device where they are needed.
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = stream

    def __missing__(self, device: Any) -> Stream:
        return self.stream


class _Global(dict[Any, Stream]):
    """A dictionary from a device to the random stream that all parties share, which is made at the first use: 1 round.

    All parties draw equal numbers from it, for choices that may be public, such as the elements that a dropout drops.
    The stream's key is the xor of one key from each party. size: bytes of a key. device: where the stream draws.
    """

    def __init__(self, channel: Channel, size: int, device: torch.device | str) -> None:
        super().__init__()
        self._channel, self._size, self._device = channel, size, device

    def __missing__(self, device: Any) -> Stream:
        key = crypten.generators["local"][None].bytes(self._size).cpu()
        for theirs in self._channel.exchange(key).values():
            key = key ^ theirs[0]
        self[device] = Stream(key.numpy().tobytes(), self._device)
        return self[device]


def _ring_element(size: Any, ring_size: int = 2**64, generator: Stream | None = None, **kwargs: Any) -> Tensor:
    return _kbit(size, ring_size.bit_length() - 1, generator, **kwargs)


def _kbit(size: Any, bitlength: int | None = None, generator: Stream | None = None, **kwargs: Any) -> Tensor:
    """Draw uniform random ring elements below 2^bitlength, as an int64 tensor; replaces a function of CrypTen.

    size: the tensor's shape, or its length. bitlength: 64 if None, the whole ring. generator: the stream of prg.py to
    draw from; None: this party's own. kwargs: may have `device`, the device of the result.
    """
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


def refuse_validation(*args: Any) -> None:
    """Raise TrustError if CrypTen's validation mode is on, which opens every value to all parties. args: ignored."""
    if crypten.cfg.debug.validation_mode:
        raise TrustError(
            "CrypTen's validation mode opens every value to all parties, to check results, and is not available",
            where="crypten.cfg.debug.validation_mode",
            hint="set it to False; hummingbird.simulate compares with torch where the data may be seen",
        )


def install(channel: Channel, zeros: ZeroSharing, local: bytes, device: torch.device | str = "cpu") -> None:
    """Make CrypTen communicate over `channel`, and draw its random numbers from streams of this package.

    zeros: the two streams that this party shares with its neighbouring parties. local: the seed of the stream that this
    party has for itself. device: where the random numbers are drawn.
    """
    sys.modules["crypten.debug"].validate_correctness = refuse_validation  # type: ignore[attr-defined]
    communicator.DistributedCommunicator = PartyCommunicator
    PartyCommunicator.instance = PartyCommunicator(channel)
    for name, stream in (("prev", zeros.previous), ("next", zeros.following), ("local", Stream(local, device))):
        crypten.generators[name] = _EveryDevice(stream)
    crypten.generators["global"] = _Global(channel, len(local), device)
    for module in _RANDOM_USERS:
        users = sys.modules[f"crypten.{module}"]
        for name, function in (("generate_random_ring_element", _ring_element), ("generate_kbit_random_tensor", _kbit)):
            if hasattr(users, name):
                setattr(users, name, function)
    first_party = sys.modules["crypten.mpc.provider.tfp_provider"].TrustedFirstParty
    for name in TupleProvider.TRACEABLE_FUNCTIONS:
        setattr(first_party, name, _refuse_first_party)


@contextlib.contextmanager
def lent(channel: Channel, zeros: ZeroSharing, local: bytes) -> Iterator[None]:
    """Return a context in which CrypTen communicates over `channel`, and draws its random numbers from these streams.

    zeros, local: as for `install`. At the context's end CrypTen has its former communicator and streams again.
    """
    kept = PartyCommunicator.instance, dict(crypten.generators)
    install(channel, zeros, local)
    try:
        yield
    finally:
        PartyCommunicator.instance, generators = kept
        crypten.generators.update(generators)


def uninstall() -> None:
    """End CrypTen's session in this process. The functions of CrypTen that this package replaced stay replaced."""
    PartyCommunicator.instance = None
