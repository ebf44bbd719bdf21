"""CrypTen's provider interface over the dealer: triples, squares, B2A bits and wraps for CrypTen's own functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hummingbird.crypten.adapter import ArithmeticSharedTensor, BinarySharedTensor, TupleProvider, crypten
from hummingbird.errors import EnvironmentProblem
from hummingbird.mpc.correlations.provider import SharedBit, WordTriple, Wraps
from hummingbird.mpc.protocols.beaver import SquarePair, Triple
from hummingbird.mpc.session import session as sessions


class DealerProvider(TupleProvider):
    """CrypTen's provider: its methods make requests to the current session's dealer or supply."""

    NAME = "dealer"

    def _no_cache(self, *args: Any, **kwargs: Any) -> Any:
        raise EnvironmentProblem(
            "CrypTen's cache of randomness is not available",
            where="crypten.provider",
            hint="`python -m hummingbird deal` deals in advance, hummingbird.init(store=...) uses it",
        )

    trace = trace_once = fill_cache = save_cache = load_cache = _no_cache

    def generate_additive_triple(
        self, size0: Any, size1: Any, op: str, device: Any = None, *args: Any, **kwargs: Any
    ) -> list[ArithmeticSharedTensor]:
        """Request shares of uniform a and b, and of c = op(a, b, **kwargs), in Z_2^64.

        size0, size1: shapes of a and b, as torch's `op` takes them.
        """
        options = {name: _plain(value) for name, value in kwargs.items()}
        return _ring(sessions.current().correlation(Triple(tuple(size0), tuple(size1), op, options)), device)

    def square(self, size: Any, device: Any = None) -> list[ArithmeticSharedTensor]:
        """Shares of a uniform r and of r^2."""
        return _ring(sessions.current().correlation(SquarePair(tuple(size))), device)

    def generate_binary_triple(self, size0: Any, size1: Any, device: Any = None) -> list[BinarySharedTensor]:
        """Xor shares of uniform words a and b, and of a & b."""
        shares = sessions.current().correlation(WordTriple(tuple(size0), tuple(size1)))
        return [_binary(share, device) for share in shares]

    def wrap_rng(self, size: Any, device: Any = None) -> list[ArithmeticSharedTensor]:
        """Shares of a uniform r, and of the number of wraps in the sum of r's shares."""
        return _ring(sessions.current().correlation(Wraps(tuple(size))), device)

    def B2A_rng(self, size: Any, device: Any = None) -> tuple[ArithmeticSharedTensor, BinarySharedTensor]:
        """A random bit for each element, shared additively and by xor."""
        bit = sessions.current().correlation(SharedBit(tuple(size)))
        return _arithmetic(bit.arithmetic, device), _binary(bit.binary, device)


def _arithmetic(share: Tensor, device: Any) -> ArithmeticSharedTensor:
    return ArithmeticSharedTensor.from_shares(share, precision=0, device=device)


def _binary(share: Tensor, device: Any) -> BinarySharedTensor:
    return BinarySharedTensor.from_shares(share, precision=0, device=device)


def _ring(shares: Sequence[Tensor], device: Any) -> list[ArithmeticSharedTensor]:
    return [_arithmetic(share, device) for share in shares]


def _plain(value: Any) -> Any:
    """An option of torch's convolutions as a JSON value."""
    return [int(v) for v in value] if isinstance(value, (tuple, list)) else int(value)


def install() -> None:
    """Make this module's provider the source of CrypTen's correlated randomness, for this process."""
    provider = DealerProvider()
    crypten.mpc.get_default_provider = lambda: provider
