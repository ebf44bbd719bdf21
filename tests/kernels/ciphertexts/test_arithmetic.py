"""Arithmetic on ciphertexts: torch and each C++ version against int64 and Python's integers modulo the primes."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.ciphertexts import (
    EXACT,
    Ring,
    add,
    largest_primes,
    linear,
    multiply,
    shift,
    square,
    switch,
    uniform,
)
from hummingbird.kernels.cpu import ciphertexts as cpu
from hummingbird.kernels.cpu import library
from hummingbird.kernels.reference.ciphertexts import arithmetic as reference
from hummingbird.prg import Stream, derive
from tests.kernels.ciphertexts.test_polynomials import schoolbook

DEGREE = 1024
RINGS = {count: Ring.of(DEGREE, largest_primes(DEGREE, count)) for count in (1, 2, 3)}
ONE, TWO, THREE = RINGS.values()


def residues(ring: Ring, *shape: int) -> Tensor:
    """Uniform ones, int32 (*shape, L, N), and in the first four columns the largest and smallest."""
    source = Stream(derive(bytes(16), "ciphertext kernels", *map(str, shape)))
    x = uniform(ring, source, torch.Size(shape).numel())
    for i, q in enumerate(ring.primes):
        x[:, i, :4] = torch.tensor([q // 2, -(q // 2), 0, 1])
    return x.view(*shape, *x.shape[1:])


def modulo(ring: Ring, x: Tensor) -> Tensor:
    """int64 (..., L, N) to centred residues."""
    primes = torch.tensor(ring.primes)[:, None]
    return (torch.remainder(x + primes // 2, primes) - primes // 2).int()


def expected(ring: Ring, weights: Tensor, index: Tensor, x: Tensor) -> Tensor:
    """`linear` in int64: sums of at most 2^53."""
    zero = torch.zeros_like(x[:1])
    read = torch.cat([x, zero])[index.long()].long()  # (groups, places, K, ...), -1 is the last
    return modulo(ring, torch.einsum("grk,gpk...->grp...", weights.long(), read).flatten(0, 1))


def integers(*shape: int, most: int = 1 << 20) -> Tensor:
    return torch.randint(-most, most + 1, shape).double()


def indices(*shape: int, inputs: int, least: int = -1) -> Tensor:
    return torch.randint(least, inputs, shape, dtype=torch.int32)


def windows(side: int, kernel: int, stride: int, pad: int, groups: int = 1) -> Tensor:
    """The index of a convolution over images (groups, side, side): int32 (groups, places, kernel^2), -1 for padding."""
    starts = torch.arange(-pad, side + pad - kernel + 1, stride)
    at = starts[:, None] + torch.arange(kernel)
    row, column = at[:, None, :, None], at[None, :, None, :]
    inside = (row >= 0) & (row < side) & (column >= 0) & (column < side)
    one = torch.where(inside, row * side + column, -1).reshape(1, len(starts) ** 2, kernel**2)
    return torch.where(one < 0, -1, one + torch.arange(groups)[:, None, None] * side**2).int()


def largest_norm(ring: Ring) -> int:
    q = max(ring.primes)
    return (EXACT - q) // (q // 2)


# ---- linear


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 13])
def test_linear_of_every_size_around_a_tile(path: str, rows: int) -> None:
    x = residues(TWO, 7)
    for groups, terms, places in itertools.product((1, 3), (1, 2, 9), (1, 2, 5)):
        weights, index = integers(groups, rows, terms), indices(groups, places, terms, inputs=7)
        assert linear(TWO, weights, index, x).equal(expected(TWO, weights, index, x)), (groups, terms, places)


@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 2), (5, 3), (5, 2, 3)])
def test_linear_for_every_size_of_ciphertexts(path: str, shape: tuple[int, ...]) -> None:
    for ring in RINGS.values():
        x, weights, index = residues(ring, *shape), integers(1, 2, 4), indices(1, 3, 4, inputs=5)
        got = linear(ring, weights, index, x)
        assert got.shape == (2, 3, *x.shape[1:]) and got.equal(expected(ring, weights, index, x))


@pytest.mark.parametrize(
    ("side", "kernel", "stride", "pad", "groups", "rows"),
    [
        (9, 3, 1, 1, 1, 4),
        (9, 3, 2, 1, 5, 1),
        (8, 2, 2, 0, 3, 1),
        (7, 5, 2, 2, 2, 7),
        (6, 1, 1, 0, 1, 17),
        (4, 4, 1, 0, 6, 1),
    ],
)
def test_convolutions_and_pools(
    path: str, side: int, kernel: int, stride: int, pad: int, groups: int, rows: int
) -> None:
    """Dense, depthwise, pointwise, pooling over windows and over everything."""
    index, x = windows(side, kernel, stride, pad, groups), residues(ONE, groups * side**2)
    for weights in (integers(groups, rows, kernel**2), torch.ones(groups, rows, kernel**2).double()):
        assert linear(ONE, weights, index, x).equal(expected(ONE, weights, index, x))


def test_linear_where_the_inputs_are_many(path: str) -> None:
    """More ciphertexts than a panel holds, for one place and for windows; more weights, more terms than the cache."""
    x = residues(ONE, 1600)
    some = slice(5, None, 16)  # of the columns, to compare
    for weights, index in [
        (integers(1, 2, 1500, most=1 << 17), torch.randperm(1600)[:1500].view(1, 1, -1).int()),
        (integers(1, 3, 9), windows(40, 3, 1, 1)[:, ::3].contiguous()),
        (integers(1, 70, 1000, most=1 << 17), torch.arange(1000).view(1, 1, -1).int()),
        (integers(1, 1, 1000, most=1 << 17), indices(1, 300, 1000, inputs=50)),
    ]:
        wanted = [expected(ONE, weights, places, x[..., some]) for places in index.split(10, 1)]
        assert linear(ONE, weights, index, x)[..., some].equal(torch.cat(wanted, 1))


@pytest.mark.parametrize("numbers", [1, 5000, 30000])
def test_torchs_versions_cut_the_work_without_a_trace(monkeypatch: pytest.MonkeyPatch, numbers: int) -> None:
    """One place at a time, some places of one group, some groups."""
    x, weights, index = residues(TWO, 75, 2), integers(3, 2, 9), windows(5, 3, 1, 1, 3)[:, ::3]
    monkeypatch.setattr(library, "available", lambda: False)
    monkeypatch.setattr(reference, "_CPU_NUMBERS", numbers)
    assert linear(TWO, weights, index, x).equal(expected(TWO, weights, index, x))
    assert add(TWO, x, x, 3).equal(modulo(TWO, 4 * x.long()))
    assert square(TWO, x)[:, 0].equal(modulo(TWO, x[:, 0].long() ** 2))


def test_padding_and_zero_weights(path: str) -> None:
    x = residues(TWO, 6, 2)
    weights, index = integers(2, 4, 8), indices(2, 9, 8, inputs=6)
    weights[0, :, ::2] = 0  # terms of no row
    weights[:, 1] = 0
    index[:, 3] = -1  # a place that reads nothing
    index[1, 5] = 4  # one that reads the same again and again
    got = linear(TWO, weights, index, x)
    assert got.equal(expected(TWO, weights, index, x))
    assert not got[:, 3].any() and not got[[1, 5]].any()
    weights[1] = 0
    assert linear(TWO, weights, index, x).equal(expected(TWO, weights, index, x))


@pytest.mark.parametrize("zeros", [0.5, 0.9, 0.99])
def test_zeros_anywhere(path: str, zeros: float) -> None:
    """As in a pruned net: tiles of every number of rows, each with terms of its own, and tiles without any."""
    x = residues(TWO, 40)
    for rows, terms, places in itertools.product((1, 2, 3, 5, 6, 8, 13), (1, 9, 40), (1, 5)):
        weights, index = integers(2, rows, terms), indices(2, places, terms, inputs=40)
        weights[torch.rand(weights.shape) < zeros] = 0
        assert linear(TWO, weights, index, x).equal(expected(TWO, weights, index, x)), (rows, terms, places)


def test_zeros_where_the_inputs_are_many(path: str) -> None:
    x, some = residues(ONE, 1600), slice(5, None, 16)
    for weights, index in [
        (integers(1, 70, 1500, most=1 << 17), torch.randperm(1600)[:1500].view(1, 1, -1).int()),
        (integers(1, 30, 9), windows(40, 3, 1, 1)[:, ::3].contiguous()),
    ]:
        weights[torch.rand(weights.shape) < 0.9] = 0
        wanted = [expected(ONE, weights, places, x[..., some]) for places in index.split(10, 1)]
        assert linear(ONE, weights, index, x)[..., some].equal(torch.cat(wanted, 1))


@pytest.mark.parametrize(
    "shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)], ids=["groups", "rows", "terms", "places"]
)
def test_linear_of_nothing(path: str, shape: tuple[int, int, int, int]) -> None:
    groups, rows, terms, places = shape
    x, weights, index = residues(ONE, 2), integers(groups, rows, terms), indices(groups, places, terms, inputs=2)
    got = linear(ONE, weights, index, x)
    assert got.shape == (groups * rows, places, 1, DEGREE) and not got.any()
    assert not linear(ONE, integers(1, 1, 1), indices(1, 1, 1, inputs=0), x[:0]).any()


@pytest.mark.parametrize("step", [1, 4, 7])
def test_places_in_slices_are_the_whole(path: str, step: int) -> None:
    """Slices written into a part of a larger tensor; the rest of it stays as it is."""
    x, weights, index = residues(TWO, 25, 2), integers(2, 3, 9), windows(5, 3, 1, 1).expand(2, -1, -1)
    whole = linear(TWO, weights, index, x)
    room = torch.full((8, 27, 2, 2, DEGREE), 77, dtype=torch.int32)
    out = room[1:7, 1:26]
    for start in range(0, 25, step):
        part = out[:, start : start + step]
        assert linear(TWO, weights, index[:, start : start + step], x, part) is part
    assert out.equal(whole)
    out.fill_(77)
    assert room.eq(77).all()


def test_views_are_read_correctly(path: str) -> None:
    x, weights, index = residues(TWO, 9, 3), integers(3, 4, 2), indices(3, 3, 6, inputs=5)
    arguments = (weights.transpose(0, 2)[:, ::2], index[:2].transpose(1, 2)[:, ::2], x[::2, ::2])
    assert not any(t.is_contiguous() for t in arguments)
    assert linear(TWO, *arguments).equal(linear(TWO, *(t.contiguous() for t in arguments)))
    view, same = x[::2, ::2], x[::2, ::2].contiguous()
    assert add(TWO, view, view, 2).equal(add(TWO, same, same, 2))
    assert multiply(TWO, view, x[::2]).equal(multiply(TWO, same, x[::2].contiguous()))
    assert switch(TWO, view, "ntt").equal(switch(TWO, same, "ntt"))


@pytest.mark.parametrize("threads", [2, 3, 16])
def test_threads_share_the_columns(path: str, threads: int) -> None:
    x, weights, index = residues(THREE, 30, 2), integers(1, 40, 30), torch.arange(30).view(1, 1, -1).int()
    cases = [linear(THREE, weights, index, x), multiply(THREE, x, x), add(THREE, x, x, -7), switch(THREE, x, "mixed")]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert linear(THREE, weights, index, x).equal(cases[0]) and multiply(THREE, x, x).equal(cases[1])
        assert add(THREE, x, x, -7).equal(cases[2]) and switch(THREE, x, "mixed").equal(cases[3])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("step", [1, DEGREE // 2, DEGREE])
def test_constants_are_added_in_place_where_they_belong(path: str, step: int) -> None:
    """To part 0 of each row's ciphertexts, the largest and smallest residues among them, in a part of a tensor."""
    half = torch.tensor(THREE.primes).int() // 2
    constants = torch.stack([half, -half, half - 1, torch.zeros(3).int(), torch.tensor([1, -1, 12345]).int()])
    room = residues(THREE, 5, 9, 2)
    x, before = room[:, 2:7], room.clone()
    shift(THREE, x, constants, step)
    wanted = before.clone()
    sums = wanted[:, 2:7, 0].long()
    sums[..., ::step] += constants[:, None, :, None]
    wanted[:, 2:7, 0] = modulo(THREE, sums)
    assert room.equal(wanted) and not room.equal(before)
    shift(THREE, room[:, :0], constants, step)
    assert room.equal(wanted)


def test_a_shift_that_does_not_fit_is_refused() -> None:
    x, constants = residues(TWO, 2, 3, 2), torch.zeros(2, 2).int()
    for bad in (x[0], x[:, :, :, :1], x.long(), x.transpose(2, 3)):
        with pytest.raises(InputError, match=r"kernels\.shift"):
            shift(TWO, bad, constants, 1)
    for given, step in ((constants[:1], 1), (constants.long(), 1), (constants, 0), (constants, DEGREE + 1)):
        with pytest.raises(InputError, match=r"kernels\.shift"):
            shift(TWO, x, given, step)


# ---- where sums are exact


def ties(ring: Ring, weights: Tensor) -> Tensor:
    """Residues x (K, 1, N), one row for each weight: w x is (q + 1) / 2 mod q in even columns, (q - 1) / 2 in odd."""
    q = ring.primes[0]
    pairs = [[(q // 2 + odd) * pow(int(w), -1, q) % q for odd in (1, 0)] for w in weights]
    return modulo(ring, torch.tensor(pairs).repeat(1, DEGREE // 2)[:, None])


def test_sums_next_to_a_tie_go_to_the_right_side(path: str) -> None:
    """The hardest sums: w x / q is 1/2q from a tie, at every magnitude up to the bound."""
    count, most = 600, largest_norm(ONE)
    scale = torch.linspace(10, 0, count).double()
    weights = ((most - 1 - torch.arange(count)) * 2**-scale).floor().clamp(min=1) * (1 - 2 * (torch.arange(count) % 2))
    x = ties(ONE, weights)
    index = torch.arange(count).view(-1, 1, 1).int()
    got = linear(ONE, weights.view(-1, 1, 1).double(), index, x)[:, 0, 0]
    half = ONE.primes[0] // 2
    assert got[:, ::2].eq(-half).all() and got[:, 1::2].eq(half).all()
    if path == "torch":  # a fused product in C++ rounds once less, and may be right by the first step
        out = torch.empty((count, 1, 1, DEGREE), dtype=torch.int32)
        reference.linear(ONE, weights.view(-1, 1, 1).double(), index, x, out, 1)
        assert not out[:, 0, 0].equal(got)


@pytest.mark.parametrize("terms", [1, 3, 1000])
def test_linear_is_exact_up_to_its_bound_and_no_further(path: str, terms: int) -> None:
    """All residues at +-(q - 1) / 2, signs as the weights': the largest sum for the norm; then twice the weights."""
    q, most = ONE.primes[0], largest_norm(ONE)
    weights = torch.full((1, 1, terms), float(most // terms), dtype=torch.float64)
    weights[0, 0, 0] += most - weights.sum()
    weights[0, 0, ::2] *= -1
    x = torch.full((terms, 1, DEGREE), q // 2, dtype=torch.int32)
    x[::2] *= -1
    x[:, :, 1:] -= x[:, :, 1:].sign() * torch.randint(1000, (terms, 1, DEGREE - 1)).int()  # odd and even sums as well
    index = torch.arange(terms).view(1, 1, -1).int()
    assert weights.abs().sum() == most
    assert linear(ONE, weights, index, x).equal(expected(ONE, weights, index, x))
    weights[0, 0, 0] -= 1
    with pytest.raises(InputError, match=f"row 0 of group 0.* {most + 1}, .* up to {most}"):
        linear(ONE, weights, index, x)
    weights = 4 * weights + 1  # odd: the sums need all their bits
    out = torch.empty((1, 1, 1, DEGREE), dtype=torch.int32)
    run = reference.linear if path == "torch" else cpu.linear
    run(ONE, weights, index, x, out, 2)
    assert not out.equal(expected(ONE, weights, index, x))  # int64 has room for 2^55


def test_the_row_that_is_too_large_is_named() -> None:
    weights, index, x = torch.ones(3, 4, 5).double(), indices(3, 1, 5, inputs=2), residues(TWO, 2)
    linear(TWO, weights, index, x)
    weights[1, 2, :2] = torch.tensor([2.0**27, -(2.0**28)])
    with pytest.raises(InputError, match="row 2 of group 1.*\nhint: .*split the inner dimension"):
        linear(TWO, weights, index, x)
    for value, what in ((torch.inf, "inf"), (torch.nan, "not integers"), (0.5, "not integers")):
        weights[1, 2, :2] = value
        with pytest.raises(InputError, match=what):
            linear(TWO, weights, index, x)


# ---- residue by residue


@pytest.mark.parametrize("factor", [1, -1, 3, -(1 << 24), 1 << 24])
def test_add(path: str, factor: int) -> None:
    x, y = residues(THREE, 5, 3), residues(THREE, 5, 3).flip(0)
    assert add(THREE, x, y, factor).equal(modulo(THREE, x.long() + factor * y.long()))
    assert add(THREE, x[0, 0], y[0, 0], factor).equal(modulo(THREE, x[0, 0].long() + factor * y[0, 0].long()))
    assert add(THREE, x[:0], y[:0], factor).shape == (0, 3, 3, DEGREE)


@pytest.mark.parametrize(("a", "b"), [(1, 1), (2, 2), (2, 3), (3, 2), (5, 5), (1, 9), (8, 8), (11, 8)])
def test_products_of_every_size(path: str, a: int, b: int) -> None:
    """Among them the largest sum of all: 8 products of (q - 1) / 2, in the first column."""
    x, y = residues(TWO, 3, a), residues(TWO, 3, b)
    wanted = torch.zeros(3, a + b - 1, 2, DEGREE, dtype=torch.int64)
    for i, j in itertools.product(range(a), range(b)):
        wanted[:, i + j] += x[:, i].long() * y[:, j].long()
    assert multiply(TWO, x, y).equal(modulo(TWO, wanted))
    assert multiply(TWO, x[:0], y[:0]).shape == (0, a + b - 1, 2, DEGREE)


def test_products_are_those_of_polynomials(path: str) -> None:
    """Products of transformed ciphertexts (x0, x1) (y0, y1), against the schoolbook modulo X^N + 1."""
    x, y = residues(TWO, 1, 2), residues(TWO, 1, 2) // 3
    got = TWO.intt(multiply(TWO, TWO.ntt(x), TWO.ntt(y)))[0]
    for i, q in enumerate(TWO.primes):
        first, second = x[0, :, i].long(), y[0, :, i].long()
        middle = schoolbook(first[0], second[1], q) + schoolbook(first[1], second[0], q)
        wanted = [schoolbook(first[0], second[0], q), middle, schoolbook(first[1], second[1], q)]
        for part, value in zip(got[:, i], wanted, strict=True):
            assert torch.remainder(part - value, q).count_nonzero() == 0
    assert square(TWO, x).equal(multiply(TWO, x, x.clone()))


def composed(ring: Ring, x: Tensor) -> list[int]:
    """The centred integers mod Q with residues x (L, n)."""
    product, total = 1, [0] * x.shape[1]
    for q, row in zip(ring.primes, x.tolist(), strict=True):
        inverse = pow(product, -1, q)
        total = [t + product * ((r - t) * inverse % q) for t, r in zip(total, row, strict=True)]
        product *= q
    return [t - product if t > product // 2 else t for t in total]


@pytest.mark.parametrize(("form", "size"), [("mixed", 1), ("mixed", 2), ("mixed", 3), ("ntt", 1), ("ntt", 3)])
@pytest.mark.parametrize("count", [2, 3])
def test_switch_divides_and_rounds(path: str, count: int, form: str, size: int) -> None:
    ring = RINGS[count]
    x = residues(ring, 3, size)
    got, head = switch(ring, x, form), ring.take(count - 1)
    plain = 1 if form == "mixed" else 0
    before = torch.cat([x[:, :plain], ring.intt(x[:, plain:].contiguous())], 1)
    after = torch.cat([got[:, :plain], head.intt(got[:, plain:].contiguous())], 1)
    assert got.shape == (3, size, count - 1, DEGREE)
    last = ring.primes[-1]
    for n, part in itertools.product(range(3), range(size)):
        values = composed(ring, before[n, part, :, :100])
        for i, q in enumerate(head.primes):
            wanted = [round(Fraction(value, last)) % q for value in values]  # never a tie: the prime is odd
            assert (after[n, part, i, :100] % q).tolist() == wanted
    assert switch(ring, x[:0], form).shape == (0, size, count - 1, DEGREE)


@pytest.mark.parametrize("degree", [2048, 8192])
def test_every_version_gives_the_same_bits(degree: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the sizes in use, all columns: what torch gives, every instruction set gives."""
    if not library.available():
        pytest.skip("the native library is not built")
    ring = Ring.of(degree, largest_primes(degree, 3))
    x, index = residues(ring, 36, 2), windows(6, 3, 1, 1)
    weights = integers(1, 5, 9, most=1 << 24)

    def run() -> list[Tensor]:
        product = multiply(ring, x[:4], x[4:8])
        return [linear(ring, weights, index, x), product, switch(ring, product, "ntt"), add(ring, x, x.flip(0), -3)]

    before = library.isa()
    with monkeypatch.context() as context:
        context.setattr(library, "available", lambda: False)
        wanted = run()
    try:
        for name in library.ISAS:
            if library.set_isa(name):
                assert all(a.equal(b) for a, b in zip(run(), wanted, strict=True)), name
    finally:
        library.set_isa(before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_torch_versions_run_on_a_gpu() -> None:
    x, weights, index = residues(TWO, 25, 2), integers(2, 3, 9), windows(5, 3, 1, 1).expand(2, -1, -1)
    there = x.cuda()
    assert linear(TWO, weights.cuda(), index.cuda(), there).cpu().equal(linear(TWO, weights, index, x))
    assert multiply(TWO, there, there).cpu().equal(multiply(TWO, x, x))
    assert add(TWO, there, there, 5).cpu().equal(add(TWO, x, x, 5))
    assert switch(TWO, there, "mixed").cpu().equal(switch(TWO, x, "mixed"))


# ---- what is refused


def test_what_linear_refuses() -> None:
    x, weights, index = residues(TWO, 4), integers(2, 3, 5), indices(2, 6, 5, inputs=4)
    out = torch.empty((6, 6, 2, DEGREE), dtype=torch.int32)
    for arguments, what in [
        ((weights, index, x.long()), "int64"),
        ((weights, index, x[:, :1]), "expected torch.int32"),
        ((weights, index, x[0]), "x is "),
        ((weights.float(), index, x), "float32"),
        ((weights, index.long(), x), "int64"),
        ((weights.to("meta"), index, x), "meta"),
        ((weights, index.tolist(), x), "list"),
        ((weights[0], index, x), "weights .3, 5."),
        ((weights, index[:1], x), "index .1, 6, 5."),
        ((weights, index[..., :4], x), "index .2, 6, 4."),
        ((weights, index + 1, x), "of 4 ciphertexts"),
        ((weights, index - 2, x), "indices from -3"),
        ((weights, index, x, out[1:]), "out is"),
        ((weights, index, x, out.long()), "int64"),
        ((weights, index, x, torch.empty((6, 6, 2, 2 * DEGREE), dtype=torch.int32)[..., ::2]), "strides"),
    ]:
        with pytest.raises(InputError, match=what):
            linear(TWO, *arguments)


def test_what_the_others_refuse() -> None:
    x = residues(TWO, 4, 2)
    for call, what in [
        (lambda: add(TWO, x, x[:3]), "plus"),
        (lambda: add(TWO, x, x.long()), "int64"),
        (lambda: add(TWO, x, x, (1 << 24) + 1), "factor"),
        (lambda: add(TWO, x, x, 0.5), "factor"),  # type: ignore[arg-type]
        (lambda: add(THREE, x, x), "expected torch.int32"),
        (lambda: add(TWO, x, x.to("meta")), "meta"),
        (lambda: multiply(TWO, x, x[:3]), "times"),
        (lambda: multiply(TWO, x, x[:, :0]), "times"),
        (lambda: multiply(TWO, residues(TWO, 1, 9), residues(TWO, 1, 9)), "times"),
        (lambda: multiply(TWO, x[0], x[0]), "expected torch.int32"),
        (lambda: square(TWO, x.float()), "float32"),
        (lambda: switch(TWO, x, "coefficients"), "form"),
        (lambda: switch(TWO, x[0], "ntt"), "expected torch.int32"),
        (lambda: switch(ONE, x[:, :, :1].contiguous(), "ntt"), "one prime"),
    ]:
        with pytest.raises(InputError, match=what):
            call()
