"""A layer as products of polynomials (hummingbird/polynomials/layout.py) for a server of encrypted inputs.

The client packs and encrypts inputs, and the server multiplies: by products, or tap by tap (taps.py). Both give the
same ciphertexts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird import cost
from hummingbird.errors import InputError
from hummingbird.he.bfv.scheme import DEGREE, products
from hummingbird.polynomials import blocks
from hummingbird.polynomials.layer import LayerShape, check_degree
from hummingbird.polynomials.layout import Packing


class Layout(Packing):
    """The mapping of a layer to polynomials with the fewest bytes, for one or several images; `Layout.of` makes it."""

    @staticmethod
    def of(
        input_shape: Sequence[int],
        weight_shape: Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        degree: int = DEGREE,
        images: int = 1,
    ) -> Layout:
        """Make the layout with which a layer's messages have the fewest bytes.

        input_shape: (C, H, W), (C, L) or (features,); weight_shape: as in torch. stride, padding, dilation: one number,
        or one for each dimension, as in torch. degree: coefficients of a polynomial, N, a power of two. images:
        how many share a polynomial. Raises InputError if the shapes do not fit each other, or the kernel spans more
        than N / images values.

            Layout.of((64, 32, 32), (64, 64, 3, 3), padding=1)
        """
        check_degree(degree, "he.bfv.Layout.of")
        layer = LayerShape.of(input_shape, weight_shape, stride, padding, dilation, groups)
        if type(images) is not int or not 1 <= images <= degree:
            hint = f"a whole number from 1 to {degree}"
            raise InputError(f"{images!r} images in a polynomial", where="he.bfv.Layout.of(images)", hint=hint)
        return Layout(layer, degree, blocks.choose(layer, degree, images))

    @property
    def up_bytes(self) -> int:
        """Size in bytes of the client's message with the encrypted inputs of all its images, for polynomials of
        `DEGREE` coefficients.
        """
        return cost.bfv_fresh(self.inputs)

    @property
    def down_bytes(self) -> int:
        """Size in bytes of the server's message, which holds the replies for all these images."""
        return cost.bfv_reply(self.replies, self.blocks.images * math.prod(self.layer.output_shape))

    def multiply(self, x: Tensor, weights: Tensor) -> Tensor:
        """Multiply encrypted inputs by weights, and return for each reply the sum of its products: int32 (replies, 2,
        4, N).

        x: the ciphertexts of the inputs, int32 (inputs, 2, 4, N), from `Fresh.parts`: two polynomials each, of N
        coefficients modulo four primes.
        weights: int32 (n, 4, N), the polynomials of `pack_weights` after `transform`.
        `evaluate` turns the sums into a reply. N is `DEGREE`, 4096.
        """
        return torch.cat(
            [products(part, weights, self.pairs, self.replies // self.tiles) for part in x.chunk(self.tiles)]
        )
