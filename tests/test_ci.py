"""The script that a change must pass, with the Makefile of this package, on a small project of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.patience import HANG

PASSES = "def test_passes():\n    pass\n"
FAILS = "def test_fails():\n    assert 1 == 2\n"
FLAKY = """import pathlib


def test_flaky():
    mark = pathlib.Path("mark")
    ran = mark.exists()
    mark.touch()
    assert ran
"""
ENDS = "import pytest\n\n\ndef test_ends():\n    pytest.exit('ended early', returncode=3)\n"


def ci(folder: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Run `.ci/run` in a project of these test files; the environment is the one that runs this test."""
    for name in (".ci/run", "Makefile", "pyproject.toml", "setup.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text((ROOT / name).read_text().replace(" -n 3 ", " -n 1 "))  # two tests need no more
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    # Its linters find nothing, at once: what happens to tests is the subject.
    linters = 'case "$2" in ruff | mypy) exit 0 ;; esac'
    python.write_text(f'#!/bin/sh\n{linters}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    ready = "touch .venv/.ready-$(cat setup.py pyproject.toml | cksum | cut -d' ' -f1) build/.native"
    for name in ("build", "tests", "hummingbird"):
        (folder / name).mkdir()
    (folder / "tests/support").mkdir()
    for name in ("hummingbird/__init__.py", "tests/support/typed_program.py"):  # which lint checks
        (folder / name).touch()
    subprocess.run(ready, shell=True, cwd=folder, check=True)
    for number, text in enumerate(tests):
        (folder / f"tests/test_{number}.py").write_text(text)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "MAKE", "MFLAGS"))}
    command = ["bash", str(folder / ".ci/run")]
    return subprocess.run(command, cwd=folder, env=clean, text=True, timeout=HANG, capture_output=True)


@pytest.mark.parametrize(
    ("tests", "passes", "says"),
    [
        pytest.param((PASSES,), True, "1 passed", marks=pytest.mark.slow),
        pytest.param(
            (PASSES, FLAKY), True, "Mend these next:\n  tests/test_1.py::test_flaky\n", marks=pytest.mark.slow
        ),
        ((PASSES, FAILS), False, "Once more, alone: 1 that failed."),
        pytest.param((FLAKY, FAILS), False, "Once more, alone: 2 that failed.", marks=pytest.mark.slow),
        # Some tests did not run: nothing is run again.
        pytest.param((FAILS, ENDS), False, "INTERNALERROR", marks=pytest.mark.slow),
    ],
)
def test_a_flaky_test_fails_no_change(tmp_path: Path, tests: tuple[str, ...], passes: bool, says: str) -> None:
    run = ci(tmp_path, *tests)
    assert (run.returncode == 0) == passes, run.stdout + run.stderr
    assert says in run.stdout, run.stdout + run.stderr
    assert ("flaky:" in run.stdout) == (passes and FLAKY in tests)
    assert ("Once more" in run.stdout) == (tests != (PASSES,) and ENDS not in tests)


@pytest.mark.parametrize("works", [True, False])
def test_pip_installs_where_uv_fails(tmp_path: Path, works: bool) -> None:
    """An interpreter of the test's own notes what it is asked; where uv fails, the packages are still installed."""
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\necho "$@" >> asked\ncase "$2" in\n'
        '  venv) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;\n'
        f"  uv) exit {int(not works)} ;;\nesac\n"
    )
    python.chmod(0o755)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "lint", "PYTHON=./python"]
    done = subprocess.run(command, cwd=tmp_path, env=clean, text=True, timeout=HANG, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if "--editable .[test,docs]" in line]
    assert [line.split()[1] for line in asked] == (["uv"] if works else ["uv", "pip"])
    assert ("Installing with pip" in done.stdout) != works


def test_no_port_is_given_to_two_processes_of_tests() -> None:
    """While both live, and neither listens yet."""
    code = "from tests.support.ports import free_port; print([free_port() for _ in range(300)], flush=True); input()"
    command = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [subprocess.Popen(command, cwd=ROOT, text=True, **pipes) for _ in range(3)]
    try:
        found = [set(json.loads(process.stdout.readline())) for process in processes if process.stdout]
    finally:
        for process in processes:
            process.communicate("\n", timeout=HANG)
    assert len(set().union(*found)) == 900
