"""Comparisons by a protocol's law on tensors: a ReLU in one pass over memory (kernels/simulation.py), with gradients.

Every comparison draws its random numbers from a key of its own. With a seed, keys are SplitMix64's outputs from a state
that is a hash of the seed: key number i is a function of (seed, i), on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hummingbird import ranks
from hummingbird.kernels import twin_relu
from hummingbird.kernels.reference.simulation import drawn
from hummingbird.kernels.simulation import word
from hummingbird.mpc.protocols.law import UNIT, Law


class Compare:
    """Simulates, on real tensors v, a protocol's comparisons with 0; each comparison gives a bit and a value z.

    The bit is 1 where the protocol decides that v is not negative. z is v after the protocol's roundings; the product
    bit * z is the ReLU. seed: the keys of the random numbers follow from it; None: take each key from torch's own
    generator (the CPU's). clamp: whether, in training, values are moved into the range that the window surely holds.
    """

    def __init__(self, seed: int | None, clamp: bool) -> None:
        self.seed, self.clamp = seed, clamp
        self.training = False
        self.drawn = 0  # keys so far
        # Of tables' roundings (`polynomials.evaluate`); None: they round to the nearest.
        self.random: Callable[[Tensor], Tensor] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Compare:
        return self  # shared with the layers of a copied simulation; every forward() sets its mode

    def restart(self, seed: int) -> None:
        """Set the seed and begin anew: later calls draw the random numbers of a new simulation with this seed."""
        self.seed, self.drawn = seed, 0

    def passes(self, run_one: Callable[[], object]) -> Callable[[int], None]:
        """Return a function that sets the random numbers of one pass over a net, for ranks that divide the passes.

        A rank calls it before each pass with the number of the pass, 0, 1, ..., and so draws the keys that a single
        process would draw. run_one: runs any pass; with several ranks it is called once, to count the keys of a pass.
        """
        if ranks.size() == 1:
            return lambda number: None
        start = self.drawn
        run_one()
        each, self.drawn = self.drawn - start, start

        def go_to(number: int) -> None:
            self.drawn = start + number * each

        return go_to

    def draw(self) -> int:
        """Draw the key of the next comparison, 64 bits, from which all its random numbers follow."""
        if self.seed is None:
            return int(torch.empty((), dtype=torch.int64).random_(-(2**63), None)) % 2**64
        self.drawn += 1
        return word(word(self.seed, 0), self.drawn)

    def uniform(self, x: Tensor) -> Tensor:
        """Draw numbers from 0 to 1, multiples of 2^-24, float64 in the shape of x."""
        return drawn(x.numel(), self.draw(), 24, 1, x.device).view(x.shape).double() * 2.0**-24

    def relu(self, v: Tensor, law: Law) -> Tensor:
        """Compute the ReLU of v as the protocol decides its sign, in v's type and memory format.

        v: real, of any shape. law: the rule by which the protocol decides and rounds.
        """
        return self._decided(v, law, self.draw() if law.draws else 0, False)[0]

    def both(self, v: Tensor, law: Law, u: int | None = None, rounding: int | None = None) -> tuple[Tensor, Tensor]:
        """Compare v with 0 as the protocol does; return the ReLU, which is bit * z, and z.

        The bit is 1 where the protocol decides that v is not negative; z is v as the protocol rounds and wraps it. v:
        real, of any shape. law: the rule of the comparison. u, rounding: keys of random numbers, for several
        comparisons of one opened value: they share the number u that decides, and the rounding errors that shares of
        more than two parties have. None: draw new keys.
        """
        y, z = self._decided(v, law, 0 if not law.draws else self.draw() if u is None else u, True, rounding)
        assert z is not None
        return y, z

    def _decided(
        self, v: Tensor, law: Law, key: int, both: bool, rounding: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        v = self._clamped(v, law)
        if rounding is None:
            rounding = self.draw() if law.q and (law.rounds_apart or law.disturbances) else 0
        moves = law.cut.wraps or law.q > 0  # else z is v
        y, z = _Compare.apply(v, law, key, rounding, law.whole or (both and moves))
        if law.whole:
            assert z is not None
            turned = _turned(v, z, law.k)
            coins = drawn(v.numel(), self.draw(), 1, 1, v.device).view(v.shape)
            return y + turned * coins.to(v.dtype), z + turned
        return y, z if moves else v

    def _clamped(self, v: Tensor, law: Law) -> Tensor:
        return self.moved(v, *law.range)

    def moved(self, v: Tensor, low: float, high: float) -> Tensor:
        """Clamp values to the range from `low` to `high`, in training mode and if `clamp` is set; else return them
        unchanged.
        """
        if not (self.clamp and self.training):
            return v
        return v.clamp(_inner(low, v.dtype), _inner(high, v.dtype))


def _inner(bound: float, dtype: torch.dtype) -> float:
    """Return a bound as a number of type `dtype`: the nearest one that is not farther from zero than the bound."""
    near = torch.tensor(bound, dtype=dtype)
    if abs(float(near)) > abs(bound):
        near = torch.nextafter(near, torch.zeros_like(near))
    return float(near)


def _in_memory_order(v: Tensor) -> tuple[Tensor, bool]:
    """Return v's elements as a contiguous tensor in the order in which v's memory has them, without a copy where
    possible.

    The result is (B, H, W, C) and True if v is (B, C, H, W) in the memory format channels_last; otherwise it has v's
    shape, and False.
    """
    if v.dim() == 4 and not v.is_contiguous() and v.is_contiguous(memory_format=torch.channels_last):
        return v.permute(0, 2, 3, 1), True
    return v.contiguous(), False


def _disturbed(v: Tensor, law: Law, key: int) -> Tensor:
    """Add to real v the rounding errors that shares of more than two parties have; return the sum.

    law: says how many errors there are, and how large. key: of the random numbers.
    """
    noise = drawn(v.numel(), key, law.q, law.disturbances, v.device).double()
    middle = law.disturbances * ((1 << law.q) - 1) / 2
    return (v.double() + (noise - middle) * UNIT).to(v.dtype)


def _rounded(x: Tensor, law: Law, key: int) -> Tensor:
    """Round real x up or down at random to a multiple of 2^q ring units, so that the result is x on average.

    Values that are not finite stay as they are. law: has q. key: of the random numbers.
    """
    e = drawn(x.numel(), key, law.q, 1, x.device)
    return (((x.double() / UNIT).round() + e).mul(2.0**-law.q).floor() * (UNIT * 2.0**law.q)).to(x.dtype)


def _turned(v: Tensor, z: Tensor, k: int) -> Tensor:
    """Return by how much the protocol's arithmetic has wrapped v around: v - z, rounded to a multiple of 2^k ring
    units.

    z: v as the protocol rounds and wraps it. k: upper end of the window. The result is 0 where v is not finite, or too
    large to tell.
    """
    step = 2.0**k * UNIT
    turned = ((v.detach() - z.detach()) / step).round() * step
    return turned.nan_to_num(0.0, 0.0, 0.0)


class _Compare(torch.autograd.Function):
    """Autograd function of a simulated comparison of v with 0: it returns the ReLU, and with `both` also z.

    z is v as the protocol rounds and wraps it. The gradient passes where the value passed, as if nothing were rounded.
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor, law: Law, key: int, rounding: int, both: bool) -> tuple[Tensor, Tensor | None]:
        ordered, swapped = _in_memory_order(v)
        real, cut = ordered.view(-1), law.cut

        def shaped(x: Tensor) -> Tensor:
            x = x.view(ordered.shape)
            return x.permute(0, 3, 1, 2) if swapped else x

        if law.disturbances:
            real = _disturbed(real, law, rounding)
        flat, z = twin_relu(real, key, cut, both)
        decided = flat  # a value that passed may be rounded to 0
        if law.q and law.rounds_apart:
            flat, z = _rounded(flat, law, rounding), None if z is None else _rounded(z, law, rounding)
        y = shaped(flat)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(y if decided is flat else shaped(decided))
        ctx.wraps = cut.wraps
        return y, None if z is None else shaped(z)

    @staticmethod
    def backward(ctx: Any, to_y: Tensor | None, to_z: Tensor | None) -> tuple[Tensor | None, None, None, None, None]:
        if to_y is None:
            return to_z, None, None, None, None
        (y,) = ctx.saved_tensors
        # Where bit = 1, y is not 0 before gmw rounds it, or v is. masked: r >= 1 there, so y > 0; gmw passes values
        # below the window too.
        passed = torch.ops.aten.threshold_backward(to_y, y if ctx.wraps else y.abs(), 0.0)
        return passed if to_z is None else passed + to_z, None, None, None, None
