"""The methods that clients call, Describe and Ask; they outlive the parties' sessions."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import grpc

from hummingbird.errors import UnavailableError
from hummingbird.serving.party import Party
from hummingbird.wire.service import Method

_Asked = Callable[[Party, bytes, grpc.ServicerContext], bytes]


class Front:
    """The methods of a service, Describe and Ask, which outlive its parties: without a `Party` they say why."""

    def __init__(self) -> None:
        self._party: Party | None = None
        self._reason = UnavailableError("the parties have not met yet", hint="try again in a few seconds")

    def open(self, party: Party) -> None:
        """Answer with this party from now on."""
        self._party = party

    def shut(self, reason: UnavailableError) -> None:
        """Refuse from now on."""
        self._party, self._reason = None, reason

    def handlers(self) -> dict[str, Method]:
        """What `wire.service.serve` serves."""
        return {"Describe": partial(self._call, self._describe), "Ask": partial(self._call, Party.ask)}

    def _call(self, method: _Asked, message: bytes, context: grpc.ServicerContext) -> bytes:
        party = self._party
        if party is None:
            raise self._reason.with_traceback(None)
        return method(party, message, context)

    @staticmethod
    def _describe(party: Party, message: bytes, context: grpc.ServicerContext) -> bytes:
        return party.service.answer(party.rank, time.time())
