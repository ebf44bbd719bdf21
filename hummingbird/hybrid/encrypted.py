"""Linear layers offline: the data's side encrypts a mask r, and has W r - s of the model's side, whose mask is s.

`he.bfv.layout` says how a layer's values lie in polynomials. Both sides make it from the plan; sizes follow from it.
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
_KEPT = 4 << 30  # bytes of transformed weights that are kept; others are transformed for every slot
_POLYNOMIAL = 1 << 16  # bytes of a transformed one


def layout(step: Linear) -> Layout:
    """The places of a layer's values in polynomials."""
    return Layout.of(step.image, step.weight, step.stride, step.padding, step.dilation, step.groups)


class MessageSizes:
    """The sizes of a layer's two messages in bytes: `up`, Enc(r), and `down`, the reply."""

    def __init__(self, step: Linear) -> None:
        self.step, self.layout = step, layout(step)
        self.up, self.down = self.layout.up_bytes, self.layout.down_bytes

    def ask(self, secret: bfv.Secret, r: Tensor) -> bytes:
        """The data's side: its message for r mod 2^ring, int64 (C, H, W). A new one for every slot."""
        return secret.encrypt(self.layout.pack_input(r), self.step.ring).to_bytes()

    def read(self, secret: bfv.Secret, reply: bytes) -> Tensor:
        """The data's side: d = W r - s mod 2^ring of a reply, int64 (1, *shape). InputError for damaged bytes."""
        polys = secret.decrypt(bfv.Reply.from_bytes(reply, self.layout.used), self.step.ring)
        return self.layout.unpack(polys).view(1, *self.step.shape)

    def masks(self, seed: bytes) -> Tensor:
        """The model's side: what it subtracts in all coefficients of its replies for a slot, int64 (replies, N)."""
        return bfv.draw_masks(Stream(seed), self.layout.replies, self.step.ring)

    def hidden(self, seed: bytes) -> Tensor:
        """The model's side: s, the masks where outputs are, int64 (1, *shape)."""
        return self.layout.unpack(self.masks(seed)).view(1, *self.step.shape)


def layers(plan: Plan) -> dict[int, MessageSizes]:
    """All layers of a plan, by number."""
    return {number: MessageSizes(step) for number, step in plan.linears.items()}


class Weights:
    """The model's side: weights of all layers, transformed once as far as `_KEPT` bytes go.

    ConfigError where the replies to one image are further than 2^-30 from ones that hide the weights.
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
        """The reply of layer `number`, under the masks of a seed. InputError for damaged bytes."""
        layer = self._layers[number]
        places = layer.layout
        kept = self._kept.get(number)
        weights = self._transformed(number) if kept is None else kept
        sums = places.multiply(bfv.Fresh.from_bytes(asked, places.inputs).parts(), weights)
        reply = bfv.evaluate(public, sums, layer.masks(seed), layer.step.ring, places.used)
        return reply.to_bytes()


def mask_seed(slot_seed: bytes, number: int) -> bytes:
    """The seed of the masks s of layer `number`, at the model's side."""
    return derive(slot_seed, "s", number)
