"""A party of a service: gRPC's threads park what clients send, the main thread runs what party 0 orders.

    front = Front()
    server = wire.service.serve(front.handlers(), "127.0.0.1:9100")
    party = Party(private, (3, 32, 32), session)
    front.open(party)
    party.run()                           # until `party.end()` at any of the parties, and what waits is answered

A batch is one run of the private net on the shares of all its requests, in two slices that take turns (mpc/net.py), so
that one computes while the other's opening is on the wire. Each answer gets a fresh share of zero.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import partial

import grpc
import torch

from hummingbird.errors import AgreementError, HummingbirdError, OverloadError, PeerError, UnavailableError
from hummingbird.mpc._crypten import from_share, share_of
from hummingbird.mpc.dealer.store import StoreDealer
from hummingbird.mpc.net import PrivateNet
from hummingbird.mpc.rendezvous import beside
from hummingbird.mpc.session import Session
from hummingbird.prg import new_seed
from hummingbird.serving.control import Listener, Teller, receive_list, send_list
from hummingbird.serving.inbox import Entry, Inbox, Limits
from hummingbird.serving.message import Request, pack_answer
from hummingbird.serving.order import Action, Claim, Decision, Order
from hummingbird.serving.plan import describe
from hummingbird.serving.zeros import ZeroShares
from hummingbird.wire.service import Method, Tls, common_name

MAX_BATCH, MAX_WAIT = 64, 0.005
GRACE = 30.0  # seconds for what waits when a service is told to end
_BEAT = 5.0  # seconds between lists while there is nothing to do
_LOOK = 1.0  # seconds between looks at whether a caller is still there
_REFILL = 60.0  # seconds after which a store may have been replaced by another


class Party:
    """One party's part in a service, from a private net that is set up in a session. A few rounds.

    shape: of one image. most: images of a batch, and of a request. wait: seconds for which a request may wait for
    others to share its batch. tls: for the parties' second channel, as in `init`. Raises what `plan.describe` does,
    AgreementError where parties differ in these options, and PeerError.
    """

    def __init__(
        self,
        private: PrivateNet,
        shape: Sequence[int],
        session: Session,
        *,
        most: int = MAX_BATCH,
        wait: float = MAX_WAIT,
        tls: Tls | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._private, self._session, self.rank = private, session, session.rank
        own, channel = new_seed().hex(), session.channel
        name = ({self.rank: own} | channel.exchange_text(own))[0]
        self.service = describe(private, shape, most, session, name)
        session.agree("serve", {"service": self.service.digest.hex(), "input": str(shape), "max batch": str(most)})
        session.dealer.admit(private.facts, [session.dealer.slice_shape] if session.dealer.slice_shape else [])
        self._check_slot()
        if self.service.rowwise:
            private.images_per_slice = -(-most // 2)
        self._zeros = ZeroShares(channel)
        self._control = beside(channel, session.place, tls)
        self._beat = min(_BEAT, channel.timeout / 4)
        self._failure: HummingbirdError | None = None
        self._ending: float | None = None  # since when
        self.batches = self.images = self.padding = 0  # what has been computed; padding: images of no client
        self._order = Order(session.parties, most, wait, alone=not self.service.rowwise)
        self.inbox = Inbox(Limits() if limits is None else limits, self._arrived)
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
        entry = self.inbox.put(common_name(context) or request.claim.hex(), message, request)
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
        """Refuse new requests from now on; `run` returns at all parties when those inside are answered, after `GRACE`
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
        if self._ending is None or not self._session.channel.closed:
            self._failure = self._failure or error
            self.inbox.fail(unavailable(error))
            self._order.wake()

    def close(self, reason: HummingbirdError | None = None) -> None:
        """Refuse what waits, and close the second channel; may be called twice."""
        self.inbox.fail(reason or UnavailableError("this service has stopped", hint="try again when it is back"))
        if self._teller is not None:
            self._teller.close()
        self._control.close()

    # The main thread --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run batches until `end`. Raises what a run of the net does, and PeerError; what waits is then refused."""
        try:
            last = False
            while not last:
                decisions, last = self._decide() if self.rank == 0 else receive_list(self._session.channel)
                for id, action, detail in decisions:
                    if action != Action.RUN:
                        self.inbox.finish(id, self._refusal(action, detail))
                if ids := [decision.id for decision in decisions if decision.action == Action.RUN]:
                    self._compute(ids)
            self.close()
        except HummingbirdError as error:
            self.close(unavailable(error))
            raise
        except BaseException:
            self.close()
            raise

    def _decide(self) -> tuple[list[Decision], bool]:
        """Party 0's next list, sent."""
        decisions = self._affordable(self._order.next(self._beat))
        if self._failure is not None:
            raise self._failure
        if not decisions:
            self._session.dealer.check()
        last = self._ending is not None and (self._order.empty or time.monotonic() > self._ending + GRACE)
        send_list(self._session.channel, decisions, last)
        return decisions, last

    def _affordable(self, decisions: list[Decision]) -> list[Decision]:
        """The list, with requests that a store has no slots for dropped."""
        store = self._session.dealer
        if not isinstance(store, StoreDealer):
            return decisions
        room, out = store.slots_left * store.header.shape[0], []
        for decision in decisions:
            request = self.inbox.take(decision.id)
            if decision.action == Action.RUN and request is not None:
                room -= request.images
                if room < 0:
                    decision = Decision(decision.id, Action.LOW, int(1e3 * _REFILL))
            out.append(decision)
        return out

    def _refusal(self, action: Action, detail: int) -> HummingbirdError:
        if action == Action.MISSING:
            hint = "send every party its part; are all their addresses right?"
            return PeerError(f"party {detail} never got its part of this request", where="request", hint=hint)
        if action == Action.LATE:
            hint = "the parties are busy, or the timeout is too short"
            return OverloadError("its deadline passed while it waited", where="request", hint=hint)
        if action == Action.UNLIKE:
            what = f"party {detail} got another number of images under this id, or from another client"
            return PeerError(what, where="request", hint="draw a fresh id for every request")
        if action == Action.LOW:
            hint = "the parties' operators deal another store"
            what = "the material that is left is too little for this request"
            return OverloadError(what, where="request", hint=hint, retry_after=detail / 1e3)
        return PeerError("its client has left one of the parties", where="request", hint="ask again, with a fresh id")

    def _compute(self, ids: Sequence[bytes]) -> None:
        """One batch: all parties run the same requests in the same order."""
        requests = [self.inbox.take(id) for id in ids]
        shares = [request.words(self.service, self.rank) for request in requests if request is not None]
        if len(shares) < len(ids):
            what = f"party 0 orders a request that {self._session.channel.name} does not hold"
            raise AgreementError(what, where="serve", hint="all parties must run the same release")
        x = from_share(torch.cat(shares).to(self._session.device), self.service.scale)
        out = share_of(self._private.forward(x)).cpu()
        self._count(len(out))
        out = out + self._zeros.share(*out.shape)
        for id, part in zip(ids, out.split([len(share) for share in shares]), strict=True):
            self.inbox.finish(id, pack_answer(part, self.service.result_bits))

    def _count(self, images: int) -> None:
        self.batches, self.images = self.batches + 1, self.images + images
        if slot := self._session.dealer.slice_shape:
            self.padding += -images % slot[0]


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


def unavailable(error: HummingbirdError) -> UnavailableError:
    """The refusal of requests after the failure of a party."""
    return UnavailableError(f"the service is interrupted: {error.what}", hint="try again in a few seconds")
