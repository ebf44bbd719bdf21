"""docs/encrypted.md, docs/lookup.md and the quickstart's short forms: what they show runs, their figures are true."""

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
from hummingbird.he.params import TABLES
from hummingbird.kernels.lookups import dpf
from tests.test_readme import OTHER, QUICKSTART, ROOT, blocks, run, text_of

ENCRYPTED, LOOKUP = ROOT / "docs/encrypted.md", ROOT / "docs/lookup.md"


def started(line: str, folder: Path) -> subprocess.Popen[str]:
    """A server of a `sh` block, in `folder`."""
    words = [sys.executable, *shlex.split(line)[1:]]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""}
    return subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def stop(servers: list[subprocess.Popen[str]]) -> None:
    for server in servers:
        server.terminate()
    for server in servers:
        server.communicate(timeout=20)


@pytest.mark.slow
def test_the_encrypted_example_runs(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    (snippet,) = blocks(ENCRYPTED, "python")
    (tmp_path / "example.py").write_text(snippet)
    out = run([sys.executable, "example.py"], tmp_path)
    # The report's own prediction is tested in test_he_convert.py; here it is that logits of size 10 agree.
    assert float(out.rpartition("largest error ")[2]) < 1e-3 and "encrypted" in out


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


def test_the_security_tables_are_those_of_the_package() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text_of(ENCRYPTED).splitlines()]
    degrees = [int(cell) for cell in next(row for row in rows if row[0] == "N")[1:]]
    for year, table in TABLES.items():
        shown = next(row for row in rows if row[0].startswith(year))
        assert dict(zip(degrees, map(int, shown[1:]), strict=True)) == table


def test_the_lookup_example_and_servers_run(tmp_path: Path) -> None:
    (snippet,) = blocks(LOOKUP, "python")
    exec(snippet, {})  # noqa: S102 - a snippet of this repository
    rows = torch.rand(3000, 8)
    np.save(tmp_path / "table.npy", rows.numpy())
    servers = [started(line, tmp_path) for line in blocks(LOOKUP, "sh")[0].splitlines()]
    try:
        client = pir.Client([f"unix:{tmp_path}/pir{party}.sock" for party in (0, 1)], timeout=60)
        assert torch.equal(client.rows(torch.tensor([0, 1234, 2999])), rows[[0, 1234, 2999]])
        client.close()
    finally:
        stop(servers)


def test_the_size_of_a_key_is_the_format_s() -> None:
    text = " ".join(text_of(LOOKUP).split())
    constant, step, million = map(
        int, re.findall(r"(\d+) \+ (\d+) d bytes for a tree of depth d, (\d+) at 2\^20", text)[0]
    )
    assert [dpf.key_bytes(1 << bits) for bits in (10, 15, 20)] == [constant + step * depth for depth in (0, 5, 10)]
    assert million == dpf.key_bytes(1 << 20)
