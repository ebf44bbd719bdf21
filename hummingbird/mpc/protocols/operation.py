"""An operation for the formulas of layers, as one record: what it computes, how parties run it, and its price.

A formula calls `n.apply(DividedBy(9), x)`, where `n` is a kind of numbers of mpc/layers/arithmetic.py. For real
numbers, as in a simulation, this calls `plain`; for shares it calls `run`, which sends messages; for a plan it adds up
`price`. So an operation is complete with this record beside its request and its function: layers, plans and simulations
hold no list of operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from hummingbird.cost import Cost
from hummingbird.mpc.session.session import Session


class Operation(ABC):
    """An operation on shares, such as a product of two values.

    The fields of a subclass, a dataclass, are the operation's public parameters. The values that it works on are
    arguments of `run`; each subclass names them.
    """

    @abstractmethod
    def plain(self, *values: Any, **options: Any) -> Any:
        """The result for real values of any floating-point type. Meta tensors are allowed, for the shape alone."""

    @abstractmethod
    def run(self, session: Session, *shares: Any, **options: Any) -> Any:
        """This party's share of the result, int64, from its shares of the values."""

    @abstractmethod
    def price(self, parties: int, *values: Any, **options: Any) -> Cost:
        """Cost of `run` on values of these shapes (meta tensors)."""
