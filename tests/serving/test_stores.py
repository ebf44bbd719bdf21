"""A service on dealt material: batches are padded to its slots, and what it has no material for is refused."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import torch

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import OverloadError
from hummingbird.mpc.dealer.kept import numbers
from hummingbird.serving.client import Client
from tests.support import python
from tests.support.bucketing import Keys
from tests.support.object_server import served as object_store
from tests.support.parties import environment
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM, until
from tests.support.ports import free_port
from tests.support.serving import Service, served
from tests.support.serving_nets import doubled

NET = "tests.support.serving_nets:doubled"
HASTE = 50.0  # seconds: less than a store that is used up says to wait


def dealt(folder: Path, images: int, *options: str) -> list[str]:
    """Options of `serve` with a store of slots of four images, for so many images."""
    store, bits = str(folder / "store"), folder / "bits.json"
    bits.write_text(BitConfig(BitWindow(30, 0), {}).to_json())
    deal = ["deal", "--model", NET, "--input", "4x4", "--images", str(images), "--out", store, "--bits", str(bits)]
    command = [sys.executable, "-m", "hummingbird", *deal, *options]
    ended = python.run(command, cwd=ROOT, env=environment(0, 1, 1), text=True, capture_output=True, timeout=PROGRAM)
    assert ended.returncode == 0, ended.stderr
    return ["--model", NET, "--bits", str(bits), "--input", "4", "--store", store, "--max-batch", "8"]


def right(client: Client, images: int) -> None:
    """A request is answered, rightly."""
    net, x = doubled(), torch.rand(images, 4)
    with torch.no_grad():
        assert (client(x) - net(x)).abs().max() < 1e-3


@pytest.mark.slow
def test_batches_fill_slots_and_a_store_that_is_used_up_refuses(tmp_path: Path) -> None:
    with Service(*dealt(tmp_path, 12), metrics=True) as service, service.client(HASTE) as client:
        right(client, 6)  # two of three slots of four rows
        for _ in range(2):
            with pytest.raises(OverloadError, match="too little material is left") as caught:
                client(torch.rand(6, 4))
            assert caught.value.retry_after == 60
        right(client, 3)  # the third
        with pytest.raises(OverloadError, match="too little"):
            client(torch.rand(1, 4))
        for rank in range(2):
            until(lambda rank=rank: service.figures(rank)["hummingbird_ready"] == 0.0, "a party to be not ready")
            assert service.figures(rank)["hummingbird_serving_lives_total"] == 1
        ended_parties = service.stop()
        assert served(ended_parties) == (9, 2)
        assert "3 images of padding" in ended_parties[0].out


@pytest.mark.slow
def test_a_lane_whose_store_is_used_up_leaves_the_batches_to_the_others(tmp_path: Path) -> None:
    """Two lanes with three slots of four rows each; which of them is the first to take a batch is chance."""
    options = dealt(tmp_path, 24, "--lanes", "2")
    with Service(*options, lanes=2, metrics=True) as service, service.client(HASTE) as client:
        right(client, 8)  # leaves 1 and 3
        right(client, 8)  # 1 and 1, as only one lane has the slots for it
        with pytest.raises(OverloadError, match="too little"):
            client(torch.rand(8, 4))
        right(client, 4)  # 0 and 1
        name = 'hummingbird_serving_slices_left{store="dealt"}'
        until(lambda: service.figures(0)[name] == 1.0, "the lanes to tell what is left")
        figures = service.figures(1)
        assert sorted(figures[f'hummingbird_serving_batches_total{{lane="{lane}"}}'] for lane in range(2)) == [1, 2]
        assert served(service.stop()) == (20, 3)
    with Service(*options, lanes=2) as service, service.client(HASTE) as client:
        right(client, 3)  # though one lane has nothing from the beginning
        with pytest.raises(OverloadError, match="too little"):
            client(torch.rand(1, 4))
        assert served(service.stop()) == (3, 1)


class Keeper:
    """`deal --keep 6` of sets of three slots of four rows, as a process that can be killed and started again."""

    def __init__(self, folder: Path, bits: Path) -> None:
        deal = ["deal", "--model", NET, "--input", "4x4", "--images", "12", "--keep", "6", "--bits", str(bits)]
        self._command = [sys.executable, "-m", "hummingbird", *deal, "--out", str(folder / "kept")]
        self._out = open(folder / "said", "w")  # noqa: SIM115 - for as long as this lives
        self.said = folder / "said"
        self.start()

    def start(self) -> None:
        begun = self.said.read_text().count("keeping")
        out = {"stdout": self._out, "stderr": self._out}
        self.process = python.Popen(self._command, cwd=ROOT, env=environment(0, 1, 1), **out)  # type: ignore[call-overload]
        until(lambda: self.said.read_text().count("keeping") > begun or self.process.poll() is not None, "a keeper")
        assert self.process.poll() is None, self.said.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(HANG)


def patiently(client: Client, x: torch.Tensor, refusals: list[float]) -> torch.Tensor:
    """Ask as a caller does who waits as long as a refusal says."""
    deadline = time.monotonic() + HANG
    while True:
        try:
            return client(x)
        except OverloadError as error:
            assert time.monotonic() < deadline and 1 <= error.retry_after <= 60, error
            refusals.append(error.retry_after)
            time.sleep(error.retry_after)


def left(port: int) -> float:
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG).read().decode()
    found = re.search(r'^hummingbird_serving_slices_left\{store="kept"\} (\S+)$', page, re.MULTILINE)
    assert found, page
    return float(found[1])


@pytest.mark.slow
def test_a_service_on_a_kept_store_goes_from_set_to_set(tmp_path: Path) -> None:
    """Open files, threads and sets on the disk stay as they are. Without a keeper what is left is used up, then
    requests are refused with a time to retry, and answered again when there is a keeper.
    """
    net, port = doubled(), free_port()
    bits = tmp_path / "bits.json"
    bits.write_text(BitConfig(BitWindow(30, 0), {}).to_json())
    keeper = Keeper(tmp_path, bits)
    options = ["--model", NET, "--bits", str(bits), "--input", "4", "--store", str(tmp_path / "kept")]
    refusals: list[float] = []

    def ask(client: Client, rows: int) -> None:
        x = torch.rand(rows, 4)
        with torch.no_grad():
            assert (patiently(client, x, refusals) - net(x)).abs().max() < 1e-3

    try:
        with Service(*options, "--max-batch", "8", "--metrics", f"127.0.{{rank}}.1:{port}") as service:
            with service.client() as client:
                open_files = []
                for number in range(40):
                    ask(client, 1 + number % 8)
                    open_files.append([len(os.listdir(f"/proc/{one.pid}/fd")) for one in service.processes])
                assert max(map(max, open_files[20:])) <= max(map(max, open_files[:20])) + 4, open_files
                until(lambda: left(port) >= 6, "the figure to follow")
                keeper.kill()
                before, asked, x = left(port), 0, torch.rand(4, 4)
                client._groups.timeout = 20.0  # in which it asks again and again, as refusals say
                with pytest.raises(OverloadError, match="too little material is left") as caught:
                    while True:
                        assert (client(x) - net(x)).abs().max() < 1e-3
                        asked += 1
                # The figure is that of the last look, which may be of before the last batch, or the last set.
                assert before - 2 <= asked <= before + 4
                until(lambda: left(port) == 0, "the figure to follow")
                assert caught.value.retry_after < 60
                keeper.start()
                for _ in range(6):
                    ask(client, 3)
            # More where a connection was lost, and a request asked again under another id.
            assert served(service.stop())[0] >= sum(1 + number % 8 for number in range(40)) + 4 * asked + 18
        keeper.process.send_signal(signal.SIGTERM)
        assert keeper.process.wait(HANG) == 0 and "stopped: " in keeper.said.read_text()
        assert len(numbers(tmp_path / "kept")) <= 4
    finally:
        keeper.kill()


@pytest.mark.slow
def test_a_service_from_an_object_store(tmp_path: Path) -> None:
    """It refuses requests while the buckets are empty, and answers again when a dealer has come."""
    bits, url = tmp_path / "bits.json", "s3://place-{rank}/doubled"
    bits.write_text(BitConfig(BitWindow(30, 0), {}).to_json())
    with object_store() as server:
        server.add("place-0", "place-1")
        keys = Keys(tmp_path)
        public = [f"{tmp_path}/party-{rank}.key.pub" for rank in range(2)]
        words = ["deal", "--model", NET, "--input", "4x4", "--images", "12", "--bits", str(bits), "--out", url]
        words = [sys.executable, "-m", "hummingbird", *words, "--key", f"{keys.folder}/dealer.key", "--to", *public]

        def deal() -> None:
            ended = python.run(
                words, cwd=ROOT, env=environment(0, 1, 1), text=True, capture_output=True, timeout=PROGRAM
            )
            assert ended.returncode == 0, ended.stderr

        deal()
        options = ["--model", NET, "--bits", str(bits), "--input", "4", "--store", url, "--max-batch", "8"]
        options += ["--store-key", f"{keys.folder}/party-{{rank}}.key"]
        with Service(*options, metrics=True) as service, service.client(HASTE) as client:
            right(client, 8)
            right(client, 4)
            with pytest.raises(OverloadError, match="too little"):
                client(torch.rand(4, 4))
            deal()
            net, x, refusals = doubled(), torch.rand(8, 4), list[float]()
            with torch.no_grad():
                assert (patiently(client, x, refusals) - net(x)).abs().max() < 1e-3
            until(lambda: service.figures(1)['hummingbird_serving_slices_left{store="kept"}'] == 1.0, "what is left")
            assert served(service.stop()) == (20, 3)
