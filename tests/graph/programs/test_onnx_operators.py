"""Each ONNX operator computes what onnx's own evaluator does, over its attributes."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from hummingbird.errors import HummingbirdError
from hummingbird.graph.programs.onnx import arithmetic, read
from hummingbird.graph.programs.onnx.values import OPERATORS, Operator
from tests.graph.programs import onnx_cases as cases
from tests.graph.programs.onnx_cases import graph, one, real, whole

# float32: sums of some ten products of numbers below 10, each rounded by 2^-24 of itself, in any order.
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


def computed(model: Any, inputs: list[Any]) -> list[Any]:
    with torch.no_grad():
        found = read(model)(*map(torch.from_numpy, inputs))
    return [value.numpy() for value in (found if isinstance(found, tuple) else (found,))]


def differ(model: Any, inputs: list[Any]) -> str:
    """The first difference between a model's results and those of onnx's evaluator; "" if there is none."""
    names = [value.name for value in model.graph.input]
    wanted = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    for mine, theirs in zip(computed(model, inputs), wanted, strict=True):
        if mine.shape != theirs.shape or mine.dtype.kind != np.asarray(theirs).dtype.kind:
            return f"{mine.shape} {mine.dtype}, expected {theirs.shape} {theirs.dtype}"
        if not np.allclose(mine, theirs, **CLOSE):
            return f"an error of {np.abs(mine - theirs).max()}"
    return ""


@pytest.mark.parametrize("draw", cases.DRAWS, ids=lambda draw: draw.__name__)
def test_an_operator_computes_the_same_over_its_attributes(draw) -> None:
    for _ in range(30):
        model, inputs = draw()
        assert not differ(model, inputs), str(model.graph.node[0])


def test_a_changed_meaning_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_factors(A: Any, B: Any, C: Any = None, *, alpha: float = 1.0, beta: float = 1.0, **more: Any) -> Any:
        return arithmetic.gemm(A, B, C, constant=(False, True, True), **more)

    function = without_factors
    changed = Operator(function, 13)
    changed.__dict__["parameters"] = OPERATORS["Gemm"].parameters - {"constant"}
    monkeypatch.setitem(OPERATORS, "Gemm", changed)
    assert "an error of" in differ(*one("Gemm", real(3, 4), real(4, 5), alpha=0.5))


def test_versions_of_an_operator_have_their_own_meaning() -> None:
    x = real(2, 3, 4)
    old, new = (computed(*one("Softmax", x, opset=opset))[0] for opset in (11, 13))
    assert np.allclose(old, np.exp(x) / np.exp(x).sum((1, 2), keepdims=True), atol=1e-6)
    assert np.allclose(new, np.exp(x) / np.exp(x).sum(2, keepdims=True), atol=1e-6)
    y = real(1, 4, 3, 3)
    assert np.allclose(computed(*one("Clip", x, opset=6 + 1, min=-0.5, max=0.5))[0], x.clip(-0.5, 0.5))
    upsampled = computed(*one("Upsample", y, np.array([1, 1, 2, 2], np.float32), opset=9, mode="nearest"))[0]
    assert np.array_equal(upsampled, y.repeat(2, 2).repeat(2, 3))


def test_what_the_evaluator_does_not_know_follows_the_standard() -> None:
    x = np.arange(5, dtype=np.float32)
    for start, end, step, places in ((-9, -9, -1, [0]), (9, 1, -2, [4, 2]), (-2, -(1 << 62), -1, [3, 2, 1, 0])):
        assert computed(*one("Slice", x, whole(start), whole(end), whole(0), whole(step)))[0].tolist() == places
    model = one("Pad", real(2, 3), whole(0, -1, 0, 2), np.float32(7))
    (padded,), y = computed(*model), model[1][0]
    assert np.array_equal(padded, np.pad(y[:, 1:], ((0, 0), (0, 2)), constant_values=7))
    # ceil_mode with pads on one side: windows at -1, 1, 3 of 5 values; the average counts what is inside.
    row = np.arange(1, 6, dtype=np.float32).reshape(1, 1, 5)
    shape = {"kernel_shape": [2], "strides": [2], "pads": [1, 0], "ceil_mode": 1}
    assert computed(*one("MaxPool", row, **shape))[0].tolist() == [[[1, 3, 5]]]
    assert computed(*one("AveragePool", row, **shape))[0].tolist() == [[[1, 2.5, 4.5]]]
    assert computed(*one("AveragePool", row, **shape, count_include_pad=1))[0].tolist() == [[[0.5, 2.5, 4.5]]]
    image = real(1, 2, 7, 6)
    sides = torch.nn.functional.pad(torch.from_numpy(image), (0, 1, 1, 2), value=-torch.inf)  # left, right, top, bottom
    wanted = torch.nn.functional.max_pool2d(sides, 3, 2)
    assert np.array_equal(
        computed(*one("MaxPool", image, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 2, 1]))[0], wanted
    )
    volume = torch.randn(1, 2, 5, 6, 4)
    found = computed(*one("MaxPool", volume.numpy(), kernel_shape=[2, 3, 2], strides=[2, 2, 1], pads=[0, 1, 0] * 2))[0]
    assert np.array_equal(found, torch.nn.functional.max_pool3d(volume, (2, 3, 2), (2, 2, 1), (0, 1, 0)))
    assert np.array_equal(computed(*one("GlobalMaxPool", volume.numpy()))[0], volume.amax((2, 3, 4), keepdim=True))
    for auto, pads in (("SAME_UPPER", [0, 1, 1, 1]), ("SAME_LOWER", [1, 1, 0, 1])):  # of 7 x 6 values to 4 x 2
        for op in ("MaxPool", "AveragePool"):
            same, given = ({"auto_pad": auto}, {"pads": pads})
            window = {"kernel_shape": [2, 5], "strides": [2, 3]}
            assert np.array_equal(
                computed(*one(op, image, **window, **same))[0], computed(*one(op, image, **window, **given))[0]
            )
    y, w = torch.randn(2, 4, 5), torch.randn(4, 3, 3)  # two groups
    found = computed(*one("ConvTranspose", y.numpy(), w.numpy(), strides=[2], pads=[1, 1], group=2))[0]
    assert np.allclose(found, torch.nn.functional.conv_transpose1d(y, w, None, 2, 1, groups=2), atol=1e-5)


def test_pools_have_the_windows_of_the_standard() -> None:
    """By a loop over windows: onnx's evaluator fails for some pads."""
    for _ in range(20):
        size, kernel, stride = random.randint(5, 9), random.randint(2, 4), random.randint(1, 3)
        before, behind, ceil, counted = (random.randint(0, 1) for _ in range(4))
        x = real(1, 2, size)
        reach = size + before + behind - kernel
        count = (-(-reach // stride) if ceil else reach // stride) + 1
        count -= (count - 1) * stride >= size + before  # no window begins behind the values
        most, mean = [], []
        for start in (number * stride - before for number in range(count)):
            inside = x[:, :, max(start, 0) : min(start + kernel, size)]
            length = min(start + kernel, size + behind) - start if counted else inside.shape[2]
            most.append(inside.max(2))
            mean.append(inside.sum(2) / length)
        more = {"kernel_shape": [kernel], "strides": [stride], "pads": [before, behind], "ceil_mode": ceil}
        assert np.array_equal(computed(*one("MaxPool", x, **more))[0], np.stack(most, 2)), more
        average = computed(*one("AveragePool", x, **more, count_include_pad=counted))[0]
        assert np.allclose(average, np.stack(mean, 2), **CLOSE), (more, counted)


def test_an_if_takes_the_branch_of_its_condition() -> None:
    def branch(op: str) -> Any:
        made = helper.make_tensor_value_info(f"{op}_out", TensorProto.FLOAT, [])
        return helper.make_graph([helper.make_node(op, ["x"], [f"{op}_out"])], op, [], [made])

    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["width"]),
        helper.make_node("Equal", ["width", "three"], ["is"]),
        helper.make_node("If", ["is"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg")),
    ]
    model = graph(nodes, {"x": (2, "width")}, {"one": np.int64(1), "three": np.int64(3)})
    for width in (3, 4):
        assert not differ(model, [real(2, width)])


def test_random_chains_of_operators_compute_the_same() -> None:
    for _ in range(20):
        nodes, constants, name = [], {}, "x"
        for number in range(random.randint(2, 6)):
            op = random.choice(
                ["Relu", "Conv", "Mul", "Add", "Transpose", "Sigmoid", "ReduceMean", "Max", "Sub", "Pow"]
            )
            inputs, more, out = [name], {}, f"v{number}"
            if op == "Conv":
                constants[f"w{number}"], inputs = real(4, 4, 1, 1), [name, f"w{number}"]
            elif op in ("Mul", "Add", "Max", "Sub"):
                constants[f"w{number}"] = random.choice([real(1), real(4, 1, 1), np.float32(0.5)])
                inputs = random.choice([[name, f"w{number}"], [f"w{number}", name], [name, name]])
            elif op == "Pow":
                constants[f"w{number}"], inputs = np.float32(2), [name, f"w{number}"]
            elif op == "Transpose":
                more["perm"] = [0, 1, 3, 2]
            elif op == "ReduceMean":
                constants[f"w{number}"], inputs = whole(2), [name, f"w{number}"]
            nodes.append(helper.make_node(op, inputs, [out], **more))
            name = out
        model = graph(nodes, {"x": (2, 4, 5, 5)}, constants, [name])
        assert not differ(model, [real(2, 4, 5, 5)]), str(model.graph.node)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_cases_of_the_onnx_standard() -> None:
    """onnx's cases of its operators: a result is right, or the case is refused with an error of this package."""
    from onnx.backend.test.case.node import collect_testcases

    right: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for case in collect_testcases(None):
        for inputs, outputs in case.data_sets if case.model is not None else ():
            if not all(isinstance(x, np.ndarray) and x.dtype.kind in "fiub" for x in (*inputs, *outputs)):
                continue
            op = case.model.graph.node[0].op_type
            try:
                found = computed(
                    case.model, [x.astype(np.float32) if x.dtype.kind == "f" else x.copy() for x in inputs]
                )
            except HummingbirdError:
                refused[op] += 1
                continue
            for mine, theirs in zip(found, outputs, strict=True):
                # case.rtol is of float16 in some cases; averages are written with four digits
                tolerance = 1e-2 if theirs.dtype == np.float16 else 1e-3
                good = np.allclose(
                    mine.astype(float), theirs.astype(float), tolerance, 1e-2 * tolerance, equal_nan=True
                )
                assert mine.shape == theirs.shape and good, case.name
            right[op] += 1
    assert sum(right.values()) > 850
    assert {"Conv", "MaxPool", "LSTM", "Resize", "Slice", "Attention", "Einsum", "Pad", "Gather", "TopK"} <= set(right)
