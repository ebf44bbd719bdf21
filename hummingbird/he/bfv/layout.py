"""Map the values of a convolution or a linear layer to polynomials, so that the layer is a product of polynomials.

With C planes of R rows and S columns in an input polynomial and O outputs in a reply, O C R S <= N,

    x = sum x[c, y, z] X^(c R S + y S + z)
    w = sum K[o, c, a, b] X^(o C R S + (C - 1 - c) R S + (h - 1 - a) S + (v - 1 - b))

for a kernel of h x v, and output (o, i, j) is the coefficient of X^(o C R S + (C - 1) R S + (i + h - 1) S + j + v - 1)
in x w: Huang et al., Cheetah, 2022, section 3. A term of x w reaches this coefficient only if it belongs to this
output; the exponents of all terms differ by less than O C R S. planes.py ensures the same within a plane, and handles
strides, tiles and padding; blocks.py chooses C, O and the tiles. A linear layer is a convolution of 1 x 1 images. The
mapping depends on shapes only, so it is public.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird import cost
from hummingbird.he.bfv import blocks
from hummingbird.he.bfv.blocks import Blocks
from hummingbird.he.bfv.layer import LayerShape, check, check_degree
from hummingbird.he.bfv.planes import Planes
from hummingbird.he.bfv.scheme import DEGREE, products

_WHERE = "he.bfv.Layout"


@dataclass(frozen=True)
class Layout:
    """The public mapping of a layer's inputs, weights and outputs to coefficients of polynomials. `Layout.of` makes it.

    With it, a layer is a sum of products of polynomials: the client packs and encrypts inputs, and the server
    multiplies.
    Large outputs are computed in tiles, which are rectangles of an output channel. The polynomials of the inputs are
    ordered by tile, and so are those of the replies. Every tile has equally many polynomials, and every tile is
    multiplied by the same weight polynomials.
    """

    layer: LayerShape
    degree: int
    blocks: Blocks

    @staticmethod
    def of(
        input_shape: Sequence[int],
        weight_shape: Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        degree: int = DEGREE,
    ) -> Layout:
        """Make the layout with which a layer's messages have the fewest bytes.

        input_shape: (C, H, W), (C, L) or (features,); weight_shape: as in torch. stride, padding, dilation: one number,
        or one for each dimension, as in torch. degree: coefficients of a polynomial, N, a power of two. Raises
        InputError if the shapes do not fit each other, or the kernel spans more than N values.

            Layout.of((64, 32, 32), (64, 64, 3, 3), padding=1)
        """
        check_degree(degree, f"{_WHERE}.of")
        layer = LayerShape.of(input_shape, weight_shape, stride, padding, dilation, groups)
        return Layout(layer, degree, blocks.choose(layer, degree))

    # ---- sizes

    @cached_property
    def planes(self) -> Planes:
        """The part of the mapping within a plane: which coefficient holds each value of an image, and where gaps of
        zeros are.
        """
        return Planes(self.layer.rows, self.layer.columns, self.blocks.height, self.blocks.width)

    @property
    def tiles(self) -> int:
        """Number of tiles that the output is cut into."""
        return len(self.planes.tiles)

    @property
    def inputs(self) -> int:
        """Number of polynomials that the inputs of all tiles fill: the ciphertexts that the client sends."""
        return self.tiles * -(-self.layer.input_shape[0] * self.planes.phases // self.blocks.planes)

    @property
    def replies(self) -> int:
        """Number of polynomials that the outputs of all tiles fill: the ciphertexts that the server sends back."""
        return self.tiles * -(-self.layer.output_shape[0] // self.blocks.outputs)

    @property
    def products(self) -> int:
        """Number of products of two polynomials that the server computes, for all tiles."""
        return self.tiles * len(self.pairs)

    @property
    def up_bytes(self) -> int:
        """Size in bytes of the client's message with all encrypted inputs of one image, for polynomials of `DEGREE`
        coefficients.
        """
        return cost.bfv_fresh(self.inputs)

    @property
    def down_bytes(self) -> int:
        """Size in bytes of the server's message, which holds the replies for one image."""
        return cost.bfv_reply(self.replies, math.prod(self.layer.output_shape))

    @cached_property
    def pairs(self) -> Tensor:
        """The products of polynomials in a tile, int64 (n, 2), one for each weight polynomial, ordered by reply.

        A product has the number of the input polynomial that is multiplied, and the number of the reply to which it is
        added.
        """
        of_replies = blocks.connected(self.layer, self.planes.phases, self.blocks.planes, self.blocks.outputs)
        return torch.tensor([(number, reply) for reply, inputs in enumerate(of_replies) for number in inputs])

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

    # ---- packing

    def pack_input(self, x: Tensor) -> Tensor:
        """Return a layer's input as polynomials for `Secret.encrypt`, int64 (inputs, N): `inputs` polynomials of N
        coefficients.

        x: the input, int64 of `input_shape`. Raises InputError for another shape.
        """
        layer, count = self.layer, self.blocks.planes
        check(x, layer.input_shape, f"{_WHERE}.pack_input(x)")
        split = self.planes.split(x.reshape(-1, layer.rows.size, layer.columns.size))
        full = F.pad(split, (0, 0, 0, -split.shape[1] % count)).reshape(self.inputs, -1)
        return F.pad(full, (0, self.degree - full.shape[1]))

    def pack_weights(self, weights: Tensor) -> Tensor:
        """Return a layer's weights as polynomials for `transform`, int64 (n, N): one for each product in `pairs`.

        weights: int64 of `weight_shape`. Raises InputError for another shape.
        """
        layer, count, block = self.layer, self.blocks.planes, self.blocks.outputs
        check(weights, layer.weight_shape, f"{_WHERE}.pack_weights(weights)")
        inputs, targets = self.pairs.t().contiguous()
        polys = torch.zeros(len(self.pairs) * self.degree, dtype=torch.int64)
        for reply, part in enumerate(weights.split(block)):  # by reply: indices take as much memory as weights
            output = torch.arange(len(part))
            plane = layer.channels(output + reply * block)[..., None, None] * self.planes.phases + self.planes.phase
            first = int(torch.searchsorted(targets, reply))  # of the reply's products, whose inputs follow each other
            number = first - inputs[first] + plane // count
            place = output.view(-1, 1, 1, 1) * count + count - 1 - plane % count
            exponent = place * self.planes.size + self.planes.exponents
            kept = self.planes.kept(part)
            kept = torch.where(exponent // self.degree % 2 == 1, -kept, kept)  # X^N = -1
            polys[(number * self.degree + exponent % self.degree).flatten()] = kept.flatten()
        return polys.view(-1, self.degree)

    def unpack(self, polys: Tensor) -> Tensor:
        """Return the outputs, int64 of `output_shape`, from the replies' decrypted polynomials, int64 (replies, N)."""
        check(polys, (self.replies, self.degree), f"{_WHERE}.unpack(polys)")
        outputs = self.layer.output_shape[0]
        tiles = zip(polys.chunk(self.tiles), self._places, strict=True)
        parts = [part[:, places].flatten(0, 1)[:outputs] for part, places in tiles]
        return self.planes.join(parts).view(self.layer.output_shape)

    @cached_property
    def used(self) -> tuple[Tensor, ...]:
        """The positions of the coefficients that hold outputs: for each reply a tensor int64 (values,), ascending."""
        outputs, block = self.layer.output_shape[0], self.blocks.outputs
        return tuple(
            places[: outputs - first].flatten() for places in self._places for first in range(0, outputs, block)
        )

    def norms(self, weights: Tensor) -> int:
        """Return the factor by which this layer's weights can enlarge the noise of a ciphertext, an int.

        It is the largest sum of |weights| over all output channels that share one reply.
        weights: the layer's, int64 of `weight_shape`.
        """
        check(weights, self.layer.weight_shape, f"{_WHERE}.norms(weights)")
        return max(int(self.planes.kept(part).abs().sum()) for part in weights.split(self.blocks.outputs))

    @cached_property
    def _places(self) -> list[Tensor]:
        """The positions of outputs among the coefficients of a reply, as a list with one tensor for each tile.

        Each tensor is int64 (output channels in a reply, height, width).
        """
        count, block = self.blocks.planes, self.blocks.outputs
        first = (torch.arange(block) * count + count - 1) * self.planes.size
        return [first[:, None, None] + self.planes.places(tile) for tile in self.planes.tiles]
