"""Exact arithmetic mod 2^64, against torch's own int64 functions and Python's integers."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird import ring
from hummingbird.errors import InputError

EDGES = [0, 1, -1, 2**63 - 1, -(2**63), -(2**63) + 1, 2**32, -(2**32) - 1, 2**16 - 1]


def full(*shape: int) -> Tensor:
    """Ring elements over the whole range, the extremes among them."""
    x = torch.randint(-(2**63), 2**63 - 1, shape)
    flat = x.view(-1)
    flat[: min(len(EDGES), flat.numel())] = torch.tensor(EDGES[: flat.numel()])
    return x


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# Fixed point ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0, 1, 16, 32])
def test_encode_rounds_to_the_nearest_unit(scale: int) -> None:
    x = torch.cat([torch.randn(1000, dtype=torch.float64) * 100, torch.tensor([0.0, 2.0**29, -(2.0**29)]).double()])
    code = ring.encode(x, scale)
    assert code.dtype == torch.int64 and code.shape == x.shape
    assert float((code.double() / 2.0**scale - x).abs().max()) <= 0.5 / 2.0**scale
    assert float((ring.decode(code, scale).double() - x).abs().max()) <= 0.5 / 2.0**scale + 2.0**29 * 2.0**-24


def test_encode_is_exact_on_multiples_of_the_unit_and_rounds_halves_to_even() -> None:
    assert ring.encode(torch.tensor([0.0, 1.0, -1.0, 2.0**-16, -(2.0**-16), 123.5])).tolist() == [
        0,
        65536,
        -65536,
        1,
        -1,
        8093696,
    ]
    assert ring.encode(torch.tensor([0.5, 1.5, 2.5, -0.5]) * 2.0**-16).tolist() == [0, 2, 2, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_type_is_taken(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -1.25, 96.0], dtype=dtype)
    assert ring.encode(x).tolist() == [0, -81920, 96 << 16]


def test_encode_of_a_parameter_and_of_nothing() -> None:
    assert not ring.encode(torch.nn.Parameter(torch.ones(2))).requires_grad
    assert ring.encode(torch.zeros(0, 3)).shape == (0, 3)
    assert ring.encode(torch.tensor(1.0)).shape == ()


@pytest.mark.parametrize(
    ("x", "what"),
    [
        (torch.tensor([1.0, float("nan")]), "NaN or infinity"),
        (torch.tensor([float("inf")]), "NaN or infinity"),
        (torch.tensor([-float("inf")]), "NaN or infinity"),
        (torch.tensor([0.0, -(2.0**30)]), "leaves the fixed-point range"),
        (torch.tensor(4.0**30), "range of .*2\\^30"),
        (torch.tensor([1]), "got torch.int64"),
        (torch.tensor([True]), "got torch.bool"),
        (torch.tensor([1], dtype=torch.uint8), "got torch.uint8"),
        (torch.tensor([1j]), "got torch.complex64"),
    ],
)
def test_what_has_no_code_is_refused(x: Tensor, what: str) -> None:
    with pytest.raises(InputError, match=what) as caught:
        ring.encode(x, where="the argument")
    assert caught.value.where == "the argument"
    assert not re.search("1[.]1529|115292", str(caught.value)), "the text travels to other parties: no values in it"


def test_the_largest_codes() -> None:
    top = torch.nextafter(torch.tensor(2.0**30, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))
    assert ring.encode(torch.stack([top, -top])).tolist() == [2**46, -(2**46)]
    assert ring.decode(torch.tensor([-(2**63), 2**63 - 1])).tolist() == [-(2.0**47), 2.0**47]
    assert ring.decode(torch.tensor([3]), 1).dtype == torch.float32


# Products -------------------------------------------------------------------------------------------------------------


def python_matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product by Python's integers, reduced mod 2^64 at the end."""
    rows = [[sum(x * y for x, y in zip(r, c, strict=True)) for c in zip(*b.tolist(), strict=True)] for r in a.tolist()]
    return torch.tensor([[(v + 2**63) % 2**64 - 2**63 for v in row] for row in rows])


def test_matmul_wraps_exactly_over_4608_terms() -> None:
    a, b = full(3, 4608), full(4608, 2)
    assert torch.equal(ring.bilinear("matmul", a, b), python_matmul(a, b))


def reference_conv(x: Tensor, w: Tensor, stride: int, padding: int, dilation: int, groups: int) -> Tensor:
    """torch's own int64 convolution."""
    return (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3](x, w, None, stride, padding, dilation, groups)


def combinations() -> list[tuple[int, ...]]:
    out = []
    for groups, (per_group, out_per), kernel, stride, padding, dilation in itertools.product(
        (1, 2, 3), ((1, 1), (1, 2), (2, 1), (2, 3)), (1, 2, 3), (1, 2, 3), (0, 1, 2), (1, 2)
    ):
        if 8 + 2 * padding - dilation * (kernel - 1) >= 1:
            out.append((groups, per_group, out_per, kernel, stride, padding, dilation))
    return out


@pytest.mark.parametrize("batch", [1, 3])
def test_conv2d_equals_torch_for_all_options(batch: int) -> None:
    for groups, per_group, out_per, kernel, stride, padding, dilation in combinations():
        x = full(batch, groups * per_group, 8, 7)
        w = full(groups * out_per, per_group, kernel, max(1, kernel - 1))
        got = ring.bilinear("conv2d", x, w, stride=stride, padding=padding, dilation=dilation, groups=groups)
        expected = reference_conv(x, w, stride, padding, dilation, groups)
        case = (groups, per_group, out_per, kernel, stride, padding, dilation)
        assert torch.equal(got, expected), case
        assert got.shape == expected.shape


def test_conv1d_equals_torch_for_all_options() -> None:
    for groups, per_group, out_per, kernel, stride, padding, dilation in combinations():
        x, w = full(2, groups * per_group, 9), full(groups * out_per, per_group, kernel)
        got = ring.bilinear("conv1d", x, w, stride=[stride], padding=padding, dilation=(dilation,), groups=groups)
        assert torch.equal(got, reference_conv(x, w, stride, padding, dilation, groups))


@pytest.mark.parametrize("unfolded", [1, 1 << 21])  # a plane at a time, and all
def test_conv3d_equals_torch_for_all_options(unfolded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "_UNFOLDED", unfolded)
    for groups, per_group, out_per, kernel, stride, padding, dilation in combinations():
        if (per_group, out_per) == (2, 1):
            continue
        x = full(2, groups * per_group, 8, 6, 5)
        w = full(groups * out_per, per_group, kernel, max(1, kernel - 1), min(kernel, 2))
        got = ring.bilinear("conv3d", x, w, stride=stride, padding=padding, dilation=dilation, groups=groups)
        case = (groups, per_group, out_per, kernel, stride, padding, dilation)
        assert torch.equal(got, reference_conv(x, w, stride, padding, dilation, groups)), case
        assert got.is_contiguous()


def test_uneven_strides_paddings_and_dilations() -> None:
    x, w = full(2, 4, 9, 11), full(6, 2, 2, 3)
    for stride, padding, dilation in itertools.product(((1, 2), (3, 1)), ((0, 2), (2, 1)), ((2, 1), (1, 3))):
        got = ring.bilinear("conv2d", x, w, stride=stride, padding=padding, dilation=dilation, groups=2)
        assert torch.equal(got, F.conv2d(x, w, None, stride, padding, dilation, 2))
    x, w = full(2, 4, 7, 9, 6), full(6, 2, 3, 2, 1)
    for stride, padding, dilation in (((3, 1, 2), (2, 0, 1), (1, 3, 2)), ((1, 2, 3), (0, 2, 0), (3, 1, 1))):
        got = ring.bilinear("conv3d", x, w, stride=stride, padding=padding, dilation=dilation, groups=2)
        assert torch.equal(got, F.conv3d(x, w, None, stride, padding, dilation, 2))


def test_a_broadcast_input_is_read_correctly() -> None:
    x = full(1, 1, 6, 6).expand(3, 4, 6, 6)
    w = full(2, 4, 3, 3)
    assert torch.equal(ring.bilinear("conv2d", x, w), F.conv2d(x.contiguous(), w))


def test_empty_batch() -> None:
    assert ring.bilinear("conv2d", full(0, 2, 5, 5), full(3, 2, 3, 3)).shape == (0, 3, 3, 3)


@pytest.mark.parametrize("groups", [1, 2])
def test_conv_over_4608_terms_wraps(groups: int) -> None:
    x, w = full(1, 512 * groups, 4, 4), full(2 * groups, 512, 3, 3)
    got = ring.bilinear("conv2d", x, w, padding=1, groups=groups)
    assert torch.equal(got, F.conv2d(x, w, padding=1, groups=groups))
    columns = F.pad(x, (1, 1, 1, 1))[0, :512, :3, :3].reshape(1, -1)  # one output element by Python's integers
    assert int(got[0, 0, 0, 0]) == int(python_matmul(columns, w[0].reshape(-1, 1)))


def test_conv_transpose_equals_torch_for_all_options() -> None:
    for groups, per_group, out_per, kernel, stride, padding, dilation in combinations():
        if per_group > 1 and out_per > 2:
            continue
        x = full(2, groups * per_group, 4, 3)
        w = full(groups * per_group, out_per, kernel, max(1, kernel - 1))
        for extra in {0, min(stride, dilation + 1) - 1 if stride > 1 else 0}:
            options = dict(stride=stride, padding=padding, output_padding=extra, dilation=dilation, groups=groups)
            try:
                expected = F.conv_transpose2d(x, w, None, stride, padding, extra, groups, dilation)
            except RuntimeError:
                continue  # torch: the output would be empty
            assert torch.equal(ring.bilinear("conv_transpose2d", x, w, **options), expected), options
            expected = F.conv_transpose1d(x[..., 0], w[..., 0], None, stride, padding, extra, groups, dilation)
            assert torch.equal(ring.bilinear("conv_transpose1d", x[..., 0], w[..., 0], **options), expected), options
            if per_group == out_per == 1:
                volume, deep = full(1, groups, 4, 3, 4), full(groups, 1, kernel, max(1, kernel - 1), kernel)
                expected = F.conv_transpose3d(volume, deep, None, stride, padding, extra, groups, dilation)
                assert torch.equal(ring.bilinear("conv_transpose3d", volume, deep, **options), expected), options


@pytest.mark.parametrize("shape", [(1, 2, 2, 5), (1, 2, 5, 2), (1, 2, 2, 5, 5), (1, 2, 5, 5, 2)])
def test_kernels_larger_than_the_input_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="larger than the padded input"):
        ring.bilinear(f"conv{len(shape) - 2}d", full(*shape), full(1, 2, *(3,) * (len(shape) - 2)))
    op, weight = f"conv{len(shape) - 2}d", full(1, 2, *(3,) * (len(shape) - 2))
    assert ring.bilinear(op, full(*shape), weight, padding=1).numel() > 0


def test_bilinear_is_linear_in_shares() -> None:
    """The identity that the protocols rest on: f(a1 + a2, b) = f(a1, b) + f(a2, b) mod 2^64, for every product."""
    shapes = {
        "mul": ((3, 4), (3, 4)),
        "matmul": ((3, 4), (4, 5)),
        "conv1d": ((2, 3, 7), (4, 3, 2)),
        "conv2d": ((2, 3, 5, 5), (4, 3, 2, 2)),
        "conv3d": ((2, 3, 4, 5, 3), (4, 3, 2, 2, 2)),
        "conv_transpose1d": ((2, 3, 7), (3, 4, 2)),
        "conv_transpose2d": ((2, 3, 5, 5), (3, 4, 2, 2)),
        "conv_transpose3d": ((2, 3, 4, 2, 3), (3, 4, 2, 2, 2)),
    }
    assert set(shapes) == set(ring.BILINEAR)
    for op, (left, right) in shapes.items():
        a1, a2, b1, b2 = full(*left), full(*left), full(*right), full(*right)
        whole = ring.bilinear(op, a1 + a2, b1 + b2)
        parts = [ring.bilinear(op, a, b) for a in (a1, a2) for b in (b1, b2)]
        assert torch.equal(whole, sum(parts[1:], parts[0])), op


def test_unknown_products_are_refused() -> None:
    with pytest.raises(InputError, match="unknown product 'cdist2d'"):
        ring.bilinear("cdist2d", full(1), full(1))
