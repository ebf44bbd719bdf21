"""One operation of nets: everything that the graph knows of it stands in one `Op`, beside its rules.

A room of this folder ends with up to three lists. OPS has its operations; SPELLINGS the names of torch that its rules
write in operations of others; REFUSED the names that have no private form, with what to write instead. `vocabulary.py`
collects them, and every table of the graph follows: rules by torch's names (trace.py), meanings (run.py), what a saved
net may hold (schema.py), numbers of dimensions (dimensions.py), where the batch is (rowwise.py), integers
(integer_values.py) and hints (hints.py). A new operation is its `Op` in a room, and its private layer in
`hummingbird/mpc/plan/builders.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from hummingbird.errors import InputError
from hummingbird.graph.build import TENSOR
from hummingbird.graph.ops.batch_rules import BatchRule
from hummingbird.graph.ops.dimension_rules import DimensionRule
from hummingbird.graph.steps import Step

Rule = Callable[..., Any]
Attrs = dict[str, Any]
Integers = Literal["", "kept", "promoted", "rounded", "made", "neutral"]


@dataclass(frozen=True, eq=False)
class Spelling:
    """How nets call an operation in torch, and the rule that turns the arguments of such a call into steps.

    rule: takes the `StepBuilder`, then the parameters of torch's function by their names.
    names: looked up in torch, in torch.nn.functional and among the tensor methods, each with and without the trailing
        underscore of the in-place form.
    modules: types of modules, each with those of its attributes that the rule takes as parameters.
    functions: other functions. methods: names of tensor methods alone, which come before `names`.
    operators: names in Python's `operator`, with the in-place form where it has one.
    """

    rule: Rule
    names: str = ""
    modules: Mapping[type[nn.Module], str] = field(default_factory=dict)
    functions: tuple[Any, ...] = ()
    methods: str = ""
    operators: str = ""


@dataclass(frozen=True, eq=False)
class Op:
    """An operation that steps may have.

    name: the step's `op`.
    meaning: its value in plain torch, meaning(attrs, *values); all private versions follow it. Constants among the
        attributes go to the input's device and type (`like`), so that steps run in float64, on a GPU, or on the meta
        device. None: it is folded before anything runs.
    dimensions: the number of dimensions of its value (dimension_rules.py); None for sizes, which are no tensors.
    spellings: torch's names for it.
    inputs: the kinds of what it reads, in words of schema.py: "x", "x x?", "xs", "x size*".
    attrs: its attributes in a saved net, NAME=KIND in words of schema.py, "NAME?=KIND" where it may be missing; None
        where no saved net has the operation.
    kinds: tests of values for words in `attrs` that schema.py does not have.
    check: raises ValueError for a saved step whose attributes do not fit together.
    batch: where the batch of its inputs is in its value (batch_rules.py); None where no rule proves that images stay
        apart.
    view: whether its value may share the memory of its input, as torch has it (alias.py).
    makes: the kind of its value (build.py), or a function that gives it from the attributes.
    integers: what it does to whole numbers, which torch has as int64 (integer_values.py). "": it makes reals.
        "kept": they stay whole. "promoted": so they do but beside a constant with a fraction. "rounded": torch rounds
        its result. "made": it makes whole numbers. "neutral": whole numbers stay whole beside its value.
    """

    name: str
    meaning: Callable[..., Any] | None
    dimensions: DimensionRule | None
    spellings: Sequence[Spelling] = ()
    inputs: str = "x"
    attrs: str | None = ""
    kinds: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    check: Callable[[Step], None] | None = None
    batch: BatchRule | None = None
    view: bool = False
    makes: str | Callable[[Attrs], str] = TENSOR
    integers: Integers = ""

    def kind(self, attrs: Attrs) -> str:
        """The kind of the value of a step with these attributes."""
        return self.makes if isinstance(self.makes, str) else self.makes(attrs)


@dataclass(frozen=True, eq=False)
class Refused:
    """Names of torch without a private form, and the hint that says what to write instead.

    modules: types of modules, and with them their subclasses. names: of functions and methods.
    """

    hint: str
    modules: tuple[type[Any], ...] = ()
    names: str = ""


# What meanings of several rooms need --------------------------------------------------------------------------------


def like(constant: Any, x: Tensor) -> Any:
    """A constant on the device of x and in its type."""
    if not isinstance(constant, Tensor):
        return constant
    return constant.to(device=x.device, dtype=x.dtype if x.is_floating_point() else constant.dtype)  # argmax: int64


def check_batch(a: Attrs, x: Tensor) -> None:
    """InputError unless x is a batch for a layer with this stride or output size: (batch, channels, *space)."""
    space = len(a["stride"] if "stride" in a else a["output_size"])
    if x.dim() != space + 2:
        raise InputError(
            f"a layer of {space} spatial dimension(s) takes {space + 2} dimensions, (batch, channels, ...), got shape "
            f"{tuple(x.shape)}",
            hint="give a batch: for one image, x.unsqueeze(0)",
        )
