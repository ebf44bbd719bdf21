"""pir-servers as every service here: callers by tokens, health, figures, a log, an orderly end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hummingbird.__main__ import main
from hummingbird.errors import AccessError, ConfigError, PeerError, TrustError
from hummingbird.pir import BatchedEmbedding, Client
from hummingbird.rpc.security import read_token
from tests.jobs.pir_servers import Pair
from tests.support.patience import HANG, until
from tests.support.ports import free_port
from tests.support.services import health
from tests.support.updates import DIM, OWNER, PLANS, TABLE

PLAN = PLANS["hot and companions"]


@pytest.fixture
def sockets() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hb"))
    yield folder
    shutil.rmtree(folder)


def figures(host: str, port: int) -> dict[str, float]:
    """The figures that a program offers for Prometheus."""
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=HANG) as page:
        lines = page.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_a_plan_behind_tokens(tmp_path: Path, sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "t.npy", TABLE.numpy())
    (tmp_path / "plan.json").write_text(PLAN.to_json())
    (tmp_path / "key").write_text(OWNER.key.hex())
    (tmp_path / "key.pub").write_text(OWNER.public.hex())
    np.save(tmp_path / "indices.npy", np.array([10]))
    np.save(tmp_path / "rows.npy", np.ones((1, DIM), np.float32))
    for party in (0, 1):
        files = ["--tokens", str(tmp_path / f"tokens{party}"), "--out", str(tmp_path / f"me{party}")]
        assert main(["token", "me", *files]) == 0
    files = [tmp_path / "me0", tmp_path / "me1"]
    tokens, port = [read_token(file) for file in files], free_port()
    options = ["--table", tmp_path / "t.npy", "--plan", tmp_path / "plan.json", "--owner", tmp_path / "key.pub"]
    options += ["--tokens", tmp_path / "tokensPARTY", "--log", tmp_path / "log", "--max-wait", "0"]
    options += ["--metrics", f"127.0.PARTY.1:{port}"]
    pair = Pair(sockets, *map(str, options), tables=2, tokens=tokens)
    both = list(zip(*pair.addresses, strict=True))
    try:
        pair.wait()
        for wrong, error in (
            (None, AccessError),
            (tokens[::-1], AccessError),
            (tokens[:1], ConfigError),
            (tokens[:1] * 2, TrustError),
        ):
            with pytest.raises(error):
                Client(both[0], timeout=HANG, tokens=wrong)
        every = [address for addresses in pair.addresses for address in addresses]
        until(lambda: {health(address) for address in every} == {"SERVING"}, "all tables to be served")
        owner = ["--servers", *pair.last, "--token-file", *map(str, files)]
        words = ["pir-owner", "update", "--key", "key", "--plan", "plan.json", "--indices", "indices.npy", "--rows"]
        words = [str(tmp_path / word) if "." in word or word == "key" else word for word in [*words, "rows.npy"]]
        assert main([*words, *owner]) == 0
        layer = BatchedEmbedding(PLAN, [Client(pair, timeout=HANG, tokens=tokens) for pair in both])
        now = TABLE.clone()
        now[10] = 1
        wanted = torch.tensor([3, 10, 11])
        assert torch.equal(layer(wanted), now[wanted])
        for client in layer.clients:
            client.close()
        for host in ("127.0.0.1", "127.0.1.1"):
            found = figures(host, port)
            for table, code in zip(("hot", "full"), PLAN.codes, strict=True):
                of = f'{{table="{table}"}}'
                assert found[f"hummingbird_pir_queries_total{of}"] == code.keys
                assert found[f"hummingbird_pir_passes_total{of}"] == found[f"hummingbird_pir_table_version{of}"] == 1
                assert found[f"hummingbird_pir_busy_seconds_total{of}"] > 0
                last = f'hummingbird_pir_query_duration_seconds_bucket{{le="+Inf",table="{table}"}}'
                assert found[last] == found[f"hummingbird_pir_query_duration_seconds_count{of}"] == code.keys
            assert found['hummingbird_requests_total{method="Switch",outcome="OK"}'] == found["hummingbird_ready"] == 1
        journals = [(tmp_path / f"t.npy.party{party}.journal").stat().st_size for party in (0, 1)]
        assert journals == [figures(f"127.0.{party}.1", port)["hummingbird_pir_journal_bytes"] for party in (0, 1)]
        capsys.readouterr()
        assert main(["pir-owner", "metrics", *owner]) == 0
        assert capsys.readouterr().out.count("(3 rows in one), version 1") == 2
        assert [pair.terminate(party) for party in (0, 1)] == [0, 0]
    finally:
        pair.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {line["service"] for line in lines} == {"pir-server"}
    assert {("Offer", "me", "OK"), ("Switch", "me", "OK"), ("Answer", "me", "OK")} <= {
        (line["method"], line["client"], line["outcome"]) for line in lines if line["event"] == "call"
    }


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_program(tmp_path: Path, sockets: Path) -> None:
    """Half a table answers wrongly, not slowly: the program says so, and ends with 1."""
    np.save(tmp_path / "t.npy", torch.zeros(3000, 2).numpy())
    pair = Pair(sockets, "--table", str(tmp_path / "t.npy"), "--workers", "2")
    try:
        pair.wait()
        (worker, _) = pair.children(0)
        os.kill(worker, signal.SIGKILL)
        assert pair.ended(0) == 1
        with pytest.raises(PeerError, match="server 0"):
            Client(pair.last, timeout=0.5)
    finally:
        pair.close()
