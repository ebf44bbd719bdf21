"""One lane's part in a service: it runs party 0's lists on its own session, with the same lane of all other parties.

A batch is one run of the private net on the shares of all its requests (batches.py). Each answer gets a fresh share of
zero (zeros.py), and its client alone can add up all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from hummingbird.errors import ConfigError
from hummingbird.mpc.dealer.kept_store import STORES
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session.session import Session
from hummingbird.serving.batches import Batches
from hummingbird.serving.control import receive_list, send_list
from hummingbird.serving.description import ServiceDescription
from hummingbird.serving.dispatcher import Dispatcher
from hummingbird.serving.message import Request, pack_answer
from hummingbird.serving.scheduler import Action, Decision
from hummingbird.serving.served_table import ServedTable
from hummingbird.serving.zero_shares import ZeroShares

_BEAT = 5.0  # seconds between lists while there is nothing to do
_QUIET = 0.01  # seconds without a request, after a batch, until something is made ready for the next one


class Worker:
    """One lane of a party, from a private net that is set up in its session. 2 rounds, with the others' same lane.

    Raises AgreementError where these have another service, DealerError for a store of another net, and ConfigError for
    one of other images.
    """

    def __init__(
        self, private: PrivateNet, service: ServiceDescription, session: Session, rows: ServedTable | None
    ) -> None:
        self._session, self._service, self._lane = session, service, session.lane
        self.beat = min(_BEAT, session.channel.timeout / 4)
        self._rows = rows
        facts = {"table": rows.digest if rows else "none", "input": str(service.shape), "max batch": str(service.most)}
        session.agree("serve", facts | {"service": service.digest.hex()})
        self._store = session.dealer if isinstance(session.dealer, STORES) else None
        slot = session.dealer.slice_shape
        # A lane whose material is used up leaves the batches to the others.
        used_up = session.lanes > 1 and self.slots == 0
        session.dealer.admit(private.facts, [] if slot is None or used_up else [slot])
        if slot is not None and slot[1:] != service.shape:
            what = f"the store was dealt for images of shape {slot[1:]}, the service has {service.shape}"
            raise ConfigError(what, where="--store", hint="deal a store for this shape")
        if service.rowwise:
            private.images_per_slice = service.most
        self._zeros = ZeroShares(session.channel)
        self._batches = Batches(private, session, self._list, self._answer)
        self._desk: Dispatcher
        self._promised = 0  # slots for lists that party 0 has made, and that are on their way to the others
        self._last = False  # whether party 0's last list has come

    @property
    def slots(self) -> float:
        """Material that is left in this lane's store; NaN for a dealer's."""
        return math.nan if self._store is None else self._store.slots_left

    def run(self, desk: Dispatcher) -> None:
        """Run batches until party 0's last list. Raises what a run of the net and the desk do, and PeerError."""
        self._desk = desk
        try:
            idle = self.beat
            while not self._last:
                if self._list(idle):
                    self._batches.run()
                    idle = _QUIET
                else:
                    self._batches.provide()
                    self._session.dealer.stay()
                    idle = self.beat
        finally:
            if self._rows is not None:
                self._rows.close()

    def _list(self, idle: float = 0.0) -> int:
        """Party 0's next list, sent or received and carried out; its length. idle: seconds to wait for one."""
        if self._last:  # at all parties alike, though other computations may still be under way
            return 0
        slots = 0
        if self._session.rank == 0:
            decisions, last = self._desk.next(self._lane, idle, self._room)
            decisions = [self._dated(decision) for decision in decisions]
            requests = self._desk.take(self._lane, decisions, last, self.slots)
            if self._store is not None:
                slots = -(-sum(request.images for request in requests) // self._store.slice_shape[0])
            self._promised += slots
            send_list(self._session.channel, decisions, last)  # meanwhile the other computation may make a list, too
        else:
            decisions, last = receive_list(self._session.channel)
            requests = self._desk.take(self._lane, decisions, last, self.slots)
        self._last = self._last or last
        if requests:
            self._batches.add([request.id for request in requests], self._inputs(requests))
        self._promised -= slots
        return len(decisions)

    def _inputs(self, requests: Sequence[Request]) -> list[Tensor]:
        """This party's shares of the net's input, int64 (images, ...), for each request."""
        if self._rows is not None:
            return self._rows.inputs(requests, self._service)
        return [request.words(self._service, self._session.rank) for request in requests]

    @property
    def _room(self) -> float:
        """Images that this lane has material for, beside those on lists that are on their way."""
        if self._store is None:
            return math.inf
        return (self._store.slots_left - self._promised) * self._store.slice_shape[0]

    def _dated(self, decision: Decision) -> Decision:
        """The decision, with the time after which there may be material again."""
        if decision.action != Action.LOW or self._store is None:
            return decision
        return decision._replace(detail=int(1e3 * self._store.refill_seconds))

    def _answer(self, ids: Sequence[bytes], counts: Sequence[int], padding: int, share: Tensor) -> None:
        """The answers of a batch: this party's share of the results, and a fresh share of zero."""
        share = share + self._zeros.share(*share.shape)
        parts = share.split(list(counts))
        answers = [(id, pack_answer(part, self._service.result_bits)) for id, part in zip(ids, parts, strict=True)]
        self._desk.finish(self._lane, answers, sum(counts), padding)
