"""Graphs of one ONNX operator with drawn attributes, for tests that compare them with onnx's own evaluator."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Case = tuple[onnx.ModelProto, list[Any]]
OPSET = 22
TYPES = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL}


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    constants: Mapping[str, Any],
    outputs: Sequence[str] = ("y",),
    opset: int = OPSET,
    kinds: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model of these nodes; inputs are float32 unless `kinds` has their type."""
    given = [
        helper.make_tensor_value_info(name, (kinds or {}).get(name, TensorProto.FLOAT), list(shape))
        for name, shape in inputs.items()
    ]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in outputs]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    body = helper.make_graph(list(nodes), "net", given, made, weights)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def one(op: str, x: Any, *constants: Any, outputs: int = 1, opset: int = OPSET, **attributes: Any) -> Case:
    """A model of one operator of x, whose other inputs are constants; None is an input that is left out."""
    names = ["x", *("" if value is None else f"c{n}" for n, value in enumerate(constants))]
    results = ["y", "y1", "y2"][:outputs]
    node = helper.make_node(op, names, results, name="node", **attributes)
    kept = {f"c{n}": value for n, value in enumerate(constants) if value is not None}
    kinds = {"x": TYPES[x.dtype.kind]}
    return graph([node], {"x": x.shape}, kept, results, opset, kinds), [x]


def real(*shape: int) -> Any:
    return np.random.randn(*shape).astype(np.float32)


def whole(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def conv() -> Case:
    n, group = random.choice([1, 2, 3]), random.choice([1, 2])
    kernel = [random.randint(1, 3) for _ in range(n)]
    auto = random.choice(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
    more: dict[str, Any] = {"auto_pad": auto, "strides": [random.randint(1, 3) for _ in range(n)], "group": group}
    if auto == "NOTSET":
        more["pads"] = [random.randint(0, 2) for _ in range(2 * n)]
        more["dilations"] = [random.randint(1, 2) for _ in range(n)]
    weight = real(4, 4 // group, *kernel)
    sides = (7, 9) if n < 3 else (5, 6)  # onnx's evaluator is slow
    return one("Conv", real(2, 4, *[random.randint(*sides) for _ in range(n)]), weight, real(4), **more)


def conv_transpose() -> Case:
    n, group = random.choice([1, 2, 3]), 1  # onnx's evaluator knows one group
    kernel, strides = [random.randint(2, 3) for _ in range(n)], [random.randint(1, 3) for _ in range(n)]
    more: dict[str, Any] = {"strides": strides, "group": group, "pads": [random.randint(0, 1) for _ in range(2 * n)]}
    more["output_padding"] = [random.randint(0, stride - 1) for stride in strides]
    sides = [random.randint(3, 5) for _ in range(n)]
    return one("ConvTranspose", real(2, 4, *sides), real(4, 3, *kernel), real(3 * group), **more)


def average() -> Case:  # onnx's evaluator errs in maxima beyond two dimensions
    n = random.choice([1, 2, 3])
    x = real(2, 3, *[random.randint(4, 6) for _ in range(n)])
    if random.random() < 0.2:
        return one("GlobalAveragePool", x)
    more: dict[str, Any] = {"kernel_shape": [random.randint(2, 3) for _ in range(n)]}
    more |= {"strides": [random.randint(1, 3) for _ in range(n)], "pads": [random.randint(0, 1) for _ in range(2 * n)]}
    return one("AveragePool", x, **more, count_include_pad=random.randint(0, 1))


def gemm() -> Case:
    turned = {"transA": random.randint(0, 1), "transB": random.randint(0, 1)}
    a, b = real(3, 4), real(4, 5)
    c = random.choice([None, real(5), real(1, 5), real(3, 1), real(3, 5), real(1)])
    factors = {"alpha": random.choice([1.0, 0.5]), "beta": random.choice([1.0, 2.0, 0.0])}
    return one(
        "Gemm", a.T.copy() if turned["transA"] else a, b.T.copy() if turned["transB"] else b, c, **turned, **factors
    )


def slices() -> Case:
    x, axes = real(3, 5, 4), random.sample([0, 1, 2, -1, -2], 2)
    if len({axis % 3 for axis in axes}) < 2:
        axes = [0, 1]
    ends = [random.choice([-9, -2, 0, 1, 3, 1 << 62, -(1 << 62)]) for _ in axes]
    starts, steps = [random.randint(-3, 6) for _ in axes], [random.choice([1, 2, -1, -2]) for _ in axes]
    return one("Slice", x, whole(*starts), whole(*ends), whole(*axes), whole(*steps))


def pads() -> Case:
    mode = random.choice(["constant", "reflect", "edge", "wrap"])
    sides = whole(*[random.randint(0, 2) for _ in range(4)])
    value = np.float32(1.5) if mode == "constant" else None
    return one("Pad", real(2, 3, 4, 5), sides, value, whole(*random.choice([(2, 3), (1, -1), (3, 2)])), mode=mode)


def gather() -> Case:
    axis = random.choice([0, 1, -1])
    return one("Gather", real(3, 4, 5), np.random.randint(-3, 3, random.choice([(), (2,), (2, 2)])), axis=axis)


def resize() -> Case:
    place = random.choice(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
    mode = random.choice(
        ["nearest", "linear", "cubic"] if place in ("half_pixel", "align_corners") else ["nearest", "linear"]
    )
    more = {"coordinate_transformation_mode": place, "mode": mode}
    if mode == "nearest":
        more["nearest_mode"] = random.choice(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
    n = 2 if mode == "cubic" else random.choice([1, 2, 3])
    x = real(1, 2, *[random.randint(4, 6) for _ in range(n)])  # halves of 3 are 1 or 1.5 by the standard's words
    if random.random() < 0.5 and mode != "cubic" and place != "align_corners":
        scales = np.array([1, 1, *[random.choice([1, 2, 1.5, 0.5, 0.75]) for _ in range(n)]], np.float32)
        return one("Resize", x, None, scales, **more)
    sizes = whole(1, 2, *[random.randint(2, 9) for _ in range(n)])
    return one("Resize", x, None, None, sizes, **more)


def reduced() -> Case:
    op = random.choice(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"])
    axes = random.choice([None, whole(1), whole(-1), whole(0, 2), whole(2, 1), whole(1, -1)])
    return one(op, real(2, 3, 4), axes, keepdims=random.randint(0, 1))


def recurrent() -> Case:
    op = random.choice(["LSTM", "GRU", "RNN"])
    gates, way = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], random.choice(["forward", "reverse", "bidirectional"])
    count, hidden = (2 if way == "bidirectional" else 1), 3
    bias = random.choice([None, 0.5 * real(count, 2 * gates * hidden)])
    states = [0.5 * real(count, 2, hidden) for _ in range(2 if op == "LSTM" else 1)] if random.random() < 0.5 else []
    more: dict[str, Any] = {"hidden_size": hidden, "direction": way}
    if op == "GRU":
        more["linear_before_reset"] = random.randint(0, 1)
    weights = real(count, gates * hidden, 4), real(count, gates * hidden, hidden)
    return one(op, real(5, 2, 4), *weights, bias, None, *states, outputs=3 if op == "LSTM" else 2, **more)


def normed() -> Case:
    op = random.choice(["LayerNormalization", "InstanceNormalization", "GroupNormalization", "BatchNormalization"])
    x, epsilon = real(2, 4, 3, 5), random.choice([1e-5, 1e-2])
    if op == "LayerNormalization":
        axis = random.choice([-1, 1, 2])
        return one(op, x, real(*x.shape[axis:]), real(*x.shape[axis:]), axis=axis, epsilon=epsilon)
    if op == "GroupNormalization":
        return one(op, x, real(4), real(4), num_groups=2, epsilon=epsilon)
    statistics = (real(4), real(4) ** 2) if op == "BatchNormalization" else ()
    return one(op, x, real(4), real(4), *statistics, epsilon=epsilon)


def softmax() -> Case:
    return one(random.choice(["Softmax", "LogSoftmax"]), real(2, 3, 4), axis=random.choice([0, 1, 2, -1]))


def activation() -> Case:
    op, more = random.choice(
        [
            ("LeakyRelu", {"alpha": 0.3}),
            ("Elu", {"alpha": 0.7}),
            ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
            ("Celu", {"alpha": 0.5}),
        ]
        + [
            ("Selu", {"alpha": 1.1, "gamma": 1.2}),
            ("ThresholdedRelu", {"alpha": 0.4}),
            ("Gelu", {"approximate": "tanh"}),
            ("HardSwish", {}),
        ]
        + [("Softplus", {}), ("Mish", {}), ("Erf", {}), ("Gelu", {}), ("Softsign", {}), ("Round", {}), ("Sign", {})]
    )
    return one(op, 3 * real(2, 3, 4), **more)


def prelu() -> Case:
    return one("PRelu", real(2, 3, 4, 4), random.choice([real(1), real(3, 1, 1), real(4), real(4, 1), real(3, 4, 4)]))


def integer() -> Case:
    op, more = random.choice([("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1}), ("Mul", {}), ("Sub", {})])
    return one(op, np.random.randint(-9, 9, (3, 4)), whole(2, -3, 4, -5), **more)


def moved() -> Case:
    x = real(2, 4, 6, 4)
    return random.choice(
        [
            one("Transpose", x, perm=random.sample(range(4), 4)),
            one("Reshape", x, whole(0, -1, 4)),
            one("Flatten", x, axis=random.choice([0, 1, 2, 4, -1])),
            one("DepthToSpace", x, blocksize=2, mode=random.choice(["DCR", "CRD"])),
            one("SpaceToDepth", x, blocksize=2),
            one("Tile", x, whole(1, 2, 1, 2)),
            one("Expand", real(4, 1, 3), whole(2, 1, 5, 1)),
            one("Split", x, whole(1, 3), axis=1, outputs=2),
            one("Split", real(7, 2), axis=0, num_outputs=2, outputs=2),
            one(
                "TopK",
                np.random.randint(0, 4, (3, 6)).astype(np.float32),
                whole(3),
                largest=random.randint(0, 1),
                outputs=2,
            ),
            one("CumSum", x, np.int64(2), exclusive=random.randint(0, 1), reverse=random.randint(0, 1)),
            one("Trilu", real(3, 4, 4), np.int64(random.randint(-2, 2)), upper=random.randint(0, 1)),
            one("ArgMax", real(2, 5, 3), axis=random.choice([0, 1, -1]), keepdims=random.randint(0, 1)),
            one(
                "Clip",
                x,
                *random.choice([(np.float32(-0.5), None), (None, np.float32(0.5)), (np.float32(-1), np.float32(1))]),
            ),
            one("Unsqueeze", real(2, 3), whole(0, -1)),
            one("Squeeze", real(1, 3, 1, 2), random.choice([None, whole(0), whole(-2)])),
        ]
    )


DRAWS: tuple[Callable[[], Case], ...] = (
    conv,
    conv_transpose,
    average,
    gemm,
    slices,
    pads,
    gather,
    resize,
    reduced,
    recurrent,
    normed,
    softmax,
    activation,
    prelu,
    integer,
    moved,
)
