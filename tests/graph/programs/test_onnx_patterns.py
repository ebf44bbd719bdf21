"""Layers that exporters of JAX write out: joined into one step where that is the same function, and left otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor
from torch.nn import functional as F

from hummingbird.errors import HummingbirdError
from hummingbird.graph import problems, run, trace
from hummingbird.graph.programs.onnx import read
from tests.graph.programs.onnx_cases import graph, real, whole

EPS = 1e-6


def wide(value: str, name: str, sizes: tuple[int, ...]) -> tuple[list[onnx.NodeProto], dict[str, Any]]:
    """A value that is reshaped and expanded to the batch and `sizes`, as JAX spreads a sum; the batch is x's."""
    nodes = [
        helper.make_node("Concat", ["batch", f"{name}_sizes"], [f"{name}_shape"], axis=0),
        helper.make_node("Reshape", [value, f"{name}_shape"], [f"{name}_turned"]),
        helper.make_node("Expand", [f"{name}_turned", f"{name}_shape"], [name]),
    ]
    return nodes, {f"{name}_sizes": whole(*sizes)}


def with_batch(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    start = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "one", "zero"], ["batch"]),
    ]
    return start + nodes


LIMITS = {"zero": whole(0), "one": whole(1)}


def norm(sizes: tuple[int, ...], axis: int, divisor: float, spread: tuple[int, ...]) -> onnx.ModelProto:
    """A norm over a dimension, as flax has it: E[x^2] - E[x]^2, and 1 / root times the weight."""
    first, one = wide("mean", "middle", spread)
    second, other = wide("positive", "variance", spread)
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "share"], ["mean"]),
        helper.make_node("Mul", ["x", "x"], ["squares"]),
        helper.make_node("ReduceSum", ["squares", "axis"], ["squares_sum"], keepdims=0),
        helper.make_node("Mul", ["squares_sum", "share"], ["mean_square"]),
        helper.make_node("Mul", ["mean", "mean"], ["square_mean"]),
        helper.make_node("Sub", ["mean_square", "square_mean"], ["difference"]),
        helper.make_node("Max", ["nothing", "difference"], ["positive"]),
        *first,
        *second,
        helper.make_node("Sub", ["x", "middle"], ["less"]),
        helper.make_node("Add", ["variance", "eps"], ["sum_eps"]),
        helper.make_node("Sqrt", ["sum_eps"], ["root"]),
        helper.make_node("Reciprocal", ["root"], ["inverse"]),
        helper.make_node("Mul", ["inverse", "weight"], ["scaled"]),
        helper.make_node("Mul", ["less", "scaled"], ["y"]),
    ]
    constants = {"axis": whole(axis), "share": np.float32(1 / divisor), "nothing": np.float32(0), **LIMITS}
    constants |= {"eps": np.float32(EPS), "weight": weight(sizes, axis).numpy(), **one, **other}
    return graph(with_batch(nodes), {"x": ("n", *sizes)}, constants)


def weight(sizes: tuple[int, ...], axis: int) -> Tensor:
    shape = [1] * (len(sizes) + 1)
    shape[axis] = sizes[axis - 1]
    return torch.linspace(0.5, 2, sizes[axis - 1]).reshape(shape)


@pytest.mark.parametrize(("sizes", "axis", "spread"), [((6,), 1, (1,)), ((6, 4), 1, (1, 4)), ((4, 6), 2, (4, 1))])
def test_a_norm_by_mean_squares_is_one_step(sizes: tuple[int, ...], axis: int, spread: tuple[int, ...]) -> None:
    net = read(norm(sizes, axis, 6, spread))
    steps = trace(net, example=torch.rand(2, *sizes))
    assert [step.op for step in steps].count("norm") == 1 and "square" not in {step.op for step in steps}
    for batch in (1, 3):
        x = 3 * torch.randn(batch, *sizes) + 1
        less = x - x.mean(axis, keepdim=True)
        wanted = less / (less.square().mean(axis, keepdim=True) + EPS).sqrt() * weight(sizes, axis)
        assert torch.allclose(net(x), wanted, atol=1e-5) and torch.allclose(run(steps, x), wanted, atol=1e-5)


def test_norms_and_rows_of_length_1_as_torch_writes_them() -> None:
    """ReduceL2, clipped and expanded to the shape of what it divides; LpNormalization; a root as a power."""
    nodes = [
        helper.make_node("ReduceL2", ["x", "one"], ["norm"], keepdims=1),
        helper.make_node("Clip", ["norm", "least"], ["bounded"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Expand", ["bounded", "shape"], ["wide"]),
        helper.make_node("Div", ["x", "wide"], ["unit"]),
        helper.make_node("LpNormalization", ["x"], ["last"], axis=-1, p=2),
        helper.make_node("Mul", ["x", "x"], ["squares"]),
        helper.make_node("ReduceSum", ["squares", "one"], ["sum"], keepdims=1),
        helper.make_node("Pow", ["sum", "half"], ["root"]),
        helper.make_node("Add", ["unit", "last"], ["both"]),
        helper.make_node("Add", ["both", "root"], ["y"]),
    ]
    constants = {"least": np.float32(1e-12), "half": np.float32(0.4999998), "one": whole(1)}
    net = read(graph(nodes, {"x": ("n", 4, 6)}, constants))
    ops = [step.op for step in trace(net)]
    assert ops.count("normalize") == 2 and ops.count("moment") == 1 and "square" not in ops
    x = torch.randn(3, 4, 6)
    wanted = F.normalize(x, dim=1) + F.normalize(x, dim=2) + x.norm(dim=1, keepdim=True)
    assert torch.allclose(net(x), wanted, atol=1e-5) and torch.allclose(run(trace(net), x), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("divisor", "spread"),
    [
        (5, (1, 4)),  # no mean: the sum of four over five
        (4, (4, 1)),  # the mean of a column is subtracted from a row
    ],
)
def test_what_only_looks_like_a_norm_is_left(divisor: float, spread: tuple[int, ...]) -> None:
    model = norm((4, 4), 1, divisor, spread)
    for name in ("middle", "variance"):  # what the file says of its values is not believed
        model.graph.value_info.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ("n", 1, 4)))
    net = read(model)
    x = torch.randn(3, 4, 4)
    mean, square = x.sum(1) / divisor, x.square().sum(1) / divisor
    middle, variance = (value.reshape(3, *spread) for value in (mean, (square - mean * mean).clamp(min=0)))
    wanted = (x - middle) / (variance + EPS).sqrt() * weight((4, 4), 1)
    assert torch.allclose(net(x), wanted, rtol=1e-4, atol=1e-5)
    assert not {"norm", "batch_norm"} & {step.op for step in trace(net, example=x)}


@pytest.mark.parametrize("added", [1, 2])
def test_a_softmax_by_exp_is_one_step_if_one_dimension_is_reduced(added: int) -> None:
    """added: the dimension of the sum below; the maximum is over dimension 2."""
    first, one = wide("most", "largest", (4, 1))
    second, other = wide("total", "below", (4, 1) if added == 2 else (1, 4))
    nodes = [
        helper.make_node("ReduceMax", ["x", "last"], ["max"], keepdims=0),
        helper.make_node("Max", ["never", "max"], ["most"]),
        *first,
        helper.make_node("Sub", ["x", "largest"], ["less"]),
        helper.make_node("Exp", ["less"], ["exp"]),
        helper.make_node("ReduceSum", ["exp", "axis"], ["total"], keepdims=0),
        *second,
        helper.make_node("Div", ["exp", "below"], ["y"]),
    ]
    constants = {"never": np.float32(-np.inf), "axis": whole(added), "last": whole(2), **LIMITS, **one, **other}
    net = read(graph(with_batch(nodes), {"x": ("n", 4, 4)}, constants))
    x = torch.randn(3, 4, 4)
    exp = (x - x.amax(2, keepdim=True)).exp()
    assert torch.allclose(net(x), exp / exp.sum(added, keepdim=True), atol=1e-6)
    if added == 2:
        assert "softmax" in {step.op for step in trace(net, example=x)}
    else:
        assert problems(net, example=x)


@pytest.mark.parametrize(("cube", "joined"), [(0.044715, True), (0.05, False)])
def test_a_gelu_by_tanh_is_one_step(cube: float, joined: bool) -> None:
    nodes = [
        helper.make_node("Mul", ["cube", "x"], ["a"]),
        helper.make_node("Mul", ["x", "a"], ["b"]),
        helper.make_node("Mul", ["x", "b"], ["c"]),
        helper.make_node("Add", ["x", "c"], ["d"]),
        helper.make_node("Mul", ["root", "d"], ["e"]),
        helper.make_node("Tanh", ["e"], ["f"]),
        helper.make_node("Add", ["ones", "f"], ["g"]),
        helper.make_node("Mul", ["half", "g"], ["h"]),
        helper.make_node("Mul", ["x", "h"], ["y"]),
    ]
    root = np.float32((2 / np.pi) ** 0.5)
    constants = {"cube": np.float32(cube), "root": root, "ones": real(1, 1) * 0 + 1, "half": np.float32(0.5)}
    net = read(graph(nodes, {"x": ("n", 5)}, constants))
    x = 2 * torch.randn(4, 5)
    wanted = 0.5 * x * (1 + torch.tanh(float(root) * (x + cube * x**3)))
    assert torch.allclose(net(x), wanted, atol=1e-5)
    assert ("gelu" in {step.op for step in trace(net, example=x)}) == joined
    if joined:
        assert torch.allclose(wanted, F.gelu(x, approximate="tanh"), atol=1e-5)


def test_long_products_and_circles_are_read_in_time() -> None:
    """A product of powers doubles its paths with each step; a circle has no end."""
    nodes = [helper.make_node("Mul", ["x", "x"], ["p0"])]
    nodes += [helper.make_node("Mul", [f"p{number}"] * 2, [f"p{number + 1}"]) for number in range(50)]
    nodes += [
        helper.make_node("Add", ["x", "p50"], ["sum"]),
        helper.make_node("Mul", ["root", "sum"], ["scaled"]),
        helper.make_node("Tanh", ["scaled"], ["y"]),
    ]
    read(graph(nodes, {"x": ("n", 5)}, {"root": np.float32((2 / np.pi) ** 0.5)}))
    circle = norm((4, 4), 1, 4, (1, 4))
    for node in circle.graph.node:
        if node.op_type == "Reshape":
            node.input[0] = node.output[0]
    with pytest.raises(HummingbirdError, match="Reshape|not computed|order"):
        read(circle)


def test_a_dimension_that_is_no_integer_is_refused() -> None:
    model = norm((4, 4), 1, 4, (1, 4))
    for node in model.graph.node:
        if "squares" in node.input:
            node.input[1] = "share"
    with pytest.raises(HummingbirdError):
        read(model)(torch.randn(2, 4, 4))
