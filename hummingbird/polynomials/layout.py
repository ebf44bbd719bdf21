"""Map the values of a convolution or a linear layer to polynomials, so that the layer is a product of polynomials.

With C planes of R rows and S columns in an input polynomial and O outputs in a reply, O C R S <= N,

    x = sum x[c, y, z] X^(c R S + y S + z)
    w = sum K[o, c, a, b] X^(o C R S + (C - 1 - c) R S + (h - 1 - a) S + (v - 1 - b))

for a kernel of h x v, and output (o, i, j) is the coefficient of X^(o C R S + (C - 1) R S + (i + h - 1) S + j + v - 1)
in x w: Huang et al., Cheetah, 2022, section 3. A term of x w reaches this coefficient only if it belongs to this
output; the exponents of all terms differ by less than O C R S. planes.py ensures the same within a plane, and handles
strides, tiles and padding; blocks.py chooses C, O and the tiles. A linear layer is a convolution of 1 x 1 images. The
mapping depends on shapes only, so it is public.

Several images may share a polynomial: each channel then has their planes side by side, as if they were one plane of so
many times R S coefficients. With M images, each takes about sqrt(M) times fewer polynomials, as long as C and O are
above 1: inputs and replies are as many as C_all / C and O_all / O, and C O M R S <= N.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.polynomials import blocks
from hummingbird.polynomials.blocks import Blocks
from hummingbird.polynomials.layer import LayerShape, check
from hummingbird.polynomials.planes import Planes

_WHERE = "polynomials.Packing"


@dataclass(frozen=True)
class Packing:
    """The public mapping of a layer's inputs, weights and outputs to coefficients of polynomials.

    With it, a layer is a sum of products of polynomials.
    Large outputs are computed in tiles, which are rectangles of an output channel. The polynomials of the inputs are
    ordered by tile, and so are those of the replies. Every tile has equally many polynomials, and every tile is
    multiplied by the same weight polynomials.
    layer: its shapes, for one image. degree: coefficients of a polynomial, N. blocks: what shares a polynomial.
    """

    layer: LayerShape
    degree: int
    blocks: Blocks

    # ---- sizes

    @cached_property
    def planes(self) -> Planes:
        """The part of the mapping within a plane: which coefficient holds each value of an image, and where gaps of
        zeros are.
        """
        return Planes(self.layer.rows, self.layer.columns, self.blocks.height, self.blocks.width)

    @property
    def room(self) -> int:
        """Number of coefficients that a channel's planes take in a polynomial, those of all images together."""
        return self.blocks.images * self.planes.size

    @property
    def tiles(self) -> int:
        """Number of tiles that the output is cut into."""
        return len(self.planes.tiles)

    @property
    def inputs(self) -> int:
        """Number of polynomials that the inputs of all tiles fill."""
        return self.tiles * -(-self.layer.input_shape[0] * self.planes.phases // self.blocks.planes)

    @property
    def replies(self) -> int:
        """Number of polynomials that the outputs of all tiles fill."""
        return self.tiles * -(-self.layer.output_shape[0] // self.blocks.outputs)

    @property
    def products(self) -> int:
        """Number of products of two polynomials, for all tiles."""
        return self.tiles * len(self.pairs)

    @cached_property
    def pairs(self) -> Tensor:
        """The products of polynomials in a tile, int64 (n, 2), one for each weight polynomial, ordered by reply.

        A product has the number of the input polynomial that is multiplied, and the number of the reply to which it is
        added.
        """
        return torch.tensor([(number, reply) for reply, inputs in enumerate(self.inputs_of) for number in inputs])

    @cached_property
    def inputs_of(self) -> list[range]:
        """For each reply of a tile the numbers of the input polynomials on which it depends."""
        return blocks.connected(self.layer, self.planes.phases, self.blocks.planes, self.blocks.outputs)

    # ---- packing

    def pack_input(self, x: Tensor) -> Tensor:
        """Return a layer's input as polynomials, int64 (inputs, N): `inputs` polynomials of N coefficients.

        x: the input, int64 of `input_shape`; of several images, (images, *input_shape). Raises InputError for another
        shape.
        """
        layer, count = self.layer, self.blocks.planes
        check(x, self._of_images(layer.input_shape), f"{_WHERE}.pack_input(x)")
        split = self.planes.split(x.reshape(-1, layer.rows.size, layer.columns.size))
        split = split.unflatten(1, (self.blocks.images, -1)).transpose(1, 2).flatten(2)
        full = F.pad(split, (0, 0, 0, -split.shape[1] % count)).reshape(self.inputs, -1)
        return F.pad(full, (0, self.degree - full.shape[1]))

    def pack_weights(self, weights: Tensor) -> Tensor:
        """Return a layer's weights as polynomials, int64 (n, N): one for each product in `pairs`.

        weights: int64 of `weight_shape`. Raises InputError for another shape.
        """
        check(weights, self.layer.weight_shape, f"{_WHERE}.pack_weights(weights)")
        replies = range(self.replies // self.tiles)
        return torch.cat([self.pack_reply(weights, reply) for reply in replies])  # indices take as much memory

    def pack_reply(self, weights: Tensor, reply: int) -> Tensor:
        """Return the polynomials of one reply of a tile, int64 (n, N): those whose second number in `pairs` is `reply`.

        The inputs that they multiply follow each other (`inputs_of`). weights: int64 of `weight_shape`.
        """
        layer, count, block = self.layer, self.blocks.planes, self.blocks.outputs
        part, inputs = weights[reply * block : (reply + 1) * block], self.inputs_of[reply]
        polys, output = torch.zeros(len(inputs) * self.degree, dtype=torch.int64), torch.arange(len(part))
        plane = layer.channels(output + reply * block)[..., None, None] * self.planes.phases + self.planes.phase
        number = plane // count - inputs.start
        place = output.view(-1, 1, 1, 1) * count + count - 1 - plane % count
        exponent = place * self.room + self.planes.exponents
        kept = self.planes.kept(part)
        kept = torch.where(exponent // self.degree % 2 == 1, -kept, kept)  # X^N = -1
        polys[(number * self.degree + exponent % self.degree).flatten()] = kept.flatten()
        return polys.view(-1, self.degree)

    def unpack(self, polys: Tensor) -> Tensor:
        """Return the outputs from the replies' polynomials, int64 (replies, N).

        They are int64 of `output_shape`; of several images, (images, *output_shape).
        """
        check(polys, (self.replies, self.degree), f"{_WHERE}.unpack(polys)")
        outputs = self.layer.output_shape[0]
        tiles = zip(polys.chunk(self.tiles), self._places, strict=True)
        parts = [part[:, places].flatten(0, 1)[:outputs] for part, places in tiles]
        return self.planes.join(parts).transpose(0, 1).reshape(self._of_images(self.layer.output_shape))

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

    def _of_images(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if self.blocks.images == 1 else (self.blocks.images, *shape)

    @cached_property
    def _places(self) -> list[Tensor]:
        """The positions of outputs among the coefficients of a reply, as a list with one tensor for each tile.

        Each tensor is int64 (output channels in a reply, images, height, width).
        """
        count, block = self.blocks.planes, self.blocks.outputs
        first = (torch.arange(block) * count + count - 1) * self.room
        first = first[:, None] + torch.arange(self.blocks.images) * self.planes.size
        return [first[..., None, None] + self.planes.places(tile) for tile in self.planes.tiles]
