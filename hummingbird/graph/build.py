"""Construction of the list of steps: rules emit steps through `StepBuilder`, which also checks their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.graph.example import leaves
from hummingbird.graph.steps import Ref, Step

# Kinds of values. "unknown" is a value that could not be converted: it passes every check, so that one problem neither
# hides others nor causes them.
TENSOR, TUPLE, SIZE, INT, BOOL, UNKNOWN = "tensor", "tuple", "size", "int", "bool", "unknown"
INVERSE = "inverse root"  # of a sum of squares, by which a norm multiplies (ops/written_out.py)
PUBLIC = "public"  # a tensor that every party has (ops/public.py)
# Hints by kind, where a tensor computed from the net's input is needed.
_INSTEAD = {
    "": "a constant goes into a layer, a sum, or a product with it",
    TUPLE: "unpack it first: a, b = x.chunk(2, 1)",
    SIZE: "write the number, or give an example of the inputs, which has their sizes: example=x",
    INT: "write the number, or give an example of the inputs, which has their sizes: example=x",
    BOOL: "cast it: (x > 0).float()",
    INVERSE: "an inverse root is known in a norm alone: (x - mean) * (variance + eps).rsqrt()",
}


class Unsupported(Exception):
    """Error: a call cannot be converted to steps. what: the reason. hint: what the user should write instead."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what, self.hint = what, hint


class StepBuilder:
    """The list of steps under construction, to which the rules of `ops/` add; it also checks the arguments of calls.

    name: qualified name of the call that is being converted; its steps get names from it.
    root: a copy of the net; steps may keep its tensors.
    ranks: a function that takes the steps and returns the number of dimensions of each step's value (properties.py).
    integers: a function that takes the steps and returns the numbers of those whose values are integers in torch
    (properties.py).
    plain: accept all of torch's elementwise functions, for a caller that computes on plain values.
    hidden: the `HiddenNumbers` that knows which tensors must not become Python numbers (scalar_reads.py), or None.
    """

    def __init__(
        self,
        root: nn.Module,
        ranks: Callable[[Sequence[Step]], list[int | str | None]],
        integers: Callable[[Sequence[Step]], set[int]],
        plain: bool = False,
    ) -> None:
        self._ranks, self._integers, self.plain = ranks, integers, plain
        self.hidden: Any = None
        self._own = {id(tensor) for tensor in (*root.parameters(), *root.buffers())}
        self.steps: list[Step] = []
        self.kinds: list[str] = []
        self.name = ""
        self._names: set[str] = set()
        self._learned: dict[int, Tensor] = {}
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}

    def emit(self, op: str, *inputs: Any, suffix: str = "", kind: str = TENSOR, **attrs: Any) -> Ref:
        """Append a step, named after the current call and `suffix`, and return a reference to its value.

        op: the step's operation. inputs: references to earlier steps, which it reads. kind: the kind of the value, such
        as TENSOR, SIZE or BOOL. attrs: the step's attributes.
        """
        if any(_holds_ref(value) for value in attrs.values()):
            raise Unsupported("an argument that depends on the net's input or its shape", "write the number")
        self.steps.append(Step(self._free(self.name + suffix), op, inputs, attrs))
        self.kinds.append(kind)
        return Ref(len(self.steps) - 1)

    def _free(self, name: str) -> str:
        """Return a name that no step has yet, and take it: `name`, or the first free one of name_1, name_2, ..."""
        number, free = 0, name
        while free in self._names:
            number += 1
            free = f"{name}_{number}"
        self._names.add(free)
        return free

    def first(self, op: str) -> Ref:
        """Return a reference to the value of the first step whose operation is `op`."""
        return Ref(next(number for number, step in enumerate(self.steps) if step.op == op))

    def kind(self, value: Any) -> str:
        """Return the kind of a step's value, such as "tensor", "size" or "bool"; "" for a constant.

        value: a reference to a step, or a constant. The kinds are the constants at the top of build.py.
        """
        return self.kinds[value.index] if isinstance(value, Ref) else ""

    def tensor(self, value: Any, what: str = "input") -> Ref:
        """Return `value` if it is a tensor computed from the net's input; else raise Unsupported.

        what: the argument's name for the error.
        """
        if self.kind(value) not in (TENSOR, UNKNOWN):
            what = f"{what} must be a tensor computed from the net's input, got {self._show(value)}"
            raise Unsupported(what, _INSTEAD.get(self.kind(value), "write it with a tensor"))
        ref: Ref = value
        return ref

    def rank(self, value: Ref) -> int | str | None:
        """Return the number of dimensions of a step's value, or INPUT if it is the unknown number of the net's input.

        Returns None if the number does not follow from the steps, or some step could not be converted.
        """
        try:
            return self._ranks(self.steps)[value.index]
        except KeyError:
            return None

    def is_integer(self, value: Ref) -> bool:
        """Whether the value of a step is an integer tensor (int64) in torch. value: a reference to the step."""
        return value.index in self._integers(self.steps)

    def owns(self, value: Any) -> bool:
        """Whether a constant is one of the net's parameters or buffers, or was computed from one."""
        return id(value) in self._own or id(value) in self._learned or self.is_hidden(value)

    def learn(self, value: Any, owned: bool) -> None:
        """Note that a constant is computed from parameters or buffers, so that `owns` is True for its tensors.

        value: the constant that forward() has computed, with all tensors nested in it. owned: whether it was computed
        from a constant for which `owns` is True; if not, this method does nothing.
        """
        if owned:
            self._learned.update({id(part): part for part in leaves(value) if isinstance(part, Tensor)})

    def weight(self, value: Any, what: str = "weight") -> Tensor:
        """Return a constant tensor, detached, for a step to keep; the same tensor always gives the same result.

        A tensor of `root` may share its memory with the result, any other is copied. Raises Unsupported for a value
        that is no constant tensor, and for a tensor that is not dense and plain, is not float32 or float64, or holds
        NaN or infinity. what: the argument's name for the error.
        """
        if isinstance(value, Ref):
            raise Unsupported(f"{what} depends on the net's input", "weights must be constants: parameters or buffers")
        if not isinstance(value, Tensor):
            raise Unsupported(f"{what} must be a tensor, got {self._show(value)}", "give a parameter or a buffer")
        if id(value) not in self._copies:
            self._copies[id(value)] = (value, self._checked(value, what))
        return self._copies[id(value)][1]

    def _checked(self, value: Tensor, what: str) -> Tensor:
        if type(value) not in (Tensor, nn.Parameter) or value.layout != torch.strided or value.is_quantized:
            kind = type(value).__name__ if value.layout == torch.strided else str(value.layout).removeprefix("torch.")
            raise Unsupported(
                f"{what} is no plain tensor but a {kind}", "make it one: weight.to_dense(), full_tensor()"
            )
        if value.dtype not in (torch.float32, torch.float64):
            name = str(value.dtype).removeprefix("torch.")
            raise Unsupported(f"{what} is {name}, float32 or float64 is needed", "convert net.float()")
        # aminmax passes NaN on, and is one pass without a temporary as large as the weights.
        if not value.is_meta and value.numel() and not all(bool(end.isfinite()) for end in torch.aminmax(value)):
            raise Unsupported(f"{what} holds NaN or infinity", "train again, or load an earlier checkpoint")
        return value.detach().contiguous() if id(value) in self._own else value.detach().clone().contiguous()

    def number(self, value: Any, what: str) -> float:
        """Convert `value` to a finite float; raises Unsupported if that fails.

        what: the argument's name for the error.
        """
        self.check_told(value, what)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise Unsupported(f"{what} must be a fixed finite number, got {self._show(value)}", "write the number")
        return float(value)

    def check_told(self, value: Any, what: str) -> None:
        """Raise Unsupported if an argument that a step keeps as a public number is one of the net's secret tensors.

        value: the argument. what: its name for the error.
        """
        if self.is_hidden(value):
            told = f"{what} is a number of a parameter or buffer: it would be shown to parties without the weights"
            raise Unsupported(told, "add it or multiply by it, as in x * self.t, or write the number into the code")

    def is_hidden(self, value: Any) -> bool:
        """Whether a value is a secret tensor of the net, which must not become a Python number in the steps."""
        return self.hidden is not None and self.hidden.owns(value)

    def ints(self, value: Any, n: int, what: str) -> tuple[int, ...]:
        """Convert `value` to a tuple of n Python ints; a single int is repeated.

        what: the argument's name for the error.
        Raises Unsupported if it is neither an int nor n ints.
        """
        items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        items = items * n if len(items) == 1 else items
        if len(items) != n or not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            fixed = f"{what} must be {n} fixed integer(s), got {self._show(value)}"
            raise Unsupported(fixed, "write the number; for a pool over the whole map use adaptive_avg_pool2d(x, 1)")
        return items

    def _show(self, value: Any) -> str:
        if isinstance(value, Ref):
            return {
                TUPLE: "a tuple of tensors",
                SIZE: "a shape",
                INT: "a size",
                BOOL: "a comparison",
                INVERSE: "the inverse of a root",
                PUBLIC: "a public one",
            }.get(self.kind(value), "a tensor")
        if isinstance(value, Tensor):
            return "a constant tensor"
        if isinstance(value, (tuple, list)):
            return "(" + ", ".join(self._show(item) for item in value) + ")"
        return repr(value)


def no_dtype(dtype: Any) -> None:
    """Raise Unsupported if a call has a dtype argument: steps compute in the type of their input."""
    if dtype is not None:
        raise Unsupported(f"dtype={dtype}", "leave dtype out: there is one number type in private inference")


def _holds_ref(value: Any) -> bool:
    if isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    return isinstance(value, Ref) or (isinstance(value, (tuple, list)) and any(_holds_ref(item) for item in value))
