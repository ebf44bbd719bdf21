"""Steps of a net: each names its operation, the earlier steps that it reads, and its attributes.

Step i reads steps 0..i-1 only, so a walk from front to back evaluates the net; `print(*steps, sep="\n")` shows it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.errors import InputError


@dataclass(frozen=True)
class Ref:
    """A reference to the value of step number `index`."""

    index: int

    def __str__(self) -> str:
        return f"%{self.index}"


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a net: `str(step)` reads `conv1 = conv(%0; weight=float32(64, 3, 7, 7), ...)`.

    name: qualified name, unique in the list ("layer1.0.relu"; "relu#1" for the second call of the module "relu").
    op: the name of an operation that `hummingbird.graph.ops` defines.
    inputs: references to earlier values, or nested tuples of them; Python ints where the operation takes a shape.
    attrs: the operation's attributes; tensors among them are detached float32 or float64 copies.
    """

    name: str
    op: str
    inputs: tuple[Any, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [", ".join(str(value) for value in self.inputs)]
        parts += [", ".join(f"{key}={_show(value)}" for key, value in self.attrs.items())]
        return f"{self.name} = {self.op}({'; '.join(part for part in parts if part)})"


def _show(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{tuple(value.shape)}"
    return type(value).__name__ if isinstance(value, nn.Module) else repr(value)


def refs(value: Any) -> Iterator[Ref]:
    """Yield every reference in a step's inputs, in order, also from nested tuples."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from refs(item)


def map_refs(value: Any, function: Callable[[Ref], Any]) -> Any:
    """Return a step's inputs with every reference replaced by what `function` returns for it, also in nested tuples.

    value: the inputs; what is no reference stays.
    """
    if isinstance(value, Ref):
        return function(value)
    return tuple(map_refs(item, function) for item in value) if isinstance(value, tuple) else value


def compact(steps: Sequence[Step], forward: Mapping[int, int] | None = None) -> list[Step]:
    """Return the steps that the last step needs, renumbered; the net's inputs stay even where nothing reads them.

    forward: maps i to j: whoever reads step i reads step j instead, before steps are dropped. The inputs stay because
    the caller supplies a value for each.
    """
    forward = forward or {}
    steps = [_renumbered(step, lambda index: forward.get(index, index)) for step in steps]
    needed = {len(steps) - 1} | {index for index, step in enumerate(steps) if step.op in ("input", "public")}
    for index in reversed(range(len(steps))):
        if index in needed:
            needed.update(ref.index for ref in refs(steps[index].inputs))
    number = {old: new for new, old in enumerate(sorted(needed))}
    return [_renumbered(steps[old], number.__getitem__) for old in number]


def _renumbered(step: Step, number: Callable[[int], int]) -> Step:
    return replace(step, inputs=map_refs(step.inputs, lambda ref: Ref(number(ref.index))))


def fingerprint(steps: Sequence[Step], *, weights: bool = True) -> str:
    """Return a hash of the steps' names, operations, inputs and attributes: SHA-256 in hex, equal on every machine.

    weights: hash the tensors' values too; else only types and shapes. Raises InputError for values on the meta device.
    """
    digest = hashlib.sha256(b"hummingbird-graph-1")
    for step in steps:
        _hash(digest, (step.name, step.op, step.inputs, step.attrs), weights)
    return digest.hexdigest()


def _hash(digest: Any, value: Any, weights: bool) -> None:
    # Every item is preceded by its type and length, so that no two different values feed the same bytes.
    if isinstance(value, (tuple, list)):
        digest.update(f"tuple {len(value)};".encode())
        for item in value:
            _hash(digest, item, weights)
    elif isinstance(value, dict):
        _hash(digest, ("dict", *sorted(value.items(), key=lambda item: item[0])), weights)
    elif isinstance(value, nn.Module):
        _hash(digest, (type(value).__qualname__, repr(value), dict(value.state_dict())), weights)
    elif isinstance(value, Tensor):
        digest.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
        if weights and value.is_meta:
            raise InputError("weights on the meta device have no values", hint="fingerprint(steps, weights=False)")
        if weights:
            array = value.detach().cpu().to(memory_format=torch.contiguous_format).reshape(-1).numpy()
            digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    else:
        text = f"{type(value).__name__} {value!r}"
        digest.update(f"{len(text)} {text};".encode())
