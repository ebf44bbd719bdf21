"""Base of layers that compare: a formula (arithmetic.py), and the window of its comparisons.

On `Shares` the formula runs between parties; on `CostTensor` it adds up its own price.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.cost import FREE, Cost
from hummingbird.kernels.devices import put
from hummingbird.mpc.functions.polynomials import PolynomialTable
from hummingbird.mpc.layers.arithmetic import Arithmetic, Values
from hummingbird.mpc.layers.layer import MARGIN, MAX_SCALE, Layer, Spec
from hummingbird.mpc.layers.linear import PrivateWeight, PublicWeight, product_price
from hummingbird.mpc.protocols import poly
from hummingbird.mpc.protocols.interfaces import Comparison, Operation
from hummingbird.mpc.protocols.lift import lift, lift_price
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE


class Shares(Arithmetic):
    """Arithmetic by which a formula runs between parties: its values are a party's additive shares mod 2^64, int64.

    Party 0 alone adds public numbers to its share.
    session: whose parties compute.
    comparison: decides signs.
    scale: bits of fraction of the values that are compared.
    """

    def __init__(self, session: Session, comparison: Comparison, scale: int) -> None:
        self.session, self.comparison, self.scale = session, comparison, scale
        self.undecided = comparison.undecided

    def compare(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.comparison.relu(self.session, x, self.scale)

    def relu(self, x: Tensor) -> Tensor:
        return self.comparison.relus(self.session, x, (0,), self.scale)[0]

    def above(self, x: Tensor, knots: Sequence[float]) -> tuple[Values, Tensor]:
        codes = ring.encode(torch.tensor(knots, dtype=torch.float64), where="constant").tolist()
        return self.comparison.above(self.session, x, codes, self.scale)

    def relus(self, x: Tensor, knots: Sequence[float]) -> Values:
        codes = ring.encode(torch.tensor(knots, dtype=torch.float64), where="constant").tolist()
        return self.comparison.relus(self.session, x, codes, self.scale)

    def squares(self, x: Tensor, knots: Sequence[float], fraction: int) -> tuple[Values, Values]:
        codes = ring.encode(torch.tensor(knots, dtype=torch.float64), fraction, where="constant").tolist()
        return self.comparison.squares(self.session, x, codes, self.scale, fraction)

    def with_comparison(self, comparison: Comparison, scale: int = SCALE) -> Arithmetic:
        return Shares(self.session, comparison, scale)

    def constant(self, value: float, fraction: int = 0) -> int:
        code = ring.encode(torch.tensor(value, dtype=torch.float64), SCALE + fraction, where="constant")
        return int(code) if self.session.rank == 0 else 0

    def units(self, numbers: Tensor) -> Tensor:
        return numbers if self.session.rank == 0 else torch.zeros_like(numbers)

    def times(self, x: Tensor, number: int, fraction: int) -> Tensor:
        return x if number == 1 else x * number

    def weighted(self, values: Values, numbers: Sequence[int], fraction: int, start: Tensor | float = 0) -> Tensor:
        assert isinstance(values, Tensor)
        codes = put(torch.tensor(numbers), values.device).view(-1, *[1] * (values.dim() - 1))
        return (values * codes).sum(0) + start

    def per_channel(self, x: Tensor, weight: PublicWeight | PrivateWeight) -> Tensor:
        # as torch: one slope if values have no channels
        view = (-1, *[1] * (x.dim() - 2)) if x.dim() > 1 else (1,) * x.dim()
        return weight.product(self.session, "mul", x, {}, view)

    def apply(self, operation: Operation, *values: Tensor) -> Any:
        return operation.run(self.session, *values)

    def at_least(self, x: Tensor, numbers: Sequence[float], fraction: int) -> tuple[Values, Tensor]:
        # relu(x - t + 1) - relu(x - t) is 1 from t on, in units of the last bit: the comparison must be exact.
        codes = ring.encode(torch.tensor(numbers, dtype=torch.float64), SCALE + fraction, where="constant").tolist()
        y = self.comparison.relus(self.session, x, [*(code - 1 for code in codes), *codes], SCALE)
        return y[: len(numbers)] - y[len(numbers) :], y[len(numbers)]

    def steps(self, x: Tensor, knots: Sequence[float]) -> tuple[Values, Values, Tensor]:
        codes = ring.encode(torch.tensor(knots, dtype=torch.float64), where="constant").tolist()
        return self.comparison.steps(self.session, x, codes, self.scale)

    def polynomial(self, x: Tensor, table: PolynomialTable, bits: int, whole: bool = False) -> Tensor:
        y = poly.evaluate(self.session, x, table, self.scale, bits)
        if whole:
            y = lift(self.session, y.reshape(-1), 0, bits)
        return y.view(x.shape) << max(0, SCALE - table.scale)

    def cut(self, bits: int, *values: Tensor, top: int = 62) -> list[Tensor]:
        flat = values[0].reshape(-1) if len(values) == 1 else torch.cat([value.reshape(-1) for value in values])
        parts = lift(self.session, flat, bits, top + MARGIN - bits).split([value.numel() for value in values])
        return [part.view(value.shape) for part, value in zip(parts, values, strict=True)]


class CostTensor(Arithmetic):
    """Arithmetic that prices a formula: its values are tensors on the meta device, which have a shape only.

    Operations add up their prices in `total`, and note in `breadth` the largest number of values compared at once.
    """

    def __init__(self, comparison: Comparison, scale: int, parties: int) -> None:
        self.comparison, self.scale, self.parties = comparison, scale, parties
        self.undecided = comparison.undecided
        self._paid: list[Cost] = []
        self._compared: list[int] = []

    @property
    def total(self) -> Cost:
        """The price of all operations of the formula so far."""
        return sum(self._paid, FREE)

    @property
    def breadth(self) -> int:
        """The largest number of values that the formula has compared at once so far."""
        return max(self._compared, default=0)

    def compare(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self._compared_with(1, x.numel(), self.scale, True)
        return x, x

    def relu(self, x: Tensor) -> Tensor:
        self._compared_with(1, x.numel(), self.scale, False)
        return x

    def above(self, x: Tensor, knots: Sequence[float]) -> tuple[Values, Tensor]:
        self._compared_with(len(knots), x.numel(), self.scale, True)
        return x.expand(len(knots), *x.shape), x

    def relus(self, x: Tensor, knots: Sequence[float]) -> Values:
        self._compared_with(len(knots), x.numel(), self.scale, False)
        return x.expand(len(knots), *x.shape)

    def _compared_with(self, knots: int, count: int, scale: int, value: bool) -> None:
        self._paid.append(self.comparison.cost(count, scale, self.parties, knots, value))
        self._compared.append(self.comparison.breadth(count, scale, knots))

    def squares(self, x: Tensor, knots: Sequence[float], fraction: int) -> tuple[Values, Values]:
        many = len(knots)
        self._paid.append(self.comparison.cost_of_squares(x.numel(), self.scale, self.parties, many, fraction))
        self._compared.append(many * x.numel())
        values = x.expand(many, *x.shape)
        return values, values

    def with_comparison(self, comparison: Comparison, scale: int = SCALE) -> Arithmetic:
        other = CostTensor(comparison, scale, self.parties)
        other._paid, other._compared = self._paid, self._compared  # the same lists: one total
        return other

    def constant(self, value: float, fraction: int = 0) -> float:
        return 0

    def units(self, numbers: Tensor) -> Tensor:
        return numbers

    def times(self, x: Tensor, number: int, fraction: int) -> Tensor:
        return x

    def weighted(self, values: Values, numbers: Sequence[int], fraction: int, start: Tensor | float = 0) -> Tensor:
        return values[0]

    def per_channel(self, x: Tensor, weight: PublicWeight | PrivateWeight) -> Tensor:
        if not isinstance(weight, PublicWeight):
            self._paid.append(product_price(weight, x.numel(), x.numel(), self.parties))
        return x

    def apply(self, operation: Operation, *values: Tensor) -> Any:
        self._paid.append(operation.price(self.parties, *values))
        return operation.plain(*values)

    def at_least(self, x: Tensor, numbers: Sequence[float], fraction: int) -> tuple[Values, Tensor]:
        self._compared_with(2 * len(numbers), x.numel(), SCALE, False)
        return x.expand(len(numbers), *x.shape), x

    def steps(self, x: Tensor, knots: Sequence[float]) -> tuple[Values, Values, Tensor]:
        many = len(knots)
        self._paid.append(self.comparison.cost_of_steps(x.numel(), self.scale, self.parties, many))
        self._compared.append(many * x.numel())
        values = x.expand(many, *x.shape)
        return values, values, x

    def polynomial(self, x: Tensor, table: PolynomialTable, bits: int, whole: bool = False) -> Tensor:
        n = x.numel()
        self._paid.append(poly.price(n, table, bits, self.parties))
        self._compared.append(n << max(0, table.w - 2))  # coefficients take the memory of that many comparisons
        if whole:
            self._paid.append(lift_price(n, bits, 64, self.parties))
        return x

    def cut(self, bits: int, *values: Tensor, top: int = 62) -> list[Tensor]:
        count = sum(value.numel() for value in values)
        self._paid.append(lift_price(count, top + MARGIN - bits, 64, self.parties))
        return list(values)


class Comparing(Layer):
    """Base of layers with a window. If the window has no bits, the layer compares nothing, and computes `dropped`.

    Otherwise it computes its `formula`, from which its price and its simulation follow, too.
    """

    comparison: Comparison
    input_limit = MAX_SCALE
    fraction = 0  # the result has 16 + this many bits of fraction

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.comparison = comparison

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        """Compute the layer's function of x with the operations of `n`, and return the result.

        n: the kind of numbers: real numbers, shares or prices. On shares the result has scale 2^(16 + fraction).
        """
        raise NotImplementedError

    def dropped(self, x: Tensor) -> Tensor:
        """Compute the layer's result if its window has no bits, so that nothing is compared.

        That is x itself, unless a subclass says otherwise.
        """
        return x

    def forward(self, session: Session, x: Shared) -> Shared:
        share, scale = x.share, x.scale
        if self.comparison.drops:
            return Shared(self.dropped(share), scale)
        return Shared(self.formula(Shares(session, self.comparison, scale), share), SCALE + self.fraction)

    def _prices(self, x: Spec, parties: int) -> CostTensor:
        prices = CostTensor(self.comparison, x.scale, parties)
        self.formula(prices, torch.empty(x.shape, dtype=torch.int64, device="meta"))
        return prices

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return FREE if self.comparison.drops else self._prices(inputs[0], parties).total

    def breadth(self, inputs: Sequence[Spec]) -> int:
        return inputs[0].numel if self.comparison.drops else self._prices(inputs[0], 2).breadth

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] if self.comparison.drops else SCALE + self.fraction

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return valid[0] if self.comparison.drops else 64

    def bound(self, bounds: Sequence[int]) -> int:
        return self.within(bounds[0])

    def farthest(self, scale: int) -> float:
        """Return the largest magnitude of a public number with which the layer compares its values, 0 for none.

        scale: bits of fraction of the values. The planner sees to it that differences of values from it fit the shares.
        """
        return 0.0

    def within(self, bound: int) -> int:
        """Return log2 of the largest relu(x) that the layer's comparison may give for values |x| < 2^bound."""
        return bound if self.comparison.drops else min(bound, max(0, self.comparison.reach))

    def reads(self, later: int | None) -> int | None:
        return later if self.comparison.drops else self.comparison.reads

    def weight_scale(self, later: int) -> int:
        return later if self.comparison.drops else self.comparison.weight_scale

    def needs(self, scales: Sequence[int], later: int) -> int:
        return later if self.comparison.drops else self.comparison.needs(scales[0])

    def label(self) -> str:
        window = self.comparison.window
        return "no bits: identity" if self.comparison.drops else f"window {window}, {window.w} bits"
