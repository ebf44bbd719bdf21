"""Choose how many tiles, channels and outputs share a polynomial, so that the fewest bytes are sent.

With planes of P coefficients, C of them in an input polynomial, and O outputs in a reply, a product fits if O C P <= N
(Huang et al., Cheetah, 2022, section 3). More channels in an input polynomial mean fewer inputs, but also fewer outputs
in a reply. An input sends one polynomial modulo four primes. A reply sends one modulo two, and the coefficients with
outputs, whose number does not depend on the blocks. So an input costs as much as two replies.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import NamedTuple

from hummingbird.errors import InputError
from hummingbird.polynomials.layer import LayerShape


class Blocks(NamedTuple):
    """How many values of a layer share one polynomial. `choose` finds the best `Blocks` for a layer, and `Layout` uses
    them.

    height, width: the size of a tile, in outputs of one channel.
    planes: how many planes one input polynomial holds. A plane has the values of one channel that a tile reads
    (polynomials/planes.py).
    outputs: how many output channels one reply polynomial holds.
    images: how many images share a polynomial.
    """

    height: int
    width: int
    planes: int
    outputs: int
    images: int = 1


@lru_cache(maxsize=1024)
def choose(layer: LayerShape, degree: int, images: int = 1) -> Blocks:
    """Return the `Blocks` (sizes of tiles and of groups of channels) with which a layer sends the fewest bytes.

    Of blocks with equally many bytes, those with the fewest products of polynomials win, then those with the fewest
    replies.
    degree: number of coefficients of a polynomial. images: how many share a polynomial.
    Raises InputError if the kernel spans more than `degree / images` values of a channel.
    """
    rows, columns, outputs = layer.rows, layer.columns, layer.output_shape[0]
    phases = len(rows.phases) * len(columns.phases)
    planes = layer.input_shape[0] * phases
    best: Blocks | None = None
    least: tuple[int, ...] = ()
    counts = even(planes)
    for height, width, plane in tiles_of(layer, degree // images):
        room = plane * images
        tiles = -(-rows.outputs // height) * -(-columns.outputs // width)
        if best and 3 * tiles > least[0]:
            continue  # even one input and one reply for each tile send more than the best
        for count in counts[: bisect_right(counts, degree // room)]:
            block = largest_even(outputs, degree // (room * count))
            inputs, replies = -(-planes // count), -(-outputs // block)
            sent = tiles * (2 * inputs + replies)
            if best and sent > least[0]:
                continue
            products = tiles * sum(map(len, connected(layer, phases, count, block)))
            price = (sent, products, tiles * replies)
            if not best or price < least:
                best, least = Blocks(height, width, count, block, images), price
    assert best  # tiles_of returns at least one tile, and one plane and one output fit it
    return best


def connected(layer: LayerShape, phases: int, count: int, block: int) -> list[range]:
    """List for each reply of one tile which input polynomials it depends on: a range of their numbers.

    A reply is a polynomial with the results of `block` output channels.
    phases: number of planes that one input channel is split into; it is above 1 only with a stride.
    count: number of planes in an input polynomial.
    block: number of output channels in a reply.
    """
    outputs, groups, of_group = layer.output_shape[0], layer.groups, layer.weight_shape[1] * phases
    found = []
    for first in range(0, outputs, block):
        last = min(first + block, outputs) - 1
        start, stop = (group * of_group for group in (first * groups // outputs, last * groups // outputs + 1))
        found.append(range(start // count, -(-stop // count)))
    return found


def tiles_of(layer: LayerShape, degree: int) -> list[tuple[int, int, int]]:
    """List all tiles whose plane fits a polynomial, as (height, width, coefficients of the plane), largest first.

    A plane has one channel's values for a tile. degree: coefficients of a polynomial. Raises InputError if not even a
    tile of one output fits.
    """
    axes = layer.rows, layer.columns
    heights, widths = ([(size, axis.room(size)) for size in even(axis.outputs)] for axis in axes)
    found = [
        (height, width, down * across)
        for height, down in reversed(heights)
        for width, across in reversed(widths)
        if down * across <= degree
    ]
    if not found:
        spans = " x ".join(str(axis.room(1)) for axis in axes)
        what = f"a kernel that spans {spans} input values, of {degree} that a polynomial holds"
        raise InputError(what, where="polynomials.tiles_of(layer)", hint="use a smaller kernel or dilation")
    return found


def even(total: int) -> list[int]:
    """List all sizes that the largest part can have if `total` things are cut into 1, 2, 3 ... parts as evenly as
    possible.

    The sizes are ascending; there are about 2 sqrt(total).
    """
    sizes, parts = [total], 1
    while sizes[-1] > 1:
        parts = -(-total // (sizes[-1] - 1))  # the fewest parts that have a smaller size
        sizes.append(-(-total // parts))
    return sizes[::-1]


def largest_even(total: int, most: int) -> int:
    """Return the size of the parts when `total` is cut evenly into the fewest parts of at most `most`."""
    return -(-total // -(-total // most))
