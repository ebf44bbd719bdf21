"""The guides: every error has its chapter with messages that the package gives, and their programs run."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import shlex
import sys
from pathlib import Path

import pytest

from hummingbird import errors, init
from tests.support.pages import FILE, blocks, run, text_of
from tests.support.paths import ROOT
from tests.test_floors import FILES, nodes, parsed

TROUBLE, CRYPTEN, CONCRETE, CLOUDS = (
    ROOT / f"docs/{name}.md" for name in ("troubleshooting", "from-crypten", "from-concrete-ml", "two-clouds")
)
WORDS = 4  # words in a row that a message and the code must share


@functools.cache
def said_by_the_package() -> str:
    """The text of every string of the package, with a space for each value of a format string."""
    found = []
    for path in FILES:
        for node in nodes(parsed(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else " " for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return " ".join(" ".join(found).split())


def is_said(line: str, text: str) -> bool:
    """Whether the package says `line`: some words of it in a row, all of them if it is shorter."""
    words = re.sub(r"\(at [^)]*\)$|^hint: |\.\.\.", "", line).split()
    runs = [" ".join(words[at : at + WORDS]) for at in range(max(1, len(words) - WORDS + 1))]
    return any(run in text for run in runs)


def test_every_error_has_its_chapter() -> None:
    kinds = {
        name for name, kind in vars(errors).items() if inspect.isclass(kind) and kind.__module__ == errors.__name__
    }
    chapters = re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text_of(TROUBLE), re.MULTILINE | re.DOTALL)
    assert kinds <= {name for name, _ in chapters}
    without = {"Problem", "HummingbirdError"}  # a part of a message, and the base of all
    assert {name for name, text in chapters if "\n```\n" in text} == kinds - without


@pytest.mark.parametrize("path", [TROUBLE, CLOUDS], ids=lambda path: path.stem)
def test_the_messages_are_those_of_the_package(path: Path) -> None:
    text = said_by_the_package()
    shown = [line for block in blocks(path, "") for line in block.splitlines()] if path == TROUBLE else []
    spans = re.findall(r"^\| `([^`]+)` \|", text_of(path), re.MULTILINE)
    spans += re.findall(r"^- `([a-z][^`]* [^`]*)`[:,]", text_of(path), re.MULTILINE)
    assert len(shown) + len(spans) >= 5
    lost = [line for line in [*shown, *spans] if not is_said(line, text)]
    assert not lost
    assert not is_said("the moon is made of green cheese", text)


@pytest.mark.slow
def test_the_program_that_came_from_crypten_runs(tmp_path: Path) -> None:
    (script,) = blocks(CRYPTEN, "python")
    name = FILE.match(script)
    assert name is not None
    (tmp_path / name[1]).write_text(script)
    words = shlex.split(blocks(CRYPTEN, "sh")[0])
    assert "(5, 3) ()" in run([sys.executable, *words[1:]], tmp_path)


def test_the_program_that_came_from_concrete_ml_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = blocks(CONCRETE, "python")
    exec(script, {})  # noqa: S102 - a snippet of this repository
    assert capsys.readouterr().out == "tensor(True)\ntorch.Size([100, 3])\n"


def test_two_clouds_start_as_the_other_pages_say() -> None:
    """Its commands are those of the quickstart, and `init` takes its options."""
    quickstart = blocks(ROOT / "docs/quickstart.md", "sh")
    for word in ("--rdzv-backend=static", "--master_port=29500", "--listen 0.0.0.0:9000"):
        assert any(word in block for block in quickstart) and any(word in block for block in blocks(CLOUDS, "sh"))
    (script,) = blocks(CLOUDS, "python")
    call = next(
        node
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hummingbird.init"
    )
    assert {keyword.arg for keyword in call.keywords} <= set(inspect.signature(init).parameters)
