"""The commands, as a user types them: what they print, and how they refuse."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hummingbird
from hummingbird.__main__ import COMMANDS, main
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.commands import check
from hummingbird.version import VERSION
from tests.support import python
from tests.support.paths import ROOT
from tests.support.patience import HANG, NEVER, PROGRAM


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m hummingbird ARGUMENTS` in the repository."""
    return python.run(
        [sys.executable, "-m", "hummingbird", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM
    )


DIGITS = ["--model", "models:get_model", "digits", "10", "--input", "2x1x8x8"]


def test_info() -> None:
    ended = command("info")
    assert ended.returncode == 0, ended.stderr
    facts = dict(line.split(maxsplit=1) for line in ended.stdout.splitlines() if not line.startswith("CrypTen shim"))
    assert facts["hummingbird"] == VERSION == hummingbird.__version__
    assert facts["Python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert facts["crypten"] == "0.4.1" and {"torch", "CPU", "GPU", "kernels", "cryptography", "grpcio"} <= set(facts)
    assert "Traceback" not in ended.stderr


def test_check_runs_two_parties_and_a_dealer() -> None:
    ended = command("check", "--timeout", f"{HANG:g}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"largest logit error \d\.\de-\d\d, \d+ rounds, [\d.]+ kB, as predicted", ended.stdout)
    assert ended.stdout.splitlines()[-1].startswith("ok: two parties and a dealer")


def test_check_says_so_when_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """Its processes import torch, which takes longer than the limit; forked ones would have it already."""
    assert main(["check", "--timeout", "0.05"]) == 1
    out, err = capsys.readouterr()
    assert re.match(r"error: party \d failed: it did not start within 0.05 s", err)
    assert out.splitlines()[-1].startswith("FAILED")


def test_check_waits_for_a_slow_machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its only limit is the silence of a process, which is long by default; what is wrong makes it fail."""
    given: dict[str, float] = {}
    monkeypatch.setattr(check, "launch", lambda fn, **options: given.update(options) or [("right", False), ("", False)])
    assert main(["check"]) == 0 and given == {"timeout": 600.0}
    assert capsys.readouterr().out.splitlines()[1] == "right"
    monkeypatch.setattr(check, "launch", lambda fn, **options: [("right", False), ("party 1: wrong", True)])
    assert main(["check"]) == 1
    assert "party 1: wrong\nFAILED: " in capsys.readouterr().out


def test_without_a_command_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(re.search(rf"^ +{name}\s+[A-Z].*\.", text, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("8/64", 'hummingbird.prepare(net, loader, "8/64"), or the command find-bits --budget 8/64 --out bits.json'),
        ("20:12", "hummingbird.BitWindow(20, 12), or --window 20:12"),
        ("[20:12)", "hummingbird.BitWindow(20, 12), or --window 20:12"),
        ("bits.json", "a file that prepare, find-bits or BitConfig.save has written"),
    ],
)
def test_what_is_no_file_of_windows_leads_to_one(capsys: pytest.CaptureFixture[str], given: str, hint: str) -> None:
    assert main(["estimate", *DIGITS, "--bits", given]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"error: cannot read the bit configuration: No such file or directory (at {given})\nhint: ")
    assert hint in told
    with pytest.raises(SystemExit):  # the options that the hint names
        main(["find-bits", "--budget", "8/64", "--out", "bits.json", "--help"])


@pytest.mark.slow
def test_estimate_of_a_torchvision_net() -> None:
    pytest.importorskip("torchvision")
    ended = command("estimate", "--model", "torchvision.models:resnet18", "--input", "1x3x64x64", "--rtt", "0.02")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "2 parties, input (1, 3, 64, 64), 10 Gb/s, 20 ms round trip; per party"
    names = {line.split()[0] for line in lines[4:] if line.strip("- ")}
    assert {"relu", "maxpool", "layer1.0.relu", "layer1.0.relu#1", "layer4.1.relu#1", "total"} <= names


def table(text: str) -> dict[str, list[str]]:
    """Cells by layer."""
    return {line.split()[0]: line.split()[1:] for line in text.split("\n\n")[1].splitlines()[1:] if line.strip("- ")}


def test_estimate_of_our_own_net_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """2 x 1 x 8 x 8 digits: elements, rounds and bits are those of `PrivateNet.costs`."""
    from hummingbird.convert import convert_model
    from models import get_model

    assert main(["estimate", *DIGITS, "--parties", "3", "--bandwidth", "1e6", "--rtt", "0.1"]) == 0
    rows = table(capsys.readouterr().out)
    planned = convert_model(get_model("digits", 10)).costs((2, 1, 8, 8), 3)
    sending = [step for step in planned if step.cost.rounds]
    layers = {step.name for step in planned if step.range is not None and step.op != "flatten"}
    assert set(rows) == layers | {"total"} and layers > {step.name for step in sending}
    for step in sending:
        cells = rows[step.name]
        assert cells[-1] == f"{1e3 * (step.cost.rounds * 0.05 + step.cost.bits / 1e6):,.2f}"
        assert cells[-3] == f"{step.cost.bits / 8e3:,.1f}" and cells[-5] == str(step.cost.rounds)
    assert rows["total"][1] == str(sum(step.cost.rounds for step in sending))


def test_estimate_for_lanes(capsys: pytest.CaptureFixture[str]) -> None:
    """A lane's table is that of one lane, but its bits have a part of the link; a line tells of all lanes."""
    link = ["--bandwidth", "1e6", "--rtt", "0.1"]
    assert main(["estimate", *DIGITS, *link]) == 0
    one = table(capsys.readouterr().out)
    assert main(["estimate", *DIGITS, *link, "--lanes", "4"]) == 0
    printed = capsys.readouterr().out
    four = table(printed)
    assert {name: cells[:-1] for name, cells in four.items()} == {name: cells[:-1] for name, cells in one.items()}
    rounds, sent, offline, _ = (float(cell.replace(",", "")) for cell in (one["total"][1], *one["total"][3:]))
    shown = 4 * 8 * 0.05  # of kilobytes one decimal is shown
    assert float(four["total"][-1].replace(",", "")) == pytest.approx(rounds * 50 + 4 * sent * 8, abs=shown)
    together = re.search(r"4 lanes together: 8 images, ([\d.,]+) kB sent, ([\d.,]+) kB offline", printed)
    assert together is not None
    for found, one_lane in zip(together.groups(), (sent, offline), strict=True):
        assert float(found.replace(",", "")) == pytest.approx(4 * one_lane, abs=4 * 0.05 + 0.05)


def test_the_link_of_two_parties_without_a_dealer_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (([], "0.1 Gb/s, 20 ms"), (["--rtt", "0.01"], "0.1 Gb/s, 10 ms")):
        assert main(["estimate", *DIGITS, "--dealer", "pair:0.02:100e6", *words]) == 0
        assert f"{said} round trip; per party" in capsys.readouterr().out


def test_estimate_with_windows_and_private_weights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    BitConfig(BitWindow(20, 12), {"relu1": BitWindow(18, 12)}).save("bits.json")
    assert main(["estimate", *DIGITS]) == 0
    exact = table(capsys.readouterr().out)
    assert main(["estimate", *DIGITS, "--bits", "bits.json"]) == 0
    small = table(capsys.readouterr().out)
    assert small["relu1"][1] == "[18:12)" and small["relu2"][1] == "[20:12)"
    assert float(small["total"][3]) < float(exact["total"][3])
    assert main(["estimate", *DIGITS, "--private-weights"]) == 0
    private = table(capsys.readouterr().out)  # the last three cells: kB sent, kB offline, ms
    assert all(float(private[name][-3]) > 0 and float(exact[name][-3]) == 0 for name in ("conv1", "fc"))
    assert main(["estimate", *DIGITS, "--parties", "1"]) == 0
    assert "total" in capsys.readouterr().out


def test_estimate_of_a_net_in_the_users_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_net.py").write_text("from torch import nn\ndef get_model():\n    return nn.ReLU()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["estimate", "--model", "my_own_net", "--input", "4x9"]) == 0
    assert "36" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--model", "no.such.module", "--input", "1x3"], "cannot import 'no.such.module'"),
        (["--model", "models:no_such_function", "--input", "1x3"], "no_such_function"),
        (["--model", "models:get_model", "no_such_net", "10", "--input", "1x3"], "no_such_net"),
        (["--model", "models:get_model", "digits", "--input", "1x3"], "num_classes"),
        (["--model", "models:get_model", "digits", "0", "--input", "1x3"], "num_classes"),
        (["--model", "os:getcwd", "--input", "1x3"], r"expected a torch\.nn\.Module, got str"),
        (["--model", "torch.nn:Hardshrink", "--input", "1x3"], "cannot be converted"),
        ([*DIGITS[:-1], "2x3x8x8"], r"cannot take an input of shape \(2, 3, 8, 8\)"),
        ([*DIGITS[:-1], "2"], r"got shape \(2,\)"),
        ([*DIGITS, "--bits", "no-such-file.json"], "cannot read the bit configuration"),
        ([*DIGITS, "--bits", "setup.py"], "malformed bit configuration: it is no JSON"),
        ([*DIGITS, "--bits", "checkpoints/digits.pt"], "not a JSON file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_an_error_and_a_hint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], what: str
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["estimate", *arguments]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: ") and re.search(what, printed.err), printed.err
    assert "hint: " in printed.err or not re.search("cannot import|gives no net|converted|shape", printed.err)


def test_ctrl_c_ends_a_command_without_a_traceback(tmp_path: Path) -> None:
    """It waits for parties, where somebody listens who never answers."""
    np.save(tmp_path / "images.npy", np.zeros((1, 3), np.float32))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        parties = [f"127.0.0.1:{port}", f"localhost:{port}"]
        words = ["ask", "--parties", *parties, "--images", f"{tmp_path}/images.npy", "--timeout", f"{NEVER}"]
        program = [sys.executable, "-m", "hummingbird", *words]
        with python.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as asking:
            try:
                silent.settimeout(PROGRAM)
                caller, _ = silent.accept()
                with caller:
                    asking.send_signal(signal.SIGINT)
                    said, _ = asking.communicate(timeout=HANG)
            finally:
                asking.kill()
    assert asking.returncode == 130 and said.splitlines() == ["", "interrupted"]


def test_an_error_ends_the_process_with_code_1_and_without_a_traceback() -> None:
    ended = command("estimate", "--model", "no.such.module", "--input", "1x3")
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.splitlines()[0].startswith("error: cannot import") and "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("hint: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["estimate"],
        ["estimate", "--model", "models:get_model"],
        ["estimate", *DIGITS[:-1], "two"],
        ["estimate", *DIGITS[:-1], "2x-1x8"],
        ["estimate", *DIGITS[:-1], "2x0x8x8"],
        ["estimate", *DIGITS, "--parties", "0"],
        ["estimate", *DIGITS, "--parties", "-2"],
        ["estimate", *DIGITS, "--parties", "two"],
        ["estimate", *DIGITS, "--bandwidth", "0"],
        ["estimate", *DIGITS, "--bandwidth", "-5"],
        ["estimate", *DIGITS, "--bandwidth", "nan"],
        ["estimate", *DIGITS, "--rtt", "-1"],
        ["estimate", *DIGITS, "--rtt", "soon"],
        ["check", "--timeout", "soon"],
        ["dealer"],
        ["info", "--verbose"],
    ],
    ids=" ".join,
)
def test_arguments_that_make_no_sense_are_refused_with_the_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    assert ended.value.code == 2 and printed.out == ""
    assert "usage: python -m hummingbird" in printed.err and "error: " in printed.err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", list(COMMANDS)),
        ("info", ["versions"]),
        ("check", ["--timeout", "two parties and a dealer"]),
        (
            "estimate",
            ["--model", "--input", "--bits", "--parties", "--bandwidth", "--rtt", "--private-weights", "examples"],
        ),
        (
            "infer",
            ["--model", "--weights", "--data", "--owner", "--bits", "--store", "--dealer", "--json", "run --parties 2"],
        ),
        ("find-bits", ["--model", "--weights", "--data", "--budget", "--group", "--out", "--resume", "convert_model"]),
        ("frontier", ["--model", "--weights", "--data", "--budgets", "--out-folder", "--plot", "6-64.json"]),
        ("finetune", ["--model", "--weights", "--data", "--validation", "--test", "--bits", "X.bits.json"]),
        ("validate", ["--model", "--weights", "--data", "--bits", "--repeat", "--json"]),
        ("dealer", ["--listen", "--tls-cert", "--tls-key", "--tls-ca", "--sessions", "must not collude"]),
    ],
)
def test_help(capsys: pytest.CaptureFixture[str], name: str, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*filter(None, [name]), "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0 and text.startswith(f"usage: python -m hummingbird{' ' + name if name else ''}")
    flat = " ".join(text.split())
    assert not [word for word in words if word not in flat]
    if not name:  # every command says what it does
        assert all(re.search(rf"^ +{word}\s+[A-Z]", text, re.MULTILINE) for word in words)


@pytest.mark.parametrize("net", ["digits", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_the_examples_in_the_help_are_right(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As they are, and in the quick tier for a smaller net."""
    with pytest.raises(SystemExit):
        main(["estimate", "--help"])
    text = capsys.readouterr().out
    first = next(line.split() for line in text.splitlines() if "models:get_model resnet18" in line)
    assert first[:3] == ["python", "-m", "hummingbird"]
    smaller = {"resnet18": "digits", "8x3x32x32": "8x1x8x8"} if net == "digits" else {}
    assert main([smaller.get(word, word) for word in first[3:]]) == 0
    assert table(capsys.readouterr().out)["total"]
