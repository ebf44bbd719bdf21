"""Linear layers offline: the data's side sends an encrypted mask r, the model's side answers with W r - s.

`he.bfv.layout` maps a layer's values to polynomials. Both sides derive the layout, and the sizes of messages, from the
plan.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hummingbird.cost import bfv_fresh
from hummingbird.he import bfv
from hummingbird.he.bfv import noise
from hummingbird.he.bfv.layout import Layout
from hummingbird.hybrid.plan import Linear, LinearWeights, Plan
from hummingbird.prg import Stream, derive

KEY_BYTES = bfv_fresh(1)  # of a public key
_KEPT = 4 << 30  # bytes of transformed weights to keep; others are transformed again for every slot
_POLYNOMIAL = 1 << 16  # bytes of a transformed polynomial


def layout(step: Linear) -> Layout:
    """Return the mapping of a layer's values to coefficients of polynomials. Both sides derive it from the plan."""
    return Layout.of(step.image, step.weight, step.stride, step.padding, step.dilation, step.groups)


class MessageSizes:
    """The two messages of one layer when a slot is dealt: it makes and reads them, and knows their sizes.

    The data's side sends the encrypted mask r of the layer's input. The model's side replies with W r - s, the product
    with the weights W minus a mask s. step: the layer. up, down: bytes of the two messages.
    """

    def __init__(self, step: Linear) -> None:
        self.step, self.layout = step, layout(step)
        self.up, self.down = self.layout.up_bytes, self.layout.down_bytes

    def ask(self, secret: bfv.Secret, r: Tensor) -> bytes:
        """Return the data side's message: the encrypted mask r of the layer's input.

        r: mod 2^ring, int64 (C, H, W), new for every slot. secret: the data side's key.
        """
        return secret.encrypt(self.layout.pack_input(r), self.step.ring).to_bytes()

    def read(self, secret: bfv.Secret, reply: bytes) -> Tensor:
        """Decrypt the model side's reply to the data side's share of the layer's result: d = W r - s mod 2^ring.

        W are the weights, r is the mask from `ask`, and s the mask from `hidden`. Returns int64 (1, *shape). secret:
        the data side's key. Raises InputError for damaged bytes.
        """
        polys = secret.decrypt(bfv.Reply.from_bytes(reply, self.layout.used), self.step.ring)
        return self.layout.unpack(polys).view(1, *self.step.shape)

    def masks(self, seed: bytes) -> Tensor:
        """Draw the masks that hide a layer's result in the reply of the model's side: int64 (replies, N), mod 2^ring.

        The model's side subtracts them from all coefficients of the reply's polynomials.
        seed: of the slot's masks for this layer (`mask_seed`), a new one for every slot.
        """
        return bfv.draw_masks(Stream(seed), self.layout.replies, self.step.ring)

    def hidden(self, seed: bytes) -> Tensor:
        """Return the masks s of the layer's outputs, which the model's side draws: int64 (1, *shape), mod 2^ring.

        seed: of the slot's masks for this layer (`mask_seed`).
        """
        return self.layout.unpack(self.masks(seed)).view(1, *self.step.shape)


def layers(plan: Plan) -> dict[int, MessageSizes]:
    """Return a `MessageSizes` for every layer with weights of a plan, by number of the step."""
    return {number: MessageSizes(step) for number, step in plan.linears.items()}


class Weights:
    """The weights of all layers at the model's side, prepared to answer the data side's encrypted masks.

    Up to 4 GiB of weights are transformed (NTT) only once, others for every slot. Raises ConfigError if the replies to
    one image could reveal the weights: if their statistical distance from replies that hide the weights exceeds 2^-30.
    """

    def __init__(
        self, found: Mapping[int, MessageSizes], parameters: Mapping[int, LinearWeights], where: str = "weights"
    ) -> None:
        self._layers, self._parameters = found, parameters
        self._kept: dict[int, Tensor] = {}
        total, left = 0.0, _KEPT
        for number, layer in found.items():
            norm = layer.layout.norms(parameters[number].weight)
            total += noise.distance(norm, layer.step.ring, layer.step.count)
            left -= len(layer.layout.pairs) * _POLYNOMIAL
            if left >= 0:
                self._kept[number] = self._transformed(number)
        noise.check_distance(total, where)

    def _transformed(self, number: int) -> Tensor:
        return bfv.transform(self._layers[number].layout.pack_weights(self._parameters[number].weight))

    def answer(self, number: int, public: bfv.PublicKey, asked: bytes, seed: bytes) -> bytes:
        """Compute the reply of layer `number` to an encrypted mask. Raises InputError for damaged bytes.

        public: the data side's key. asked: the encrypted mask. seed: of the masks that hide the values of the reply.
        """
        layer = self._layers[number]
        places = layer.layout
        kept = self._kept.get(number)
        weights = self._transformed(number) if kept is None else kept
        sums = places.multiply(bfv.Fresh.from_bytes(asked, places.inputs).parts(), weights)
        reply = bfv.evaluate(public, sums, layer.masks(seed), layer.step.ring, places.used)
        return reply.to_bytes()


def mask_seed(slot_seed: bytes, number: int) -> bytes:
    """Derive the seed of the masks s of a layer's result, which the model's side draws.

    slot_seed: the seed of the model side's randomness for the slot. number: of the layer's step.
    """
    return derive(slot_seed, "s", number)
