"""Encrypted images of a proxy's users, as in Impala: a user needs no mask, and one key serves all of its images.

    user     Enc_user(x)                                  to the model's side
    model    switches the key, subtracts a mask rho, hides the noise; Enc_proxy(x - rho)   to the proxy
    proxy    decrypts; x - rho - r                        back to the model's side, which adds rho and has x - r

The proxy sees x - rho, which is uniform; the model's side sees a ciphertext, and x - r. The user makes the switching
key from its secret and the proxy's public key. Source: Choi et al., Impala (2022), section 4; he/bfv/keys.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird import prg
from hummingbird.cost import bfv_fresh, bfv_reply, bfv_switching_key
from hummingbird.he import bfv
from hummingbird.he.bfv import noise
from hummingbird.hybrid.encrypted import KEY_BYTES
from hummingbird.hybrid.plan import Step, reduced

KEYS_BYTES = KEY_BYTES + bfv_switching_key()  # the proxy's public key, and the switching key to it


class Image:
    """Makes and reads the messages that carry a proxy user's encrypted image to the model's side, and from there to the
    proxy.

    The model's side switches the image from the user's key to the proxy's, and masks it. An image's values are
    consecutive coefficients of polynomials.
    step: the plan's input step. up, down: bytes of the user's message, and of the message to the proxy.
    """

    def __init__(self, step: Step) -> None:
        self._step, self._count = step, -(-step.count // bfv.DEGREE)
        self._used = tuple(places % bfv.DEGREE for places in torch.arange(step.count).split(bfv.DEGREE))
        self.up, self.down = bfv_fresh(self._count), bfv_reply(self._count, step.count)

    def encrypt(self, secret: bfv.Secret, x: Tensor) -> bytes:
        """Return the user's message: its image x, int64 (1, *shape), mod 2^ring, encrypted.

        secret: the user's key.
        """
        polys = F.pad(x.flatten(), (0, self._count * bfv.DEGREE - self._step.count)).view(-1, bfv.DEGREE)
        return secret.encrypt(reduced(polys, self._step.ring), self._step.ring).to_bytes()

    def masked(self, keys: Keys, data: bytes) -> tuple[bytes, Tensor]:
        """Switch an encrypted image X to the proxy's key and mask it, at the model's side.

        data: the user's message. Returns the message to the proxy, from which it decrypts X - rho, and the mask rho,
        int64 (1, *shape). Raises InputError for damaged bytes.
        """
        ring = self._step.ring
        masks = bfv.draw_masks(prg.fresh(), self._count, ring)
        parts = bfv.switch_key(keys.switching, bfv.Fresh.from_bytes(data, self._count).parts())
        return bfv.evaluate(keys.public, parts, masks, ring, self._used).to_bytes(), self._read(masks)

    def decrypt(self, secret: bfv.Secret, reply: bytes) -> Tensor:
        """Decrypt the message to the proxy: return X - rho mod 2^ring, int64 (1, *shape), for the user's image X.

        rho is the model side's mask. secret: the proxy's key. Raises InputError for damaged bytes.
        """
        return self._read(secret.decrypt(bfv.Reply.from_bytes(reply, self._used), self._step.ring))

    def check(self) -> None:
        """Raise ConfigError if the noise of the message to the proxy could reveal something to it.

        The statistical distance of the message from one that reveals nothing may be at most 2^-30.
        """
        noise.check_distance(noise.distance(1, self._step.ring, self._step.count, switched=True), "input")

    def _read(self, polys: Tensor) -> Tensor:
        return polys.flatten()[: self._step.count].view(1, *self._step.shape)


class Keys:
    """The keys with which the model's side switches a user's ciphertexts to the proxy's secret.

    public: the proxy's key. switching: the user's key for the switch.
    """

    def __init__(self, public: bfv.PublicKey, switching: bfv.SwitchingKey) -> None:
        self.public, self.switching = public, switching

    @staticmethod
    def from_bytes(data: bytes) -> Keys:
        """Read both keys from `KEYS_BYTES` bytes. Raises InputError if they are malformed."""
        public = bfv.PublicKey.from_bytes(data[:KEY_BYTES])
        return Keys(public, bfv.SwitchingKey.from_bytes(data[KEY_BYTES:]))


def keys_of(secret: bfv.Secret, public: bytes) -> bytes:
    """Return the user's message to the model's side: the proxy's public key, and the key that switches to it.

    secret: the user's. public: the proxy's public key.
    """
    return public + secret.switching_key(bfv.PublicKey.from_bytes(public)).to_bytes()
