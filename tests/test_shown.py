"""How objects look in a notebook: short, with what one asks first, and no addresses in memory."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from torch.nn import Linear, ReLU, Sequential

import hummingbird
from hummingbird import BitConfig, BitWindow, he, hybrid, pir
from hummingbird.errors import EnvironmentProblem
from hummingbird.mpc.session.session import Session
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM


def net() -> Sequential:
    return Sequential(Linear(4, 8), ReLU(), Linear(8, 3)).eval()


def test_windows_and_their_search() -> None:
    assert repr(BitWindow(20, 12)) == "BitWindow(k=20, m=12, q=0)"
    assert repr(BitConfig(layers={"1": BitWindow(20, 12)})) == "BitConfig(\n  default: [64:0)\n  1: [20:12)\n)"
    many = BitConfig(layers={f"layer{number}": BitWindow(20, 12) for number in range(40)}, input_range=1.5)
    lines = repr(many).splitlines()
    assert len(lines) == 15 and lines[-4:] == [
        "  layer9: [20:12)",
        "  ... 30 more of 40 layers",
        "  for inputs |x| <= 1.5",
        ")",
    ]
    study = hummingbird.Study(net(), torch.rand(20, 4))
    told = "1 layers that compare, 20 images, chosen by agreement, protocol masked, 2 parties"
    assert repr(study) == f"Study({told})"
    assert re.search(r"\n  provenance: \d+ facts of how they were found\n\)$", repr(study.search("8/64")))


def test_twins() -> None:
    for mode, told in (("fast", "plaintext twin: protocol"), ("exact", "all parties in this process: protocol")):
        shown = repr(hummingbird.simulate(net(), mode=mode)).splitlines()
        assert shown[1].startswith(f"  {told} masked, 2 parties") and len(shown) == 8
    assert "plaintext twin of hummingbird.hybrid" in repr(hummingbird.simulate(net(), cut=True))


def test_a_session_and_what_is_private_in_it(alone: Session) -> None:
    own = "Session(party 0 of 1, on cpu, dealer in this process"
    assert repr(alone) == f"{own})"
    with pytest.raises(EnvironmentProblem) as caught:
        hummingbird.init()
    assert f"initialized already: {own})" in str(caught.value) and "hummingbird.uninit()" in caught.value.hint
    private = hummingbird.convert_model(net(), bits=BitWindow(20, 12))
    with hummingbird.meter() as meter:
        logits = private(hummingbird.cryptensor(torch.rand(2, 4)))
    assert repr(logits) == f"MPCTensor(shape=(2, 3), scale={1 << 28}, arithmetic)"  # values known to be below 2^8
    assert "1 layers with a window" in repr(private) and len(repr(private).splitlines()) < 16
    assert re.fullmatch(
        r"Meter\(\d+ layers, 0 rounds, 0.0 kB sent, [\d.]+ kB offline; table\(\) has all\)", repr(meter)
    )
    hummingbird.uninit()
    assert repr(alone) == f"{own}, left)"


def test_the_other_kinds_of_inference() -> None:
    model = he.convert_model(net(), (4,))
    assert re.fullmatch(
        r"HEModel\(client-aided, inputs 4, \d+ to a batch, \d exchanges; report\(\) has all\)", repr(model)
    )
    table = torch.nn.Embedding(100, 4)
    assert repr(pir.local_servers(table)[1]) == "Server(party 1, 100 rows of 4 float32)"
    shown = repr(hybrid.convert_model(net(), (4,), bits=BitWindow(20, 10)))
    assert re.fullmatch(r"HybridNet\(\d+ steps, 0 slots ready; report\(\) has all\)", shown)


def test_completion_knows_the_names_that_load_late() -> None:
    code = "import hummingbird; print(*(name for name in dir(hummingbird) if name[0] != '_'))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM)
    assert ended.stdout.split() == [name for name in hummingbird.__all__ if name[0] != "_"], ended.stderr
