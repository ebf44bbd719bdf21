"""Training that stops and goes on: the same weights, and no state is taken for another's."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from hummingbird.commands.output import write_together
from hummingbird.commands.training import Recipe, Training
from hummingbird.errors import InputError
from scripts.train.data import Dataset
from scripts.train.images import main
from tests.support.covering import every
from tests.support.interrupts import interrupt

DIGITS = ["--model", "digits", "--dataset", "digits", "--epochs", "3"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


RECIPES = {
    "sgd": [],
    "adamw": ["--optimizer", "adamw", "--schedule", "cosine"],
    "average": ["--schedule", "constant", "--rate", "0.02", "--average"],
    "cutmix": ["--cutmix", "0.5"],
}


@pytest.mark.parametrize("recipe", every(len(RECIPES), list(RECIPES.values())[::-1]), ids=[*RECIPES][::-1])
def test_resumed_training_ends_with_the_same_weights(
    recipe: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    whole, parts = tmp_path / "whole.pt", tmp_path / "parts.pt"
    assert main([*DIGITS, *recipe, "--out", str(whole)]) == 0
    with monkeypatch.context() as patched:
        interrupt(patched, 25)
        assert main([*DIGITS, *recipe, "--out", str(parts)]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted: go on with the same command and --resume"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.pt.state", "whole.pt"]
    assert torch.load(tmp_path / "parts.pt.state", weights_only=True)["epoch"] == 2
    assert main([*DIGITS, *recipe, "--out", str(parts), "--resume"]) == 0
    assert parts.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.pt", "whole.pt"]


def test_a_state_is_used_only_by_its_own_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    command, state = [*DIGITS, "--out", str(tmp_path / "net.pt")], tmp_path / "net.pt.state"
    with monkeypatch.context() as patched:
        interrupt(patched, 5)
        assert main(command) == 130
    assert "nothing was saved yet" in capsys.readouterr().err and not state.exists()
    with monkeypatch.context() as patched:
        interrupt(patched, 15)
        assert main(command) == 130
    kept = state.read_bytes()
    for more, message in (
        ([], "there is the state of an interrupted training"),
        (["--resume", "--rate", "0.05", "--seed", "3"], "rate was 0.1, is 0.05; seed was 0, is 3"),
        (["--resume", "--epochs", "4"], "epochs was 3, is 4"),
    ):
        capsys.readouterr()
        assert main([*command, *more]) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: ") and message in error and "\nhint: " in error
        assert state.read_bytes() == kept
    for content in (kept[:-50], b"no state", b""):
        state.write_bytes(content)
        assert main([*command, "--resume"]) == 1
        assert "not the state of a training" in capsys.readouterr().err


def _noisy(images: int = 12) -> Training:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(8, 2))
    data = Dataset((2, 2, 2), 2, (0.5, 0.5), (1.0, 1.0), shift=1, flip=True)
    return Training(net, torch.randn(images, 2, 2, 2), torch.arange(images) % 2, data, Recipe(4, batch=4, rate=0.5))


def test_dropout_goes_on_with_its_random_numbers() -> None:
    whole = _noisy()
    losses = [whole.run_epoch() for _ in range(4)]
    first = _noisy()
    assert [first.run_epoch(), first.run_epoch()] == losses[:2]
    kept = first.state()
    second = _noisy()
    torch.manual_seed(99)
    second.restore(kept)
    assert [second.run_epoch(), second.run_epoch()] == losses[2:]
    assert torch.equal(second.model[2].weight, whole.model[2].weight)  # type: ignore[index]


def test_a_state_of_other_data_is_refused() -> None:
    with pytest.raises(InputError, match="training on 12 images, these are 16"):
        _noisy(16).restore(_noisy(12).state())


@pytest.mark.parametrize("there", [True, False], ids=["overwriting", "fresh"])
@pytest.mark.parametrize("problem", [OSError(errno.ENOSPC, "No space left on device", "b"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_files_are_written_together_or_not(
    at: int, problem: BaseException, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever rename fails, all is as before; two files need two renames, or four where files are replaced."""
    a, b = tmp_path / "a", tmp_path / "b"
    before = {path: b"before" for path in (a, b) if there}
    for path, content in before.items():
        path.write_bytes(content)
    real, calls = os.replace, [0]

    def replace(source: Path, target: Path) -> None:
        calls[0] += 1
        if calls[0] == at:
            raise problem
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    if at > (4 if there else 2):
        write_together({a: b"new", b: b"new"})
        before = {a: b"new", b: b"new"}
    else:
        with pytest.raises(InputError if isinstance(problem, OSError) else KeyboardInterrupt):
            write_together({a: b"new", b: b"new"})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
