"""The oldest Python that pyproject.toml promises is the one that the tools check, and every file is in its language."""

from __future__ import annotations

import ast
import gc
import re

import pytest

from tests.support.paths import ROOT
from tests.test_floors import PACKAGE
from tests.test_rules import tracked


def stated(name: str, pattern: str) -> tuple[int, int]:
    """The one version that a file of the project's root states in that place."""
    ((major, minor),) = re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE)
    return int(major), int(minor)


OLDEST = stated("pyproject.toml", r'^requires-python = ">=(\d+)\.(\d+)"')


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("pyproject.toml", r'^python_version = "(\d+)\.(\d+)"'),  # mypy: names and syntax of the package
        ("pyproject.toml", r'^target-version = "py(\d)(\d+)"'),  # ruff: what it proposes
        ("Makefile", r"sys\.version_info < \((\d+), (\d+)\)"),
        ("setup.py", r'"py_limited_api": "cp(\d)(\d+)"'),  # the wheel's tag
    ],
    ids=["mypy", "ruff", "make", "wheel"],
)
def test_tools_check_the_oldest_python(name: str, pattern: str) -> None:
    assert stated(name, pattern) == OLDEST


def newer(source: str) -> bool:
    """Whether a source has syntax that the oldest Python lacks; names of its library are mypy's to check."""
    gc.disable()  # it would go through all trees that other tests keep
    try:
        ast.parse(source, feature_version=OLDEST)
    except SyntaxError:
        return True
    finally:
        gc.enable()
    return False


@pytest.mark.parametrize("package", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_file_is_in_the_language_of_the_oldest_python(package: bool) -> None:
    """Files of the package, and of all other folders."""
    paths = [path for path in tracked() if path.suffix == ".py" and path.is_relative_to(PACKAGE) == package]
    assert len(paths) > 100 and not [path for path in paths if newer(path.read_text())]
    assert newer("try:\n    f()\nexcept* OSError:\n    pass")  # 3.11
