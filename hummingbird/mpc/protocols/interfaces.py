"""The interfaces that layers see of protocols: `Operation`, which formulas name, and `Comparison`, which decides signs.

masked.py and gmw.py implement comparisons; callers do not know which one runs. When a net is planned, each share gets a
number of valid low bits. A comparison states how many of these bits it reads, for which values it is right, what it
costs, and what it decides (law.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from hummingbird import cost
from hummingbird.bits import BitWindow
from hummingbird.cost import Cost
from hummingbird.mpc.protocols.law import Law
from hummingbird.mpc.protocols.step_tables import LATENCY, TableChoice
from hummingbird.mpc.session.session import Session
from hummingbird.ring import SCALE, WEIGHT_SCALE

# Operations for the formulas of layers --------------------------------------------------------------------------------


class Operation(ABC):
    """An operation on shares, such as a product of two values, in three forms: on real values, on shares, as a price.

    A formula calls `n.apply(DividedBy(9), x)`, where `n` is a kind of numbers of mpc/layers/arithmetic.py. For real
    numbers, as in a simulation, this calls the method `plain`; for shares it calls `run`, which sends messages; for a
    plan it adds up `price`. So layers, plans and simulations hold no list of operations.

    The fields of a subclass, a dataclass, are the operation's public parameters. The values that it works on are
    arguments of `run`; each subclass names them.
    """

    @abstractmethod
    def plain(self, *values: Any, **options: Any) -> Any:
        """Compute the operation's result for real values of any floating-point type, and return it.

        Meta tensors are allowed, for the shape alone.
        """

    @abstractmethod
    def run(self, session: Session, *shares: Any, **options: Any) -> Any:
        """Compute this party's share of the operation's result, int64, from its shares of the values.

        The parties exchange messages.
        """

    @abstractmethod
    def price(self, parties: int, *values: Any, **options: Any) -> Cost:
        """Return the price of `run`. values: meta tensors of the shapes on which `run` is called."""


# Comparisons ----------------------------------------------------------------------------------------------------------

AT_ONCE = 1 << 23  # comparisons run at a time, about 2 GiB; with tables of 8 bits this is the limit of a request


@dataclass
class Comparison(ABC):
    """A comparison on one window of the shares: it decides which private values count as positive, as for a ReLU.

    The planner sets `valid`, `ring` and `whole`.
    window: the bits that decide.
    valid: how many low bits of the input's shares are right.
    ring: how many low bits of the result later layers need.
    aim: the aim by which tables are chosen.
    whole: whether the input's shares are right in all bits of the result; for a ReLU only.
    """

    window: BitWindow
    valid: int = 64
    ring: int = 64
    aim: TableChoice = LATENCY
    whole: bool = False

    name: ClassVar[str]
    least_width: ClassVar[int]  # bits of the narrowest window that is not empty
    looks_up: ClassVar[bool] = False  # whether smooth functions are looked up as polynomials in dealt tables
    # Whether every party may round its own share before the comparison, so that the share has fewer valid bits.
    takes_rounded_shares: ClassVar[bool]
    gives_squares: ClassVar[bool] = False  # whether `squares` is implemented, without a product
    gives_steps: ClassVar[bool] = False  # whether `steps` is implemented

    @property
    def has_tables(self) -> bool:
        """Whether functions may be looked up: the protocol does it, and a dealer makes the tables (`looks_up`)."""
        return self.looks_up and not self.aim.pair

    @property
    def drops(self) -> bool:
        """Whether the window has no bits, so that its layer compares nothing (`Comparing.dropped`)."""
        return self.window.w == 0

    @property
    @abstractmethod
    def reads(self) -> int | None:
        """How many integer bits of a value this comparison needs: bits above the binary point, with the sign.

        None: all of them, for a window up to bit 64.
        """

    @property
    def reach(self) -> int:
        """Log2 of a bound of the magnitude of every result of `relu`, whatever the input is; 64 if there is none."""
        return 64

    @property
    def undecided(self) -> float:
        """The real number below which positive values may be taken for negative ones; 0 for exact comparisons."""
        return 2.0 ** (self.window.low - SCALE) if self.window.low else 0.0

    @property
    def weight_scale(self) -> int:
        """How many bits of fraction weights must have if this comparison reads their results.

        Rounding may change a weight by 2^-12 of `undecided`; weights never have more bits than for exact comparisons.
        """
        return max(SCALE, min(WEIGHT_SCALE, SCALE + 12 - self.window.low))

    @abstractmethod
    def needs(self, scale: int) -> int:
        """Return how many low bits of the input's shares must be right, if the input has `scale` bits of fraction."""

    def may_be_whole(self, scale: int) -> bool:
        """Return whether the input's shares are right in all bits of the result (`ring`), and dealt bits can be saved.

        scale: bits of fraction of the input.
        """
        return False

    @abstractmethod
    def range(self, scale: int) -> int:
        """Return log2 of the magnitude below which values are compared rightly. scale: bits of fraction of the values.

        For a window [k:m) and several parties, the magnitude is lower by 2^(m - 16) for each party but one.
        """

    @abstractmethod
    def check(self, scale: int) -> None:
        """Raise ConfigError unless the window fits shares with `scale` bits of fraction."""

    @abstractmethod
    def law(self, scale: int, parties: int) -> Law:
        """Return the plaintext rule by which this comparison decides on shares with `scale` bits of fraction."""

    @abstractmethod
    def variant(self, scale: int, parties: int, n: int) -> str:
        """Return a short text on how the sign is decided, for reports, such as "table 8" or "carry tree".

        scale: bits of fraction of the input.
        n: how many values are compared.
        """

    @abstractmethod
    def _run(
        self, session: Session, share: Tensor, knots: Sequence[int], scale: int, value: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute shares of relu(x - t) for every public knot t, (J, n), and of x less the first knot, (n,).

        Each protocol implements this; it is called for at most `at_once` values.
        share: this party's share of x, (n,), with `scale` bits of fraction.
        knots: J integers in units of 2^-16.
        value: whether the second result is wanted; else it may be None.
        """

    @abstractmethod
    def _price(self, n: int, knots: int, scale: int, parties: int, value: bool) -> Cost:
        """Return the price of `_run` on n values, each compared with `knots` knots.

        scale: bits of fraction of the values.
        value: whether shares of the values themselves are wanted, too.
        """

    def at_once(self, scale: int, knots: int) -> int:
        """Return how many values are compared at a time, if each is compared with `knots` knots.

        This bounds the memory.
        scale: bits of fraction of the values.
        """
        return most_at_once(knots)

    def breadth(self, n: int, scale: int, knots: int) -> int:
        """Return the number of comparisons that take as much memory as n values with `knots` knots.

        scale: bits of fraction of the values.
        """
        return n * knots

    def wider(self, window: BitWindow, valid: int, ring: int = 64) -> Comparison:
        """Make a comparison of the same protocol and with the same aim, but for another window and other shares.

        window: the bits that decide.
        valid: how many low bits of the input's shares are right.
        ring: how many low bits of the result later layers need.
        """
        return replace(self, window=window, valid=valid, ring=ring, whole=False)

    def fastest(self, n: int, parties: int, price: Callable[[Comparison], Cost]) -> Comparison:
        """Return this comparison in the form that its aim takes for n values, by the given price of each form.

        An aim by a link (`TableChoice.link`) takes the form of the fewest seconds, since a round is paid once for all
        values; other aims have one form, this comparison.
        """
        if self.aim.link is None:
            return self
        forms = [replace(self, aim=aim) for aim in self.aim.forms]
        return min(forms, key=lambda form: self.aim.price(price(form), n, parties))

    def relu(self, session: Session, share: Tensor, scale: int) -> tuple[Tensor, Tensor]:
        """Compute shares of relu(x) and of x itself, with 16 bits of fraction, in the shape of x.

        share: this party's share of x, with `scale` bits of fraction, 16 or more.
        If the window drops its lowest q bits, both are multiples of 2^q in the ring. A window without bits is not
        allowed: its layer calls no comparison. Cost: `cost`.
        """
        y, z = self.above(session, share, (0,), scale)
        return y[0], z

    def relus(self, session: Session, share: Tensor, knots: Sequence[int], scale: int) -> Tensor:
        """Compute shares, (J, *shape), scale 2^16, of relu(x - t) for every public knot t: `above` without x.

        Cost: `cost` of J knots, with value=False.
        """
        return self._compared(session, share, knots, scale, False)[0]

    def above(self, session: Session, share: Tensor, knots: Sequence[int], scale: int) -> tuple[Tensor, Tensor]:
        """Compute shares, scale 2^16, of relu(x - t) for every public knot t, (J, *shape), and of x less the first one.

        share: this party's share of x, with `scale` bits of fraction.
        knots: J integers, at least one, in units of 2^-16. The comparisons are right if each x - t is in the window.
        Cost: `cost` of J knots; as many rounds as one ReLU.
        """
        y, z = self._compared(session, share, knots, scale, True)
        assert z is not None
        return y, z

    def _compared(
        self, session: Session, share: Tensor, knots: Sequence[int], scale: int, value: bool
    ) -> tuple[Tensor, Tensor | None]:
        form = self._form(share.numel(), scale, session.parties, len(knots), value)
        parts = share.reshape(-1).split(form.at_once(scale, len(knots)))
        done = [form._run(session, part, knots, scale, value) for part in parts]
        y, z = done[0] if len(parts) == 1 else (torch.cat([relus for relus, _ in done], -1), None)
        if value and len(parts) > 1:
            z = torch.cat([part for _, part in done if part is not None])
        return y.view(len(knots), *share.shape), z if z is None else z.view(share.shape)

    def squares(
        self, session: Session, share: Tensor, knots: Sequence[int], scale: int, fraction: int
    ) -> tuple[Tensor, Tensor]:
        """Compute shares, (J, *shape), of y = relu(x - t) and of y^2 for every public knot t.

        y has the scale 2^fraction, y^2 the scale 2^(2 fraction).
        share: this party's share of x, with `scale` bits of fraction.
        knots: J integers in units of 2^-fraction. The comparisons are right if each x - t is in the window.
        fraction: 16 at most.
        Cost: `cost_of_squares`.
        """
        raise NotImplementedError(f"{self.name} has no squares")

    def cost_of_squares(self, n: int, scale: int, parties: int, knots: int, fraction: int) -> Cost:
        """Return the price of `squares` on n elements with `knots` knots.

        scale: bits of fraction of the elements.
        fraction: bits of fraction of the values that are squared.
        """
        raise NotImplementedError(f"{self.name} has no squares")

    def steps(self, session: Session, share: Tensor, knots: Sequence[int], scale: int) -> tuple[Tensor, Tensor, Tensor]:
        """Compute shares of the bits [x >= t] as integers, (J, *shape), and of what `above` computes.

        For a window that drops its lowest q bits, the bits [x >= t] are right mod 2^(ring - q), the others mod 2^ring.
        The bits of a value fall from 1 to 0 as t grows.
        share: this party's share of x, with `scale` bits of fraction.
        knots: J integers in units of 2^-16, multiples of 2^q for the window's q.
        Cost: `cost_of_steps`.
        """
        raise NotImplementedError(f"{self.name} has no steps")

    def cost_of_steps(self, n: int, scale: int, parties: int, knots: int) -> Cost:
        """Return the price of `steps` on n elements with `knots` knots. scale: bits of fraction of the elements."""
        raise NotImplementedError(f"{self.name} has no steps")

    def cost(self, n: int, scale: int, parties: int, knots: int = 1, value: bool = True) -> Cost:
        """Return the price of `above` on n elements with `knots` knots; with one knot, that of `relu`.

        scale: bits of fraction of the elements.
        value: whether shares of the elements themselves are wanted; False for the price of `relus`.
        """
        if self.drops:
            return cost.FREE
        form = self._form(n, scale, parties, knots, value)
        most = form.at_once(scale, knots)
        whole, rest = divmod(n, most)
        parts = form._price(most, knots, scale, parties, value) * whole
        return parts + form._price(rest, knots, scale, parties, value) if rest or not whole else parts

    def _form(self, n: int, scale: int, parties: int, knots: int, value: bool) -> Comparison:
        """Return this comparison in the form by which n values are compared; the others are as for `cost`."""
        return self.fastest(n, parties, lambda form: form.cost(n, scale, parties, knots, value))


def most_at_once(knots: int) -> int:
    """Return how many values are compared at a time, if each is compared with `knots` knots. This bounds the memory."""
    return max(1, AT_ONCE // knots)
