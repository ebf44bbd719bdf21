"""Material of products with weights W that one party holds in clear (mpc/protocols/owned.py): shares of c = op(a, W).

The other party draws the mask a of an input, encrypts it under a new key of its own, and sends the ciphertexts, with
the public key, an encryption of 0, as the last of them. The owner multiplies them by its weights and answers with W a
less a uniform s, which is its share (encrypted.py). Nothing else is sent, in two rounds. A convolution takes the layout
of polynomials/layout.py, in which an input is encrypted once for all positions of the kernel; images of a batch share
polynomials. Blocks, degree and primes are those with the fewest bytes.

    matmul                  every row of the input is an image of one pixel
    three dimensions        the planes that an output plane reads are channels of one image
    transposed              a convolution of values with gaps, by the flipped kernel

A product with factors (op "mul") has transfers instead: the bits of W, plus 2^(v-1) so that they are not negative, are
the owner's choices, and carry the elements of a that they multiply, as in products.py:

    W a = sum of 2^j u_j a - 2^(v-1) a,      W + 2^(v-1) = sum of 2^j u_j,  0 <= j < v
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird import kernels, prg, ring
from hummingbird.errors import InputError
from hummingbird.mpc.pair import encrypted
from hummingbird.mpc.pair.encrypted import MOST_TERMS, SECURE, Encryption, PairKeys
from hummingbird.mpc.pair.lockstep import Rounds, together
from hummingbird.mpc.pair.matrices import options_of
from hummingbird.mpc.pair.price import TURNED, PairPrice
from hummingbird.mpc.pair.products import Broadcast, crossed
from hummingbird.mpc.pair.recipe import MaterialRecipe, Part
from hummingbird.mpc.pair.transfers import Side
from hummingbird.mpc.protocols.owned import OwnedProduct
from hummingbird.polynomials.blocks import Blocks, even, largest_even, tiles_of
from hummingbird.polynomials.layer import LayerShape
from hummingbird.polynomials.layout import Packing

# A product as a convolution of images ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImagesProduct:
    """A product of an input and weights as a convolution of images with two dimensions.

    layer: its shapes. count: how many images there are. images, weights: arrange an input as (count, *input_shape) and
    weights as `weight_shape`. result: arranges the images' outputs, (count, *output_shape), as those of the product.
    """

    layer: LayerShape
    count: int
    images: Callable[[Tensor], Tensor]
    weights: Callable[[Tensor], Tensor]
    result: Callable[[Tensor], Tensor]


def product_of_images(request: OwnedProduct) -> ImagesProduct:
    """Return a request's product as a convolution of images. Raises InputError for shapes that it does not take."""
    out = request.derived["c"].shape
    if request.op == "matmul":
        if len(request.size1) != 2:
            raise InputError("weights that are no matrix", hint="weights (in, out)")
        inner, columns = request.size1
        return ImagesProduct(
            LayerShape.of((inner,), (columns, inner)),
            math.prod(request.size0[:-1]),
            lambda x: x.reshape(-1, inner),
            lambda weights: weights.t().contiguous(),
            lambda found: found.reshape(out),
        )
    if len(request.size0) != len(request.size1):
        raise InputError("its input has no dimension of images", hint="give it one, of size 1")
    count, channels, *sides = request.size0
    flat, turned = (1,) * (3 - len(sides)), request.op.startswith("conv_transpose")
    stride, padding, dilation, more, (groups, *_) = options_of(request.kwargs, len(sides))
    stride, padding, dilation, more = (
        [rest] * len(flat) + each for rest, each in ((1, stride), (0, padding), (1, dilation), (0, more))
    )
    kernel, step = [*flat, *request.size1[2:]], [1, 1, 1] if turned else stride
    reach = [by * (size - 1) for by, size in zip(dilation, kernel, strict=True)]
    margins = [(padding[0], padding[0]), (0, 0), (0, 0)]
    if turned:
        margins = [(far - by, far - by + end) for far, by, end in zip(reach, padding, more, strict=True)]

    def images(x: Tensor) -> Tensor:
        x = x.reshape(count, channels, *flat, *sides)
        if turned:
            gaps = x.new_zeros(*x.shape[:2], *(by * (n - 1) + 1 for by, n in zip(stride, x.shape[2:], strict=True)))
            gaps[:, :, :: stride[0], :: stride[1], :: stride[2]] = x
            x = gaps
        x = F.pad(x, [margin for both in reversed(margins) for margin in both])
        planes = x.unfold(2, reach[0] + 1, step[0])[..., :: dilation[0]].permute(0, 2, 1, 5, 3, 4)
        return planes.flatten(0, 1).flatten(1, 2)

    def weights(code: Tensor) -> Tensor:
        return ring.arranged(request.op, code, groups).flatten(1, 2)

    (number, *image), kernels_ = (
        tuple(arrange(torch.empty(size, device="meta")).shape)
        for arrange, size in ((images, request.size0), (weights, request.size1))
    )
    return ImagesProduct(
        LayerShape.of(image, kernels_, step[1:], [0, 0] if turned else padding[1:], dilation[1:], groups),
        number,
        images,
        weights,
        lambda found: found.reshape(count, -1, *found.shape[1:]).transpose(1, 2).reshape(out),
    )


# Blocks ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnedBlocks:
    """How a product is cut into polynomials. packing: of the images of one set. sets: how many. how: the encryption."""

    packing: Packing
    sets: int
    how: Encryption

    @property
    def inputs(self) -> int:
        """How many polynomials are encrypted, the public key left out."""
        return self.sets * self.packing.inputs

    @property
    def used(self) -> list[Tensor]:
        """For each reply, by set, tile and outputs, the places of coefficients with outputs, int64 (values,)."""
        return list(self.packing.used) * self.sets

    @property
    def message_bytes(self) -> tuple[int, int]:
        """The bytes of the message with the encrypted mask, and of the answer."""
        values = self.sets * self.packing.blocks.images * math.prod(self.packing.layer.output_shape)
        return _bytes(self.how, self.inputs + 1, self.sets * self.packing.replies, values)


@lru_cache(maxsize=1024)
def blocks_of(layer: LayerShape, count: int, bits: int, factor: int) -> OwnedBlocks | None:
    """Return the blocks with which a product mod 2^bits takes the fewest bytes; None if no encryption is enough.

    layer: for one image. count: how many images. factor: bits of a weight.
    """
    outputs, of_output = layer.output_shape[0], math.prod(layer.weight_shape[1:])
    planes = layer.input_shape[0] * len(layer.rows.phases) * len(layer.columns.phases)
    best: OwnedBlocks | None = None
    least = 0, 0
    for degree in SECURE:
        # No blocks take fewer primes than those with one output in a reply.
        fewest = Encryption.of(bits, of_output, count * math.prod(layer.output_shape), factor, degree)
        for height, width, room in _tiles(layer, degree):
            number = -(-layer.rows.outputs // height) * -(-layer.columns.outputs // width)
            for images, channels in product(even(count), even(planes)):
                if images * channels * room > degree:
                    continue
                sets, block = -(-count // images), largest_even(outputs, degree // (channels * images * room))
                inputs, replies = -(-planes // channels), -(-outputs // block)
                values = sets * images * math.prod(layer.output_shape)
                polys = sets * number * inputs + 1, sets * number * replies
                if fewest is None or best and sum(_bytes(fewest, *polys, values)) > least[0]:
                    continue
                how = Encryption.of(bits, block * of_output, values, factor, degree)
                if how is None or inputs > MOST_TERMS:
                    continue
                price = sum(_bytes(how, *polys, values)), sum(polys)
                if best is None or price < least:
                    packing = Packing(layer, degree, Blocks(height, width, channels, block, images))
                    best, least = OwnedBlocks(packing, sets, how), price
    return best


def _tiles(layer: LayerShape, degree: int) -> list[tuple[int, int, int]]:
    try:
        return tiles_of(layer, degree)
    except InputError:  # not even one output fits
        return []


def _bytes(how: Encryption, inputs: int, replies: int, values: int) -> tuple[int, int]:
    return how.new_bytes(inputs), how.answer_bytes(replies, values)


def _blocks(request: OwnedProduct) -> tuple[ImagesProduct, OwnedBlocks]:
    product = product_of_images(request)
    found = blocks_of(product.layer, product.count, request.bits, request.weight)
    assert found is not None, "the request was refused"
    return product, found


# Both parties ---------------------------------------------------------------------------------------------------------


def _asked(request: OwnedProduct) -> Rounds[dict[str, Tensor]]:
    """The part of the party without weights: draw a mask; return it, and this party's share of its product."""
    product, blocks = _blocks(request)
    how, packing, a = blocks.how, blocks.packing, prg.fresh().words(*request.size0)
    images = product.images(a)
    images = F.pad(images, (*[0] * (2 * images.dim() - 1), blocks.sets * packing.blocks.images - len(images)))
    polys = torch.cat([packing.pack_input(part) for part in _sets(blocks, images)])
    secret = encrypted.new_secret(how.ring)
    yield [encrypted.encrypt(secret, how, F.pad(polys, (0, 0, 0, 1)))], []
    (answer,) = yield [], [blocks.message_bytes[1]]
    values = encrypted.decrypt(secret, how, answer, blocks.used)
    return {"a": a, "c": _unpacked(product, blocks, values)}


def _answered(request: OwnedProduct, weight: Tensor) -> Rounds[dict[str, Tensor]]:
    """The owner's part: return a mask of zeros, and this party's share of the product."""
    product, blocks = _blocks(request)
    how, packing = blocks.how, blocks.packing
    (asked,) = yield [], [blocks.message_bytes[0]]
    weights = product.weights(weight.cpu().view(request.size1))
    fresh = encrypted.received(how, asked, blocks.inputs + 1)
    inputs, public = fresh[:-1].unflatten(0, (blocks.sets, packing.tiles, -1)), fresh[-1]
    used, replies = blocks.used, packing.replies // packing.tiles
    masks = prg.fresh().words(sum(map(len, used)))
    of_replies, found = masks.split([len(places) for places in used]), dict[int, tuple[Tensor, Tensor]]()
    for reply, numbers in enumerate(packing.inputs_of):
        own = encrypted.factors(how, packing.pack_reply(weights, reply))
        for at, of_tile in enumerate(inputs.flatten(0, 1)):
            sums = encrypted.summed(how, of_tile[numbers.start : numbers.stop], own)
            number = at * replies + reply
            found[number] = encrypted.answers(public, how, sums, of_replies[number], [used[number]])
    yield [encrypted.joined(how, [found[number] for number in range(len(used))])], []
    return {"a": torch.zeros(request.size0, dtype=torch.int64), "c": _unpacked(product, blocks, masks)}


def _sets(blocks: OwnedBlocks, images: Tensor) -> Sequence[Tensor]:
    size = blocks.packing.blocks.images
    return images.unbind() if size == 1 else images.split(size)


def _unpacked(product: ImagesProduct, blocks: OwnedBlocks, values: Tensor) -> Tensor:
    """Return the product, int64 in its shape, of the values at the places `blocks.used`."""
    packing, used = blocks.packing, blocks.used
    polys = torch.zeros(len(used), packing.degree, dtype=torch.int64)
    polys[torch.repeat_interleave(torch.tensor([len(places) for places in used])), torch.cat(used)] = values
    out = torch.stack([packing.unpack(part) for part in polys.split(packing.replies)])
    return product.result((out if packing.blocks.images == 1 else out.flatten(0, 1))[: product.count])


# Factors --------------------------------------------------------------------------------------------------------------


def _broadcast(request: OwnedProduct) -> Broadcast:
    """How weights meet the input's elements, one for each element of the result."""
    return Broadcast(request.derived["c"].shape, request.size1)


def _by_bits(request: OwnedProduct, side: Side, weight: Tensor | None) -> Rounds[dict[str, Tensor]]:
    """Either party's part for factors. weight: the owner's, else None."""
    how, bits = _broadcast(request), min(request.weight, request.bits)
    moved = 1 << bits - 1 if bits < request.bits else 0  # else the bits are those of W mod 2^bits
    a = torch.zeros(request.size0, dtype=torch.int64) if weight is not None else prg.fresh().words(*request.size0)
    order = how.arranged(torch.arange(how.times * how.elements).view(how.times, -1)).flatten()
    rows = torch.empty(how.times * how.elements, dtype=torch.int64)
    rows[order] = a.expand(how.size).reshape(-1)
    rows = F.pad(rows.view(how.times, -1), (0, side.n - how.elements))
    shifted = torch.zeros(side.n, dtype=torch.int64)
    if weight is not None:
        shifted[: how.elements] = weight.cpu().flatten() + moved
    planes = kernels.to_planes(shifted, 0, bits)
    rots = yield from together(*(side.rot().turned(plane) for plane in planes))
    found = yield from crossed(rots, request.bits, rows)
    return {"a": a, "c": how.arranged(found - rows * moved).flatten()}


class _Owned(MaterialRecipe[OwnedProduct]):
    """Products with weights of one party."""

    kind = OwnedProduct
    instead = "use fewer bits, smaller layers or fewer images at a time, or a dealer"

    def refuses(self, request: OwnedProduct) -> str:
        if request.op == "mul":
            return _broadcast(request).refused
        if not _elements(request):
            return "a tensor without elements"
        try:
            product = product_of_images(request)
        except InputError as error:
            return error.what
        found = blocks_of(product.layer, product.count, request.bits, request.weight)
        return "" if found else f"no secure encryption hides a product of {request.bits} bits of this size"

    def parts(self, request: OwnedProduct, transfer_bits: float) -> list[Part]:
        if request.op != "mul" or not _elements(request):
            return []
        how, bits = _broadcast(request), min(request.weight, request.bits)
        each = sum(request.bits - j for j in range(bits))
        price = TURNED.times(bits) + PairPrice(sent=how.times * each, rounds=1)
        return [Part(-(-how.elements // 16) * 16, 1 - request.owner, price)]

    def total(self, request: OwnedProduct, transfer_bits: float) -> PairPrice:
        if request.op == "mul":
            return super().total(request, transfer_bits)
        up, down = (8 * size for size in _blocks(request)[1].message_bytes)
        price = PairPrice(sent=up, returned=down, rounds=2)
        return price if request.owner else price.turned

    def made(
        self,
        request: OwnedProduct,
        sides: Sequence[Side],
        keys: PairKeys | None,
        rank: int,
        transfer_bits: float,
        weights: Mapping[int, Tensor],
    ) -> Rounds[dict[str, Tensor]]:
        weight = weights[request.key] if rank == request.owner else None
        if request.op != "mul":
            return (yield from _asked(request) if weight is None else _answered(request, weight))
        if not sides:
            return {name: torch.zeros(item.shape, dtype=torch.int64) for name, item in request.parts.items()}
        return (yield from _by_bits(request, sides[0], weight))


def _elements(request: OwnedProduct) -> bool:
    return bool(math.prod(request.size0) and math.prod(request.size1))


OWNED = _Owned()
