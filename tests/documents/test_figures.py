"""Figures of the documentation are those of the formulas and of the measured tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from hummingbird import cost
from hummingbird.bits import BitWindow
from hummingbird.convert import convert_model
from hummingbird.he.scheme.params import TABLES
from hummingbird.hybrid import make_plan, prices
from hummingbird.hybrid.gc import relu
from hummingbird.hybrid.users import INPUTS
from hummingbird.kernels import lookups
from hummingbird.mpc.functions import splines
from hummingbird.mpc.functions.function_table import Sizes, table_of
from hummingbird.mpc.functions.polynomials import WIDEST
from hummingbird.mpc.layers.activations import EvenSmooth
from hummingbird.mpc.protocols import gmw, masked
from hummingbird.mpc.protocols.masked import Masked
from hummingbird.mpc.protocols.truncation import select_price
from hummingbird.ot import cot
from hummingbird.ring import SCALE
from models import MODELS, trained
from scripts.bench.hybrid_nets import SHIPPED, Case
from tests.support.covering import every
from tests.support.pages import BENCHMARKS, DOCUMENTS, LIMITS, README, blocks, text_of
from tests.support.paths import ROOT

ENCRYPTED, LOOKUP, TWO_PARTY = (ROOT / "docs" / name for name in ("encrypted.md", "lookup.md", "two-party.md"))
MEASURED = re.compile(r"<!-- measured -->\n(.*)<!-- /measured -->", re.DOTALL)
MEASURING = (README, BENCHMARKS)


def measured_rows(path: Path) -> list[str]:
    """The lines of the measured table of a page, below its head."""
    table = MEASURED.search(text_of(path))
    assert table
    head, rule, *rows = table[1].splitlines()
    assert head == "| what | CrypTen 0.4.1 | HummingBird as published | here |" and set(rule) <= set("|-:")
    return rows


def test_only_the_measured_tables_may_await_figures() -> None:
    assert not any(word in text_of(path) for path in DOCUMENTS for word in ("TBD", "TODO") if path not in MEASURING)
    assert not any(word in MEASURED.sub("", text_of(path)) for path in MEASURING for word in ("TBD", "TODO"))


def test_the_readme_s_figures_are_those_of_the_benchmarks() -> None:
    assert len(measured_rows(README)) == 5 and set(measured_rows(README)) <= set(measured_rows(BENCHMARKS))


def test_the_closed_forms_in_the_table_are_those_of_cost() -> None:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in measured_rows(BENCHMARKS)]
    rows = {what: [cell.partition(" ")[0].replace(",", "") for cell in cells] for what, *cells in lines}
    n = 10**6
    crypten = cost.crypten_relu(n, 2)
    for label, window in (("window [20:12)", BitWindow(20, 12)), ("window [20:0)", BitWindow(20, 0))):
        read = window.k + Masked(window).weight_scale  # before a convolution and a ReLU of the same window
        here = masked.relu_price(n, window.k, window.m, read, 2)
        published = (gmw.published_bits(window.w), (window.w - 1).bit_length() + 3)
        bits = [crypten.bits // n, published[0], here.bits // n]
        assert [float(x) for x in rows[f"bits per ReLU and party, {label}"]] == pytest.approx(bits, abs=0.5)
        assert [int(x) for x in rows[f"rounds, {label}"]] == [crypten.rounds, published[1], here.rounds]
        offline = rows[f"offline bits per ReLU to both parties, {label}"]
        assert float(offline[2]) == pytest.approx(here.offline_bits / n, abs=0.5)


@pytest.mark.parametrize(("page", "least"), [("protocol.md", 7), ("pair.md", 2)])
def test_the_worked_example_is_what_cost_says(page: str, least: int, capsys: pytest.CaptureFixture[str]) -> None:
    transcripts = blocks(ROOT / "docs" / page, "console")
    shown = re.compile(r"^\$ python -c \"(.*)\"\n(.*)$", re.MULTILINE)
    pairs = [pair for block in transcripts for pair in shown.findall(block)]
    assert len(pairs) == sum(block.count("$ ") for block in transcripts) >= least
    for code, expected in pairs:
        exec(code, {})  # noqa: S102 - lines of this repository
        assert capsys.readouterr().out.strip() == expected, code


@pytest.mark.parametrize("w", [2, 3, 6, 8, 20, 48, 64])
@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_the_formulas_of_the_cost_table(w: int, number: int) -> None:
    """Headers are left out in the document: at most 16 frames of 160 bits to each party here."""
    n, levels = 8 * 10**5, (w - 2).bit_length() if w > 2 else 0
    here = gmw.drelu_price(n, w, number)
    frames = here.rounds * 160 * (number - 1)
    if number == 2:
        assert here.bits == n * (4 * w - 7 - levels) + frames
        assert here.offline_bits == n * (3 * w - 5 - levels)
        assert here.rounds == 1 + levels
    else:
        adders = {3: 1, 4: 2, 5: 3}[number]
        assert here.bits == n * (number - 1) * (2 * (w - 1) * (number - 1) + 3 * (w - 2) - levels) + frames
        assert here.offline_bits == n * ((w - 1) * (number - 1) + 2 * (w - 2) - levels)
        assert here.rounds == adders + 1 + levels
    chosen = select_price(n, 16, number)
    assert (chosen.bits, chosen.offline_bits) == (65 * n * (number - 1) + 160 * (number - 1), 320 * n)


def test_spline_table_is_what_the_converter_makes() -> None:
    table = text_of(ROOT / "docs/formulas.md").partition("| function | span |")[2].partition("\n\n")[0]
    stated = {m[1]: int(m[2]) for m in re.finditer(r"^\| ([\w, /]+) \| [^|]+ \| (\d+) \|$", table, re.MULTILINE)}
    layers = {
        "sigmoid": torch.nn.Sigmoid(),
        "tanh": torch.nn.Tanh(),
        "SiLU": torch.nn.SiLU(),
        "GELU": torch.nn.GELU(),
        "Hardsigmoid": torch.nn.Hardsigmoid(),
    }
    nets = {name: convert_model(torch.nn.Sequential(layer).eval(), protocol="gmw") for name, layer in layers.items()}
    private = {name: net.get_submodule("0") for name, net in nets.items()}
    made = {name: len(layer.curve.knots) + isinstance(layer, EvenSmooth) for name, layer in private.items()}
    assert stated == made | {
        "exp, in a softmax over 1000 places": len(splines.exponential(1000).knots),
        "1/x, once for each softmax over 1000 places": len(splines.reciprocal(1000).knots),
        "log, once for each log softmax over 1000 places": len(splines.logarithm(1000).knots),
    }
    smooth = [len(layer.curve.knots) for name, layer in private.items() if name != "Hardsigmoid"]
    assert f"splines: {min(smooth)} to {max(smooth)} comparisons" in text_of(LIMITS)


def test_the_table_of_smooth_functions_is_what_is_chosen() -> None:
    """Results that a convolution reads before the same window: its weights' bits, and one more than the window's."""
    text = text_of(ROOT / "docs/smooth.md").partition("| function, window | k, w, d |")[2].partition("\n\n")[0]
    found = re.findall(
        r"^\| (\w+), \[20:(\d+)\),[^|]+\| ([\d, ]+) \| ([\d.e-]+) \| (\d+) bits, 1 round \| ([\d,]+) bits", text, re.M
    )
    assert len(found) == 3
    for name, m, shape, error, online, offline in found:
        fraction, read = 22 - int(m), 21 - SCALE + Masked(BitWindow(20, int(m))).weight_scale
        allowed = 2.0 ** -(fraction + 1) if fraction > 8 else 2.0 ** (1 - fraction)
        held = Sizes(-8.0, 8.0, fraction, fraction, allowed, 6, WIDEST)
        found_table = table_of({"SiLU": "silu(x)", "GELU": "gelu(x)"}[name], held, read)
        assert found_table is not None
        table = found_table.table
        assert shape == f"{table.k}, {table.w}, {table.degree}" and int(online) == table.k
        assert error == f"{found_table.error(2):.1e}".replace("e-0", "e-")
        assert int(offline.replace(",", "")) == sum(table.widths(read + fraction)) << table.w


def test_the_security_tables_are_those_of_the_package() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text_of(ENCRYPTED).splitlines()]
    degrees = [int(cell) for cell in next(row for row in rows if row[0] == "N")[1:]]
    for year, table in TABLES.items():
        shown = next(row for row in rows if row[0].startswith(year))
        assert dict(zip(degrees, map(int, shown[1:]), strict=True)) == table


def test_the_size_of_a_key_is_the_format_s() -> None:
    text = " ".join(text_of(LOOKUP).split())
    constant, step, million = map(
        int, re.findall(r"(\d+) \+ (\d+) d bytes for a tree of depth d, (\d+) at 2\^20", text)[0]
    )
    assert [lookups.key_bytes(1 << bits) for bits in (10, 15, 20)] == [constant + step * depth for depth in (0, 5, 10)]
    assert million == lookups.key_bytes(1 << 20)


def test_the_bytes_of_a_garbled_relu_are_those_of_the_kernels() -> None:
    """The formulas of docs/two-party.md and the table below them; 128 tiles, so that nothing is padded."""
    text, n = text_of(TWO_PARTY), 2048

    def offline(width: int, ring: int, garbler: str) -> float:
        tables = relu.Circuit("relu", width, ring, garbler).table_bytes(n)
        return (tables + cot.message_bytes(n * width, garbler == "data")) / n

    for w, ring in ((2, 8), (8, 16), (10, 20), (24, 32)):
        assert offline(w, ring, "data") == 16 + 32 * (w - 2) + (3 * (w - 1) + 1) * ring / 8 + 31 * w / 8
        assert offline(w, ring, "model") == 32 * (w - 1) + 3 * (w - 1) * ring / 8 + 4 * w
    assert "| D garbles | 16 + 32 (w - 2) + (3 (w - 1) + 1) k' / 8, and 31 w / 8 for transfers | w / 8 to D," in text
    assert "| M garbles | 32 (w - 1) + 3 (w - 1) k' / 8, and 4 w for transfers | 16 w to D, k' / 8 to M |" in text
    shown = re.findall(
        r"^\| (D garbles|M garbles|a 2x2 maximum, D garbles) \| ([\d.,]+) \| ([\d.]+) \|", text, re.MULTILINE
    )
    stated = {name: (float(before.replace(",", "")), float(online)) for name, before, online in shown}
    assert stated == {
        "D garbles": (offline(10, 20, "data"), 10 / 8 + 160),
        "M garbles": (offline(10, 20, "model"), 160 + 20 / 8),
        "a 2x2 maximum, D garbles": (3 * offline(10, 10, "data"), 3 * (10 / 8 + 160)),
    }


TITLES = ("Impala's MNIST net", "Impala's CIFAR-10 net", "ResNet-18, CIFAR-10")


@pytest.mark.parametrize(("title", "case"), every(3, [*zip(TITLES, SHIPPED, strict=True)]), ids=TITLES)
def test_the_bytes_behind_a_proxy_and_the_round_trips_are_those_of_the_plans(title: str, case: Case) -> None:
    text = text_of(TWO_PARTY)
    net = trained(case.model, 10, str(ROOT / "checkpoints" / case.weights))
    plan = make_plan(net, MODELS[case.model].input_shape, ROOT / "checkpoints" / case.bits).plan
    for kind in INPUTS:
        found = prices.user_once(plan, kind), prices.user(plan, kind), prices.proxied(plan, kind)
        bytes_ = " | ".join(f"{sum(part.values()):,}" for part in found)
        assert re.search(
            rf"^\| {f'{title}.*' if kind == 'shares' else ''} ?\| {kind} \| {re.escape(bytes_)} \|$", text, re.M
        )
    assert re.search(rf"^\| {title} \| {len(plan.gates) + 1} \|", text, re.M)
