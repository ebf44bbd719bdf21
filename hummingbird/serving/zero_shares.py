"""Fresh shares of zero: N words, one at each party, whose sum is 0 and of which any N - 1 are uniform.

A result's shares say more than their sum: they carry masks, roundings, and products with private weights. With a share
of zero added, a client's N answers are uniform words given their sum. Each pair of parties has a seed of its own, by
Diffie-Hellman on X25519; the lower rank adds its words and the higher one subtracts them. So whatever parties a client
colludes with, the answers of the others are uniform given their sum, which the seeds of neighbours alone (CrypTen's
zero sharing) do not give: of four parties, two that are not neighbours would know all seeds of each of the others.
"""

from __future__ import annotations

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from torch import Tensor

from hummingbird.channel.channel import Channel
from hummingbird.errors import AgreementError
from hummingbird.prg import SEED_BYTES, Stream, derive


class ZeroShares:
    """A party's part, over the channel of a session: `share` is called with the same shapes, in the same order, by all.

    1 round when it is made, none later.
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
        """This party's share of zeros, int64."""
        total = torch.zeros(shape, dtype=torch.int64)
        for sign, stream in self._streams:
            total += sign * stream.words(*shape)
        return total
