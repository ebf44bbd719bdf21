"""The state of a search: interrupted, killed, cut off or foreign."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from hummingbird.bits import BitConfig
from hummingbird.errors import ConfigError, InputError
from hummingbird.window_search import (
    ComparingLayer,
    group_layers,
    online_bytes,
    search_bits,
)
from tests.support import python
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM
from tests.support.search_cases import Instance, Table


def told(config: BitConfig) -> Any:
    """All of a config but the time it took."""
    return config.layers, {key: value for key, value in config.provenance.items() if key != "seconds"}


class Stopped(Table):
    """A table that is interrupted at its n-th question."""

    def __init__(self, seed: int, last: int) -> None:
        super().__init__(seed)
        self.last = last

    def __call__(self, config: BitConfig) -> float:
        if self.calls == self.last:
            raise KeyboardInterrupt
        return super().__call__(config)


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_interrupted_anywhere_and_resumed_is_undisturbed(tmp_path: Path, step: int) -> None:
    whole = Instance(3)
    expected = whole.search(thrifty=False)
    assert expected is not None and whole.table.calls > 10
    for last in range(0, whole.table.calls, step):
        state, first, second = tmp_path / f"{last}.state", Instance(3), Instance(3)
        first.table = Stopped(3, last)
        with pytest.raises(KeyboardInterrupt):
            first.search(thrifty=False, state=state)
        config = second.search(thrifty=False, state=state)
        assert config is not None and told(config) == told(expected)
        assert second.table.calls == whole.table.calls - last  # what was answered is not asked again


def test_seconds_are_those_of_all_sessions(tmp_path: Path) -> None:
    state, first, second = tmp_path / "state", Instance(3), Instance(3)
    first.table = Stopped(3, 9)
    with pytest.raises(KeyboardInterrupt):
        first.search(state=state, before=1000.0)
    config = second.search(state=state, before=100.0)
    whole = Instance(3).search(before=100.0)
    assert config is not None and 1100 <= config.provenance["seconds"] < 1100 + 60
    assert whole is not None and 100 <= whole.provenance["seconds"] < 100 + 60
    lines = [json.loads(line) for line in state.read_text().splitlines()[1:]]
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)


@pytest.mark.parametrize("step", [111, pytest.param(37, marks=pytest.mark.slow)])
def test_a_state_cut_anywhere_is_resumed(tmp_path: Path, step: int) -> None:
    state, whole = tmp_path / "state", Instance(3)
    expected = whole.search(state=state)
    assert expected is not None
    data = state.read_bytes()
    for end in range(data.index(b"\n") + 1, len(data), step):
        state.write_bytes(data[:end])
        config = Instance(3).search(state=state)
        assert config is not None and told(config) == told(expected)
        kept, expected_lines = (_answers(text) for text in (state.read_bytes(), data))
        assert kept == expected_lines


def _answers(data: bytes) -> list[dict[str, Any]]:
    """The lines of a state, without the time they took."""
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in data.splitlines()]


_KILLED = """
import os, signal, sys
from tests.support.search_cases import Instance
from tests.window_search.test_state import Stopped
class Killed(Stopped):
    def __call__(self, config):
        if self.calls == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(config)
instance = Instance(3)
instance.table = Killed(3, 9)
instance.search(state=sys.argv[1])
"""


def test_killed_and_resumed_is_undisturbed(tmp_path: Path) -> None:
    state, root = tmp_path / "state", ROOT
    ended = python.run([sys.executable, "-c", _KILLED, str(state)], cwd=root, capture_output=True, timeout=PROGRAM)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert len(state.read_text().splitlines()) == 1 + 9
    config, expected = Instance(3).search(state=state), Instance(3).search()
    assert config is not None and expected is not None and told(config) == told(expected)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"identity": "another net"},
        {"margin": 0.25},
        {"reach": 3},
        {"widths": (0, 4)},
        {"thrifty": False},
        {"trials": 3},
        {"objective": online_bytes("masked", 3)},
    ],
)
def test_the_state_of_another_search_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    instance, state = Instance(1), tmp_path / "state"
    instance.search(state=state)
    kept = state.read_bytes()
    fixed = {"objective": instance.objective, "margin": instance.margin, "reach": instance.reach}
    fixed |= {"thrifty": True, "headroom": instance.headroom}
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
        ("", "malformed line of a search's state"),
        ("{", "malformed line of a search's state"),
        ("[]\n", "malformed line of a search's state"),
        ('{"format": "hummingbird-bits", "version": 1}\n', "not a hummingbird-search file"),
        ('{"format": "hummingbird-search", "version": 1}\n', "state of version 1, this release reads version 2"),
        ('{"format": "hummingbird-search", "version": 2, "problem": "x"}\n', "another search"),
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
    for change, what in (
        ({"floor": 0.123}, "answer 3 is to another question"),
        ({"answer": [2.0]}, "accurac"),
        ({"answer": []}, "answer 3 is none"),
    ):
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
                headroom=instance.headroom,
                thrifty=True,
                state=state,
            )
    with pytest.raises(ConfigError, match="cannot keep the search's state"):
        instance.search(state=tmp_path)
