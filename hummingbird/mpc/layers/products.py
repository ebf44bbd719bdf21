"""Layers that multiply private values, also as matrices: one opening of masked operands.

The protocols are in protocols/lifted_product.py and protocols/beaver.py. Beside the matrix products of attention are
the factor and the causal mask of its logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.cost import Cost
from hummingbird.graph.ops.attention import HIDDEN, shown
from hummingbird.kernels.devices import put
from hummingbird.mpc.layers.layer import FLOOR, MAX_SCALE, Given, Layer, Spec, held
from hummingbird.mpc.protocols import beaver, lifted_product
from hummingbird.mpc.protocols.lifted_product import Operand
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE, WEIGHT_SCALE


class Multiply(Layer):
    """Layer for the elementwise product of two private tensors (broadcasting), in one round.

    rounds: whether parties may round their own shares (`Comparison.takes_rounded_shares`). If not, both operands are
        opened in as many bits as later layers read of the result.
    With `rounds`, an operand with a known bound is called small. It is opened in the integer bits that its bound takes,
    and in at most 16 bits of fraction, without those that are zero in every share; its higher bits need not be right.
    An operand that is not small is opened in as many bits as later layers read of the result, and as many low
    bits of the result are right as of this operand. If both operands are small, the result is right in all 64 bits.
    """

    def __init__(self, rounds: bool) -> None:
        super().__init__()
        self.rounds = rounds
        if rounds:
            self.input_limit = MAX_SCALE

    def _fraction(self, given: Given) -> int:
        """Return how many bits of fraction an operand keeps in the product. given: the operand."""
        return min(SCALE, given.scale - given.grain) if self.rounds else given.scale

    def lifts(self, given: Given) -> bool:
        # It has a known bound, valid bits for it, and an accepted scale: the scale of a softmax's result is too high.
        small = given.bound < FLOOR and given.valid - given.scale >= held(given.bound)
        return self.rounds and small and given.scale <= self.input_limit

    def _opened(self, read: int) -> list[tuple[int, int]]:
        """Return for each operand how many bits of fraction are cut off, and in how many bits the rest is opened.

        read: how many low bits of the result's shares later layers read.
        """
        read = self._right(read)
        fractions = [self._fraction(given) for given in self.given]
        return [
            (given.scale - fraction, min(read, fraction + held(given.bound)) if self.lifts(given) else read)
            for given, fraction in zip(self.given, fractions, strict=True)
        ]

    def _right(self, read: int) -> int:
        """Return how many low bits of the product's shares are right: `read`, or fewer after an operand is rounded.

        read: how many low bits later layers ask for. A layer that shifts the product to the left may ask for more bits
            than there are.
        """
        cut = [given.scale - self._fraction(given) for given in self.given if not self.lifts(given)]
        return max(2, min(read, 64 - max(cut, default=0)))

    @property
    def _ring(self) -> int:
        return self._right(self.read)

    def out_scale(self, scales: Sequence[int]) -> int:
        return sum(self._fraction(given) for given in self.given)

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return min(
            64 if self.lifts(given) else given.valid - (given.scale - self._fraction(given)) for given in self.given
        )

    def needs(self, scales: Sequence[int], later: int) -> int:
        return max(self.needs_of_each(scales, later))

    def needs_of_each(self, scales: Sequence[int], later: int) -> list[int]:
        return [shift + bits for shift, bits in self._opened(later)]

    def reads(self, later: int | None) -> int | None:
        # As many low bits as of the result, which has up to 16 more bits of fraction than the operand.
        return None if later is None else later + SCALE if self.rounds else later

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] + bounds[1]

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        left, right = (spec.numel for spec in inputs)
        out = torch.broadcast_shapes(inputs[0].shape, inputs[1].shape).numel()
        if not self.rounds:
            return beaver.product_price(left, right, out, parties, self.read)
        (_, value), (_, factor) = self._opened(self._ring)
        return lifted_product.price(left, right, out, value, factor, self._ring, parties)

    def breadth(self, inputs: Sequence[Spec]) -> int:
        return torch.broadcast_shapes(inputs[0].shape, inputs[1].shape).numel()

    def constants(self) -> tuple[int, ...]:
        return tuple(number for sizes in self._opened(self._ring) for number in sizes) if self.rounds else ()

    def label(self) -> str:
        if not (self.rounds and self.given):
            return ""
        (_, value), (_, factor) = self._opened(self._ring)
        return f"opens {value} and {factor} bits"

    def forward(self, session: Session, x: Shared, y: Shared) -> Shared:
        if not self.rounds:
            out = beaver.product(session, "mul", x.share, y.share, {}, self.read)
            return Shared(out, x.scale + y.scale)
        left, right = (
            Operand(value.share, *sizes) for value, sizes in zip((x, y), self._opened(self._ring), strict=True)
        )
        scale = x.scale - left.shift + y.scale - right.shift
        return Shared(lifted_product.product(session, left, right, self._ring), scale)


class Square(Layer):
    """Layer for x * x, by a dealt random number and its square.

    It takes 1 round, and for each element as many bits as later layers read of the result.
    """

    def out_scale(self, scales: Sequence[int]) -> int:
        return 2 * scales[0]

    def bound(self, bounds: Sequence[int]) -> int:
        return 2 * bounds[0]

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return beaver.square_price(inputs[0].numel, parties, self.read)

    def forward(self, session: Session, x: Shared) -> Shared:
        return Shared(beaver.square(session, x.share, self.read), 2 * x.scale)


# Attention: matrix products, einsum, the factor 1 / sqrt(d) of logits, and the causal mask ----------------------------


class MatMul(Layer):
    """Layer for torch.matmul of two private values, in 1 round.

    An element of an operand costs as many bits as later layers read of the result.
    rounds: whether parties may round their own shares (`Comparison.takes_rounded_shares`). If so, operands of any scale
        are cut to 16 bits of fraction as they are opened. Some are cut further, beside a softmax whose rows have a
        known range (`beside`).

    - If the first operand is the result of such a softmax, its weights keep 16 bits of fraction, and the values
      that they average keep 12 to 16, as many as fit the ring. The values' rounding errors, N/2 units each for N
      parties, are averaged, too.
    - If only such softmaxes, which round their input to 2^-12, read the product, both operands keep 12 bits of
      fraction. Their rounding errors, N/2 units for each element, average out over the sum.
    """

    averages = False  # set by the planner: whether the first operand's rows are weights from such a softmax
    compared = False  # set by the planner: whether only such softmaxes read the product

    def __init__(self, rounds: bool = False) -> None:
        super().__init__()
        self.rounds = rounds
        if rounds:
            self.input_limit = MAX_SCALE

    def beside(self, before: bool, behind: bool) -> None:
        """Tell the layer which steps beside it are softmaxes whose rows have a known range.

        before: whether the first operand is the result of such a softmax along its last dimension.
        behind: whether only such softmaxes read the product.
        """
        self.averages, self.compared = self.rounds and before, self.rounds and behind

    @property
    def fractions(self) -> tuple[int, int]:
        """The most bits of fraction that each operand may have in the product."""
        if self.averages:
            weights, values = self.given
            room = weights.valid - weights.scale - held(values.bound)
            return SCALE, max(_FEWEST, min(SCALE, room))
        return (_FEWEST, _FEWEST) if self.compared else (SCALE, SCALE)

    def _shifts(self, scales: Sequence[int]) -> list[int]:
        """Return how many bits of fraction are cut off each operand. scales: the operands' bits of fraction."""
        if not self.rounds:
            return [0, 0]
        return [max(0, scale - most) for scale, most in zip(scales, self.fractions, strict=True)]

    def out_scale(self, scales: Sequence[int]) -> int:
        return sum(scales) - sum(self._shifts(scales))

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return min(low - shift for low, shift in zip(valid, self._shifts(scales), strict=True))

    def needs(self, scales: Sequence[int], later: int) -> int:
        return max(self.needs_of_each(scales, later))

    def needs_of_each(self, scales: Sequence[int], later: int) -> list[int]:
        return [min(64, later + shift) for shift in self._shifts(scales)]

    def bound(self, bounds: Sequence[int]) -> int:
        # An average is no larger than its values. An einsum may sum over other indices than the weights' rows.
        return bounds[1] if self.averages and type(self) is MatMul else FLOOR

    def weight_scale(self, later: int) -> int:
        return SCALE if self.averages or self.compared else WEIGHT_SCALE

    def constants(self) -> tuple[int, ...]:
        return self.fractions if self.rounds else ()

    def operands(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return both operands of the product as stacks of matrices: the layer's inputs x and y, if not overridden."""
        return x, y

    def arranged(self, out: Tensor, x: Sequence[int], y: Sequence[int]) -> Tensor:
        """Return the stack of products in the shape of the layer's result: unchanged, if not overridden.

        x, y: shapes of the layer's inputs.
        """
        return out

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        left, right = self.operands(*(torch.empty(spec.shape, device="meta") for spec in inputs))
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        out = math.prod(batch) * left.shape[-2] * right.shape[-1]
        return beaver.product_price(left.numel(), right.numel(), out, parties, self.read)

    def forward(self, session: Session, x: Shared, y: Shared) -> Shared:
        scales = [x.scale, y.scale]
        shares = (
            (value.share + (1 << shift >> 1)) >> shift
            for value, shift in zip((x, y), self._shifts(scales), strict=True)
        )
        left, right = self.operands(*shares)
        out = beaver.product(session, "matmul", left.contiguous(), right.contiguous(), {}, self.read)
        return Shared(self.arranged(out, x.shape, y.shape), self.out_scale(scales))


class Einsum(MatMul):
    """Layer for torch.einsum of two private values, computed as one product of stacks of matrices.

    equation: an index may stand at most once in each operand.
    rounds: whether parties may round their own shares (`Comparison.takes_rounded_shares`).
    Stacks of shapes (b, m, k) and (b, k, n) give (b, m, n). Here b stands for all indices that both operands and the
    result have; m and n for those of one operand and the result; k for those of both operands that are summed. An index
    of one operand alone is summed first, locally.
    """

    def __init__(self, equation: str, rounds: bool = False) -> None:
        super().__init__(rounds)
        terms, _, self.out = equation.partition("->")
        self.left, _, self.right = terms.partition(",")
        both = set(self.left) & set(self.right)
        self.batch = [i for i in self.left if i in both and i in self.out]
        self.summed = [i for i in self.left if i in both and i not in self.out]
        self.rows = [i for i in self.left if i not in both and i in self.out]
        self.columns = [i for i in self.right if i not in both and i in self.out]

    def operands(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        size = self._sizes(x.shape, y.shape)  # torch repeats a summed index of size 1
        x = x.expand([size[i] if i in self.summed else -1 for i in self.left])
        y = y.expand([size[i] if i in self.summed else -1 for i in self.right])
        left = self._stacked(x, self.left, self.rows, self.summed)
        return left, self._stacked(y, self.right, self.summed, self.columns)

    def _sizes(self, x: Sequence[int], y: Sequence[int]) -> dict[str, int]:
        """Return the size of every index of the einsum, by index.

        x, y: the operands' shapes. If one operand has size 1 for an index, the other operand's size counts.
        """
        given = dict(zip(self.left, x, strict=True)), dict(zip(self.right, y, strict=True))
        return {i: max(one.get(i, 0) for one in given) for i in self.left + self.right}

    def _stacked(self, x: Tensor, term: str, first: list[str], second: list[str]) -> Tensor:
        kept = [*self.batch, *first, *second]
        alone = [place for place, index in enumerate(term) if index not in kept]
        x = x.sum(alone) if alone else x
        left = [index for index in term if index in kept]
        x = x.permute([left.index(index) for index in kept])
        sizes = list(x.shape)
        cuts = len(self.batch), len(self.batch) + len(first)
        return x.reshape(*sizes[: cuts[0]], math.prod(sizes[cuts[0] : cuts[1]]), math.prod(sizes[cuts[1] :]))

    def arranged(self, out: Tensor, x: Sequence[int], y: Sequence[int]) -> Tensor:
        size = self._sizes(x, y)
        made = [*self.batch, *self.rows, *self.columns]
        return out.reshape([size[i] for i in made]).permute([made.index(i) for i in self.out])

    def label(self) -> str:
        return f"{self.left},{self.right}->{self.out}"


_FEWEST = 12  # the fewest bits of fraction of operands


class RootScale(Layer):
    """Layer for x / sqrt(d), where d is the length of the last dimension of x, as for the logits of attention.

    The factor 1 / sqrt(d) has 20 bits of fraction, which the result has in addition. Sends nothing.
    """

    input_limit = 24
    fraction = 20

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + self.fraction

    def weight_scale(self, later: int) -> int:
        return later

    def forward(self, session: Session, x: Shared) -> Shared:
        share = x.share
        number = torch.tensor(share.shape[-1] ** -0.5, dtype=torch.float64)
        return Shared(share * int(ring.encode(number, self.fraction)), x.scale + self.fraction)


class Causal(Layer):
    """Layer for the causal mask of attention: it subtracts 2^12 from each logit whose key comes after its query.

    Nothing is sent. The last two dimensions are queries and keys.
    """

    input_limit = MAX_SCALE - SCALE  # 2^12 at this scale is 2^44 in the ring

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0]

    def bound(self, bounds: Sequence[int]) -> int:
        return max(bounds[0], ring.exponent_of(HIDDEN)) + 1

    def forward(self, session: Session, x: Shared) -> Shared:
        share, scale = x.share, x.scale
        if session.rank == 0:
            hidden = put(~shown(*share.shape[-2:]), share.device)
            share = share + hidden.long() * (int(HIDDEN) << scale)
        return Shared(share, scale)
