"""A service on dealt material: batches are padded to its slots, and what it has no material for is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import OverloadError
from tests.support.parties import environment
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM
from tests.support.serving import Service, served
from tests.support.serving_nets import doubled

NET = "tests.support.serving_nets:doubled"


@pytest.mark.slow
def test_batches_fill_slots_and_a_store_that_is_used_up_refuses(tmp_path: Path) -> None:
    net, store = doubled(), str(tmp_path / "store")
    bits = tmp_path / "bits.json"
    bits.write_text(BitConfig(BitWindow(30, 0), {}).to_json())
    deal = ["deal", "--model", NET, "--input", "4x4", "--images", "12", "--out", store, "--bits", str(bits)]
    command = [sys.executable, "-m", "hummingbird", *deal]
    ended = subprocess.run(command, cwd=ROOT, env=environment(0, 1, 1), text=True, capture_output=True, timeout=PROGRAM)
    assert ended.returncode == 0, ended.stderr
    options = ["--model", NET, "--bits", str(bits), "--input", "4", "--store", store, "--max-batch", "8"]
    with Service(*options) as service, service.client() as client:
        x = torch.rand(6, 4)
        with torch.no_grad():
            assert (client(x) - net(x)).abs().max() < 1e-3  # two of three slots of four rows
        for _ in range(2):
            with pytest.raises(OverloadError, match="material that is left is too little") as caught:
                client(x)
            assert caught.value.retry_after == 60
        with torch.no_grad():
            assert (client(x[:3]) - net(x[:3])).abs().max() < 1e-3  # the third
        with pytest.raises(OverloadError, match="too little"):
            client(x[:1])
        ended_parties = service.stop()
        assert served(ended_parties) == (9, 2)
        assert "3 images of padding" in ended_parties[0].out
