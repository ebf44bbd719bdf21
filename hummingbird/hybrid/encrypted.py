"""Linear layers offline: the data's side sends an encrypted mask r, the model's side answers with W r - s.

`he.bfv.layout` maps a layer's values to polynomials. Both sides derive the layout, and the sizes of messages, from the
plan. The model's side multiplies by products of polynomials, or tap by tap (`he.bfv.taps`), where the plan has slots of
a set share a layer's ciphertexts (`together.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.cost import bfv_fresh
from hummingbird.he import bfv
from hummingbird.he.bfv import noise, taps
from hummingbird.he.bfv.layout import Layout
from hummingbird.hybrid.plan import SET, Linear, LinearWeights, Plan, reduced
from hummingbird.prg import Stream, derive

KEY_BYTES = bfv_fresh(1)  # of a public key
_KEPT = 4 << 30  # bytes of transformed weights to keep; others are transformed again for every slot
_POLYNOMIAL = 1 << 16  # bytes of a transformed polynomial


def layout(step: Linear, slots: int = 1) -> Layout:
    """Return the mapping of a layer's values to coefficients of polynomials. Both sides derive it from the plan.

    slots: how many share the polynomials.
    """
    options = step.stride, step.padding, step.dilation, step.groups
    return Layout.of(step.image, step.weight, *options, images=slots)


class MessageSizes:
    """The two messages of one layer when slots are dealt: it makes and reads them, and knows their sizes.

    The data's side sends the encrypted masks r of the layer's inputs. The model's side replies with W r - s, the
    products with the weights W minus masks s. step: the layer. slots: how many share the messages. up, down: bytes of
    the two messages, also where fewer slots are left for the last of them.
    """

    def __init__(self, step: Linear, slots: int = 1) -> None:
        self.step, self.slots, self.layout = step, slots, layout(step, slots)
        self.up, self.down = self.layout.up_bytes, self.layout.down_bytes

    def ask(self, secret: bfv.Secret, r: Tensor) -> bytes:
        """Return the data side's message: the encrypted masks r of the layer's inputs.

        r: mod 2^ring, int64 (n, C, H, W), for at most `slots` slots, new for every slot. secret: the data side's key.
        """
        full = torch.cat([r, r.new_zeros(self.slots - len(r), *r.shape[1:])])
        packed = self.layout.pack_input(full if self.slots > 1 else full[0])
        return secret.encrypt(packed, self.step.ring).to_bytes()

    def read(self, secret: bfv.Secret, reply: bytes, slots: int = 1) -> Tensor:
        """Decrypt the model side's reply to the data side's shares of the layer's results: d = W r - s mod 2^ring.

        W are the weights, r are the masks from `ask`, and s the masks from `hidden`. Returns int64 (slots, *shape).
        secret: the data side's key. slots: how many asked. Raises InputError for damaged bytes.
        """
        polys = secret.decrypt(bfv.Reply.from_bytes(reply, self.layout.used), self.step.ring)
        return self.layout.unpack(polys).reshape(self.slots, *self.step.shape)[:slots]

    def masks(self, seeds: Sequence[bytes]) -> Tensor:
        """Draw the masks that hide layers' results in the reply of the model's side: int64 (replies, N), mod 2^ring.

        The model's side subtracts them from all coefficients of the reply's polynomials. Those of results are from
        `hidden`, all others are drawn here.
        seeds: for each slot the seed of its masks for this layer (`mask_seed`), a new one for every slot.
        """
        masks = bfv.draw_masks(prg.fresh(), self.layout.replies, self.step.ring)
        for places, seed in zip(self._places, seeds, strict=False):  # fewer slots may be left for the last message
            masks.view(-1)[places] = self.hidden(seed).view(-1)
        return masks

    def hidden(self, seed: bytes) -> Tensor:
        """Return the masks s of a slot's results, which the model's side draws: int64 (1, *shape), mod 2^ring.

        seed: of the slot's masks for this layer (`mask_seed`).
        """
        return reduced(Stream(seed).words(1, *self.step.shape), self.step.ring)

    @cached_property
    def _places(self) -> Tensor:
        """The positions of each slot's results among the coefficients of all replies: int64 (slots, values)."""
        replies, degree = self.layout.replies, self.layout.degree
        return self.layout.unpack(torch.arange(replies * degree).view(replies, degree)).reshape(self.slots, -1)


def layers(plan: Plan, slots: int = 1) -> dict[int, MessageSizes]:
    """Return a `MessageSizes` for every layer with weights of a plan, by number of the step.

    slots: how many are dealt at once, 1 or a set (`plan.SET`).
    """
    found = plan.linears.items()
    return {number: MessageSizes(step, step.together if slots == SET else 1) for number, step in found}


class Weights:
    """The weights of all layers at the model's side, prepared to answer the data side's encrypted masks.

    singly, in_set: the layers' messages for a slot that is dealt singly, and for a set. Up to 4 GiB of weights are
    transformed (NTT) only once, others for every slot. Of layers whose ciphertexts slots share, the nonzero weights are
    listed. Raises ConfigError if the replies to one image could reveal the weights: if their statistical distance from
    replies that hide the weights exceeds 2^-30.
    """

    def __init__(self, plan: Plan, parameters: Mapping[int, LinearWeights], where: str = "weights") -> None:
        self.singly, self.in_set = layers(plan), layers(plan, SET)
        self._parameters = parameters
        self._kept: dict[int, Tensor] = {}
        self._terms: dict[int, bfv.Terms] = {}
        total, left = 0.0, _KEPT
        for number, layer in self.singly.items():
            weight, shared = parameters[number].weight, self.in_set[number]
            total += distance(layer.step, weight)
            left -= len(layer.layout.pairs) * _POLYNOMIAL
            if left >= 0:
                self._kept[number] = self._transformed(number)
            if shared.slots > 1:
                self._terms[number] = taps.terms(shared.layout, weight)
        noise.check_distance(total, where)

    def _transformed(self, number: int) -> Tensor:
        return bfv.transform(self.singly[number].layout.pack_weights(self._parameters[number].weight))

    def answer(
        self, number: int, layer: MessageSizes, public: bfv.PublicKey, asked: bytes, seeds: Sequence[bytes]
    ) -> bytes:
        """Compute the reply of layer `number` to encrypted masks. Raises InputError for damaged bytes.

        layer: the messages, of `singly` or `in_set`. public: the data side's key. asked: the encrypted masks.
        seeds: for each slot the seed of the masks that hide its values in the reply.
        """
        places = layer.layout
        x = bfv.Fresh.from_bytes(asked, places.inputs).parts()
        if layer.slots > 1:
            sums = taps.multiply(places, x, self._terms[number])
        else:
            kept = self._kept.get(number)
            sums = places.multiply(x, self._transformed(number) if kept is None else kept)
        reply = bfv.evaluate(public, sums, layer.masks(seeds), layer.step.ring, places.used)
        return reply.to_bytes()


def distance(step: Linear, weight: Tensor) -> float:
    """Bound the statistical distance of a layer's replies for one slot from ones that hide its weights.

    The bound holds for slots that are dealt singly, and for those of a set, whose last message may have room for more
    slots than are left. weight: int64 of `step.weight`.
    """
    norm = max(layout(step, slots).norms(weight) for slots in {1, step.together})
    sent = -(-SET // step.together) * step.together  # slots' values in the messages of a set
    return noise.distance(norm, step.ring, -(-step.count * sent // SET))


def mask_seed(slot_seed: bytes, number: int) -> bytes:
    """Derive the seed of the masks s of a layer's result, which the model's side draws.

    slot_seed: the seed of the model side's randomness for the slot. number: of the layer's step.
    """
    return derive(slot_seed, "s", number)
