"""Monomials times ciphertexts: torch and each C++ version against products of polynomials in Python's integers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.ciphertexts import EXACT, taps
from tests.kernels.ciphertexts.test_arithmetic import DEGREE, ONE, RINGS, THREE, TWO, modulo, residues

NONE = torch.zeros(0, dtype=torch.int64)


def expected(x: Tensor, first: Tensor, terms: list[tuple[int, int, int]]) -> Tensor:
    """int64, not reduced: a term (input, shift, factor) is one product with X, shift times."""
    out = torch.zeros(len(first) - 1, *x.shape[1:], dtype=torch.int64)
    for output, sums in enumerate(out):
        for number, shift, factor in terms[int(first[output]) : int(first[output + 1])]:
            full = torch.cat([x[number].long(), -x[number].long()], -1)
            sums += factor * full.roll(shift, -1)[..., :DEGREE]
    return out


def columns(terms: list[tuple[int, int, int]]) -> tuple[Tensor, ...]:
    return torch.tensor(terms, dtype=torch.int64).view(-1, 3).unbind(1)


@pytest.mark.parametrize("primes", [1, 2, 3])
def test_sums_of_terms(path: str, primes: int) -> None:
    """Every kind of shift, outputs of no terms, of one and of many; ciphertexts of one part, two and three."""
    ring, x = RINGS[primes], residues(RINGS[primes], 5, primes)
    shifts = [0, 1, 15, 16, 63, 64, 65, DEGREE - 1, DEGREE, DEGREE + 1, 2 * DEGREE - 1]
    terms = [(place % 5, shift, (-1) ** place * (place + 1)) for place, shift in enumerate(shifts)]
    terms += torch.stack(
        [torch.randint(5, (60,)), torch.randint(2 * DEGREE, (60,)), torch.randint(-999, 999, (60,))], 1
    ).tolist()
    first = torch.tensor([0, 1, 1, 11, 40, 71, 71])
    got = taps(ring, x, first, *columns(terms))
    assert got.equal(modulo(ring, expected(x, first, terms)))


def test_no_terms_and_no_outputs(path: str) -> None:
    x = residues(TWO, 2, 2)
    assert taps(TWO, x, torch.tensor([0, 0]), NONE, NONE, NONE).equal(torch.zeros_like(x[:1]))
    assert taps(TWO, x, torch.tensor([0]), NONE, NONE, NONE).shape == (0, *x.shape[1:])
    assert taps(TWO, x[:0], torch.tensor([0, 0]), NONE, NONE, NONE).count_nonzero() == 0


def test_the_largest_sums_are_exact(path: str) -> None:
    """All residues at their largest, factors up to the bound; one more is refused."""
    q = ONE.primes[0]
    most = (EXACT - q) // (q // 2)
    x = torch.full((1, 1, 1, DEGREE), q // 2, dtype=torch.int32)
    for factors in ([most], [most - 7, 7], [-most], [1 - most, -1]):
        terms = [(0, 0, factor) for factor in factors]
        first = torch.tensor([0, len(terms)])
        assert taps(ONE, x, first, *columns(terms)).equal(modulo(ONE, expected(x, first, terms)))
    for factors in ([most + 1], [most, -1]):
        with pytest.raises(InputError, match="factor"):
            taps(ONE, x, torch.tensor([0, len(factors)]), *columns([(0, 0, factor) for factor in factors]))


def test_threads_share_the_lines(path: str) -> None:
    x, terms = residues(THREE, 9, 2), [(place % 9, place * 37 % (2 * DEGREE), place - 400) for place in range(800)]
    first, before = torch.tensor([0, 300, 800]), torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        got = taps(THREE, x, first, *columns(terms))
    finally:
        torch.set_num_threads(before)
    assert got.equal(modulo(THREE, expected(x, first, terms)))


@pytest.mark.parametrize(
    ("first", "terms", "message"),
    [
        ([0, 1], [(5, 0, 1)], "values from 5"),
        ([0, 1], [(-1, 0, 1)], "values from -1"),
        ([0, 1], [(0, 2 * DEGREE, 1)], "values from 2048"),
        ([0, 1], [(0, -1, 1)], "values from -1"),
        ([1, 1], [(0, 0, 1)], "runs"),
        ([0, 2], [(0, 0, 1)], "runs"),
        ([0, 2, 1], [(0, 0, 1)], "runs"),
        ([], [(0, 0, 1)], "runs"),
    ],
)
def test_bad_terms_are_refused(first: list[int], terms: list[tuple[int, int, int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        taps(TWO, residues(TWO, 5, 2), torch.tensor(first, dtype=torch.int64), *columns(terms))


def test_tensors_of_other_types_are_refused() -> None:
    x, first, one = residues(TWO, 1, 2), torch.tensor([0, 1]), torch.tensor([0])
    for arguments in [
        (x[0], first, one, one, one),
        (x.long(), first, one, one, one),
        (x, first.int(), one, one, one),
        (x, first, one.int(), one, one),
        (x, first, one, one.double(), one),
        (x, first, one, one, torch.tensor([0, 1])),
    ]:
        with pytest.raises(InputError):
            taps(TWO, *arguments)
