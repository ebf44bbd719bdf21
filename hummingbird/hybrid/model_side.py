"""The model's side: it answers encrypted masks offline, and walks the plan on X - r online.

Offline, for each slot or set of slots, it subtracts its masks s from the encrypted products. As evaluator it makes OTs
with random choices e, and stores the tables that it receives. As garbler it makes all tables, for bits that are known
only online. A slot holds

    garbler "data"     the tables; e and the keys T follow from the slot's number
    garbler "model"    the offsets of its gates; labels of its own bits follow from the slot's number

Online, a layer of gates takes one round trip, and the result is y - r, the model's share of the next layer's input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from hummingbird.he import bfv
from hummingbird.hybrid import arithmetic, messages
from hummingbird.hybrid.encrypted import KEY_BYTES, Weights, mask_seed
from hummingbird.hybrid.gc.relu import evaluate, garble_model
from hummingbird.hybrid.message_stream import MessageStream
from hummingbird.hybrid.messages import octets
from hummingbird.hybrid.numbering import GatePosition, Numbering, hash_key, slot_seed
from hummingbird.hybrid.plan import SET, Gate, Model, reduced
from hummingbird.hybrid.session import check_bound, receiver_of, sender_of
from hummingbird.hybrid.store import Store
from hummingbird.kernels.cot import choose
from hummingbird.kernels.shares import pack_bits
from hummingbird.ot import cot
from hummingbird.prg import Stream, derive


class ModelSide:
    """The model's side of a net, for all sessions: it deals slots, and begins the run of each image.

    It keeps what all slots share, such as prepared weights. model: the plan with its weights.
    """

    def __init__(self, model: Model) -> None:
        self.plan, self.parameters = model.plan, model.parameters
        self.numbering = Numbering(model.plan)
        self.factors = arithmetic.factors(model.parameters)
        self.weights = Weights(model.plan, model.parameters)

    @property
    def slot_bytes(self) -> int:
        """Size in bytes of a slot in this side's store, without its header."""
        places = self.numbering.places
        return sum(place.table_bytes if self.plan.garbler == "data" else 8 * place.gate.count for place in places)

    def prepare(
        self,
        link: MessageStream,
        store: Store,
        room: Callable[[int], AbstractContextManager[object]] = lambda slots: nullcontext(),
    ) -> None:
        """Deal slots with the data's side, as many as it asks for, until it says that there are no more.

        link: the connection to the data's side. store: the session's store.
        room: a function that returns a context manager, in which so many slots are dealt. It reserves disk space for
        them, or raises.
        Raises the errors of `MessageStream.receive`, `MessageStream.send` and `Store.deal`.
        """
        public = bfv.PublicKey.from_bytes(link.receive("key", KEY_BYTES).numpy().tobytes())
        while (number := self._number(link, 1)) != messages.END:
            if (several := number == messages.MANY) and not self.plan.in_sets:
                raise messages.malformed("a set of slots, which this plan does not have")
            slots = messages.slots_of(self._number(link, SET) if several else number)
            with room(len(slots)):
                for slot in slots:
                    store.deal(slot)
                self._products(link, store, public, slots)
                for slot in slots:
                    store.keep(slot, self._deal(link, store, slot))
                    link.send("done", messages.DONE)

    @staticmethod
    def _number(link: MessageStream, slots: int) -> bytes:
        return link.receive("number", slots * messages.NUMBER_BYTES).numpy().tobytes()

    def _products(self, link: MessageStream, store: Store, public: bfv.PublicKey, slots: Sequence[int]) -> None:
        """Answer the encrypted masks of all layers, for one slot or for a set."""
        found = self.weights.singly if len(slots) == 1 else self.weights.in_set
        seeds = [slot_seed(store.seed, slot) for slot in slots]
        for number, layer in found.items():
            for first in range(0, len(slots), layer.slots):
                asked = link.receive(f"{layer.step.name}: Enc(r)", layer.up).numpy().tobytes()
                own = [mask_seed(seed, number) for seed in seeds[first : first + layer.slots]]
                link.send(f"{layer.step.name}: reply", self.weights.answer(number, layer, public, asked, own))

    def _deal(self, link: MessageStream, store: Store, slot: int) -> list[Tensor]:
        """Make or receive the tables of a slot's gates; return what this side keeps of the slot."""
        if self.plan.garbler == "model":
            return self._garble(link, store, slot)
        message, _, _ = receiver_of(store).random(self.numbering.first_ot(slot), self.numbering.bits)
        link.send("OT", message)
        return [link.receive(f"{place.gate.name}: tables", place.table_bytes) for place in self.numbering.places]

    def _garble(self, link: MessageStream, store: Store, slot: int) -> list[Tensor]:
        """Garble all gates of a slot and send their tables; return a list with the offsets of each gate's results,
        int64 (n,).

        The model's side adds an offset to each result, so that the evaluator sees the sum only. slot: its number.
        link: the connection to the data's side. store: the session's.
        """
        bits, sender = self.numbering.bits, sender_of(store)
        message = link.receive("OT", cot.message_bytes(bits, False)).numpy().tobytes()
        keys = sender.extend(self.numbering.first_ot(slot), bits, message, False)
        own, offsets = self.own(store, slot), []
        for place in self.numbering.places:
            tile = self.numbering.first_tile(slot) + place.tile
            labels, mine = place.part(keys), place.part(own)
            key = hash_key(store.header.session)
            tables, offset = garble_model(place.circuit, key, tile, sender.delta, labels, mine)
            link.send(f"{place.gate.name}: tables", tables)
            offsets.append(offset)
        return offsets

    def own(self, store: Store, slot: int) -> Tensor:
        """Return the labels of 0 for all bits of this side's shares in a slot: int64 (bits, 2). Only a garbler has
        them.

        store: the session's. slot: its number.
        """
        return Stream(derive(slot_seed(store.seed, slot), "labels")).words(self.numbering.bits, 2)

    def begin(self, link: MessageStream, store: Store, slot: int) -> Online:
        """Begin to run an image with a slot, and return the `Online` object that computes this side's part.

        The slot is marked as used before anything is sent. link: the connection to the data's side. store: the
        session's.
        slot: its number. Raises StoreError if the slot is not ready.
        """
        _, kept = store.use(slot)
        return Online(self, link, store, slot, kept)


class Online:
    """The model side's part of running one image with one slot: `infer` computes its share of the logits.

    side: the `ModelSide`. link: the connection to the data's side. store: the session's. slot: its number.
    kept: the contents of the slot in the store.
    """

    def __init__(self, side: ModelSide, link: MessageStream, store: Store, slot: int, kept: list[Tensor]) -> None:
        self._plan, self._link, self._slot, self._seed = side.plan, link, slot, slot_seed(store.seed, slot)
        self._numbering, self._key = side.numbering, hash_key(store.header.session)
        self._places = {
            place.number: (place, tensor) for place, tensor in zip(side.numbering.places, kept, strict=True)
        }
        hidden = {n: layer.hidden(mask_seed(self._seed, n)) for n, layer in side.weights.singly.items()}
        self._linear = arithmetic.model_linear(side.parameters, side.factors, hidden)
        self._gate: Callable[[GatePosition, Tensor, Tensor], Tensor] = self._send_labels
        if side.plan.garbler == "data":
            receiver, first = receiver_of(store), side.numbering.first_ot(slot)
            _, self._choices, self._keys = receiver.random(first, side.numbering.bits)
            self._gate = self._evaluate
        else:
            self._delta, self._labels = sender_of(store).delta, side.own(store, slot)

    def infer(self, x: Tensor) -> Tensor:
        """Compute this side's share of the logits, int64 (1, *shape), from its share x = X - r of the image X.

        r is the data side's mask. Raises the errors of `MessageStream.receive` and `MessageStream.send`.
        """
        return arithmetic.online(self._plan, x, self._linear, self._answer)

    def _answer(self, number: int, step: Gate, share: Tensor) -> Tensor:
        """Return this side's share of a gate's result y: y - r mod 2^ring, where r is the data side's mask of y.

        share: this side's share of the gate's input, mod 2^width. Both shares are int64 (1, *shape). number: of the
        step.
        """
        place, kept = self._places[number]
        return self._gate(place, kept, messages.pack(share, step.width)).view(1, *step.shape)

    def _evaluate(self, place: GatePosition, tables: Tensor, bits: Tensor) -> Tensor:
        """Evaluate a gate that the data's side has garbled; return this side's share of its result, int64 (n,).

        place: the gate. tables: the gate's, from the slot.
        bits: the bits of this side's share of the input, packed, uint8. They are sent masked, and the data's side
        answers with their labels. Only an evaluator calls this.
        """
        name = place.gate.name
        choices = pack_bits(self._choices[place.bit : place.bit + place.bits])
        self._link.send(f"{name}: bits", bits ^ choices)
        answer = messages.labels_of(self._link.receive(f"{name}: labels", 16 * place.bits))
        labels = place.part(self._keys) ^ answer.view(place.gate.count, place.gate.width, 2)
        return evaluate(place.circuit, self._key, self._numbering.first_tile(self._slot) + place.tile, labels, tables)

    def _send_labels(self, place: GatePosition, offset: Tensor, bits: Tensor) -> Tensor:
        """Have the data's side evaluate a gate that this side has garbled; return this side's share of its result,
        int64 (n,).

        place: the gate. offset: int64 (n,), what this side had added to the results when it garbled the gate.
        bits: the bits of this side's share of the input, packed, uint8. Their labels are sent, and the data's side
        answers with its masked result, from which the offset is subtracted. Only a garbler calls this.
        """
        name, ring = place.gate.name, place.gate.ring
        self._link.send(f"{name}: labels", octets(choose(place.part(self._labels).view(-1, 2), bits, self._delta)))
        y = self._link.receive(f"{name}: result", messages.words_bytes(place.gate.count, ring))
        return reduced(messages.unpack(y, (place.gate.count,), ring).view(-1) - offset, ring)


def check_store(store: Store, digest: str) -> None:
    """Raise AgreementError unless the store belongs to the model's side, with a plan of this digest."""
    check_bound(store, "model", digest)
