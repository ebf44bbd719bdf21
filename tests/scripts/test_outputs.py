"""Programs that write files say before they run that there is no place for one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import python
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM

PROGRAMS = [
    ("scripts.bench.relu", "--json"),
    ("scripts.bench.relu", "--plot"),
    ("scripts.bench.resnet", "--json"),
    ("scripts.bench.linear", "--json"),
    ("scripts.demo", "--json"),
    ("hummingbird infer", "--json"),
    ("scripts.bench.crypten_baseline", "--json"),
]
REQUIRED = {
    "hummingbird infer": ["--model", "models:get_model", "digits", "10", "--data", "scripts.train.data:load", "digits"],
    "scripts.bench.crypten_baseline": ["--model", "digits"],
}


@pytest.mark.parametrize(("program", "option"), PROGRAMS)
def test_no_folder_is_an_error_before_the_run(program: str, option: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", *program.split(), option, str(tmp_path / "absent" / "file.json")]
    command += REQUIRED.get(program, [])
    ended = python.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr, ended.stderr
    assert f"there is no folder {tmp_path / 'absent'} (at {option})" in ended.stderr
    assert "make it first" in ended.stderr and not ended.stdout
