"""gc-server, gc-prepare, gc-client and gc-proxy as programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hummingbird.__main__ import main
from hummingbird.bits import BitConfig, BitWindow
from tests.hybrid.test_arithmetic import images
from tests.support import python
from tests.support.hybrid import close, model, serving
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM, until

COMMAND = [sys.executable, "-m", "hummingbird"]


def net() -> nn.Module:
    """A net for 1x6x6 images whose logits are far apart."""
    made = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    return made


@contextmanager
def program(name: str, address: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A program that listens, once it says so."""
    child = python.Popen(
        [*COMMAND, name, *words, "--listen", address],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert child.stdout is not None
    try:
        assert f"{name} listening on {address}\n" in iter(child.stdout.readline, "")
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def ended(*words: str) -> str:
    """The output of a program that ends well."""
    done = python.run([*COMMAND, *words], cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_four_programs(tmp_path: Path) -> None:
    x = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        labels = net()(x).argmax(1)
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "labels.npy", labels.numpy())
    (tmp_path / "bits.json").write_text(BitConfig(BitWindow(20, 6)).to_json())
    server, proxy, store = f"unix:{tmp_path}/s", f"unix:{tmp_path}/p", str(tmp_path / "mine")
    offered = ["--model", "tests.hybrid.test_programs:net", "--input", "1x6x6", "--bits", str(tmp_path / "bits.json")]
    given = ["--images", f"{tmp_path}/x.npy", "--labels", f"{tmp_path}/labels.npy", "--out", f"{tmp_path}/out.npy"]
    for name in ("user", "proxy"):
        assert main(["token", name, "--tokens", f"{tmp_path}/tokens", "--out", f"{tmp_path}/{name}.token"]) == 0
    tokens, log = ["--tokens", f"{tmp_path}/tokens"], tmp_path / "log"
    me, proxy_me = (["--token-file", f"{tmp_path}/{name}.token"] for name in ("user", "proxy"))
    given += me
    kept = ["--store", str(tmp_path / "theirs"), *tokens, "--log", str(log)]
    with program("gc-server", server, *offered, *kept) as child:
        said = ended("gc-prepare", "--server", server, "--store", store, "--images", "2", *me)
        assert said.startswith("2 slots in ") and said.endswith("ready: 2\n")
        said = ended("gc-client", "--server", server, "--store", store, *given)
        assert "3 images in " in said and "2 of them with slots that were ready" in said
        assert "accuracy 100.00 %, 3 of 3" in said and np.load(tmp_path / "out.npy").shape == (3, 3)
        kept = ["--store", str(tmp_path / "p-store"), "--slots", "3", *tokens, *proxy_me]
        with program("gc-proxy", proxy, "--server", server, *kept) as mid:
            words = ("gc-client", "--server", server, "--proxy", proxy, *given)
            said = ""

            def served() -> bool:
                """Whether a user is served: the proxy's first slots are not ready yet when it begins."""
                nonlocal said
                done = python.run([*COMMAND, *words], cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM)
                said = done.stdout
                assert said or "no slot is ready" in done.stderr, done.stderr
                return bool(said)

            until(served, "slots")
            assert "accuracy 100.00 %, 3 of 3" in said
            mid.send_signal(signal.SIGTERM)
            assert mid.wait(HANG) == 0
        child.send_signal(signal.SIGTERM)
        assert child.wait(HANG) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    callers = {(line["method"], line["client"]) for line in lines if line["event"] == "call"}
    assert {
        ("Offline", "user"),
        ("Online", "user"),
        ("Offline", "proxy"),
        ("Online", "proxy"),
        ("Input", "user"),
    } <= callers
    assert lines[-1]["event"] == "stopped"


def test_prepare_and_client_say_what_they_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, x = model(), images(2).float()
    np.save(tmp_path / "x.npy", x.numpy())
    words = ["--store", str(tmp_path / "d")]
    with serving(made, tmp_path / "m") as (address, _):
        assert main(["gc-prepare", "--server", address, *words, "--images", "1"]) == 0
        assert "MB sent and received" in (said := capsys.readouterr().out) and said.endswith("ready: 1\n")
        given = ["--images", f"{tmp_path}/x.npy", "--out", f"{tmp_path}/y.npy"]
        assert main(["gc-client", "--server", address, *words, *given]) == 0
        assert "2 images in " in (said := capsys.readouterr().out) and "1 of them with slots that were ready" in said
        assert close(torch.from_numpy(np.load(tmp_path / "y.npy")), made, x)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--images", "none.npy"], "cannot read none.npy"),
        (["--images", "x.npy", "--out", "none/y.npy"], "there is no folder none"),
        (["--images", "x.npy", "--labels", "x.npy"], "labels are (2, 1, 4, 4), expected (2,)"),
        (["--images", "x.npy"], "one of --store and --proxy is needed"),
        (["--images", "x.npy", "--store", "s", "--proxy", "unix:p"], "one of --store and --proxy is needed"),
        (["--images", "x.npy", "--store", "s", "--tls-cert", "c"], "TLS needs --tls-cert, --tls-key and --tls-ca"),
        (["--images", "x.npy", "--store", "s", "--timeout", "0.1"], "nothing answers"),
    ],
)
def test_bad_options_are_two_lines(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    what: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", images(2).float().numpy())
    assert main(["gc-client", "--server", "unix:none.sock", *words]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and what in said and "\nhint: " in said
