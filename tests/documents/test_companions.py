"""Everything that docs/encrypted.md, docs/two-party.md, docs/lookup.md and the quickstart's short forms show runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hummingbird import pir
from hummingbird.__main__ import main
from tests.support import python
from tests.support.pages import OTHER, QUICKSTART, blocks, run
from tests.support.paths import ROOT
from tests.support.patience import HANG

ENCRYPTED, LOOKUP, TWO_PARTY = (ROOT / "docs" / name for name in ("encrypted.md", "lookup.md", "two-party.md"))


def started(line: str, folder: Path) -> subprocess.Popen[str]:
    """A server of a `sh` block, in `folder`."""
    words = [sys.executable, *shlex.split(line)[1:]]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""}
    return python.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def stop(servers: list[subprocess.Popen[str]]) -> None:
    for server in servers:
        server.terminate()
    for server in servers:
        server.communicate(timeout=HANG)


@pytest.mark.slow
def test_the_encrypted_example_runs(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    snippet = blocks(ENCRYPTED, "python")[0]
    (tmp_path / "example.py").write_text(snippet)
    out = run([sys.executable, "example.py"], tmp_path)
    # tests/he/compile/test_convert.py tests the report's own prediction; here it is that logits of size 10 agree.
    assert float(out.rpartition("largest error ")[2]) < 1e-3 and "encrypted" in out


@pytest.mark.slow
def test_the_encrypted_files_example_runs(tmp_path: Path) -> None:
    """The loop for several turns is in place of the last lines: it runs on the same objects."""
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    _, files, loop = blocks(ENCRYPTED, "python")
    again = "batch = client.begin(torch.rand(2, 1, 28, 28))\n"
    (tmp_path / "example.py").write_text(f"{files}{again}{loop}print(logits.shape)\n")
    out = run([sys.executable, "example.py"], tmp_path)
    assert out.startswith("tensor([") and out.splitlines()[-1] == "torch.Size([2, 10])"
    table = re.findall(r"^\| `([\w.]+)` \| ([\d.]+) ([kM])B \|", ENCRYPTED.read_text(), re.MULTILINE)
    sizes = {name: (tmp_path / name).stat().st_size / {"k": 1e3, "M": 1e6}[unit] for name, _, unit in table}
    assert {name: f"{size:.1f}" for name, size in sizes.items()} == {name: text for name, text, _ in table}
    assert {path.name for path in tmp_path.iterdir()} == {*sizes, "checkpoints", "example.py"}


def test_the_short_forms_in_the_quickstart_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    snippets = [b for b in blocks(QUICKSTART, "python") if OTHER.match(b)]
    assert len(snippets) == 2
    (tmp_path / "short.py").write_text("import torch\n" + "".join(snippets))
    out = run([sys.executable, "short.py"], tmp_path)
    assert "torch.Size([4, 10])" in out and out.splitlines()[-1] == "True"


@pytest.mark.slow
def test_the_encrypted_commands_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    np.save(tmp_path / "images.npy", torch.rand(5, 1, 28, 28).numpy())
    np.save(tmp_path / "labels.npy", np.zeros(5, np.int64))
    serve, ask = blocks(ENCRYPTED, "sh")[0].splitlines()
    server = started(serve, tmp_path)
    try:
        run([sys.executable, *shlex.split(ask)[1:]], tmp_path)
    finally:
        stop([server])
    assert np.load(tmp_path / "logits.npy").shape == (5, 10)


@pytest.mark.slow
def test_the_two_party_example_runs(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    (snippet,) = blocks(TWO_PARTY, "python")
    (tmp_path / "example.py").write_text(snippet)
    out = run([sys.executable, "example.py"], tmp_path)
    # Uniform pixels are no digits; windows of 8 bits keep logits of size 6 to some tenths.
    assert float(out.rpartition("largest error ")[2]) < 1.5 and "bytes measured" in out


@pytest.mark.slow
def test_the_two_party_commands_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    np.save(tmp_path / "images.npy", torch.rand(5, 1, 28, 28).numpy())
    serve, prepare, ask = blocks(TWO_PARTY, "sh")[0].splitlines()
    server = started(serve, tmp_path)
    try:
        assert server.stdout is not None and "listening" in server.stdout.readline()
        run([sys.executable, *shlex.split(prepare)[1:]], tmp_path)
        run([sys.executable, *shlex.split(ask)[1:]], tmp_path)
    finally:
        stop([server])
    assert np.load(tmp_path / "logits.npy").shape == (5, 10)


def test_the_lookup_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for snippet in blocks(LOOKUP, "python"):
        exec(snippet, {})  # noqa: S102 - a snippet of this repository


@pytest.mark.slow
def test_the_lookup_servers_run(tmp_path: Path) -> None:
    rows = torch.rand(3000, 8)
    np.save(tmp_path / "table.npy", rows.numpy())
    servers = [started(line, tmp_path) for line in blocks(LOOKUP, "sh")[0].splitlines()]
    try:
        client = pir.Client([f"unix:{tmp_path}/pir{party}.sock" for party in (0, 1)], timeout=HANG)
        assert torch.equal(client.rows(torch.tensor([0, 1234, 2999])), rows[[0, 1234, 2999]])
        client.close()
    finally:
        stop(servers)


def test_the_owner_s_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = torch.rand(300, 8)
    np.save(tmp_path / "table.npy", rows.numpy())
    np.save(tmp_path / "indices.npy", np.array([7, 299]))
    np.save(tmp_path / "rows.npy", np.zeros((2, 8), np.float32))
    rows[[7, 299]] = 0
    lines = next(block for block in blocks(LOOKUP, "sh") if "pir-owner" in block).splitlines()
    servers = []
    try:
        for line in lines:
            if " pir-server " in line:
                servers.append(started(line, tmp_path))
                assert servers[-1].stdout is not None and "version 0" in servers[-1].stdout.readline()
            else:
                assert main(shlex.split(line)[3:]) == 0
        assert capsys.readouterr().out.count("8 float32 signed, version 1, digest") == 2
        public = bytes.fromhex((tmp_path / "owner.key.pub").read_text())
        client = pir.Client([f"unix:{tmp_path}/pir{party}.sock" for party in (0, 1)], timeout=HANG, owner=public)
        assert torch.equal(client.rows(torch.arange(300)), rows)
        client.close()
    finally:
        stop(servers)
