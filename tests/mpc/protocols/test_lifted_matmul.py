"""Matrix products of values lifted by the opening itself: every value under all masks on small rings, and the price."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird.channel import meter
from hummingbird.mpc.functions.polynomials import choose
from hummingbird.mpc.protocols import lifted_matmul
from hummingbird.mpc.protocols.lifted_matmul import LiftedMatMul
from hummingbird.mpc.protocols.lifted_product import Operand
from hummingbird.mpc.protocols.poly import LookUp, LookUpPrice
from hummingbird.mpc.session.session import Session
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together

Sizes = tuple[int, int, int]  # k, K and R
ALL_FORMS, NO_TOPS, ONE_WHOLE, BOTH_WHOLE = (4, 3, 12), (4, 4, 7), (3, 8, 8), (6, 6, 6)
TABLE = choose("sigmoid(x)", 8.0, 8, 4)
assert TABLE is not None


def low(x: Tensor, bits: int) -> Tensor:
    """x mod 2^bits."""
    return x & ((1 << bits) - 1 if bits < 64 else -1)


def noisy(x: Tensor, parties: int, bits: int) -> list[Tensor]:
    """Shares of x mod 2^bits, with noise above."""
    return share(x + (torch.randint(-(2**62), 2**62, x.shape) << bits) if bits < 64 else x, parties)


def multiplied(parties: int, x: Tensor, y: Tensor, sizes: Sizes, shift: int = 0) -> tuple[Tensor, Tensor]:
    """The products that the parties' shares stand for, mod 2^R, and the sigmoids of 5 zeros, in units of 2^-8."""
    k, factor, bits = sizes
    sessions, zeros = make_sessions(parties), torch.zeros(5, 1, dtype=torch.int64)
    given = zip(sessions, noisy(x, parties, k + shift), noisy(y, parties, factor), share(zeros, parties), strict=True)

    def party(session: Session, one: Tensor, other: Tensor, third: Tensor) -> Tensor:
        assert TABLE is not None
        beside = LookUp(session, third, TABLE, 16, 12)
        out, found = lifted_matmul.product(session, Operand(one, shift, k), Operand(other, 0, factor), bits, beside)
        return torch.cat([out.reshape(-1), found.reshape(-1)])

    try:
        parts = together([lambda s=s, a=a, b=b, c=c: party(s, a, b, c) for s, a, b, c in given])
    finally:
        for session in sessions:
            session.channel.close()
    total = sum(parts[1:], parts[0])
    return low(total[:-5], bits).view((x @ y).shape), low(total[-5:], 12)


def matrices(sizes: Sizes, edge: int = 1) -> tuple[Tensor, Tensor]:
    """Values from end to end, 300 stacks of them: every pair of values under every pair of masks many times."""
    torch.manual_seed(sum(sizes))
    k, factor, bits = sizes
    left = (edge << k - 2) if k < bits else 1 << k - 1
    right = (edge << factor - 2) if factor < bits else 1 << factor - 1
    return torch.randint(-left, left + 1, (300, 6, 5)), torch.randint(-right, right + 1, (300, 5, 4))


@pytest.mark.parametrize("sizes", [ALL_FORMS, NO_TOPS, ONE_WHOLE, BOTH_WHOLE, (2, 2, 9)], ids=str)
@pytest.mark.parametrize("parties", [1, 2, 3])
def test_values_from_end_to_end_under_all_masks(parties: int, sizes: Sizes) -> None:
    x, y = matrices(sizes)
    found, beside = multiplied(parties, x, y, sizes)
    assert torch.equal(found, low(x @ y, sizes[2]))
    assert int((beside - 128).abs().max()) <= 1 + parties


def test_values_twice_as_large_are_wrong() -> None:
    """The check above can fail: beyond 2^(k - 2) the opened word does not tell which mask it has met."""
    x, y = matrices(ALL_FORMS, 2)
    assert not torch.equal(multiplied(2, x, y, ALL_FORMS)[0], low(x @ y, ALL_FORMS[2]))


@pytest.mark.parametrize("field", LiftedMatMul((1, 1), (1, 1), *ALL_FORMS).derived)
def test_every_field_counts(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    derive = LiftedMatMul.derive

    def changed(self: LiftedMatMul, **free: Any) -> dict[str, Tensor]:
        fields = derive(self, **free)
        return {**fields, field: fields[field] + 1}

    monkeypatch.setattr(LiftedMatMul, "derive", changed)
    x, y = matrices(ALL_FORMS)
    assert not torch.equal(multiplied(2, x, y, ALL_FORMS)[0], low(x @ y, ALL_FORMS[2]))


@pytest.mark.parametrize("sizes", [(26, 20, 42), (26, 17, 60), (26, 34, 58)], ids=str)
@pytest.mark.parametrize("shapes", [((2, 3, 5, 7), (2, 3, 7, 4)), ((3, 5, 7), (7, 2)), ((5, 1), (4, 1, 3))], ids=str)
def test_wide_rings_and_stacks(shapes: tuple[tuple[int, ...], tuple[int, ...]], sizes: Sizes) -> None:
    """Values up to their bounds, which some of them meet."""
    torch.manual_seed(sizes[1])
    x, y = (torch.randint(-1 << k - 2, (1 << k - 2) + 1, size) for size, k in zip(shapes, sizes, strict=False))
    x[..., 0], y[..., 0] = 1 << sizes[0] - 2, -(1 << sizes[1] - 2)
    found, _ = multiplied(2, x, y, sizes)
    assert torch.equal(found, low(x @ y, sizes[2]))


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("sizes", [ALL_FORMS, NO_TOPS, BOTH_WHOLE, (26, 20, 42)], ids=str)
def test_what_is_sent_is_what_is_priced(parties: int, sizes: Sizes) -> None:
    assert TABLE is not None
    x, y = torch.zeros(3, 5, 7, dtype=torch.int64), torch.zeros(3, 7, 4, dtype=torch.int64)
    request = LiftedMatMul((3, 5, 7), (3, 7, 4), *sizes)
    price = lifted_matmul.price(request, LookUpPrice.of(5, TABLE, 12, parties), parties)
    with meter.meter() as counted:
        multiplied(parties, x, y, sizes)
    assert counted.total.bits_sent == parties * price.bits and counted.total.rounds == parties * price.rounds == parties
    assert counted.total.received_bits == price.offline_bits


def test_a_request_of_another_process_is_checked() -> None:
    good = {"size0": (2, 3, 5), "size1": (2, 5, 4), "value": 20, "factor": 18, "product": 36}
    LiftedMatMul(**good)  # type: ignore[arg-type]
    wrong = [
        {"value": 37},
        {"factor": 37},
        {"product": 65},
        {"size1": (2, 4, 5)},
        {"size0": (5,)},
        {"size1": (3, 5, 4)},
    ]
    wrong += [{"size0": (1 << 10, 1 << 10), "size1": (1 << 10, 1 << 10)}]
    for change in wrong:
        with pytest.raises(Exception, match="lifted_matmul"):
            LiftedMatMul(**(good | change))  # type: ignore[arg-type]
