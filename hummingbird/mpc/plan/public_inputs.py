"""Public inputs of a call: every party brings them, and all compare digests before anything is computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from torch import Tensor

from hummingbird import cost
from hummingbird.cost import Cost
from hummingbird.mpc.session.session import Session


def agree(session: Session, names: Sequence[str], values: Sequence[Tensor]) -> None:
    """Compare public inputs with the other parties (1 round); AgreementError, at every party, names both sides."""
    session.agree("public inputs", {name: _digest(x) for name, x in zip(names, values, strict=True)})


def agreement_cost(names: Sequence[str], parties: int) -> Cost:
    """Cost of `agree`: a text of the names, and of 64 digits for each."""
    return cost.opening(parties, len(json.dumps(dict.fromkeys(names, "0" * 64)).encode()))


def _digest(x: Tensor) -> str:
    array = x.detach().cpu().contiguous()
    state = hashlib.sha256(f"hummingbird-public-1 {array.dtype} {tuple(array.shape)};".encode())
    state.update(array.numpy().astype(array.numpy().dtype.newbyteorder("<")).tobytes())
    return state.hexdigest()
