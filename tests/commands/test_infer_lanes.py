"""`infer --lanes`: the answers of one lane, in the order of the images, with the figures of all lanes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.commands.test_infer import ENVIRONMENT
from tests.jobs.stores import SLICE, write_store
from tests.support import python
from tests.support.nursery import Nursery, all_fail
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM

NET = ["--model", "tests.jobs.stores:net", "--window", "20:0", "--batch", "2"]


def tolerance(parties: int) -> float:
    """Three products of at most 16 terms, factors below 2: an error grows at most by 16 weights of 1/4 per layer, and a
    rounding is off by at most `parties` units of 2^-16. It holds with any number of lanes: they only choose which
    shares are rounded.
    """
    return (16 * 2 + parties) * (1 + 4 + 16) * 2.0**-16


def infer(nursery: Nursery, result: Path, parties: int, lanes: int, images: int, *options: str) -> dict[str, object]:
    """Figures of a run of forked processes."""
    words = [*NET, "--data", "tests.jobs.stores:rows", str(images), "--lanes", str(lanes), "--json", str(result)]
    run = nursery.start(["infers", *words, *options], parties * lanes)
    assert [process.wait() for process in run] == [0] * len(run), [process.err.read_text() for process in run]
    figures: dict[str, object] = json.loads(result.read_text())
    assert (figures["parties"], figures["lanes"], figures["images"]) == (parties, lanes, images)
    assert figures["bits_predicted_equal_bits_sent"] and figures["agreement_percent"] == 100
    assert figures["largest_logit_error"] < tolerance(parties)  # and so the rows are in order
    seconds = figures["seconds_by_lane"]
    assert isinstance(seconds, list) and len(seconds) == lanes and figures["seconds"] >= max(seconds)
    assert figures["processor_seconds"] > 0
    printed = run[0].out.read_text()
    assert (f"{lanes} lanes: rounds, kB" in printed) == (lanes > 1)
    # One process shows the figures of all.
    assert ["agreement percent" in process.out.read_text() for process in run] == [True, *[False] * (len(run) - 1)]
    return figures


@pytest.mark.slow
def test_lanes_give_the_answers_of_one(nursery: Nursery, dealer: str, tmp_path: Path) -> None:
    """7 rows in slices of 2: one lane has 4 slices; two have 2 each, and each lane shares its input and opens its
    result by itself. One row for two lanes: the second one has nothing to do.
    """
    result = tmp_path / "result.json"
    one = infer(nursery, result, 2, 1, 7, "--dealer", dealer)
    two = infer(nursery, result, 2, 2, 7, "--dealer", dealer)
    for name in ("online_kilobytes_per_image", "offline_kilobytes_per_image"):
        assert two[name] == pytest.approx(one[name], rel=0.2), name
    lone = infer(nursery, result, 2, 2, 1, "--dealer", dealer)
    assert isinstance(lone["seconds_by_lane"], list) and lone["seconds_by_lane"][1] < lone["seconds_by_lane"][0]


@pytest.mark.slow
@pytest.mark.parametrize("parties", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_parties_of_two_lanes_from_a_store(nursery: Nursery, tmp_path: Path, parties: int) -> None:
    """17 rows in slices of 4: parts of 9 and 8, so 3 and 2 slots."""
    write_store(tmp_path / "store", 3, parties, protocol="masked", lanes=2)
    infer(nursery, tmp_path / "result.json", parties, 2, 17, "--store", str(tmp_path / "store"))
    assert SLICE[0] == 4
    for rank in range(parties):
        ledgers = [tmp_path / "store" / f"party-{rank}" / f"lane-{lane}" / "ledger" for lane in range(2)]
        assert [path.read_text().count("used") for path in ledgers] == [3, 2]


def test_a_store_of_one_lane_is_refused_by_both(nursery: Nursery, tmp_path: Path) -> None:
    write_store(tmp_path / "store", 1, 1, protocol="masked")
    words = [*NET, "--data", "tests.jobs.stores:rows", "4", "--lanes", "2", "--store", str(tmp_path / "store")]
    for text in all_fail(nursery.start(["infers", *words], 2), "a store of one lane"):
        assert "this store was dealt with --lanes 1, this run has lanes=2" in text, text


def test_images_that_a_net_computes_together_are_not_split(nursery: Nursery) -> None:
    words = ["--model", "torch.nn:Softmax", "dim=0", "--data", "tests.jobs.stores:rows", "4", "--lanes", "2"]
    for text in all_fail(nursery.start(["infers", *words], 2), "rows that depend on each other"):
        assert "this net computes images together" in text, text


@pytest.mark.slow
def test_an_error_of_one_lane_ends_the_run(tmp_path: Path) -> None:
    """Lane 1 of party 0 finds no store, while lane 0 of both parties waits for its images to be done."""
    write_store(tmp_path / "store", 2, protocol="masked", lanes=2)
    (tmp_path / "store" / "party-0" / "lane-1" / "header.json").unlink()
    launcher = ["-m", "hummingbird", "run", "--parties", "2", "--lanes", "2", "--", "-m", "hummingbird", "infer"]
    words = [*NET, "--data", "tests.jobs.stores:rows", "8", "--store", str(tmp_path / "store")]
    command = [sys.executable, *launcher, *words]
    ended = python.run(command, cwd=ROOT, env=ENVIRONMENT, text=True, capture_output=True, timeout=PROGRAM)
    assert ended.returncode == 1
    assert "[party 0, lane 1] error: this store was not dealt to its end" in ended.stderr, ended.stderr
