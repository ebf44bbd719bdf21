"""The state of a search: interrupted, killed, cut off or foreign."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hummingbird.errors import ConfigError, InputError
from hummingbird.search import (
    ComparingLayer,
    group_layers,
    online_bytes,
    search_bits,
)
from tests.search_cases import Instance, Table


class Stopped(Table):
    """A table that is interrupted at its n-th question."""

    def __init__(self, seed: int, last: int) -> None:
        super().__init__(seed)
        self.last = last

    def accuracy(self, *question: Any) -> list[float]:
        if self.calls == self.last:
            raise KeyboardInterrupt
        return super().accuracy(*question)


def test_interrupted_anywhere_and_resumed_is_undisturbed(tmp_path: Path) -> None:
    whole = Instance(3)
    expected = whole.search(thrifty=False)
    assert expected is not None and whole.table.calls > 10
    for last in range(whole.table.calls):
        state, first, second = tmp_path / f"{last}.state", Instance(3), Instance(3)
        first.table = Stopped(3, last)
        with pytest.raises(KeyboardInterrupt):
            first.search(thrifty=False, state=state)
        config = second.search(thrifty=False, state=state)
        assert config is not None and config.to_json() == expected.to_json()
        assert second.table.calls == whole.table.calls - last  # what was answered is not asked again


def test_a_state_cut_anywhere_is_resumed(tmp_path: Path) -> None:
    state, whole = tmp_path / "state", Instance(3)
    expected = whole.search(state=state)
    assert expected is not None
    data = state.read_bytes()
    for end in range(data.index(b"\n") + 1, len(data), 37):
        state.write_bytes(data[:end])
        config = Instance(3).search(state=state)
        assert config is not None and config.to_json() == expected.to_json()
        assert state.read_bytes() == data


_KILLED = """
import os, signal, sys
from tests.search_cases import Instance
from tests.test_search_state import Stopped
class Killed(Stopped):
    def accuracy(self, *question):
        if self.calls == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().accuracy(*question)
instance = Instance(3)
instance.table = Killed(3, 9)
instance.search(state=sys.argv[1])
"""


def test_killed_and_resumed_is_undisturbed(tmp_path: Path) -> None:
    state, root = tmp_path / "state", Path(__file__).parent.parent
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(state)], cwd=root, capture_output=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert len(state.read_text().splitlines()) == 1 + 9
    config, expected = Instance(3).search(state=state), Instance(3).search()
    assert config is not None and expected is not None and config.to_json() == expected.to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"identity": "another net"},
        {"margin": 0.25},
        {"reach": 3},
        {"widths": (0, 4)},
        {"thrifty": False},
        {"objective": online_bytes("masked", 3)},
    ],
)
def test_the_state_of_another_search_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    instance, state = Instance(1), tmp_path / "state"
    instance.search(state=state)
    kept = state.read_bytes()
    fixed = {"objective": instance.objective, "margin": instance.margin, "reach": instance.reach}
    fixed |= {"thrifty": True}
    with pytest.raises(ConfigError, match="state of another search") as caught:
        search_bits(instance.groups, instance.table, instance.budget, state=state, **(fixed | change))
    assert str(state) in str(caught.value) and "hint: resume with the same net" in str(caught.value)
    assert state.read_bytes() == kept


def test_the_state_of_another_net_is_refused(tmp_path: Path) -> None:
    layers = [ComparingLayer("relu1", 10, 100), ComparingLayer("relu2", 10, 100)]
    search_bits(group_layers(layers, "layer"), lambda config: 0.5, 1 / 8, state=tmp_path / "state")
    for other in (
        [layers[0]],
        [layers[0], ComparingLayer("relu3", 10, 100)],
        [layers[0], ComparingLayer("relu2", 11, 100)],
        [layers[0], ComparingLayer("relu2", 10, 1000)],
    ):
        with pytest.raises(ConfigError, match="another search"):
            search_bits(group_layers(other, "layer"), lambda config: 0.5, 1 / 8, state=tmp_path / "state")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not a line"),
        ("{", "not a line"),
        ("[]\n", "not a line"),
        ('{"format": "hummingbird-bits", "version": 1}\n', "not a hummingbird-search file"),
        ('{"format": "hummingbird-search", "version": 2}\n', "state of version 2, this release reads version 1"),
        ('{"format": "hummingbird-search", "version": 1, "problem": "x"}\n', "another search"),
    ],
)
def test_files_that_are_no_state_are_refused(tmp_path: Path, text: str, what: str) -> None:
    state = tmp_path / "state"
    state.write_text(text)
    with pytest.raises(ConfigError, match=what) as caught:
        search_bits(Instance(1).groups, lambda config: 0.5, 1 / 8, state=state)
    assert str(state) in str(caught.value) and state.read_text() == text


def test_answers_to_other_questions_are_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    instance = Instance(3)
    instance.search(state=state)
    lines = state.read_text().splitlines()
    for change, what in (({"floor": 0.123}, "answer 3 is to another question"), ({"accuracy": [2.0]}, "accurac")):
        changed = [*lines[:3], json.dumps(json.loads(lines[3]) | change), *lines[4:]]
        state.write_text("\n".join(changed) + "\n")
        with pytest.raises((ConfigError, InputError), match=what):
            search_bits(
                instance.groups,
                instance.table,
                instance.budget,
                objective=instance.objective,
                margin=instance.margin,
                reach=instance.reach,
                thrifty=True,
                state=state,
            )
    with pytest.raises(ConfigError, match="cannot keep the search's state"):
        instance.search(state=tmp_path)
