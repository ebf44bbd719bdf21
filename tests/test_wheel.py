"""The wheel alone, in an empty folder: every command on a net and images of the user's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from hummingbird import __main__ as command
from tests.support import own_net
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM
from tests.test_floors import FILES, PACKAGE, imported, parsed

CSRC = [*(PACKAGE / "kernels/cpu/csrc").iterdir()]
NET = ["--model", "my_net:net", "--weights", "net.pt"]


def run(words: Sequence[str], folder: Path, **variables: str) -> str:
    """The output of a program that sees neither this checkout nor a launcher's variables."""
    hidden = ("PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    environment = {key: value for key, value in os.environ.items() if key not in hidden} | variables
    ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=PROGRAM)
    assert ended.returncode == 0, f"{words}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, which is built from a copy."""
    sources, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("built")
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    shutil.copytree(ROOT / "hummingbird", sources / "hummingbird", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("search", "scripts", "models", "tests"):  # must not get into the wheel
        (sources / name).mkdir()
        (sources / name / "__init__.py").touch()
    run([sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(built)], sources)
    (sdist,) = built.glob("*.tar.gz")
    return sdist


@pytest.fixture(scope="module")
def site(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files. It is built from the sdist.

    No compiler is used: that the kernels are optional saves minutes.
    """
    built = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", str(built)]
    run([*pip, str(sdist)], built, CC="false", CXX="false", PIP_DISABLE_PIP_VERSION_CHECK="1")
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {name.partition("/")[0].partition("-")[0] for name in archive.namelist()} == {
            "hummingbird",
            "hummingbird_mpc",
        }
        archive.extractall(built / "site")
    assert wheel.name.split("-")[2:4] == ["cp310", "abi3"] and (built / "site/hummingbird/py.typed").is_file()
    return built / "site"


def test_the_sdist_has_the_sources_and_a_program_of_the_package_s_name(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        (entries,) = (name for name in archive.getnames() if name.endswith(".egg-info/entry_points.txt"))
        assert (found := archive.extractfile(entries)) is not None
        assert found.read().decode().split() == ["[console_scripts]", "hummingbird", "=", "hummingbird.__main__:main"]
    here = (*FILES, *CSRC, *PACKAGE.rglob("*.json"), PACKAGE / "py.typed")
    assert {path.relative_to(ROOT).as_posix() for path in here} <= names
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names
    assert callable(command.main)


@pytest.mark.slow
def test_it_has_a_program_of_its_name(site: Path) -> None:
    (found,) = site.glob("*.dist-info/entry_points.txt")
    assert found.read_text().split() == ["[console_scripts]", "hummingbird", "=", "hummingbird.__main__:main"]


def test_the_package_needs_nothing_of_the_checkout() -> None:
    roots = {name.split(".")[0] for path in FILES for name, _ in imported(parsed(path.read_text()))}
    assert "hummingbird" in roots and not roots & {"search", "scripts", "models", "tests"}


@pytest.mark.slow
def test_every_command_runs_from_the_wheel_alone(site: Path, tmp_path: Path) -> None:
    own_net.write(tmp_path)
    python = {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    where = run([sys.executable, "-c", "import hummingbird; print(hummingbird.__file__)"], tmp_path, **python)
    assert Path(where.strip()) == site / "hummingbird" / "__init__.py"

    def command(*words: str) -> str:
        return run([sys.executable, "-m", "hummingbird", *words], tmp_path, **python)

    train, validation, test = (["my_data:images", split] for split in ("train", "validation", "test"))
    assert "total" in command("estimate", *NET, "--input", "8x1x6x6")
    found = command("find-bits", *NET, "--data", *validation, "--budget", "6/64", "--out", "bits.json")
    assert "saved bits.json" in found
    shown = command("frontier", *NET, "--data", *validation, "--budgets", "exact", "6/64", "--out-folder", ".")
    assert "6-64.json" in shown
    epochs = ["--epochs", "1", "--rate", "0.001", "--out", "tuned.pt"]
    words = ["--bits", "bits.json", "--data", *train, "--validation", *validation, "--test", *test, *epochs]
    assert "test accuracy after" in command("finetune", *NET, *words)
    tuned = ["--model", "my_net:net", "--weights", "tuned.pt", "--bits", "tuned.bits.json", "--data", *test]
    assert "with windows" in command("validate", *tuned, "--repeat", "2")

    parties = [sys.executable, "-m", "hummingbird", "run", "--parties", "2", "--"]
    run([*parties, "-m", "hummingbird", "infer", *tuned, "--json", "figures.json"], tmp_path, **python)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["images"] == 48 and figures["parties"] == 2 and figures["bits_predicted_equal_bits_sent"]
    assert figures["accuracy_private_percent"] > 90 and figures["agreement_percent"] > 90
