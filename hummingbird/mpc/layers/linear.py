"""Linear layers and their weights: local if the weights are public, one opening of the input if they are private.

The result has the bits of fraction of input and weights together. Later layers cut them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird import cost, ring
from hummingbird.cost import Cost
from hummingbird.errors import InputError
from hummingbird.kernels import Factor
from hummingbird.mpc.layers.layer import FLOOR, MAX_SCALE, Layer, Spec, room
from hummingbird.mpc.protocols import owned, weight_mask
from hummingbird.mpc.protocols.owned import OwnedWeight
from hummingbird.mpc.protocols.weight_mask import FixedWeight
from hummingbird.mpc.session import sharing
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import FINE_WEIGHTS, SCALE, WEIGHT_SCALE

# Weights --------------------------------------------------------------------------------------------------------------
#
# A weight is public, or private to one party. Weights have 20 bits of fraction, or as few as `BitConfig.weight_bits`
# says. Public weights have more if they are small, or fewer before a coarse window (`Linear.coarser`). Private weights
# do not, since the number would reveal how small they are; but those of layers that read the net's inputs have up to 26
# bits if the inputs may be large (mpc/plan/columns.py).


@dataclass(frozen=True)
class WeightOwner:
    """Says which party owns private weights and constants. Other parties hold arbitrary tensors of the same shapes.

    rank: the party's number.
    known: whether this process has the values: it is the owner, or there is no session yet and it may become the owner.
    pair: whether two parties without a dealer run the net: the owner then keeps its weights (mpc/protocols/owned.py).
    """

    rank: int
    known: bool = True
    pair: bool = False

    def __str__(self) -> str:
        return f"private to party {self.rank}"


def private_fraction(weight: Tensor, owner: WeightOwner, bits: int = WEIGHT_SCALE) -> int:
    """Check that `bits` bits of fraction are enough for a private weight, and return `bits`.

    Raises InputError if this process knows the weight, and the weight is too small for so few bits. Fewer than 20 are
    those that the user asks for, which mpc/plan/columns.py checks.
    """
    if owner.known and bits >= WEIGHT_SCALE:
        ring.fraction(weight, bits, where="weight")
    return bits


class PublicWeight(nn.Module):
    """The weight of a linear layer that all parties know.

    code: the encoded weight, int64, in torch's layout for its layer's product. A matrix on a CPU is kept as int32 if
        its numbers fit: half the memory, and half the reading of a product with few rows.
    """

    code: Tensor

    def __init__(self, code: Tensor) -> None:
        super().__init__()
        self.shape = tuple(code.shape)
        self.register_buffer("code", code)
        self._factor: Factor | None = None  # prepared for the layer's product; dropped when the code moves or changes
        self._bits: int | None = None  # width of the code, found before it moves: reading it on a GPU waits for the GPU
        self._narrow()

    def _narrow(self) -> None:
        if self.code.dim() == 2 and self.code.is_cpu:
            self._bits = Factor(self.code).bits if self._bits is None else self._bits
            self.code = self.code.int() if self._bits <= 32 else self.code

    def product(
        self,
        session: Session,
        op: str,
        x: Tensor,
        options: dict[str, Any],
        view: Sequence[int] | None = None,
        bits: int = 64,
    ) -> Tensor:
        """Compute and return a share of op(x, W, **options) mod 2^bits, where W is this weight. Sends nothing.

        op: such as "matmul".
        x: a share, int64.
        view: the shape that W takes in the op "mul".
        """
        if op == "mul":
            return ring.bilinear(op, x, self.code.view(self.shape if view is None else tuple(view)))
        if self._factor is None:
            self._factor = Factor(ring.arranged(op, self.code, options.get("groups", 1)), self._bits)
        return ring.bilinear(op, x, self._factor, bits, **options)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PublicWeight:
        self._bits = Factor(self.code).bits if self._bits is None else self._bits
        self._factor, self.code = None, self.code.long()  # other devices take int64
        super()._apply(fn, recurse)
        self._narrow()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._factor, self._bits, self.code = None, None, self.code.long()  # the loaded numbers may be wider
        super()._load_from_state_dict(*args, **kwargs)
        self._narrow()

    def extra_repr(self) -> str:
        return f"{self.shape} public"


PrivateWeight = FixedWeight | OwnedWeight


def weight_of(code: Tensor, owner: WeightOwner | None, fraction: int) -> PublicWeight | PrivateWeight:
    """Make the module that holds a layer's weight: a `PublicWeight` if `owner` is None.

    Else it is an `OwnedWeight` for two parties without a dealer, and a `FixedWeight` for others.
    code: the encoded weight, int64. fraction: its bits of fraction. Raises InputError for a weight of two parties
    without a dealer that is not below 2^20: this bound, which says nothing of it, sizes its encrypted products.
    """
    if owner is None:
        return PublicWeight(code)
    if not owner.pair:
        return FixedWeight(code, owner.rank)
    check_private(code.double() / 2.0**fraction, owner, "weight")
    return OwnedWeight(code, owner.rank, fraction + FLOOR + 1)


def check_private(value: Tensor, owner: WeightOwner, what: str = "constant") -> None:
    """Raise InputError if this process knows a private number that is not below 2^20, as all values must be.

    what: names it in the error.
    """
    if owner.known and value.numel() and not float(value.abs().max()) < 2.0**FLOOR:
        # The text does not say how large: the other parties see it.
        raise InputError(f"a private {what} leaves the range of +-2^{FLOOR}", where=what, hint="scale it down")


def product_price(weight: PrivateWeight, left: int, out: int, parties: int, bits: int = 64) -> Cost:
    """Return the price of a product with a private weight: 1 round. left, out: elements of the input and the result."""
    if isinstance(weight, OwnedWeight):
        return owned.product_price(left, parties, bits, weight.here)
    return weight_mask.product_price(left, out, parties, bits)


# Layers ---------------------------------------------------------------------------------------------------------------


class Linear(Layer):
    """Layer for op(x, weight) + bias, where `op` is a convolution, "matmul" or "mul" (`ring.BILINEAR`).

    weight: real tensor in torch's layout for the op ("matmul": (in, out); "mul": one factor per channel).
    bias: real tensor, one entry per output channel: dimension 1, or the last one for "matmul".
    options: the op's further arguments, such as stride and groups.
    owner: the party to which the weights are private; None for public weights.
    last: for "mul", factors and bias are for the last dimensions, not for channels.
    unscaled: the net's own public weights, if `weight` has doubled columns, for halved inputs (mpc/plan/columns.py).
    fraction: bits of fraction of private weights.
    Public weights cost nothing. Private weights cost `product_price`: 1 round, and for each element of the input as
    many bits as later layers read of the result. `PrivateNet.set_up` opens the masked weights once; without a dealer
    they are never opened, and the owner sends nothing.
    Raises InputError if the weights are too small for fixed-point numbers.
    """

    input_limit = 22  # 22 + 20 = 42 bits of fraction leave 22 for the integer part: FLOOR and MARGIN

    weight: PublicWeight | PrivateWeight
    bias: Tensor | None

    def __init__(
        self,
        op: str,
        weight: Tensor,
        bias: Tensor | None,
        options: dict[str, Any],
        owner: WeightOwner | None,
        last: bool = False,
        unscaled: Tensor | None = None,
        fraction: int = WEIGHT_SCALE,
    ) -> None:
        super().__init__()
        self.op, self.options, self.owner, self.last = op, options, owner, last
        # Bounds of the result, a sum of products and a bias, where the weights are known.
        self.unscaled = unscaled is not None
        known = weight if unscaled is None else unscaled
        self.growth = _growth(op, known, options) if owner is None else None
        self.steepness = _steepness(weight) if owner is None and op == "matmul" else None
        self.offset = ring.exponent_of(float(bias.abs().max())) if bias is not None and bias.numel() else None
        if owner is None:
            # At least 20 bits, even if fewer hold the weights: a dealer with other weights makes the same plan.
            most = room(self.bound([FLOOR]))
            self._needed = ring.fraction(weight, most, where="weight")
            fine = ring.fraction(weight, most, precision=FINE_WEIGHTS, where="weight")
            # No finer than the next layer's input limit, or the result would be rounded to 16 bits before it.
            self.fraction = max(WEIGHT_SCALE, self._needed, min(fine, MAX_SCALE - SCALE))
        else:
            self.fraction = private_fraction(weight, owner, fraction)
        code = ring.encode(weight, max(self.fraction, WEIGHT_SCALE), where="weight")
        code = ring.shifted(code, min(0, self.fraction - WEIGHT_SCALE))  # rounded twice, as by `rounded`
        self.weight = weight_of(code, owner, self.fraction)
        # Shares of a private bias are shifted to the left only.
        self.bias_scale = _BIAS_SCALE if owner is None else min(_BIAS_SCALE, SCALE + self.fraction)
        self.register_buffer("bias", None if bias is None else ring.encode(bias, self.bias_scale, where="bias"))

    def coarser(self, scale: int, error: float | None = None) -> Linear:
        """Return a copy of this layer whose public weights are rounded to `scale` bits of fraction.

        The weights keep more bits if `scale` bits are too few for a precision of 2^-10 of the largest weight. They are
        the layer's encoded weights, rounded a second time, halves upwards. Returns this layer itself if `scale` is 20
        or more, or if its weights are private or have doubled columns.
        error: by how much each input of a matrix product may err: the weights have fewer bits if their rounding adds
            less than that (`_behind`).
        """
        if scale >= WEIGHT_SCALE or self.owner is not None or self.unscaled:
            return self
        fraction = max(scale, self._needed)
        if error is not None and self.steepness is not None:
            fraction = min(fraction, self._behind(error))
        return self.rounded(fraction)

    def rounded(self, fraction: int) -> Linear:
        """Return a copy of this layer whose public weights are rounded to at most `fraction` bits of fraction.

        Returns this layer itself if its weights have no more, are private, or have doubled columns.
        """
        if fraction >= self.fraction or self.owner is not None or self.unscaled:
            return self
        assert isinstance(self.weight, PublicWeight)
        code = self.weight.code  # on the meta device, as in a search for windows, there is nothing to round
        weight = PublicWeight(code if code.is_meta else ring.shifted(code.long(), fraction - self.fraction))
        other = copy.deepcopy(self, {id(self.weight): weight})
        other.fraction = fraction
        return other

    def _behind(self, error: float) -> int:
        """Return how many bits of fraction the weights need if each of their n inputs may err by `error`.

        For errors of random signs, a result then errs by error |W|, for the Euclidean norm |W| of its weights. Weights
        that are rounded by 2^-(w + 1) at most add less than 2^-(w + 1) sqrt(n) for inputs with a mean square of 1. That
        is less than error |W| for 2^-w = 2^(e - 1) 2^s / sqrt(n), where 2^e and 2^s are the least powers of two that
        are `error` and |W| or more.
        """
        assert self.steepness is not None
        root = ((self.weight.shape[0] - 1).bit_length() + 1) // 2
        return max(_LEAST, 1 - ring.exponent_of(error) - self.steepness + root)

    def again(self) -> Linear:
        """Return a copy of this layer for another call of the same weights, which both layers share."""
        return copy.deepcopy(self, {id(self.weight): self.weight})

    def share_weights(self, session: Session) -> None:
        if self.owner is not None and self.bias is not None:
            self.bias = sharing.share_secret(session, self.bias, tuple(self.bias.shape), self.owner.rank)

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + self.fraction

    def bound(self, bounds: Sequence[int]) -> int:
        if self.growth is None:
            return FLOOR
        products = bounds[0] + self.growth
        return products if self.offset is None else max(products, self.offset) + 1

    def bound_of_rows(self, length: int) -> int:
        """Return log2 of the largest result if input rows have `length` values and a mean square of 1 at most.

        It follows from the inequality of Cauchy and Schwarz. For private weights and other ops than "matmul" it is
        FLOOR (20): every value of a net is below 2^20.
        """
        if self.steepness is None:
            return FLOOR
        products = (math.ceil(math.log2(length)) + 1) // 2 + self.steepness
        return products if self.offset is None else max(products, self.offset) + 1

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        if isinstance(self.weight, PublicWeight):
            return cost.FREE
        n = inputs[0].numel
        if self.op == "mul":
            out = torch.broadcast_shapes(inputs[0].shape, self.weight.shape).numel() if self.last else n
        else:
            out = _numel(self.op, inputs[0].shape, self.weight.shape, self.options)
        return product_price(self.weight, n, out, parties, self.read)

    def forward(self, session: Session, x: Shared) -> Shared:
        share, scale = x.share, x.scale + self.fraction
        per_channel = self.op == "mul" and not self.last
        view = (-1, *[1] * (share.dim() - 2)) if per_channel else None
        out = self.weight.product(session, self.op, share, self.options, view, self.read)
        # Party 0 adds a public bias; every party adds its share of a private one.
        if self.bias is not None and (self.owner is not None or session.rank == 0):
            bias = ring.shifted(self.bias, scale - self.bias_scale)
            out = out + (bias if self.op == "matmul" or self.last else bias.view(-1, *[1] * (out.dim() - 2)))
        return Shared(out, scale)

    def label(self) -> str:
        return f"{self.op}, weight {self.weight.shape} {'public' if self.owner is None else self.owner}"


_BIAS_SCALE = SCALE + WEIGHT_SCALE  # the most; biases stay below 2^26
_LEAST = 8  # bits of fraction of weights behind values with a told error


def _growth(op: str, weight: Tensor, options: dict[str, Any]) -> int:
    """Compute log2, rounded up, of the most by which the op can enlarge its input: |op(x, weight)| <= 2^growth |x|.

    This is the largest sum of |weights| of one output. It is computed in integers, since every machine must find the
    same number: 40 bits of each weight, exact for up to 2^22 terms.
    options: the op's further arguments, such as groups.
    """
    top = ring.exponent_of(float(weight.abs().max())) if weight.numel() else 0
    codes = (weight.detach().abs().double() * 2.0 ** (40 - top)).ceil().long()
    if op == "mul":
        sums = codes
    elif op == "matmul":
        sums = codes.sum(0)
    elif op.startswith("conv_transpose"):
        groups = options["groups"]
        sums = codes.view(groups, len(codes) // groups, codes.shape[1], -1).sum((1, 3))
    else:
        sums = codes.flatten(1).sum(1)
    largest = int(sums.max()) if sums.numel() else 0
    return max(largest - 1, 0).bit_length() + top - 40


def _steepness(weight: Tensor) -> int:
    """Compute log2, rounded up, of the largest Euclidean norm of one output's weights. weight: (in, out).

    It is computed in integers, since every machine must find the same number: 20 bits of each weight, exact for up to
    2^22 terms.
    """
    top = ring.exponent_of(float(weight.abs().max())) if weight.numel() else 0
    codes = (weight.detach().abs().double() * 2.0 ** (20 - top)).ceil().long()
    sums = (codes * codes).sum(0)
    largest = int(sums.max()) if sums.numel() else 0
    return (max(largest - 1, 0).bit_length() + 1) // 2 + top - 20


def _numel(op: str, left: Sequence[int], right: Sequence[int], options: dict[str, Any]) -> int:
    """Return the number of elements of the product op(x, y), found by torch on tensors without data.

    left, right: the shapes of x and y.
    options: the op's further arguments, such as stride.
    """
    a, b = torch.empty(*left, device="meta"), torch.empty(*right, device="meta")
    return int(getattr(torch, op)(a, b, **options).numel())
