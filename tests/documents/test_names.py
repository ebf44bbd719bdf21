"""Everything that the documentation names exists: files, headings, programs, flags, targets, rooms."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

import scripts.bench.bert
import scripts.bench.costs
import scripts.bench.crypten_baseline
import scripts.bench.garble
import scripts.bench.gpt2
import scripts.bench.he
import scripts.bench.hybrid
import scripts.bench.kernels
import scripts.bench.layer_times
import scripts.bench.linear
import scripts.bench.ot
import scripts.bench.pair
import scripts.bench.parts
import scripts.bench.pir
import scripts.bench.pir_ray
import scripts.bench.pir_service
import scripts.bench.proxy
import scripts.bench.relay
import scripts.bench.relu
import scripts.bench.resnet
import scripts.bench.serve
import scripts.bench.simulate
import scripts.bench.soak
import scripts.bench.text
import scripts.bench.voice
import scripts.bench.ways
import scripts.demo
import scripts.papers.__main__
import scripts.papers.asplos
import scripts.papers.asplos_profile
import scripts.papers.fhe_suite.install
import scripts.papers.figures
import scripts.papers.results
import scripts.recommend
import scripts.tools.calibrate
import scripts.tools.gpu
import scripts.tools.net_table
import scripts.tools.trained_elsewhere
import scripts.train.bert
import scripts.train.gpt
import scripts.train.images
import scripts.train.lstm
import scripts.train.recommender
import search.find_bits
import search.finetune
import search.frontier
import search.pir_plan
import search.validate
import tests.fuzz.nets
from hummingbird import __main__ as command
from hummingbird.commands import plan
from hummingbird.version import VERSION
from tests.support.pages import COMMAND_PAGE, DOCUMENTS, PAGES, shell_lines, text_of
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM
from tests.test_floors import FLOORS, INSIDE, PACKAGE

TOP = "hummingbird|examples|search|scripts|models|checkpoints|deploy|docs|tests"


def anchors(path: Path) -> set[str]:
    """The targets of links to a page's headings: lower case, no punctuation, hyphens for spaces (as GitHub does it)."""
    headings = re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code_spans(path: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text_of(path), flags=re.MULTILINE | re.DOTALL))


def help_of(main: Callable[[], object], *arguments: str) -> str:
    """The text that a program prints for --help."""
    before, sys.argv = sys.argv, ["program", *arguments, "--help"]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
            main()
    finally:
        sys.argv = before
    return out.getvalue()


HELP: dict[str, Callable[[], str]] = {
    **{f"hummingbird {name}": lambda name=name: help_of(command.main, name) for name in command.COMMANDS},
    "hummingbird pir-owner": lambda: "".join(
        help_of(command.main, "pir-owner", action) for action in ("keygen", "sign", "build", "update", "metrics")
    ),
    "hummingbird plan": lambda: "".join(help_of(command.main, "plan", action) for action in plan.ACTIONS),
    "scripts.train.images": lambda: scripts.train.images.parser().format_help(),
    "scripts.papers.asplos_profile": lambda: scripts.papers.asplos_profile.parser().format_help(),
    "scripts.tools.calibrate": lambda: scripts.tools.calibrate.parser().format_help(),
    "scripts.bench.garble": lambda: help_of(scripts.bench.garble.main),
    "scripts.bench.he": lambda: help_of(scripts.bench.he.main),
    "scripts.bench.hybrid": lambda: help_of(scripts.bench.hybrid.main),
    "scripts.bench.kernels": lambda: help_of(scripts.bench.kernels.main),
    "scripts.bench.linear": lambda: help_of(scripts.bench.linear.main),
    "scripts.bench.ot": lambda: help_of(scripts.bench.ot.main),
    "scripts.bench.pair": lambda: help_of(scripts.bench.pair.main),
    "scripts.bench.parts": lambda: help_of(scripts.bench.parts.main),
    "scripts.bench.pir": lambda: help_of(scripts.bench.pir.main),
    "scripts.bench.pir_ray": lambda: help_of(scripts.bench.pir_ray.main),
    "scripts.bench.pir_service": lambda: help_of(scripts.bench.pir_service.main),
    "scripts.bench.bert": lambda: scripts.bench.bert.parser().format_help(),
    "scripts.bench.gpt2": lambda: scripts.bench.gpt2.parser().format_help(),
    "scripts.bench.ways": lambda: help_of(scripts.bench.ways.main),
    "scripts.bench.voice": lambda: scripts.bench.voice.parser().format_help(),
    "scripts.bench.relu": lambda: help_of(scripts.bench.relu.main),
    "scripts.bench.resnet": lambda: help_of(scripts.bench.resnet.main),
    "scripts.bench.serve": lambda: scripts.bench.serve.parser().format_help(),
    "scripts.bench.simulate": lambda: scripts.bench.simulate.parser().format_help(),
    "scripts.bench.crypten_baseline": lambda: help_of(scripts.bench.crypten_baseline.main),
    "scripts.demo": lambda: help_of(scripts.demo.main),
    "scripts.papers": lambda: help_of(scripts.papers.__main__.main),
    "scripts.bench.costs": lambda: scripts.bench.costs.parser().format_help(),
    "scripts.papers.asplos": lambda: scripts.papers.asplos.parser().format_help(),
    "scripts.papers.fhe_suite.install": lambda: scripts.papers.fhe_suite.install.parser().format_help(),
    "scripts.papers.figures": lambda: scripts.papers.figures.parser().format_help(),
    "tests.fuzz.nets": lambda: help_of(tests.fuzz.nets.main),
    "scripts.tools.gpu": lambda: help_of(scripts.tools.gpu.main),
    "scripts.bench.layer_times": lambda: scripts.bench.layer_times.parser().format_help(),
    "scripts.recommend": lambda: help_of(scripts.recommend.main),
    "scripts.bench.proxy": lambda: help_of(scripts.bench.proxy.main),
    "scripts.bench.relay": lambda: help_of(scripts.bench.relay.main),
    "scripts.papers.results": lambda: scripts.papers.results.parser().format_help(),
    "scripts.bench.soak": lambda: scripts.bench.soak.parser().format_help(),
    "scripts.bench.text": lambda: help_of(scripts.bench.text.main),
    "scripts.train.bert": lambda: help_of(scripts.train.bert.main),
    "scripts.train.gpt": lambda: help_of(scripts.train.gpt.main),
    "scripts.train.lstm": lambda: help_of(scripts.train.lstm.main),
    "scripts.train.recommender": lambda: help_of(scripts.train.recommender.main),
    "search.find_bits": lambda: search.find_bits.parser().format_help(),
    "search.finetune": lambda: search.finetune.parser().format_help(),
    "search.frontier": lambda: search.frontier.parser().format_help(),
    "search.pir_plan": lambda: help_of(search.pir_plan.main),
    "search.validate": lambda: search.validate.parser().format_help(),
    "scripts.tools.net_table": lambda: help_of(scripts.tools.net_table.main),
    "scripts.tools.trained_elsewhere": lambda: scripts.tools.trained_elsewhere.parser().format_help(),
}


TORCHRUN = {"--rdzv-backend", "--nproc_per_node", "--nnodes", "--node_rank", "--master_addr", "--master_port"}
TORCHRUN |= {"--max-restarts"}
RUN = ["python", "-m", "hummingbird", "run"]


def program(words: list[str]) -> tuple[str, list[str]]:
    """The key in HELP of a command line, and the words after the program's name; of `run`, what it runs."""
    if words[:4] == RUN:
        return program(words[words.index("--") + 1 :])
    if "-m" in words:
        at = words.index("-m") + 1
        name, rest = words[at], words[at + 1 :]
        return (f"hummingbird {rest[0]}", rest[1:]) if name == "hummingbird" else (name, rest)
    at = next(i for i, word in enumerate(words) if word.endswith(".py"))
    return words[at].removesuffix(".py").replace("/", "."), words[at + 1 :]


def flags(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


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
    lines = [shlex.split(line) for line in shell_lines([COMMAND_PAGE]) if not line.startswith("make ")]
    shown = {program(words)[0] for words in lines} | {"hummingbird run" for words in lines if words[:4] == RUN}
    files = [*(ROOT / "scripts").glob("*.py"), *(ROOT / "search").glob("*.py")]
    programs = {f"{path.parent.name}.{path.stem}" for path in files if '__name__ == "__main__"' in text_of(path)}
    assert shown == set(HELP) and programs <= shown


def test_the_picture_of_the_rooms_has_every_room_on_its_floor() -> None:
    shown: list[set[str]] = [set() for _ in FLOORS]
    for node in ElementTree.parse(ROOT / "docs/architecture.svg").iter("{http://www.w3.org/2000/svg}text"):
        if (number := node.get("data-floor")) is not None:
            shown[int(number)] |= set((node.text or "").split(" · "))
    rooms = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    } | INSIDE
    assert shown == [floor & rooms for floor in FLOORS] and set().union(*shown) == rooms


def test_the_floors_of_contributing_are_those_of_the_test() -> None:
    lines = dict(re.findall(r"^(\d)  (\S.*)$", text_of(ROOT / "CONTRIBUTING.md"), re.MULTILINE))
    for number, floor in enumerate(FLOORS):
        names = re.split(r", | \| ", re.split(r" {2,}", lines[str(number)])[0].removeprefix("hummingbird/"))
        assert set(names) == floor, f"floor {number}"


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    named = {name for path in DOCUMENTS for name in re.findall(r"(?:^|`)make ([a-z-]+)", text_of(path), re.MULTILINE)}
    assert {"demo", "test"} <= named <= targets


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_set_up_shows_what_it_does(tmp_path: Path) -> None:
    """Minutes pass in uv, or in pip if uv fails, which also compile: they show progress, and a line comes first."""
    for name in ("Makefile", "setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    line = ["make", "--dry-run", "test"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM, check=True)
    before, setting_up, rest = done.stdout.partition('echo "Setting up .venv')
    installing, building, rest = rest.partition('echo "Building the kernels')
    assert setting_up and building and " pip " not in before and "--quiet" not in installing
    assert re.findall(r"-m (\S+ \S+) .*'\.\[test,docs\]'", installing) == ["uv pip", "pip install"]
    assert " build_ext " in rest and " build_ext " not in installing


@pytest.mark.parametrize("line", [line for line in shell_lines() if re.search(r"\b(python|torchrun) ", line)])
def test_every_flag_is_accepted(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "torchrun":
        at = next(i for i, word in enumerate(words) if word == "-m" or word.endswith(".py"))
        assert flags(words[:at]) <= TORCHRUN
    if words[:4] == RUN:
        assert flags(words[: words.index("--")]) <= set(re.findall(r"--[a-z][\w-]*", HELP["hummingbird run"]()))
    if any(re.fullmatch(r"\w+\.py", word) for word in words):  # a file of the reader's own, which the pages show
        return
    name, rest = program(words)
    known = set(re.findall(r"--[a-z][\w-]*", HELP[name]()))
    assert flags(rest) <= known


def test_no_line_starts_a_dynamic_rendezvous() -> None:
    """SECURITY.md says why. torchrun's lines have a port; CHANGELOG.md tells of the past."""
    folders = ("docs", "deploy", "scripts", "search", "models", "hummingbird", "checkpoints")
    kinds = {".md", ".py", ".ipynb", ".yaml", ".sh", ".svg", ""}
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    lines = [
        line
        for path in [*DOCUMENTS, ROOT / "Makefile", *paths]
        if path.is_file() and path.name != "CHANGELOG.md"
        for line in text_of(path).splitlines()
        if re.search(r"(torchrun|torch\.distributed\.run\b.*) -{1,2}\w", line)
    ]
    assert lines and not [line for line in lines if "--master_port" not in line and "--master-port" not in line]


def test_flags_in_the_text_exist() -> None:
    known = (
        TORCHRUN
        | {"--standalone", "--rdzv-id"}
        | {flag for text in HELP.values() for flag in re.findall(r"--[a-z][\w-]*", text())}
    )
    spans = [span for path in DOCUMENTS for span in code_spans(path)]
    named = {flag for span in spans for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", span)}
    assert named and named <= known


def test_lines_parse() -> None:
    """Values too, not only names."""
    seen, parser = 0, command.parser()
    for line in shell_lines():
        for words in line.split(" -m hummingbird ")[1:]:
            parser.parse_args(shlex.split(words))
            seen += 1
        for program_ in (
            scripts.train.images,
            search.find_bits,
            search.finetune,
            search.frontier,
            search.validate,
        ):
            if re.search(program_.__name__.replace(".", "[./]") + r"(\.py)?\s", line):
                program_.parser().parse_args(program(shlex.split(line))[1])
                seen += 1
    assert seen >= 12


def test_citation_and_licence() -> None:
    cff = yaml.safe_load(text_of(ROOT / "CITATION.cff"))
    assert cff["cff-version"] == "1.2.0" and cff["version"] == VERSION and cff["license"] == "MIT"
    assert all(reference["authors"] and reference["title"] for reference in cff["references"])
    assert "Copyright (c) 2026 the hummingbird authors" in text_of(ROOT / "LICENSE")
    assert f"## {VERSION}" in text_of(ROOT / "CHANGELOG.md")


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if p.name != "nets.md"], ids=lambda path: path.name)
def test_no_address_and_no_path_of_a_machine(path: Path) -> None:
    assert not re.search(r"[\w.]+@[\w-]+\.\w|/(home|root|work|tmp)/", text_of(path))


EXAMPLES = {"my_net.py", "my_data.py", "SCRIPT.py", "threading.py"}  # a user's, and Python's own
EXAMPLES |= {"harness/run_submission.py"}  # of another project
SOURCES = [path for top in ("hummingbird", "models", "scripts", "search") for path in (ROOT / top).rglob("*.py")]


def lost(source: str, files: set[str]) -> list[str]:
    """Python files that a source names, of which there is none with such a path or name."""
    named = set(re.findall(r"(?<![\w/.-])(?:\w+/)*\w+\.py\b", source)) - EXAMPLES
    return sorted(name for name in named if not any(file == name or file.endswith(f"/{name}") for file in files))


def test_files_that_the_code_names_exist() -> None:
    files = {
        path.relative_to(ROOT).as_posix() for path in [*SOURCES, *(ROOT / "tests").rglob("*.py"), ROOT / "setup.py"]
    }
    found = {path.relative_to(ROOT).as_posix(): lost(path.read_text(), files) for path in SOURCES}
    assert not {path: names for path, names in found.items() if names}
    assert lost("as in mpc/net.py, layer.py and plan/net.py", {"hummingbird/mpc/plan/net.py"}) == [
        "layer.py",
        "mpc/net.py",
    ]
