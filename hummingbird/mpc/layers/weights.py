"""A layer's weight, public or private to one party: its bits of fraction, and products with it.

Weights have 20 bits of fraction. Public weights have more if they are small, or fewer before a coarse window
(`Linear.coarser`). Private weights do not, since the number would reveal how small they are; but those of layers that
read the net's inputs have up to 26 bits if the inputs may be large (mpc/plan/columns.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hummingbird import ring
from hummingbird.kernels import Factor
from hummingbird.mpc.protocols.weight_mask import FixedWeight
from hummingbird.mpc.session.session import Session
from hummingbird.ring import WEIGHT_SCALE


@dataclass(frozen=True)
class WeightOwner:
    """The party that owns private weights and constants. Other parties hold arbitrary tensors of the same shapes.

    rank: of the owner.
    known: whether this process has the values: it is the owner, or there is no session yet and it may become the owner.
    """

    rank: int
    known: bool = True

    def __str__(self) -> str:
        return f"private to party {self.rank}"


def private_fraction(weight: Tensor, owner: WeightOwner, bits: int = WEIGHT_SCALE) -> int:
    """Return `bits`, the bits of fraction of a private weight.

    Raises InputError if this process knows the weight, and it is too small for so few bits.
    """
    if owner.known:
        ring.fraction(weight, bits, where="weight")
    return bits


class PublicWeight(nn.Module):
    """A weight that all parties know. code: the encoded weight, int64, in torch's layout for its layer's product."""

    code: Tensor

    def __init__(self, code: Tensor) -> None:
        super().__init__()
        self.shape = tuple(code.shape)
        self.register_buffer("code", code)
        self._factor: Factor | None = None  # prepared for the layer's product; dropped when the code moves or changes
        self._bits: int | None = None  # width of the code, found before it moves: reading it on a GPU waits for the GPU

    def product(
        self,
        session: Session,
        op: str,
        x: Tensor,
        options: dict[str, Any],
        view: Sequence[int] | None = None,
        bits: int = 64,
    ) -> Tensor:
        """Compute a share of op(x, W, **options) mod 2^bits, where W is this weight, from a share of x, int64.

        Sends nothing. view: the shape that W takes in the op "mul".
        """
        if op == "mul":
            return ring.bilinear(op, x, self.code.view(self.shape if view is None else tuple(view)))
        if self._factor is None:
            self._factor = Factor(ring.arranged(op, self.code, options.get("groups", 1)), self._bits)
        return ring.bilinear(op, x, self._factor, bits, **options)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PublicWeight:
        self._bits = Factor(self.code).bits if self._bits is None else self._bits
        self._factor = None
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._factor = self._bits = None
        super()._load_from_state_dict(*args, **kwargs)

    def extra_repr(self) -> str:
        return f"{self.shape} public"


def weight_of(code: Tensor, owner: WeightOwner | None) -> PublicWeight | FixedWeight:
    """The weight module for an encoded weight, int64. owner: None for a public weight."""
    return PublicWeight(code) if owner is None else FixedWeight(code, owner.rank)
