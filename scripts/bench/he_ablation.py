"""Rows of scripts/bench/he.py: each optimisation of nGraph-HE2 switched off in turn, on one linear layer, one thread.

    scalar encoding    a weight is one integer for all slots; off: a polynomial that encodes it, multiplied pointwise
                       (table 4 of the paper and section 4.2.1)
    packing            as many values as coefficients; off: real slots, half as many (section 4.2.2)
    lazy rescaling     one rescaling of a sum of products; off: every product is rescaled (section 4.3)
    just-in-time       a weight is encoded for the primes that are left where it is used; off: for all primes. With
    encoding           scalar encoding there is nothing to encode: measured on polynomials (section 4.4)

Boemer, Costache, Cammarota, Wierzynski, "nGraph-HE2" (WAHC 2019). The layer is the first linear one of CryptoNets, 845
values to ROWS of its 100, for 2048 images, with random weights; on and off must give the same results, up to a bound on
the noise. N = 2048 and two primes, but for the last: N = 8192, a level with three of seven primes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hummingbird.he.scheme import packing
from hummingbird.he.scheme.ckks import VARIANCE, Coins, SecretKey, expand
from hummingbird.he.scheme.params import choose
from hummingbird.kernels.ciphertexts import Ring, linear, multiply, switch
from scripts.program import best

INPUTS, ROWS, IMAGES = 845, 10, 2048
INPUT_SCALE, WEIGHT_SCALE = 24, 20  # log2; 2^44 at the output and |output| < 2^5, against Q / 2 = 2^51
DEVIATIONS = 7  # a normal value is beyond them once in 4e11; 20,480 are looked at
# In slots, the secret is its value at a root, whose square is exponential: of 1024, one is beyond 25 means in 1e8 keys.
SWING = {"coefficients": 1, "complex": 25, "real": 25}


@dataclass
class Layer:
    """Weights as integers, inputs (INPUTS, IMAGES) in [-1, 1], the exact outputs, and a key."""

    weights: Tensor
    inputs: Tensor
    outputs: Tensor
    key: SecretKey

    @staticmethod
    def make() -> Layer:
        generator = torch.Generator().manual_seed(0)
        weights = (torch.rand(ROWS, INPUTS, generator=generator).double() - 0.5) * 0.1
        weights = (weights * 2**WEIGHT_SCALE).round()
        inputs = torch.rand(INPUTS, IMAGES, generator=generator).double() * 2 - 1
        return Layer(weights, inputs, weights @ inputs / 2**WEIGHT_SCALE, SecretKey(choose(2048, 2)))

    def encrypt(self, inputs: Tensor, kind: str, form: str) -> Tensor:
        ring = self.key.ring
        message = packing.encode(inputs, kind, ring.degree, 2.0**INPUT_SCALE)
        seed, body = self.key.encrypt(message, Coins(ring, INPUTS), form)
        return torch.stack([body, expand(ring, seed, INPUTS)], 1)

    def decrypt(self, result: Tensor, kind: str, form: str) -> Tensor:
        """Values of ciphertexts of which one prime was dropped: (ROWS, slots)."""
        dropped = self.key.ring.primes[1]
        return packing.decode(self.key.decrypt(result, form), kind) * (dropped / 2 ** (INPUT_SCALE + WEIGHT_SCALE))

    def product(self, x: Tensor) -> Tensor:
        index = torch.arange(INPUTS, dtype=torch.int32).view(1, 1, -1)
        return linear(self.key.ring, self.weights[None], index, x)[:, 0]

    def check(self, outputs: Tensor, kind: str = "coefficients", switches: int = 1) -> float:
        """The largest error; ends the program beyond the bound: noise and rounding of the inputs, times weights, and
        `switches` roundings to multiples of the dropped prime, times the secret of variance 2/3.
        """
        ring = self.key.ring
        norm = float(self.weights.norm(dim=1).max())
        rounding = SWING[kind] * switches / 12 * (1 + ring.degree * 2 / 3) * ring.primes[1] ** 2
        deviation = packing.spread(kind, ring.degree) * math.sqrt(norm**2 * (VARIANCE + 1 / 12) + rounding)
        bound = DEVIATIONS * deviation / 2 ** (INPUT_SCALE + WEIGHT_SCALE)
        error = float((outputs - self.outputs).abs().max())
        if not error < bound:
            raise SystemExit(f"error: wrong outputs: {error:.2e} off, bound {bound:.2e}")
        return error


def same(a: Tensor, b: Tensor) -> None:
    """End the program where two ways give different residues."""
    if not torch.equal(a, b):
        raise SystemExit("error: results differ")


def row(name: str, on: float, off: float, unit: str, **more: Any) -> dict[str, Any]:
    """on, off: seconds."""
    return {
        "optimisation": name,
        "on_milliseconds": 1e3 * on,
        "off_milliseconds": 1e3 * off,
        "ratio": off / on,
        "measured": unit,
        **more,
    }


def scalar_encoding(layer: Layer) -> dict[str, Any]:
    """Integers against polynomials, the time to encode them included."""
    ring, x = layer.key.ring, layer.encrypt(layer.inputs, "coefficients", "ntt")
    real = layer.weights / 2**WEIGHT_SCALE
    ones, every = torch.ones(1, 1, INPUTS, dtype=torch.float64), torch.arange(INPUTS, dtype=torch.int32).view(1, 1, -1)

    def scalars() -> Tensor:
        layer.weights = (real * 2**WEIGHT_SCALE).round()
        return layer.product(x)

    def polynomials() -> Tensor:
        sums = []
        for weights in real:
            slots = weights[:, None].expand(-1, ring.degree // 2)
            encoded = packing.encode(slots, "real", ring.degree, 2.0**WEIGHT_SCALE)
            values = ring.ntt(encoded[:, None].expand(-1, len(ring.primes), -1).contiguous())
            sums.append(linear(ring, ones, every, multiply(ring, x, values[:, None]))[:, 0])
        return torch.cat(sums)

    same(scalars(), polynomials())
    error = layer.check(layer.decrypt(switch(ring, scalars(), "ntt"), "coefficients", "ntt"))
    sizes = {"on_bytes": 8 * real.numel(), "off_bytes": 4 * real.numel() * len(ring.primes) * ring.degree}
    times = best(scalars), best(polynomials)
    return row("scalar encoding", *times, "encode the weights, multiply", on_error=error, off_error=error, **sizes)


def dense_packing(layer: Layer) -> list[dict[str, Any]]:
    """Coefficients and complex slots against real slots, from images in the clear to outputs in the clear."""

    def run(kind: str) -> Tensor:
        parts = []
        for inputs in layer.inputs.split(packing.slots(kind, layer.key.ring.degree), 1):
            x = layer.product(layer.encrypt(inputs, kind, "mixed"))
            parts.append(layer.decrypt(switch(layer.key.ring, x, "mixed"), kind, "mixed"))
        return torch.cat(parts, 1)

    errors = {kind: layer.check(run(kind), kind) for kind in packing.PACKINGS}
    times = {kind: best(lambda kind=kind: run(kind)) for kind in packing.PACKINGS}  # type: ignore[misc]
    return [
        row(
            f"{kind} packing",
            times[kind],
            times["real"],
            "encrypt, multiply, decrypt",
            on_error=errors[kind],
            off_error=errors["real"],
        )
        for kind in ("coefficients", "complex")
    ]


def lazy_rescaling(layer: Layer) -> dict[str, Any]:
    """One rescaling for a sum of products against one for each product."""
    ring, x = layer.key.ring, layer.encrypt(layer.inputs, "coefficients", "mixed")
    each = torch.arange(INPUTS, dtype=torch.int32).view(-1, 1, 1)
    ones = torch.ones(1, 1, INPUTS, dtype=torch.float64)

    def lazy() -> Tensor:
        return switch(ring, layer.product(x), "mixed")

    def eager() -> Tensor:
        sums = []
        for weights in layer.weights:
            products = linear(ring, weights.view(-1, 1, 1), each, x)[:, 0]
            sums.append(linear(ring.take(1), ones, each.view(1, 1, -1), switch(ring, products, "mixed"))[:, 0])
        return torch.cat(sums)

    on = layer.check(layer.decrypt(lazy(), "coefficients", "mixed"))
    off = layer.check(layer.decrypt(eager(), "coefficients", "mixed"), switches=INPUTS)
    return row("lazy rescaling", best(lazy), best(eager), "multiply, rescale", on_error=on, off_error=off)


def just_in_time_encoding() -> dict[str, Any]:
    """Weights of a layer as polynomials for three primes against all seven."""
    everything = choose(8192, 7).ring
    weights = torch.rand(100, generator=torch.Generator().manual_seed(0)).double()
    slots = weights[:, None].expand(-1, everything.degree // 2)

    def encoder(ring: Ring) -> Callable[[], Tensor]:
        def encode() -> Tensor:
            message = packing.encode(slots, "real", ring.degree, 2.0**WEIGHT_SCALE)
            return ring.ntt(message[:, None].expand(-1, len(ring.primes), -1).contiguous())

        return encode

    now, early = encoder(everything.take(3)), encoder(everything)
    same(now(), early()[:, :3].contiguous())
    each = 4 * everything.degree * len(weights)
    return row(
        "just-in-time encoding",
        best(now),
        best(early),
        f"encode {len(weights)} weights as polynomials",
        on_bytes=3 * each,
        off_bytes=7 * each,
    )


def measure(advance: Callable[[], object]) -> list[dict[str, Any]]:
    """All rows; `advance` is called STEPS times."""
    torch.set_num_threads(1)
    layer, rows = Layer.make(), []
    for study in (scalar_encoding, lazy_rescaling):
        rows.append(study(layer))
        advance()
    rows += dense_packing(layer)
    advance()
    rows.append(just_in_time_encoding())
    advance()
    return rows


STEPS = 4
