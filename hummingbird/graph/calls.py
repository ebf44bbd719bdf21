"""A call of a converted net: arguments packed into the one tensor that its steps read, and results unpacked.

Several private inputs are packed into one tensor (batch, values), one row for each image, and so are several results.
Public inputs stay as they are, in the order of the steps "public".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hummingbird.errors import InputError, ModelError, Problem
from hummingbird.graph.example import is_public
from hummingbird.graph.interpreter import run_all
from hummingbird.graph.ops.public import is_short
from hummingbird.graph.steps import Step, refs
from hummingbird.structure import PUBLIC, TENSOR, Structure, flatten, odd, places, rebuild, spelled


class Inputs(NamedTuple):
    """The tensors of one call of a converted net.

    leaves: all input tensors, in the order of the call's arguments. private: those that the parties hold as shares.
    public: those that every party has. batch: number of images; 0 for a net that was traced without an example.
    """

    leaves: list[Any]
    private: list[Any]
    public: list[Tensor]
    batch: int

    def packed(self) -> Tensor:
        """Pack the private inputs, which must be plain tensors and not shares, into one tensor (batch, values).

        A single private input stays as it is; without any the result is (batch, 0).
        """
        return packed(self.private) if self.private else torch.zeros(self.batch, 0)


def inputs(
    steps: Sequence[Step], args: Sequence[Any], kwargs: dict[str, Any], private: Callable[[Any], bool]
) -> Inputs:
    """Find the input tensors among the arguments of a call of a converted net, check them, and return them as `Inputs`.

    steps: the net's. args, kwargs: the call's arguments. private: a function that returns whether an argument is a
    private input, such as a tensor of shares. Raises InputError if the arguments differ from the example's in
    structure, shapes or public constants.
    """
    attrs = next(step.attrs for step in steps if step.op == "input")
    if "call" not in attrs:
        if len(args) != 1 or kwargs:
            hint = "convert the net with example=, a tuple of arguments or a dict of keyword arguments"
            raise InputError(f"one input, got {len(args)} and {len(kwargs)} by name", where="input", hint=hint)
        return Inputs(list(args), list(args), [], 0)
    free = [step.attrs for step in steps if step.op == "public"]
    structure, leaves = flatten((tuple(args), kwargs), private, is_public if free else lambda value: False)
    structure = spelled(structure, is_short)
    if not _same(structure, attrs["call"]):
        names = [*attrs["names"], *(public["title"] for public in free)]
        form = f"the inputs {', '.join(map(repr, names))} in the positions of the example"
        hint = "other public arguments are part of the converted net: convert it again to change them"
        raise InputError(f"expected {form}, and the same public arguments", where="input", hint=hint)
    found, public = [x for x in leaves if private(x)], [x for x in leaves if not private(x)]
    sizes = [tuple(x.size()) for x in found]
    rows: list[tuple[str, int]] = []
    for name, shape, size in zip(attrs["names"], attrs["shapes"], sizes, strict=True):
        if not size or size[1:] != shape:
            what = f"{name!r} has shape {size}, expected (batch, {', '.join(map(str, shape))})"
            raise InputError(what, where="input", hint="inputs have the shapes of the example")
        rows.append((name, size[0]))
    for wanted, x in zip(free, public, strict=True):
        _check_public(wanted, x)
        if wanted["shape"][:1] == (None,):
            rows.append((wanted["title"], x.shape[0]))
    for name, count in rows:
        if count != rows[0][1]:
            what = f"{name!r} is a batch of {count}, and {rows[0][0]!r} one of {rows[0][1]}"
            raise InputError(what, where="input", hint="the first dimension of every input is the batch")
    batch = rows[0][1] if rows else attrs["shape"][0]
    return Inputs(leaves, found, public, batch)


def _check_public(wanted: dict[str, Any], x: Tensor) -> None:
    """Raise InputError unless the public input `x` has the type and the shape that this input had in the example.

    wanted: the attributes of the step "public" that stands for this input.
    """
    shape = tuple(x.shape)
    kept, name = str(x.dtype).removeprefix("torch."), wanted["title"]
    fits = len(shape) == len(wanted["shape"]) and all(
        size is None or size == got for size, got in zip(wanted["shape"], shape, strict=True)
    )
    if not fits or kept != wanted["dtype"]:
        shown = "(" + ", ".join("batch" if size is None else str(size) for size in wanted["shape"]) + ")"
        what = f"{name!r} is {kept} of shape {shape}, expected {wanted['dtype']} of shape {shown}"
        raise InputError(what, where="input", hint="public inputs have the types and shapes of the example")


def on_meta(steps: Sequence[Step], shape: Sequence[int]) -> list[Tensor]:
    """Make inputs of a net's steps on torch's meta device, for a run that only computes shapes: they have no memory.

    Returns the private input, then the public ones. shape: the private input's shape, with the batch first.
    """
    public = [step.attrs for step in steps if step.op == "public"]
    shapes = [[shape[0] if size is None else size for size in attrs["shape"]] for attrs in public]
    types = [getattr(torch, attrs["dtype"]) for attrs in public]
    found = [torch.empty(size, dtype=kept, device="meta") for size, kept in zip(shapes, types, strict=True)]
    return [torch.empty(tuple(shape), device="meta"), *found]


def packed_shape(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the shape of the one tensor into which private inputs of these shapes are packed."""
    if len(shapes) == 1:
        return tuple(shapes[0])
    return shapes[0][0], sum(math.prod(shape[1:]) for shape in shapes)


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """Pack several private inputs into one tensor (batch, values); a single one stays as it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat([x.reshape(len(x), -1) for x in tensors], 1)


def unpacked(steps: Sequence[Step], out: Tensor, shapes: Sequence[Sequence[int]], wrap: Callable[[Tensor], Any]) -> Any:
    """Unpack the net's results, and return them in the structure of forward()'s result.

    out: the packed results, (batch, values). shapes: the shape of each result, from `shapes_for`. wrap: a function that
    is applied to each result.
    """
    structure = steps[-1].attrs.get("structure")
    if structure is None:
        return wrap(out)
    parts = out.split([math.prod(shape[1:]) for shape in shapes], 1)
    return rebuild(structure, iter([wrap(part.reshape(shape)) for part, shape in zip(parts, shapes, strict=True)]))


def separate(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with an output step that reads all results as a tuple, and not one tensor into which they are
    packed.

    Nets that are sent to others have this form. A net that returns one tensor by itself stays as it is. Raises
    ModelError if constants stand among the results that JSON cannot hold.
    """
    *rest, last = steps
    if "structure" not in last.attrs:
        return list(steps)
    if (other := odd(last.attrs["structure"])) is not None:
        hint = "return tensors, numbers, words and None, in tuples, lists and dicts"
        raise ModelError([Problem("net", f"the net returns, beside tensors, a {type(other).__name__}", hint)])
    return [*rest[:-1], replace(last, inputs=rest[-1].inputs)]


def shapes_for(steps: Sequence[Step], shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Compute the shape of each result that the net packs into its output, for an input of this shape, batch first.

    Returns [] if the net returns one tensor by itself, which is not packed.
    """
    if "structure" not in steps[-1].attrs:
        return []
    bare = weightless(steps)
    values = run_all(bare, *on_meta(bare, shape))
    pack = steps[next(refs(steps[-1].inputs)).index]
    return [tuple(values[ref.index].shape) for ref in refs(pack.inputs)]


def named_inputs(steps: Sequence[Step]) -> list[tuple[str, tuple[int, ...] | None]]:
    """List the private inputs of a net as pairs: a unique name, and the input's shape for one image.

    The shape is None if the net was traced without an example and so takes any shape.
    """
    first = next(step for step in steps if step.op == "input")
    if "call" not in first.attrs:
        return [(first.name, None)]
    names = first.attrs["names"]
    several = [name if names.count(name) == 1 else f"{name}[{names[:at].count(name)}]" for at, name in enumerate(names)]
    return list(zip(several, first.attrs["shapes"], strict=True))


def named_results(steps: Sequence[Step], shape: Sequence[int]) -> tuple[Structure, list[tuple[str, tuple[int, ...]]]]:
    """Return how the net's results are nested, and a list with the name and the shape of each tensor among them.

    shape: the shape of the net's input, with the batch first.
    """
    structure = steps[-1].attrs.get("structure", TENSOR)
    if structure == TENSOR:
        bare = weightless(steps)
        return structure, [("result", tuple(run_all(bare, *on_meta(bare, shape))[-1].shape))]
    return structure, list(zip(places(structure), shapes_for(steps, shape), strict=True))


def weightless(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with their tensors on the meta device, so that running them computes shapes only."""
    moved = [{name: value.to("meta") for name, value in s.attrs.items() if isinstance(value, Tensor)} for s in steps]
    return [replace(step, attrs=step.attrs | attrs) for step, attrs in zip(steps, moved, strict=True)]


def _same(a: Structure, b: Structure) -> bool:
    if a[0] != b[0] or a in (TENSOR, PUBLIC):
        return bool(a[0] == b[0])
    if a[0] == "numbers":
        return a == b
    if a[0] == "constant":
        return _equal(a[1], b[1])
    return a[1] == b[1] and len(a[2]) == len(b[2]) and all(_same(x, y) for x, y in zip(a[2], b[2], strict=True))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a, b.to(a.device)))
    equal: Callable[[], Any] = lambda: a == b  # noqa: E731
    return type(a) is type(b) and bool(equal())
