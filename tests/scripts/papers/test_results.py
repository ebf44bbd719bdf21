"""The page of results: every figure is measured, and lands in the cell that it belongs to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hummingbird.bits import BitConfig, BitWindow
from scripts.papers import results
from scripts.papers.results import SETTINGS
from tests.support.paths import ROOT

LAYERS = ("relu1", "relu2", "relu3")
# |x| < 4.6 in this net: [20:0) changes nothing, [21:15) prunes, and [18:12) wraps what is beyond 2.
WINDOWS = {"eco": (20, 0), "8/64": (21, 13), "6/64": (21, 15), "5/64": (20, 15), "6/64 fine-tuned": (18, 12)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The digits net with windows under the names that the program looks for."""
    for setting, (weights, windows) in SETTINGS.items():
        shutil.copy(ROOT / "checkpoints/digits.pt", tmp_path / f"digits-digits{weights}")
        if windows and setting in WINDOWS:  # there are no windows of 4/64
            window = BitWindow(*WINDOWS[setting])
            said = {"samples": 300, "split": "train", "seconds": 12.3, "evaluations": 45, "nodes": 6, "cost": 0.125}
            said |= {"groups": {"stem": LAYERS}, "command": f"python -m search.find_bits {setting}"}
            BitConfig(layers=dict.fromkeys(LAYERS, window), provenance=said).save(tmp_path / f"digits-digits{windows}")
    return tmp_path


def run(folder: Path, *more: str) -> tuple[int, str, list[dict[str, Any]]]:
    out, rows = folder / "page.md", folder / "rows.json"
    code = results.main(["--checkpoints", str(folder), "--repeats", "2", "--out", str(out), "--json", str(rows), *more])
    return code, out.read_text() if out.exists() else "", json.loads(rows.read_text()) if rows.exists() else []


def test_accuracies_windows_and_searches_are_on_the_page(folder: Path) -> None:
    code, page, rows = run(folder, "--images", "0")
    assert code == 0 and "Private inference" not in page
    found = {row["setting"]: row for row in rows if row["kind"] == "accuracy"}
    assert list(found) == ["exact", *WINDOWS, "uniform 8/64", "uniform 6/64", "uniform 5/64"]
    assert found["eco"]["changed_predictions"] == 0 and found["eco"]["accuracy_percent"] == 99.4
    assert found["exact"]["seeds"] == found["eco"]["seeds"] == 1 and found["6/64"]["seeds"] == 2
    assert found["6/64 fine-tuned"]["accuracy_percent"] < 95 < found["8/64"]["accuracy_percent"]
    cells = page.partition("| digits-digits | here |")[2].partition("\n")[0].split("|")
    assert [float(cell.partition("±")[0]) for cell in cells[:6]] == [
        pytest.approx(found[setting]["accuracy_percent"], abs=0.005) for setting in ("exact", *WINDOWS)
    ]
    changed, uniform = found["6/64"], found["uniform 6/64"]
    cells = page.partition("| digits-digits, 6/64 | ")[2].partition(" |\n")[0].split(" | ")
    assert cells[0] == f"{changed['changed_predictions']:.0f}" != f"{uniform['changed_predictions']:.0f}" == cells[3]
    assert cells[2] == uniform["window"] and cells[4].startswith(f"{uniform['accuracy_percent']:.2f}")
    assert "| `relu2` | [20:0) (20) | [21:13) (8) | [21:15) (6) | [20:15) (5) | [18:12) (6) |" in page
    assert "| digits-digits, 6/64 | 300 | 45 | 12 | 0.1250 | `python -m search.find_bits 6/64` |" in page
    assert not any(isinstance(value, (dict, list)) for row in rows for value in row.values())


FIGURES = {
    "images": 100,
    "milliseconds_per_image": 20.0,
    "seconds": 2.0,
    "online_kilobytes_per_image": 50.0,
    "offline_kilobytes_per_image": 400.0,
    "rounds_per_batch": 19.0,
}


@pytest.mark.slow
@pytest.mark.parametrize(("off", "equal"), [(0.0, True), (1.0, True), (2.0, False)])
def test_private_accuracy_must_be_that_of_the_twin(
    folder: Path, off: float, equal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures stand in for the parties, which tests/commands/test_infer.py runs. Unpruned: one image may differ."""
    for ending in ("-8-64", "-6-64", "-tuned"):
        shutil.copy(folder / "digits-digits-eco.bits.json", folder / f"digits-digits{ending}.bits.json")
    (case,) = results.cases([folder], None)
    plain = results.percent(results.predict(case.net("exact"), case.images[:100]), case.labels[:100])
    asked: list[str] = []

    def on_this_host(parties: int, module: str, options: list[str]) -> dict[str, Any]:
        asked.append(module)
        wrong = off if any("-6-64" in word for word in options) else 0.0
        slow = {"milliseconds_per_image": 300.0, "seconds": 30.0, "online_kilobytes_per_image": 600.0}
        other = slow if module.endswith("crypten_baseline") else {}
        return {**FIGURES, **other, "accuracy_private_percent": plain - wrong}

    monkeypatch.setattr(results, "on_this_host", on_this_host)
    code, page, rows = run(folder, "--images", "100")
    found = {row["setting"]: row["equals_twin"] for row in rows if row["kind"] == "private" and "equals_twin" in row}
    assert found == {**dict.fromkeys(["exact", *WINDOWS], True), "6/64": equal}
    assert code == (0 if equal else 1)
    if not equal:
        assert "error: private accuracy is not the twin's: digits-digits 6/64" in capsys.readouterr().err
    assert f"| CrypTen 0.4.1, exact, 100 images | {plain:.2f} | - | 300.0 | 1.0x | 600 | 1.0x" in page
    assert "| 20.0 | 15.0x | 50 | 12.0x | 400 | 500 | 19 |" in page
    assert asked == ["hummingbird infer"] * 6 + ["scripts.bench.crypten_baseline"]


def test_parties_get_the_files_of_the_callers_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They start in the project's own folder, which may hold files of the same names."""
    monkeypatch.chdir(folder.parent)
    (case,) = results.cases([Path(folder.name)], None)
    weights, data = str(folder / "digits-digits.pt"), str(folder.parent / "data")
    assert {weights, f"data={data}"} <= set(results.infer_options(case, ".pt", 10, "data"))
    assert {weights, data} <= set(results.baseline_options(case, 10, "data"))
    assert case.file("-eco.bits.json").is_absolute()


def test_missing_files_are_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "digits-digits-8-64.bits.json").unlink()
    assert run(folder)[0] == 1
    assert "digits-digits lacks digits-digits-8-64.bits.json" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty")[0] == 1
    assert "no nets" in capsys.readouterr().err
