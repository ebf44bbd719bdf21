"""Material of matrix products of values that are lifted as they are opened (mpc/protocols/lifted_matmul.py).

Masks lambda (i, j) and mu (j, l) are those of lifted.py, with top bits t and s, which are xors of a bit of each party.
The sums of lambda mu are an encrypted product of the masks' shares mod 2^R (matrices.py). A product with a top bit is
made for every i, j and l: two transfers, one in each direction, have the parties' shares of the bit as choices, and
carry a word of every term in which the bit occurs. So follow t mu and t s from t, and lambda s from s. Party 0 sends
the main transfers of lambda's elements, party 1 those of mu's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor

from hummingbird import ring
from hummingbird.mpc.pair.carry import best_digit
from hummingbird.mpc.pair.encrypted import PairKeys
from hummingbird.mpc.pair.lifted import LiftedMasks, bit_times, lifted_masks, lifted_masks_price
from hummingbird.mpc.pair.lockstep import Rounds, together
from hummingbird.mpc.pair.matrices import matmul_stack, refused
from hummingbird.mpc.pair.price import TURNED_BACK, PairPrice, returned, words
from hummingbird.mpc.pair.recipe import MaterialRecipe, Part
from hummingbird.mpc.pair.terms import ProductTerms
from hummingbird.mpc.pair.transfers import Side
from hummingbird.mpc.protocols.lifted_matmul import LiftedMatMul


class _Elements:
    """The elements of one of a product's two matrices: their masks, and the products with their top bits.

    request: the product. own: 0 for the first matrix, 1 for the second.
    """

    def __init__(self, request: LiftedMatMul, own: int) -> None:
        self.terms = ProductTerms((request.size0, request.size1), own)
        self.bits, self.product = (request.value, request.factor)[own], request.product
        self.n = -(-self.terms.count // 16) * 16  # with those that there are not, which are 0
        both = request.product - request.value - request.factor
        self.widths = [max(0, self.product - self.bits), max(0, both) * (own == 0)]  # of the products with a top bit

    def masks(self, side: Side, digit: int) -> Rounds[LiftedMasks]:
        return lifted_masks(side, self.bits, self.product, digit)

    def masks_price(self, digit: int) -> PairPrice:
        return lifted_masks_price(self.bits, self.product, digit)

    def own(self, share: Tensor) -> Tensor:
        """Return numbers of the elements, (n,), in the matrix' shape."""
        return share[: self.terms.count].view(self.terms.size)

    def tops(self, side: Side, masks: LiftedMasks, numbers: Sequence[Tensor]) -> Rounds[list[Tensor]]:
        """Return shares of the top bits times numbers, one for each width, of every term, int64 (terms,); 2 rounds.

        numbers: this party's shares of numbers of the other matrix' elements, in its shape.
        """
        if masks.top is None:
            return []
        back = yield from side.back().turned(masks.top.own)
        rows = (F.pad(self.terms.rows(number), (0, self.n - self.terms.count)) for number in numbers)
        wanted = [(width, row) for width, row in zip(self.widths, rows, strict=False) if width]
        found = yield from bit_times(masks.top, back, masks.top.own, wanted)
        return [self.terms.arranged(each).flatten() for each in found]

    def tops_price(self) -> PairPrice:
        if self.bits == self.product:
            return PairPrice()
        sent = words(*self.widths * self.terms.times)
        return TURNED_BACK + (sent | returned(sent.sent))


class _LiftedMatrices(MaterialRecipe[LiftedMatMul]):
    """Matrix products of values that are lifted as they are opened."""

    kind = LiftedMatMul
    instead = "use fewer bits or smaller matrices, or a dealer"

    def refuses(self, request: LiftedMatMul) -> str:
        return refused(matmul_stack(request.size0, request.size1), request.product)

    def parts(self, request: LiftedMatMul, transfer_bits: float) -> list[Part]:
        digit = best_digit(transfer_bits)
        return [
            Part(each.n, sender, each.masks_price(digit) + each.tops_price())
            for sender, each in enumerate(_both(request))
        ]

    def total(self, request: LiftedMatMul, transfer_bits: float) -> PairPrice:
        (left, right), digit = _both(request), best_digit(transfer_bits)
        masks = left.masks_price(digit).times(left.n) | right.masks_price(digit).turned.times(right.n)
        tops = left.tops_price().times(left.n) | right.tops_price().turned.times(right.n)
        return masks + (matmul_stack(request.size0, request.size1).price(request.product) | tops)

    def primes(self, request: LiftedMatMul) -> int:
        return matmul_stack(request.size0, request.size1).primes(request.product)

    def made(
        self,
        request: LiftedMatMul,
        sides: Sequence[Side],
        keys: PairKeys | None,
        rank: int,
        transfer_bits: float,
        weights: Mapping[int, Tensor],
    ) -> Rounds[dict[str, Tensor]]:
        assert keys is not None
        both, bits = _both(request), request.product
        masks = yield from together(
            *(each.masks(side, best_digit(transfer_bits)) for each, side in zip(both, sides, strict=True))
        )
        x, y = (each.own(mask.share) for mask, each in zip(masks, both, strict=True))
        top = masks[1].number
        product, left, right = yield from together(
            matmul_stack(request.size0, request.size1).crossed(keys, bits, x, y),
            both[0].tops(sides[0], masks[0], [y, *([] if top is None else [both[1].own(top)])]),
            both[1].tops(sides[1], masks[1], [x]),
        )
        fields = {**masks[0].fields("", "mask"), **masks[1].fields("factor_", "factor")}
        fields["product"] = ring.bilinear("matmul", x, y, bits) + product
        fields.update(zip(("top", "tops"), left, strict=False))
        fields.update(zip(("factor_top",), right, strict=False))
        return fields


def _both(request: LiftedMatMul) -> list[_Elements]:
    return [_Elements(request, own) for own in range(2)]


LIFTED_MATRICES = _LiftedMatrices()
