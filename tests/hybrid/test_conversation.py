"""Everything that either side receives looks uniform, whatever the image: bytes of whole conversations."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from torch import nn

from hummingbird import hybrid
from hummingbird.bits import BitWindow
from hummingbird.hybrid import data_side, encrypted, model_side
from hummingbird.hybrid.client import Connection
from hummingbird.hybrid.message_stream import MessageStream
from hummingbird.hybrid.plan import GARBLERS
from hummingbird.prg import Stream
from tests.support.chance import chi_square_limit
from tests.support.covering import every
from tests.support.hybrid import model, serving
from tests.support.patience import HANG

PLAIN = {"opening", "number", "end", "done", "key"}  # of the program, and a key that serves a whole call
RESIDUES = {"Enc(r)", "reply"}  # modulo primes, not 2^26: tests/he/bfv/test_hiding.py has them
IMAGES, LEAST = 6, 2560  # bytes of a name that are tested: ten for each value of a byte


def net() -> nn.Module:
    """A net with 1,024 ReLUs, a maximum, and two layers."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 256)
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize(
    ("value", "garbler"),
    every(3, [(4.0, "data"), (0.0, "data"), (-4.0, "data"), (0.0, "model"), (4.0, "model"), (-4.0, "model")]),
)
def test_all_that_is_sent_is_uniform(garbler: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, bytearray] = defaultdict(bytearray)
    send = MessageStream.send

    def recorded(self: MessageStream, name: str, data: bytes | torch.Tensor) -> None:
        seen[name.rpartition(": ")[2]] += data if isinstance(data, bytes) else data.contiguous().numpy().tobytes()
        send(self, name, data)

    model = hybrid.convert_model(net(), (3, 16, 16), BitWindow(20, 10), garbler)
    monkeypatch.setattr(MessageStream, "send", recorded)
    model(torch.full((IMAGES, 3, 16, 16), value))
    online = {"bits", "labels"} if garbler == "data" else {"labels", "result"}
    assert {"input", "Enc(r)", "reply", "OT", "tables", "logits", *online} == seen.keys() - PLAIN
    for name in seen.keys() - PLAIN - RESIDUES:
        assert len(seen[name]) > LEAST, name
        assert deviations(seen[name]) < ALLOWED, name


ALLOWED = (chi_square_limit(256) - 255) / 510**0.5  # from above; from below it is less likely still


def deviations(data: bytearray) -> float:
    """Deviations of chi-square over the values of a byte from what uniform bytes have."""
    counts = torch.frombuffer(data, dtype=torch.uint8).bincount(minlength=256).double()
    mean = len(data) / 256
    return float(abs(((counts - mean) ** 2 / mean).sum() - 255) / 510**0.5)


def test_what_is_not_masked_would_be_seen() -> None:
    assert deviations(bytearray([1, 2, 3, 4] * LEAST)) > 1000


@pytest.mark.parametrize("garbler", GARBLERS)
def test_nothing_of_a_session_is_drawn_twice(garbler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks of all steps, layers and slots, and labels, come of seeds of their own: results would be right without."""
    made, seeds = model(garbler), list[bytes]()

    def stream(seed: bytes) -> Stream:
        seeds.append(seed)
        return Stream(seed)

    for module in (data_side, encrypted, model_side):
        monkeypatch.setattr(module, "Stream", stream)
    with serving(made, tmp_path / "m") as (address, _), Connection(address, tmp_path / "d", timeout=HANG) as connection:
        connection.prepare(3)
    labels = 1
    assert len(seeds) == len(set(seeds)) == 3 * (len(made.plan.masked) + len(made.plan.linears) + labels)
