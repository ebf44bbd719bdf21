"""A party of a service: gRPC's threads park what clients send, the main thread runs what party 0 orders.

    party = Party(private, (3, 32, 32), session)
    methods.open(party)                   # methods.py: what clients call
    party.run()                           # until `party.end()` at any of the parties, and what waits is answered

A batch is one run of the private net on the shares of all its requests (batches.py). Each answer gets a fresh share of
zero (zeros.py), and its client alone can add up all of them.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence

import grpc
from torch import Tensor

from hummingbird.errors import AgreementError, HummingbirdError, UnavailableError
from hummingbird.mpc.dealer.kept_store import STORES
from hummingbird.mpc.net import PrivateNet
from hummingbird.mpc.rendezvous import beside
from hummingbird.mpc.session import Session
from hummingbird.prg import new_seed
from hummingbird.serving.batches import Batches
from hummingbird.serving.control import Listener, Teller, receive_list, send_list
from hummingbird.serving.figures import Figures
from hummingbird.serving.inbox import Entry, Inbox, Limits
from hummingbird.serving.message import Request, pack_answer
from hummingbird.serving.order import Action, Claim, Decision, Order, error_of
from hummingbird.serving.plan import describe
from hummingbird.serving.rows import Rows
from hummingbird.serving.zeros import ZeroShares
from hummingbird.wire.front import GRACE
from hummingbird.wire.gate import caller_name
from hummingbird.wire.trust import Tls

MAX_BATCH, MAX_WAIT = 64, 0.005
_BEAT = 5.0  # seconds between lists while there is nothing to do
_LOOK = 1.0  # seconds between looks at whether a caller is still there


class Party:
    """One party's part in a service, from a private net that is set up in a session. A few rounds.

    shape: of one image; of a net with several inputs, one for each. table: rows (rows, dim) that clients look up, for a
    net of rows and weights (hummingbird/lookup.py). most: images of a batch, and of a request. wait:
    seconds for which a request may wait for others to share its batch. tls: for the parties' second channel, as in
    `init`. grace: seconds for what waits when a service is told to end. Raises what `plan.describe` does,
    AgreementError where parties differ in these options, and PeerError.
    """

    def __init__(
        self,
        private: PrivateNet,
        shape: Sequence[int] | Sequence[Sequence[int]],
        session: Session,
        *,
        table: Tensor | None = None,
        most: int = MAX_BATCH,
        wait: float = MAX_WAIT,
        tls: Tls | None = None,
        limits: Limits | None = None,
        grace: float = GRACE,
        figures: Figures | None = None,
    ) -> None:
        self._private, self._session, self.rank = private, session, session.rank
        own, channel = new_seed().hex(), session.channel
        name = ({self.rank: own} | channel.exchange_text(own))[0]
        self._rows = None if table is None else Rows(table, session)
        facts = {"table": self._rows.digest if self._rows else "none", "input": str(shape), "max batch": str(most)}
        self.service = describe(private, shape, most, session, name, self._rows)
        session.agree("serve", facts | {"service": self.service.digest.hex()})
        session.dealer.admit(private.facts, [session.dealer.slice_shape] if session.dealer.slice_shape else [])
        self._check_slot()
        if self.service.rowwise:
            private.images_per_slice = -(-most // 2)
        self._zeros = ZeroShares(channel)
        self._control = beside(channel, session.place, tls)
        self._beat = min(_BEAT, channel.timeout / 4)
        self._failure: HummingbirdError | None = None
        self._ending: float | None = None  # since when
        self._last = False  # whether party 0's last list has come
        self._parting = False  # whether it is on its way: the others may leave before this party does
        self._grace, self._figures = grace, figures
        self._promised = 0  # slots for lists that party 0 has made, and that are on their way to the others
        self.batches = Batches(private, session, self._list, self._answer)
        self._order = Order(session.parties, most, wait, alone=not self.service.rowwise)
        self.inbox = Inbox(Limits() if limits is None else limits, self._arrived)
        if figures is not None:
            store = session.dealer if isinstance(session.dealer, STORES) else None
            figures.lives.inc()
            figures.watch(lambda: self.inbox.waiting, lambda: math.nan if store is None else store.slots_left)
        self._teller: Teller | None = None
        if self.rank:
            self._teller = Teller(self._control, self._beat, self._failed)
        else:
            for peer in channel.others:
                Listener(self._control, peer, self._order, self.end, self._failed)

    def _check_slot(self) -> None:
        slot = self._session.dealer.slice_shape
        if slot is not None and slot[1:] != self.service.shape:
            what = f"the store was dealt for images of shape {slot[1:]}, the service has {self.service.shape}"
            raise AgreementError(what, where="--store", hint="deal a store for this shape")

    # gRPC's threads ---------------------------------------------------------------------------------------------------

    def ask(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """This party's answer to its part of a request, once it is computed; the errors of `Request.read`,
        `Inbox.put`, and those with which party 0 drops a request.
        """
        request = Request.read(message, self.service, self.rank)
        entry = self.inbox.put(caller_name(context) or request.claim.hex(), message, request)
        context.add_callback(lambda: self._left(request.id, entry))
        while not entry.done.wait(_LOOK):
            if not context.is_active():
                return b""
        if isinstance(entry.outcome, bytes):
            return entry.outcome
        assert entry.outcome is not None
        raise entry.outcome.with_traceback(None)

    def _arrived(self, id: bytes, entry: Entry) -> None:
        assert entry.request is not None
        owner = hashlib.blake2b(entry.owner.encode(), digest_size=8).digest()
        left = entry.ends - time.monotonic()
        claim = Claim(entry.request.images, int.from_bytes(owner, "little", signed=True), left)
        if self._teller is None:
            self._order.hold(self.rank, id, claim)
        else:
            self._teller.hold(id, claim)

    def _left(self, id: bytes, entry: Entry) -> None:
        if self.inbox.leave(entry):
            (self._order if self._teller is None else self._teller).give_up(id)

    # Ending -----------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Refuse new requests from now on; `run` returns at all parties when those inside are answered, after `grace`
        seconds at the latest. From any thread, but not from a signal's handler.
        """
        if self._ending is None:
            self._ending = time.monotonic()
            self.inbox.shut(UnavailableError("this service is stopping", hint="try again when it is back"))
            if self._teller is not None:
                self._teller.end()
            self._order.wake()

    def _failed(self, error: HummingbirdError) -> None:
        """The second channel is lost, and with it a party."""
        if not self._parting:
            self._failure = self._failure or error
            self.inbox.fail(unavailable(error))
            self._order.wake()

    def close(self, reason: HummingbirdError | None = None) -> None:
        """Refuse what waits, and close the second channel; may be called twice."""
        self.inbox.fail(reason or UnavailableError("this service has stopped", hint="try again when it is back"))
        if self._teller is not None:
            self._teller.close()
        self._control.close()
        if self._rows is not None:
            self._rows.close()
        if self._figures is not None:
            self._figures.forget()

    # The main thread --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run batches until `end`. Raises what a run of the net does, and PeerError; what waits is then refused."""
        try:
            while not self._last:
                if not self._list(self._beat):
                    self._session.dealer.stay()
                self.batches.run()
            self.close()
        except HummingbirdError as error:
            self.close(unavailable(error))
            raise
        except BaseException:
            self.close()
            raise

    def _list(self, idle: float = 0.0) -> int:
        """Party 0's next list, sent or received and carried out; its length. idle: seconds to wait for one."""
        if self._last:  # at all parties alike, though other computations may still be under way
            return 0
        slots = 0
        if self.rank == 0:
            decisions, slots = self._affordable(self._order.next(idle))
            if self._failure is not None:
                raise self._failure
            last = self._ending is not None and (self._order.empty or time.monotonic() > self._ending + self._grace)
            self._parting = self._parting or last
            self._promised += slots
            send_list(self._session.channel, decisions, last)  # meanwhile the other computation may make a list, too
        else:
            decisions, last = receive_list(self._session.channel)
        self._last = self._last or last
        ids, requests = [], []
        for id, action, detail in decisions:
            request = self.inbox.take(id)
            if action != Action.RUN:
                self.inbox.finish(id, error_of(action, detail))
            elif request is None:
                what = f"party 0 orders a request that {self._session.channel.name} does not hold"
                raise AgreementError(what, where="serve", hint="all parties must run the same release")
            else:
                ids.append(id)
                requests.append(request)
        if ids:
            shares = self._inputs(requests)
            padding = self.batches.add(ids, shares)
            if self._figures is not None:
                self._figures.batch(sum(map(len, shares)), padding)
        self._promised -= slots
        return len(decisions)

    def _inputs(self, requests: Sequence[Request]) -> list[Tensor]:
        """This party's shares of the net's input, int64 (images, ...), for each request."""
        if self._rows is not None:
            return self._rows.inputs(requests, self.service)
        return [request.words(self.service, self.rank) for request in requests]

    def _answer(self, ids: Sequence[bytes], counts: Sequence[int], share: Tensor) -> None:
        """The answers of a batch: this party's share of the results, and a fresh share of zero."""
        share = share + self._zeros.share(*share.shape)
        for id, part in zip(ids, share.split(list(counts)), strict=True):
            self.inbox.finish(id, pack_answer(part, self.service.result_bits))

    def _affordable(self, decisions: list[Decision]) -> tuple[list[Decision], int]:
        """The list, with requests that a store has no slots for dropped, and how many slots the others take."""
        store = self._session.dealer
        if not isinstance(store, STORES):
            return decisions, 0
        size = store.slice_shape[0]
        room, images, out = (store.slots_left - self._promised) * size, 0, []
        for decision in decisions:
            request = self.inbox.take(decision.id)
            if decision.action == Action.RUN and request is not None:
                if images + request.images > room:
                    decision = Decision(decision.id, Action.LOW, int(1e3 * store.refill_seconds))
                else:
                    images += request.images
            out.append(decision)
        return out, -(-images // size)


def unavailable(error: HummingbirdError) -> UnavailableError:
    """The refusal of requests after the failure of a party."""
    return UnavailableError(f"the service is interrupted: {error.what}", hint="try again in a few seconds")
