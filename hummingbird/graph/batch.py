"""The batch size while a net is traced with an example: an int that stands for any size.

Products and quotients with integers stay multiples of the batch size; they become steps that read the size of the
input. Any other use in forward(), such as `if x.shape[0] == 1`, has an answer for one size only: then the converted net
takes batches of that size only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from hummingbird.errors import InputError


class BatchFixed(InputError):
    """Error: forward() uses the batch size in a way whose result may depend on the size, such as a comparison."""


class TracedBatch:
    """The batch size with which a net is traced, and a list of the questions about it that forward() asked.

    asked: in words, the uses of the batch size whose answer is right for this size only, such as a comparison. They
        stay in the list even if forward() catches the error that `fixed` returns.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked: list[str] = []

    def fixed(self, what: str) -> BatchFixed:
        """Append to `asked` a use of the batch size that is right for one size only; return the error to raise.

        what: the use, in words.
        """
        self.asked.append(what)
        return BatchFixed(f"the batch's size is used in {what!r}")


class BatchSize(int):
    """An int that stands, in a trace, for `factor` times the batch size.

    As a plain number it equals `factor` times the size of the batch with which the net is traced. Arithmetic that is
    right for every batch size gives another `BatchSize` or an int; all other uses raise `BatchFixed`.
    """

    factor: int
    batch: TracedBatch

    def __new__(cls, factor: int, batch: TracedBatch) -> BatchSize:
        size = super().__new__(cls, factor * batch.size)
        size.factor, size.batch = factor, batch
        return size

    def _times(self, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        if isinstance(other, BatchSize) or other < 1:
            raise self.batch.fixed("*")
        return BatchSize(self.factor * other, self.batch)

    __mul__ = __rmul__ = _times

    def _plus(self, other: Any) -> Any:
        if isinstance(other, BatchSize):
            return BatchSize(self.factor + other.factor, self.batch)
        if not isinstance(other, int):
            return NotImplemented
        if other == 0:
            return self
        raise self.batch.fixed("+")

    __add__ = __radd__ = _plus

    def __floordiv__(self, other: Any) -> Any:
        if isinstance(other, BatchSize) and self.factor % other.factor == 0:
            return self.factor // other.factor
        if type(other) is int and other > 0 and self.factor % other == 0:
            return BatchSize(self.factor // other, self.batch)
        raise self.batch.fixed("//")

    def __mod__(self, other: Any) -> Any:
        if type(other) is int and other > 0 and self.factor % other == 0:
            return 0
        raise self.batch.fixed("%")

    def __bool__(self) -> bool:
        return True

    def __copy__(self) -> BatchSize:
        return self

    def __deepcopy__(self, memo: object) -> BatchSize:
        return self

    __hash__ = int.__hash__


def _comparison(name: str, compare: Callable[[Any, Any], bool]) -> Callable[[BatchSize, Any], Any]:
    def method(self: BatchSize, other: Any) -> Any:
        if isinstance(other, BatchSize):
            return compare(self.factor, other.factor)
        if not isinstance(other, (int, float)):
            return NotImplemented
        if other < 1:  # a batch has one image or more
            return compare(1, other)
        raise self.batch.fixed(name)

    return method


def _refused(name: str) -> Callable[..., Any]:
    def method(self: BatchSize, *others: Any) -> Any:
        if any(not isinstance(other, (int, float)) for other in others):
            return NotImplemented
        raise self.batch.fixed(name)

    return method


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(BatchSize, f"__{_name}__", _comparison(_name, getattr(operator, _name)))
for _name in "sub rsub truediv rtruediv rfloordiv rmod pow rpow divmod rdivmod neg float".split():
    setattr(BatchSize, f"__{_name}__", _refused(_name))
