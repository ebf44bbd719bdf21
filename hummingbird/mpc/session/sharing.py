"""Private values inside the package: a party's share with its bits of fraction; and sharing of one party's tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hummingbird.kernels.devices import put
from hummingbird.mpc.session.session import Session
from hummingbird.ring import SCALE


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """A private tensor as one party has it: its share, and the scale.

    share: this party's additive share, int64.
    scale: bits of fraction of the value.
    It is no tuple, so that a function that goes through nested tuples and lists takes it for a value.

    >>> from hummingbird.mpc.session.sharing import Shared
    >>> x = Shared(torch.tensor([3 * 2**16, 2**15]), scale=16)  # with one party the share is the value
    >>> x.share / 2**x.scale
    tensor([3.0000, 0.5000])
    >>> x.shape
    torch.Size([2])
    """

    share: Tensor = field(repr=False)
    scale: int = SCALE

    @property
    def shape(self) -> torch.Size:
        """The private tensor's shape."""
        return self.share.shape

    def size(self, dim: int | None = None) -> torch.Size | int:
        """Return the private tensor's shape, or its size in dimension `dim`, as `Tensor.size` does."""
        return self.share.shape if dim is None else self.share.shape[dim]

    def __getitem__(self, index: Any) -> Shared:
        """Return the part of the private tensor that `index` selects, as indexing of a torch tensor does."""
        return Shared(self.share[index], self.scale)


def share_secret(session: Session, encoded: Tensor | None, shape: Sequence[int], src: int) -> Tensor:
    """Share ring elements that party `src` has; return this party's additive share of them, int64.

    encoded: the ring elements at party `src`; ignored at other parties.
    shape: the shape of the ring elements, which all parties know.
    Nothing is sent: shares of zero hide the elements, and come from seeds that neighbouring parties share.
    """
    assert session.zeros is not None, "a session without seeds shares no secrets"
    share = session.zeros.share(shape, session.device)
    return share + put(encoded, session.device) if session.rank == src and encoded is not None else share
