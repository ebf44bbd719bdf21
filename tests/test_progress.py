"""Progress lines: shown in a terminal and in a notebook, and nowhere else."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from hummingbird.progress import progress_line


class Screen(io.StringIO):
    """A stderr that says whether it is a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def shown(monkeypatch: pytest.MonkeyPatch, terminal: bool = False, *, quiet: bool = False, delay: float = 0.0) -> str:
    """The text that a phase of three items writes to stderr."""
    screen = Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    assert [*progress_line(range(3), desc="reading", unit="page", quiet=quiet, delay=delay)] == [0, 1, 2]
    return screen.getvalue()


def test_a_terminal_shows_one_line_that_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, True)
    assert "reading:   0%" in text and "page" in text and "\n" not in text
    assert text.rpartition("\r")[0].rpartition("\r")[2].strip() == ""  # the last thing that it writes: spaces


def test_a_fast_phase_and_a_log_file_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch) == ""
    assert shown(monkeypatch, True, quiet=True) == "" and shown(monkeypatch, True, delay=60).strip() == ""


@pytest.mark.parametrize(("config", "seen"), [({"IPKernelApp": {}}, True), ({}, False)], ids=["kernel", "ipython"])
def test_a_notebook_shows_it(config: dict[str, object], seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's stderr is no terminal; that of IPython in a log file is neither."""
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(config=config), version_info=(9, 0))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    assert ("reading" in shown(monkeypatch)) == seen


def test_a_caller_reports_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(True)
    monkeypatch.setattr(sys, "stderr", screen)
    with progress_line(total=4, initial=1, desc="dealing", unit="image") as bar:
        bar.update(3)
        assert bar.n == 4
    assert "dealing:  25%" in screen.getvalue()
