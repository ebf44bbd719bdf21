"""CrypTen's part of a session: it starts and ends with our session, and uses its channel and its randomness."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hummingbird.crypten import adapter, fixed_point, functions, provider, refusals
from hummingbird.mpc.session.session import Session, ZeroSharing
from hummingbird.prg import SEED_BYTES


def refuse_other() -> None:
    """Raise EnvironmentProblem if CrypTen already runs a session that this package did not start.

    Raises TrustError if CrypTen is in its validation mode.
    """
    refusals.refuse_foreign_session()
    adapter.refuse_validation()


def start(session: Session, local: bytes) -> None:
    """Make CrypTen's functions run in this session. local: the seed of this party's own random numbers."""
    assert session.zeros is not None, "CrypTen's functions share secrets"
    _repair()
    adapter.install(session.channel, session.zeros, local, session.device)


@contextlib.contextmanager
def lent(session: Session) -> Iterator[None]:
    """Make a context in which CrypTen runs as after `start`, but with seeds that are zero.

    It is for a session without secrets, such as one that only records a net's requests.
    """
    _repair()
    with adapter.lent(session.channel, session.zeros or ZeroSharing.of_zeros(), bytes(SEED_BYTES)):
        yield


def stop() -> None:
    """End CrypTen's use of the current session. The functions of CrypTen that were replaced stay replaced."""
    adapter.uninstall()


def _repair() -> None:
    """Replace all functions of CrypTen that this package repairs or refuses, by each module's `install`."""
    fixed_point.install()
    functions.install()
    provider.install()
    refusals.install()
