"""A net as data: the steps of a traced net, before batch norms are folded, as a module.

The module needs no code of the original net, computes what that net computes at inference, and is traced to the same
steps with the same names. So every function that takes a net takes this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird.graph import calls
from hummingbird.graph.example import is_private
from hummingbird.graph.interpreter import OPS, Interpreter
from hummingbird.graph.schema import check
from hummingbird.graph.steps import Step


class SavedStep(nn.Module):
    """A module that computes one step; the step's tensors are buffers with the names of its attributes."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.name, self.op, self.inputs = step.name, step.op, step.inputs
        self._attrs = {name: None if isinstance(value, Tensor) else value for name, value in step.attrs.items()}
        for name, value in step.attrs.items():
            if isinstance(value, Tensor):
                self.register_buffer(name, value)

    @property
    def attrs(self) -> dict[str, Any]:
        """Return the step's attributes, with the tensors that the buffers have now."""
        return {name: self._buffers.get(name, value) for name, value in self._attrs.items()}

    def forward(self, *values: Any) -> Any:
        """Compute the operation as `hummingbird.graph.run` does, on the values that the step reads."""
        return _batch_norm(self.attrs, *values) if self.op == "batch_norm" else OPS[self.op](self.attrs, *values)

    def extra_repr(self) -> str:
        return self.op


class SavedNet(nn.Module):
    """A net made of steps, as a module, for inference only: it has no parameters, and train() changes nothing.

    steps: as traced, before batch norms are folded. Submodules have the names of the steps. Raises InputError for steps
    that are no valid net (`schema.check`).
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__()
        check(steps)
        self._by_name = {step.name: SavedStep(step) for step in steps}
        for name, module in self._by_name.items():
            _attach(self, name, module)
        self.eval()

    @property
    def steps(self) -> list[Step]:
        """Return the net's steps, with the tensors that the modules have now."""
        return [Step(step.name, step.op, step.inputs, step.attrs) for step in self._by_name.values()]

    def step(self, name: str) -> SavedStep:
        """Return the submodule that computes the step with this name."""
        return self._by_name[name]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Compute the net's result for the arguments of the original net. Raises as `hummingbird.graph.run`."""
        steps, shapes = self.steps, list[tuple[int, ...]]()

        def compute(number: int, step: SavedStep, arguments: tuple[Any, ...]) -> Any:
            if step.op == "pack":
                shapes[:] = [tuple(part.shape) for part in arguments[0]]
            return step(*arguments)

        net = Interpreter(tuple(self._by_name.values()))
        given = calls.inputs(steps, inputs, named, is_private)
        values = net.start(given.packed(), *given.public)
        net.run(values, compute)
        return calls.unpacked(steps, values[len(steps) - 1], shapes, lambda part: part)


def _batch_norm(a: dict[str, Any], x: Tensor) -> Tensor:
    mean, var, weight, bias = (None if a[name] is None else a[name].to(x) for name in ("mean", "var", "weight", "bias"))
    return F.batch_norm(x, mean, var, weight, bias, False, 0.0, a["eps"])


def _attach(root: nn.Module, name: str, module: nn.Module) -> None:
    """Register a module in `root` under a qualified name.

    If a container of that name exists, the module replaces it and takes over its children.
    """
    *path, leaf = name.split(".")
    for part in path:
        if part not in root._modules:
            root._modules[part] = nn.Module()
        root = root._modules[part]  # type: ignore[assignment]
    before = root._modules.get(leaf)
    if before is not None:
        module._modules.update(before._modules)
    root._modules[leaf] = module
