"""`estimate`: one function behind the command and the package, its sums, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird.__main__ import main
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.convert import build
from hummingbird.cost import FREE, crypten_shipped_relu
from hummingbird.errors import ConfigError, InputError, ModelError
from hummingbird.mpc.builders import MOVES
from hummingbird.report import CRYPTEN
from models import get_model

NET = get_model("digits", 10)
SHAPE = (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {}),
        (["--bits", "bits.json"], {"bits": "bits.json"}),
        (["--parties", "3", "--protocol", "gmw"], {"parties": 3, "protocol": "gmw"}),
        (["--private-weights", "--lanes", "2"], {"weights": 0, "lanes": 2}),
        (["--bandwidth", "1e6", "--rtt", "0.1"], {"bandwidth": 1e6, "rtt": 0.1}),
    ],
)
def test_the_command_prints_it(
    words: list[str],
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    # Of another net: prices do not depend on weights.
    BitConfig(BitWindow(20, 12), provenance={"net": "0" * 64}).save("bits.json")
    assert main(["estimate", "--model", "models:get_model", "digits", "10", "--input", "2x1x8x8", *words]) == 0
    found = hummingbird.estimate(NET, SHAPE, **options)
    assert capsys.readouterr().out == f"{found}\n" == f"{found!r}\n"


def test_its_figures_are_the_sums_of_its_layers() -> None:
    found = hummingbird.estimate(NET.train(), SHAPE, BitWindow(20, 12), weights=1, bandwidth=1e6, rtt=0.1, lanes=2)
    assert NET.training
    private = build(NET, BitWindow(20, 12), 1)
    assert list(found.layers) == private.costs(SHAPE, 2) and found.setup == private.setup_cost(2)
    assert found.rounds == sum(step.cost.rounds for step in found.layers)
    assert found.online_bytes == sum(step.cost.bits for step in found.layers) / 8
    assert found.offline_bytes == sum(step.cost.offline_bits for step in found.layers) / 8
    assert found.seconds == pytest.approx(found.rounds * 0.05 + 8 * found.online_bytes / (1e6 / 2))


@pytest.mark.parametrize(
    ("options", "kind", "where"),
    [
        ({"net": lambda x: x}, InputError, "net"),
        ({"net": nn.LocalResponseNorm(2)}, ModelError, ""),
        ({"shape": (1, 8, 8)}, InputError, "input"),
        ({"shape": (0, 1, 8, 8)}, InputError, "shape"),
        ({"shape": ()}, InputError, "shape"),
        ({"shape": "2x1x8x8"}, InputError, "shape"),
        ({"shape": 8}, InputError, "shape"),
        ({"bits": {"relu1": (20, 12)}}, ConfigError, "bits"),
        ({"bits": "nowhere.json"}, ConfigError, "nowhere.json"),
        ({"protocol": "bgw"}, ConfigError, "protocol"),
        ({"parties": 0}, ConfigError, "parties"),
        ({"lanes": 1.5}, ConfigError, "lanes"),
        ({"bandwidth": math.inf}, ConfigError, "bandwidth"),
        ({"bandwidth": "10 Gb/s"}, ConfigError, "bandwidth"),
        ({"rtt": math.nan}, ConfigError, "rtt"),
    ],
)
def test_bad_input_is_refused_by_name(options: dict[str, Any], kind: type[Exception], where: str) -> None:
    with pytest.raises(kind) as caught:
        hummingbird.estimate(**{"net": NET, "shape": SHAPE, **options})
    assert caught.value.where == where  # type: ignore[attr-defined]


def test_the_table_leaves_out_what_moves_values_alone() -> None:
    moved = nn.Sequential(nn.PixelShuffle(2), nn.ChannelShuffle(2), nn.ReflectionPad2d(1), nn.Flatten())
    text = str(hummingbird.estimate(nn.Sequential(nn.ReLU(), *moved), (2, 8, 4, 4)))
    rows = [line.split()[1] for line in text.split("\n\n")[1].splitlines() if line[:1].isdigit()]
    assert rows == ["relu"]
    assert {"expand", "flip", "roll", "unbind", "unflatten"} <= MOVES and not {"cat", "pad", "resize"} & MOVES


def test_online_offline_and_their_sum_stand_side_by_side() -> None:
    """Both aims, gmw and CrypTen's ReLUs have rows; what stands above has one where both aims are the same."""
    found = hummingbird.estimate(NET, SHAPE, BitWindow(20, 12))
    other = hummingbird.estimate(NET, SHAPE, BitWindow(20, 12), protocol="gmw")
    relus = [step.elements for step in found.layers if step.op == "relu"]
    crypten = sum((crypten_shipped_relu(n, 2) for n in relus), FREE)
    assert found.beside == {"gmw": other.total, CRYPTEN: crypten} and other.beside == {CRYPTEN: crypten}
    shown = {**found.aims, **found.beside}
    for text, prices in ((str(found), shown), (str(other), {"above": other.total, CRYPTEN: crypten})):
        for name, price in prices.items():
            (line,) = [line.removeprefix(name).split() for line in text.splitlines() if line.startswith(f"{name} ")]
            whole = 2 * price.bits + price.offline_bits
            sizes = [f"{bits / 8e3:,.1f}" for bits in (price.bits, price.offline_bits, whole)]
            assert line[:4] == [str(price.rounds), *sizes]
    assert CRYPTEN not in str(hummingbird.estimate(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), SHAPE))


def test_a_shape_may_be_torch_s() -> None:
    assert str(hummingbird.estimate(NET, torch.Size(SHAPE))) == str(hummingbird.estimate(NET, list(SHAPE)))


def test_estimate_says_what_its_rounds_are_of_and_where_gmw_moves_less() -> None:
    smooth = str(hummingbird.estimate(nn.Sequential(nn.Linear(4, 8), nn.GELU()), (2, 4)))
    assert "sharing a batch and opening its result are 3 to 4 more" in smooth
    found = hummingbird.estimate(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), (2, 4), BitWindow(20, 12))
    moved = {name: 2 * cost.bits + cost.offline_bits for name, cost in {**found.aims, **found.beside}.items()}
    assert moved["gmw"] > min(moved.values()) and 'protocol="gmw"' not in str(found)
    cheaper = replace(found, beside={"gmw": FREE})
    assert 'the fewest bytes in all: protocol="gmw"' in str(cheaper)
