"""The programs a user runs: inference between parties with every kind of dealer, and the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import python
from tests.support.covering import every
from tests.support.dealers import Authority
from tests.support.parties import run, succeed
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM
from tests.support.ports import free_port

NET = ["--model", "models:get_model", "digits", "10", "--weights", "checkpoints/digits.pt"]
DIGITS = ["-m", "hummingbird", "infer", *NET, "--data", "scripts.train.data:load", "digits", "test"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def call(*command: str) -> str:
    """Run a program of the project, and return what it printed."""
    ended = python.run(
        [sys.executable, *command], cwd=ROOT, env=ENVIRONMENT, text=True, capture_output=True, timeout=PROGRAM
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_infer_under_run_with_its_own_dealer(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    options = [
        "--bits",
        "checkpoints/digits.bits.json",
        "--samples",
        "200",
        "--batch",
        "80",
        "--layers",
        "--json",
        str(result),
    ]
    launcher = ["-m", "hummingbird", "run", "--parties", "2", "--"]
    printed = call(*launcher, *DIGITS, *options)
    figures = json.loads(result.read_text())
    assert figures["images"] == 200 and figures["parties"] == 2
    assert figures["bits_predicted_equal_bits_sent"]
    assert figures["agreement_percent"] >= 99.0 and figures["accuracy_private_percent"] >= 98.0
    assert "[21:13)" in printed and "relu1" in printed and "predicted kB" in printed


@pytest.mark.slow
def test_a_net_that_asks_for_shapes_is_traced_on_party_0s_images(tmp_path: Path) -> None:
    """With the weights of party 1, which knows of the images their shape alone."""
    result, words = (
        tmp_path / "result.json",
        ["--model", "tests.support.asking:net", "--data", "tests.support.asking:images"],
    )
    succeed(["-m", "hummingbird", "infer", *words, "--owner", "1", "--samples", "5", "--json", str(result)], 2)
    figures = json.loads(result.read_text())
    assert figures["images"] == 5 and figures["bits_predicted_equal_bits_sent"]
    assert figures["accuracy_private_percent"] == 100.0


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_infer_from_a_store(again: bool, tmp_path: Path) -> None:
    """Dealt in advance for 40 images in slices of 8: a run of 20 takes three of them, and a second one has too few."""
    bits, store, result = ["--bits", "checkpoints/digits.bits.json"], str(tmp_path / "store"), tmp_path / "result.json"
    net = ["--model", "models:get_model", "digits", "10", "--input", "8x1x8x8"]
    call("-m", "hummingbird", "deal", *net, *bits, "--protocol", "gmw", "--images", "40", "--out", store)
    options = [*DIGITS, *bits, "--protocol", "gmw", "--samples", "20", "--store", store, "--json", str(result)]
    party, _ = succeed(options, 2)
    figures = json.loads(result.read_text())
    assert figures["images"] == 20 and figures["bits_predicted_equal_bits_sent"]
    assert figures["agreement_percent"] >= 95.0 and figures["offline_kilobytes_per_image"] > 100
    assert "the store holds material for 40 images, in slices of 8" in party.out
    for ended in run(options, 2) if again else ():
        assert ended.code == 1 and "material for 2 more slices of 8, 3 are needed" in ended.err, ended.err


@pytest.mark.slow
def test_three_parties_private_weights_and_a_dealer_elsewhere_over_mutual_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    for name in ("dealer", "party-0", "party-1", "party-2"):
        authority.issue(name, *(["localhost"] if name == "dealer" else [name]))
    address, result = f"localhost:{free_port()}", tmp_path / "result.json"

    def certificates(name: str) -> list[str]:
        stem = str(tmp_path / f"ca-{name}")
        return ["--tls-cert", f"{stem}.crt", "--tls-key", f"{stem}.key", "--tls-ca", str(authority.path)]

    command = [sys.executable, "-m", "hummingbird", "dealer", "--listen", address, *certificates("dealer")]
    dealer = python.Popen(command, cwd=ROOT, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE)
    try:
        # Party 1 owns the weights: the others have no use for the checkpoint.
        options = ["--owner", "1", "--samples", "40", "--dealer", address, "--json", str(result)]
        succeed([*DIGITS, *options, *certificates("party-{rank}"), "--timeout", f"{HANG:g}"], 3)
    finally:
        dealer.terminate()
        dealer.communicate(timeout=HANG)
    figures = json.loads(result.read_text())
    assert figures["parties"] == 3 and figures["bits_predicted_equal_bits_sent"]
    assert figures["accuracy_private_percent"] >= 95.0
    assert "accuracy_plain_percent" not in figures  # party 0 has no weights to compare with


@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    result = tmp_path / "demo.json"
    printed = call("-m", "scripts.demo", "--images", "60", "--json", str(result))
    crypten, exact, reduced = json.loads(result.read_text())
    assert "CrypTen 0.4.1" in printed
    assert crypten["accuracy_private_percent"] == exact["accuracy_private_percent"]
    assert crypten["online_kilobytes_per_image"] > 5 * exact["online_kilobytes_per_image"]
    assert exact["online_kilobytes_per_image"] > 2 * reduced["online_kilobytes_per_image"]
    assert crypten["rounds_per_batch"] > reduced["rounds_per_batch"]


@pytest.mark.parametrize("program", every(2, ["train.images", "demo", "bench.relu", "bench.resnet", "tools.net_table"]))
def test_help_teaches(program: str) -> None:
    assert len(call("-m", f"scripts.{program}", "--help")) > 300
