"""he-server and he-client as programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hummingbird.__main__ import main
from hummingbird.errors import PeerError
from hummingbird.he.compile.convert import convert_model
from hummingbird.he.service.client import RemoteModel
from hummingbird.he.service.server import Service
from tests.support import python
from tests.support.he_service import SHAPE, close, images, served, small_net
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM

COMMAND = [sys.executable, "-m", "hummingbird"]


@contextmanager
def server_process() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [*COMMAND, "he-server", "--model", "tests.support.he_service:small_net", "--input", "1x6x6"]
        child = python.Popen(
            [*command, "--listen", f"unix:{folder}/s"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert child.stdout is not None
        lines = []
        for line in child.stdout:
            lines.append(line)
            if line.startswith("he-server listening on "):
                break
        assert lines[-1:] == [f"he-server listening on unix:{folder}/s\n"], lines
        try:
            yield f"unix:{folder}/s", child
        finally:
            child.kill()
            child.wait()
            child.stdout.close()


@pytest.mark.slow
def test_two_programs(tmp_path: Path) -> None:
    net = small_net()
    x = images(5)
    np.save(tmp_path / "x.npy", x.numpy())
    with torch.inference_mode():
        np.save(tmp_path / "y.npy", net(x).argmax(1).numpy())
    with server_process() as (address, child):
        words = ["--images", f"{tmp_path}/x.npy", "--labels", f"{tmp_path}/y.npy", "--out", f"{tmp_path}/out.npy"]
        ended = python.run(
            [*COMMAND, "he-client", "--server", address, *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PROGRAM,
        )
        assert ended.returncode == 0, ended.stderr
        lines = ended.stdout.splitlines()
        assert lines[0].startswith("client-aided, 2 turns of up to ") and "in the 2024 table" in lines[0]
        assert lines[1].startswith("a batch is ") and " MB for a lone image, " in lines[1]
        assert lines[2].startswith("5 images in ") and lines[4] == "accuracy 100.00 %, 5 of 5"
        assert lines[3].startswith("precision, bits of an image's typical values: predicted 1")
        assert "measured 1" in lines[3]
        assert close(torch.from_numpy(np.load(tmp_path / "out.npy")), net, x)

        with RemoteModel(address, timeout=20.0) as model:  # the same server, killed in the middle of a turn
            first = threading.Event()

            def stop(done: float) -> None:
                if not first.is_set():
                    first.set()
                    os.kill(child.pid, signal.SIGKILL)

            with pytest.raises(PeerError, match=f"server {address}"):
                model(images(2), progress=stop)


def test_wrong_files_are_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY what")
    np.save(tmp_path / "x.npy", images(2).numpy())
    np.save(tmp_path / "y.npy", np.zeros(3))
    from hummingbird.__main__ import main

    with served(Service(convert_model(small_net(), SHAPE).server)) as address:
        for words in (
            ["--images", f"{tmp_path}/none.npy"],
            ["--images", f"{tmp_path}/bad.npy"],
            ["--images", f"{tmp_path}/x.npy", "--labels", f"{tmp_path}/y.npy"],
            ["--images", f"{tmp_path}/x.npy", "--out", f"{tmp_path}/none/out.npy"],
        ):
            assert main(["he-client", "--server", address, *words]) == 1
            what, hint = capsys.readouterr().err.splitlines()
            assert what.startswith("error: ") and hint.startswith("hint: ")


class Two(nn.Module):
    """Logits and a box of an image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.logits, self.box = nn.Conv2d(1, 8, 3, stride=2), nn.Linear(32, 5), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.conv(x).relu().flatten(1)
        return {"logits": self.logits(x), "box": self.box(x).view(-1, 2, 2)}


def test_several_results_in_their_structure(tmp_path: Path) -> None:
    net = Two().eval()
    made, x = Service(convert_model(net, (1, 6, 6)).server), images(3)
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "labels.npy", np.zeros(3, dtype=np.int64))
    with served(made) as address:
        with RemoteModel(address, timeout=HANG) as model:
            outputs = model(x)
        given = ["he-client", "--server", address, "--images", f"{tmp_path}/x.npy", "--out", f"{tmp_path}/out.npz"]
        assert main(given) == 0
        assert main([*given, "--labels", f"{tmp_path}/labels.npy"]) == 1
    written = np.load(tmp_path / "out.npz")
    with torch.no_grad():
        wanted = net(x)
    assert [*outputs] == [*wanted] == [*written]
    for name, value in wanted.items():
        for got in (outputs[name], torch.from_numpy(written[name])):
            assert got.shape == value.shape and bool((got - value).abs().max() < 2**-9 * value.abs().max())
