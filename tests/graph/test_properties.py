"""Ranks that are told from steps alone are those of real values, and no operation is without a rule."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hummingbird.graph import OPS, run_all, trace
from hummingbird.graph.ops.dimension_rules import INPUT, Rank
from hummingbird.graph.ops.vocabulary import OPERATIONS
from hummingbird.graph.properties import ranks
from hummingbird.graph.steps import Step, refs
from tests.support.covering import every
from tests.support.operations import Function, cases

CASES = cases()


def test_every_operation_but_sizes_has_a_rule() -> None:
    assert set(OPERATIONS) == set(OPS) | {"batch_norm"}  # which is folded before anything runs
    assert {name for name, op in OPERATIONS.items() if op.dimensions is None} == {"size", "int"}


def check(steps: list[Step], x: Tensor) -> int:
    """How many ranks of tensors are known; all of them are right."""
    known = 0
    for step, rank, value in zip(steps, ranks(steps), run_all(steps, x), strict=True):
        parts = value if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size) else [value]
        for part in parts if isinstance(parts[0], Tensor) else []:
            assert rank in (None, part.dim()) or (rank == INPUT and part.dim() == x.dim()), step
            known += rank is not None
    return known


def reads_known(step: Step, found: list[Rank]) -> bool:
    return all(found[ref.index] is not None for ref in refs(step.inputs))


@pytest.mark.parametrize("name", every(5, [*CASES]))
def test_a_rank_is_that_of_the_value(name: str) -> None:
    case = CASES[name]
    assert check(trace(case.net.eval()), case.x) >= 1  # the input
    with_shapes = trace(case.net, example=case.x)
    assert check(with_shapes, case.x) >= 1
    found = ranks(with_shapes)
    left = {step.op for step, rank in zip(with_shapes, found, strict=True) if rank is None and reads_known(step, found)}
    assert left <= {"size", "int", "squeeze"}  # of all others the rank is known where those of their inputs are


def test_norms_fold_behind_what_keeps_rows_rows_and_only_there() -> None:
    def ops(function: object, *shape: int) -> list[str]:
        torch.manual_seed(0)
        net = nn.Sequential(Function(function), nn.Linear(8, 6), nn.BatchNorm1d(6)).eval()  # type: ignore[arg-type]
        nn.init.uniform_(net[2].running_var, 0.5, 2.0)
        x = torch.randn(shape)
        steps = trace(net, example=x)
        assert torch.allclose(run_all(steps, x)[-1], net(x), atol=1e-5)
        return [step.op for step in steps]

    for function in (
        lambda x: x.flatten(1).abs().roll(1, 1),
        lambda x: torch.maximum(x.sum((2, 3)), x.mean((2, 3))).log_softmax(1),
        lambda x: torch.stack([x, -x], 1).flatten(1)[:, :8],
    ):
        assert "affine" not in ops(function, 3, 8, 1, 1), function
    assert "affine" in ops(lambda x: x.unsqueeze(1).expand(-1, 6, -1), 3, 8)
