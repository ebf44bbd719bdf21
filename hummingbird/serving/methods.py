"""The methods that clients call, Describe and Ask; they outlive the parties' sessions."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from hummingbird.errors import UnavailableError
from hummingbird.rpc.service import Brief, Method
from hummingbird.serving.message import clock
from hummingbird.serving.party import Lane, Party

_Asked = Callable[[Party, bytes, grpc.ServicerContext], bytes]


class Methods:
    """Answers with a `Party`, and without one says why; at a `Lane` nobody calls. ready: told whether there is one that
    takes requests and has material.
    """

    def __init__(self, ready: Callable[[bool], object] = lambda yes: None) -> None:
        self.party: Party | Lane | None = None
        self._ready, self._draining = ready, False
        self._reason = UnavailableError("the parties have not met yet", hint="try again in a few seconds")

    def open(self, party: Party | Lane) -> None:
        """Answer with this party from now on."""
        self.party = party
        self.look()

    def look(self) -> None:
        """Tell whether this party is ready now."""
        party = self.party
        self._ready(party is not None and party.stocked and not self._draining)

    def shut(self, reason: UnavailableError) -> None:
        """Refuse from now on."""
        self.party, self._reason = None, reason
        self.look()

    def drain(self) -> bool:
        """Have the party end; it still answers what it has. Whether there is one."""
        self._draining = True
        self.look()
        party = self.party
        if party is not None:
            party.end()
        return party is not None

    def handlers(self) -> dict[str, Method | Brief]:
        """The methods that `rpc.server.ServiceProgram` serves."""
        return {"Describe": Brief(self._by(_describe)), "Ask": self._by(Party.ask)}

    def _by(self, method: _Asked) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def call(message: bytes, context: grpc.ServicerContext) -> bytes:
            party = self.party
            if not isinstance(party, Party):
                raise self._reason.with_traceback(None)
            return method(party, message, context)

        return call


def _describe(party: Party, message: bytes, context: grpc.ServicerContext) -> bytes:
    return party.service.answer(party.rank, clock())
