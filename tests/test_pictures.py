"""Pictures have the figures of the reports, in the net's order, with units; without matplotlib there is a hint."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any

import pytest

import hummingbird
from hummingbird import pictures
from hummingbird.bits import BitWindow
from hummingbird.channel import meter
from hummingbird.cost import Cost
from hummingbird.errors import ConfigError, EnvironmentProblem
from hummingbird.pictures import Measure, by_layer
from hummingbird.report import Estimate
from models import get_model
from tests.support.covering import every


@pytest.fixture(scope="module")
def costs() -> Estimate:
    return hummingbird.estimate(get_model("digits", 10), (8, 1, 8, 8), BitWindow(20, 12), bandwidth=1e6, rtt=0.1)


@pytest.fixture(scope="module")
def counted() -> meter.Meter:
    """Two layers: the first sends and computes, the second computes alone."""
    with meter.meter() as m:
        with meter.layer("relu1", "relu", Cost(2, 8000), window="[20:12)"):
            meter.count(bits=8000, rounds=2, waited=0.25, offline_bits=32000, offline_seconds=0.5, expanding_seconds=2)
        with meter.layer("1", "linear", Cost(0, 0)):
            pass
    m.rows["relu1"].compute_seconds, m.rows["1"].compute_seconds = 1.0, 4.0
    return m


def labels(figure: Any) -> list[str]:
    """The names of the rows, from the top."""
    (axes,) = figure.axes
    assert axes.yaxis_inverted()
    return [text.get_text() for text in axes.get_yticklabels()]


def lengths(figure: Any) -> list[list[float]]:
    """The lengths of the bars: for each part, a list from the top."""
    return [[float(bar.get_width()) for bar in part] for part in figure.axes[0].containers]


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def words(figure: Any) -> list[str]:
    """The numbers beside the bars."""
    return [text.get_text() for text in figure.axes[0].texts if text.get_text()]


def test_bytes_of_an_estimate(costs: Estimate) -> None:
    figure, layers = costs.plot(), [each for each in costs.layers if each.cost.bits]
    assert labels(figure) == ["relu1 [20:12)", "relu2 [20:12)", "relu3 [20:12)", "fc.lift rescale"]
    assert [each.name for each in layers] == [label.split()[0] for label in labels(figure)]
    online, offline = lengths(figure)
    assert online == [each.cost.bits / 8e3 for each in layers]
    assert offline == [each.cost.offline_bits / 8e3 for each in layers]
    assert legend(figure) == [
        f"online, sent by each party: {costs.online_bytes / 1e3:,.1f} kB",
        f"offline, sent by the dealer to all parties: {costs.offline_bytes / 1e3:,.1f} kB",
    ]
    assert words(figure) == [f"{length:,.1f}" for length in (*online, *offline)]
    assert figure.axes[0].get_xlabel() == "kB" and "2 parties, input (8, 1, 8, 8)" in figure.get_suptitle()
    assert all(f"  {word}" in str(costs) for word in words(figure))  # the same numbers as in the table


def test_rounds_and_seconds_of_an_estimate(costs: Estimate) -> None:
    (rounds,) = lengths(costs.plot("rounds"))
    assert sum(rounds) == costs.rounds and legend(costs.plot("rounds")) == [f"online: {costs.rounds} rounds"]
    seconds = costs.plot("seconds")
    online, offline = lengths(seconds)
    assert sum(online) == pytest.approx(1e3 * costs.seconds)
    assert sum(offline) == pytest.approx(1e3 * 8 * costs.offline_bytes / costs.dealer_bandwidth)
    assert seconds.axes[0].get_xlabel() == "ms" and "0.001 Gb/s, 100 ms round trip" in seconds.get_suptitle()


def test_a_meter(counted: meter.Meter) -> None:
    figure = counted.plot()
    assert labels(figure) == ["relu1 [20:12)"] and lengths(figure) == [[1.0], [4.0]] and words(figure) == ["1.0", "4.0"]
    assert lengths(counted.plot("rounds")) == [[2.0]]
    figure = counted.plot("seconds")
    assert labels(figure) == ["relu1 [20:12)", "1 linear"]
    assert lengths(figure) == [[1.0, 4.0], [0.25, 0.0], [0.5, 0.0], [2.0, 0.0]]
    starts = [[float(bar.get_x()) for bar in part] for part in figure.axes[0].containers]
    assert starts == [[0.0, 0.0], [1.0, 4.0], [1.25, 4.0], [0.0, 0.0]]  # one part after the other
    assert words(figure) == ["1.750", "4.000", "2.000"]
    assert legend(figure)[0] == "computing: 5.000 s" and legend(figure)[-1] == "expanding seeds: 2.000 s"


def test_lanes_and_nothing_at_all(counted: meter.Meter) -> None:
    both = meter.Meter.over_lanes([counted, counted])
    assert both.caption in both.plot().get_suptitle() and lengths(both.plot()) == [[2.0], [8.0]]
    empty = meter.Meter().plot("seconds")
    assert labels(empty) == [] and legend(empty)[0] == "computing: 0.000 s"


def made(numbers: Sequence[float]) -> Any:
    measures = {"bytes": Measure("kB", ",.1f", 1, [{"sent": numbers}])}
    return by_layer("title", [f"layer{number}" for number in range(len(numbers))], "bytes", measures)


def test_small_layers_of_a_deep_net_share_a_row() -> None:
    numbers = [float(1 + 7 * place % 60) if place % 3 else 0.0 for place in range(90)]
    figure = made(numbers)
    assert len(labels(figure)) == pictures.MOST and labels(figure)[-1] == f"{60 - pictures.MOST + 1} smaller layers"
    ((*large, rest),) = lengths(figure)
    assert sum(large) + rest == sum(numbers)
    places = [int(label.removeprefix("layer")) for label in labels(figure)[:-1]]
    assert places == sorted(places) and large == [numbers[place] for place in places]
    assert min(large) >= max(number for place, number in enumerate(numbers) if place not in places)
    assert len(labels(made([1.0] * pictures.MOST))) == pictures.MOST


@pytest.mark.parametrize("rows", [90, pytest.param(0, marks=pytest.mark.slow)])
def test_no_text_covers_another(costs: Estimate, counted: meter.Meter, rows: int) -> None:
    """Names of rows, numbers, legend and title keep apart, and all of them are inside the picture."""
    figures = [made([float(1 + place) for place in range(rows)])] if rows else [costs.plot(), counted.plot("seconds")]
    for figure in figures:
        figure.draw_without_rendering()
        (axes,) = figure.axes
        shown = [
            *axes.get_yticklabels(),
            *axes.texts,
            *axes.get_legend().get_texts(),
            figure._suptitle,
            axes.xaxis.label,
        ]
        boxes = [text.get_window_extent() for text in shown]
        assert not [(a, b) for place, a in enumerate(boxes) for b in boxes[:place] if a.overlaps(b)]
        assert all(figure.bbox.contains(x, y) for box in boxes for x, y in box.corners())


@pytest.mark.parametrize(("kind", "magic"), every(3, [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]))
def test_files_of_every_kind(costs: Estimate, kind: str, magic: bytes) -> None:
    file = io.BytesIO()
    costs.plot().savefig(file, format=kind)
    assert file.getvalue().startswith(magic) and kind in pictures.formats()


def test_an_unknown_quantity(costs: Estimate, counted: meter.Meter) -> None:
    for shown in (costs, counted):
        with pytest.raises(ConfigError, match="no picture of 'bits'") as caught:
            shown.plot("bits")
        assert (caught.value.where, caught.value.hint) == ("of", "one of bytes, rounds, seconds")


def test_without_matplotlib(costs: Estimate, counted: meter.Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for shown in (costs, counted):
        with pytest.raises(EnvironmentProblem, match="needs the package matplotlib") as caught:
            shown.plot()
        assert caught.value.hint == "pip install 'hummingbird-mpc[plot]'"
