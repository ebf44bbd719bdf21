"""`torchrun --max-restarts`: the processes of a second life meet each other, not the dead of the first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.stores import write_store
from tests.support import python
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM
from tests.support.ports import free_port


def torchrun(folder: Path, options: list[list[str]], *job: str) -> list[tuple[str, str]]:
    """Run several launchers, one with each list of options; their outputs and errors, once all have ended well."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    launchers = [
        python.Popen(
            [sys.executable, "-m", "torch.distributed.run", *one, "--max-restarts=3", "-m", "tests.jobs.restart", *job],
            cwd=ROOT,
            env=variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for one in options
    ]
    said = [launcher.communicate(timeout=PROGRAM) for launcher in launchers]
    for launcher, (_, errors) in zip(launchers, said, strict=True):
        assert launcher.returncode == 0, errors
    return said


@pytest.mark.slow
def test_a_dead_lane_is_named_and_all_come_back(tmp_path: Path) -> None:
    """One launcher, two parties with two lanes: it stops all others when one has died, and starts all anew."""
    ((out, errors),) = torchrun(tmp_path, [["--standalone", "--nproc_per_node=4"]], "2", "", "0")
    names = [f"party {party}, lane {lane}" for party in range(2) for lane in range(2)]
    said_right = [line for line in out.splitlines() if " in life " in line]  # libraries say things, too
    assert sorted(said_right) == [f"{name} in life 1: right" for name in names]
    said = re.findall(r"^\[(party \d, lane \d)\] error: (.*)$", errors, re.MULTILINE)
    assert sorted(name for name, _ in said) == [name for name in names if name != "party 1, lane 0"], errors
    assert all("party 1, lane 0 closed the connection: it ended or was killed" in text for _, text in said), errors


@pytest.mark.slow
def test_a_host_comes_back_alone(tmp_path: Path) -> None:
    """Two launchers, as on two hosts. Party 1 dies before it has met party 0, which waits on and meets its second life;
    then in the middle, which ends party 0 too. What is stored is used once.
    """
    write_store(tmp_path / "store", slots=6)
    port = free_port()
    hosts = [
        ["--nnodes=2", f"--node_rank={host}", "--nproc_per_node=1", "--master_addr=127.0.0.1", f"--master_port={port}"]
        for host in range(2)
    ]
    said = torchrun(tmp_path, hosts, "1", str(tmp_path / "store"), "1")
    for party, (out, _) in enumerate(said):
        *marks, last = (line for line in out.splitlines() if re.match("slot |party ", line))
        assert re.fullmatch(rf"party {party} in life {1 + party}: right", last), out
        slots = [int(mark.removeprefix("slot ")) for mark in marks]
        assert len(slots) >= 2 and slots == sorted(set(slots)), out
    last_slots = {re.findall(r"^slot (\d+)$", out, re.MULTILINE)[-1] for out, _ in said}
    assert len(last_slots) == 1, "the last slot is not the same one"
