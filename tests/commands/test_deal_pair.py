"""`deal --pair` as two parties type it: the store that it makes serves `infer`, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hummingbird.__main__ import main
from hummingbird.bits import BitConfig
from hummingbird.mpc.dealer.kept import DESCRIPTION, numbers
from tests.commands.test_infer import DIGITS, NET, call
from tests.support.pair_keeping import parts
from tests.support.parties import Finished, finish, run, start, succeed

BITS = ["--bits", "checkpoints/digits.bits.json"]
DEAL = ["-m", "hummingbird", "deal", "--pair", *NET, *BITS, "--input", "10x1x8x8"]


def made(root: Path, images: int, *words: str) -> list[Finished]:
    return succeed([*DEAL, "--images", str(images), "--out", str(root), *words], 2)


def infer(root: str, images: int, result: Path) -> list[Finished]:
    words = [*DIGITS, *BITS, "--samples", str(images), "--store", root, "--timeout", "30"]
    return run([*words, "--json", str(result)], 2)


@pytest.mark.slow
def test_a_store_that_two_parties_make_serves_them(tmp_path: Path) -> None:
    """The offline bits are those that were predicted, and the net's forms those of the transfers of the link."""
    result = tmp_path / "result.json"
    for party in made(tmp_path / "own", 15, "--pair", "0.04:100e6"):
        assert "1 set(s) of 2 slice(s) of 10 images: " in party.out and "set 1: 20 of 20 images; " in party.out
        assert "made in" in party.out
    for party in infer(str(tmp_path / "own" / "party-{rank}"), 20, result):
        assert party.code == 0, party.err
    figures = json.loads(result.read_text())
    assert figures["bits_predicted_equal_bits_sent"] and figures["accuracy_private_percent"] > 90
    assert json.loads((parts(tmp_path / "own")[0] / DESCRIPTION).read_text())["facts"]["aim"] == "pair:silent:120"
    assert not any(map(numbers, parts(tmp_path / "own")))


@pytest.mark.slow
def test_a_second_line_adds_to_a_store_which_serves_no_other_pair(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    made(tmp_path / "own", 15)
    made(tmp_path / "own", 10)
    made(tmp_path / "other", 20)
    roots, others = parts(tmp_path / "own"), parts(tmp_path / "other")
    assert numbers(roots[0]) == numbers(roots[1]) == [1, 2]
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "party-0").symlink_to(tmp_path / "own" / "party-0")
    (tmp_path / "mixed" / "party-1").symlink_to(tmp_path / "other" / "party-1")
    ids = [json.loads((root / DESCRIPTION).read_text())["id"] for root in (roots[0], others[1])]
    for party in infer(str(tmp_path / "mixed"), 20, result):
        assert party.code == 1 and "Traceback" not in party.err and "hint: " in party.err
        assert "the parties disagree on kept store" in party.err and all(name in party.err for name in ids)
    ended = infer(str(tmp_path / "own" / "party-{rank}"), 40, result)
    assert all(party.code == 0 for party in ended), [party.err for party in ended]
    figures = json.loads(result.read_text())
    assert figures["bits_predicted_equal_bits_sent"] and figures["accuracy_private_percent"] > 95
    assert "material for 40 images, in slices of 10" in ended[0].out  # two sets of two slices
    assert not numbers(roots[0]) and not numbers(roots[1])


@pytest.mark.slow
def test_each_lane_has_a_store_of_its_own(tmp_path: Path) -> None:
    words, out = ["run", "--parties", "2", "--lanes", "2", "--"], ["--images", "80", "--out", str(tmp_path)]
    call("-m", "hummingbird", *words, *DEAL, *out)
    folders = [tmp_path / f"party-{rank}" / f"lane-{lane}" for lane in range(2) for rank in range(2)]
    ids = [json.loads((folder / DESCRIPTION).read_text())["id"] for folder in folders]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    call("-m", "hummingbird", *words, *DIGITS, *BITS, "--samples", "80", "--store", str(tmp_path))
    assert not any(numbers(folder) for folder in folders)


@pytest.mark.slow
def test_a_store_for_private_weights(tmp_path: Path) -> None:
    """Party 1 alone has them, in a file that party 0 lacks; the store serves no other weights and no other owner."""
    result, out = tmp_path / "result.json", str(tmp_path / "own")
    weights, others = tmp_path / "1.pt", tmp_path / "other" / "1.pt"
    state = torch.load("checkpoints/digits.pt", weights_only=True)
    torch.save(state, weights)
    others.parent.mkdir()
    torch.save({name: value * (1.5 if value.dim() > 1 else 1) for name, value in state.items()}, others)
    BitConfig.load("checkpoints/digits.bits.json").windows.save(bits := tmp_path / "bits.json")  # for any weights
    net = ["--model", "models:get_model", "digits", "10", "--bits", str(bits)]
    private = [*net, "--owner", "1", "--weights"]
    deal = ["-m", "hummingbird", "deal", "--pair", *private, str(weights)]
    succeed([*deal, "--input", "10x1x8x8", "--images", "20", "--out", out], 2)
    data = ["--data", "scripts.train.data:load", "digits", "test", "--samples", "20", "--store", out, "--timeout", "30"]
    words = ["-m", "hummingbird", "infer", *data, "--json", str(result)]
    for refused, why in (
        ([*private, str(others)], "the store was used with other private weights (weight 0, counted from 0)"),
        ([*net, "--owner", "0", "--weights", str(weights)], "the store was used with another owner of the weights"),
        ([*net, "--weights", str(weights)], "the store was dealt for weights private, this net has public"),
    ):
        ended = run([*words, *refused], 2)
        assert all(party.code == 1 and "Traceback" not in party.err for party in ended), [party.err for party in ended]
        assert any(why in party.err for party in ended), [party.err for party in ended]
    succeed([*words, *private, str(weights)], 2)
    figures = json.loads(result.read_text())
    assert figures["bits_predicted_equal_bits_sent"] and figures["accuracy_private_percent"] > 90
    assert not any(map(numbers, parts(tmp_path / "own")))


REFUSED = {
    "an object store": (["--out", "s3://bucket/digits"], "two parties make no material in an object store"),
    "sets that are kept": (["--keep", "3"], "--keep beside --pair"),
    "sets": (["--sets", "3"], "--sets beside --pair"),
    "keys": (["--key", "a", "--to", "b"], "--key and --to beside --pair"),
    "conversations": (["--prompt", "3"], "--prompt beside --pair"),
    "other transfers": (["--pair", "loud"], "dealer='pair:loud'"),
    "a number alone": (["--pair", "9000"], "--pair 9000"),
    "private weights of nobody": (["--private-weights"], "--private-weights beside --pair"),
    "another aim": (["--aim", "latency"], "--aim latency beside --pair"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_are_refused(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, text = REFUSED[case]
    assert main([*DEAL[2:], "--images", "20", "--out", str(tmp_path / "own"), *words]) == 1
    said = capsys.readouterr().err
    assert text in said and "hint: " in said and not (tmp_path / "own").exists()


def test_options_of_a_party_without_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in DEAL[2:] if word != "--pair"]
    assert main([*words, "--images", "20", "--out", str(tmp_path / "own"), "--peer-listen", "0.0.0.0:1"]) == 1
    assert "--peer-listen without --pair" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changed",
    [pytest.param(["--input", "20x1x8x8"], marks=pytest.mark.slow), ["--images", "400"]],
    ids=["a slice", "a number"],
)
def test_parties_that_type_other_lines(changed: list[str], tmp_path: Path) -> None:
    base = [*DEAL, "--images", "20", "--out", str(tmp_path)]
    for party in finish(start(base, 2, lambda rank: changed if rank else [])):
        assert party.code == 1 and "Traceback" not in party.err and "the parties disagree on" in party.err, party.err


def test_one_party_alone_has_nobody_to_make_it_with(tmp_path: Path) -> None:
    (ended,) = run([*DEAL, "--images", "20", "--out", str(tmp_path)], 1)
    assert ended.code == 1 and "this process is the only party" in ended.err and "hint: " in ended.err
