"""Matrix products and convolutions of two parties: every shape and block, exact, at their price, and uniform shares."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird import prg, ring
from hummingbird.channel import meter
from hummingbird.errors import ConfigError
from hummingbird.mpc.pair import matrices
from hummingbird.mpc.pair.encrypted import DEGREE, Encryption, PairKeys
from hummingbird.mpc.pair.material import PairMaterial, cost
from hummingbird.mpc.pair.matrices import MatrixBlocks, StackSizes, blocks_of, convolution_stack, crossed, matmul_stack
from hummingbird.mpc.protocols import beaver
from hummingbird.mpc.protocols.beaver import Triple
from hummingbird.mpc.protocols.boolean import And
from hummingbird.mpc.protocols.lift import Lifting
from hummingbird.mpc.session.session import Session
from tests.support.chance import DEVIATIONS
from tests.support.covering import every
from tests.support.pairs import columns, low, made, pair, stepwise, wrong
from tests.support.parties import channels, share, together

MATMULS = [
    ((3, 4), (4, 5)),
    ((7,), (7,)),
    ((7,), (2, 7, 3)),
    ((2, 3, 7), (7,)),
    ((5, 3, 4), (4, 6)),
    ((3, 4), (5, 4, 6)),
    ((2, 1, 3, 4), (3, 4, 5)),
    ((2, 3, 4, 1), (2, 3, 1, 5)),
    ((1, 1), (1, 1)),
]
CONVOLUTIONS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("conv1d", (2, 6, 9), (4, 3, 3), {"padding": 1, "dilation": 2, "groups": 2}),
    ("conv2d", (2, 3, 8, 7), (4, 3, 3, 2), {"padding": [1, 0], "stride": [2, 1]}),
    ("conv2d", (1, 4, 5, 5), (4, 1, 3, 3), {"padding": [1], "groups": 4}),
    ("conv3d", (1, 2, 3, 4, 5), (3, 2, 2, 2, 2), {"padding": 1}),
    ("conv_transpose1d", (2, 6, 4), (6, 2, 1), {"stride": 2}),
    (
        "conv_transpose2d",
        (2, 6, 4, 5),
        (6, 2, 3, 2),
        {"padding": [1, 2], "stride": [2, 3], "groups": 2, "output_padding": [1, 0], "dilation": [2, 1]},
    ),
]
REQUESTS = [
    *(
        Triple(*sizes, "matmul", {}, bits=bits)
        for sizes, bits in zip(MATMULS, [64, 1, 33, 54, 7, 37, 38, 63, 9], strict=True)
    ),
    *(Triple(size0, size1, op, options, bits=64) for op, size0, size1, options in CONVOLUTIONS),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_a_request_is_a_stack_of_matrix_products(request_: Triple) -> None:
    a, b = (torch.randint(-99, 99, size) for size in (request_.size0, request_.size1))
    if request_.op == "matmul":
        stack = matmul_stack(request_.size0, request_.size1)
    else:
        stack = convolution_stack(request_)
    left, right = stack.operands(a, b)
    assert (*left.shape, right.shape[2]) == tuple(stack.sizes)
    wanted = ring.bilinear(request_.op, a, b, **request_.kwargs)
    assert torch.equal(stack.result(left @ right), wanted)


@pytest.mark.parametrize("encrypted", every(2, [True, False]))
def test_every_request_is_right_at_its_price(encrypted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one call, in lock-step with other kinds, whose keys are those of the largest modulus.

    encrypted: also the products that take fewer bytes term by term.
    """
    if encrypted:
        monkeypatch.setattr(matrices, "better_by_terms", lambda *_: False)
    wanted = [And(2, 100), *REQUESTS, Lifting(50, 9, 20)]
    parties = pair()
    with meter.meter() as counted:
        done = made(parties, wanted)
    price = cost(wanted)
    assert (counted.total.bits_sent, counted.total.rounds) == (price.all_bits, 2 * price.rounds)
    assert cost(REQUESTS).rounds == 3 and (cost(REQUESTS).transfers == 0) == encrypted
    for request, *materials in zip(wanted, *done, strict=True):
        assert wrong(request, columns(request, materials)) == [], request


@pytest.mark.parametrize("request_", REQUESTS[::4], ids=str)
def test_each_has_its_own_price(request_: Triple) -> None:
    parties = pair()
    with meter.meter() as counted:
        made(parties, [request_])
    price = cost([request_])
    assert (counted.total.bits_sent, counted.total.rounds) == (price.all_bits, 2 * price.rounds)


@pytest.mark.parametrize(
    "block", every(5, [[*block] for block in product((1, 2, 3, 5), (1, 3, 4, 7), (1, 2, 4))]), ids=str
)
def test_every_block_gives_the_product(block: list[int]) -> None:
    """Blocks that divide the sizes and blocks that do not: five rows, seven inner, four columns, two matrices."""
    sizes = StackSizes(2, 5, 7, 4)
    how = Encryption.of(24, 7 * block[2], 100)
    assert how is not None
    blocks = MatrixBlocks(sizes, StackSizes(1, *block), how)
    keys = stepwise([PairKeys.exchanged(how.primes) for _ in range(2)]).results
    x, w = (prg.fresh().words(2, *size) for size in ((2, 5, 7), (2, 7, 4)))  # for each party
    seen = stepwise([crossed(keys[rank], blocks, x[rank], w[rank]) for rank in range(2)])
    assert [message.numel() for message in seen.messages[0]] == list(blocks.message_bytes)
    assert torch.equal(low(sum(seen.results), 24), low(x[0] @ w[1] + x[1] @ w[0], 24))


def test_a_block_that_fills_a_polynomial() -> None:
    """The last entry's other terms pass X^N, and come back with the other sign below the first entry."""
    how = Encryption.of(64, 512 * 4, 100)
    assert how is not None
    blocks = MatrixBlocks(StackSizes(1, 4, 512, 4), StackSizes(1, 4, 512, 4), how)
    assert math.prod(blocks.block) == DEGREE
    keys = stepwise([PairKeys.exchanged(how.primes) for _ in range(2)]).results
    x, w = (prg.fresh().words(2, 1, *size) for size in ((4, 512), (512, 4)))
    seen = stepwise([crossed(keys[rank], blocks, x[rank], w[rank]) for rank in range(2)])
    assert torch.equal(sum(seen.results), x[0] @ w[1] + x[1] @ w[0])


def test_the_blocks_have_the_fewest_bytes() -> None:
    """No block that is tried by hand takes fewer; and a shape's transpose takes as many."""
    sizes = StackSizes(1, 60, 24, 130)
    best = blocks_of(sizes, 40)
    assert best is not None
    for i, j, m in product((1, 5, 15, 30, 60), (1, 2, 6, 12, 24), (1, 5, 13, 26, 65, 130)):
        values = -(-60 // i) * -(-130 // m) * i * m
        how = Encryption.of(40, 24 * m, values)
        if i * j * m <= DEGREE and how is not None:
            assert sum(best.message_bytes) <= sum(MatrixBlocks(sizes, StackSizes(1, i, j, m), how).message_bytes)
    one, other = (cost([Triple(*sizes, "matmul", {})]) for sizes in (((60, 24), (24, 130)), ((130, 24), (24, 60))))
    assert one == other


def test_small_products_are_made_term_by_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever takes fewer bytes: a term takes 520 bytes, a pair of polynomials hundreds of thousands."""
    small, large = (Triple((4, n, n), (4, n, n), "matmul", {}) for n in (4, 32))
    assert cost([small]).transfers == 2 * 64 * 64 and cost([large]).transfers == 0
    least = [cost([request]).all_bits for request in (small, large)]
    monkeypatch.setattr(matrices, "better_by_terms", lambda request, transfer_bits: request is large)
    assert all(cost([one]).all_bits > bits for one, bits in zip((small, large), least, strict=True))


@pytest.mark.slow
def test_the_size_of_an_attention_head() -> None:
    request = Triple((2, 128, 64), (2, 64, 128), "matmul", {})
    done = made(pair(), [request])
    assert wrong(request, columns(request, [found for (found,) in done])) == []


def test_shares_of_fixed_operands_are_uniform() -> None:
    """For operands that are all 0, or all ones, each party's share is uniform in each bit."""
    for value in (0, -1):
        blocks = blocks_of(StackSizes(1, 64, 2, 64), 40)
        assert blocks is not None
        keys = stepwise([PairKeys.exchanged(blocks.how.primes) for _ in range(2)]).results
        x, w = torch.full((1, 64, 2), value), torch.full((1, 2, 64), value)
        found: list[Tensor] = stepwise([crossed(one, blocks, x, w) for one in keys]).results
        assert torch.equal(low(found[0] + found[1], 40), low(2 * (x @ w), 40))
        for mine in found:
            bits = mine.flatten()[:, None] >> torch.arange(40) & 1
            assert float((bits.double().mean(0) - 0.5).abs().max()) * 2 * len(bits) ** 0.5 < DEVIATIONS


def test_a_product_runs_with_the_pairs_material() -> None:
    links = channels(2)
    parties = together([lambda c=c: PairMaterial(c) for c in links])
    both = [Session(rank, 2, links[rank], parties[rank]) for rank in range(2)]
    x, y = torch.randint(-(1 << 40), 1 << 40, (3, 6, 5)), torch.randint(-(1 << 40), 1 << 40, (3, 5, 2))
    found = together(
        [
            lambda s=s, a=a, b=b: beaver.product(s, "matmul", a, b, {})
            for s, a, b in zip(both, share(x, 2), share(y, 2), strict=True)
        ]
    )
    assert torch.equal(found[0] + found[1], x @ y)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Triple((4, 1 << 26), (1 << 26, 4), "matmul", {}), "no secure encryption hides a product of 64 bits"),
        (Triple((2, 1), (1, 2), "mul", {}), "both of its operands are broadcast"),
    ],
    ids=str,
)
def test_what_cannot_be_made_is_refused(request_: Triple, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        cost([request_])
    assert raised.value.hint


def test_an_empty_product_sends_nothing() -> None:
    for sizes in (((0, 4), (4, 5)), ((3, 0), (0, 5))):
        request = Triple(*sizes, "matmul", {})
        assert cost([request]).bits == 0
        done = made(pair(), [request])
        assert wrong(request, columns(request, [found for (found,) in done])) == []
