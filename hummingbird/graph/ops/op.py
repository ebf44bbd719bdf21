"""One operation of nets: a single `Op`, beside its rules, holds everything that the graph knows of it.

A module of this folder ends with up to three lists. OPS: its operations. SPELLINGS: names of torch that its rules
express by operations of other modules. REFUSED: names without a private form, and what to write instead.
`vocabulary.py` collects the lists, and all tables of the graph follow from them: rules by torch's names (trace.py),
meanings (interpreter.py), what a saved net may hold (schema.py), ranks and integers (properties.py), the batch's
dimension (rowwise.py) and hints (hints.py). A new operation needs its `Op` in a module here, and its private layer in
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
    """The names by which nets call an operation in torch, and the rule that turns such a call's arguments into steps.

    rule: takes the `StepBuilder`, then the parameters of torch's function by their names.
    names: names in torch, in torch.nn.functional and of tensor methods, each with and without the trailing underscore
        of the in-place form.
    modules: types of modules, each with the attributes that the rule takes as parameters.
    functions: further function objects.
    methods: names of tensor methods only; they take precedence over `names`.
    operators: names in Python's `operator`; the in-place form is included where there is one.
    """

    rule: Rule
    names: str = ""
    modules: Mapping[type[nn.Module], str] = field(default_factory=dict)
    functions: tuple[Any, ...] = ()
    methods: str = ""
    operators: str = ""


@dataclass(frozen=True, eq=False)
class Op:
    """An operation that steps may have, with all that the graph knows of it.

    name: the `op` of its steps.
    meaning: computes a step's value in plain torch, meaning(attrs, *values); all private versions follow it. It moves
        constants among the attributes to the input's device and type (`like`), so that steps run in float64, on a GPU,
        or on the meta device. None: the operation is folded before anything runs.
    dimensions: the rule for the number of dimensions of a value (dimension_rules.py); None for sizes, which are no
        tensors.
    spellings: torch's names for the operation.
    inputs: the kinds of a step's inputs, in the words of schema.py: "x", "x x?", "xs", "x size*".
    attrs: the attributes in a saved net, NAME=KIND in the words of schema.py, NAME?=KIND for an optional one; None if
        no saved net may have the operation.
    kinds: tests of values, for words in `attrs` that schema.py does not define.
    check: raises ValueError for a saved step whose attributes do not fit together.
    batch: the rule for the batch's dimension in a value (batch_rules.py); None where no rule proves that the images of
        a batch are computed independently.
    view: whether a value may share memory with the input, as in torch (alias.py).
    makes: the kind of a value (build.py), or a function from the attributes to the kind.
    integers: how the operation treats integers, int64 in torch (properties.py). "": its result is real. "kept":
        integers stay integers. "promoted": they stay integers unless a constant has a fraction. "rounded": torch rounds
        its result. "made": its result is integer, whatever its input. "neutral": a later step that reads its value
        beside integers still has an integer result.
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
        """Return the kind, such as "tensor" or "size", of the value of a step with this operation and these
        attributes.
        """
        return self.makes if isinstance(self.makes, str) else self.makes(attrs)


@dataclass(frozen=True, eq=False)
class Refused:
    """Parts of torch that have no private form, with the hint that says what to write instead of them.

    modules: types of modules; subclasses are refused too. names: names of functions and methods.
    """

    hint: str
    modules: tuple[type[Any], ...] = ()
    names: str = ""


# Shared by the meanings of several modules ---------------------------------------------------------------------------


def like(constant: Any, x: Tensor) -> Any:
    """Return a constant that a step combines with x; a tensor is first moved to the device of x.

    A tensor also gets the type of x if x is floating-point. Other constants are returned unchanged.
    """
    if not isinstance(constant, Tensor):
        return constant
    return constant.to(device=x.device, dtype=x.dtype if x.is_floating_point() else constant.dtype)  # argmax: int64


def check_batch(a: Attrs, x: Tensor) -> None:
    """Raise InputError unless x has the shape (batch, channels, *space) that a layer with these attributes takes.

    space: one dimension for each number in the attribute `stride`, or in `output_size` of a layer without stride.
    """
    space = len(a["stride"] if "stride" in a else a["output_size"])
    if x.dim() != space + 2:
        raise InputError(
            f"a layer of {space} spatial dimension(s) takes {space + 2} dimensions, (batch, channels, ...), got shape "
            f"{tuple(x.shape)}",
            hint="give a batch: for one image, x.unsqueeze(0)",
        )
