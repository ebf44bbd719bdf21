"""Operands that are opened in more bits than a cut leaves right: the right bits stay right."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hummingbird.mpc.protocols import cached_rows
from hummingbird.mpc.protocols.lifted_product import Operand
from hummingbird.mpc.session.conversation import Conversation
from hummingbird.mpc.session.session import Session
from tests.support.parties import compute, share


@pytest.mark.parametrize("shift", [0, 1, 2, 20])
def test_a_product_with_cached_rows_is_right_in_the_bits_that_are_left(shift: int) -> None:
    x = torch.randint(-(2**10), 2**10, (2, 1, 4))

    def party(session: Session, part: Tensor) -> Tensor:
        with Conversation(session, {}, None).step() as inner:
            rows = cached_rows.cached(inner, (2, 6, 4), 0, 64)
            new = Operand(part, shift, 64)
            return cached_rows.product(inner, Operand(part, shift, 64), rows, 64, turned=True, places=6, new=new)[0]

    out = sum(compute(2, party, share(x << shift, 2)), torch.zeros((), dtype=torch.int64))
    error = ((out[..., :1] - x @ x.mT) << shift) >> shift  # mod 2^(64 - shift), as a signed number
    assert int(error.abs().max()) <= (0 if shift == 0 else 2 * 4 * 2**10 + 4)  # each operand is cut within one unit
