"""Exact products and convolutions mod 2^64: every implementation against torch's int64 and Python's integers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird import kernels
from hummingbird.errors import InputError
from hummingbird.kernels.reference import shares
from hummingbird.kernels.shares.packing import Packed, Words
from tests.support.covering import every
from tests.test_ring import full, python_matmul

TERMS = 512 * 3 * 3  # the longest sum of a ResNet: 4608


def extremes(*shape: int) -> list[tuple[Tensor, Tensor, int]]:
    """Operands whose sums of products are largest in one sense or another, and the sum of `shape[-1]` equal ones."""
    values = [-1, -(2**63), 2**63 - 1, 2**32 - 1, -(2**32), -(2**48)]
    out = []
    for a, b in itertools.product(values, values):
        total = (a * b * shape[-1] + 2**63) % 2**64 - 2**63
        out.append((torch.full(shape, a), torch.full(shape, b), total))
    return out


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 17])
def test_matmul_of_every_size_around_a_tile(path: str, rows: int) -> None:
    for terms, columns in itertools.product((1, 2, 255, 256, 257, 1025), (1, 7, 8, 9, 16, 17, 23, 24, 25, 49)):
        a, b = full(rows, terms), full(terms, columns)
        assert torch.equal(kernels.matmul(a, b), torch.matmul(a, b)), (terms, columns)


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 9])
def test_a_matrix_of_32_bits_gives_the_product_of_64_bits(path: str, rows: int) -> None:
    for terms, columns, bits in itertools.product((1, 7, 257), (1, 8, 25, 1025), (52, 64)):
        a, b = full(rows, terms), full(terms, columns).int()
        b[0, 0], b[-1, -1] = -(2**31), 2**31 - 1
        got = kernels.matmul(a, kernels.Factor(b), bits)
        assert not differs(got, torch.matmul(a, b.long()), bits), (terms, columns)
    with pytest.raises(InputError, match="b is torch.int16"):
        kernels.matmul(a, b.short())
    with pytest.raises(InputError, match="b is torch.int32"):
        kernels.conv2d(full(1, 1, 2, 2), full(1, 1, 1, 1).int(), (1, 1), (1, 1), 1)


@pytest.mark.parametrize("size", [(1, 1, 1, 1), (2, 3, 4, 5), (3, 2, 5, 8), (1, 2, 3, 600), (2, 0, 3, 4), (2, 3, 0, 4)])
@pytest.mark.parametrize("width", [1, 7, 32, 33, 64])
def test_sums_of_terms_that_bits_select(path: str, size: tuple[int, int, int, int], width: int) -> None:
    batch, rows, inner, columns = size
    terms = full(batch * rows * inner * columns) & (-1 if width == 64 else (1 << width) - 1)
    left, right = (full(*shape) & 1 for shape in ((batch, rows, inner), (batch, inner, columns)))
    forms: list[Words] = [terms, Packed(kernels.pack_words(terms, width), tuple(terms.shape), width)]
    forms += [terms.int()] if width < 32 else []
    for words in forms:
        for one, other in itertools.product((None, left), (None, right)):
            wanted = terms.view(size) * (1 if one is None else one.unsqueeze(-1))
            wanted = wanted * (1 if other is None else other.unsqueeze(1))
            assert torch.equal(kernels.selected_sums(words, one, other, size), wanted.sum(2))


def test_selected_sums_refuse_other_shapes() -> None:
    bits = torch.ones(1, 2, 3, dtype=torch.int64)
    for words, left, right, size in [
        (full(24), bits, None, (1, 2, 3)),
        (full(23), bits, None, (1, 2, 3, 4)),
        (full(24), bits.int(), None, (1, 2, 3, 4)),
        (full(24), bits.transpose(1, 2), None, (1, 2, 3, 4)),
        (full(24), None, bits, (1, 2, 3, 4)),
    ]:
        with pytest.raises(InputError, match=r"kernels\.selected_sums"):
            kernels.selected_sums(words, left, right, size)  # type: ignore[arg-type]


def test_matmul_over_4608_terms(path: str) -> None:
    a, b = full(3, TERMS), full(TERMS, 2)
    assert torch.equal(kernels.matmul(a, b), python_matmul(a, b))
    for left, right, total in extremes(1, TERMS):
        assert kernels.matmul(left, right.t()).item() == total


@pytest.mark.parametrize("shapes", [((2, 3, 7), (7, 4)), ((2, 3, 7), (2, 7, 4)), ((3, 7), (2, 7, 4)), ((7,), (7, 4))])
def test_matmul_takes_torchs_shapes(path: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (full(*shape) for shape in shapes)
    assert torch.equal(kernels.matmul(a, b), torch.matmul(a, b))
    assert torch.equal(kernels.matmul(a.flip(-1), b), torch.matmul(a.flip(-1), b))


@pytest.mark.parametrize("shapes", [((5, 0), (0, 3)), ((0, 4), (4, 3)), ((5, 4), (4, 0))])
def test_matmul_of_nothing(path: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (full(*shape) for shape in shapes)
    got = kernels.matmul(a, b)
    assert got.shape == (a.shape[0], b.shape[1]) and not got.any()


def test_a_transposed_operand_is_read_correctly(path: str) -> None:
    a, b = full(30, 11).t(), full(40, 30).t()
    assert torch.equal(kernels.matmul(a, b), torch.matmul(a, b))


def test_conv2d_for_all_options(path: str) -> None:
    for groups, (inputs, outputs), kernel, stride, dilation in itertools.product(
        (1, 2, 5), ((1, 1), (1, 2), (1, 3), (2, 1), (3, 9)), ((1, 1), (3, 2), (2, 3)), ((1, 1), (2, 2), (1, 3)), (1, 2)
    ):
        x, w = full(2, groups * inputs, 9, 11), full(groups * outputs, inputs, *kernel)
        got = kernels.conv2d(x, w, stride, (dilation, dilation), groups)
        case = (groups, inputs, outputs, kernel, stride, dilation)
        assert torch.equal(got, F.conv2d(x, w, None, stride, 0, dilation, groups)), case


@pytest.mark.parametrize("size", [3, 4, 5, 6, 7, 9, 10, 18, 34])
def test_conv2d_for_every_run_of_places(path: str, size: int) -> None:
    """Rows of 1 to 32 outputs: runs of eight, of four, shorter ones, and panels that span rows and images."""
    for batch, groups, outputs, stride in itertools.product((1, 3), (1, 4), (4, 12), (1, 2)):
        x, w = full(batch, 4, size, size), full(outputs, 4 // groups, 3, 3)
        got = kernels.conv2d(x, w, (stride, stride), (1, 1), groups)
        assert torch.equal(got, F.conv2d(x, w, None, stride, 0, 1, groups)), (batch, groups, outputs, stride)


@pytest.mark.parametrize("groups", [1, 2])
def test_conv2d_over_4608_terms(path: str, groups: int) -> None:
    x, w = full(2, 512 * groups, 4, 4), full(9 * groups, 512, 3, 3)
    got = kernels.conv2d(x, w, (1, 1), (1, 1), groups)
    assert torch.equal(got, F.conv2d(x, w, groups=groups))
    window = x[1, :512, :3, :3].reshape(1, -1)  # one output element by Python's integers
    assert int(got[1, 0, 0, 0]) == int(python_matmul(window, w[0].reshape(-1, 1)))
    for left, right, total in extremes(1, TERMS):
        made = kernels.conv2d(left.view(1, 512, 3, 3), right.view(1, 512, 3, 3), (1, 1), (1, 1), 1)
        assert made.item() == total


def test_views_are_read_correctly(path: str) -> None:
    big, w = full(7, 6, 9, 9), full(3, 4, 3, 3)
    for x in (big[1:6, 1:5, 2:8, 1:7], big[:5, :6].transpose(1, 2)[:, :4], full(1, 1, 6, 6).expand(3, 4, 6, 6)):
        assert torch.equal(kernels.conv2d(x, w, (2, 1), (1, 1), 1), F.conv2d(x.contiguous(), w, stride=(2, 1)))


# The bits that are read -----------------------------------------------------------------------------------------------

WIDTHS = (1, 2, 31, 32, 33, 40, 47, 51, 52, 53, 63, 64)  # around what the instruction sets multiply


def differs(a: Tensor, b: Tensor, bits: int) -> bool:
    """Whether two results differ in the low `bits` bits."""
    return bool(((a ^ b) << (64 - bits)).any())


def weights(bits: int, *shape: int) -> Iterator[Tensor]:
    """Numbers of so many bits, with their sign: random ones, and the largest in each sense."""
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    yield torch.randint(low, high, shape)
    for value in (low, high, -1):
        yield torch.full(shape, value)


@pytest.mark.parametrize("width", every(2, [1, 2, 16, 20, 31, 32, 33, 64]))
def test_products_are_right_in_the_bits_that_are_read(path: str, width: int) -> None:
    """Weights of every size, more terms than are summed at a time, shares of all ones among the operands."""
    for code in weights(width, 11, 37, 6, 5):
        factor = kernels.Factor(code)
        assert factor.bits <= width and (width < 31 or factor.bits == width or factor.bits == 1)
        for x in (full(2, 37, 8, 7), torch.full((2, 37, 8, 7), -1), torch.full((2, 37, 8, 7), -(2**63))):
            expected = F.conv2d(x, code)
            for bits in WIDTHS:
                assert not differs(kernels.conv2d(x, factor, (1, 1), (1, 1), 1, bits), expected, bits), bits
    for code in weights(width, 1100, 5):
        factor = kernels.Factor(code)
        for a in (full(9, 1100), torch.full((9, 1100), -1)):
            for bits in WIDTHS:
                assert not differs(kernels.matmul(a, factor, bits), torch.matmul(a, code), bits), bits


def test_every_option_in_the_bits_that_are_read(path: str) -> None:
    for groups, outputs, stride, dilation in itertools.product((1, 2, 4), (4, 12), (1, 2), (1, 2)):
        x, factor = full(3, 8, 9, 11), kernels.Factor(torch.randint(-(2**19), 2**19, (outputs, 8 // groups, 3, 2)))
        expected = F.conv2d(x, factor.code, None, stride, 0, dilation, groups)
        for bits in (36, 52, 64):
            got = kernels.conv2d(x, factor, (stride, stride), (dilation, dilation), groups, bits)
            assert not differs(got, expected, bits), (groups, outputs, stride, dilation, bits)


def test_the_check_of_low_bits_can_fail() -> None:
    a = full(3)
    assert differs(a, a ^ 1 << 39, 40) and not differs(a, a ^ 1 << 40, 40)


@pytest.mark.parametrize("width", [1, 2, 8, 33, 63, 64])
def test_a_factor_knows_how_many_bits_it_has(width: int) -> None:
    half = 1 << width - 1
    assert kernels.Factor(torch.tensor([-half])).bits == kernels.Factor(torch.tensor([half - 1, -half])).bits == width
    if width < 64:
        assert kernels.Factor(torch.tensor([half])).bits == width + 1
    assert kernels.Factor(full(0, 3)).bits == 1 and kernels.Factor(full(2).to("meta")).bits == 64


@pytest.mark.parametrize("threads", every(2, [2, 3, 16]))
def test_threads_share_the_work(path: str, threads: int) -> None:
    """Enough products for several threads: cut along the places, along the outputs, and along the planes."""
    before = torch.get_num_threads()
    cases = [
        ((4, 16, 30, 30), (20, 16, 3, 3), 1),
        ((1, 64, 5, 5), (999, 64, 3, 3), 1),
        ((9, 32, 40, 40), (32, 1, 3, 3), 32),
    ]
    try:
        for x_shape, w_shape, groups in cases:
            x, w = full(*x_shape), full(*w_shape)
            expected = F.conv2d(x, w, groups=groups)
            assert expected.numel() * w[0].numel() > 3e6
            torch.set_num_threads(threads)
            assert torch.equal(kernels.conv2d(x, w, (1, 1), (1, 1), groups), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("limit", [1, 8 * 4 * 9 * 16, 2 * 8 * 4 * 9 * 16, 10**9])
def test_torchs_version_cuts_the_batch_without_a_trace(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Columns for one, one, two and all images at a time."""
    x, w = full(5, 4, 6, 6), full(3, 4, 3, 3)
    monkeypatch.setattr(shares, "_COLUMN_BYTES", limit)
    assert torch.equal(shares.conv2d(x, kernels.Factor(w), (1, 1), (1, 1), 1, (4, 4), 64), F.conv2d(x, w))


# Float64 limbs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [((1, 1), (1, 1)), ((5, 0), (0, 3)), ((2, 3, 7), (2, 7, 4)), ((3, 7), (2, 7, 4))])
def test_limbs_equal_integers(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (full(*shape) for shape in shapes)
    assert torch.equal(shares.matmul_limbs(a, b), torch.matmul(a, b))


def test_limbs_over_4608_terms() -> None:
    a, b = full(3, TERMS), full(TERMS, 2)
    assert torch.equal(shares.matmul_limbs(a, b), python_matmul(a, b))
    for left, right, total in extremes(1, TERMS):
        assert shares.matmul_limbs(left, right.t()).item() == total


def test_limbs_are_exact_at_their_bound() -> None:
    """-1 is four limbs of 0xFFFF: with 2^21 terms the sums of limb products come closest to 2^53."""
    k = shares.LIMB_TERMS
    a, b = torch.full((1, k), -1), torch.full((k, 1), -1)
    assert (2**16 - 1) ** 2 * k < 2**53 < (2**16 - 1) ** 2 * (k + k // 1000)
    assert shares.matmul_limbs(a, b).item() == k


def test_limbs_refuse_what_could_be_inexact() -> None:
    too_many = shares.LIMB_TERMS + 1
    with pytest.raises(InputError, match="exactness"):
        shares.matmul_limbs(torch.empty(1, too_many, dtype=torch.int64), torch.empty(0, 1, dtype=torch.int64))


# What is refused ------------------------------------------------------------------------------------------------------


def test_what_is_refused() -> None:
    x, w = full(1, 4, 5, 5), full(6, 2, 3, 3)
    one = (1, 1)
    for arguments, what in [
        ((x.double(), w, one, one, 2), "float64"),
        ((x, w.int(), one, one, 2), "int32"),
        ((x, w.to("meta"), one, one, 2), "meta"),
        ((x, w, one, one, 1), "4 channels"),
        ((x, full(5, 2, 3, 3), one, one, 2), "2 groups"),
        ((x, w, one, (3, 3), 2), "larger than the padded input"),
        ((x, w, one, one, 2, 0), "from 1 to 64"),
        ((x, w, one, one, 2, 65), "from 1 to 64"),
    ]:
        with pytest.raises(InputError, match=what):
            kernels.conv2d(*arguments)
    with pytest.raises(InputError, match="inner sizes"):
        kernels.matmul(full(2, 3), full(4, 5))
    with pytest.raises(InputError, match="float32"):
        kernels.matmul(full(2, 3), torch.zeros(3, 2))
