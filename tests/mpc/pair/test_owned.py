"""Products with weights that one party keeps: every shape, exact, at their price; and what messages show of weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird import prg, ring
from hummingbird.channel import meter
from hummingbird.errors import ConfigError
from hummingbird.mpc.correlations.request import Material
from hummingbird.mpc.pair import encrypted, owned
from hummingbird.mpc.pair.encrypted import SECURE, Encryption
from hummingbird.mpc.pair.material import cost
from hummingbird.mpc.pair.owned import OWNED, blocks_of, product_of_images
from hummingbird.mpc.protocols.owned import OwnedProduct
from hummingbird.polynomials.layer import LayerShape
from tests.mpc.pair.test_encrypted import check_uniform, numbers, product
from tests.support.chance import DEVIATIONS
from tests.support.covering import covering
from tests.support.pairs import columns, low, made, pair, sides, stepwise

CASES: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("matmul", (3, 4), (4, 5), {}),
    ("matmul", (7,), (7, 3), {}),
    ("matmul", (2, 3, 7), (7, 6), {}),
    ("conv1d", (2, 6, 9), (4, 3, 3), {"padding": [1], "dilation": [2], "groups": 2}),
    ("conv2d", (3, 3, 8, 7), (4, 3, 3, 2), {"padding": [1, 0], "stride": [2, 1]}),
    ("conv2d", (1, 4, 5, 5), (4, 1, 3, 3), {"padding": [1, 1], "groups": 4}),
    ("conv2d", (1, 2, 1, 70), (3, 2, 1, 1), {}),
    ("conv3d", (2, 2, 3, 4, 5), (3, 2, 2, 2, 2), {"padding": [1, 1, 1]}),
    ("conv3d", (1, 4, 5, 3, 3), (2, 2, 2, 3, 3), {"stride": [2, 1, 1], "dilation": [2, 1, 1], "groups": 2}),
    ("conv_transpose1d", (2, 6, 4), (6, 2, 1), {"stride": [2]}),
    (
        "conv_transpose2d",
        (2, 6, 4, 5),
        (6, 2, 3, 2),
        {"padding": [1, 2], "stride": [2, 3], "groups": 2, "output_padding": [1, 0], "dilation": [2, 1]},
    ),
    ("conv_transpose3d", (1, 2, 2, 3, 2), (2, 3, 2, 2, 2), {"stride": [1, 2, 1], "padding": [1, 0, 0]}),
    ("mul", (2, 5, 3, 3), (5, 1, 1), {}),
    ("mul", (2, 5), (5,), {}),
    ("mul", (1,), (4,), {}),
    ("mul", (4, 3), (1,), {}),
]
BITS = [(40, 28), (28, 8), (64, 64), (17, 17), (1, 1)]


def requests(owner: int, bits: int, weight: int) -> list[OwnedProduct]:
    return [
        OwnedProduct(size0, size1, op, options, owner=owner, weight=weight, key=key, bits=bits)
        for key, (op, size0, size1, options) in enumerate(CASES)
    ]


def weights_of(request: OwnedProduct) -> Tensor:
    """Random weights, with both extremes among them."""
    found = torch.randint(-(2**62), 2**62, request.size1) << 1 >> 64 - request.weight
    found.view(-1)[0] = -(2 ** (request.weight - 1))
    if found.numel() > 1:
        found.view(-1)[-1] = 2 ** (request.weight - 1) - 1
    return found


def wrong(request: OwnedProduct, materials: list[Material], weight: Tensor) -> bool:
    """Whether the shares of c are not those of op(a, W), or the owner has a share of a."""
    shares = columns(request, materials)
    a, c = (shares["a"][1 - request.owner].long(), low(sum(x.long() for x in shares["c"]), request.bits))
    wanted = ring.bilinear(request.op, a, weight, 64, **request.kwargs)
    return bool(shares["a"][request.owner].any()) or not torch.equal(c, low(wanted, request.bits))


@covering("bits, weight, owner", BITS, [0, 1])
def test_every_request_is_right_at_its_price(bits: int, weight: int, owner: int) -> None:
    parties, wanted = pair(), requests(owner, bits, weight)
    parties[owner].weights.update({request.key: weights_of(request) for request in wanted})
    with meter.meter() as counted:
        done = made(parties, wanted)
    price = cost(wanted)
    assert (counted.total.bits_sent, counted.total.rounds) == (price.all_bits, 2 * price.rounds) and price.rounds == 3
    for request, *materials in zip(wanted, *done, strict=True):
        assert not wrong(request, materials, parties[owner].weights[request.key]), request
    changed = parties[owner].weights[4].clone()
    changed[1, 0, 1, 1] += 1
    assert wrong(wanted[4], [done[0][4], done[1][4]], changed), "the check can fail"


@pytest.mark.parametrize("number", [0, 4, 12])
def test_each_has_its_own_price(number: int) -> None:
    parties, request = pair(), requests(1, 40, 28)[number]
    parties[1].weights[number] = weights_of(request)
    with meter.meter() as counted:
        made(parties, [request])
    assert counted.total.bits_sent == cost([request]).all_bits


@pytest.mark.parametrize("number", [number for number, case in enumerate(CASES) if case[0] != "mul"])
def test_a_request_is_a_convolution_of_images(number: int) -> None:
    request = requests(0, 40, 28)[number]
    x, weight = torch.randint(-9, 10, request.size0), torch.randint(-9, 10, request.size1)
    found = product_of_images(request)
    images, arranged, shape = found.images(x), found.weights(weight), found.layer
    assert images.shape == (found.count, *shape.input_shape) and arranged.shape == shape.weight_shape
    if len(shape.input_shape) == 1:
        out = images @ arranged.t()
    else:
        axes = shape.rows, shape.columns
        options = ([getattr(axis, name) for axis in axes] for name in ("stride", "padding", "dilation"))
        out = torch.conv2d(images.double(), arranged.double(), None, *options, shape.groups).long()
    assert torch.equal(found.result(out), ring.bilinear(request.op, x, weight, 64, **request.kwargs))


def test_images_share_polynomials_and_inputs_are_encrypted_once() -> None:
    """A convolution of 9 positions encrypts as many values as one of 1; eight images take far less than eight times."""
    layer = LayerShape.of((64, 16, 16), (64, 64, 3, 3), 1, 1)
    one, eight = (blocks_of(layer, count, 28, 8) for count in (1, 8))
    assert one is not None and eight is not None and one.how.degree == 4096
    assert 0.6 * 8 * sum(one.message_bytes) > sum(eight.message_bytes)
    assert one.inputs * one.how.degree < 3 * 64 * 16 * 16


def test_a_small_bound_of_weights_takes_fewer_primes() -> None:
    layer = LayerShape.of((64, 16, 16), (64, 64, 3, 3), 1, 1)
    small, large = (blocks_of(layer, 1, 28, weight) for weight in (8, 28))
    assert small is not None and large is not None and (small.how.degree, large.how.degree) == (4096, 8192)
    assert sum(small.message_bytes) < 0.8 * sum(large.message_bytes)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (((4, 1 << 26), (1 << 26, 4), "matmul", {}), "no secure encryption hides a product of 64 bits"),
        (((2, 3), (5, 3, 4), "matmul", {}), "weights that are no matrix"),
        (((3, 8, 8), (4, 3, 3, 3), "conv2d", {}), "no dimension of images"),
        (((0, 3), (3, 4), "matmul", {}), "without elements"),
        (((1 << 21, 1), (1, 1), "mul", {}), "an element meets 2,097,152 others, more than 1,048,576"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_made_is_refused(request_: tuple[Any, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        cost([OwnedProduct(*request_, owner=0, weight=64, key=0)])
    assert raised.value.hint


# What messages show ---------------------------------------------------------------------------------------------------


def ran(request: OwnedProduct, weight: Tensor) -> Any:
    """Both parties' results and messages, of the request alone."""
    own: list[list[Any]] = [[], []]
    if request.op == "mul":
        (part,) = OWNED.parts(request, 31.0)
        own = [[side] for side in sides(part.n, part.price.main)]
    weights: list[dict[int, Tensor]] = [{}, {}]
    weights[request.owner] = {request.key: weight}
    return stepwise([OWNED.made(request, own[rank], None, rank, 31.0, weights[rank]) for rank in range(2)])


def uniform_bits(x: Tensor, width: int) -> None:
    bits = x.flatten()[:, None] >> torch.arange(width) & 1
    assert float((bits.double().mean(0) - 0.5).abs().max()) * 2 * len(bits) ** 0.5 < DEVIATIONS


@pytest.mark.parametrize("value", [0, -(2**27), 2**27 - 1])
def test_an_answer_is_uniform_whatever_the_weights_are(value: int) -> None:
    """One message each way; residues of the answer and both shares are uniform, for weights that are all alike."""
    options = {"padding": [1, 1]}
    request = OwnedProduct((2, 8, 9, 9), (8, 8, 3, 3), "conv2d", options, owner=1, weight=28, key=0, bits=40)
    seen = ran(request, torch.full(request.size1, value))
    blocks = owned._blocks(request)[1]
    assert [len(messages) for messages in seen.messages] == [1, 1]
    assert [seen.messages[rank][0].numel() for rank in range(2)] == list(blocks.message_bytes)
    how, values = blocks.how, sum(map(len, blocks.used))
    answer, cut = seen.messages[1][0], encrypted.packed_bytes((len(blocks.used), how.kept, how.degree))
    second = encrypted.unpack(how.rest, answer[:cut].contiguous(), (len(blocks.used), how.kept, how.degree))
    words = encrypted.kernels.unpack_words(answer[cut:].contiguous(), how.kept * values, encrypted.BITS)
    for number, q in enumerate(how.rest.primes):
        check_uniform(second[:, number], q)
        check_uniform(words.view(how.kept, -1)[number] - q // 2, q)
    for result in seen.results:
        uniform_bits(result["c"], 40)


@pytest.mark.parametrize("value", [0, -(2**27), 2**27 - 1])
def test_transfers_of_factors_show_uniform_bits(value: int) -> None:
    """The owner's message is its choices less random ones, for weights that are all alike."""
    request = OwnedProduct((4096,), (4096,), "mul", {}, owner=1, weight=28, key=0, bits=40)
    seen = ran(request, torch.full((4096,), value))
    assert all(message.numel() == 512 for message in seen.messages[1]) and len(seen.messages[1]) == 28
    for message in seen.messages[1]:
        uniform_bits(message.long(), 8)
    for result in seen.results:
        uniform_bits(result["c"], 40)


PARAMETERS = [(28, 8, 4096), (40, 28, 8192)]
TERMS, VALUES = 1 << 14, 1 << 12


def encryption(bits: int, factor: int, degree: int) -> Encryption:
    found = Encryption.of(bits, TERMS, VALUES, factor, degree)
    assert found is not None and found.degree == degree and found.factor == factor
    return found


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_the_flood_is_as_wide_as_its_bound_says(parameters: tuple[int, int, int]) -> None:
    bits, factor, degree = parameters
    how = encryption(*parameters)
    likely = encrypted.noise_likely(bits, TERMS, VALUES, factor, degree)
    assert VALUES * likely / (2 << how.flood) <= encrypted.MOST_DISTANCE / 2
    assert how.noise_after(TERMS) < how.unit / 2
    assert math.log2(math.prod(SECURE[4096])) <= 106, "the bound of the table of 2024 for N = 4096"


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_noise_is_below_what_is_likely_and_hidden_by_the_flood(
    parameters: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For factors of the largest size. Without flood, an answer's noise follows from errors and factors."""
    bits, factor, degree = parameters
    how = replace(encryption(*parameters), kept=encryption(*parameters).primes)
    secret, ring_ = encrypted.new_secret(how.ring), how.ring
    x, w = prg.fresh().words(1, degree), torch.zeros(1, degree, dtype=torch.int64)
    w[0, :64] = (torch.randint(0, 2, (64,)) * 2 - 1) << factor - 1
    asked = encrypted.encrypt(secret, how, torch.cat([x, torch.zeros_like(x)]))
    fresh = encrypted.received(how, asked, 2)
    phases = encrypted.phase(ring_, fresh[:1], secret, "ntt")
    errors = encrypted.add(ring_, phases, encrypted._scaled(ring_, x, bits), -1)[0, 0].long()
    guess, everywhere = product(errors, w[0]).double(), [torch.arange(degree)]

    def shown() -> tuple[float, float]:
        """The correlation of noise with what follows from errors and factors, in deviations of chance; the noise."""
        masks = prg.fresh().words(degree)
        sums = encrypted.summed(how, fresh[:1], encrypted.factors(how, w))
        first, second = encrypted.answers(fresh[1], how, sums, masks, everywhere)
        parts = torch.stack([first.int()[None], ring_.ntt(second)], 1)
        found = encrypted.phase(ring_, parts, secret, "mixed")
        value = low(product(x[0], w[0]) - masks, bits)
        residues = encrypted.add(ring_, found, encrypted._scaled(ring_, value[None], bits), -1)[0]
        noise = torch.tensor(numbers(residues, ring_.primes).astype(float))
        return float((noise * guess).sum() / (noise.norm() * guess.norm())) * degree**0.5, float(noise.abs().max())

    assert abs(shown()[0]) < DEVIATIONS
    monkeypatch.setattr(encrypted, "wide", lambda r, s, n, width: torch.zeros(n, how.primes, degree).int())
    deviations, largest = shown()
    assert deviations > 0.9 * degree**0.5
    likely = encrypted.noise_likely(bits, 64, degree, factor, degree)
    assert largest < likely < encrypted.noise_before(factor, 64, degree)
