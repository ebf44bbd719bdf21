"""Everything that README, quickstart, SECURITY.md and bit-config.md show runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hummingbird import __main__ as command
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.version import VERSION
from models import get_model, load_checkpoint
from scripts.train.data import load
from tests.support import parties, python
from tests.support.covering import every
from tests.support.pages import DOCUMENTS, FILE, OTHER, QUICKSTART, README, blocks, run, shell_lines, text_of
from tests.support.paths import ROOT
from tests.support.patience import HANG


def test_the_ten_line_example_runs(tmp_path: Path) -> None:
    script = blocks(README, "python")[0]
    assert sum(bool(line) for line in script.splitlines()) == 10
    (tmp_path / "example.py").write_text(script)
    launcher = blocks(README, "sh")[0].strip()
    out = run([sys.executable, *shlex.split(launcher)[1:]], tmp_path)
    private, plain = re.findall(r"\[[\d, ]+\]", out)
    assert private == plain and len(json.loads(plain)) == 8


@pytest.mark.slow
def test_the_quickstart_runs(tmp_path: Path) -> None:
    """Its three files and its commands. The search lets one answer in twenty change; by chance one in ten is right."""
    for script in blocks(QUICKSTART, "python"):
        if name := FILE.match(script):
            (tmp_path / name[1]).write_text(script)
    prepare, launch = (shlex.split(line) for line in blocks(QUICKSTART, "sh")[0].splitlines())
    assert "150 images chose the windows; accuracy is of 150 others" in run([sys.executable, *prepare[1:]], tmp_path)
    out = run([sys.executable, *launch[1:]], tmp_path)
    images, right, agree = map(int, re.findall(r"(\d+) images: (\d+) right, (\d+) as in the clear", out)[0])
    told = run([sys.executable, "notebook.py"], tmp_path)
    assert int(re.findall(r"(\d+) of 497 right\n", told)[0]) >= right - 0.05 * 497
    find, infer = (shlex.split(line) for line in blocks(QUICKSTART, "sh")[1].splitlines())
    run([sys.executable, *find[1:]], tmp_path)
    told = run([sys.executable, *infer[1:]], tmp_path)
    assert float(re.findall(r"agreement percent\s+([\d.]+)", told)[0]) >= 95
    by_lanes = next(block for block in blocks(QUICKSTART, "sh") if " lanes.py" in block)
    told = run([sys.executable, *shlex.split(by_lanes)[1:]], tmp_path)
    assert (found := re.findall(r"(\d+) images, (\d+) as in the clear\n2 lanes: ", told)), told
    assert int(found[0][0]) == 497 and int(found[0][1]) >= 0.95 * 497
    assert images == 497 and right > images / 2 and agree >= 0.95 * images and "predicted kB" in out


def test_the_other_snippets_run_with_one_party(tmp_path: Path) -> None:
    shown = [b for b in blocks(QUICKSTART, "python") if not FILE.match(b) and not OTHER.match(b)]
    snippets = [b for b in shown if "Tls(" not in b]
    assert len(snippets) == 4 and blocks(README, "python")[1:] == []
    start = "import hummingbird\nhummingbird.init()\n"
    use = """
own = hummingbird.convert_model(torch.nn.Sequential(torch.nn.Linear(4, 2), Exp()).eval())
assert own(hummingbird.cryptensor(torch.rand(3, 4))).get_plain_text().shape == (3, 2)
"""
    (tmp_path / "snippets.py").write_text(start + snippets[0] + snippets[1] + use + "".join(snippets[2:]))
    out = run([sys.executable, "snippets.py"], tmp_path)
    assert out.startswith("[]\n") and "predicted kB" in out


@pytest.mark.slow
def test_the_certificates_serve_a_dealer_and_two_parties(tmp_path: Path) -> None:
    (script,) = blocks(ROOT / "docs/certificates.md", "python")
    (tmp_path / "certificates.py").write_text(script)
    run([sys.executable, "certificates.py", "certs", "localhost", "2"], tmp_path)
    assert (tmp_path / "certs" / "dealer.key").stat().st_mode & 0o077 == 0
    assert (tmp_path / "certs").stat().st_mode & 0o077 == 0 and "chmod" not in script  # a key is private from the start

    address = f"localhost:{parties.free_port()}"
    listen = next(line for line in shell_lines() if "hummingbird dealer" in line and "--tls-cert" in line)
    words = shlex.split(listen.replace("0.0.0.0:9000", address))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    dealer = python.Popen([sys.executable, *words[1:]], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    try:
        session = next(b for b in blocks(QUICKSTART, "python") if "Tls(" in b)
        session = session.replace("dealer.example:9000", address)
        example = blocks(README, "python")[0].replace("session = hummingbird.init()", session)
        program = f"import os; os.chdir({str(tmp_path)!r})\n{example}"
        ended = parties.succeed(["-c", program], 2)
    finally:
        dealer.terminate()
        dealer.communicate(timeout=HANG)
    private, plain = re.findall(r"\[[\d, ]+\]", ended[0].out)
    assert private == plain


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=pytest.mark.slow if re.search("bert_base|resnet|--lanes", line) else [])
        for line in shell_lines(
            [path for path in DOCUMENTS if path.name != "programs.md"]
        )  # test_programs.py runs those
        if re.search(r"-m hummingbird (info|estimate --model)", line)
    ],
)
def test_info_and_estimate_lines_run(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert command.main(shlex.split(line)[3:]) == 0
    out = capsys.readouterr().out
    assert f"hummingbird    {VERSION}" in out if " info" in line else "total" in out


DEAL_LINES = [
    line
    for line in shell_lines()
    if "-m hummingbird deal " in line and not re.search("--keep|--pair|s3://", line)  # run by tests of commands
]


@pytest.mark.parametrize("line", every(len(DEAL_LINES), DEAL_LINES))
def test_the_deal_lines_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """On fewer images; tests/commands/test_infer.py runs a net from what it deals. tests/mpc/dealer/test_keeper.py runs
    the line that keeps, tests/commands/test_bucket.py those of buckets.
    """
    monkeypatch.chdir(ROOT)
    lanes = 2 if "--lanes 2" in line else 1
    words = shlex.split(line.replace("--images 500", "--images 50"))[3:]
    words[words.index("--out") + 1] = str(tmp_path / "store")
    assert command.main(words) == 0
    assert "1 slices of 50 images for 2 parties" in capsys.readouterr().out
    found = {str(path.relative_to(tmp_path / "store")) for path in (tmp_path / "store").glob("*/*")}
    assert found == {f"party-{party}/lane-{lane}" for party in range(2) for lane in range(lanes)}


def test_the_example_configuration_parses() -> None:
    (example,) = blocks(ROOT / "docs/bit-config.md", "json")
    config = BitConfig.from_json(example)
    assert config.window("relu1") == BitWindow(21, 13)
    assert config.window("layer1.0.relu#1") == BitWindow(18, 12)
    assert config.window("layer1.0.relu#2") == BitWindow(20, 12, 6)  # falls back to the name without #
    assert config.window("head.relu").w == 0
    assert config.window("unknown") == BitWindow(64, 0)
    assert BitConfig.from_json(config.to_json()) == config


@pytest.mark.slow
def test_the_snippet_that_chooses_windows_runs() -> None:
    (snippet,) = blocks(ROOT / "docs/bit-config.md", "python")
    space: dict[str, Callable[..., BitConfig]] = {}
    exec(snippet, space)  # noqa: S102 - a snippet of this repository
    net = load_checkpoint(ROOT / "checkpoints/digits.pt", get_model("digits", 10)).eval()
    images, labels = load("digits", "train")
    found = space["choose"](net, images[:200], labels[:200])
    assert set(found.layers) == {"relu1", "relu2", "relu3"} and found.provenance["cost"] <= 8 / 64
    table = text_of(ROOT / "docs/bit-config.md").partition("| in `provenance` | |")[2].partition("\n\n")[0]
    told = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.partition(" | ")[0])}
    assert told - {"model", "dataset", "split", "finetuning", "rounding"} <= set(found.provenance)
