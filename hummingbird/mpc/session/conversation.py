"""A conversation: a fixed, public sequence of steps whose later steps read rows that earlier ones have written.

The rows are shares that stay (mpc/protocols/cached_rows.py), behind masks of this conversation alone. So a conversation
is used once, from its first step to its last. If a step fails, at this party or at another one, the conversation is
over: what a mask has hidden is not opened again, and nothing is resumed. A store marks a conversation as used before it
hands out anything of it; so one that was begun when a process died is over, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hummingbird.errors import InputError
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.session.session import Session

_ANOTHER = "begin another conversation"


class Conversation:
    """One conversation of a session: its material, step after step, and its caches of rows.

    All parties begin the same conversations, and take the same steps, in the same order. Sends nothing.
    facts: the net's facts, which a store compares with those that it was dealt for.
    steps: the requests of each step, in order; None if they are not known, which stores refuse. Steps with equal
        requests may share a list. The material of a step is made while the step before it runs.
    `caches` has the rows that stay, by key. `taken` is the number of steps that were begun.
    Raises DealerError if a store has no conversation left, or was dealt for others.
    """

    def __init__(self, session: Session, facts: dict[str, str], steps: Sequence[Sequence[Request[Any]]] | None) -> None:
        self._session, self._count = session, None if steps is None else len(steps)
        self._material = session.dealer.converse(facts, steps)
        self.caches: dict[int, Any] = {}
        self.taken = 0
        self._over = ""  # why there is no further step

    @property
    def left(self) -> int | None:
        """How many steps are left; None if their number is not known."""
        if self._over:
            return 0
        return None if self._count is None else self._count - self.taken

    @contextlib.contextmanager
    def step(self) -> Iterator[Session]:
        """Make a context for the next step: it gives the session in which the step's layers run.

        The session's `requests` are those that the step makes. Any exception within ends the conversation.
        Raises InputError, before anything is sent, if no step is left, or if the conversation is over.
        """
        if self._over:
            raise InputError(f"no further step: {self._over}", where="conversation", hint=_ANOTHER)
        if self.left == 0:
            what = f"all {self.taken} steps of this conversation are taken"
            raise InputError(what, where="conversation", hint=f"{_ANOTHER}, or convert the net for more places")
        self.taken += 1
        self._over = "a step of this conversation is running, or has failed"
        try:
            supply = self._material.next()
            yield replace(self._session, supply=supply, requests=[], conversation=self)
        except BaseException:
            self.close("a step of this conversation has failed")
            raise
        self._over = ""

    def close(self, reason: str = "this conversation is closed") -> None:
        """End this conversation: its rows and its material are given up. Sends nothing; may be called twice.

        reason: the message of later errors.
        """
        self._over = reason
        self.caches.clear()
        self._material.close()
