"""docs/serving.md: its lines run, and its bytes are those that the plans have."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from hummingbird import cost
from hummingbird.convert import build
from hummingbird.errors import PeerError
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.serving.client import Client
from hummingbird.serving.description import ServiceDescription
from hummingbird.serving.plan import describe
from models import get_model, load_checkpoint
from tests.support import python
from tests.support.pages import blocks, run, text_of
from tests.support.parties import sessions
from tests.support.paths import ROOT
from tests.support.patience import HANG, until
from tests.support.ports import free_port

PAGE = ROOT / "docs/serving.md"
NETS = {
    "digits": ("digits", (1, 8, 8), "digits.bits.json", "digits.pt"),
    "ResNet-18 8/64": ("resnet18", (3, 32, 32), "resnet18-cifar10-8-64.bits.json", "resnet18-cifar10.pt"),
}


def test_the_bytes_are_those_of_the_plans() -> None:
    found = re.findall(r"^\| (\S.*), (two|three) parties \|(.*)\|$", text_of(PAGE), re.MULTILINE)
    assert [name for name, *_ in found] == [name for name in NETS for _ in range(2)]
    plans = {name: planned(name) for name in NETS}
    for name, word, cells in found:
        known = described(plans[name], name, 2 if word == "two" else 3)
        expected = [known.bits, known.result_bits, *bytes_of(known, 1), *bytes_of(known, 64)]
        assert [int(re.sub(r"[ ,B]", "", cell)) for cell in cells.split("|")] == expected


def planned(name: str) -> PrivateNet:
    model, _, bits, weights = NETS[name]
    net = get_model(model, 10)
    load_checkpoint(str(ROOT / "checkpoints" / weights), net)
    return build(net.eval(), ROOT / "checkpoints" / bits)


def described(private: PrivateNet, name: str, parties: int) -> ServiceDescription:
    opened = sessions(parties)
    known = describe(private, NETS[name][1], 64, opened[0], "ab" * 16)
    for session in opened:
        session.channel.close()
    return known


def bytes_of(known: ServiceDescription, images: int) -> tuple[int, int]:
    """Bytes up and down of a request of so many images."""
    return cost.asking(known.parties, images * known.values, known.bits, images * known.results, known.result_bits)


@pytest.mark.slow
def test_the_lines_run(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", torch.rand(5, 1, 8, 8).numpy())
    serve, ask = blocks(PAGE, "sh")[0].splitlines()
    with serving(serve, tmp_path) as moved:
        known = described(planned("digits"), "digits", 2)
        up, down = bytes_of(known, 5)
        told = run([sys.executable, *shlex.split(moved(ask))[1:]], tmp_path)
        assert f"{up / 5e3:.2f} kB up and {down / 5e3:.2f} kB down per image" in told
        assert np.load(tmp_path / "logits.npy").shape == (5, 10)
        (tmp_path / "client.py").write_text(moved(blocks(PAGE, "python")[0]))
        assert f"torch.Size([5, 10]) {known.bits} bits" in run([sys.executable, "client.py"], tmp_path)


@pytest.mark.slow
def test_the_lines_of_a_conversation_run(tmp_path: Path) -> None:
    (serve,), script = blocks(PAGE, "sh")[1].splitlines(), blocks(PAGE, "python")[1]
    with serving(serve, tmp_path) as moved:
        (tmp_path / "client.py").write_text("import torch\nimport hummingbird\n" + moved(script))
        assert len(run([sys.executable, "client.py"], tmp_path).split()) >= 5, "twenty pieces are some words"


@contextmanager
def serving(command: str, folder: Path) -> Iterator[Callable[[str], str]]:
    """Run a command of the page that serves, in a folder, until it answers, and end it in order.

    Yields a function that puts the parties' addresses in place of those of another text of the page.
    """
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]

    def moved(text: str) -> str:
        for rank, address in enumerate(addresses):
            text = text.replace(f"127.0.0.1:910{rank}", address)
        return text

    (folder / "checkpoints").symlink_to(ROOT / "checkpoints")
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    launcher = python.Popen(
        [sys.executable, *shlex.split(command.replace("127.0.0.1:910{rank}", " ".join(addresses)))[1:]],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        until(lambda: answered(addresses), "the service")
        yield moved
    finally:
        launcher.send_signal(signal.SIGTERM)
        out, errors = launcher.communicate(timeout=HANG)
    assert (launcher.returncode, errors) == (0, b""), errors
    assert b"served " in out


def answered(addresses: list[str]) -> bool:
    try:
        Client(addresses, timeout=2.0).close()
    except PeerError:
        return False
    return True
