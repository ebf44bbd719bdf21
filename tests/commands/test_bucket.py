"""Commands with an object store: keys, deal and infer, as somebody would type them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hummingbird.__main__ import main
from hummingbird.mpc.dealer.bucket import Bucket
from tests.support import python
from tests.support.object_server import ObjectServer, served
from tests.support.parties import run
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM
from tests.support.ports import free_port

URL = "s3://place-{rank}/digits"
NET = ["--model", "models:get_model", "digits", "10", "--weights", "checkpoints/digits.pt"]
NET += ["--bits", "checkpoints/digits.bits.json"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectServer]:
    monkeypatch.chdir(ROOT)
    with served() as server:
        server.add("place-0", "place-1")
        for name in ("dealer", "stranger"):
            assert main(["keys", str(tmp_path / f"{name}.key")]) == 0
        for rank in range(2):
            words = ["keys", str(tmp_path / f"party-{rank}.key"), "--dealer", str(tmp_path / "dealer.key.pub")]
            assert main(words) == 0
        yield server


def deal(folder: Path, *words: str, key: str = "dealer.key", out: str = URL) -> int:
    """Deal sets of two slots of 10 images."""
    to = [str(folder / f"party-{rank}.key.pub") for rank in range(2)]
    size = ["--input", "10x1x8x8", "--images", "20", "--out", out]
    return main(["deal", *NET, *size, "--key", str(folder / key), "--to", *to, *words])


def infer(folder: Path, *words: str, launcher: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run `infer` as two parties; return the exit code and everything that was printed.

    launcher: the words that start both, in place of a process for each.
    """
    command = ["-m", "hummingbird", "infer", *NET]
    command += ["--data", "scripts.train.data:load", "digits", "test", "--samples", "50", "--batch", "10"]
    command += ["--json", str(folder / "result.json"), *words]
    if not launcher:
        ended = run(command, 2)
        return max(party.code for party in ended), "".join(party.out + party.err for party in ended)
    done = python.run([sys.executable, *launcher, *command], cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_two_parties_infer_from_buckets(
    server: ObjectServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fifty images in slices of ten take three sets of two slots, sealed for each party in a bucket of its own."""
    assert deal(tmp_path, "--sets", "4") == 0
    assert "sets of 2 slices of 10 images for 2 parties" in capsys.readouterr().out
    store = ["--store", URL, "--store-key", str(tmp_path / "party-{rank}.key")]
    code, printed = infer(tmp_path, *store)
    assert code == 0, printed
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["images"] == 50 and found["agreement_percent"] >= 98 and found["bits_predicted_equal_bits_sent"]
    assert [sum(map(len, Bucket(URL, rank).names())) for rank in range(2)] == [1, 1]


@pytest.mark.slow
def test_parties_of_torchrun(server: ObjectServer, tmp_path: Path) -> None:
    """Also with all sets in one bucket."""
    url = "s3://place-0/one"
    assert deal(tmp_path, "--sets", "3", out=url) == 0
    launcher = (
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        f"--master-port={free_port()}",
        "--rdzv-backend=static",
    )
    launcher += ("--master-addr=127.0.0.1", "--nnodes=1")
    code, printed = infer(
        tmp_path, "--store", url, "--store-key", str(tmp_path / "party-{rank}.key"), launcher=launcher
    )
    assert code == 0, printed
    assert json.loads((tmp_path / "result.json").read_text())["agreement_percent"] >= 98


@pytest.mark.parametrize(
    ("words", "what"),
    [
        pytest.param([], "nothing is dealt here", marks=pytest.mark.slow),
        (["stranger.key"], "is sealed to the key"),
        pytest.param(["missing.key"], "the key cannot be read: No such file", marks=pytest.mark.slow),
        pytest.param([None], "an object store without a key", marks=pytest.mark.slow),
    ],
)
def test_wrong_keys_and_empty_buckets(server: ObjectServer, tmp_path: Path, words: list[str | None], what: str) -> None:
    if words:
        assert deal(tmp_path) == 0
    key = words[0] if words else "party-{rank}.key"
    code, printed = infer(tmp_path, "--store", URL, *(["--store-key", str(tmp_path / key)] if key else []))
    assert code == 1 and what in printed and "hint: " in printed, printed


def test_options_that_do_not_fit(server: ObjectServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--input", "10x1x8x8", "--images", "20"]
    for words, what in (
        (["--out", URL], "an object store needs --key and --to"),
        (["--out", URL, "--keep", "4", "--key", "k", "--to", "a", "b"], "an object store is not kept full"),
        (["--out", str(tmp_path / "x"), "--sets", "2"], "--sets are for an object store"),
    ):
        assert main(["deal", *NET, *size, *words]) == 1
        assert what in capsys.readouterr().err
    assert deal(tmp_path, "--parties", "3") == 1
    assert "2 keys for 3 parties" in capsys.readouterr().err
    assert deal(tmp_path, out="s3://nowhere/x") == 1
    assert "no such bucket" in capsys.readouterr().err
    assert deal(tmp_path, "--private-weights") == 1
    assert "masks of private weights are not dealt into an object store" in capsys.readouterr().err
