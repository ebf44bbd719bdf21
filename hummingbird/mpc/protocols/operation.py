"""An operation that the formulas of layers use, as one record: what it computes, how parties run it, and its price.

A formula says `n.apply(DividedBy(9), x)`, on the numbers `n` of mpc/layers/arithmetic.py. On real numbers, as in a
simulation, that is `plain`; on shares it is `run`, which sends messages; and a plan adds up `price`. So an operation is
complete with such a record beside its request and its function: no layer, plan or simulation has a list of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from hummingbird.cost import Cost
from hummingbird.mpc.session.session import Session


class Operation(ABC):
    """One operation with its public parameters, which are the fields of a dataclass. A subclass names the values that
    it takes.
    """

    @abstractmethod
    def plain(self, *values: Any, **options: Any) -> Any:
        """The result for real values, of any floating-point type; of values without data their shapes are right."""

    @abstractmethod
    def run(self, session: Session, *shares: Any, **options: Any) -> Any:
        """A party's share of the result, from its shares of the values, int64."""

    @abstractmethod
    def price(self, parties: int, *values: Any, **options: Any) -> Cost:
        """Cost of `run` on values of these shapes: tensors without data."""
