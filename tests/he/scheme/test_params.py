"""Security tables: what passes, what is refused, and that both are asked."""

from __future__ import annotations

import math

import pytest

from hummingbird.errors import ConfigError
from hummingbird.he.scheme import params
from hummingbird.he.scheme.params import DEGREES, Parameters, choose, most_primes


def test_tables_are_those_of_the_two_documents() -> None:
    assert params.STANDARD_2018 == {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}
    assert params.GUIDELINES_2024 == {1024: 26, 2048: 53, 4096: 106, 8192: 214, 16384: 430, 32768: 868}


def test_the_most_primes_of_every_degree() -> None:
    assert [most_primes(degree) for degree in DEGREES] == [1, 2, 4, 8, 16, 33]
    for degree in DEGREES:
        parameters = choose(degree, most_primes(degree))
        assert parameters.bits <= min(parameters.limits.values())
        assert parameters.bits == pytest.approx(math.log2(parameters.modulus(most_primes(degree))))
        with pytest.raises(ConfigError, match="are secure"):
            choose(degree, most_primes(degree) + 1)


def test_insecure_parameters_are_refused_whoever_proposes_them() -> None:
    three = choose(4096, 3).primes
    assert all(prime % 4096 == 1 for prime in three)
    with pytest.raises(ConfigError, match="not secure: log2 Q is 78.0, and the table of 2018 allows 54"):
        Parameters(2048, three)


@pytest.mark.parametrize("year", params.TABLES)
def test_each_table_is_asked(monkeypatch: pytest.MonkeyPatch, year: str) -> None:
    good = choose(2048, 2).primes
    monkeypatch.setitem(params.TABLES, year, dict.fromkeys(DEGREES, 51))
    with pytest.raises(ConfigError, match=f"table of {year} allows 51"):
        Parameters(2048, good)


@pytest.mark.parametrize(
    ("degree", "primes", "what"),
    [
        (3000, (67104769,), "degree is 3000"),
        (2048, (), "primes"),
        (2048, (67104769, 67104769), "distinct"),
        (2048, (67104770,), "modulus 67104770"),
        (2048, ((1 << 26) - 4096 * 5 + 1,), "modulus"),
        (2048, (40961,), "modulus 40961"),
        (8192, (67104769,), "modulus 67104769"),
    ],
)
def test_what_is_no_ring_is_refused(degree: int, primes: tuple[int, ...], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Parameters(degree, primes)
