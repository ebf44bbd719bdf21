"""The worker of one lane of a service: it runs party 0's lists in its session with the same lane of all other parties.

A batch is one run of the private net on the shares of all its requests (`Batches`). A fresh share of zero
(`ZeroShares`) is added to each answer, and only the client can add up all parties' answers. Where text is generated, a
batch is one step of a conversation, whose rows of keys and values stay in this process (`Steps`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from torch import Tensor

from hummingbird.channel import interleave
from hummingbird.channel.channel import Channel
from hummingbird.errors import AgreementError, ConfigError
from hummingbird.mpc.dealer.kept_store import STORES
from hummingbird.mpc.plan import microbatch
from hummingbird.mpc.plan.decoder import DecoderConversation, PrivateDecoder
from hummingbird.mpc.plan.net import Work
from hummingbird.mpc.session.session import Session, Supply
from hummingbird.mpc.session.sharing import Shared
from hummingbird.prg import SEED_BYTES, Stream, derive
from hummingbird.serving.control import receive_list, send_list
from hummingbird.serving.dispatcher import Dispatcher
from hummingbird.serving.message import Request, pack_answer, step_of
from hummingbird.serving.models import Models, ServedModel
from hummingbird.serving.scheduler import Action, Decision

# Batches of several clients' requests through the private net, two slices in turns (three on a GPU) ------------------
#
# Whoever has computed a slice asks at once for more, so that under load the opening of one slice is on the wire while
# another one computes, across batches as within one. A batch at most half full runs alone: nothing else was waiting.
# The order of all messages follows from party 0's lists alone (channel/interleave.py), so it is the same at every
# party.
#
# The dealer works ahead: on the material of one image while there is nothing to do, so that a lone request does not
# wait for it, and on that of one more full slice whenever one begins, so that under load a computation seldom waits
# for it with its turn; where either is small enough.

_AHEAD_BYTES = 64 << 20  # of one image, and of one slice: half of what a party holds of material that is not used yet
_AHEAD_MODELS = 4  # that have such material at a time


@dataclass(eq=False, repr=False)
class _Batch:
    """Requests that are computed together in one run of the net.

    model: the net. ids: of the requests. counts: images of each request. works: the slices of the batch, ready to be
    run. padding: rows of these slices that hold no image. outputs: the results so far, by number of the slice.
    """

    model: ServedModel
    ids: Sequence[bytes]
    counts: Sequence[int]
    works: list[Work]
    padding: int
    outputs: dict[int, Shared] = field(default_factory=dict)


class Batches:
    """Runs batches of requests through private nets, at one lane of a party.

    Every party makes the same calls in the same order. poll: asks party 0 for further requests without waiting, and may
    call `add`. done: called for each computed batch with five arguments: its model, its requests' ids, the number of
    images of each request, the padding (rows of its slices that hold no image), and this party's share of the results,
    int64 (images, ...).
    """

    def __init__(
        self,
        session: Session,
        poll: Callable[[], object],
        done: Callable[[ServedModel, Sequence[bytes], Sequence[int], int, Tensor], None],
    ) -> None:
        self._session, self._poll, self._done = session, poll, done
        self._queue: deque[tuple[_Batch, int]] = deque()  # slices that are to be run: a batch, and which of its slices
        self._at_work = 0
        self._ahead: dict[ServedModel, dict[tuple[int, ...], Supply]] = {}  # of one slice of each net, by its shape
        self._last: tuple[ServedModel, tuple[int, ...]] | None = None  # the net that ran last, and an image's shape

    def add(self, model: ServedModel, ids: Sequence[bytes], shares: Sequence[Tensor]) -> None:
        """Put a batch of requests into the queue of batches to run; the making of its material begins now.

        model: the net that runs it. ids: of the requests. shares: for each request, this party's share of the net's
        input, int64 (images, ...).
        """
        x = torch.cat(list(shares)).to(self._session.device)
        works = model.net.begin(self._session, Shared(x), ahead=self._ahead.setdefault(model, {}))
        padding = sum(work.part.shape[0] - work.part.images for work in works)
        batch = _Batch(model, ids, [len(share) for share in shares], works, padding)
        self._queue.extend((batch, number) for number in range(len(works)))
        self._last = model, works[0].part.shape[1:]
        if len(x) == model.net.images_per_slice:
            self._make_ahead(len(x))

    def forget(self, model: ServedModel) -> None:
        """Forget the material that was made ahead for a net that is served no more."""
        self._ahead.pop(model, None)
        if self._last is not None and self._last[0] is model:
            self._last = None

    def run(self) -> None:
        """Run the queued batches, and those that `poll` adds, until there are none. Raises errors of the run."""
        if self._queue:
            self._at_work = microbatch.in_flight(self._session.device) if self._full else 1
            interleave.Interleave().run([self._work] * self._at_work)

    @property
    def _full(self) -> bool:
        """Whether the queue is so full that party 0 probably holds more requests, which are not in the queue yet.

        It is if it has several slices, if its only slice is more than half full, or if slices have no largest size.
        """
        batch, number = self._queue[0]
        most = batch.model.net.images_per_slice
        return len(self._queue) > 1 or most is None or 2 * batch.works[number].part.images > most

    def provide(self) -> None:
        """Let the dealer make the material for one image in advance, so that a lone request need not wait for it.

        Called while there is nothing to compute; the net is the one that ran last.
        """
        self._make_ahead(1)

    def _make_ahead(self, images: int) -> None:
        """Ask the dealer to make the material of one slice before a batch needs it.

        images: how many the slice has. Does nothing if this material was asked for already, if its shares are large
        (`_AHEAD_BYTES`), before any batch has run, or if material comes from a store.
        """
        if self._last is not None and self._session.dealer.slice_shape is None:
            model, image = self._last
            shape, ahead = (images, *image), self._ahead[model]
            others = sum(bool(each) for other, each in self._ahead.items() if other is not model)
            if shape not in ahead and others < _AHEAD_MODELS:
                found = model.net.material(self._session, shape, _AHEAD_BYTES)
                ahead |= {} if found is None else {shape: found}

    def _work(self) -> None:
        """Run slices from the queue, one after another, as one of several interleaved computations.

        Returns when the queue is empty, or after a slice if all other computations have returned.
        """
        while True:
            if not self._queue:
                self._poll()
            if not self._queue:
                break
            batch, number = self._queue.popleft()
            batch.outputs[number] = batch.model.net.run(self._session, batch.works[number])
            if len(batch.outputs) == len(batch.works):
                self._finish(batch)
            if self._at_work == 1:
                break
        self._at_work -= 1

    def _finish(self, batch: _Batch) -> None:
        outputs = [batch.outputs[number] for number in range(len(batch.works))]
        out = microbatch.join(outputs, [work.part for work in batch.works])
        self._done(batch.model, batch.ids, batch.counts, batch.padding, out.share.cpu())


# Steps of conversations, one after the other --------------------------------------------------------------------------


class Steps:
    """Runs steps of clients' conversations with a private decoder, at one lane of a party, in the order of `add`.

    Every party makes the same calls in the same order. done: called after each step as `Batches` calls it, but without
    the model, with this party's share of the logits, int64 (1, words). A conversation is kept until its last step, or
    until `end`.
    """

    def __init__(
        self,
        private: PrivateDecoder,
        session: Session,
        done: Callable[[Sequence[bytes], Sequence[int], int, Tensor], None],
    ) -> None:
        self._private, self._session, self._done = private, session, done
        self._queue: deque[tuple[bytes, Tensor]] = deque()
        self._talks: dict[bytes, DecoderConversation] = {}
        private.requests(session.parties, session.rank)  # found now, so that the first client does not wait for it

    def add(self, model: ServedModel, ids: Sequence[bytes], shares: Sequence[Tensor]) -> None:
        """Add steps to the queue.

        model: the only one of the service. ids: of the steps' requests. shares: of each step's word vectors, int64
        (words, width).
        """
        self._queue.extend(zip(ids, shares, strict=True))

    def run(self) -> None:
        """Run the queued steps. Raises errors of the run, and AgreementError for a step that is not the next one."""
        while self._queue:
            id, words = self._queue.popleft()
            name, step = step_of(id)
            talk, x, hidden = self._talks.get(name), Shared(words[None].to(self._session.device)), 0
            taken = 0 if talk is None else talk.used - self._private.prompt + 1
            if step != taken:  # what a mask has hidden is never opened again, whatever party 0 says
                what = f"party 0 orders step {step} of a conversation whose next step is {taken}"
                raise AgreementError(what, where="serve", hint="all parties must run the same release")
            if talk is None:
                talk = self._talks[name] = self._private.conversation(self._session)
                x, hidden = self._private.padded(x)
            logits = talk.read(x, hidden)
            if not talk.left:
                self.end(name)
            self._done([id], [1], 0, logits.share[0].cpu())

    def end(self, name: bytes) -> None:
        """Forget a conversation, with its rows and the rest of its material; nothing happens if there is none."""
        talk = self._talks.pop(name, None)
        if talk is not None:
            talk.close()

    def forget(self, model: ServedModel) -> None:
        """Do nothing: a service that generates text has one net."""

    def provide(self) -> None:
        """Do nothing: the material of a conversation's next step is made while a step runs."""


# ---------------------------------------------------------------------------------------------------------------------

# Fresh shares of zero: N words, one at each party, whose sum is 0 and of which any N - 1 are uniform -----------------
#
# A result's shares say more than their sum: they carry masks, roundings, and products with private weights. With a
# share of zero added, a client's N answers are uniform words given their sum. Each pair of parties has a seed of its
# own, by Diffie-Hellman on X25519; the lower rank adds its words and the higher one subtracts them. So whatever
# parties a client colludes with, the answers of the others are uniform given their sum, which the seeds of neighbours
# alone (CrypTen's zero sharing) do not give: of four parties, two that are not neighbours would know all seeds of
# each of the others.


class ZeroShares:
    """A party's source of shares of zero: random numbers that add up to 0 over all parties.

    All parties call `share` with the same shapes in the same order. Making it takes 1 round over the session's channel;
    `share` takes none.
    """

    def __init__(self, channel: Channel) -> None:
        private, self._streams = X25519PrivateKey.generate(), list[tuple[int, Stream]]()
        keys = channel.exchange_text(private.public_key().public_bytes_raw().hex())
        for peer in channel.others:
            try:
                secret = private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(keys[peer])))
            except ValueError:
                raise AgreementError(f"{channel.names[peer]} sent no X25519 key", where=channel.name) from None
            low, high = sorted((channel.rank, peer))
            seed = derive(secret, "serving", "zero", low, high, size=SEED_BYTES)
            self._streams.append((1 if channel.rank == low else -1, Stream(seed)))

    def share(self, *shape: int) -> Tensor:
        """Return this party's share of zeros, fresh random numbers, int64 of this shape."""
        total = torch.zeros(shape, dtype=torch.int64)
        for sign, stream in self._streams:
            total += sign * stream.words(*shape)
        return total


# ---------------------------------------------------------------------------------------------------------------------

_BEAT = 5.0  # seconds between lists while there is nothing to do
_QUIET = 0.01  # seconds without a request, after a batch, until something is made ready for the next one


class Worker:
    """Runs batches at one lane of a party, with private nets: it carries out party 0's decisions on requests.

    models: those that are served; a fixed one is set up in the lane's session. Making it takes 2 rounds with the lanes
    of the same number at all other parties, and for models of a file the rounds of `Models.compare`.
    Raises AgreementError if another party has another service, or no model in common; DealerError if the lane's store
    is for another net, and ConfigError if it is for images of another shape.
    """

    def __init__(self, models: Models, session: Session) -> None:
        self._session, self._models, self._lane = session, models, session.lane
        self.beat = min(_BEAT, session.channel.timeout / 4)
        session.agree("serve", models.facts)
        self._store = session.dealer if isinstance(session.dealer, STORES) else None
        self._zeros = ZeroShares(session.channel)
        self._batches: Batches | Steps = Batches(session, self._list, self._answer)
        if models.fixed is None:
            models.begin()
        else:
            self._admit(models.fixed)
        self._dispatcher: Dispatcher
        self._changes: list[Decision] = []  # on models, which are carried out between two batches
        self._promised = 0  # slots for lists that party 0 has made, and that are on their way to the others
        self._last = False  # whether party 0's last list has come

    def _admit(self, model: ServedModel) -> None:
        """Set up what the one net of a service needs; raise DealerError or ConfigError if a store does not fit it."""
        session, service, private = self._session, model.service, model.private
        slot = session.dealer.slice_shape
        # A lane whose material is used up leaves the batches to the others.
        used_up = session.lanes > 1 and self.slots == 0
        session.dealer.admit(private.facts, [] if slot is None or used_up else [slot])
        if slot is not None and slot[1:] != service.shape and not service.places:
            what = f"the store was dealt for images of shape {slot[1:]}, the service has {service.shape}"
            raise ConfigError(what, where="--store", hint="deal a store for this shape")
        if isinstance(private, PrivateDecoder):
            private.set_up(session)
            self._batches = Steps(private, session, partial(self._answer, model))
        elif service.rowwise:
            private.images_per_slice = service.most

    @property
    def slots(self) -> float:
        """How many slots of this lane's store are unused; NaN with a dealer."""
        return math.nan if self._store is None else self._store.slots_left

    def run(self, dispatcher: Dispatcher) -> None:
        """Run the batches that party 0 decides on, until its last list of decisions.

        dispatcher: gives the decisions and requests, and takes the answers. Raises errors of the net's run and of the
        dispatcher, and PeerError.
        """
        self._dispatcher = dispatcher
        try:
            idle = self.beat
            while not self._last:
                if self._list(idle):
                    self._batches.run()
                    self._change()
                    idle = _QUIET
                else:
                    self._batches.provide()
                    self._session.dealer.stay()
                    idle = self.beat
        finally:
            self._models.close()

    def _change(self) -> None:
        """Carry out party 0's decisions on models, at a point where no batch is computed, the same at all parties."""
        changes, self._changes = self._changes, []
        for id, action, _ in changes:
            if action == Action.CHANGE:
                self._models.compare()
            elif (model := self._models.end(id)) is not None:
                self._batches.forget(model)

    def _list(self, idle: float = 0.0) -> int:
        """Get the next list of party 0's decisions, as all parties do now, and carry it out; return its length.

        Party 0 gets the list from its scheduler and sends it; the other parties receive it. idle: seconds that party 0
        waits for a decision.
        """
        if self._last or self._changes:  # at all parties alike, though other computations may still be under way
            return 0
        slots = 0
        if self._session.rank == 0:
            decisions, last = self._dispatcher.next(self._lane, idle, self._room)
            decisions = [self._dated(decision) for decision in decisions]
            requests = self._dispatcher.take(self._lane, decisions, last, self.slots)
            if self._store is not None and isinstance(self._batches, Steps):
                slots = sum(step_of(request.id)[1] == 0 for request in requests)
            elif self._store is not None:
                slots = -(-sum(request.images for request in requests) // self._store.slice_shape[0])
            self._promised += slots
            send_list(self._session.channel, decisions, last)  # meanwhile the other computation may make a list, too
        else:
            decisions, last = receive_list(self._session.channel)
            requests = self._dispatcher.take(self._lane, decisions, last, self.slots)
        self._last = self._last or last
        self._changes += [decision for decision in decisions if decision.action in (Action.CHANGE, Action.UNLOAD)]
        for id, action, _ in decisions:
            if action == Action.END and isinstance(self._batches, Steps):
                self._batches.end(step_of(id)[0])
        if requests:
            model = self._model_of(requests)
            self._batches.add(model, [request.id for request in requests], self._inputs(model, requests))
        self._promised -= slots
        return len(decisions)

    def _model_of(self, requests: Sequence[Request]) -> ServedModel:
        """Return the model that all requests of a batch are for; raise AgreementError if there is none."""
        digests = {request.digest for request in requests}
        model = self._models.ready.get(digests.pop()) if len(digests) == 1 else None
        if model is None:
            what = "party 0 orders a batch of requests for several models, or for one that is not served"
            raise AgreementError(what, where="serve", hint="all parties must run the same release")
        return model

    def _inputs(self, model: ServedModel, requests: Sequence[Request]) -> list[Tensor]:
        """Return a list with this party's share of the net's input for each request, int64 (images, ...).

        For a service with lookups the rows are looked up here.
        """
        if model.rows is not None:
            return model.rows.inputs(requests, model.service)
        return [request.words(model.service, self._session.rank) for request in requests]

    @property
    def _room(self) -> float:
        """How many images, or conversations, this lane has material for; infinity with a dealer.

        Slots for decisions that are just being sent no longer count.
        """
        if self._store is None:
            return math.inf
        return (self._store.slots_left - self._promised) * self._store.slice_shape[0]

    def _dated(self, decision: Decision) -> Decision:
        """Add to a decision when to ask again, if it drops a request for lack of material; return the decision.

        The time, in milliseconds, is that after which the store may have more material.
        """
        if decision.action != Action.LOW or self._store is None:
            return decision
        return decision._replace(detail=int(1e3 * self._store.refill_seconds))

    def _answer(
        self, model: ServedModel, ids: Sequence[bytes], counts: Sequence[int], padding: int, share: Tensor
    ) -> None:
        """Give the dispatcher this party's answers to a batch's requests: its shares of results, plus shares of zero.

        model: the net that ran. ids, counts: the requests, and how many images each has. padding: rows of the batch's
        slices that hold no image. share: of all results, int64 (images, ...). The share of zero hides what results'
        shares say beside their sum.
        """
        share = share + self._zeros.share(*share.shape)
        parts = share.split(list(counts))
        answers = [(id, pack_answer(part, model.service.result_bits)) for id, part in zip(ids, parts, strict=True)]
        self._dispatcher.finish(self._lane, answers, sum(counts), padding)
