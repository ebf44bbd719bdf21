"""A layer tap by tap, for weights that are mostly zero: each nonzero weight takes one multiplication of a ciphertext.

A product of layout.py multiplies a ciphertext by a polynomial w whose coefficients are weights. Here w is the sum of
its monomials c X^e, one for each nonzero weight: X^e moves the coefficients of the ciphertext, c multiplies them
(kernels/ciphertexts/arithmetic.py). The sum is the same element of the ring, so the client gets the same ciphertexts,
and only the time shows which way they were computed. The work is proportional to the number of nonzero weights (Choi et
al., Impala, 2022: sparse convolution). Products cost the same for any weights.

`LayerWork` counts both ways in multiplications of a residue mod a prime, in units of 8 N, those of one product:

    product of a ciphertext and a polynomial, or a term c X^e     2 parts x 4 primes x N              1
    transform (NTT) of a ciphertext                               8 polynomials x N / 2 x log2 N      6 for N = 4096
    reply: u, e_1, e_2, both parts back; u times the key          20 polynomials x N / 2 x log2 N     15, and 1

Products need no transform, since ciphertexts come transformed. Taps transform each input back, and each sum forth.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.he.bfv.layout import Layout
from hummingbird.he.bfv.scheme import DEGREE, RING
from hummingbird.kernels import ciphertexts
from hummingbird.polynomials.layer import check

_TRANSFORM = (DEGREE.bit_length() - 1) / 2
_REPLY = 20 / 8 * _TRANSFORM + 1
MOST_NORM = 1 << 27  # of the weights of a reply: sums of residues in the kernel stay below 2^52


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


def terms(layout: Layout, weights: Tensor) -> Terms:
    """Return the nonzero weights as `Terms`, which `multiply` takes; they are the same for every tile.

    layout: of the layer. weights: int64 of its `weight_shape`. Raises InputError for another shape.

        layout = Layout.of((64, 8, 8), (64, 64, 3, 3), padding=1, images=14)
        terms(layout, torch.zeros(64, 64, 3, 3, dtype=torch.int64)).factors  # no terms
    """
    layer, planes, count, block = layout.layer, layout.planes, layout.blocks.planes, layout.blocks.outputs
    check(weights, layer.weight_shape, "he.bfv.terms(weights)")
    kept, output = planes.kept(weights), torch.arange(layer.output_shape[0])
    plane = layer.channels(output)[..., None, None] * planes.phases + planes.phase
    place = (output % block).view(-1, 1, 1, 1) * count + count - 1 - plane % count
    shifts = (place * layout.room + planes.exponents) % (2 * layout.degree)
    places = kept.nonzero(as_tuple=True)
    replies = torch.arange(layout.replies // layout.tiles + 1)
    first = torch.searchsorted(places[0] // block, replies)
    return Terms(first, (plane // count).expand(kept.shape)[places], shifts[places], kept[places])


def multiply(layout: Layout, x: Tensor, terms: Terms) -> Tensor:
    """Multiply encrypted inputs by a layer's weights, and return the sum for each reply: int32 (replies, 2, 4, N).

    The result is that of `Layout.multiply` with the same weights.
    x: ciphertexts of the inputs, int32 (inputs, 2, 4, N), from `Fresh.parts`: two polynomials each, of N coefficients
    modulo four primes. terms: the nonzero weights, from `terms`.
    Both x and the result are transformed (NTT). `evaluate` turns the result into a reply. N is `DEGREE`, 4096.
    """
    tiles = RING.intt(x).chunk(layout.tiles)
    return RING.ntt(torch.cat([ciphertexts.taps(RING, part, *terms) for part in tiles]))


class LayerWork(NamedTuple):
    """The work of the server for one message of a layer, in units of 8 N multiplications (see above).

    products, terms: how many. transforms: of ciphertexts. replies: ciphertexts of the answer.
    """

    products: int
    terms: int
    transforms: int
    replies: int

    @property
    def total(self) -> float:
        """The sum, in units of 8 N multiplications of a residue."""
        return self.products + self.terms + _TRANSFORM * self.transforms + _REPLY * self.replies

    @staticmethod
    def by_products(layout: Layout) -> LayerWork:
        """Count the work by products, which does not depend on the weights."""
        return LayerWork(layout.products, 0, 0, layout.replies)

    @staticmethod
    def by_taps(layout: Layout, nonzero: int) -> LayerWork:
        """Count the work by taps. nonzero: how many weights are not zero, of those that are in use."""
        return LayerWork(0, layout.tiles * nonzero, layout.inputs + layout.replies, layout.replies)
