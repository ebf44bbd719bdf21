"""Material of matrix products and convolutions: shares of a b for random shared matrices, by encrypted products.

    a b = a^0 b^0 + a^1 b^1 + a^0 b^1 + a^1 b^0

Each party encrypts its share of a, multiplies the other party's by its own share of b, and answers with the product
less a random mask, which is its share (encrypted.py). Or they encrypt b, if that takes fewer bytes. Both parties do the
same work, in two rounds.

*Blocks.* Of a stack of products x w of matrices (I, J) and (J, L), a polynomial holds a block of i x j of x, and an own
one a block of j x m of w, with i j m <= N (Huang et al., Cheetah, USENIX Security 2022, section 3, in another order):

    sum x[a, b] X^(a j m + j - 1 - b)        sum w[b, c] X^(c j + b)

Entry (a, c) of their product is the coefficient of X^((a m + c) j + j - 1): the other terms are off by less than j. The
answers for blocks along J are added before they are sent. The blocks are those with the fewest bytes.

Small matrices are multiplied by transfers, if that takes fewer bytes (terms.py).

A convolution is the product of its weights (O, J) and of the values that each of its outputs reads (J, outputs), a
stack of them for groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird import prg, ring
from hummingbird.mpc.pair import encrypted
from hummingbird.mpc.pair.encrypted import DEGREE, MOST_TERMS, Encryption, PairKeys, key_bytes
from hummingbird.mpc.pair.lockstep import Rounds
from hummingbird.mpc.pair.price import PairPrice
from hummingbird.mpc.pair.recipe import MaterialRecipe, Part
from hummingbird.mpc.pair.terms import BY_TERMS
from hummingbird.mpc.pair.transfers import Side
from hummingbird.mpc.protocols.beaver import Triple


class StackSizes(NamedTuple):
    """The sizes of a stack of matrix products, (batch, rows, inner) times (batch, inner, columns)."""

    batch: int
    rows: int
    inner: int
    columns: int


@dataclass(frozen=True)
class MatrixBlocks:
    """How a stack of products of encrypted matrices with own ones is cut into polynomials. `blocks_of` makes it.

    sizes: the encrypted matrices are (batch, rows, inner), the own ones (batch, inner, columns).
    block: the sizes of a block; its `batch` is 1.
    how: the encryption.
    """

    sizes: StackSizes
    block: StackSizes
    how: Encryption

    @property
    def count(self) -> StackSizes:
        """How many blocks there are along each dimension."""
        return StackSizes(*(-(-size // part) for size, part in zip(self.sizes, self.block, strict=True)))

    @property
    def inputs(self) -> int:
        """How many polynomials are encrypted."""
        return math.prod(self.count[:3])

    @property
    def replies(self) -> int:
        """How many polynomials are answered."""
        return self.count.batch * self.count.rows * self.count.columns

    @property
    def used(self) -> Tensor:
        """The places of a reply's coefficients that hold entries of the result, int64 (rows columns of a block,)."""
        return torch.arange(self.block.rows * self.block.columns) * self.block.inner + self.block.inner - 1

    @property
    def message_bytes(self) -> tuple[int, int]:
        """The bytes of a party's message with encrypted matrices, and of its answer."""
        values = self.replies * self.block.rows * self.block.columns
        return self.how.new_bytes(self.inputs), self.how.answer_bytes(self.replies, values)

    def encrypted_polys(self, x: Tensor) -> Tensor:
        """Return the polynomials to be encrypted, int64 (inputs, N), of matrices (batch, rows, inner)."""
        (_, i, j, m), (batch, rows, inner, _) = self.block, self.count
        x = F.pad(x, (0, inner * j - x.shape[2], 0, rows * i - x.shape[1]))
        x = x.view(batch, rows, i, inner, j).transpose(2, 3).flip(-1)
        return F.pad(F.pad(x, (0, (m - 1) * j)).reshape(self.inputs, i * j * m), (0, DEGREE - i * j * m))

    def own_polys(self, w: Tensor) -> Tensor:
        """Return the polynomials of own columns, (inner, m) or less: int64 (blocks along the inner dimension, j m)."""
        _, _, j, m = self.block
        inner = self.count.inner
        w = F.pad(w, (0, m - w.shape[1], 0, inner * j - w.shape[0])).view(inner, j, m).transpose(1, 2)
        return w.reshape(inner, m * j)

    def result(self, values: Tensor) -> Tensor:
        """Return the products, int64 (batch, rows, columns), of all replies' coefficients, (replies, `used`)."""
        (_, i, _, m), (batch, rows, _, columns) = self.block, self.count
        out = values.view(batch, columns, rows, i, m).permute(0, 2, 3, 1, 4).reshape(batch, rows * i, columns * m)
        return out[:, : self.sizes.rows, : self.sizes.columns]


@lru_cache(maxsize=1024)
def blocks_of(sizes: StackSizes, bits: int) -> MatrixBlocks | None:
    """Return the blocks with which products mod 2^bits take the fewest bytes; None if no encryption is enough.

    sizes: at least 1 each.
    """
    best, least = None, (0, 0)
    for i in _even(min(sizes.rows, DEGREE)):
        for m in _even(min(sizes.columns, DEGREE // i)):
            j = -(-sizes.inner // -(-sizes.inner // min(sizes.inner, DEGREE // (i * m))))
            block = StackSizes(1, i, j, m)
            parts = MatrixBlocks(sizes, block, Encryption(bits, 0, 0, 0, bits))
            values = parts.replies * i * m
            how = Encryption.of(bits, sizes.inner * m, values)
            if parts.count.inner > MOST_TERMS or how is None:
                continue
            found = replace(parts, how=how)
            price = sum(found.message_bytes), parts.inputs + parts.replies
            if best is None or price < least:
                best, least = found, price
    return best


def _even(total: int) -> list[int]:
    """List the sizes of the largest part if `total` things are cut into 1, 2, 3 ... parts as evenly as possible."""
    sizes = [total]
    while sizes[-1] > 1:
        parts = -(-total // (sizes[-1] - 1))
        sizes.append(-(-total // parts))
    return sizes


def crossed(keys: PairKeys, blocks: MatrixBlocks, x: Tensor, w: Tensor) -> Rounds[Tensor]:
    """Return a share of x^0 w^1 + x^1 w^0, int64 (batch, rows, columns), of both parties' matrices; 2 rounds.

    x, w: this party's, int64 of the sizes of `blocks`. The bits above those of the encryption are arbitrary.
    Cost: `blocks.message_bytes` each way.
    """
    how, count, columns = blocks.how, blocks.count, blocks.block.columns
    sizes, used = blocks.message_bytes, blocks.used
    (theirs,) = yield [encrypted.encrypt(keys.secret, how, blocks.encrypted_polys(x))], sizes[:1]
    inputs = encrypted.received(how, theirs, blocks.inputs).unflatten(0, count[:3])
    masks = prg.fresh().words(blocks.replies, len(used))
    parts = []
    for number, mask in enumerate(masks.view(count.batch * count.columns, count.rows, -1)):
        matrix, column = divmod(number, count.columns)
        own = encrypted.factors(how, blocks.own_polys(w[matrix][:, column * columns : (column + 1) * columns]))
        sums = torch.cat([encrypted.summed(how, rows, own) for rows in inputs[matrix]])
        parts.append(encrypted.answers(keys.public, how, sums, mask.flatten(), [used] * len(sums)))
    del inputs
    (answer,) = yield [encrypted.joined(how, parts)], sizes[1:]
    return blocks.result(masks + encrypted.decrypt(keys.secret, how, answer, [used] * blocks.replies).view_as(masks))


# Requests as stacks of matrix products --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """A product of two tensors as a stack of matrix products.

    sizes: of the stack. operands: arranges both tensors as matrices, (batch, rows, inner) and (batch, inner, columns).
    result: arranges the stack's results, (batch, rows, columns), as those of the product.
    """

    sizes: StackSizes
    operands: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    result: Callable[[Tensor], Tensor]

    def blocks(self, bits: int) -> tuple[bool, MatrixBlocks | None]:
        """Return whether the second operand is encrypted, and the blocks; None if no encryption is enough.

        If it is, all matrices are transposed.
        """
        batch, rows, inner, columns = self.sizes
        found = [
            (turned, blocks_of(sizes, bits))
            for turned, sizes in ((False, self.sizes), (True, StackSizes(batch, columns, inner, rows)))
        ]
        return min(found, key=lambda one: math.inf if one[1] is None else sum(one[1].message_bytes))

    def crossed(self, keys: PairKeys, bits: int, a: Tensor, b: Tensor) -> Rounds[Tensor]:
        """Return a share of a^0 b^1 + a^1 b^0, in the shape of the product, mod 2^bits; 2 rounds."""
        turned, blocks = self.blocks(bits)
        assert blocks is not None
        left, right = self.operands(a, b)
        if turned:
            left, right = right.transpose(1, 2), left.transpose(1, 2)
        found = yield from crossed(keys, blocks, left, right)
        return self.result(found.transpose(1, 2) if turned else found)

    def primes(self, bits: int) -> int:
        """Return modulo how many primes `crossed` takes keys."""
        _, blocks = self.blocks(bits)
        return blocks.how.primes if blocks else 0

    def price(self, bits: int) -> PairPrice:
        """Return the price of `crossed`."""
        _, blocks = self.blocks(bits)
        assert blocks is not None
        sent = 8 * sum(blocks.message_bytes)
        return PairPrice(sent=sent, returned=sent, rounds=2)


def matmul_stack(size0: tuple[int, ...], size1: tuple[int, ...]) -> Stack:
    """Return a matrix product of torch's as a stack. size0, size1: of the operands, as torch takes them."""
    left, right = (1, *size0)[-max(2, len(size0)) :], (*size1, 1)[: max(2, len(size1))]
    (rows, inner), columns, batch = left[-2:], right[-1], torch.broadcast_shapes(left[:-2], right[:-2])
    size = (*batch, *([rows] if len(size0) > 1 else []), *([columns] if len(size1) > 1 else []))
    if math.prod(right[:-2]) == 1:  # one right matrix: all left ones are rows of one matrix
        return Stack(
            StackSizes(1, math.prod(left[:-1]), inner, columns),
            lambda a, b: (a.reshape(1, -1, inner), b.reshape(1, inner, columns)),
            lambda out: out.reshape(size),
        )
    if math.prod(left[:-2]) == 1:
        return Stack(
            StackSizes(1, rows, inner, math.prod(batch) * columns),
            lambda a, b: (
                a.reshape(1, rows, inner),
                b.reshape(-1, inner, columns).transpose(0, 1).reshape(1, inner, -1),
            ),
            lambda out: out.view(rows, -1, columns).transpose(0, 1).reshape(size),
        )
    return Stack(
        StackSizes(math.prod(batch), rows, inner, columns),
        lambda a, b: (
            a.reshape(left).expand(*batch, rows, inner).reshape(-1, rows, inner),
            b.reshape(right).expand(*batch, inner, columns).reshape(-1, inner, columns),
        ),
        lambda out: out.reshape(size),
    )


def refused(stack: Stack, bits: int) -> str:
    """Say why two parties cannot make a stack of products mod 2^bits; "" if they can."""
    if not math.prod(stack.sizes):
        return "a matrix without elements"
    return "" if stack.blocks(bits)[1] else f"no secure encryption hides a product of {bits} bits of this size"


def convolution_stack(request: Triple) -> Stack:
    """Return a convolution as a stack of one product for each group, of the weights and the values that are read."""
    (images, channels, *sides), kernel, out = request.size0, request.size1[2:], request.derived["c"].shape
    stride, padding, dilation, more, (groups, *_) = options_of(request.kwargs, len(sides))
    index = torch.arange(1, 1 + math.prod(sides)).view(tuple(sides))  # 0 stands for a margin's zero
    margins = [(side, side) for side in padding]
    if request.op.startswith("conv_transpose"):  # as in ring.py: a convolution of values with gaps, kernels flipped
        gaps = torch.zeros([step * (side - 1) + 1 for step, side in zip(stride, sides, strict=True)], dtype=index.dtype)
        gaps[tuple(slice(None, None, step) for step in stride)] = index
        index, reach = gaps, [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
        margins = [(far - side, far - side + end) for far, side, end in zip(reach, padding, more, strict=True)]
        stride = [1] * len(sides)
    index = F.pad(index, [margin for both in reversed(margins) for margin in both])
    for at, (size, step, apart) in enumerate(zip(kernel, stride, dilation, strict=True)):
        index = index.unfold(at, apart * (size - 1) + 1, step)[..., ::apart]
    read = index.reshape(math.prod(out[2:]), -1)
    inner, outputs = channels // groups * read.shape[1], out[1]

    def operands(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        values = F.pad(x.flatten(2), (1, 0))[:, :, read].view(images, groups, channels // groups, *read.shape)
        right = values.permute(1, 2, 4, 0, 3).reshape(groups, inner, -1)
        return ring.arranged(request.op, weights, groups).reshape(groups, -1, inner), right

    return Stack(
        StackSizes(groups, outputs // groups, inner, images * len(read)),
        operands,
        lambda found: found.reshape(outputs, images, -1).transpose(0, 1).reshape(out),
    )


_OPTIONS = (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0), ("groups", 1))


def options_of(given: Mapping[str, Any], dimensions: int) -> list[list[int]]:
    """Return a convolution's stride, padding, dilation, output_padding and groups, a number for each dimension."""
    return [_of_each(given.get(name, rest), dimensions) for name, rest in _OPTIONS]


def _of_each(value: Any, dimensions: int) -> list[int]:
    """Return an option of a convolution for each dimension. value: a number for all of them, or a list."""
    return (
        [int(v) for v in value] * (dimensions // len(value))
        if isinstance(value, (list, tuple))
        else [value] * dimensions
    )


class _Products(MaterialRecipe[Triple]):
    """Matrix products and convolutions of random matrices."""

    kind = Triple
    instead = "use fewer bits or smaller matrices, or a dealer"

    def refuses(self, request: Triple) -> str:
        if request.op != "matmul" and len(request.size0) != len(request.size1):
            return "its input has no dimension of images"
        return "" if self.empty(request) else refused(self._stack(request), request.bits)

    def parts(self, request: Triple, transfer_bits: float) -> list[Part]:
        return []

    def total(self, request: Triple, transfer_bits: float) -> PairPrice:
        return PairPrice() if self.empty(request) else self._stack(request).price(request.bits)

    def primes(self, request: Triple) -> int:
        return 0 if self.empty(request) else self._stack(request).primes(request.bits)

    def made(
        self,
        request: Triple,
        sides: Sequence[Side],
        keys: PairKeys | None,
        rank: int,
        transfer_bits: float,
        weights: Mapping[int, Tensor],
    ) -> Rounds[dict[str, Tensor]]:
        a, b = (prg.fresh().words(*size) for size in (request.size0, request.size1))
        c = ring.bilinear(request.op, a, b, request.bits, **request.kwargs)
        if not self.empty(request):
            assert keys is not None
            c = c + (yield from self._stack(request).crossed(keys, request.bits, a, b))
        return {"a": a, "b": b, "c": c}

    @staticmethod
    def _stack(request: Triple) -> Stack:
        return matmul_stack(request.size0, request.size1) if request.op == "matmul" else convolution_stack(request)

    @staticmethod
    def empty(request: Triple) -> bool:
        """Whether a matrix has no elements, so that nothing is sent."""
        return not (math.prod(request.size0) and math.prod(request.size1))


MATRICES = _Products()


def better_by_terms(request: Triple, transfer_bits: float) -> bool:
    """Whether a matrix product takes fewer bytes term by term (terms.py). transfer_bits: the price of a transfer."""
    if request.op != "matmul" or MATRICES.empty(request) or MATRICES.refuses(request):
        return False
    by_terms = BY_TERMS.total(request, transfer_bits).weight(transfer_bits)
    return by_terms < MATRICES.total(request, transfer_bits).bits + 16 * key_bytes(MATRICES.primes(request))
