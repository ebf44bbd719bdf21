"""Public inputs as private values, and rows of a table selected by public indices. Nothing is sent.

A public value v is shared as (v, 0, ..., 0), like a public constant. A private table is shared once, like weights;
every party selects rows of its own share.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.graph.ops.public import check_rows, check_values, shown_part
from hummingbird.kernels.devices import put
from hummingbird.mpc.layers.constants import check_private, size_of
from hummingbird.mpc.layers.layer import FLOOR, Layer
from hummingbird.mpc.layers.weights import WeightOwner
from hummingbird.mpc.session import sharing
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared


class _Public(Layer):
    """Base of layers whose result follows from a public value.

    Each takes a private input as well, whose value it does not read: this input only fixes the layer's position in the
    plan.
    """

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return 64

    def needs(self, scales: Sequence[int], later: int) -> int:
        return 0

    def reads(self, later: int | None) -> int | None:
        return 0


class SharePublic(_Public):
    """A public tensor of a call as a private value of scale 2^16. Raises InputError for values of 2^20 or more.

    shown: whether the tensor is a mask of attention that the softmax applies itself. The value is then only what the
        mask adds to the logits that it does not hide (mpc/layers/hidden.py).
    """

    def __init__(self, shown: bool = False) -> None:
        super().__init__()
        self.shown = shown

    def bound(self, bounds: Sequence[int]) -> int:
        return FLOOR

    def forward(self, session: Session, value: Tensor, x: Shared) -> Shared:
        check_values(value)
        value = shown_part(value) if self.shown else value
        code = put(ring.encode(value.double()), session.device)
        return Shared(code if session.rank == 0 else torch.zeros_like(code))


class Embedding(_Public):
    """Layer that looks up rows of a table at public indices; a row becomes private values of scale 2^16.

    The indices are int64 (...), the result is (..., values).
    weight: the real table, (rows, values).
    owner: the party that knows the table; None for a public table.
    """

    table: Tensor

    def __init__(self, weight: Tensor, owner: WeightOwner | None) -> None:
        super().__init__()
        self.owner = owner
        if owner is not None:
            check_private(weight, owner)
        self.register_buffer("table", ring.encode(weight, where="weight"))
        self.size = size_of(weight, owner)

    def share_weights(self, session: Session) -> None:
        if self.owner is not None:
            self.table = sharing.share_secret(session, self.table, tuple(self.table.shape), self.owner.rank)

    def bound(self, bounds: Sequence[int]) -> int:
        return max(0, self.size)

    def forward(self, session: Session, numbers: Tensor, x: Shared) -> Shared:
        check_rows(numbers, len(self.table))
        rows = self.table[put(numbers.long(), self.table.device)]
        return Shared(rows if self.owner is not None or session.rank == 0 else torch.zeros_like(rows))

    def label(self) -> str:
        return f"{len(self.table)} rows, {'public' if self.owner is None else self.owner}"
