"""Products of polynomials in plain integers, and a server's answer with what it was made of, for tests of he.bfv."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from pytest import MonkeyPatch
from torch import Tensor

from hummingbird import prg
from hummingbird.he import bfv
from hummingbird.he.bfv import reply as reply_module
from hummingbird.he.bfv.scheme import DEGREE, RING
from hummingbird.kernels.ciphertexts import phase
from tests.support.chance import chi_square_limit

WHOLE = torch.arange(DEGREE)


def product(x: Tensor, y: Tensor) -> Tensor:
    """x y mod X^N + 1 and 2^64: int64 (N,)."""
    full = torch.from_numpy(np.convolve(x.numpy(), y.numpy()))
    out = full[:DEGREE].clone()
    out[: DEGREE - 1] -= full[DEGREE:]
    return out


def elements(seed: int, count: int, k: int) -> Tensor:
    """Ring elements of 0 .. 2^k - 1, the edges among them."""
    x = torch.randint(0, 1 << k, (count, DEGREE), generator=torch.Generator().manual_seed(seed))
    x[:, :4] = torch.tensor([0, (1 << k) - 1, 1 << k - 1, (1 << k - 1) - 1])
    return x


def weights(seed: int, count: int, most: int, terms: int = DEGREE) -> Tensor:
    """Weights -most .. most in the first so many coefficients, the largest first."""
    w = torch.zeros(count, DEGREE, dtype=torch.int64)
    w[:, :terms] = torch.randint(-most, most + 1, (count, terms), generator=torch.Generator().manual_seed(seed))
    w[:, 0] = most
    return w


@dataclass
class Answer:
    """One output for each weight, of an input each: what the client knows, what it should learn, what it gets."""

    secret: bfv.Secret
    fresh: bfv.Fresh
    reply: bfv.Reply
    whole: Tensor  # the parts before two primes are dropped: int32 (n, 2, 4, N); they show more than the reply
    wanted: Tensor  # w r - masks mod 2^k
    masks: Tensor
    k: int = field(kw_only=True)

    def phases(self) -> Tensor:
        """The phase of `whole`: int32 (n, 4, N)."""
        parts = self.whole.clone()
        parts[:, 1] = RING.ntt(parts[:, 1])
        return phase(RING, parts, self.secret._values, "mixed")


def answer(r: Tensor, w: Tensor, k: int, patch: MonkeyPatch, masks: Tensor | None = None) -> Answer:
    """The answer to Enc(r), for one output w[i] r[i] for each i, all of it sent."""
    secret, count = bfv.Secret.new(), len(r)
    seen: list[Tensor] = []
    dropped = reply_module.dropped

    def spied(parts: Tensor) -> Tensor:
        seen.append(parts)
        return dropped(parts)

    fresh = secret.encrypt(r, k)
    pairs = torch.arange(count)[:, None].expand(-1, 2).contiguous()
    sums = bfv.products(fresh.parts(), bfv.transform(w), pairs, count)
    masks = bfv.draw_masks(prg.fresh(), count, k) if masks is None else masks
    with patch.context() as spying:
        spying.setattr(reply_module, "dropped", spied)
        reply = bfv.evaluate(secret.public(), sums, masks, k, [WHOLE] * count)
    wanted = torch.stack([product(x, y) for x, y in zip(r, w, strict=True)]) - masks & (1 << k) - 1
    return Answer(secret, fresh, reply, seen[0], wanted, masks, k=k)


def chi_square(x: Tensor, least: int, width: int, bins: int = 64) -> float:
    """Test that values in least .. least + width - 1 are uniform: `UNLIKELY` with 64 bins."""
    counts = torch.bincount(((x.flatten().double() - least) * bins / width).long(), minlength=bins).double()
    assert len(counts) == bins, "a value is outside"
    expected = x.numel() / bins
    return float(((counts - expected) ** 2 / expected).sum())


UNLIKELY = chi_square_limit(64)
