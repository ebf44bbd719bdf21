"""Search, fine-tuning and training at two ranks: the windows, the figures and, up to rounding, the weights of one."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.commands.training import Dataset, augment
from tests.support import own_net, ranked
from tests.support.data import WITH_SKLEARN
from tests.support.paths import ROOT

pytestmark = WITH_SKLEARN
WEIGHTS = ROOT / "checkpoints" / "digits.pt"
NET = f"--model digits --weights {WEIGHTS} --dataset digits --split train"
Plan = list[tuple[str, str, int]]  # module, words with {out} for a folder, Ctrl-C at this full score or step, or 0


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def planned(plan: Plan, out: Path) -> list[list[Any]]:
    """The plan as tests/jobs/ranked.py reads it."""
    return [[module, words.replace("{out}", str(out)).split(), last] for module, words, last in plan]


def at_ranks(count: int, plan: Plan, out: Path) -> tuple[list[int], str]:
    """Exit codes of the programs at rank 0, and everything that was printed."""
    out.mkdir(parents=True)
    (out.parent.parent / "plan.json").write_text(json.dumps(planned(plan, out)))
    ended = ranked.run(count, "ranked_programs", str(out.parent.parent / "plan.json"), path=out.parent.parent)
    assert ended.returncode == 0, ended.stderr
    return json.loads((out.parent.parent / "plan.codes").read_text()), ended.stdout + ended.stderr


def alone(plan: Plan, out: Path) -> None:
    """The programs in this process."""
    out.mkdir(parents=True)
    for module, words, _ in planned(plan, out):
        assert importlib.import_module(module).main(words) == 0


def without_seconds(path: Path) -> str:
    """A file of windows or figures but for the times in it."""
    return re.sub(r'"seconds": [\d.]+', "", path.read_text())


@pytest.mark.slow
def test_two_ranks_find_the_windows_and_figures_of_one(tmp_path: Path) -> None:
    """300 images are three batches: one rank has two of them. Batches of 500 in `validate`: 1297 are three."""
    BitConfig(BitWindow(18, 14)).save(tmp_path / "hurts.json")
    search = f"{NET} --samples 300 --group layer --budget 4/64 --widths 0 3 4 6"
    plan: Plan = [
        ("search.find_bits", f"{search} --out {{out}}/bits.json", 0),
        ("search.find_bits", f"{search} --criterion accuracy --objective bits --out {{out}}/accurate.json", 0),
        ("search.frontier", f"{NET} --samples 300 --budgets exact eco 3/64 --uniform --out-folder {{out}}", 0),
        ("search.validate", f"{NET} --bits {tmp_path}/hurts.json --repeat 2 --seed 3 --json {{out}}/rows.json", 0),
    ]
    broken: Plan = [
        ("search.find_bits", f"{search} --out {tmp_path}/bits.json", 5),
        ("search.find_bits", f"{search} --resume --out {tmp_path}/bits.json", 0),
        ("search.find_bits", f"{search} --seed {{rank}} --out {{out}}/none.json", 0),
        ("search.find_bits", f"{search} --weights {tmp_path}/net{{rank}}.pt --out {{out}}/none.json", 0),
        ("search.find_bits", f"{search} --resume --out {{out}}/none.json", 0),
        ("search.find_bits", f"{search} --out {tmp_path}/later/bits.json", 7),
    ]
    (tmp_path / "later").mkdir()
    weights = torch.load(WEIGHTS, weights_only=True)
    torch.save(weights, tmp_path / "net0.pt")
    torch.save({name: value * 2 for name, value in weights.items()}, tmp_path / "net1.pt")
    one, two = tmp_path / "one" / "out", tmp_path / "two" / "out"
    alone(plan, one)
    codes, text = at_ranks(2, [*plan, *broken], two)
    assert codes == [0, 0, 0, 0, 130, 0, 1, 1, 1, 130], text
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in two.iterdir())
    for name in names:
        assert without_seconds(two / name) == without_seconds(one / name), name
    assert without_seconds(tmp_path / "bits.json") == without_seconds(one / "bits.json")
    assert "the ranks differ in --seed: rank 0 has 0, rank 1 has 1" in text
    assert "error: the ranks differ in net: rank 0 has " in text
    assert "there is no search to resume" in text and text.count("error: ") == 3
    assert text.count("saved ") == 3 and text.count("interrupted: ") == 2  # rank 0 alone speaks
    resumed = importlib.import_module("search.find_bits").main
    assert resumed([*search.split(), "--resume", "--out", str(tmp_path / "later" / "bits.json")]) == 0
    assert without_seconds(tmp_path / "later" / "bits.json") == without_seconds(one / "bits.json")


@pytest.mark.slow
def test_ranks_learn_what_one_process_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_net.write(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    torch.manual_seed(0)
    before = importlib.import_module("my_net").net().state_dict()
    torch.save(before, tmp_path / "net.pt")  # untrained
    BitConfig(BitWindow(24, 0)).save(tmp_path / "exact.json")  # nothing random: only the order of sums differs
    net = f"--model my_net:net --weights {tmp_path}/net.pt --bits {tmp_path}/exact.json --device cpu"
    data = "--data my_data:images train --validation my_data:images validation"
    tune = f"finetune {net} {data} --batch 16 --rate 0.05 --epochs 2"
    digits = "--model digits --dataset digits --device cpu"
    plan: Plan = [
        ("hummingbird.__main__", f"{tune} --out {{out}}/tuned.pt", 0),
        ("scripts.train.images", f"{digits} --epochs 2 --out {{out}}/digits.pt", 0),
    ]
    broken: Plan = [
        ("scripts.train.images", f"{digits} --epochs 2 --out {tmp_path}/digits.pt", 15),  # an epoch has 10 steps
        ("scripts.train.images", f"{digits} --epochs 2 --resume --out {tmp_path}/digits.pt", 0),
        ("hummingbird.__main__", f"{tune.replace('--batch 16', '--batch 15')} --out {{out}}/none.pt", 0),
        ("scripts.train.images", f"{digits} --epochs 2 --seed {{rank}} --out {{out}}/none.pt", 0),
    ]
    alone(plan, tmp_path / "one" / "out")
    codes, text = at_ranks(2, [*plan, *broken], tmp_path / "two" / "out")
    assert codes == [0, 0, 130, 0, 1, 1], text
    assert (tmp_path / "two" / "out" / "digits.pt").read_bytes() == (tmp_path / "digits.pt").read_bytes()
    assert "a batch of 15 images for 2 ranks (at --batch)" in text
    one, two = (torch.load(tmp_path / folder / "out" / "tuned.pt", weights_only=True) for folder in ("one", "two"))
    for name, weights in one.items():
        # Six steps with float32 sums of 16 terms in another order: relative errors of about 1e-6.
        torch.testing.assert_close(two[name], weights, rtol=1e-4, atol=1e-5)
        assert not torch.equal(weights, before[name])


def test_a_part_of_a_batch_is_moved_as_among_all() -> None:
    images = torch.randn(8, 1, 6, 6)
    dataset = Dataset((1, 6, 6), 2, (0.25,), (0.5,), shift=2, flip=True)
    whole = augment(images, dataset, torch.Generator().manual_seed(0))
    parts = [augment(images, dataset, torch.Generator().manual_seed(0), slice(n, n + 4)) for n in (0, 4)]
    assert torch.equal(torch.cat(parts), whole) and not torch.equal(whole, images)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_ranks_on_gpus(tmp_path: Path) -> None:
    """Two ranks: on one card gradients go through gloo, on two through NCCL."""
    plan: Plan = [
        ("search.find_bits", f"{NET} --samples 300 --budget 4/64 --device cuda --out {{out}}/bits.json", 0),
        ("scripts.train.images", "--model digits --dataset digits --epochs 8 --device cuda --out {out}/digits.pt", 0),
    ]
    alone(plan, tmp_path / "one" / "out")
    codes, text = at_ranks(2, plan, tmp_path / "two" / "out")
    assert codes == [0, 0], text
    one, two = tmp_path / "one" / "out" / "bits.json", tmp_path / "two" / "out" / "bits.json"
    assert without_seconds(two) == without_seconds(one)
    (right,) = re.findall(r"test accuracy ([\d.]+) %", text)
    assert float(right) > 50  # chance is 10 %
