"""Products on a GPU: float64 limbs and the choice run on any device, digits in Triton's interpreter and on a GPU."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird import kernels
from hummingbird.kernels import Factor
from tests.kernels.shares.test_products import differs, weights
from tests.support.triton import interpret, run
from tests.test_ring import full

pytest.importorskip("triton")
from hummingbird.kernels.gpu import products  # noqa: E402

ONE = (1, 1)


def by_limbs(x: Tensor, code: Tensor, bits: int) -> Tensor:
    """x (n, K) times code (m, K) by the float64 way."""
    as_images, as_weight = x[:, :, None, None], Factor(code[:, :, None, None])
    return products.conv2d_by_limbs(as_images, as_weight, ONE, ONE, 1, ONE, bits)[:, :, 0, 0]


# Float64 limbs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 3, 17, 36, 37, 40, 48, 63, 64])
def test_limbs_are_exact_in_the_bits_that_are_read(bits: int) -> None:
    for width in (2, 16, 20, 23, 40):
        for code in weights(width, 5, 70):
            for x in (full(9, 70), torch.full((9, 70), -1), torch.full((9, 70), 2**63 - 1)):
                assert not differs(by_limbs(x, code, bits), x @ code.t(), bits), (width, int(code[0, 0]))


def test_limbs_for_all_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for groups, outputs, stride, dilation, at_once in itertools.product(
        (1, 2, 4), (4, 12), (1, 2), (1, 2), (1, 1 << 30)
    ):
        monkeypatch.setattr(products, "_COLUMN_BYTES", at_once)
        x, code = full(3, 8, 9, 11), torch.randint(-(2**19), 2**19, (outputs, 8 // groups, 3, 2))
        expected = F.conv2d(x, code, None, stride, 0, dilation, groups)
        way = (stride, stride), (dilation, dilation), groups, expected.shape[2:]
        assert not differs(products.conv2d_by_limbs(x, Factor(code), *way, 40), expected, 40), (
            groups,
            outputs,
            stride,
            dilation,
        )


@pytest.mark.parametrize(("bits", "width", "most"), [(36, 23, 1 << 14), (48, 18, 1 << 13), (40, 19, 1 << 16)])
def test_the_bound_of_limbs(monkeypatch: pytest.MonkeyPatch, bits: int, width: int, most: int) -> None:
    """Two limbs up to the bound, with the largest odd operands; far beyond it two are wrong, and three are taken."""
    assert products.limb_count(bits, width, most) == 2 and products.limb_count(bits, width, most + 1) == 3
    half = bits // 2
    x = (1 << half - 1) - 1  # of both limbs
    operand, code = x + (x << half), (1 << width - 1) - 1
    for terms in (most, most + 1, 16 * most + 1):
        a, w = torch.full((1, terms), operand), torch.full((1, terms), code)
        expected = torch.tensor((operand * code * terms + 2**63) % 2**64 - 2**63)
        assert not differs(by_limbs(a, w, bits), expected, bits), terms
    monkeypatch.setattr(products, "limb_count", lambda *_: 2)
    assert differs(by_limbs(a, w, bits), expected, bits)


def test_limbs_add_up() -> None:
    for width, count in ((8, 8), (18, 2), (20, 2), (22, 3), (1, 3)):
        x = torch.cat([full(50), torch.tensor([-1, -(2**63), 2**63 - 1, 127, 128, -128])])
        parts = products.balanced(x, width, count)
        assert all(int(part.abs().max()) <= 1 << width - 1 for part in parts)
        total = torch.zeros_like(x)
        for i, part in enumerate(parts):
            total += part << (width * i)
        assert not differs(total, x, min(64, width * count))


# The choice -----------------------------------------------------------------------------------------------------------


def test_the_way_is_one_that_is_exact() -> None:
    for bits, width, terms, capability, expected in [
        (40, 19, 4608, (9, 0), "digits"),
        (64, 64, 4608, (9, 0), "digits"),  # private weights
        (40, 19, 43690, (9, 0), "digits"),  # three digits: 3 * 43690 < 2^17
        (40, 19, 43691, (9, 0), "limbs"),
        (40, 19, 4608, (7, 0), "limbs"),
        (64, 64, 4608, (7, 0), "reference"),
        (40, 19, 1 << 21, (8, 0), "limbs"),
        (64, 48, 1 << 21, (8, 0), "reference"),
    ]:
        assert products.way(bits, width, terms, capability) == expected, (bits, width, terms, capability)


@pytest.mark.parametrize("bits", [40, 64])
def test_the_chosen_way_is_taken(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """Without tensor cores, on this machine's CPU: by limbs and by the reference."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    x, code = full(3, 4, 5, 6), torch.randint(-(2**60 if bits == 64 else 2**18), 2**18, (6, 2, 3, 3))
    expected = F.conv2d(x, code, None, (2, 1), 0, 1, 2)
    assert not differs(products.conv2d(x, Factor(code), (2, 1), ONE, 2, expected.shape[2:], bits), expected, bits)
    a, b = full(2, 3, 7), torch.randint(-(2**18), 2**18, (7, 4))
    factor = Factor(b)
    for _ in range(2):
        assert not differs(products.matmul(a, factor, bits), a @ b, bits)


# Digits ---------------------------------------------------------------------------------------------------------------

PROGRAM = """
import itertools, sys, torch, torch.nn.functional as F
from hummingbird.kernels import Factor
from hummingbird.kernels.gpu import products
from hummingbird.kernels.gpu.sizes import DEFAULTS

device, sizes = torch.device(sys.argv[1]), ((3, 5), (64, 300))
torch.manual_seed(0)
if device.type == "cpu":  # the interpreter takes its time for every number of a tile
    sizes = (3, 5), (20, 18)
    DEFAULTS["multiply"] |= {"PLACES": 16, "OUTPUTS": 16, "TERMS": 16}
    DEFAULTS["cut"] |= {"PLACES": 16, "CHANNELS": 8}
full = lambda *shape: torch.randint(-(2**63), 2**63 - 1, shape)

def wrong(x, code, bits, stride=(1, 1), dilation=(1, 1), groups=1):
    expected = F.conv2d(x, code, None, stride, 0, dilation, groups)
    factor = Factor(code.to(device))
    got = products.conv2d_by_digits(x.to(device), factor, stride, dilation, groups, expected.shape[2:], bits)
    return bool(((got.cpu() ^ expected) << (64 - bits)).any())

# One product of everything, in a few seconds.
x, code = full(2, 6, 3, 4), torch.randint(-(2**18), 2**18, (18, 3, 2, 2))
x[0], code[0] = -1, -(2**18)
assert not wrong(x, code, 40, (2, 1), (1, 2), 2) and not wrong(x, code[:, :1].expand(-1, 6, -1, -1), 40)
assert not wrong(full(1, 32, 2, 3), torch.randint(-(2**18), 2**18, (3, 16, 1, 2)).repeat(2, 1, 1, 1), 40, groups=2)
if sys.argv[2] == "few":
    sys.exit()

# All options: runs of a row and of a place, tiles that are not full, several images in a tile.
for groups, (inputs, outputs), kernel, stride, dilation in itertools.product(
    (1, 2), sizes, ((1, 1), (3, 2)), ((1, 1), (2, 1)), ((1, 1), (1, 2))
):
    x, code = full(2, groups * inputs, 6, 7), torch.randint(-(2**18), 2**18, (groups * outputs, inputs, *kernel))
    assert not wrong(x, code, 40, stride, dilation, groups), (groups, inputs, kernel, stride, dilation)

# Every number of digits, at the edges of what they hold.
for bits in (2, 8, 40, 47, 64):
    for width in (1, 8, 15, 16, 24, 64):
        low, high = -(1 << width - 1), (1 << width - 1) - 1
        code = torch.randint(low, max(high, low + 1), (6, 33, 1, 1))
        code[:2], code[2:4] = low, high
        x = full(5, 33, 1, 1)
        x[0], x[1], x[2] = -1, 2**63 - 1, -(2**63)
        assert not wrong(x, code, bits), (bits, width)

# What is taken by a product of matrices, and kept.
torch.cuda.get_device_capability = lambda _: (9, 0)
a, code = full(2, 40, 33), torch.randint(-(2**18), 2**18, (33, 9))
factor = Factor(code.to(device))
for _ in range(2):
    got = products.matmul(a.to(device), factor, 40).cpu()
    assert not ((got ^ a @ code) << 24).any()

# The bound: sums of int32 that wrap, or are cut off, are wrong.
DEFAULTS["multiply"]["TERMS"] = 64 if device.type == "cuda" else 16384
for terms, is_exact in ((1 << 15, True), ((1 << 17) + 5, False)):
    x = code = torch.full((1, terms, 1, 1), -128)
    assert products.digits_exact(40, Factor(code).bits, terms) == is_exact
    assert wrong(x, code, 40) != is_exact, terms
DEFAULTS["multiply"]["TERMS"] = 64

# And the check can fail: 2 digits do not hold 2^15 - 1.
products._of_weight = lambda bits: -(-bits // 8)
assert wrong(full(1, 3, 1, 1), torch.full((1, 3, 1, 1), 2**15 - 1), 40)
"""


@pytest.mark.slow
@pytest.mark.parametrize("cases", ["few", pytest.param("all", marks=pytest.mark.slow)])
def test_digits_in_tritons_interpreter(cases: str) -> None:
    interpret(PROGRAM, "cpu", cases)


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.gpu
@gpu
def test_digits_on_a_gpu() -> None:
    run(PROGRAM, "cuda", "all")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("name", products.WAYS)
def test_every_way_on_a_gpu(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """ResNet's shapes, from the declaration down."""
    monkeypatch.setattr(products, "way", lambda *_: name)
    for inputs, outputs, side, kernel, stride in ((3, 64, 32, 3, 1), (64, 128, 16, 3, 2), (512, 512, 4, 3, 1)):
        x, code = full(4, inputs, side, side), torch.randint(-(2**18), 2**18, (outputs, inputs, kernel, kernel))
        expected, factor = kernels.conv2d(x, code, (stride, stride), ONE, 1), Factor(code.cuda())
        for bits in (36, 40, 48, 64):
            got = kernels.conv2d(x.cuda(), factor, (stride, stride), ONE, 1, bits).cpu()
            assert not differs(got, expected, bits), (inputs, bits)
