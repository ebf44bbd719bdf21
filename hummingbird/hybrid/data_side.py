"""The data's side: it draws a mask for every shared value, and computes its shares before an image is known.

Offline, for each slot, it sends Enc(r) of every layer, reads d = W r - s from the replies, and walks the plan on them;
that determines its shares of all gates' inputs. For a set of slots, some layers' messages serve several slots. As
garbler it makes all tables; as evaluator it receives labels of its bits by OT. A slot holds the material for the online
phase:

    garbler "data"     L ^ Q for every bit; online, p ^ e comes, packed, and L ^ Q ^ (p ^ e) R goes back
    garbler "model"    labels of its own bits, tables; online, labels of the model's bits come, y + offset - r goes back

and its share of the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hummingbird.he import bfv
from hummingbird.hybrid import arithmetic, messages
from hummingbird.hybrid.encrypted import MessageSizes, layers
from hummingbird.hybrid.gc.relu import evaluate_model, garble
from hummingbird.hybrid.message_stream import MessageStream
from hummingbird.hybrid.messages import octets
from hummingbird.hybrid.numbering import GatePosition, Numbering, hash_key, slot_seed
from hummingbird.hybrid.plan import SET, Plan, reduced
from hummingbird.hybrid.session import check_bound, receiver_of, sender_of
from hummingbird.hybrid.store import Store
from hummingbird.kernels.cot import choose
from hummingbird.ot import cot
from hummingbird.prg import Stream, derive


@dataclass(frozen=True)
class Slot:
    """A slot that is in use for an image, at the data's side.

    number: of the slot. seed: from which all masks of the slot follow. kept: tensors of the slot from the store: if
    this side garbles, one tensor of masked labels; if it evaluates, a tensor of labels, then the tables of each gate.
    share: this side's share of the logits, (1, *shape), also from the store.
    """

    number: int
    seed: bytes
    kept: list[Tensor]
    share: Tensor


class DataSide:
    """The data's side of one session: it prepares slots, and computes the logits of an image with each slot.

    plan: of the net. store: this side's folder of the session. digest: the digest of the model's description, to which
    the store must be bound.
    """

    def __init__(self, plan: Plan, digest: str, store: Store) -> None:
        check_bound(store, "data", digest)
        self.plan, self.store = plan, store
        self._digest = digest
        self._singly, self._in_set, self._numbering = layers(plan), layers(plan, SET), Numbering(plan)
        self._key = hash_key(store.header.session)
        self._first = store.first  # no slot before it is in use, because only this process has the store

    # Offline ----------------------------------------------------------------------------------------------------------

    def prepare(
        self,
        link: MessageStream,
        count: int,
        progress: Callable[[int], object] = lambda slots: None,
        singly: bool = False,
    ) -> None:
        """Have `count` slots dealt in one call; ready slots stay ready if a later one fails.

        They are dealt in sets of `plan.SET`, if the plan has sets, and the rest singly.
        link: the connection to the model's side. progress: called with 1 after each slot. singly: whether there are no
        sets. Raises the errors of `MessageStream.receive` and `Store.deal`.
        """
        secret = bfv.Secret.new()
        session = self.store.header.session
        link.send("opening", messages.OfflineOpening(plan=self._digest, session=session, first=self._first).pack())
        link.send("key", secret.public().to_bytes())
        for some in [1] * count if singly else self.plan.dealt(count):
            slots = [self.store.deal() for _ in range(some)]
            if some > 1:
                link.send("number", messages.MANY)
            link.send("number", messages.numbers(slots))
            self._deal(link, secret, slots, progress)
        link.send("end", messages.END)

    def _deal(
        self, link: MessageStream, secret: bfv.Secret, slots: Sequence[int], progress: Callable[[int], object]
    ) -> None:
        """Have one slot dealt, or all slots of a set. progress: called with 1 after each slot."""
        seeds = [slot_seed(self.store.seed, slot) for slot in slots]
        masks = [{number: self._mask(seed, number) for number in self.plan.masked} for seed in seeds]
        products = self._products(link, secret, [arithmetic.requests(self.plan, own) for own in masks])
        for place, (slot, seed) in enumerate(zip(slots, seeds, strict=True)):
            linear = lambda number, step, r, place=place: products[number][place : place + 1]  # noqa: E731
            shares, last = arithmetic.offline(self.plan, masks[place], linear)
            values = {gate.number: shares[gate.number].reshape(-1) for gate in self._numbering.places}
            if self.plan.garbler == "data":
                kept = [self._garble(link, slot, seed, values, masks[place]), last]
            else:
                kept = [*self._take_tables(link, slot, values), last]
            link.receive("done", len(messages.DONE))
            self.store.keep(slot, kept)
            progress(1)

    def _products(
        self, link: MessageStream, secret: bfv.Secret, asked: Sequence[Mapping[int, Tensor]]
    ) -> dict[int, Tensor]:
        """Have the model's side multiply the masks of slots by the weights of all layers, encrypted.

        asked: for each slot the masks r of the layers' inputs, by number of the layer's step. Returns d = W r - s,
        int64 (slots, *shape), by number. All masks of a slot that is dealt singly are sent before the first reply is
        read; of a set, those of three layers, as more would fill the memory.
        """
        found, ahead = self._singly if len(asked) == 1 else self._in_set, len(self._singly) if len(asked) == 1 else 2
        numbers, products = list(asked[0]), dict[int, Tensor]()
        for place in range(len(numbers) + ahead):
            if place < len(numbers):
                r = torch.cat([own[numbers[place]] for own in asked])
                for part in r.split(found[numbers[place]].slots):
                    name = self.plan.steps[numbers[place]].name
                    link.send(f"{name}: Enc(r)", found[numbers[place]].ask(secret, part))
            if place >= ahead:
                number = numbers[place - ahead]
                products[number] = self._replies(link, secret, found[number], len(asked))
        return products

    def _replies(self, link: MessageStream, secret: bfv.Secret, layer: MessageSizes, slots: int) -> Tensor:
        parts = []
        for first in range(0, slots, layer.slots):
            reply = link.receive(f"{layer.step.name}: reply", layer.down).numpy().tobytes()
            parts.append(layer.read(secret, reply, min(layer.slots, slots - first)))
        return torch.cat(parts)

    def _garble(
        self, link: MessageStream, slot: int, seed: bytes, values: dict[int, Tensor], masks: dict[int, Tensor]
    ) -> Tensor:
        """Garble all gates and send their tables; return the labels for the model side's bits, masked: int64 (bits, 2).

        They are the labels of 0. Each is masked by XOR with the key Q of an oblivious transfer (ot/cot.py).
        slot: its number. seed: of the slot. values: this side's shares of the gates' inputs, by number of the step.
        masks: this side's masks of the gates' results, by number of the step.
        """
        bits, sender = self._numbering.bits, sender_of(self.store)
        message = link.receive("OT", cot.message_bytes(bits, True)).numpy().tobytes()
        keys = sender.extend(self._numbering.first_ot(slot), bits, message, True)
        labels = Stream(derive(seed, "labels")).words(bits, 2)
        for place in self._numbering.places:
            tile = self._numbering.first_tile(slot) + place.tile
            own, r = values[place.number], masks[place.number].reshape(-1)
            tables = garble(place.circuit, self._key, tile, sender.delta, place.part(labels), own, r)
            link.send(f"{place.gate.name}: tables", tables)
        return labels ^ keys

    def _take_tables(self, link: MessageStream, slot: int, values: dict[int, Tensor]) -> list[Tensor]:
        """Receive what this side needs to evaluate a slot's gates: the labels of its own bits, and the gates' tables.

        Returns a list: the labels, int64 (bits, 2), which come by oblivious transfer, then one tensor of tables for
        each gate.
        slot: its number. values: this side's shares of the gates' inputs, by number of the step.
        """
        bits = [_bits(values[place.number], place.gate.width) for place in self._numbering.places]
        choices = torch.cat([torch.empty(0, dtype=torch.uint8), *bits])  # a net may have no gates
        message, keys = receiver_of(self.store).chosen(self._numbering.first_ot(slot), choices)
        link.send("OT", message)
        tables = [link.receive(f"{place.gate.name}: tables", place.table_bytes) for place in self._numbering.places]
        return [keys, *tables]

    def _mask(self, seed: bytes, number: int) -> Tensor:
        step = self.plan.steps[number]
        return expand(mask_seed(seed, number), step.shape, step.ring)

    # Online -----------------------------------------------------------------------------------------------------------

    def take(self) -> Slot:
        """Take the next ready slot from the store, and mark it as used; returns the slot with its tensors.

        Raises StoreError if no slot is ready, SlotError if the slot is damaged.
        """
        number, (*kept, share) = self.store.use()
        return Slot(number, slot_seed(self.store.seed, number), kept, share)

    def input_mask(self, slot: Slot) -> Tensor:
        """Return the mask r of the slot's image, which is the data side's share of the image: int64 (1, *shape)."""
        return self._mask(slot.seed, self.plan.input_number)

    def infer(self, link: MessageStream, slot: Slot, x: Tensor) -> Tensor:
        """Compute the logits of one image with the model's side: int64 (1, *shape), mod 2^ring.

        link: the connection to the model's side. slot: a slot from `take`. x: the image as integers, int64 (1, *shape).
        """
        step, output = self.plan.input, self.plan.output
        self.open(link, slot)
        link.send("input", messages.pack(reduced(x - self.input_mask(slot), step.ring), step.ring))
        self.answer(link, slot)
        share = link.receive("logits", messages.words_bytes(output.count, output.ring))
        return reduced(slot.share + messages.unpack(share, output.shape, output.ring), output.ring)

    def open(self, link: MessageStream, slot: Slot, ticket: str | None = None, input: str | None = None) -> None:
        """Begin a call for one image: send its first message, which names the session and the slot.

        link: the connection to the model's side. slot: the slot that the image uses.
        ticket, input: given by a proxy only. ticket: that of its user, in hexadecimal digits. input: how the user sends
        its image to the model's side, "shares" or "switched" (`UserOpening`).
        """
        session = self.store.header.session
        opening = messages.OnlineOpening(
            plan=self._digest, session=session, slot=slot.number, ticket=ticket, input=input
        )
        link.send("opening", opening.pack())

    def answer(self, link: MessageStream, slot: Slot) -> None:
        """Take part in the model side's run over an image: answer its messages for all gates of the plan, in order.

        A garbler receives masked bits and answers with their labels. An evaluator receives labels and answers with the
        gate's masked result. link: the connection to the model's side.
        """
        for position, place in enumerate(self._numbering.places):
            if self.plan.garbler == "data":
                asked = link.receive(
                    f"{place.gate.name}: bits", messages.words_bytes(place.gate.count, place.gate.width)
                )
                sent = choose(place.part(slot.kept[0]).view(-1, 2), asked, self.store.material[0])
                link.send(f"{place.gate.name}: labels", octets(sent))
            else:
                received = link.receive(f"{place.gate.name}: labels", 16 * place.bits)
                y = self._evaluate(slot, position, place, messages.labels_of(received))
                link.send(f"{place.gate.name}: result", messages.pack(y, place.gate.ring))

    def _evaluate(self, slot: Slot, position: int, place: GatePosition, labels: Tensor) -> Tensor:
        """Evaluate a gate that the model's side has garbled; return what that side gets: int64 (n,).

        This is the gate's result, which still has the garbler's offset, minus the data side's mask of the result.
        slot: the slot in use. position: the gate's number among the slot's gates. place: the gate.
        labels: int64 (bits, 2), the labels of the bits of the model side's share.
        """
        tile = self._numbering.first_tile(slot.number) + place.tile
        own, tables = place.part(slot.kept[0]), slot.kept[1 + position]
        theirs = labels.view(own.shape)
        y = evaluate_model(place.circuit, self._key, tile, own, theirs, tables)
        return reduced(y - self._mask(slot.seed, place.number).reshape(-1), place.gate.ring)


def mask_seed(seed: bytes, number: int) -> bytes:
    """Derive the seed of a step's mask r from the slot's seed. number: of the step."""
    return derive(seed, "r", number)


def expand(seed: bytes, shape: tuple[int, ...], ring: int) -> Tensor:
    """Expand a seed to a mask: int64 (1, *shape), uniform mod 2^ring."""
    return reduced(Stream(seed).words(1, *shape), ring)


def _bits(values: Tensor, width: int) -> Tensor:
    """Return the low `width` bits of n numbers, lowest first: uint8 (n * width,), zeros and ones."""
    return (values[:, None] >> torch.arange(width) & 1).to(torch.uint8).view(-1)
