"""CrypTen's tensors in the public interface: `cryptensor` makes them, a private net takes and returns them.

Code inside the package works on `Shared` (mpc/session/sharing.py): a share and its bits of fraction.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor
from typing_extensions import Self

from hummingbird import cost, inputs
from hummingbird.channel import meter
from hummingbird.crypten.adapter import MPCTensor, from_share, scale_of, share_of
from hummingbird.errors import AgreementError, InputError
from hummingbird.mpc.session import session as sessions
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared, share_secret


class SharedTensor(Protocol):
    """The type, for type checkers, of a tensor whose values are shared among the parties: CrypTen's tensor.

    It stands in this package's signatures. Every function of CrypTen's tensor (`exp`, `mean`) is accepted. An operand
    of +, - and * is another shared tensor, a public tensor or a number.
    """

    @property
    def shape(self) -> torch.Size:
        """The shape of this shared tensor, which every party knows."""

    def get_plain_text(self, dst: int | None = None) -> Tensor:
        """Open this tensor's values to party `dst`, or to all parties if it is None; return them as a real tensor.

        The other parties get an empty tensor. Takes 1 round.
        """

    def __add__(self, other: Self | Tensor | float) -> Self: ...
    def __sub__(self, other: Self | Tensor | float) -> Self: ...
    def __mul__(self, other: Self | Tensor | float) -> Self: ...
    def __matmul__(self, other: Self | Tensor) -> Self: ...
    def __neg__(self) -> Self: ...
    def __getitem__(self, index: Any) -> Self: ...
    def __getattr__(self, name: str) -> Any: ...


def is_tensor(value: Any) -> TypeGuard[MPCTensor]:
    """Whether a value is a shared tensor of CrypTen."""
    return isinstance(value, MPCTensor)


def shared(x: MPCTensor) -> Shared:
    """Return this party's share of a CrypTen tensor, with its bits of fraction, as this package's `Shared`."""
    return Shared(share_of(x), scale_of(x))


def tensor(x: Shared) -> MPCTensor:
    """Return the CrypTen tensor for the share and the bits of fraction in x; the inverse of `shared`."""
    return from_share(x.share, x.scale)


def cryptensor(x: Tensor | None = None, src: int = 0, limit: float | None = None) -> SharedTensor:
    """Share party `src`'s tensor among all parties: a CrypTen tensor, scale 2^16.

    x: real tensor at party `src`, of at most 8 dimensions. Other parties pass None, or a tensor of the expected shape.
    src: rank of the party that has the tensor.
    limit: the largest |x| for which the windows were found, such as a private net's `input_range`: party `src` refuses
        larger values. None: 2^20, for which every net is right; a function of your own may be right up to 2^30.
    Sends only the shape, in 1 round: the shares come from seeds that neighbouring parties hold. Raises InputError for
    wrong arguments and values, and AgreementError if a party expects another shape.

    >>> session = hummingbird.init()
    >>> shared = hummingbird.cryptensor(images, src=0, limit=1.0)
    >>> bool((shared.get_plain_text() - images).abs().max() <= 2**-16)
    True
    >>> hummingbird.cryptensor(9 * images, src=0, limit=1.0)
    Traceback (most recent call last):
        ...
    hummingbird.errors.InputError: expected values within +-1, got a larger one (at cryptensor)
    hint: prepare the data as in training; with a larger limit, values may leave the windows: a wrong result
    >>> hummingbird.uninit()
    """
    session = sessions.current()
    if type(src) is not int or not 0 <= src < session.parties:
        hint = f"the rank of the party that has the tensor, 0 to {session.parties - 1}"
        raise InputError(f"src={src!r} names no party of {session.parties}", where="cryptensor", hint=hint)
    inputs.check_limit(limit, "cryptensor")
    if session.rank == src and not isinstance(x, Tensor):
        hint = "the party that src names gives the tensor, the others may give None"
        raise InputError(f"party {src} must give a tensor, got {type(x).__name__}", where="cryptensor", hint=hint)
    if session.rank != src and not (x is None or isinstance(x, Tensor)):
        raise InputError(f"expected a tensor or None, got {type(x).__name__}", where="cryptensor")
    encoded = inputs.encoded(x, "cryptensor", limit) if session.rank == src else None
    with meter.layer("input", "share", cost.sharing(session.parties, session.rank == src)):
        shape = _broadcast_shape(session, encoded, src)
        if x is not None and tuple(x.shape) != shape:
            raise AgreementError(
                f"party {session.rank} expects shape {tuple(x.shape)}, party {src} shares shape {shape}",
                where="cryptensor",
                hint="use the same batch size everywhere",
            )
        return from_share(share_secret(session, encoded, shape, src))


def _broadcast_shape(session: Session, x: Tensor | None, src: int) -> tuple[int, ...]:
    words = torch.zeros(9, dtype=torch.int64)
    if x is not None:
        if x.dim() > 8:
            raise InputError(
                f"a private tensor has at most 8 dimensions, got {x.dim()}", where="cryptensor", hint="reshape it"
            )
        words[0] = x.dim()
        words[1 : 1 + x.dim()] = torch.tensor(x.shape, dtype=torch.int64)
        for peer in session.channel.others:
            session.channel.send(peer, words)
    else:
        words = session.channel.receive(src, [words])[0]
    session.channel.count_round()
    if not 0 <= int(words[0]) <= 8 or bool((words < 0).any()):
        raise AgreementError(f"party {src} sent a malformed shape", where="cryptensor")
    return tuple(int(n) for n in words[1 : 1 + int(words[0])])
