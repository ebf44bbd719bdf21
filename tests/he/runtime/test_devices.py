"""Client and server on another device than the CPU: outputs, and what crosses, are the CPU's.

The far device of tests/support/far.py stands in for a GPU; the same tests run on a GPU where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hummingbird import he, prg
from hummingbird.errors import ConfigError, InputError
from hummingbird.he.compile.convert import make_plan
from hummingbird.he.runtime import memory, messages
from hummingbird.he.runtime.rounds import Download
from hummingbird.he.service.client import RemoteModel
from hummingbird.kernels.ciphertexts import Ring, largest_primes, noise, ternary, uniform
from tests.support.far import DEVICE, far

gpu = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
)
DEVICES = pytest.mark.parametrize("device", [DEVICE, gpu])


def there(device: str) -> Any:
    """Where a device is there: a GPU always, the far device within this context."""
    return far() if device == DEVICE else nullcontext()


class Squares(nn.Module):
    """Products, sums and layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 2, 2, stride=2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        return self.last((x * x + x).flatten(1))


def _activations() -> nn.Module:
    layers = nn.Conv2d(1, 4, 3), nn.PReLU(4), nn.Conv2d(4, 4, 2, groups=4), nn.ReLU6(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(4, 3))


CASES = {"client-aided": (_activations, (1, 5, 5)), "polynomial": (Squares, (1, 2, 2))}
"""By mode: a net, and the shape of an image."""


def planned(mode: str) -> tuple[he.Plan, nn.Module, Tensor]:
    torch.manual_seed(0)
    make, shape = CASES[mode]
    net = make().eval()
    return make_plan(net, shape, mode), net, torch.rand(3, *shape)


@DEVICES
@pytest.mark.parametrize("mode", CASES)
def test_outputs_are_those_of_torch(mode: str, device: str) -> None:
    plan, net, x = planned(mode)
    with torch.no_grad():
        expected = net(x)
    with there(device):
        model = he.HEModel(plan, device)
        out = model(x)
        assert "images" in model.report()
    assert out.device.type == "cpu"
    # 2^-12 of a value's size is what the planner allows each error; a few layers of them.
    assert float((out - expected).abs().max()) < 2**-8 * float(expected.abs().max())


@DEVICES
def test_a_server_answers_the_same_bytes(device: str) -> None:
    """The client is on the CPU; residues cross as bytes, and the server's packed answers are compared."""
    plan, _, x = planned("client-aided")
    client, public = he.Client(plan.public), plan.public
    batch = client.begin(x)
    for number, turn in enumerate(public.turns):
        sent = [b"".join(messages.pack_upload(public, upload)) for upload in batch.uploads(number)]
        answers = []
        for name in ("cpu", device):
            with there(name):
                answers.append([*_answered(he.Server(plan, name).turn(number), public, sent)])
        assert answers[0] == answers[1]
        for (first, stop, back), data in zip(turn.down(), answers[0], strict=True):
            batch.receive(messages.read_download(public, number, first, stop, back, lambda data=data: data))
    batch.result()


@DEVICES
@pytest.mark.parametrize("mode", CASES)
def test_files_of_one_device_are_read_on_another(tmp_path: Path, mode: str, device: str) -> None:
    plan, net, x = planned(mode)
    names = [tmp_path / name for name in ("net.server", "my.client", "my.batch")]
    with there(device):
        he.Server(plan, device).save(names[0])
        client = he.Client(plan.public, device)
        client.save(names[1])
        batch = client.begin(x)
        request = batch.request()
        batch.save(names[2])
    server, batch = he.Server.load(names[0]), he.Client.load(names[1]).resume(names[2])
    batch.accept(server.answer(request))
    while not batch.complete:
        batch.accept(server.answer(batch.request()))
    with torch.no_grad():
        expected = net(x)
    assert float((batch.result() - expected).abs().max()) < 2**-8 * float(expected.abs().max())


def _answered(turn: Any, public: he.Public, sent: list[bytes]) -> Iterator[bytes]:
    for (first, stop), data in zip(public.turns[turn.number].up(), sent, strict=True):
        turn.receive(messages.read_upload(public, turn.number, first, stop, lambda data=data: data, turn.device))
    for back in turn.downloads():
        assert isinstance(back, Download) and back.body.device.type == turn.device.type
        yield b"".join(messages.pack_download(public, back))


@DEVICES
def test_the_same_seed_is_the_same_randomness(device: str) -> None:
    ring = Ring.of(1024, largest_primes(1024, 2))
    for size in (16, 32):
        seed = bytes(range(size))
        wanted = [uniform(ring, prg.Stream(seed), 3), noise(prg.Stream(seed), 3, 1024), ternary(prg.Stream(seed), 1024)]
        with there(device):
            drawn = (prg.Stream(seed, device) for _ in range(3))
            found = [uniform(ring, next(drawn), 3), noise(next(drawn), 3, 1024), ternary(next(drawn), 1024)]
            assert all(x.device.type == device for x in found)
            assert all(a.cpu().equal(b) for a, b in zip(found, wanted, strict=True)), size


def test_the_check_can_fail() -> None:
    with far(), pytest.raises(RuntimeError, match="here and on the far device"):
        torch.ones(3).to(DEVICE) + torch.ones(3)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:99", "mps", 3])
def test_devices_that_are_not_there(name: Any) -> None:
    plan, _, _ = planned("polynomial")
    for make in (lambda: he.Server(plan, name), lambda: he.Client(plan.public, name), lambda: he.HEModel(plan, name)):
        with pytest.raises(InputError, match="no device|no GPU|of 1 GPUs|GPUs"):
            make()
    with pytest.raises(InputError, match="no device|no GPU|GPUs"):  # before it connects to anybody
        RemoteModel("unix:/nowhere", device=name)


def test_a_batch_must_fit_on_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _, x = planned("polynomial")
    with far():
        model = he.HEModel(plan, DEVICE)
        monkeypatch.setattr("hummingbird.he.runtime.model.installed", lambda device: 1000)
        with pytest.raises(ConfigError, match="meta has 1e-06"):
            model(x)


def test_a_cards_memory_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 << 30, 80 << 30))
    assert 70e9 < memory.installed("cuda") < 80 << 30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 1 << 20))
    assert memory.installed("cuda:1") == 0
