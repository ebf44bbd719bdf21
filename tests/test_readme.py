"""The documentation is true: its commands, snippets, figures, paths, flags and targets are run or looked up."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import yaml

import scripts.bench_he
import scripts.bench_linear
import scripts.bench_pir
import scripts.bench_pir_service
import scripts.bench_relu
import scripts.bench_resnet
import scripts.bench_simulate
import scripts.crypten_baseline
import scripts.demo
import scripts.fuzz_nets
import scripts.recommend
import scripts.results
import scripts.torchvision_table
import scripts.train
import scripts.train_lstm
import scripts.train_recommender
import search.find_bits
import search.finetune
import search.frontier
import search.pir_plan
import search.validate
from hummingbird import __main__ as command
from hummingbird import cost
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.convert import convert_model
from hummingbird.mpc import splines
from hummingbird.mpc.activations import EvenSmooth
from hummingbird.version import VERSION
from models import get_model, load_checkpoint
from scripts.data import load
from tests import parties
from tests.test_floors import FLOORS, PACKAGE

ROOT = Path(__file__).resolve().parent.parent
README, BENCHMARKS, COMMAND_PAGE, LIMITS, QUICKSTART = (
    ROOT / name
    for name in ("README.md", "docs/benchmarks.md", "docs/commands.md", "docs/limits.md", "docs/quickstart.md")
)
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "checkpoints/README.md")),
    *PAGES,
]
TOP = "hummingbird|search|scripts|models|checkpoints|docs|tests"
OTHER = re.compile(r"from hummingbird import (he|pir)\n")  # run in test_documents.py
MEASURED = re.compile(r"<!-- measured -->\n(.*)<!-- /measured -->", re.DOTALL)
MEASURING = (README, BENCHMARKS)
FILE = re.compile(r"# (\w+\.py)\n")  # the first line of a snippet that is a file of the reader's own


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(path), re.MULTILINE | re.DOTALL)


def shell_lines(paths: Sequence[Path] = DOCUMENTS) -> list[str]:
    """Every command of the pages' `sh` blocks, and of the checkpoints' table."""
    shown = [line for path in paths for block in blocks(path, "sh") for line in block.splitlines()]
    lines = [line.split("  #")[0].strip() for line in shown]
    if ROOT / "checkpoints/README.md" in paths:
        lines += re.findall(r"`([A-Z_]+=\S+ python -m [^`]*)`", text_of(ROOT / "checkpoints/README.md"))
    return [line for line in lines if line and not line.startswith("#")]


def measured_rows(path: Path) -> list[str]:
    """The lines of the measured table of a page, below its head."""
    table = MEASURED.search(text_of(path))
    assert table
    head, rule, *rows = table[1].splitlines()
    assert head == "| what | CrypTen 0.4.1 | HummingBird as published | here |" and set(rule) <= set("|-:")
    return rows


def anchors(path: Path) -> set[str]:
    """The targets of links to a page's headings: lower case, no punctuation, hyphens for spaces (as GitHub does it)."""
    headings = re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code_spans(path: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text_of(path), flags=re.MULTILINE | re.DOTALL))


def help_of(main: Callable[[], object], *arguments: str) -> str:
    """What a program prints for --help."""
    before, sys.argv = sys.argv, ["program", *arguments, "--help"]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
            main()
    finally:
        sys.argv = before
    return out.getvalue()


HELP: dict[str, Callable[[], str]] = {
    **{f"hummingbird {name}": lambda name=name: help_of(command.main, name) for name in command.COMMANDS},
    "scripts.train": lambda: scripts.train.parser().format_help(),
    "scripts.bench_he": lambda: help_of(scripts.bench_he.main),
    "scripts.bench_linear": lambda: help_of(scripts.bench_linear.main),
    "scripts.bench_pir": lambda: help_of(scripts.bench_pir.main),
    "scripts.bench_pir_service": lambda: help_of(scripts.bench_pir_service.main),
    "scripts.bench_relu": lambda: help_of(scripts.bench_relu.main),
    "scripts.bench_resnet": lambda: help_of(scripts.bench_resnet.main),
    "scripts.bench_simulate": lambda: scripts.bench_simulate.parser().format_help(),
    "scripts.crypten_baseline": lambda: help_of(scripts.crypten_baseline.main),
    "scripts.demo": lambda: help_of(scripts.demo.main),
    "scripts.fuzz_nets": lambda: help_of(scripts.fuzz_nets.main),
    "scripts.recommend": lambda: help_of(scripts.recommend.main),
    "scripts.results": lambda: scripts.results.parser().format_help(),
    "scripts.train_lstm": lambda: help_of(scripts.train_lstm.main),
    "scripts.train_recommender": lambda: help_of(scripts.train_recommender.main),
    "search.find_bits": lambda: search.find_bits.parser().format_help(),
    "search.finetune": lambda: search.finetune.parser().format_help(),
    "search.frontier": lambda: search.frontier.parser().format_help(),
    "search.pir_plan": lambda: help_of(search.pir_plan.main),
    "search.validate": lambda: search.validate.parser().format_help(),
    "scripts.torchvision_table": lambda: help_of(scripts.torchvision_table.main),
}
TORCHRUN = {"--standalone", "--nproc_per_node", "--nnodes", "--node_rank", "--master_addr", "--master_port"}
TORCHRUN |= {"--max-restarts"}


def program(words: list[str]) -> tuple[str, list[str]]:
    """The key in HELP of a command line, and the words after the program's name."""
    if "-m" in words:
        at = words.index("-m") + 1
        name, rest = words[at], words[at + 1 :]
        return (f"hummingbird {rest[0]}", rest[1:]) if name == "hummingbird" else (name, rest)
    at = next(i for i, word in enumerate(words) if word.endswith(".py"))
    return words[at].removesuffix(".py").replace("/", "."), words[at + 1 :]


def flags(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


# What is named exists -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_paths_exist(path: Path) -> None:
    """Files, or such as checkpoints/README.md has a command for."""
    left_out = text_of(ROOT / "checkpoints/README.md").partition("## Not in the repository")[2]
    made = {f"checkpoints/{name}" for name in re.findall(r"^\| `([\w.-]+)` \| `[A-Z]", left_out, re.MULTILINE)}
    assert made and not any((ROOT / name).exists() for name in made)
    missing = []
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text_of(path)):
        if "://" not in target and not (path.parent / target).exists():
            missing.append(target)
    for span in code_spans(path):
        if re.fullmatch(rf"({TOP}|\.ci)/[\w./-]*", span) and not (ROOT / span).exists():
            missing.append(span)
    for line in shell_lines():
        for word in shlex.split(line):
            if re.fullmatch(rf"({TOP})/[\w./-]+", word) and not ((ROOT / word).exists() or word in made):
                missing.append(word)
    assert not missing


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_headings_exist(path: Path) -> None:
    links = re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", text_of(path))
    missing = [link for link in links if link[1] not in anchors(path.parent / link[0] if link[0] else path)]
    assert not missing


def test_the_index_lists_every_page() -> None:
    linked = re.findall(r"\]\((\w[\w.-]*\.md)\)", text_of(ROOT / "docs/index.md"))
    assert sorted([*linked, "index.md"]) == [path.name for path in PAGES]


def test_the_commands_page_has_every_program() -> None:
    shown = {program(shlex.split(line))[0] for line in shell_lines([COMMAND_PAGE]) if not line.startswith("make ")}
    files = [*(ROOT / "scripts").glob("*.py"), *(ROOT / "search").glob("*.py")]
    programs = {f"{path.parent.name}.{path.stem}" for path in files if '__name__ == "__main__"' in text_of(path)}
    assert shown == set(HELP) and programs <= shown


def test_the_picture_of_the_rooms_has_every_room_on_its_floor() -> None:
    shown: list[set[str]] = [set() for _ in FLOORS]
    for node in ElementTree.parse(ROOT / "docs/architecture.svg").iter("{http://www.w3.org/2000/svg}text"):
        if (number := node.get("data-floor")) is not None:
            shown[int(number)] |= set((node.text or "").split(" · "))
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert shown == [floor & rooms for floor in FLOORS] and set().union(*shown) == rooms


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    named = {name for path in DOCUMENTS for name in re.findall(r"(?:^|`)make ([a-z]+)", text_of(path), re.MULTILINE)}
    assert {"demo", "test"} <= named <= targets


@pytest.mark.parametrize("line", [line for line in shell_lines() if re.search(r"\b(python|torchrun) ", line)])
def test_every_flag_is_accepted(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "torchrun":
        at = next(i for i, word in enumerate(words) if word == "-m" or word.endswith(".py"))
        assert flags(words[:at]) <= TORCHRUN
    if any(re.fullmatch(r"\w+\.py", word) for word in words):  # a file of the reader's own, which the pages show
        return
    name, rest = program(words)
    known = set(re.findall(r"--[a-z][\w-]*", HELP[name]()))
    assert flags(rest) <= known


def test_flags_in_the_text_exist() -> None:
    known = TORCHRUN | {flag for text in HELP.values() for flag in re.findall(r"--[a-z][\w-]*", text())}
    spans = [span for path in DOCUMENTS for span in code_spans(path)]
    named = {flag for span in spans for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", span)}
    assert named and named <= known


def test_lines_parse() -> None:
    """Values too, not only names."""
    seen = 0
    for line in shell_lines():
        if " -m hummingbird " in line:
            command.parser().parse_args(shlex.split(line.partition(" -m hummingbird ")[2]))
            seen += 1
        for program_ in (
            scripts.train,
            search.find_bits,
            search.finetune,
            search.frontier,
            search.validate,
        ):
            if re.search(program_.__name__.replace(".", "[./]") + r"(\.py)?\s", line):
                program_.parser().parse_args(program(shlex.split(line))[1])
                seen += 1
    assert seen >= 12


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
        here = cost.masked_relu(n, window.k, window.m, 40, 2)  # 40: before a convolution and a ReLU of 20 bits
        published = (cost.published_relu_bits(window.w), (window.w - 1).bit_length() + 3)
        bits = [crypten.bits // n, published[0], here.bits // n]
        assert [float(x) for x in rows[f"bits per ReLU and party, {label}"]] == pytest.approx(bits, abs=0.5)
        assert [int(x) for x in rows[f"rounds, {label}"]] == [crypten.rounds, published[1], here.rounds]
        offline = rows[f"offline bits per ReLU to party 0, {label}"]
        assert float(offline[2]) == pytest.approx(here.offline_bits / n, abs=0.5)


# What is shown runs ---------------------------------------------------------------------------------------------------


def run(words: list[str], folder: Path, timeout: float = 100.0) -> str:
    """A program's output, run in `folder` with the project on its path and without a launcher's variables."""
    keep = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    done = subprocess.run(
        words,
        cwd=folder,
        env={**keep, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_ten_line_example_runs_under_torchrun(tmp_path: Path) -> None:
    script = blocks(README, "python")[0]
    assert sum(bool(line) for line in script.splitlines()) == 10
    (tmp_path / "example.py").write_text(script)
    launcher = next(line for line in shell_lines() if line.startswith("torchrun") and line.endswith(" example.py"))
    out = run([sys.executable, "-m", "torch.distributed.run", *shlex.split(launcher)[1:]], tmp_path)
    private, plain = re.findall(r"\[[\d, ]+\]", out)
    assert private == plain and len(json.loads(plain)) == 8


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_quickstart_runs(tmp_path: Path) -> None:
    """Its three files and its commands. The search lets one answer in twenty change; by chance one in ten is right."""
    for script in blocks(QUICKSTART, "python"):
        if name := FILE.match(script):
            (tmp_path / name[1]).write_text(script)
    prepare, launch = (shlex.split(line) for line in blocks(QUICKSTART, "sh")[0].splitlines())
    assert run([sys.executable, *prepare[1:]], tmp_path, 250) == "[]\n"
    out = run([sys.executable, "-m", "torch.distributed.run", *launch[1:]], tmp_path, 250)
    images, right, agree = map(int, re.findall(r"(\d+) images: (\d+) right, (\d+) as in the clear", out)[0])
    find, infer = (shlex.split(line) for line in blocks(QUICKSTART, "sh")[1].splitlines())
    run([sys.executable, *find[1:]], tmp_path, 250)
    told = run([sys.executable, "-m", "torch.distributed.run", *infer[1:]], tmp_path, 250)
    assert float(re.findall(r"agreement percent\s+([\d.]+)", told)[0]) >= 95
    assert images == 497 and right > images / 2 and agree >= 0.95 * images and "predicted kB" in out


def test_the_other_snippets_run_with_one_party(tmp_path: Path) -> None:
    shown = [b for b in blocks(QUICKSTART, "python") if not FILE.match(b) and not OTHER.match(b)]
    snippets = [b for b in shown if "Tls(" not in b]
    assert len(snippets) == 3 and blocks(README, "python")[1:] == []
    start = "import hummingbird\nhummingbird.init()\n"
    use = """
own = hummingbird.convert_model(torch.nn.Sequential(torch.nn.Linear(4, 2), Exp()).eval())
assert own(hummingbird.cryptensor(torch.rand(3, 4))).get_plain_text().shape == (3, 2)
"""
    (tmp_path / "snippets.py").write_text(start + snippets[0] + snippets[1] + use + snippets[2])
    out = run([sys.executable, "snippets.py"], tmp_path)
    assert out.startswith("[]\n") and "predicted kB" in out


@pytest.mark.slow
def test_the_certificates_serve_a_dealer_and_two_parties(tmp_path: Path) -> None:
    (script,) = blocks(ROOT / "SECURITY.md", "python")
    (tmp_path / "certificates.py").write_text(script)
    run([sys.executable, "certificates.py", "certs", "localhost", "2"], tmp_path)
    assert (tmp_path / "certs" / "dealer.key").stat().st_mode & 0o077 == 0
    assert (tmp_path / "certs").stat().st_mode & 0o077 == 0 and "chmod" not in script  # a key is private from the start

    address = f"localhost:{parties.free_port()}"
    listen = next(line for line in shell_lines() if "hummingbird dealer" in line and "--tls-cert" in line)
    words = shlex.split(listen.replace("0.0.0.0:9000", address))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    dealer = subprocess.Popen([sys.executable, *words[1:]], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    try:
        session = next(b for b in blocks(QUICKSTART, "python") if "Tls(" in b)
        session = session.replace("dealer.example:9000", address)
        example = blocks(README, "python")[0].replace("session = hummingbird.init()", session)
        program = f"import os; os.chdir({str(tmp_path)!r})\n{example}"
        ended = parties.succeed(["-c", program], 2)
    finally:
        dealer.terminate()
        dealer.communicate(timeout=20)
    private, plain = re.findall(r"\[[\d, ]+\]", ended[0].out)
    assert private == plain


@pytest.mark.parametrize("line", [line for line in shell_lines() if re.search(r"-m hummingbird (info|estimate)", line)])
def test_info_and_estimate_lines_run(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert command.main(shlex.split(line)[3:]) == 0
    out = capsys.readouterr().out
    assert f"hummingbird    {VERSION}" in out if " info" in line else "total" in out


def test_the_deal_line_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On fewer images; tests/test_infer.py runs a net from what it deals."""
    monkeypatch.chdir(ROOT)
    (line,) = [line for line in shell_lines() if "-m hummingbird deal " in line]
    words = shlex.split(line.replace("--images 500", "--images 50"))[3:]
    words[words.index("--out") + 1] = str(tmp_path / "store")
    assert command.main(words) == 0
    assert "1 slices of 50 images for 2 parties" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "store").iterdir()} == {"party-0", "party-1"}


def test_the_worked_example_is_what_cost_says(capsys: pytest.CaptureFixture[str]) -> None:
    transcripts = blocks(ROOT / "docs/protocol.md", "console")
    shown = re.compile(r"^\$ python -c \"(.*)\"\n(.*)$", re.MULTILINE)
    pairs = [pair for block in transcripts for pair in shown.findall(block)]
    assert len(pairs) == sum(block.count("$ ") for block in transcripts) >= 7
    for code, expected in pairs:
        exec(code, {})  # noqa: S102 - lines of this repository
        assert capsys.readouterr().out.strip() == expected, code


@pytest.mark.parametrize("w", [2, 3, 6, 8, 20, 48, 64])
@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_the_formulas_of_the_cost_table(w: int, number: int) -> None:
    """Headers are left out in the document: at most 16 frames of 160 bits to each party here."""
    n, levels = 8 * 10**5, (w - 2).bit_length() if w > 2 else 0
    here = cost.drelu(n, w, number)
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
    chosen = cost.select(n, 16, number)
    assert (chosen.bits, chosen.offline_bits) == (65 * n * (number - 1) + 160 * (number - 1), 320 * n)


def test_spline_table_is_what_the_converter_makes() -> None:
    table = text_of(ROOT / "docs/protocol.md").partition("| function | span |")[2].partition("\n\n")[0]
    stated = {m[1]: int(m[2]) for m in re.finditer(r"^\| ([\w, /]+) \| [^|]+ \| (\d+) \|$", table, re.MULTILINE)}
    layers = {
        "sigmoid": torch.nn.Sigmoid(),
        "tanh": torch.nn.Tanh(),
        "SiLU": torch.nn.SiLU(),
        "GELU": torch.nn.GELU(),
        "Hardsigmoid": torch.nn.Hardsigmoid(),
    }
    nets = {name: convert_model(torch.nn.Sequential(layer).eval()) for name, layer in layers.items()}
    private = {name: net.get_submodule("0") for name, net in nets.items()}
    made = {name: len(layer.curve.knots) + isinstance(layer, EvenSmooth) for name, layer in private.items()}
    assert stated == made | {
        "exp, in a softmax over 1000 places": len(splines.exponential(1000).knots),
        "1/x, once for each softmax over 1000 places": len(splines.reciprocal(1000).knots),
    }
    smooth = [len(layer.curve.knots) for name, layer in private.items() if name != "Hardsigmoid"]
    assert f"splines: {min(smooth)} to {max(smooth)} comparisons" in text_of(LIMITS)


# The bit configuration ------------------------------------------------------------------------------------------------


def test_the_example_configuration_parses() -> None:
    (example,) = blocks(ROOT / "docs/bit-config.md", "json")
    config = BitConfig.from_json(example)
    assert config.window("relu1") == BitWindow(21, 13)
    assert config.window("layer1.0.relu#1") == BitWindow(18, 12)
    assert config.window("layer1.0.relu#2") == BitWindow(20, 12)  # falls back to the name without #
    assert config.window("head.relu").w == 0
    assert config.window("unknown") == BitWindow(64, 0)
    assert BitConfig.from_json(config.to_json()) == config


def test_the_snippet_that_chooses_windows_runs() -> None:
    (snippet,) = blocks(ROOT / "docs/bit-config.md", "python")
    space: dict[str, Callable[..., BitConfig]] = {}
    exec(snippet, space)  # noqa: S102 - a snippet of this repository
    net = load_checkpoint(ROOT / "checkpoints/digits.pt", get_model("digits", 10)).eval()
    images, _ = load("digits", "train")
    found = space["choose"](net, images[:200])
    assert set(found.layers) == {"relu1", "relu2", "relu3"} and found.provenance["cost"] <= 8 / 64
    table = text_of(ROOT / "docs/bit-config.md").partition("| in `provenance` | |")[2].partition("\n\n")[0]
    told = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.partition(" | ")[0])}
    assert told - {"command", "model", "dataset", "split", "finetuning"} <= set(found.provenance)


# Metadata -------------------------------------------------------------------------------------------------------------


def test_citation_and_licence() -> None:
    cff = yaml.safe_load(text_of(ROOT / "CITATION.cff"))
    assert cff["cff-version"] == "1.2.0" and cff["version"] == VERSION and cff["license"] == "MIT"
    assert all(reference["authors"] and reference["title"] for reference in cff["references"])
    assert "Copyright (c) 2026 the hummingbird authors" in text_of(ROOT / "LICENSE")
    assert f"## {VERSION}" in text_of(ROOT / "CHANGELOG.md")


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if p.name != "torchvision.md"], ids=lambda path: path.name)
def test_no_address_and_no_path_of_a_machine(path: Path) -> None:
    assert not re.search(r"[\w.]+@[\w-]+\.\w|/(home|root|work|tmp)/", text_of(path))
