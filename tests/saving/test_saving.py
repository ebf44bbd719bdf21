"""A net saved and loaded: the same private net, with no code of it, and each party's weights with that party alone."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import hummingbird
from hummingbird import convert, graph
from hummingbird.__main__ import main
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError, HummingbirdError, InputError, ModelError
from hummingbird.graph import SavedNet
from hummingbird.mpc.session.session import Session
from hummingbird.saving import description
from hummingbird.saving.folder import NET
from tests.support import python
from tests.support.disk import Order
from tests.support.parties import run, succeed
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM
from tests.support.saved import CODE, files, secret

pytestmark = pytest.mark.usefixtures("nothing_is_left")
BITS = BitConfig(BitWindow(24, 2), {"prelu": BitWindow(20, 4)}, {"found": [1, "x"]}, 8.0)


def saved(folder: Path, weights: str | int = "public", bits: BitConfig | None = BITS, **options: str) -> Path:
    """The net of tests/support/saved.py in a new folder."""
    hummingbird.save(secret()[0], folder / "saved", bits, weights, **options)
    return folder / "saved"


@pytest.mark.parametrize(
    ("weights", "protocol"),
    [
        (1, "gmw"),
        pytest.param("public", "masked", marks=pytest.mark.slow),
        pytest.param("public", "gmw", marks=pytest.mark.slow),
        pytest.param(1, "masked", marks=pytest.mark.slow),
    ],
)
def test_what_is_loaded_is_what_convert_model_gives(tmp_path: Path, weights: str | int, protocol: str) -> None:
    (net, x), folder = secret(), saved(tmp_path, weights, protocol=protocol)
    before, after = convert.build(net, BITS, weights, protocol), hummingbird.load(folder)
    assert before.facts == after.facts and str(before) == str(after) and after.input_range == 8.0
    assert before.costs(tuple(x.shape), 3) == after.costs(tuple(x.shape), 3)
    assert before.setup_cost(3) == after.setup_cost(3)
    plain = hummingbird.load_net(folder)
    with torch.no_grad():
        assert torch.equal(plain(x), net(x))
        exact = [hummingbird.simulate(made, BITS, protocol, 3, mode="exact", seed=2)(x) for made in (net, plain)]
        fast = [hummingbird.simulate(made, BITS, protocol, seed=2)(x) for made in (net, plain)]
    assert torch.equal(*exact) and torch.equal(*fast)
    assert hummingbird.validate_model(plain) == []
    tied = {value.data_ptr() for name, value in plain.state_dict().items() if name.startswith("tied")}
    assert len(tied) == 2, "tied weights stay tied"


def test_a_loaded_net_takes_another_windows_and_trains_nothing(tmp_path: Path) -> None:
    _, x = secret()
    plain = hummingbird.load_net(saved(tmp_path))
    twin = hummingbird.simulate(plain, BitWindow(24, 0))
    plain.train()
    assert torch.allclose(twin(x), plain(x), atol=0.01), "with gradients: the calls one by one"
    again = tmp_path / "again"
    hummingbird.save(plain, again, BITS)
    assert files(again) == files(tmp_path / "saved"), "a loaded net saves as what it was loaded from"
    handle = plain.step("relu").register_forward_hook(lambda *_: None)
    with pytest.raises(ModelError, match="hook"):
        hummingbird.convert_model(plain)
    handle.remove()
    plain.step("norm").var.fill_(float("nan"))
    with pytest.raises(ModelError, match="norm: var holds NaN"):
        hummingbird.convert_model(plain)


def test_windows_of_this_net_fit_the_loaded_one(tmp_path: Path) -> None:
    net, _ = secret()
    own = {"net": graph.fingerprint(graph.trace(net))}
    hummingbird.load(saved(tmp_path, bits=BitConfig(BitWindow(24, 2), {}, own)))
    assert own["net"] in (tmp_path / "saved" / NET).read_text()
    for weights in ("public", 0):
        with pytest.raises(ConfigError, match="found for net 00"):
            hummingbird.save(net, tmp_path / "new", BitConfig(BitWindow(24, 2), {}, {"net": "00"}), weights)
    assert not (tmp_path / "new").exists()
    hummingbird.save(net, tmp_path / "new", BitConfig(BitWindow(24, 2), {}, {**own, "accuracy": 0.9}), 0)
    text = (tmp_path / "new" / NET).read_text()
    assert own["net"] not in text and "accuracy" not in text, "they tell of private weights"


def test_private_weights_are_in_the_owners_file_alone(tmp_path: Path) -> None:
    net, _ = secret()
    folder = saved(tmp_path, 1)
    found = files(folder)
    assert sorted(found) == [NET, "party-1.safetensors"]
    assert (folder / "party-1.safetensors").stat().st_mode & 0o777 == 0o600
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point():
            content = tensor.contiguous().numpy().tobytes()
            assert content in found["party-1.safetensors"], name
            for start in range(0, len(content), 4):  # values: none is written as text, either
                assert content[start : start + 4] not in found[NET], name
                value = float(tensor.flatten()[start // 4])
                assert len(repr(value)) < 8 or repr(value).encode() not in found[NET]
    hummingbird.save(net, tmp_path / "again", BITS, 1)
    assert files(tmp_path / "again")[NET] != found[NET], "the seal is salted: it confirms no guess of the weights"
    hummingbird.save(net, tmp_path / "p", BITS), hummingbird.save(net, tmp_path / "q", BITS)
    assert files(tmp_path / "p") == files(tmp_path / "q"), "of public weights it is the same wherever it is made"


# Real parties ---------------------------------------------------------------------------------------------------------


class Reads(nn.Module):
    """A linear layer, and a number that forward() reads from a buffer."""

    def __init__(self, t: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)
        self.register_buffer("t", torch.tensor([t]))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.t.item() - self.t.tolist()[0]


def test_numbers_that_are_read_from_private_weights_are_in_the_owners_file_alone(tmp_path: Path) -> None:
    """The file that all parties are given is the same, whatever the number is."""
    for name, t in (("one", 0.34567), ("other", 5.25)):
        hummingbird.save(Reads(t).eval(), tmp_path / name, weights=0)
    one, other = (json.loads((tmp_path / name / NET).read_text()) for name in ("one", "other"))
    assert one["net"].pop("seal") != other["net"].pop("seal")  # each is salted
    assert one["net"] == other["net"] and "0.345" not in str(one)
    assert hummingbird.load(tmp_path / "one").facts == convert.build(Reads(0.34567).eval(), weights=0).facts


def test_parties_without_the_code_run_it(tmp_path: Path) -> None:
    net, x = secret()
    save_file({"x": x}, tmp_path / "x.safetensors")
    saved(tmp_path, 1).rename(tmp_path / "party-1")
    (tmp_path / "party-0").mkdir()
    shutil.copy(tmp_path / "party-1" / NET, tmp_path / "party-0")
    job = ["-m", "tests.jobs.saved", str(tmp_path / "party-{rank}"), str(tmp_path / "x.safetensors")]
    result = json.loads(succeed(job, 2)[0].out.strip().splitlines()[-1])
    with torch.no_grad():
        assert torch.allclose(torch.tensor(result["out"]), net(x), atol=0.01)
    rows = convert.build(net, BITS, 1, aim="throughput").costs(tuple(x.shape), 2)  # streamed
    assert result["rounds"] == sum(row.cost.rounds for row in rows) + 1  # and the one that opens the result


@pytest.mark.slow
def test_parties_with_different_nets_are_told_so(tmp_path: Path) -> None:
    net, x = secret()
    save_file({"x": x}, tmp_path / "x.safetensors")
    hummingbird.save(net, tmp_path / "party-0", BITS)
    net.head[0].bias.data[0] += 1
    hummingbird.save(net, tmp_path / "party-1", BITS)
    job = ["-m", "tests.jobs.saved", str(tmp_path / "party-{rank}"), str(tmp_path / "x.safetensors")]
    for ended in run(job, 2):
        assert ended.code == 1 and "disagree on net: party" in ended.err, ended.err


def test_the_parties_of_a_session(tmp_path: Path, alone: Session) -> None:
    net, _ = secret()
    hummingbird.load(saved(tmp_path, 0))
    with pytest.raises(ConfigError, match="weights=1"):
        hummingbird.save(net, tmp_path / "other", weights=1)
    alone.rank = 5
    with pytest.raises(InputError, match="party 5 can read the private weights of party 0"):
        hummingbird.load(tmp_path / "saved")
    with pytest.raises(InputError, match="party 5 does not have the weights of party 0"):
        hummingbird.save(net, tmp_path / "other", weights=0)
    alone.rank = 0


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "saved_net.py").write_text(CODE + "\n\ndef get_model():\n    return Secret()\n")
    monkeypatch.chdir(tmp_path)
    options = ["--model", "saved_net"]
    assert main(["save", *options, "--owner", "1", "--out", "saved"]) == 0
    assert "give saved/net.json to every party, and party-1.safetensors to party 1 alone" in capsys.readouterr().out
    assert main(["estimate", *options, "--private-weights", "--input", "2x3x6x6"]) == 0
    table = capsys.readouterr().out
    (tmp_path / "saved" / "party-1.safetensors").unlink()
    assert main(["estimate", "--saved", "saved", "--input", "2x3x6x6"]) == 0
    assert capsys.readouterr().out == table
    assert main(["save", *options, "--out", "saved"]) == 1 and "there already" in capsys.readouterr().err
    assert main(["estimate", "--saved", "saved", "--input", "2x3x6x6", "--protocol", "gmw"]) == 1
    assert "--protocol beside --saved" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["infer", "--saved", "saved", *options, "--data", "x"])


# What is refused ------------------------------------------------------------------------------------------------------


class Own(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def test_layers_of_ones_own_are_refused_by_name(tmp_path: Path) -> None:
    hummingbird.register_converter(Own, lambda module: module)
    net = nn.Sequential(nn.Linear(2, 2), Own(), nn.ReLU(), Own())
    with pytest.raises(ModelError, match="is code") as caught:
        hummingbird.save(net, tmp_path / "saved")
    assert [problem.name for problem in caught.value.problems] == ["1", "3"] and not list(tmp_path.iterdir())


def test_what_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, _ = secret()
    with pytest.raises(InputError, match="a private net holds shares"):
        hummingbird.save(convert.build(net), tmp_path / "saved")
    with pytest.raises(ModelError, match="not in the vocabulary"):
        hummingbird.save(nn.Sequential(nn.Hardshrink()), tmp_path / "saved")
    with pytest.raises(ModelError, match="NaN"):
        hummingbird.save(nn.Sequential(nn.PReLU(init=float("nan"))), tmp_path / "saved")
    with pytest.raises(InputError, match="no folder"):
        hummingbird.save(net, tmp_path / "none" / "saved")
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="there already"):
        hummingbird.save(net, tmp_path / "there")
    monkeypatch.setattr("hummingbird.saving.weights.save_file", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(InputError, match="cannot write: full"):
        hummingbird.save(net, tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["there"], "nothing is left of it"


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        hummingbird.load(folder)
    assert caught.value.hint or caught.value.where
    return str(caught.value)


def test_folders_that_are_no_saved_net(tmp_path: Path) -> None:
    assert "cannot read net.json: No such file" in refusal(tmp_path / "none")
    assert "cannot read net.json" in refusal(tmp_path)
    folder = saved(tmp_path)
    (folder / "weights.safetensors").unlink()
    assert "lacks its public weights" in refusal(folder)
    private = saved(tmp_path / "saved", 1)
    content = files(private)
    (private / "party-1.safetensors").rename(private / "party-0.safetensors")
    assert "a file of another party: the net has weights of party 1" in refusal(private)
    (private / "party-0.safetensors").unlink()
    assert "lacks the private weights of party 1" in refusal(private)
    hummingbird.save(secret()[0], tmp_path / "zero", BITS, 0)
    (private / "party-1.safetensors").write_bytes(files(tmp_path / "zero")["party-0.safetensors"])
    assert "weights of party 0, and the net is for those of party 1" in refusal(private)
    hummingbird.save(secret()[0], tmp_path / "again", BITS, 1)
    (private / "party-1.safetensors").write_bytes(files(tmp_path / "again")["party-1.safetensors"])
    assert "weights of net" in refusal(private)
    (private / "party-1.safetensors").write_bytes(content["party-1.safetensors"])
    hummingbird.load(private)


def test_files_that_were_changed(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    net, weights = folder / NET, folder / "weights.safetensors"
    whole, text = weights.read_bytes(), net.read_text()
    for content, words in (
        (whole[:-1], "not a whole safetensors file"),
        (whole[:5], "not a whole safetensors file"),
        (b"", "not a whole safetensors file"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), "the weights have changed"),
        (whole.replace(rb"\"version\": \"1\"", rb"\"version\": \"2\""), "saved in version 2"),
        (whole.replace(b"conv.bias", b"conv.bear"), "tensor(s) more or less"),
        (whole.replace(b"hummingbird-weights", b"hummingbird-waights"), "hummingbird did not save"),
    ):
        weights.write_bytes(content)
        assert words in refusal(folder)
    weights.write_bytes(whole)
    for old, new, words in (
        ('"version": 1', '"version": 2', "saved in version 2 of the format, by release"),
        ('"format": "hummingbird-net"', '"format": "x"', "not a hummingbird-net file"),
        ('"slope"', '"slip"', "its digest is another one") if "slope" in text else ('"dim"', '"din"', "its digest"),
        (text[-40:], "", "malformed saved net: it is no JSON"),
    ):
        assert old in text
        net.write_text(text.replace(old, new))
        assert words in refusal(folder)
    net.write_text(text)
    plain = hummingbird.load_net(folder)
    held = {name: value.clone() for name, value in plain.state_dict().items()}
    save_file(held, weights)
    assert "hummingbird did not save" in refusal(folder)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("steps", 1, 0), "conv.training", "that no module can have"),
        (("steps", 1, 0), "../../conv", "a name that is empty"),
        (("steps", 1, 0), "a" * 513, "net.steps[1][0] is "),
        (("weights",), 10**300, "net.weights is 1000"),
        (("weights",), "party", "net.weights is 'party', not a whole number"),
        (("tensors", "conv.bias", "shape"), [1 << 20, 1 << 20], "a tensor of shape"),
        (("tensors", "conv.bias", "shape"), [1 << 31], "too many weights"),
        (("bits", "input_range"), -1, r"net.json: bits: input_range"),
    ],
)
def test_texts_that_somebody_has_made(place: tuple[str | int, ...], value: object, words: str, tmp_path: Path) -> None:
    """With the right digest, as whoever changes a text can compute it."""
    folder = saved(tmp_path)
    whole = json.loads((folder / NET).read_text())
    inner = whole["net"]
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (folder / NET).write_text(json.dumps(whole | {"digest": description._digest(whole["net"])}))
    assert words in refusal(folder)


def test_a_folder_has_its_name_when_all_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(monkeypatch, tmp_path)
    saved(tmp_path)
    (draft,) = (call[1] for call in order.calls if call[0] == "rename" and call[2] == "saved")
    named = order.place("rename", draft, "saved")
    for name in (NET, "weights.safetensors"):
        assert order.place("fsync", f"{draft}/{name}") < named
    assert order.place("fsync", ".", after=named)


@pytest.mark.slow
def test_a_save_that_is_killed_leaves_a_whole_folder_or_none(tmp_path: Path) -> None:
    job = [sys.executable, "-m", "tests.jobs.killed_saves", str(tmp_path), "4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    python.run(job, cwd=ROOT, env=environment, check=True, timeout=PROGRAM)
    for folder in tmp_path.glob("[!.]*"):  # what begins with a dot is a draft
        hummingbird.load(folder)
        assert (folder / "party-1.safetensors").stat().st_mode & 0o777 == 0o600


def test_weights_of_another_shape_or_type(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    weights = folder / "weights.safetensors"
    from safetensors import safe_open

    with safe_open(weights, "pt") as file:
        words, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}
    for changed in (tensors["conv.bias"].double(), tensors["conv.bias"][:-1].clone()):
        save_file({**tensors, "conv.bias": changed}, weights, words)
        assert "conv.bias is F" in refusal(folder)


def test_every_refusal_is_of_this_package() -> None:
    for steps in ([], [graph.Step("x", "input")], [graph.Step("x", "input"), graph.Step("y", "custom")]):
        with pytest.raises(HummingbirdError):
            SavedNet(steps)
