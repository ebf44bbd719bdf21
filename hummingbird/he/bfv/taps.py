"""A convolution tap by tap: for weights that are mostly zero, and several inferences at once.

A polynomial holds one plane (one channel and phase) of as many images as fit, N / (R S). An output is a sum over the
nonzero weights, each times its input channel shifted by a monomial (kernels/ciphertexts/arithmetic.py). So the work is
proportional to the number of nonzero weights, while the products of layout.py cost the same for any weights (Choi et
al., Impala, 2022: sparse convolution). Each image takes a plane with its gaps, as each channel does in layout.py.

The time of an answer reveals how many weights are zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird import cost
from hummingbird.he.bfv.scheme import DEGREE, RING
from hummingbird.kernels import ciphertexts
from hummingbird.polynomials import blocks
from hummingbird.polynomials.layer import LayerShape, check, check_degree
from hummingbird.polynomials.planes import Planes

_WHERE = "he.bfv.Taps"


class Terms(NamedTuple):
    """The nonzero weights of a layer, as int64 tensors that say how the polynomials of one tile are computed.

    Output polynomial o is the sum of terms first[o] .. first[o + 1] - 1. Term t is factors[t] times input polynomial
    inputs[t], with its coefficients moved by shifts[t] positions. The kernel `kernels.ciphertexts.taps` takes these
    tensors.
    """

    first: Tensor
    inputs: Tensor
    shifts: Tensor
    factors: Tensor


@dataclass(frozen=True)
class Taps:
    """The public mapping of a layer's values to polynomials, for weights that are mostly zero. `Taps.of` makes it.

    An input polynomial has one plane of each of several images; a plane has one channel's values for a tile
    (polynomials/planes.py). A reply polynomial has one output channel of each of these images. The polynomials of the
    inputs are ordered by tile, and so are those of the replies.
    """

    layer: LayerShape
    degree: int
    planes: Planes

    @staticmethod
    def of(
        input_shape: Sequence[int],
        weight_shape: Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        degree: int = DEGREE,
    ) -> Taps:
        """Make the mapping with which a layer fills the fewest polynomials for each image.

        input_shape: (C, H, W), (C, L) or (features,); weight_shape: as in torch. stride, padding, dilation: one number,
        or one for each dimension. degree: coefficients of a polynomial, N. Raises the errors of `Layout.of`.

            taps = Taps.of((64, 8, 8), (64, 64, 3, 3), padding=1)  # 50 images
        """
        check_degree(degree, f"{_WHERE}.of")
        layer = LayerShape.of(input_shape, weight_shape, stride, padding, dilation, groups)

        def sent(tile: tuple[int, int, int]) -> float:
            height, width, size = tile
            return -(-layer.rows.outputs // height) * -(-layer.columns.outputs // width) / (degree // size)

        height, width, _ = min(blocks.tiles_of(layer, degree), key=sent)
        return Taps(layer, degree, Planes(layer.rows, layer.columns, height, width))

    @property
    def images(self) -> int:
        """Number of images whose values share a polynomial."""
        return self.degree // self.planes.size

    @property
    def tiles(self) -> int:
        """Number of tiles that the output is cut into."""
        return len(self.planes.tiles)

    @property
    def inputs(self) -> int:
        """Number of polynomials that the inputs of all tiles fill: the ciphertexts that the client sends."""
        return self.tiles * self.layer.input_shape[0] * self.planes.phases

    @property
    def replies(self) -> int:
        """Number of polynomials that the outputs of all tiles fill: the ciphertexts that the server sends back."""
        return self.tiles * self.layer.output_shape[0]

    @property
    def up_bytes(self) -> int:
        """Size in bytes of the client's message with the encrypted inputs of all images, for polynomials of `DEGREE`
        coefficients.
        """
        return cost.bfv_fresh(self.inputs)

    @property
    def down_bytes(self) -> int:
        """Size in bytes of the server's message, which holds the replies for all images."""
        return cost.bfv_reply(self.replies, self.images * math.prod(self.layer.output_shape))

    def pack_input(self, x: Tensor) -> Tensor:
        """Return the inputs of several images as polynomials for `Secret.encrypt`, int64 (inputs, N).

        x: the inputs, int64 (images, *input_shape). Raises InputError for another shape.
        """
        layer = self.layer
        check(x, (self.images, *layer.input_shape), f"{_WHERE}.pack_input(x)")
        split = self.planes.split(x.reshape(-1, layer.rows.size, layer.columns.size))
        full = split.unflatten(1, (self.images, -1)).transpose(1, 2).reshape(self.inputs, -1)
        return F.pad(full, (0, self.degree - full.shape[1]))

    def terms(self, weights: Tensor) -> Terms:
        """Return the nonzero weights as `Terms`, which `multiply` takes; they are the same for every tile.

        weights: int64 of `weight_shape`.
        """
        layer, planes = self.layer, self.planes
        check(weights, layer.weight_shape, f"{_WHERE}.terms(weights)")
        kept = planes.kept(weights)
        channels = layer.channels(torch.arange(layer.output_shape[0]))
        plane = (channels[..., None, None] * planes.phases + planes.phase).expand(kept.shape)
        output, *_ = places = kept.nonzero(as_tuple=True)
        first = torch.searchsorted(output, torch.arange(layer.output_shape[0] + 1))
        shifts = (planes.exponents % (2 * self.degree)).expand(kept.shape)
        return Terms(first, plane[places], shifts[places], kept[places])

    def multiply(self, x: Tensor, terms: Terms) -> Tensor:
        """Multiply encrypted inputs by a layer's weights, and return the sum for each reply: int32 (replies, 2, 4, N).

        x: ciphertexts of the inputs, int32 (inputs, 2, 4, N), from `Fresh.parts`: two polynomials each, of N
        coefficients modulo four primes.
        terms: the nonzero weights, from `Taps.terms`.
        Both x and the result are transformed (NTT). `evaluate` turns the result into a reply. N is `DEGREE`, 4096.
        """
        tiles = RING.intt(x).chunk(self.tiles)
        return RING.ntt(torch.cat([ciphertexts.taps(RING, part, *terms) for part in tiles]))

    def unpack(self, polys: Tensor) -> Tensor:
        """Return the outputs, int64 (images, *output_shape), from the decrypted polynomials, int64 (replies, N)."""
        check(polys, (self.replies, self.degree), f"{_WHERE}.unpack(polys)")
        tiles = zip(polys.chunk(self.tiles), self._places, strict=True)
        out = self.planes.join([part[:, places] for part, places in tiles])
        return out.transpose(0, 1).reshape(self.images, *self.layer.output_shape)

    @cached_property
    def used(self) -> tuple[Tensor, ...]:
        """The positions of the coefficients that hold outputs: for each reply a tensor int64 (values,), ascending."""
        return tuple(places.flatten() for places in self._places for _ in range(self.layer.output_shape[0]))

    def norms(self, weights: Tensor) -> int:
        """Return the factor by which this layer's weights can enlarge the noise of a ciphertext, an int.

        It is the largest sum of |weights| over one output channel. weights: the layer's, int64 of `weight_shape`.
        """
        check(weights, self.layer.weight_shape, f"{_WHERE}.norms(weights)")
        return int(self.planes.kept(weights).abs().flatten(1).sum(1).max())

    @cached_property
    def _places(self) -> list[Tensor]:
        """The positions of outputs among the coefficients of a reply, as a list with one tensor for each tile.

        Each tensor is int64 (images, height, width), as a reply has one output channel.
        """
        first = torch.arange(self.images)[:, None, None] * self.planes.size
        return [first + self.planes.places(tile) for tile in self.planes.tiles]
