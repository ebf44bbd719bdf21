"""A table in parts on a Ray cluster: the scenarios of tests/jobs/ray_parts.py, in a network of their own."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hummingbird.__main__ import main
from hummingbird.errors import EnvironmentProblem, InputError, PeerError
from hummingbird.pir import Server, Source, dpf
from hummingbird.pir.serving.ray_parts import RayPart, RayParts, sampled
from hummingbird.pir.serving.workers import joined
from tests.support.ray_clusters import clustered, play


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hb") as name:
        yield Path(name)


@pytest.mark.slow
@clustered
def test_a_lost_part_is_refused_and_comes_back_with_the_updates(folder: Path) -> None:
    play("lost_part", folder)


@clustered
@pytest.mark.slow
def test_a_program_that_was_killed_has_the_updates_and_ends_in_order_without_a_node(folder: Path) -> None:
    play("program", folder)


@clustered
@pytest.mark.slow
def test_what_cannot_work_is_refused_with_a_hint(folder: Path) -> None:
    play("refusals", folder)


@clustered
@pytest.mark.slow
def test_a_part_that_hangs_is_replaced(folder: Path) -> None:
    play("hang", folder)


@clustered
@pytest.mark.slow
def test_no_kill_makes_an_answer_wrong(folder: Path) -> None:
    print(play("kills", folder, timeout=1700, HB_KILLS="50", HB_NODES="5"))


def test_a_part_answers_at_its_version_only(folder: Path) -> None:
    """A part that was restarted, or lacks a change, has no answer; without Ray, as its methods are called."""
    rows, none = torch.randint(1 << 30, (3000, 2), dtype=torch.int32), np.empty(0, np.int64)
    np.save(folder / "t.npy", rows.numpy())
    whole, part = Server(rows, 0), RayPart(str(folder / "t.npy"), None, 1024, 3000, 1)
    rest = RayPart(str(folder / "t.npy"), None, 0, 1024, 1)
    keys = dpf.generate(torch.tensor([5, 2999]), 3000)[0]
    assert part.version() is None and part.answer(-1, keys.numpy(), 0) is None
    release, sample, digests = part.load()
    assert sample == sampled(Source.of(rows)) and digests == whole._shard.digests[1:]
    assert sample != sampled(Source.of(rows + 1))
    for each in (part, rest):
        each.load()
        assert each.version() is None and each.answer(0, keys.numpy(), 0) is None  # its rows are not checked yet
        each.write(7, none, np.empty((0, 8), np.uint8))
        assert each.version() == 7 and each.answer(6, keys.numpy(), 0) is None
    answers = [torch.from_numpy(each.answer(7, keys.numpy(), 32)) for each in (part, rest)]
    assert joined(answers, 32).equal(whole.answer(keys, "sum")[1])
    part.write(8, np.array([2999]), np.zeros((1, 8), np.uint8))
    whole.write(torch.tensor([2999]), torch.zeros(1, 8, dtype=torch.uint8))
    answers = [torch.from_numpy(each.answer(at, keys.numpy(), 0)) for each, at in ((part, 8), (rest, 7))]
    assert joined(answers, 0).equal(whole.answer(keys, "xor")[1])
    np.save(folder / "t.npy", rows[:2000].numpy())
    with pytest.raises(InputError, match="the file has 2,000 rows of 2 int32"):
        part.load()
    assert part.version() is None
    with pytest.raises(PeerError, match="has not loaded"):
        part.write(9, none, none)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--ray", "auto"], "--ray and --parts belong together"),
        (["--parts", "2"], "--ray and --parts belong together"),
        (["--ray", "auto", "--parts", "2", "--workers", "2"], "--ray with --workers, --device or --plan"),
        (["--ray", "auto", "--parts", "2", "--device", "cuda"], "--ray with --workers, --device or --plan"),
        (["--ray", "10.0.0.1", "--parts", "2"], "not the address of a Ray cluster|needs the package ray"),
    ],
)
def test_options_that_do_not_go_together(
    folder: Path, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(folder / "t.npy", np.zeros((3000, 2), np.float32))
    table = ["--table", str(folder / "t.npy"), "--party", "0", "--listen", f"unix:{folder}/0.sock"]
    assert main(["pir-server", *table, *words]) == 1
    assert re.search(text, capsys.readouterr().err)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    np.save(folder / "t.npy", np.zeros((3000, 2), np.float32))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        EnvironmentProblem, match=r"--ray needs the package ray\nhint: pip install 'hummingbird-mpc\[ray]"
    ):
        RayParts("auto", folder / "t.npy", None, 2)
