"""Tables as text and as HTML: alignment, well-formed elements, every row, and no tag of a name's."""

from __future__ import annotations

import copy
import pickle
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird import he, hybrid
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.channel import meter
from hummingbird.cost import Cost
from hummingbird.table import Report, text_table
from tests.support import html
from tests.support.html import agree, paragraphs, tables

HEAD, ROWS = ["name", "n"], [["a", "1"], ["long name", "1,000"], ["sum", "1,001"]]
HOSTILE = "<b>&\"'</table><script>alert(1)</script>"


def test_text_tables_align() -> None:
    text = text_table(HEAD, ROWS, total=True)
    assert text.splitlines() == [
        "name           n",
        "----------------",
        "a              1",
        "long name  1,000",
        "----------------",
        "sum        1,001",
    ]
    assert repr(text) == str(text) == f"{text}" and type(str(text)) is str


@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("left", [1, 2])
def test_a_notebook_gets_the_same_cells(total: bool, left: int) -> None:
    table = text_table(HEAD, ROWS, left, total)
    assert tables(table) == [[tuple(HEAD), *map(tuple, ROWS)]]
    root = ElementTree.fromstring(table.html)
    assert [part.tag for part in root] == ["thead", "tbody", *["tfoot"] * total]
    sides = [[cell.get("style", "").split(";")[0] for cell in row] for row in root.iter("tr")]
    assert sides == [["text-align: left", f"text-align: {'left' if left == 2 else 'right'}"]] * 4


def test_a_table_without_rows_is_a_table() -> None:
    assert tables(text_table(HEAD, [])) == [[tuple(HEAD)]]


def test_names_are_text_and_no_tags() -> None:
    """A layer may have any name; one that is HTML stays a name."""
    report = Report.of(HOSTILE, text_table([HOSTILE, "n"], [[HOSTILE, HOSTILE]], total=True))
    assert tables(report) == [[(HOSTILE, "n"), (HOSTILE, HOSTILE)]] and paragraphs(report) == [HOSTILE]
    assert "<b>" not in report.html and "<script>" not in report.html
    with pytest.raises(ElementTree.ParseError):  # this test can fail
        tables(Report(HOSTILE, f"<p>{HOSTILE}</p>"))


def test_parts_keep_their_order_and_lines() -> None:
    inner = Report.of("above", text_table(HEAD, ROWS), between="\n")
    report = Report.of("first", inner, "two\nlines")
    assert report == f"first\n\nabove\n{text_table(HEAD, ROWS)}\n\ntwo\nlines"
    assert paragraphs(report) == ["first", "above", "two\nlines"]
    agree(report, report)
    with pytest.raises(AssertionError):  # this one can, too
        agree(report, f"{report}\nmore")


def test_copies_keep_their_html() -> None:
    report = Report.of("words", text_table(HEAD, ROWS))
    for other in (copy.deepcopy(report), pickle.loads(pickle.dumps(report))):
        assert type(other) is Report and (other, other.html) == (report, report.html)


# The reports of the package ------------------------------------------------------------------------------------------


class Named(nn.Module):
    """A net whose layers have names that are HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("<b>", nn.Conv2d(1, 2, 3))
        self.add_module("r&b", nn.ReLU())
        self.add_module("out", nn.Linear(72, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv, relu, out = self.children()
        return out(relu(conv(x)).flatten(1))


def names(shown: object) -> list[str]:
    """The first cells of the first table."""
    return [row[0] for row in html.tables(shown)[0]]


def test_an_estimate() -> None:
    costs = hummingbird.estimate(Named(), (2, 1, 8, 8), BitWindow(20, 12), lanes=2)
    agree(costs, str(costs))
    first, besides, sums = tables(costs)
    assert {"<b>", "r&b", "total"} < set(names(costs)) and len(first) > 4
    assert besides[0][0] == "besides" and sums[0][0] == "a batch"


def test_a_meter() -> None:
    with hummingbird.meter() as counted, meter.layer("<b>", "relu", Cost(2, 80), window="[20:12)", elements=8):
        meter.count(bits=80, rounds=2)
    agree(counted, counted.table())
    assert names(counted) == ["layer", "<b>", "layers without messages", "total"]
    both = meter.Meter.over_lanes([counted, counted])
    agree(both, both.table())
    assert paragraphs(both) == [both.caption]


def test_an_encrypted_net() -> None:
    model = he.convert_model(Named().eval(), (1, 8, 8))
    agree(model.report(), model.report())
    model(torch.rand(3, 1, 8, 8))
    after = model.report()
    agree(after, after)
    assert {"<b>", "r&b", "out", "total"} < set(names(after)) and "measured: 3 images" in paragraphs(after)[-1]


def test_a_hybrid_net() -> None:
    net = hybrid.convert_model(Named().eval(), (1, 8, 8), BitConfig(BitWindow(19, 9), input_range=1.0))
    net(torch.rand(1, 1, 8, 8))
    agree(net.report(), net.report())
    plan, behind, counted = tables(net.report())
    assert {"<b>", "r&b", "total"} < set(names(net.report())) and behind[0][0] == "bytes behind a proxy"
    assert counted[0] == ("layer", "phase", "bytes predicted", "bytes measured") and len(counted) > 4
