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
from hummingbird import he, hybrid
from hummingbird.__main__ import main
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.convert import build
from hummingbird.cost import FREE, HEADER_BYTES, crypten_shipped_relu
from hummingbird.errors import ConfigError, InputError, ModelError
from hummingbird.mpc.plan.builders import MOVES
from hummingbird.report import CRYPTEN
from hummingbird.serving.plan import shapes_of
from models import get_model
from tests.support.covering import every
from tests.support.parties import succeed

SLOW = pytest.mark.slow
NET = get_model("digits", 10)
SHAPE = (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("words", "options"),
    every(
        2,
        [
            (["--bits", "bits.json"], {"bits": "bits.json"}),
            ([], {}),
            (["--parties", "3", "--protocol", "gmw"], {"parties": 3, "protocol": "gmw"}),
            (["--private-weights", "--lanes", "2"], {"weights": 0, "lanes": 2}),
            (["--bandwidth", "1e6", "--rtt", "0.1"], {"bandwidth": 1e6, "rtt": 0.1}),
        ],
    ),
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


def test_no_number_of_a_tensor_is_printed() -> None:
    """Who gives images in place of their shape, to any of those that take one."""
    images = torch.full((2, 1, 8, 8), 0.12345)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).eval()

    def serves(shape: Any) -> None:
        shapes_of(shape)

    takers = [lambda x: hummingbird.estimate(net, x), lambda x: he.convert_model(net, x)]
    for take in [*takers, lambda x: hybrid.convert_model(net, x), serves]:
        for wrong in (images, [images], (images, 3)):
            with pytest.raises(InputError) as caught:
                take(wrong)
            assert "1234" not in str(caught.value) and "Tensor" in str(caught.value)
    with pytest.raises(
        InputError, match=r"^a Tensor of shape \(2, 1, 8, 8\) is no shape.*\nhint: .*tuple\(images.shape\)"
    ):
        hummingbird.estimate(net, images)  # type: ignore[arg-type]


def test_the_table_leaves_out_what_moves_values_alone() -> None:
    moved = nn.Sequential(nn.PixelShuffle(2), nn.ChannelShuffle(2), nn.ReflectionPad2d(1), nn.Flatten())
    text = str(hummingbird.estimate(nn.Sequential(nn.ReLU(), *moved), (2, 8, 4, 4)))
    rows = [line.split()[1] for line in text.split("\n\n")[1].splitlines() if line[:1].isdigit()]
    assert rows == ["relu"]
    assert {"expand", "flip", "roll", "unbind", "unflatten"} <= MOVES and not {"cat", "pad", "resize"} & MOVES


def test_online_offline_and_their_sum_stand_side_by_side() -> None:
    """Aims, gmw and CrypTen's ReLUs have rows; what stands above has one where all aims are the same."""
    found = hummingbird.estimate(NET, SHAPE, BitWindow(20, 12))
    other = hummingbird.estimate(NET, SHAPE, BitWindow(20, 12), protocol="gmw")
    relus = [step.elements for step in found.layers if step.op == "relu"]
    crypten = sum((crypten_shipped_relu(n, 2) for n in relus), FREE)
    assert found.beside == {"gmw": other.total, CRYPTEN: crypten} and other.beside == {CRYPTEN: crypten}
    assert found.aims["rounds"] == found.aims["latency"]  # windows of 8 bits: one row for both
    shown = {name.partition(":")[0]: price for name, price in found.aims.items() if name != "rounds"} | found.beside
    for text, prices in ((str(found), shown), (str(other), {"above": other.total, CRYPTEN: crypten})):
        for name, price in prices.items():
            (line,) = [line.removeprefix(name).split() for line in text.splitlines() if line.startswith(f"{name} ")]
            whole = 2 * price.bits + price.offline_bits
            sizes = [f"{bits / 8e3:,.1f}" for bits in (price.bits, price.offline_bits, whole)]
            assert line[:4] == [str(price.rounds), *sizes]
    assert CRYPTEN not in str(hummingbird.estimate(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), SHAPE))


def test_a_shape_may_be_torch_s() -> None:
    assert str(hummingbird.estimate(NET, torch.Size(SHAPE))) == str(hummingbird.estimate(NET, list(SHAPE)))


class Words(nn.Module):
    """Token numbers, a mask and a flag beside real numbers, or token numbers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.fc, self.relu = nn.Embedding(12, 6), nn.Linear(6, 4), nn.ReLU()

    def forward(
        self, words: torch.Tensor, x: torch.Tensor | None = None, mask: torch.Tensor | None = None, twice: bool = False
    ) -> torch.Tensor:
        found = self.words(words)
        if x is not None:
            found = found + x
        if mask is not None:
            found = found * mask[:, :, None]
        out = self.fc(self.relu(found))
        return self.relu(out) if twice else out


@pytest.mark.parametrize("weights", every(2, [1, "public"]))
def test_an_example_gives_the_price_of_token_numbers_masks_and_flags(weights: str | int) -> None:
    net, ids = Words().eval(), torch.arange(10).view(2, 5)
    more = {"x": torch.rand(2, 5, 6), "mask": torch.ones(2, 5, dtype=torch.int64), "twice": True}
    for example, shape in ((ids, (2, 0)), ((ids,), (2, 0)), ({"words": ids, **more}, (2, 5, 6))):
        found = hummingbird.estimate(net, example=example, weights=weights)
        private = build(net, weights=weights, example=example)
        assert list(found.layers) == private.costs(shape, 2) and found.shape == shape
        assert "words (2, 5)" in str(found).splitlines()[0]
    assert "mask (2, 5)" in str(found) and sum(layer.op == "relu" for layer in found.layers) == 2
    assert found.rounds > 0


def test_either_a_shape_or_an_example_and_no_tensor_in_an_error() -> None:
    image = torch.rand(SHAPE)
    assert (
        str(hummingbird.estimate(NET, example=image)).splitlines()[2:]
        == (str(hummingbird.estimate(NET, SHAPE)).splitlines()[2:])
    )
    for given in ({}, {"shape": SHAPE, "example": image}):
        with pytest.raises(ConfigError) as caught:
            hummingbird.estimate(NET, **given)
        assert caught.value.where == "shape" and "example=inputs" in caught.value.hint
    with pytest.raises(InputError, match=r"a Tensor of shape \(2, 1, 8, 8\) is no shape of a batch") as refused:
        hummingbird.estimate(NET, image)
    assert "example=" in refused.value.hint


def test_commands_take_an_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "talking.py").write_text(
        "import torch\nfrom tests.test_report import Words\n\n\ndef net():\n    torch.manual_seed(0)\n"
        "    return Words()\n\n\ndef inputs(count=2):\n"
        "    return {'words': torch.ones(count, 5, dtype=torch.int64), 'x': torch.rand(count, 5, 6)}\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["--model", "talking:net", "--example", "talking:inputs", "count=2"]
    assert main(["estimate", *words]) == 0
    printed = capsys.readouterr().out
    example = {"words": torch.ones(2, 5, dtype=torch.int64), "x": torch.rand(2, 5, 6)}
    expected = hummingbird.estimate(Words(), example=example)
    assert printed.splitlines()[2:] == str(expected).splitlines()[2:]
    assert main(["save", *words, "--out", "saved"]) == 0
    assert hummingbird.load("saved").inputs == [("x", (5, 6))]
    assert main(["estimate", "--saved", "saved", *words[2:]]) == 0
    assert main(["deal", *words, "--images", "4", "--out", "stores"]) == 0
    assert main(["estimate", "--model", "talking:net", "--example", "talking:nothing"]) == 1
    assert "cannot import 'talking:nothing'" in capsys.readouterr().err


@pytest.mark.parametrize(("parties", "nets"), [(2, "two"), *(pytest.param(n, "all", marks=SLOW) for n in (2, 3))])
def test_sharing_and_opening_take_what_estimate_says(parties: int, nets: str) -> None:
    """For each owner and each receiver, of one input and several, one result and several: tests/jobs/around.py."""
    succeed(["-m", "tests.jobs.around", nets], parties)


def test_around_the_layers_of_one_party_nothing_is_sent() -> None:
    found = hummingbird.estimate(nn.Linear(4, 2), (3, 4), parties=1)
    assert {around.cost for around in found.around.values()} == {FREE}


def test_estimate_says_what_its_rounds_are_of_and_where_gmw_moves_less() -> None:
    smooth = str(hummingbird.estimate(nn.Sequential(nn.Linear(4, 8), nn.GELU()), (2, 4)))
    rows = {line.split("  ")[0]: line.split()[-3:] for line in smooth.splitlines()}
    # Nine words and a header, one int64 for each of 16 results and a header, at 10 Gb/s and half of 0.2 ms a round.
    assert rows["sharing the input"] == ["1", f"{(72 + HEADER_BYTES) / 1e3:,.1f}", "0.10"]
    assert rows["opening the result to one party"] == ["1", f"{(8 * 16 + HEADER_BYTES) / 1e3:,.1f}", "0.10"]
    found = hummingbird.estimate(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), (2, 4), BitWindow(20, 12))
    moved = {name: 2 * cost.bits + cost.offline_bits for name, cost in {**found.aims, **found.beside}.items()}
    assert moved["gmw"] > min(moved.values()) and 'protocol="gmw"' not in str(found)
    cheaper = replace(found, beside={"gmw": FREE})
    assert 'the fewest bytes in all: protocol="gmw"' in str(cheaper)
