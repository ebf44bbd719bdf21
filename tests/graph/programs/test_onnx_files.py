"""ONNX files as nets: names, weights, a free batch, exported nets, and errors for files that cannot be read."""

from __future__ import annotations

import io
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor, nn
from torch.nn import functional as F

from hummingbird.errors import HummingbirdError, InputError, ModelError
from hummingbird.graph import run, trace
from hummingbird.graph.programs.onnx import read
from models import get_model
from tests.graph.programs.onnx_cases import graph, one, real, whole
from tests.support.covering import every


def exported(net: nn.Module, x: Tensor, opset: int = 17) -> onnx.ModelProto:
    """The ONNX model of a net, with a free batch."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has a second exporter, which needs another package
        names: dict[str, Any] = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
        torch.onnx.export(net.eval(), (x,), content, dynamo=False, opset_version=opset, **names)
    return onnx.load_from_string(content.getvalue())


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.group, self.up = nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.Upsample(scale_factor=2)
        self.turned, self.slopes = nn.ConvTranspose2d(8, 4, 3, 2, 1, 1), nn.PReLU(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.slopes(self.turned(nn.functional.silu(self.group(self.conv(x)))))
        y = nn.functional.pixel_shuffle(self.up(y), 2)
        return torch.cat([y.mean((2, 3)), nn.functional.gelu(y).amax((2, 3))], 1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTM(5, 6, batch_first=True, bidirectional=True), nn.GRU(12, 4, batch_first=True)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x)[0])[0][:, -1])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation=nn.functional.gelu)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x + 0).mean(1))


NETS = {
    "layers": (Layers, (3, 8, 8)),
    "recurrent": (Recurrent, (4, 5)),
    "encoder": (Encoder, (6, 16)),
    "digits": (lambda: get_model("digits", 10), (1, 8, 8)),
}


@pytest.mark.parametrize("name", every(2, [*NETS]))
def test_an_exported_net_computes_the_same_for_every_batch(name: str) -> None:
    make, size = NETS[name]
    net = make().eval()
    read_back = read(exported(net, torch.rand(2, *size)))
    assert read_back.program_any_batch and [tuple(x.shape) for x in read_back.program_example] == [(2, *size)]
    x = torch.rand(3, *size)
    with torch.no_grad():
        assert torch.allclose(read_back(x), net(x), atol=1e-5)
        steps = trace(read_back, example=read_back.program_example)
        assert torch.allclose(run(steps, x), net(x), atol=1e-5)


def test_weights_and_layers_keep_their_names() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    found = read(exported(net, torch.rand(2, 3, 4, 4)))
    assert set(found.state_dict()) == set(net.state_dict())
    assert all(torch.equal(found.state_dict()[name], value) for name, value in net.state_dict().items())
    steps = trace(found, example=found.program_example)
    assert [step.op for step in steps] == ["input", "conv", "relu", "flatten", "linear", "output"]
    assert steps[2].name.startswith("1.Relu")


def test_shapes_with_a_free_batch_are_numbers_of_the_trace() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch", "axis"], ["first"]),
        helper.make_node("Slice", ["shape", "two", "end"], ["rest"]),
        helper.make_node("Concat", ["first", "rest", "minus"], ["target"], axis=0),
        helper.make_node("Cast", ["target"], ["cast"], to=onnx.TensorProto.INT64),
        helper.make_node("Reshape", ["x", "cast"], ["turned"]),
        helper.make_node("Expand", ["token", "first3"], ["tokens"]),
        helper.make_node("Concat", ["first", "ones"], ["first3"], axis=0),
        helper.make_node("Concat", ["turned", "tokens"], ["y"], axis=2),
    ]
    nodes[7], nodes[8] = nodes[8], nodes[7]
    constants = {"zero": np.int64(0), "axis": whole(0), "two": whole(2), "end": whole(9), "minus": whole(-1)}
    constants |= {"ones": whole(1, 1), "token": real(1, 4, 1)}
    found = read(graph(nodes, {"x": ("n", 3, 4)}, constants))
    steps = trace(found, example=found.program_example)
    for batch in (1, 2, 5):
        x = torch.rand(batch, 3, 4)
        assert torch.equal(run(steps, x), found(x)) and found(x).shape == (batch, 4, 4)


def test_a_gelu_that_is_written_out_is_one_step() -> None:
    class Written(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sigmoid(x) * x + x * 0.5 * (1 + torch.erf(x / 2**0.5))

    found = read(exported(Written(), torch.rand(2, 3)))
    assert {step.op for step in trace(found, example=found.program_example)} == {
        "input",
        "silu",
        "gelu",
        "add",
        "output",
    }
    x = torch.randn(4, 3)
    assert torch.allclose(found(x), Written()(x), atol=1e-6)
    other = [helper.make_node("Erf", ["x"], ["e"]), helper.make_node("Add", ["e", "one"], ["a"])]
    other += [helper.make_node("Mul", ["x", "a"], ["m"]), helper.make_node("Mul", ["m", "half"], ["y"])]
    kept = read(graph(other, {"x": (2, 3)}, {"one": np.float32(1), "half": np.float32(0.5)}))  # no root of 2: no GELU
    assert torch.allclose(kept(x[:2]), x[:2] * 0.5 * (1 + torch.erf(x[:2])), atol=1e-6)
    (step,) = [step for step in trace(kept, example=kept.program_example) if step.op == "function"]
    assert step.attrs["expression"] == "erf(x)"


def test_a_fixed_batch_stays_fixed_and_open_sizes_need_an_example() -> None:
    relu = [helper.make_node("Relu", ["x"], ["y"])]
    fixed = read(graph(relu, {"x": (1, 3)}, {}))
    assert not fixed.program_any_batch
    with pytest.raises(InputError, match=r"takes the shape \(1, 3\), got \(2, 3\)"):
        trace(fixed, example=torch.ones(2, 3))
    assert read(graph(relu, {"x": ("n", "length")}, {})).program_example is None


def test_what_a_graph_inside_a_graph_reads_is_kept() -> None:
    """The inner If of an If reads the sigmoid of a SiLU, which therefore stays a node of its own."""

    def branch(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(nodes[-1].output[0], onnx.TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [out])

    reading = branch("reading", [helper.make_node("Neg", ["gate"], ["negated"])])
    other = branch("other", [helper.make_node("Abs", ["x"], ["absolute"])])
    inner = helper.make_node("If", ["yes"], ["inner"], then_branch=reading, else_branch=other)
    last = branch("last", [helper.make_node("Neg", ["x"], ["end"])])
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["gate"]),
        helper.make_node("Mul", ["x", "gate"], ["silu"]),
        helper.make_node("If", ["yes"], ["chosen"], then_branch=branch("outer", [inner]), else_branch=last),
        helper.make_node("Add", ["silu", "chosen"], ["y"]),
    ]
    x = torch.randn(3, 4)
    found = read(graph(nodes, {"x": ("n", 4)}, {"yes": np.array(True)}))(x)
    assert torch.allclose(found, F.silu(x) - torch.sigmoid(x), atol=1e-6)


def test_weights_of_other_float_types_become_float32() -> None:
    for dtype in (np.float16, np.float64):
        model = one("MatMul", real(2, 3), real(3, 2).astype(dtype))[0]
        model.graph.input[0].type.tensor_type.elem_type = model.graph.initializer[0].data_type
        (weight,) = read(model).parameters()
        assert weight.dtype == torch.float32 and read(model)(torch.ones(2, 3)).dtype == torch.float32


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    model, _ = one("Gemm", real(3, 4), real(4, 5), real(5))
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    content = path.read_bytes()
    for name, changed, what in (
        ("text", b"not a net", "no ONNX file"),
        ("cut", content[: len(content) // 2], "ONNX"),
        ("empty", b"", "no ONNX file"),
    ):
        (tmp_path / name).write_bytes(changed)
        with pytest.raises(InputError, match=what) as caught:
            read(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value) and caught.value.hint
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "missing.onnx")
    newer = onnx.ModelProto()
    newer.CopyFrom(model)
    newer.opset_import[0].version = 999
    with pytest.raises(InputError, match=r"opset 999, and onnx .* knows up to \d+"):
        read(newer)
    newer.opset_import[0].version = 6
    with pytest.raises(InputError, match="version_converter"):
        read(newer)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert torch.equal(read(path)(torch.ones(3, 4)), read(one_of(content))(torch.ones(3, 4)))
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(InputError, match="in 'weights.bin', which is missing"):
        read(path)


def one_of(content: bytes) -> onnx.ModelProto:
    return onnx.load_from_string(content)


def test_operators_that_are_not_known_are_listed_by_their_nodes() -> None:
    nodes = [
        helper.make_node("FusedConv", ["x"], ["a"], name="/net/fused", domain="com.microsoft"),
        helper.make_node("QuantizeLinear", ["a", "s"], ["b"], name="/net/quantize"),
        helper.make_node("NonMaxSuppression", ["x", "b"], ["y"], name="/net/boxes"),
    ]
    model = graph(nodes, {"x": (1, 2, 4)}, {"s": np.float32(1)})
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(ModelError) as caught:
        read(model)
    found = {problem.name: problem.what for problem in caught.value.problems}
    assert found["net.fused"] == "operator FusedConv of com.microsoft"
    assert found["net.quantize"] == "operator QuantizeLinear" and "quantized" in caught.value.problems[1].hint
    assert found["net.boxes"] == "operator NonMaxSuppression is not known"
    wrong = one("ArgMax", real(2, 3), select_last_index=1)[0]
    with pytest.raises(InputError, match=r"ArgMax: select_last_index=1 \(at node\)"):
        read(wrong)(torch.rand(2, 3))


def test_damaged_files_end_in_an_error_of_the_package(tmp_path: Path) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["a"], ["b"])]
    nodes += [helper.make_node("Reshape", ["b", "s"], ["c"]), helper.make_node("MatMul", ["c", "m"], ["y"])]
    weights = {"w": real(2, 2, 3, 3), "s": whole(0, -1), "m": real(32, 3)}
    content = graph(nodes, {"x": (2, 2, 4, 4)}, weights).SerializeToString()
    endings = set()
    for _ in range(150):
        changed = bytearray(content)
        for _ in range(random.randint(1, 4)):
            changed[random.randrange(len(changed))] = random.randrange(256)
        path = tmp_path / "net.onnx"
        path.write_bytes(bytes(changed[: random.choice([len(changed), random.randrange(len(changed))])]))
        try:
            with torch.no_grad():
                read(path)(torch.rand(2, 2, 4, 4))
            endings.add("read")
        except HummingbirdError as error:
            endings.add(type(error).__name__)
    assert {"InputError", "read"} <= endings


def test_a_short_file_cannot_ask_for_large_constants() -> None:
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])]
    net = read(graph(nodes, {"x": (1, 1)}, {"s": whole(1 << 20, 1 << 20)}))
    with pytest.raises(InputError, match="known numbers"):
        net(torch.rand(1, 1))
