"""Every kind of correlated randomness, recomputed from all shares by independent code (Python integers)."""

from __future__ import annotations

import math
from fractions import Fraction
from math import comb

import torch

from hummingbird.kernels.shares.packing import plain
from hummingbird.mpc.correlations.provider import SharedBit, WordTriple, Wraps
from hummingbird.mpc.functions import polynomials
from hummingbird.mpc.protocols import step_tables
from hummingbird.mpc.protocols.beaver import RowProducts, SquarePair, Triple
from hummingbird.mpc.protocols.boolean import And, AndPair
from hummingbird.mpc.protocols.cached_rows import CachedMatMul
from hummingbird.mpc.protocols.division import Division
from hummingbird.mpc.protocols.gmw import PrivateAnd
from hummingbird.mpc.protocols.lift import Lifting
from hummingbird.mpc.protocols.lifted_matmul import LiftedMatMul
from hummingbird.mpc.protocols.lifted_product import LiftedProduct
from hummingbird.mpc.protocols.lines import Lines
from hummingbird.mpc.protocols.masked import MaskedOpening
from hummingbird.mpc.protocols.poly import Polynomial
from hummingbird.mpc.protocols.rows import LiftedRows, LiftedSquares
from hummingbird.mpc.protocols.thresholds import MaskedThresholds
from hummingbird.mpc.protocols.truncation import Selection, Truncation

M64 = (1 << 64) - 1


def total(shares: list[torch.Tensor]) -> list[int]:
    return [sum(column) & M64 for column in zip(*(s.flatten().tolist() for s in shares), strict=True)]


def xored(shares: list[torch.Tensor]) -> list[int]:
    out = [0] * shares[0].numel()
    for share in shares:
        out = [a ^ (b & M64) for a, b in zip(out, share.flatten().tolist(), strict=True)]
    return out


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def products(a: torch.Tensor, b: torch.Tensor, pairs: list[tuple[int, int, int]], size: int) -> list[int]:
    """Sums of a[i] * b[j] into place o for all (o, i, j)."""
    out = [0] * size
    for o, i, j in pairs:
        out[o] = (out[o] + a[i] * b[j]) & M64
    return out


def conv2d_pairs() -> list[tuple[int, int, int]]:
    """x (2, 2, 4, 3) with kernel (3, 2, 3, 3), stride 2, padding 1: out (2, 3, 2, 2)."""
    pairs = []
    for n in range(2):
        for o in range(3):
            for y in range(2):
                for x in range(2):
                    for c in range(2):
                        for i in range(3):
                            for j in range(3):
                                r, s = 2 * y + i - 1, 2 * x + j - 1
                                if 0 <= r < 4 and 0 <= s < 3:
                                    place = ((n * 3 + o) * 2 + y) * 2 + x
                                    pairs.append((place, ((n * 2 + c) * 4 + r) * 3 + s, ((o * 2 + c) * 3 + i) * 3 + j))
    return pairs


MATMUL_PAIRS = [(i * 5 + j, i * 4 + k, k * 5 + j) for i in range(3) for j in range(5) for k in range(4)]


COUNT = 13  # not a multiple of 8: the last byte of a plane has spare bits


def bits(plane: list[int], count: int) -> list[int]:
    return [plane[i // 8] >> (i % 8) & 1 for i in range(count)]


def check_additive(parts, *, op, size0, size1, kwargs, bits):
    a, b, c = (total(column) for column in parts)
    if op == "mul":
        wanted = [x * y for x, y in zip(a, b, strict=True)]
    elif op == "matmul":
        wanted = products(a, b, MATMUL_PAIRS, 15)
    else:
        assert kwargs == {"stride": 2, "padding": 1}
        wanted = products(a, b, conv2d_pairs(), 24)
    assert equal_below(bits, c, wanted)


def equal_below(bits, found, wanted):
    """Whether the low bits of both are the same."""
    return [x & (M64 >> (64 - bits)) for x in found] == [x & (M64 >> (64 - bits)) for x in wanted]


def check_square(parts, *, shape, bits):
    r, squared = (total(column) for column in parts)
    assert equal_below(bits, squared, [x * x for x in r])


def check_rows(parts, *, shape, bits):
    a, b, squares, products_ = (total(column) for column in parts)
    rows = [a[i : i + shape[-1]] for i in range(0, len(a), shape[-1])]
    assert squares == [sum(x * x for x in row) & M64 for row in rows]
    assert equal_below(bits, products_, [x * y for row, y in zip(rows, b, strict=True) for x in row])


def check_binary(parts, *, size0, size1):
    a, b, c = (xored(column) for column in parts)
    b = b * (len(a) // len(b))  # broadcast of the leading dimension
    assert c == [x & y for x, y in zip(a, b, strict=True)]


def check_b2a(parts, *, shape):
    assert all(set(share.flatten().tolist()) <= {0, 1} for share in parts[0])
    assert xored(parts[0]) == total(parts[1])


def check_wraps(parts, *, shape):
    values = zip(*(share.flatten().tolist() for share in parts[0]), strict=True)
    for shares, wraps in zip(values, total(parts[1]), strict=True):
        # The exact integer sum of the signed shares is the value mod 2^64 plus 2^64 for every wrap.
        assert sum(shares) - signed(sum(shares) & M64) == signed(wraps) << 64


def check_and(parts, *, planes, count):
    a, b, c = (xored(column) for column in parts)
    assert c == [x & y for x, y in zip(a, b, strict=True)]


def check_and_private(parts, *, planes, count):
    check_and(parts, planes=planes, count=count)
    for owner in (0, 1):
        others = [share for rank, share in enumerate(parts[owner]) if rank != owner]
        assert all(not share.any() for share in others)


def check_and_pair(parts, *, planes, second, count):
    p, g, q, pg, pq = (xored(column) for column in parts)
    size = len(p) // planes
    assert pg == [x & y for x, y in zip(p, g, strict=True)]
    assert pq == [x & y for x, y in zip(p[size * (planes - second) :], q, strict=True)]


def check_masked(parts, *, count, k, m, tables, ring, whole):
    """lambda from its summands and their carry, the bits in both forms, their product, and every table entry."""
    low, modulus = (1 << k) - 1, (1 << ring) - 1
    mask = [sum(word & low for word in words) for words in zip(*(p.tolist() for p in parts[0]), strict=True)]
    choice, lift = (bits(xored(column), count) for column in parts[1:3])
    *carry, r, s, product = (total(column) for column in parts[3 : 7 - whole])
    exact = [value & low for value in mask]
    assert len(carry) == 1 - whole
    for dealt in carry:
        assert [(value - (c << k)) & modulus for value, c in zip(mask, dealt, strict=True)] == exact
    assert [value & modulus for value in r] == choice
    assert [value & (modulus >> k) for value in s] == [value & (modulus >> k) for value in lift]
    assert [value & modulus for value in product] == [x * y & modulus for x, y in zip(exact, choice, strict=True)]
    at = m
    for size, column in zip(step_tables.chunks(k - m, tables), parts[7 - whole :], strict=True):
        entries = bits(xored(column), count << size)
        for i, value in enumerate(exact):
            step = value >> at & ((1 << size) - 1)
            assert entries[i << size : (i + 1) << size] == [int(step <= v) for v in range(1 << size)]
        at += size


def check_poly(parts, *, count, name, k, fraction, w, degree, scale, gain, stretch, bits):
    """Every row: the piece of each opened word, moved by the mask's low bits, as fractions rounded once."""
    mask = [value & ((1 << k) - 1) for value in total(parts[0])]
    m, pieces = (
        k - w,
        polynomials.pieces(polynomials.PolynomialTable(name, k, fraction, w, degree, scale, gain, stretch)).tolist(),
    )
    for power, column in enumerate(parts[1:]):
        modulus = (1 << bits + polynomials.GUARD + power * m) - 1
        found = [value & modulus for value in total(column)]
        for i, value in enumerate(mask):
            low = Fraction(-(value & ((1 << m) - 1)), 1 << m)
            for upper in range(1 << w):
                row = pieces[(upper - (value >> m)) % (1 << w)]
                exact = sum(comb(j, power) * low ** (j - power) * row[j] for j in range(power, degree + 1))
                assert found[(i << w) + upper] == round(exact) & modulus


def check_lines(parts, *, count, k, m, ring, values):
    """Every line of every mask: for opened words with these upper bits, the ReLU of the value behind them."""
    low, modulus, w = (1 << k) - 1, (1 << ring) - 1, k - m
    sums = [sum(word & low for word in words) for words in zip(*(p.tolist() for p in parts[0]), strict=True)]
    names = ["start", *(["slope"] if m else []), *(["wrap"] if values else [])]
    fields = {name: total(column) for name, column in zip(names, parts[1:], strict=True)}
    for i, mask in enumerate(sums):
        for upper in range(1 << w):
            at = (i << w) + upper
            for v in {0, 1, (1 << m) - 1} if m else {0}:
                opened = (upper << m) + v
                wrapped = opened - (mask & low & ~((1 << m) - 1)) & low  # x and the low bits of its mask
                exact = (wrapped - (1 << k) if wrapped >> (k - 1) else wrapped) - (mask & ((1 << m) - 1))
                passes = exact + (mask & ((1 << m) - 1)) >= 1 << m
                found = fields["start"][at] + fields.get("slope", fields["start"])[at] * v
                assert (found - exact * passes) & modulus == 0
                if values:
                    assert (opened - mask + (fields["wrap"][at] << k) - exact) & modulus == 0


def check_thresholds(parts, *, count, knots, k, m, tables, ring, squares):
    """For each number, what a ReLU's request holds, of one mask, carry and table; and the squares."""
    low, modulus = (1 << k) - 1, (1 << ring) - 1
    exact = [sum(word & low for word in words) & low for words in zip(*(p.tolist() for p in parts[0]), strict=True)]
    relus, rest = (parts[: 6 + tables], parts[6 + tables :])
    assert len(rest) == 3 * squares
    for j in range(knots):
        pair = [[share[j, bit] for share in parts[1]] for bit in (0, 1)]
        choice, wrap, product = ([share[j] for share in column] for column in parts[3:6])
        own = [parts[0], *pair, parts[2], choice, wrap, product, *relus[6:]]
        check_masked(own, count=count, k=k, m=m, tables=tables, ring=ring, whole=0)
        if squares:
            r_b, r_s = (bits(xored(column), count) for column in pair)
            square, chosen, wrapped = (total(c) for c in (rest[0], *([s[j] for s in column] for column in rest[1:])))
            assert [value & modulus for value in square] == [x * x & modulus for x in exact]
            assert [v & modulus for v in chosen] == [r * x * x & modulus for r, x in zip(r_b, exact, strict=True)]
            high = modulus >> (k + 1)
            assert [v & high for v in wrapped] == [r * x & high for r, x in zip(r_s, exact, strict=True)]


def check_select(parts, *, count, shift):
    b = bits(xored(parts[0]), count)
    rest = [total(column) for column in parts[1:]]
    r, plain = rest[0], rest[1]
    assert plain == b
    if not shift:
        assert rest[2] == [x * y for x, y in zip(b, r, strict=True)]
        return
    assert rest[2] == [x >> shift for x in r]
    assert [signed(x) for x in rest[3]] == [signed(x) >> shift for x in r]
    assert rest[4] == [x * y for x, y in zip(b, rest[2], strict=True)]
    assert rest[5] == [x * y for x, y in zip(b, rest[3], strict=True)]


def check_truncate(parts, *, count, shift):
    r, logical, arithmetic = (total(column) for column in parts)
    assert logical == [x >> shift for x in r]
    assert [signed(x) for x in arithmetic] == [signed(x) >> shift for x in r]


def check_divide(parts, *, count, divisor):
    a, unsigned, arithmetic = (total(column) for column in parts)
    assert unsigned == [x // divisor for x in a]
    assert [signed(x) for x in arithmetic] == [signed(x) // divisor for x in a]


def check_lift(parts, *, count, k, ring):
    """lambda from its summands and their carry, with the top bit of lambda and without it."""
    low, above = (1 << k) - 1, (1 << (ring - k)) - 1
    sums = [sum(word & low for word in words) for words in zip(*(p.tolist() for p in parts[0]), strict=True)]
    carry, wrapped = ([value & above for value in total(column)] for column in parts[1:])
    assert carry == [(value >> k) & above for value in sums]
    assert wrapped == [((value >> k) + ((value & low) >> (k - 1))) & above for value in sums]


def read_masks(words, carries, k, bits):
    """The masks of k bits and their top bits, whose carries mod 2^(bits - k) must be as dealt."""
    added = [
        sum(word & (M64 >> 64 - k) for word in column) for column in zip(*(p.tolist() for p in words), strict=True)
    ]
    tops = [(value >> k - 1) & 1 for value in added]
    if bits > k:
        high = M64 >> 64 - (bits - k)
        whole, signs = ([v & high for v in total(column)] for column in carries)
        assert whole == [(v >> k) & high for v in added]
        assert signs == [(v >> k) + top & high for v, top in zip(added, tops, strict=True)]
    return [v & (M64 >> 64 - k) for v in added], tops


def check_all_forms(fields, left, right, pairs, k, factor, bits, cut=0):
    """Products of both forms of both masks, at every place of the result; what is cut is rounded."""
    bits += cut
    low = (1 << bits) - 1
    assert ("top" in fields, "factor_top" in fields, "tops" in fields) == (bits > k, bits > factor, bits > k + factor)
    whole, top, other, both = (
        total(fields[name]) if name in fields else [0] * len(pairs) for name in ("product", "top", "factor_top", "tops")
    )
    for place, (i, j) in enumerate(pairs):
        for first in (0, 1):
            for second in (0, 1):
                found = (whole[place] << cut) - (first * top[place] << k) - (second * other[place] << factor)
                found += first * second * both[place] << k + factor
                a, b = (
                    numbers[at] - (form * tops[at] << width)
                    for (numbers, tops), at, form, width in ((left, i, first, k), (right, j, second, factor))
                )
                off = found - a * b + (1 << cut >> 1) & low
                assert off < 1 << cut


def places(size, out):
    """Which element of a tensor of this size torch broadcasts to each place of the result."""
    return torch.arange(math.prod(size)).view(size).broadcast_to(out).flatten().tolist()


def check_lifted_product(parts, *, size0, size1, value, factor, product, cut):
    names, whole = LiftedProduct(size0, size1, value, factor, product, cut).parts, product + cut
    fields = {name: [share.flatten() for share in column] for name, column in zip(names, parts, strict=True)}
    left = read_masks(fields["mask"], [fields.get(n) for n in ("carry", "wrapped")], value, whole)
    right = read_masks(fields["factor"], [fields.get(n) for n in ("factor_carry", "factor_wrapped")], factor, whole)
    out = torch.broadcast_shapes(size0, size1)
    pairs = list(zip(places(size0, out), places(size1, out), strict=True))
    check_all_forms(fields, left, right, pairs, value, factor, product, cut)


def check_lifted_rows(parts, *, shape, value, factor, sums, product, cut):
    """Both masks from their summands and carries, and of all forms of both masks the squares and products."""
    names, whole = LiftedRows(shape, value, factor, sums, product, cut).parts, product + cut
    fields = {name: [share.flatten() for share in column] for name, column in zip(names, parts, strict=True)}
    row = (*shape[:-1], 1)
    left = read_masks(fields["mask"], [fields[n] for n in ("carry", "wrapped")], value, max(sums, whole))
    right = read_masks(fields["factor"], [fields[n] for n in ("factor_carry", "factor_wrapped")], factor, whole)
    pairs = list(zip(places(shape, shape), places(row, shape), strict=True))
    check_all_forms(fields, left, right, pairs, value, factor, product, cut)
    check_squares(fields, left, shape[-1], value, sums)


def check_lifted_squares(parts, *, shape, value, sums):
    """The mask from its summands and carries, and of both forms of it the squares."""
    fields = {
        name: [share.flatten() for share in column]
        for name, column in zip(LiftedSquares(shape, value, sums).parts, parts, strict=True)
    }
    left = read_masks(fields["mask"], [fields[n] for n in ("carry", "wrapped")], value, sums)
    check_squares(fields, left, shape[-1], value, sums)


def check_squares(fields, masks, length, value, sums):
    """The squares of masks as unsigned and as signed numbers, and their sums over each row."""
    (a, t), low = masks, M64 >> 64 - sums
    squares, turned = total(fields["squares"]), total(fields["turned"])
    for i, x in enumerate(a):
        assert x**2 + (turned[i] << value + 1) & low == (x - (t[i] << value)) ** 2 & low
    for at, found in enumerate(squares):
        assert found & low == sum(x**2 for x in a[at * length : (at + 1) * length]) & low


def check_lifted_matmul(parts, *, size0, size1, value, factor, product):
    """Both masks from their summands and carries; their matrix product, and each product that has a top bit."""
    names = LiftedMatMul(size0, size1, value, factor, product).parts
    fields = {name: [share.flatten() for share in column] for name, column in zip(names, parts, strict=True)}
    found = (
        read_masks(fields["mask"], [fields.get(n) for n in ("carry", "wrapped")], value, product),
        read_masks(fields["factor"], [fields.get(n) for n in ("factor_carry", "factor_wrapped")], factor, product),
    )
    (a, t), (b, s) = (
        [torch.tensor(x).view(size) for x in each] for each, size in zip(found, (size0, size1), strict=True)
    )
    wanted = {
        "product": (a @ b, product),
        "top": (t.unsqueeze(-1) * b.unsqueeze(-3), product - value),
        "factor_top": (a.unsqueeze(-1) * s.unsqueeze(-3), product - factor),
        "tops": (t.unsqueeze(-1) * s.unsqueeze(-3), product - value - factor),
    }
    for name, (numbers, bits) in wanted.items():
        assert (name in fields) == (bits > 0)
        if bits > 0:
            low = M64 >> 64 - bits
            assert [x & low for x in total(fields[name])] == [x & low for x in numbers.flatten().tolist()]


def check_cached_matmul(parts, rows_mask, *, size0, rows, turned, key, value, factor, product):
    """A fresh mask from its summands and carries; its product with the rows' mask, and products with its top bits.

    rows_mask: all shares of the rows' mask, which the parties have from another request.
    """
    names = CachedMatMul(size0, rows, turned, key, value, factor, product).parts
    fields = {name: [share.flatten() for share in column] for name, column in zip(names, parts, strict=True)}
    a, t = read_masks(fields["mask"], [fields.get(name) for name in ("carry", "wrapped")], value, product)
    places, *batch, length = rows
    b = total([share.flatten() for share in rows_mask])
    across = length if turned else places
    stacks = math.prod(batch)
    wanted, tops = [], []
    for stack in range(stacks):
        for i in range(size0[-2]):
            at = [(stack * size0[-2] + i) * across + j for j in range(across)]
            columns = places if turned else length

            def entry(j, column, stack=stack):
                place, element = (column, j) if turned else (j, column)
                return b[(place * stacks + stack) * length + element]

            wanted += [sum(a[at[j]] * entry(j, column) for j in range(across)) for column in range(columns)]
            tops += [t[at[j]] * entry(j, column) for j in range(across) for column in range(columns)]
    for name, numbers, bits in (("product", wanted, product), ("top", tops, product - value)):
        assert (name in fields) == (bits > 0)
        if bits > 0:
            low = M64 >> 64 - bits
            assert [x & low for x in total(fields[name])] == [x & low for x in numbers]


CONV = {"size0": (2, 2, 4, 3), "size1": (3, 2, 3, 3), "op": "conv2d", "kwargs": {"stride": 2, "padding": 1}}


CASES = [
    (Triple((3, 4), (4, 5), "matmul", {}), check_additive),
    (Triple((17,), (17,), "mul", {}), check_additive),
    (Triple(**CONV), check_additive),
    (Triple((17,), (17,), "mul", {}, bits=44), check_additive),
    (Triple((3, 4), (4, 5), "matmul", {}, bits=27), check_additive),
    (SquarePair((3, 5)), check_square),
    (SquarePair((3, 5), bits=30), check_square),
    (RowProducts((3, 5), bits=54), check_rows),
    (LiftedProduct((2, 3, 5), (3, 1), value=9, factor=7, product=36), check_lifted_product),
    (LiftedProduct((3, 1), (1, 4), value=20, factor=18, product=36), check_lifted_product),
    (LiftedProduct((7,), (7,), value=40, factor=64, product=64), check_lifted_product),
    (LiftedProduct((7,), (7,), value=20, factor=18, product=64, cut=17), check_lifted_product),
    (LiftedRows((3, 5), value=20, factor=18, sums=40, product=36), check_lifted_rows),
    (LiftedRows((3, 5), value=20, factor=18, sums=40, product=62, cut=18), check_lifted_rows),
    (LiftedRows((3, 5), value=12, factor=9, sums=27, product=64), check_lifted_rows),
    (LiftedSquares((3, 5), value=20, sums=40), check_lifted_squares),
    (LiftedSquares((3, 5), value=62, sums=64), check_lifted_squares),
    (LiftedMatMul((2, 3, 5), (5, 4), value=9, factor=7, product=36), check_lifted_matmul),
    (LiftedMatMul((3, 5), (5, 4), value=20, factor=18, product=36), check_lifted_matmul),
    (LiftedMatMul((3, 5), (5, 4), value=20, factor=30, product=30), check_lifted_matmul),
    (WordTriple((2, 3, 4), (3, 4)), check_binary),
    (SharedBit((40,)), check_b2a),
    (Wraps((200,)), check_wraps),
    (PrivateAnd(planes=2, count=COUNT), check_and_private),
    (And(planes=3, count=COUNT), check_and),
    (AndPair(planes=3, second=2, count=COUNT), check_and_pair),
    (AndPair(planes=3, second=3, count=COUNT), check_and_pair),
    (MaskedOpening(COUNT, k=20, m=12, tables=1, ring=36), check_masked),
    (MaskedOpening(COUNT, k=12, m=1, tables=3, ring=64), check_masked),
    (MaskedOpening(COUNT, k=20, m=12, tables=2, ring=64, whole=1), check_masked),
    (
        Polynomial(
            COUNT,
            "silu(x)",
            k=12,
            fraction=8,
            w=3,
            degree=3,
            scale=8,
            bits=20,
            gain=polynomials.GAIN,
            stretch=polynomials.GAIN,
        ),
        check_poly,
    ),
    (
        Polynomial(COUNT, "tanh(x)", k=6, fraction=3, w=6, degree=1, scale=10, bits=62, gain=77_881, stretch=98_765),
        check_poly,
    ),
    (Lines(COUNT, k=18, m=12, ring=36, values=0), check_lines),
    (Lines(COUNT, k=6, m=0, ring=20, values=1), check_lines),
    (Lines(COUNT, k=33, m=30, ring=64, values=1), check_lines),
    (MaskedThresholds(COUNT, knots=1, k=20, m=12, tables=1, ring=36, squares=0), check_thresholds),
    (MaskedThresholds(COUNT, knots=3, k=12, m=1, tables=3, ring=64, squares=0), check_thresholds),
    (MaskedThresholds(COUNT, knots=2, k=16, m=8, tables=1, ring=64, squares=1), check_thresholds),
    (MaskedThresholds(COUNT, knots=2, k=12, m=1, tables=3, ring=21, squares=1), check_thresholds),
    (Selection(COUNT, shift=0), check_select),
    (Selection(COUNT, shift=16), check_select),
    (Truncation(COUNT, shift=9), check_truncate),
    (Division(COUNT, divisor=12_345), check_divide),
    (Lifting(COUNT, k=21, ring=40), check_lift),
    (Lifting(COUNT, k=38, ring=64), check_lift),
]


def columns(request, materials):
    """Every party's share of each field, field by field, in the order of the request's fields, in whole words."""
    assert all(list(material.shares) == list(request.parts) for material in materials)
    return [[plain(material.shares[name]) for material in materials] for name in request.parts]


def take_and_check(dealers, cases=CASES):
    """All parties' material for every case, which must be right; what each party was handed."""
    taken = []
    for request, verify in cases:
        materials = [dealer.correlation(request) for dealer in dealers]
        parts = columns(request, materials)
        assert len(parts) == len(request.free) + len(request.derived)
        verify(parts, **request.params)
        taken.append(materials)
    return [list(of_party) for of_party in zip(*taken, strict=True)]
