"""CrypTen's provider interface on top of the dealer: triples, squares, B2A bits and wraps for CrypTen's own
functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hummingbird.errors import EnvironmentProblem
from hummingbird.mpc._crypten import ArithmeticSharedTensor, BinarySharedTensor, TupleProvider
from hummingbird.mpc.correlations import Request


class DealerProvider(TupleProvider):
    """`take(request)` gives this party's shares; this class only speaks CrypTen's words for it."""

    NAME = "dealer"

    def __init__(self, take: Callable[[Request], list[Tensor]]) -> None:
        super().__init__()
        self._take = take

    def _no_cache(self, *args: Any, **kwargs: Any) -> Any:
        raise EnvironmentProblem(
            "CrypTen's cache of randomness is not available",
            where="crypten.provider",
            hint="`python -m hummingbird deal` deals in advance, hummingbird.init(store=...) uses it",
        )

    trace = trace_once = fill_cache = save_cache = load_cache = _no_cache

    def _ring(self, request: Request, device: Any) -> list[ArithmeticSharedTensor]:
        return [ArithmeticSharedTensor.from_shares(t, precision=0, device=device) for t in self._take(request)]

    def generate_additive_triple(
        self, size0: Any, size1: Any, op: str, device: Any = None, *args: Any, **kwargs: Any
    ) -> list[ArithmeticSharedTensor]:
        """Shares of a, b uniform and c = op(a, b, **kwargs) in Z_2^64; sizes as in torch."""
        params = {
            "size0": list(size0),
            "size1": list(size1),
            "op": op,
            "kwargs": {k: _plain(v) for k, v in kwargs.items()},
        }
        return self._ring(Request("additive", params), device)

    def square(self, size: Any, device: Any = None) -> list[ArithmeticSharedTensor]:
        """Shares of r uniform and r^2."""
        return self._ring(Request("square", {"shape": list(size)}), device)

    def generate_binary_triple(self, size0: Any, size1: Any, device: Any = None) -> list[BinarySharedTensor]:
        """Xor shares of words a, b uniform and a & b."""
        shares = self._take(Request("binary", {"size0": list(size0), "size1": list(size1)}))
        return [BinarySharedTensor.from_shares(t, precision=0, device=device) for t in shares]

    def wrap_rng(self, size: Any, device: Any = None) -> list[ArithmeticSharedTensor]:
        """Shares of r uniform, and of the number of wraps among them."""
        return self._ring(Request("wraps", {"shape": list(size)}), device)

    def B2A_rng(self, size: Any, device: Any = None) -> tuple[ArithmeticSharedTensor, BinarySharedTensor]:
        """One random bit per element, additively and xor shared."""
        binary, arithmetic = self._take(Request("b2a", {"shape": list(size)}))
        return (
            ArithmeticSharedTensor.from_shares(arithmetic, precision=0, device=device),
            BinarySharedTensor.from_shares(binary, precision=0, device=device),
        )


def _plain(value: Any) -> Any:
    """Options of torch's convolutions as JSON values."""
    return [int(v) for v in value] if isinstance(value, (tuple, list)) else int(value)
