"""A service on dealt material: batches are padded to its slots, and what it has no material for is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import OverloadError
from hummingbird.serving.client import Client
from tests.support.parties import environment
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM, until
from tests.support.serving import Service, served
from tests.support.serving_nets import doubled

NET = "tests.support.serving_nets:doubled"


def dealt(folder: Path, images: int, *options: str) -> list[str]:
    """Options of `serve` with a store of slots of four images, for so many images."""
    store, bits = str(folder / "store"), folder / "bits.json"
    bits.write_text(BitConfig(BitWindow(30, 0), {}).to_json())
    deal = ["deal", "--model", NET, "--input", "4x4", "--images", str(images), "--out", store, "--bits", str(bits)]
    command = [sys.executable, "-m", "hummingbird", *deal, *options]
    ended = subprocess.run(command, cwd=ROOT, env=environment(0, 1, 1), text=True, capture_output=True, timeout=PROGRAM)
    assert ended.returncode == 0, ended.stderr
    return ["--model", NET, "--bits", str(bits), "--input", "4", "--store", store, "--max-batch", "8"]


def right(client: Client, images: int) -> None:
    """A request is answered, rightly."""
    net, x = doubled(), torch.rand(images, 4)
    with torch.no_grad():
        assert (client(x) - net(x)).abs().max() < 1e-3


@pytest.mark.slow
def test_batches_fill_slots_and_a_store_that_is_used_up_refuses(tmp_path: Path) -> None:
    with Service(*dealt(tmp_path, 12)) as service, service.client() as client:
        right(client, 6)  # two of three slots of four rows
        for _ in range(2):
            with pytest.raises(OverloadError, match="material that is left is too little") as caught:
                client(torch.rand(6, 4))
            assert caught.value.retry_after == 60
        right(client, 3)  # the third
        with pytest.raises(OverloadError, match="too little"):
            client(torch.rand(1, 4))
        ended_parties = service.stop()
        assert served(ended_parties) == (9, 2)
        assert "3 images of padding" in ended_parties[0].out


@pytest.mark.slow
def test_a_lane_whose_store_is_used_up_leaves_the_batches_to_the_others(tmp_path: Path) -> None:
    """Two lanes with three slots of four rows each; which of them is the first to take a batch is chance."""
    options = dealt(tmp_path, 24, "--lanes", "2")
    with Service(*options, lanes=2, metrics=True) as service, service.client() as client:
        right(client, 8)  # leaves 1 and 3
        right(client, 8)  # 1 and 1, as only one lane has the slots for it
        with pytest.raises(OverloadError, match="too little"):
            client(torch.rand(8, 4))
        right(client, 4)  # 0 and 1
        until(lambda: service.figures(0)["hummingbird_serving_slices_left"] == 1.0, "the lanes to tell what is left")
        figures = service.figures(1)
        assert sorted(figures[f'hummingbird_serving_batches_total{{lane="{lane}"}}'] for lane in range(2)) == [1, 2]
        assert served(service.stop()) == (20, 3)
    with Service(*options, lanes=2) as service, service.client() as client:
        right(client, 3)  # though one lane has nothing from the beginning
        with pytest.raises(OverloadError, match="too little"):
            client(torch.rand(1, 4))
        assert served(service.stop()) == (3, 1)
