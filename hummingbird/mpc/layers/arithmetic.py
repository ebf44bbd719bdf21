"""The language of formulas: an activation's function is written once, in the operations of an `Arithmetic`.

It is the method `formula(n, x)` of its layer. Hardtanh is

    y = n.relus(x, (low, high))                 relu(x - low), relu(x - high)
    return n.constant(low) + y[0] - y[1]

and `n` is an arithmetic, of which there are three. `Shares` (comparing.py) runs the operations between parties: private
inference. `CostTensor` (comparing.py) adds up their prices. `Reals` runs them in plain torch; the simulation
(simulation/layers.py) derives from it, with comparisons that decide as the protocol does.

An operation with a protocol of its own is a record of mpc/protocols, which every arithmetic applies:
`n.apply(Times(), x, y)`. Formulas add, subtract and reshape values with torch's operators. They multiply by public
numbers with `n.times`: on shares this adds bits of fraction, and a formula says how many, so that all terms of a sum
have the same scale.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hummingbird.mpc.functions import polynomials
from hummingbird.mpc.functions.polynomials import PolynomialTable
from hummingbird.mpc.protocols.interfaces import Comparison, Operation
from hummingbird.ring import SCALE

_NOTHING = 2.0**-24
Values = Sequence[Tensor] | Tensor  # several values of one shape, or one tensor of them along dimension 0


class Arithmetic(ABC):
    """The operations with which layers' formulas compute, for one kind of numbers: real numbers, shares, or prices.

    scale: fraction bits of the values that are compared. Other values have 16 unless a method says otherwise.
    undecided: a real number; comparisons may take values from 0 up to it for negative ones.
    """

    scale: int = SCALE
    undecided: float = 0.0  # `Comparison.undecided`: formulas leave room for values that it lets through

    @abstractmethod
    def compare(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute and return relu(x), and x itself. x has `scale` bits of fraction, both results have 16."""

    def relu(self, x: Tensor) -> Tensor:
        """Compute relu(x), with 16 bits of fraction, for x with `scale` bits of fraction."""
        return self.compare(x)[0]

    def relus(self, x: Tensor, knots: Sequence[float]) -> Values:
        """Compute relu(x - t) for every public knot t, (knots, *shape), as `above` does, without x itself."""
        return self.above(x, knots)[0]

    @abstractmethod
    def above(self, x: Tensor, knots: Sequence[float]) -> tuple[Values, Tensor]:
        """Compute relu(x - t) for every public knot t; return these, (knots, *shape), and x less the first knot.

        x: with `scale` bits of fraction, as this arithmetic's comparisons take it; the results have 16.
        knots: real numbers.
        It takes the rounds of one comparison.
        """

    @abstractmethod
    def squares(self, x: Tensor, knots: Sequence[float], fraction: int) -> tuple[Values, Values]:
        """Compute y = relu(x - t) and y^2 for every public knot t; return both, (knots, *shape) each.

        x: with `scale` bits of fraction, as this arithmetic's comparisons take it. Its comparison must have
            `Comparison.gives_squares`.
        fraction: bits of fraction of y, 16 at most; y^2 has twice as many, and must fit the ring.
        """

    def maximum(self, x: Tensor) -> Tensor:
        """Compute the maximum over dimension 0 of x, (n, ...), and return it.

        It is a tree of max(a, b) = b + relu(a - b): n - 1 comparisons, in the rounds of ceil(log2(n)) comparisons.
        """
        while x.shape[0] > 1:
            pairs = x.shape[0] // 2
            a, b = x[:pairs], x[pairs : 2 * pairs]
            x = torch.cat([b + self.relu(a - b), x[2 * pairs :]])
        return x[0]

    @abstractmethod
    def with_comparison(self, comparison: Comparison, scale: int = SCALE) -> Arithmetic:
        """Make arithmetic on the same kind of numbers, but with another comparison, and return it.

        scale: bits of fraction of the values that it compares.
        """

    @abstractmethod
    def constant(self, value: float, fraction: int = 0) -> float:
        """Encode a public real number to be added to values with 16 + `fraction` bits of fraction, and return it."""

    @abstractmethod
    def units(self, numbers: Tensor) -> Tensor:
        """Turn public integers, int64 in units of 2^-16, into numbers that can be added to values of scale 2^16."""

    @abstractmethod
    def times(self, x: Tensor, number: int, fraction: int) -> Tensor:
        """Return x times the public `number` 2^-fraction. The result has `fraction` more bits of fraction than x."""

    @abstractmethod
    def weighted(self, values: Values, numbers: Sequence[int], fraction: int, start: Tensor | float = 0) -> Tensor:
        """Compute start + the sum over j of values[j] numbers[j] 2^-fraction, and return it.

        values: tensors of one shape, or one tensor with them along dimension 0.
        numbers: public integers, as many as values.
        The result, like `start`, has `fraction` more bits of fraction than the values.
        """

    @abstractmethod
    def per_channel(self, x: Tensor, weight: Any) -> Tensor:
        """Multiply x by the weight of its channel (dimension 1), and return the product.

        weight: one number for each channel: a tensor if x is real, else the layer's weight. The result
            has the weight's bits of fraction in addition to those of x.
        """

    @abstractmethod
    def apply(self, operation: Operation, *values: Tensor) -> Any:
        """Apply an operation of mpc/protocols, such as a product, to these values, and return its result."""

    @abstractmethod
    def at_least(self, x: Tensor, numbers: Sequence[float], fraction: int) -> tuple[Values, Tensor]:
        """Compare x with every public number t; return (numbers, *shape): 1 where x >= t and 0 elsewhere, as integers.

        Also returns relu(x - t) for the first number t, with the bits of fraction of x.
        x: with 16 + `fraction` bits of fraction, below 2^62 in the ring.
        It takes the rounds of one comparison. The first result has no bits of fraction.
        """

    @abstractmethod
    def steps(self, x: Tensor, knots: Sequence[float]) -> tuple[Values, Values, Tensor]:
        """Compute [x >= t] for every public knot t, (knots, *shape), as integers, and the two results of `above`.

        x: with `scale` bits of fraction, as this arithmetic's comparisons take it, which must have
            `Comparison.gives_steps`. The first result has no bits of fraction.
        It takes the rounds of one comparison.
        """

    @abstractmethod
    def polynomial(self, x: Tensor, table: PolynomialTable, bits: int, whole: bool = False) -> Tensor:
        """Compute f(x) for the function f of a table. The result has max(16, table.scale) bits of fraction.

        x: with `scale` bits of fraction, as this arithmetic's comparisons take it; |x| is at most table.most.
        bits: how many bits of the result's shares are right, counted upwards from the bit that stands for
            2^-table.scale. If table.scale is below 16, the bits of fraction below that bit are zero.
        whole: whether all higher bits are made right, too. This takes one more opening, and |f(x)| must be below
            2^(bits - table.scale - 2).
        """

    def expects(  # noqa: B027 - private values cannot be seen
        self, x: Tensor, most: float, what: str, least: float = -math.inf, unit: float = 1.0
    ) -> None:
        """Warn of values outside of [least, most) in a simulation. Shares show no values, so nothing is done on shares.

        Magnitudes below 2^-24 units may be squares of rounding errors: no warning says that they are below `least`.

        x: the values.
        most, least: bounds, in multiples of `unit`. From `most` on the formula's result is noise, below `least` it is
            wrong.
        what: the name of the values in the warning.
        """

    @abstractmethod
    def cut(self, bits: int, *values: Tensor, top: int = 62) -> list[Tensor]:
        """Cut the lowest `bits` bits of fraction off these values, in one opening for all of them; return the values.

        top: each value is below 2^top in the ring.
        """

    def precise(self, x: Tensor, fraction: int) -> Tensor:
        """Return x in a type in which differences of large numbers are still right in 16 + `fraction` bits of fraction.

        Real numbers may need a longer floating-point type for this; shares and prices are returned as they are.
        """
        return x


class Reals(Arithmetic):
    """Arithmetic on real numbers, tensors of any floating-point type, with exact comparisons."""

    def compare(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.clamp(min=0), x

    def above(self, x: Tensor, knots: Sequence[float]) -> tuple[Values, Tensor]:
        return [self.relu(x - knot) for knot in knots], x - knots[0]

    def squares(self, x: Tensor, knots: Sequence[float], fraction: int) -> tuple[Values, Values]:
        y, _ = self.above(x, knots)
        return y, [value * value for value in y]

    def with_comparison(self, comparison: Comparison, scale: int = SCALE) -> Arithmetic:
        return self

    def constant(self, value: float, fraction: int = 0) -> float:
        return value

    def units(self, numbers: Tensor) -> Tensor:
        return numbers * 2.0**-SCALE

    def times(self, x: Tensor, number: int, fraction: int) -> Tensor:
        factor = number * 2.0**-fraction
        return x if factor == 1 else x * factor

    def weighted(self, values: Values, numbers: Sequence[int], fraction: int, start: Tensor | float = 0) -> Tensor:
        out = start
        for value, number in zip(values, numbers, strict=True):
            out = out + value * (number * 2.0**-fraction)
        assert isinstance(out, Tensor), "a sum of no values"
        return out

    def per_channel(self, x: Tensor, weight: Any) -> Tensor:
        return x * weight.to(x.dtype).view(-1, *[1] * (x.dim() - 2))

    def apply(self, operation: Operation, *values: Tensor) -> Any:
        return operation.plain(*values)

    def at_least(self, x: Tensor, numbers: Sequence[float], fraction: int) -> tuple[Values, Tensor]:
        return [(x >= number).to(x.dtype) for number in numbers], (x - numbers[0]).clamp(min=0)

    def steps(self, x: Tensor, knots: Sequence[float]) -> tuple[Values, Values, Tensor]:
        y, z = self.above(x, knots)
        return [(each > 0).to(x.dtype) for each in y], y, z

    def polynomial(self, x: Tensor, table: PolynomialTable, bits: int, whole: bool = False) -> Tensor:
        return polynomials.evaluate(table, x)

    def expects(self, x: Tensor, most: float, what: str, least: float = -math.inf, unit: float = 1.0) -> None:
        if not x.numel():
            return
        x = x.detach()
        if (largest := float(x.max()) / unit) >= most:
            what = f"{what} {largest:g}, and private inference has room for {most:g}"
            warnings.warn(f"{what}: its results would be noise", stacklevel=2)
        elif (
            least > -math.inf
            and (smallest := float((x / unit).where(x.abs() >= unit * _NOTHING, torch.inf).min())) < least
        ):
            what = f"{what} {smallest:g}, and private inference expects {least:g} or more"
            warnings.warn(f"{what}: its results would be wrong", stacklevel=2)

    def cut(self, bits: int, *values: Tensor, top: int = 62) -> list[Tensor]:
        return list(values)


REALS = Reals()
