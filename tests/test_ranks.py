"""Ranks: what they tell each other, and that one that fails is named by the others, never waited for."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
import torch

from hummingbird import ranks
from hummingbird.errors import EnvironmentProblem
from tests.support import python, ranked
from tests.support.patience import HANG

SLOW = pytest.mark.slow
SILENT = "rank 1 of {} ended without a word, or was silent for {} s (at rank 0)\nhint: "
RAISED = "rank 1 of 2 ended: no such file (at --weights) (at rank 0)\nhint: make it\n"


def test_one_rank_does_everything_and_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with ranks.job() as joined:
        assert joined is None and ranks.first() and (ranks.rank(), ranks.size()) == (0, 1)
        found = ranks.joined(lambda number: torch.tensor([number, 9]), [2, 2], torch.empty(0))
        assert found.tolist() == [0, 9, 1, 9] and [*ranks.part(3)] == [0, 1, 2]
        values = torch.tensor([1.5])
        assert ranks.mean(values) is values and ranks.told(lambda: b"x") == b"x" and ranks.device("cuda") == "cuda"

        def facts() -> dict[str, str]:
            raise AssertionError("nobody to agree with")

        ranks.agree(facts)
        with pytest.raises(RuntimeError, match="its own"), ranks.together():
            raise RuntimeError("its own")


def test_variables_that_are_not_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, size in (("2", "2"), ("one", "2"), ("-1", "2"), ("0", "")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", size)
        with pytest.raises(EnvironmentProblem, match="are no rank and number of ranks"), ranks.job():
            pass


def test_three_ranks_share_numbers_and_see_where_they_differ(tmp_path: Path) -> None:
    ended = ranked.run(3, "ranked", "messages", str(tmp_path / "out"))
    assert ended.returncode == 0, ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.0", "out.1", "out.2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "count", "told"),
    [
        ("killed", 2, f"error: {SILENT.format(2, 3600)}"),
        pytest.param("killed", 3, f"error: {SILENT.format(3, 3600)}", marks=SLOW),
        pytest.param(
            "raises",
            2,
            "error: rank 1 of 2 ended: no such file (at --weights) (at rank 0)\nhint: make it\n",
            marks=SLOW,
        ),
        pytest.param("breaks", 2, "error: rank 1 of 2 ended: ZeroDivisionError: by 0 (at rank 0)\n", marks=SLOW),
        pytest.param("silent", 2, f"error: {SILENT.format(2, 15)}", marks=SLOW),
    ],
)
def test_a_rank_that_fails_is_named(how: str, count: int, told: str) -> None:
    ended = ranked.run(count, "ranked", "fails", how)
    assert ended.returncode != 0 and told in ended.stderr, ended.stderr
    assert ended.stderr.count("error: ") == 1, ended.stderr


def test_ctrl_c_ends_all_ranks() -> None:
    program = python.Parent(
        ranked.command(2, "ranked", "fails", "waits"),
        cwd=ranked.ROOT,
        env=ranked.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert program.stdout is not None and program.stdout.readline() == "waiting\n"
        program.send_signal(signal.SIGINT)
        said = program.communicate(timeout=HANG)[1]
    finally:
        program.kill()
    assert program.returncode != 0 and said.count("interrupted: here is what was kept") == 1, said
    assert "error: " not in said
