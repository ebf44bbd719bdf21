"""TorchScript nets: scripted, traced and frozen ones compute what the module computes, as programs and as steps.

A program calls torch's own functions, so its results are equal bit for bit. Steps have batch norms folded: FOLDED, as
in tests/graph/ops/test_vocabulary.py.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

import hummingbird
from hummingbird import he
from hummingbird.channel import interleave
from hummingbird.convert import build
from hummingbird.errors import InputError, ModelError
from hummingbird.graph import problems, run, trace
from hummingbird.graph.programs import aten, from_object
from hummingbird.graph.programs.script_values import _format
from hummingbird.graph.programs.torchscript import ScriptedNet, read
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.simulation.simulate import Parties
from tests.support.covering import covering

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
FOLDED = 1e-5


class Block(nn.Module):
    def __init__(self, double: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.double = double

    def scaled(self, x: Tensor) -> Tensor:
        return x * 2.0 if self.double else x

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm(self.conv(x)))
        y += self.scaled(x)
        return y


class Net(nn.Module):
    """Branches on flags and sizes, a loop over a ModuleList, methods, a dict as result, an input with a default."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(False), Block(True)])
        self.head = nn.Linear(4, 3)
        self.register_buffer("shift", torch.tensor([0.5, -0.5, 0.25]))
        self.sizes = [1, 2]

    def forward(self, x: Tensor, gain: float = 0.5) -> dict[str, Tensor]:
        for block in self.blocks:
            x = block(x)
        if x.shape[2] > 4:
            x = F.max_pool2d(x, 2)
        else:
            x = -x
        total = x.mean(dim=[2, 3])
        parts: list[Tensor] = []
        for size in self.sizes:
            parts.append(self.head(total) * size)
        return {"sum": (parts[0] + parts[1]) * gain + self.shift, "last": 1.0 - parts[-1]}


class Reader(nn.Module):
    """A recurrent net that asks for the sizes of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(4, 5, batch_first=True, bidirectional=True), nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        y, _ = self.cell(x.reshape(batch, steps, width))
        return self.head(y[:, steps // 2]).softmax(1)


class Counting(nn.Module):
    """A while loop, slices and an assertion."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 8, "eight columns"
        at = 0
        while at < 2:
            x = torch.relu_(self.linear(x))
            at += 1
        a, b = torch.chunk(x, 2, dim=1)
        return torch.cat([a, b[:, 1:]], 1)


MADE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "net": (Net, (2, 4, 6, 6)),
    "recurrent": (Reader, (2, 3, 4)),
    "loop": (Counting, (3, 8)),
}
HOW: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "scripted": lambda net, x: torch.jit.script(net),
    "frozen": lambda net, x: torch.jit.freeze(torch.jit.script(net)),
    "traced": lambda net, x: torch.jit.trace(net, x, strict=False),
}


def made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    kind, shape = MADE[name]
    net = kind().eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return net, torch.randn(shape)


def flat(result: Any) -> list[Tensor]:
    return list(result.values()) if isinstance(result, dict) else [result]


def packed(result: Any) -> Tensor:
    """Return a result as steps compute it: all tensors of a dict side by side."""
    return torch.cat([part.flatten(1) for part in flat(result)], 1) if isinstance(result, dict) else result


def close(found: Any, expected: Any, bound: float) -> None:
    assert type(found) is type(expected)
    for one, other in zip(flat(found), flat(expected), strict=True):
        assert (one - other).abs().max() <= bound * other.abs().max()


def agrees(module: Any, x: Tensor) -> ScriptedNet:
    """Compare the program of a module, and its steps, with the module; return the program."""
    with torch.no_grad():
        net, expected = ScriptedNet(module), module(x)
        close(net(x), expected, 0)
        steps = trace(net, example=x)
        close(run(steps, x), packed(expected), FOLDED)
        assert steps[0].attrs["shape"][0] is None  # a batch of any size
        both = torch.cat([x, x + 1])
        close(run(steps, both), packed(module(both)), FOLDED)
    return net


@covering("name, how", MADE, HOW)
def test_programs_and_their_steps_compute_what_the_module_computes(name: str, how: str) -> None:
    net, x = made(name)
    agrees(HOW[how](net, x), x)


@pytest.mark.parametrize("how", ["traced", pytest.param("scripted", marks=pytest.mark.slow)])
def test_layers_and_weights_have_the_names_of_the_net(how: str) -> None:
    net, x = made("net")
    program = ScriptedNet(HOW[how](net, x))
    for name in ("conv", "act"):
        names = {step.name for step in trace(program, example=x)}
        assert {f"blocks.0.{name}", f"blocks.1.{name}"} <= names
    other, _ = made("net")
    nn.init.ones_(other.head.weight)
    program.load_state_dict(other.state_dict())
    close(program(x), other(x), 0)
    assert program.head.weight is not other.head.weight  # type: ignore[union-attr]


def test_a_frozen_net_names_steps_after_the_weights_that_they_use() -> None:
    net, x = made("net")
    program = ScriptedNet(torch.jit.freeze(torch.jit.script(net)))
    assert {"blocks.0.conv", "blocks.1.conv"} <= {step.name for step in trace(program, example=x)}
    assert len(list(program.buffers())) > 4  # weights, which a party may keep to itself


@pytest.mark.parametrize("how", HOW)
def test_half_precision_becomes_float32(how: str) -> None:
    net, x = made("loop")
    module = HOW[how](net.half(), x.half())
    found = ScriptedNet(module)(x)
    # Three products of 8 terms in half precision, whose rounding is 2^-11.
    assert found.dtype == torch.float32 and (found - module(x.half())).abs().max() < 24 * 2**-11


def test_shared_weights_stay_shared() -> None:
    layer = nn.Linear(4, 4)
    net = nn.Sequential(layer, nn.ReLU(), layer)
    program = ScriptedNet(torch.jit.script(net))
    assert program.get_submodule("0").weight is program.get_submodule("2").weight
    close(program(torch.ones(2, 4)), net(torch.ones(2, 4)), 0)


def test_defaults_and_keywords_of_forward() -> None:
    net, x = made("net")
    program = ScriptedNet(torch.jit.script(net))
    close(program(x=x, gain=2.0), net(x, 2.0), 0)
    assert list(program.program_signature.parameters) == ["x", "gain"]
    with pytest.raises(TypeError):
        program()


def test_every_entry_takes_the_module_itself_also_inside_a_net() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2)).eval()
    x = torch.randn(3, 8)
    inner = nn.Sequential(plain[0], plain[1], torch.jit.script(plain[2]), plain[3]).eval()
    for net in (torch.jit.script(plain), torch.jit.trace(plain, x), inner):
        assert problems(net) == []
        assert torch.equal(run(trace(net), x), plain(x))
        assert torch.equal(hummingbird.simulate(net)(x), plain(x))
        assert he.convert_model(net, (8,)) is not None
    assert isinstance(inner[2], torch.jit.ScriptModule)  # the caller's net is as it was
    scripted = torch.jit.script(plain)
    assert from_object(scripted) is from_object(scripted)


class Party(nn.Module):
    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, session: Session, x: Shared) -> Shared:
        # Interleaved by itself: the parties are so in Parties.run.
        interleave.Interleave().run([lambda: self.net.set_up(session)])
        result: Shared = self.net.forward(session, x)
        return result


def test_parties_compute_it_in_private() -> None:
    net, x = made("loop")
    private = build(torch.jit.script(net), hummingbird.BitWindow(20, 0), example=x)
    with torch.no_grad():
        found = Parties(2, 1, x.device).run(Party(private), x)
        # Two layers of 8 products of values below 4, each rounded to 2^-16, twice over for truncation.
        assert (found - net(x)).abs().max() < 2 * 2 * 8 * 4 * 2**-16


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5"])
def test_nets_of_torchvision(name: str, how: str) -> None:
    torch.manual_seed(0)
    net, x = torchvision.models.get_model(name, weights=None).eval(), torch.randn(2, 3, 64, 64)
    program = ScriptedNet(HOW[how](net, x))
    with torch.no_grad():
        close(program(x), net(x), FOLDED)  # torch folds batch norms while it freezes
        close(run(trace(program, example=x), x), net(x), FOLDED)


# Files ----------------------------------------------------------------------------------------------------------------


@covering("how, suffix", HOW, [".pt", ".pth"])
def test_files_are_read(tmp_path: Path, how: str, suffix: str) -> None:
    net, x = made("net")
    module, path = HOW[how](net, x), tmp_path / f"net{suffix}"
    torch.jit.save(module, path)
    close(read(path)(x), module(x), 0)
    close(run(trace(read(path), example=x), x), packed(module(x)), FOLDED)


def refused(path: Path) -> InputError:
    with pytest.raises(InputError) as error:
        read(path)
    assert error.value.where == str(path) and error.value.hint
    return error.value


def test_a_state_dict_is_refused_with_the_option_for_it(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    for old in (False, True):
        torch.save(nn.Linear(2, 2).state_dict(), path, _use_new_zipfile_serialization=not old)
        assert "--weights" in refused(path).hint


def test_files_of_another_form_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    assert "No such file" in refused(path).what
    path.write_bytes(b"")
    assert "no zip archive" in refused(path).what
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other", b"")
    assert "no code" in refused(path).what
    whole = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as archive:
        for info in source.infolist():
            archive.writestr(info.filename, b"!" if info.filename.endswith("data.pkl") else source.read(info))
    assert "cannot read it" in refused(path).what


class Set(nn.Module):
    """A module whose code runs while a file is read."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1

    @torch.jit.export
    def __getstate__(self) -> tuple[int, bool]:
        return self.factor, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]) -> None:
        self.factor, self.training = state[0] * 2, state[1]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def test_a_file_whose_code_would_run_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.jit.save(torch.jit.script(Set()), path)
    assert "__setstate__" in refused(path).what


def test_an_archive_that_torch_could_read_otherwise_is_refused(tmp_path: Path) -> None:
    """Spaces before a name, a name cut by a line's end, an entry twice, a second folder."""
    path, whole = tmp_path / "net.pt", io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), whole)

    def written(more: dict[str, bytes], changed: bytes = b"") -> str:
        with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as archive:
            root = source.namelist()[0].partition("/")[0]
            for info in source.infolist():
                content = source.read(info)
                archive.writestr(info.filename, content + changed if info.filename.endswith(".py") else content)
            for name, content in more.items():
                archive.writestr(name.replace("ROOT", root), content)
        return str(refused(path).what)

    assert "__setstate__" in written({}, b"\n  def   __setstate__ (self, x: int) -> None:\n    pass\n")
    assert "C++ classes" in written({"ROOT/more.pkl": b"c__torch__.torch\nclasses.quantized.Conv\n"})
    assert "__setstate__" in written({"ROOT/CODE/MORE.PY": b"def __setstate__(self) -> None:\n    pass\n"})
    assert "one folder" in written({"ROOT/DATA.PKL": b""})
    assert "one folder" in written({"other/code/__torch__.py": b""})
    with pytest.warns(UserWarning, match="Duplicate name"):
        assert "one folder" in written({"ROOT/data.pkl": b"", "ROOT/more": b"", "ROOT/version": b"3"})


# Errors ---------------------------------------------------------------------------------------------------------------


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if bool(x.sum() > 0) else -x


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = 0

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.shape[0]
        return x


class Unknown(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.det(x.reshape(-1, 2, 2)).reshape(-1, 1)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (Branching(), "control flow"),
        (Remembering(), "prim::SetAttr"),
        (Unknown(), "det"),
    ],
)
def test_what_has_no_private_form_is_a_problem_of_its_layer(net: nn.Module, words: str) -> None:
    x = torch.randn(2, 8)
    module = torch.jit.script(nn.Sequential(nn.Linear(8, 4), net))
    found = problems(ScriptedNet(module), example=x)
    assert any(words in problem.what for problem in found), found
    assert all(problem.name.startswith("1") and problem.hint for problem in found), found
    with pytest.raises(ModelError):
        trace(module, example=x)


def test_an_unknown_operation_is_named_with_its_line() -> None:
    for form in ("scripted", "traced"):
        (problem,) = problems(HOW[form](nn.Sequential(Unknown()), torch.randn(2, 4)), example=torch.randn(2, 4))
        assert problem.name.startswith("0") and "test_torchscript.py:" in problem.what, problem


def test_an_exception_of_the_program_says_where() -> None:
    with pytest.raises(InputError, match="eight columns"):
        ScriptedNet(torch.jit.script(Counting()))(torch.ones(2, 4))


def test_an_operation_that_opens_files_is_refused(tmp_path: Path) -> None:
    class Opening(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.from_file("weights.bin", False, 4)

    net = ScriptedNet(torch.jit.script(Opening()))
    assert any("from_file" in problem.what for problem in problems(net, example=torch.ones(2, 4)))


def test_an_operation_that_is_read_wrongly_is_found_on_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.ReLU()).train())
    assert problems(scripted, example=torch.ones(2, 4)) == [] and scripted.training
    monkeypatch.setitem(aten._SPECIAL, "relu", torch.tanh)
    with pytest.raises(ModelError, match="differs from torch's own run"):
        trace(scripted, example=torch.ones(2, 4))


def test_a_text_has_places_for_values_and_nothing_else() -> None:
    assert _format("{} of {}, {0.__class__}", 2, 3) == "2 of 3, {0.__class__}"


def test_the_check_can_fail() -> None:
    net, x = made("loop")
    other = Counting().eval()
    with pytest.raises(AssertionError):
        close(ScriptedNet(torch.jit.script(net))(x), other(x), FOLDED)
