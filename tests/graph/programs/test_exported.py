"""Exported programs: read as a torch module, they are the net from which they were exported, in clear and as steps."""

from __future__ import annotations

import json
import shutil
import subprocess
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export, save

import hummingbird
from hummingbird import graph
from hummingbird.errors import HummingbirdError, InputError, ModelError
from hummingbird.graph.programs import ProgramNet, aten, load_program
from hummingbird.graph.steps import Step
from tests.fuzz.make import recipe
from tests.support.covering import every
from tests.support.operations import cases

CASES = cases()
BATCH = {0: Dim("batch")}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """torch's exporter warns of its own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def program(net: nn.Module, *inputs: Tensor) -> ExportedProgram:
    """The net's program for batches of any size, or for this batch if the exporter finds that it depends on it."""
    try:
        return export(net.eval(), inputs, dynamic_shapes=tuple(BATCH for _ in inputs))
    except Exception:  # of many kinds, none documented
        return export(net.eval(), inputs)


def twice(x: Tensor) -> Tensor:
    """At least two images: torch.export takes a single one for a constant."""
    return torch.cat([x, x]) if len(x) == 1 else x


def same(net: nn.Module, read: nn.Module, x: Tensor, error: float = 1e-5) -> list[Step]:
    """A program that was read, and its steps, which are returned, compute what the net does."""
    with torch.no_grad():
        wanted, found = net(x.clone()), read(x.clone())
    assert torch.allclose(wanted, found, atol=error)
    steps = graph.trace(read)
    assert torch.allclose(wanted, graph.run(steps, x), atol=error * max(1.0, float(wanted.abs().max())))
    return steps


@pytest.mark.parametrize("name", every(24, [*CASES]))
def test_every_operation(name: str) -> None:
    net, x, _ = CASES[name]
    same(net, load_program(program(net, twice(x))), twice(x), 1e-4)


# Parts of attention and norms, and writes into parts of a tensor, have no private form by themselves.
PARTS = ["circular", "instance_norm", "attention", "attention, causal", "bicubic", "cosine"]
PARTS += ["nearest of volumes", "trilinear by 2", "trilinear, corners"]


@pytest.mark.parametrize("name", every(48, sorted(CASES.keys() - set(PARTS))))
def test_core_operations(name: str) -> None:
    net, x, _ = CASES[name]
    same(net, load_program(program(net, twice(x)).run_decompositions()), twice(x), 1e-4)


@pytest.mark.parametrize("name", every(8, PARTS))
def test_parts_of_what_is_known_as_a_whole_are_refused_with_a_hint(name: str) -> None:
    net, x, _ = CASES[name]
    read = load_program(program(net, twice(x)).run_decompositions())
    with pytest.raises(ModelError, match="run_decompositions" if name.startswith("attention") else ""):
        graph.trace(read)


class Masked(nn.Module):
    """Attention whose weights are asked for: the exporter adds its mask by baddbmm."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.attention, self.mask = nn.MultiheadAttention(4, 2, batch_first=True), mask

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(2 * x, x, x, attn_mask=self.mask)[0]  # type: ignore[no-any-return]


@pytest.mark.slow
def test_masks_beside_weights_that_are_asked_for() -> None:
    later = torch.ones(3, 3, dtype=torch.bool).triu(1)
    x = torch.randn(2, 3, 4)
    for mask in (later, torch.zeros(3, 3).masked_fill(later, -torch.inf), torch.randn(3, 3)):
        net = Masked(mask).eval()
        read = load_program(program(net, twice(x)))
        assert (graph.run(graph.trace(read), x) - net(x)).abs().max() < 1e-5
    nothing = program(Masked(torch.ones(3, 3, dtype=torch.bool)).eval(), twice(x))
    with pytest.raises(ModelError, match="hides all keys"):
        graph.trace(load_program(nothing))


def compare(number: int) -> bool:
    """Whether random net `number` can be exported and converted; then its program is the same net."""
    net, x = recipe(number).build()
    try:
        wanted = graph.trace(net, example=twice(x))
        made = program(net, twice(x))
    except Exception:  # the exporter's are of many kinds
        return False
    steps = graph.trace(load_program(made))
    a, b = graph.run(wanted, twice(x)), graph.run(steps, twice(x))
    assert torch.allclose(a, b, atol=1e-2 * max(1.0, float(a.abs().max()))), number
    return True


@pytest.mark.parametrize("first", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_random_nets(first: int) -> None:
    numbers = range(first, 300 if first else 4)
    assert sum(map(compare, numbers)) > len(numbers) // 2


def inner(name: str, size: int = 64, **options: Any) -> Any:
    """A net of torchvision with random weights, its batch norms not trivial, and images."""
    torch.manual_seed(0)
    net = getattr(torchvision.models, name)(**options).eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.running_mean, 0.0, 0.1)
    return net, torch.randn(2, 3, size, size)


NETS: dict[str, dict[str, Any]] = {
    "squeezenet1_1": {},
    "resnet18": {},
    **{name: {} for name in "alexnet vgg11 vgg11_bn vgg13 vgg16 vgg19_bn resnet34 resnet50 resnext50_32x4d".split()},
    **{name: {} for name in "wide_resnet50_2 squeezenet1_0 densenet121 densenet169 mobilenet_v2".split()},
    **{name: {} for name in "mobilenet_v3_small mobilenet_v3_large efficientnet_b0 efficientnet_b1".split()},
    **{name: {} for name in "efficientnet_v2_s shufflenet_v2_x0_5 shufflenet_v2_x1_0 mnasnet0_5 mnasnet1_0".split()},
    **{name: {} for name in "regnet_x_400mf regnet_y_400mf regnet_x_800mf convnext_tiny convnext_small".split()},
    "googlenet": {"size": 96, "init_weights": False},
    "inception_v3": {"size": 96, "init_weights": False},
    "swin_t": {},
    "swin_s": {},
    "regnet_y_800mf": {},
    "maxvit_t": {"size": 224},
    "vit_b_16": {"size": 224},
    "vit_b_32": {"size": 224},
    "vit_l_32": {"size": 224},
    "resnet101": {},
}
# Their steps have the same names too, so windows that were found for the module fit the program.
NAMED = ("resnet", "squeezenet", "vgg", "alexnet", "wide", "resnext", "mobilenet_v2", "mnasnet")


@pytest.mark.parametrize("name", every(40, [*NETS]))
def test_nets_of_torchvision(name: str) -> None:
    net, x = inner(name, **NETS[name])
    read = load_program(program(net, x))
    steps = same(net, read, x, 1e-3)
    assert steps[0].attrs["shape"] == (None, *x.shape[1:])
    if name.startswith(NAMED):
        assert graph.fingerprint(steps) == graph.fingerprint(graph.trace(net, example=x))


class Odd(nn.Module):
    """Two inputs in a dict and a list, a flag, a shared layer, a buffer, a constant, results in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, x: dict[str, Tensor], rest: list[Tensor], flag: bool = True, *, shift: float = 0.5) -> Any:
        y = F.relu(self.layer(self.norm(self.layer(x["x"])))) * self.scale
        y = y + rest[0] if flag else y
        y += shift
        return {"sum": y + torch.tensor([1.0, 0.0, 0.0, 2.0]), "flat": y.reshape(y.shape[0], 2, -1).flatten(1)}


def test_arguments_and_results_keep_their_form() -> None:
    net = Odd().eval()
    x, rest = torch.randn(3, 4), [torch.randn(3, 4)]
    shapes: Any = {"x": {"x": BATCH}, "rest": [BATCH], "flag": None, "shift": None}
    read = load_program(export(net, ({"x": x}, rest, True), {"shift": 0.5}, dynamic_shapes=shapes))
    other, more = torch.randn(5, 4), [torch.randn(5, 4)]
    with torch.no_grad():
        wanted, found = net({"x": other}, more), read({"x": other}, more, True, shift=0.5)
    assert wanted.keys() == found.keys() and all(torch.allclose(wanted[key], found[key]) for key in wanted)
    steps = graph.trace(read)
    assert [step.attrs["names"] for step in steps if step.op == "input"] == [("x", "rest")]
    assert {name for name, _ in read.named_parameters()} == {name for name, _ in net.named_parameters()}
    with pytest.raises(TypeError, match="exported with flag=True, got False"):
        read({"x": other}, more, False, shift=0.5)


def test_a_batch_that_is_not_free_stays_the_example_s() -> None:
    net, x = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval(), torch.randn(2, 3, 4)
    read = load_program(export(net, (x,)))
    assert graph.trace(read)[0].attrs["shape"] == (2, 3, 4)
    for other in (torch.randn(3, 3, 4), torch.randn(2, 4, 3)):
        with pytest.raises(InputError, match=r"takes the shape \(2, 3, 4\), got.*\n.*dynamic_shapes"):
            graph.trace(read, example=other)
        with pytest.raises(InputError, match=r"takes the shape \(2, 3, 4\)"):
            read(other)
    with pytest.raises(InputError, match=r"takes the shape \(any, 3, 4\)"):
        graph.trace(load_program(program(net, x)), example=torch.randn(2, 3, 5))
    assert graph.trace(load_program(program(net, x)))[0].attrs["shape"] == (None, 3, 4)


def test_half_precision_becomes_float32() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()).bfloat16().eval(), torch.randn(2, 4)
    read = load_program(export(net, (x.bfloat16(),), dynamic_shapes=(BATCH,)))
    assert {weight.dtype for weight in read.parameters()} == {torch.float32}
    with torch.no_grad():
        assert torch.allclose(read(x), net.float()(x), atol=1e-6)


def test_gradients_flags_and_autocast() -> None:
    class Frozen(nn.Module):
        def __init__(self, kind: torch.dtype | None) -> None:
            super().__init__()
            self.layer, self.kind = nn.Linear(4, 4), kind

        def forward(self, x: Tensor) -> Tensor:
            if self.kind is None:
                with torch.no_grad():
                    x = self.layer(x)
            else:
                with torch.autocast("cpu", self.kind):
                    x = self.layer(x)
            return F.relu(x)

    net, x = Frozen(None).eval(), torch.randn(2, 4)
    same(net, load_program(program(net, x)), x)
    with pytest.raises(ModelError, match="autocast in the net"):
        load_program(program(Frozen(torch.bfloat16), x))


class Bad(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) + 1


def test_a_refusal_names_the_operation_and_its_place_in_the_source() -> None:
    read = load_program(program(nn.Sequential(nn.ReLU(), Bad(lambda x: torch.fft.fft(x).real)), torch.randn(2, 4)))
    with pytest.raises(ModelError, match=r"1\.fft.*test_exported.py:\d+: "):
        graph.trace(read)


def test_control_flow_on_values_is_refused() -> None:
    net = Bad(lambda x: torch.cond(x.sum() > 0, lambda y: y.relu(), lambda y: -y, (x,)))
    with pytest.raises(ModelError, match="cond"):
        load_program(program(net, torch.randn(2, 4)))


def test_a_net_in_training_is_refused() -> None:
    made = export(nn.Sequential(nn.BatchNorm1d(4)).train(), (torch.randn(2, 4),), dynamic_shapes=(BATCH,))
    with pytest.raises(ModelError, match="statistics of the batch"):
        graph.trace(load_program(made))
    with pytest.raises(ModelError, match="writes into"):
        load_program(made.run_decompositions())


@pytest.mark.parametrize("layer", [nn.Dropout2d(), nn.Dropout2d(inplace=True), nn.FeatureAlphaDropout(inplace=True)])
def test_dropouts_of_channels_do_nothing(layer: nn.Module) -> None:
    net, x = nn.Sequential(nn.Conv2d(1, 2, 3), layer, nn.Flatten()).eval(), torch.randn(2, 1, 5, 5)
    same(net, load_program(program(net, x)), x)


def test_a_copy_is_another_tensor() -> None:
    def written(x: Tensor) -> Tensor:
        y = x.clone()
        y += 1
        return x * 3 + y.contiguous() + x.view(-1, 2, 2).flatten(1)

    net, x = Bad(written), torch.randn(2, 4)
    same(net, load_program(program(net, x)), x)
    same(net, load_program(program(net, x).run_decompositions()), x)


def test_an_operation_that_is_read_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(aten._SPECIAL, "relu", torch.tanh)
    with pytest.raises(ModelError, match="differs from torch's own run"):
        load_program(program(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)))


def test_an_exported_program_is_a_net() -> None:
    made = program(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4))
    for convert in (hummingbird.convert_model, hummingbird.simulate, hummingbird.validate_model):
        convert(made)
    assert load_program(made) is load_program(made)


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "net.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(program(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Flatten()), torch.randn(2, 4)), path)
    return path


def changed(
    file: Path, path: Path, part: str, change: Callable[[bytes], bytes], more: dict[str, bytes] | None = None
) -> Path:
    """A copy of a file with one of its parts changed, and further ones."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(path, "w") as new:
        root = old.namelist()[0].partition("/")[0]
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, change(content) if name.endswith(part) else content)
        for name, content in (more or {}).items():
            new.writestr(f"{root}/{name}", content)
    return path


def test_a_file(file: Path) -> None:
    read = load_program(file)
    assert isinstance(read, ProgramNet) and read(torch.randn(3, 4)).shape == (3, 4)
    assert len(graph.trace(read)) == 5


def refused(path: Path, words: str) -> None:
    with pytest.raises(HummingbirdError, match=words) as error:
        load_program(path)
    assert error.value.where == str(path) and error.value.hint


def test_files_that_could_run_code_are_refused_before_torch_reads_them(file: Path, tmp_path: Path) -> None:
    evil, ran = b"cos\nsystem\n(S'touch %s'\ntR." % str(tmp_path / "ran").encode(), tmp_path / "ran"

    def pickled(content: bytes) -> bytes:
        config = json.loads(content)
        next(iter(config["config"].values()))["use_pickle"] = True
        return json.dumps(config).encode()

    def sized(content: bytes) -> bytes:
        model = json.loads(content)
        code = f"__import__('os').system('touch {ran}')"
        model["range_constraints"] = {code: next(iter(model["range_constraints"].values()))}
        return json.dumps(model).encode()

    same_content = lambda content: content  # noqa: E731
    new = tmp_path / "bad.pt2"
    refused(changed(file, new, "weights_config.json", pickled), "is pickled")
    for name in ("data/constants/custom_obj_0", "DATA/CONSTANTS/CUSTOM_OBJ_0"):
        refused(changed(file, new, "-", same_content, {name: evil}), "pickled object")
    refused(changed(file, new, "sample_inputs/model.pt", lambda _: evil), "no file of torch.export.save")
    refused(changed(file, new, "models/model.json", sized), "no arithmetic of sizes")
    for folder in ("weights", "constants"):  # the form of torch 2.8, which later releases read too
        more = {f"data/{folder}/model.pt": evil}
        refused(changed(file, new, "-", same_content, more), "no file of torch.export.save")
    # torch finds an entry whatever the letters' case is, and takes another one than Python does.
    refused(changed(file, new, "-", same_content, {"DATA/SAMPLE_INPUTS/MODEL.PT": evil}), "one folder, each once")
    old = file.with_suffix(".old.pt2")  # torch reads the entries of an earlier form if others are missing
    changed(file, old, "-", same_content)
    with zipfile.ZipFile(old, "a") as archive:
        archive.writestr("version", "8.20")
        archive.writestr("serialized_state_dict.pt", evil)
    refused(old, "one folder")
    with zipfile.ZipFile(old, "a") as archive:
        archive.writestr("other/data/weights/model_weights_config.json", "{}")
    refused(old, "one folder")
    assert not ran.exists()
    assert subprocess.run(["true"]).returncode == 0  # what the code above would have used works here


def test_damaged_files_are_errors(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    refused(path, "No such file")
    path.write_bytes(b"PK\x03\x04 and nothing else")
    refused(path, "no file of torch.export.save")
    content = file.read_bytes()
    generator = torch.Generator().manual_seed(0)
    for _ in range(12):
        at = int(torch.randint(len(content), (), generator=generator))
        path.write_bytes(content[:at] if at % 2 else content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
        try:
            load_program(path)  # the change may lie in a weight
        except HummingbirdError:
            pass
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/version", "3")
    refused(path, "archive_format")
    other = shutil.copy(file, tmp_path / "net.weights")
    refused(Path(other), "a file of kind .weights, expected one of .onnx, .pt2")
    with pytest.raises(InputError, match="no program: int"):
        load_program(3)
