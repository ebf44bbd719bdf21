"""`python -m search.find_bits`: what it writes and prints, what stops it, and how it goes on."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.commands import output
from hummingbird.commands.searching import state_of
from hummingbird.convert import convert_model
from hummingbird.errors import ConfigError, EnvironmentProblem
from hummingbird.window_search import ComparingLayer
from hummingbird.window_search.cached import CachedEvaluator
from hummingbird.window_search.objective import read_budget
from models import get_model, load_checkpoint
from search import options
from search.find_bits import main, parser
from tests.support import python
from tests.support.data import WITH_SKLEARN
from tests.support.paths import ROOT
from tests.support.patience import HANG, until

WEIGHTS = ROOT / "checkpoints" / "digits.pt"
NET = ["--model", "digits", "--weights", str(WEIGHTS), "--dataset", "digits", "--split", "train"]
SMALL = [*NET, "--samples", "64", "--group", "layer"]
SHAPE = (1, 8, 8)

pytestmark = WITH_SKLEARN


def result(path: Path) -> tuple[Any, Any]:
    """Windows and provenance, without what differs between runs of the same search."""
    config = BitConfig.load(path)
    return config.layers, {k: v for k, v in config.provenance.items() if k not in ("seconds", "command")}


def comparing_costs(config: BitConfig, images: int) -> list[Any]:
    """Prices of the comparing layers, of the converter itself."""
    private = convert_model(load_checkpoint(WEIGHTS, get_model("digits", 10)).eval(), config)
    return [cost.cost for cost in private.costs((images, *SHAPE), 2) if cost.name in private.comparing_layers]


def interrupt_at(monkeypatch: pytest.MonkeyPatch, last: int) -> Callable[[], None]:
    """Ctrl-C at the evaluator's n-th question; returns what undoes it."""
    asked, answers = [0], {name: getattr(CachedEvaluator, name) for name in ("coarse", "full")}

    def asking(name: str) -> Callable[..., Any]:
        def ask(self: CachedEvaluator, *question: Any) -> Any:
            asked[0] += 1
            if asked[0] == last:
                raise KeyboardInterrupt
            return answers[name](self, *question)

        return ask

    def put(made: Callable[[str], Any]) -> None:
        for name in answers:
            monkeypatch.setattr(CachedEvaluator, name, made(name))

    put(asking)
    return lambda: put(answers.__getitem__)


# What is found --------------------------------------------------------------------------------------------------------


def test_eco_covers_every_magnitude_with_a_bit_to_spare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "eco.json"
    assert main([*SMALL, "--out", str(out), "--plot", str(tmp_path / "eco.png")]) == 0
    written = json.loads(out.read_text())["provenance"]
    assert {"model", "dataset", "split", "command", "net", "data", "seconds", "versions"} <= set(written)
    config = BitConfig.load(out)
    said = config.provenance
    assert said["accuracy"] == said["exact_accuracy"] and said["samples"] == 64
    assert list(config.layers) == ["relu1", "relu2", "relu3"]
    for name, window in config.layers.items():
        assert window.m == 0 and 2 ** (window.k - 3) <= said["layers"][name]["largest"] + 1 < 2 ** (window.k - 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eco.json", "eco.png"]
    assert (tmp_path / "eco.png").read_bytes().startswith(b"\x89PNG")

    text = capsys.readouterr().out
    first = re.search(r"^relu1 +1,024 +([\d.]+) +\[(\d+):0\) +(\d+) +(\d+) +0 +([\d.]+)$", text, re.MULTILINE)
    assert first, text
    largest, k = said["layers"]["relu1"]["largest"], config.window("relu1").k
    assert [int(first[i]) for i in (2, 3, 4)] == [k, k, 64 - k]
    assert float(first[1]) == pytest.approx(largest / 2**16, abs=6e-4) and 1 < float(first[5]) <= 2
    net = load_checkpoint(WEIGHTS, get_model("digits", 10)).eval()
    for bits in (BitConfig(), config):
        costs = [planned.cost for planned in convert_model(net, bits).costs((1, *SHAPE), 2)]
        sent = f"{sum(cost.bits for cost in costs) / 8e3:,.2f} kB in {sum(cost.rounds for cost in costs)} rounds"
        assert sent in text
    assert "budget    none (eco)" in text and "of 64 images of the train split" in text


@pytest.mark.slow
def test_a_budget_of_bits_is_met_and_a_seed_repeats_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outs = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    for out, seed in zip(outs, "001", strict=True):
        assert main([*SMALL, "--budget", "4/64", "--seed", seed, "--out", str(out)]) == 0
    config = BitConfig.load(outs[0])
    outputs = {"relu1": 1024, "relu2": 512, "relu3": 1024}
    kept = sum(config.layers[name].w * count for name, count in outputs.items())
    assert 0 < kept <= 4 * sum(outputs.values())
    assert config.provenance["cost"] == kept / (64 * sum(outputs.values()))
    assert f"budget    4.00/64, cost {kept / sum(outputs.values()):.2f}/64" in capsys.readouterr().out
    assert result(outs[0]) == result(outs[1])
    assert result(outs[0])[1] != result(outs[2])[1]  # the seed is told
    assert config.provenance["groups"] == {name: (name,) for name in outputs}
    assert config.provenance["command"].startswith("python -m search.find_bits --model digits --weights digits.pt")
    assert str(tmp_path) not in outs[0].read_text()


@pytest.mark.parametrize(
    ("words", "images", "price"),
    [
        (["--objective", "bytes", "--budget", "6.9kB", "--batch-images", "8"], 8, lambda c: c.bits / 64),
        pytest.param(
            ["--objective", "seconds", "--budget", "0.01", "--bandwidth", "352e6", "--rtt", "0.002"],
            1,
            lambda c: c.seconds(352e6, 0.002),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_budgets_of_bytes_and_seconds_are_the_converters(
    words: Sequence[str], images: int, price: Callable[[Any], float], tmp_path: Path
) -> None:
    out = tmp_path / "bits.json"
    assert main([*SMALL, "--widths", "0", "4", "8", *words, "--out", str(out)]) == 0
    config = BitConfig.load(out)
    paid = sum(price(cost) for cost in comparing_costs(config, images))
    assert config.provenance["cost"] == pytest.approx(paid, rel=1e-9)
    assert 0 < paid <= config.provenance["budget"]
    assert sum(price(cost) for cost in comparing_costs(BitConfig(), images)) > config.provenance["budget"]


def test_groups_by_pattern_drop_the_same_bits(tmp_path: Path) -> None:
    out = tmp_path / "bits.json"
    words = ["--group", "ends=relu1,relu3", "--group", "middle=relu2", "--budget", "5/64", "--widths", "4", "6"]
    assert main([*NET, "--samples", "32", *words, "--thrifty", "--out", str(out)]) == 0
    config = BitConfig.load(out)
    assert config.layers["relu1"].m == config.layers["relu3"].m and config.layers["relu2"].w in (4, 6)
    assert config.provenance["groups"] == {"ends": ("relu1", "relu3"), "middle": ("relu2",)}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["masked", "gmw"])
def test_q_too_for_fewer_bytes_in_all(protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, rounded = tmp_path / "plain.json", tmp_path / "rounded.json"
    words = [*SMALL, "--protocol", protocol]
    assert main([*words, "--out", str(plain)]) == 0
    assert " in all kB" not in capsys.readouterr().out
    assert main([*words, "--knobs", "q", "--out", str(rounded)]) == 0
    text, configs = capsys.readouterr().out, [BitConfig.load(path) for path in (plain, rounded)]
    said, net = configs[1].provenance["rounding"], load_checkpoint(WEIGHTS, get_model("digits", 10)).eval()
    kilobytes = []
    for config in configs:
        costs = convert_model(net, config, protocol=protocol, aim="throughput").costs((1, *SHAPE), 2)
        moved = {cost.name: (2 * cost.cost.bits + cost.cost.offline_bits) / 8e3 for cost in costs}
        kilobytes.append({**moved, "whole net": sum(moved.values())})
    for name, before in configs[0].layers.items():
        after = configs[1].layers[name]
        assert before.q == 0 < after.q == said["q"][name] and (after.k, after.m) == (before.k, before.m)
        figures = " +".join([*map(str, (after.k, after.m, after.q)), *(f"{each[name]:,.2f}" for each in kilobytes)])
        assert re.search(rf"^{name} +{figures}$", text, re.MULTILINE), text
        assert f"{after} " in text
    without, with_ = (f"{each['whole net']:,.2f}" for each in kilobytes)
    assert re.search(rf"^whole net +{without} +{with_}$", text, re.MULTILINE)
    assert f"in all    without q {without} kB, with q {with_} kB; without q 100.00 % by the same criterion" in text
    assert kilobytes[1]["whole net"] * 1e3 == said["bytes_in_all"] < said["bytes_in_all_without"]
    assert configs[1].provenance["agreement"] == 1.0


def test_a_knob_that_there_is_not_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*SMALL, "--knobs", "x", "--out", str(tmp_path / "bits.json")])
    assert caught.value.code == 2 and list(tmp_path.iterdir()) == []
    assert re.search(r"argument --knobs: invalid choice: 'x' \(choose from '?q'?\)", capsys.readouterr().err)


def test_budgets_are_read_exactly() -> None:
    assert read_budget("8/64", "bits") == Fraction(1, 8) and read_budget("0.1", "bits") == Fraction(1, 10)
    assert read_budget("1.5MB", "bytes") == 1_500_000 and read_budget("120kB", "bytes") == 120_000
    assert read_budget("7", "bytes") == 7 and read_budget("5e-3", "seconds") == Fraction(1, 200)
    assert read_budget("0.2/64", "bits") == Fraction(1, 320) and read_budget("8/6.4e1", "bits") == Fraction(1, 8)
    for text, objective in (
        ("8/64/2", "bits"),
        ("8/", "bits"),
        ("/64", "bits"),
        ("8", "bits"),
        ("0", "bits"),
        ("-1/64", "bits"),
        ("8/0", "bits"),
        ("nan", "seconds"),
        ("inf", "seconds"),
        ("8kB", "bits"),
        ("kB", "bytes"),
        ("5GB", "bytes"),
        ("", "seconds"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_budget(text, objective, "--budget")
        assert caught.value.where == "--budget" and caught.value.hint


# What stops it --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_interrupted_anywhere_and_resumed_is_undisturbed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SMALL, "--widths", "0", "2", "3", "5", "--reach", "2", "--budget", "4/64"]
    whole, out = tmp_path / "whole.json", tmp_path / "bits.json"
    assert main([*words, "--out", str(whole)]) == 0
    for last in (1, 2, 7):
        undo = interrupt_at(monkeypatch, last)
        assert main([*words, "--out", str(out)]) == 130
        assert capsys.readouterr().err.endswith("\ninterrupted: go on with the same command and --resume\n")
        assert not out.exists() and len(state_of(out).read_text().splitlines()) == last  # a head, and each answer
        undo()
        assert main([*words, "--out", str(out)]) == 1
        assert "the state of an unfinished search" in capsys.readouterr().err
        assert main([*words, "--out", str(out), "--resume"]) == 0
        assert result(out) == result(whole) and not state_of(out).exists()
        assert "--resume" not in BitConfig.load(out).provenance["command"]
        out.unlink()


@pytest.mark.slow
def test_stopped_by_a_signal_and_resumed_is_undisturbed(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.json", tmp_path / "bits.json"
    words = [*NET, "--group", "layer", "--samples", "1024", "--reach", "6", "--budget", "3/64"]
    program = python.Popen(
        [sys.executable, "-m", "search.find_bits", *words, "--out", str(out)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        state = state_of(out)
        until(lambda: program.poll() is not None or (state.exists() and state.read_text().count("\n") > 3))
        assert program.poll() is None
        program.send_signal(signal.SIGINT)
        said = program.communicate(timeout=HANG)[1]
    finally:
        program.kill()
    assert program.returncode == 130 and said.splitlines()[-1].startswith("interrupted: "), said
    assert "Traceback" not in said and not out.exists()
    answers = state.read_bytes()
    assert main([*words, "--out", str(out), "--resume"]) == 0
    assert main([*words, "--out", str(whole)]) == 0
    assert result(out) == result(whole) and answers.startswith(b'{"format": "hummingbird-search"')


@pytest.mark.parametrize(
    "changes", [("weights", "seed"), pytest.param(("weights", "budget", "seed", "samples"), marks=pytest.mark.slow)]
)
def test_the_state_of_another_net_is_refused(
    changes: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, other = tmp_path / "bits.json", tmp_path / "other.pt"
    words = [*SMALL, "--widths", "4", "--budget", "4/64", "--out", str(out)]
    undo = interrupt_at(monkeypatch, 3)
    assert main(words) == 130
    undo()
    kept = state_of(out).read_bytes()
    torch.save({key: value * 1.5 for key, value in torch.load(WEIGHTS, weights_only=True).items()}, other)
    values = {"weights": str(other), "budget": "5/64", "seed": "1", "samples": "65"}
    for change in changes:
        assert main([*words, f"--{change}", values[change], "--resume"]) == 1
        assert f"error: the state of another search (at {state_of(out)})" in capsys.readouterr().err
        assert state_of(out).read_bytes() == kept and not out.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--samples 0", "0 images (at --samples)"),
        ("--split validation", "digits holds no images out for validation"),
        ("--weights absent.pt", "cannot read absent.pt: No such file"),
        ("--weights README.md", "is no weights-only checkpoint"),
        ("--model resnet18", "hint: for digits take digits"),
        ("--option pool=avg", "unexpected keyword argument 'pool' (at --option)"),
        ("--device nowhere", "(at --device nowhere)"),
        ("--budget 8", "a budget of 8 bits (at --budget)"),
        ("--budget some", "'some' is no budget of bits (at --budget)"),
        ("--budget 1/64 --widths 8", "no assignment meets a budget of 0.015625"),
        ("--budget 4/64 --widths 65", "a window of 65 bits"),
        ("--budget 4/64 --margin 5", "an accuracy margin of 5"),
        ("--budget 4/64 --headroom -1", "a headroom of -1"),
        ("--budget 4/64 --trials 0", "trials is 0"),
        ("--budget 4/64 --reach -1", "reach is -1"),
        ("--budget 9/64 --knobs q --cut", "--knobs q with --cut (at --knobs)"),
        ("--spare -1", "-1 bits to spare"),
        ("--spare 40", "but the shares allow"),
        ("--objective seconds --budget 1 --bandwidth 0", "bandwidth is 0"),
        ("--objective bytes --budget 1 --batch-images 0", "images is 0"),
        ("--group nothing", "unknown grouping 'nothing'"),
        ("--group a=relu9", "pattern 'relu9' matches no layer"),
        ("--group layer --group a=relu*", "'layer' names no patterns (at --group)"),
        ("--group a=relu1", "layer relu2 is in no group"),
        ("--parties 1", "--parties 1 --seed 0 (at private inference)"),
        ("--seed -1", "hint: 2 parties or more, and a seed from 0"),
        ("--resume", "there is no search to resume"),
        ("--plot absent/bits.png", "there is no folder absent"),
        ("--plot bits.txt", "bits.txt names no format (at --plot)"),
    ],
)
def test_wrong_arguments_are_one_error_and_nothing_is_left(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main([*NET, "--samples", "8", *shlex.split(words), "--out", str(tmp_path / "bits.json")]) == 1
    error = capsys.readouterr().err.splitlines()
    said = [line for line in error if line.startswith("error: ")]
    assert len(said) == 1 and message in "\n".join(error), error
    assert list(tmp_path.iterdir()) == []


def test_no_place_to_write_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--out", str(tmp_path / "absent" / "bits.json")]) == 1
    assert "hint: make it first" in capsys.readouterr().err
    assert main([*SMALL, "--out", str(tmp_path)]) == 1
    assert "is a folder (at --out)" in capsys.readouterr().err


def test_a_search_without_result_leaves_no_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bits.json"
    assert main([*SMALL, "--widths", "2", "--budget", "2/64", "--margin", "0", "--out", str(out)]) == 1
    assert "found no assignment within 0.03125" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nets_and_labels_that_cannot_be_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    squares, out = tmp_path / "squares.pt", tmp_path / "bits.json"
    torch.save(get_model("cryptonets", 10).state_dict(), squares)
    monkeypatch.setattr(options, "load", lambda *_: (torch.randn(4, 1, 28, 28), torch.arange(4)))
    net = ["--model", "cryptonets", "--weights", str(squares), "--dataset", "mnist"]
    assert main([*net, "--out", str(out)]) == 1
    assert "error: no comparing layers" in capsys.readouterr().err
    monkeypatch.setattr(options, "load", lambda *_: (torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 10])))
    assert main([*SMALL, "--out", str(out)]) == 1
    assert "error: labels from 0 to 10, but the net has 10 classes" in capsys.readouterr().err


# What it shows --------------------------------------------------------------------------------------------------------


def test_the_drawing_shows_windows_and_magnitudes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    save = output._save
    monkeypatch.setattr(
        output, "_save", lambda figure, *rest, **kw: (figures.append(figure), save(figure, *rest, **kw))
    )
    layers = [ComparingLayer("a", 10, 2**18), ComparingLayer("b", 10, 0), ComparingLayer("c", 10, 2**20)]
    windows = {"a": BitWindow(21, 13), "b": BitWindow(0, 0), "c": BitWindow(22, 18)}
    for config, height in ((BitConfig(layers=windows), 32), (BitConfig(layers={"a": windows["a"]}), 64)):
        output.draw_windows(layers, config, tmp_path / "bits.pdf")
        (axes,) = figures.pop().axes
        bars = [(bar.get_y(), bar.get_height()) for bar in axes.patches]
        assert bars[:3] == [(0, height)] * 3
        shown = [config.window(layer.name) for layer in layers]
        assert bars[3:] == [(window.m, window.w) for window in shown]
        assert [line[0, 1] for line in axes.collections[0].get_segments()] == [18, 20]
        assert ("those from 32 to 63 are discarded" in axes.get_ylabel()) == (height == 32)
    assert (tmp_path / "bits.pdf").read_bytes().startswith(b"%PDF")


def test_a_plot_needs_matplotlib_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EnvironmentProblem, match=r"hummingbird-mpc\[plot\]"):
        output.check(tmp_path / "bits.png", "--plot")


def test_help_teaches() -> None:
    text = parser().format_help()
    lines = re.sub(r" \\\n +", " ", text)
    shown = re.findall(r"^    (python -m search\.find_bits .*)$", lines, re.MULTILINE)
    assert len(shown) == 3
    for line in shown:
        args = parser().parse_args(shlex.split(line)[3:])
        assert args.budget is None or read_budget(args.budget, args.objective) > 0
