"""Evidence: a record belongs to one command and the code that it measured, and pages say what the records say."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hummingbird.errors import EnvironmentProblem, HummingbirdError, InputError
from scripts.papers import __main__ as papers
from scripts.papers import evidence, overview
from scripts.papers.evidence import MOST_OTHERS, Record, Run, essence, spread
from scripts.papers.items import IN_KIND, NOT, REMADE, Item, Line, Paper
from scripts.papers.register import PAPERS
from scripts.papers.runs import RUNS

TOOL = '''"""A tool."""
import json, sys
import measured

rows = [{"net": "a", "seconds": measured.seconds(), "torch": "2"}, {"net": "b", "seconds": 2.0, "torch": "2"}]
json.dump(rows, open(sys.argv[sys.argv.index("--json") + 1], "w"))
'''
MEASURED = '''"""What is measured."""


def seconds() -> float:
    """Return seconds."""
    return 1.5  # of one core
'''


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Make a repository with a tool, and the run of it."""
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "FOLDER", tmp_path / "docs/evidence")
    (tmp_path / "tool.py").write_text(TOOL)
    (tmp_path / "measured.py").write_text(MEASURED)
    (tmp_path / "failing.py").write_text("raise SystemExit(1)\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return Run("tool", "python -m tool", ("measured.py",), 1, 2)


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=folder, check=True)


def commit(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "more")


def test_a_record_says_what_was_measured_and_is_read_as_it_was_written(run: Run, tmp_path: Path) -> None:
    record = evidence.measure(run)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (record.command, record.commit) == (run.command, head.stdout[:12])
    assert record.figure({"net": "a"}, "seconds") == [1.5, 1.5] and len(record.rows()) == 2
    assert record.seconds > 0 and 0 <= record.others and record.machine["torch"]
    evidence.save(run, record)
    assert evidence.load(run) == record
    text = run.path.read_text()
    assert text.count('"torch": "2"') == 1  # fields of all rows are written once
    quiet = replace(record, others=0.0)
    assert quiet.problem(run) is None
    assert evidence.load(replace(run, name="other")) is None


def test_prose_may_change_after_a_measurement_and_code_may_not(run: Run, tmp_path: Path) -> None:
    record = replace(evidence.measure(run), others=0.0)
    source = tmp_path / "measured.py"
    source.write_text(MEASURED.replace("Return", "Give").replace("# of one core", "# of a core").replace("\n\n", "\n"))
    assert record.problem(run) is None
    for code in (MEASURED.replace("1.5", "1.4"), MEASURED.replace("    return", "    if True:\n        return")):
        source.write_text(code)
        assert record.problem(run) == "older than the code that it measures"
    source.write_text(MEASURED.replace("1.5", "1.4"))
    assert record.problem(run) == "older than the code that it measures"
    with pytest.raises(InputError, match=r"code that is not committed: measured\.py"):
        evidence.measure(run)
    commit(tmp_path)
    assert replace(evidence.measure(run), others=0.0).problem(run) is None
    assert "another command" in str(record.problem(replace(run, command="python -m other")))
    busy = replace(evidence.measure(run), others=MOST_OTHERS + 0.1)
    assert "busy machine: other programs used 0.25 cores" in str(busy.problem(run))


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [
        ("a.py", 'x = "# no comment"  # é comment\n\ny = 1', 'x = "# no comment"\ny = 1'),
        ("a.py", '"""Docs."""\nclass A:\n    """é."""\n    b = "é"  # é\n', 'class A:\n    b = "é"'),
        ("a.py", 'def f():\n    """One.\n\n    Two.\n    """\n    return """ a"""\n', 'def f():\n    return """ a"""'),
        ("a.py", 'f(\n    "a" "b",\n)  # end\n', 'f(\n    "a" "b",\n)'),
        ("a.py", '"é" + x  # a\n', '"é" + x'),
        ("a.cpp", 'int a = 1; // one\n/* two\n */ const char* b = "// no";\n', 'int a = 1;\n const char* b = "// no";'),
        ("a.h", "#define A 1 // one\n", "#define A 1"),
    ],
)
def test_the_essence_of_a_source_is_its_code(name: str, text: str, kept: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert essence(tmp_path / name) == kept


def test_what_cannot_be_measured_is_an_error(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"no file matches absent\.py \(at tool\)"):
        evidence.measure(replace(run, code=("absent.py",)))
    with pytest.raises(HummingbirdError, match="the command ended with code 1"):
        evidence.measure(replace(run, command="python -m failing"))
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    commit(tmp_path)
    with pytest.raises(HummingbirdError, match="the command has not ended after 1 s"):
        evidence.measure(replace(run, command="python -m slow", minutes=1 / 1200))
    (tmp_path / "tool.py").write_text(TOOL.replace('"net": "b", ', ""))
    with pytest.raises(InputError, match=r"code that is not committed: tool\.py"):  # the command's own file
        evidence.measure(replace(run, repeats=1))
    commit(tmp_path)
    record = evidence.measure(replace(run, repeats=1))
    for where, key in (({"net": "c"}, "seconds"), ({"torch": "2"}, "seconds"), ({"net": "a"}, "torch")):
        with pytest.raises(InputError, match=r"rows with .*, expected one"):
            record.figure(where, key)
    evidence.save(run, record)
    for text in ("", "{}", "[]", '{"common": {}, "repeats": [[1]]}', run.path.read_text()[:-9]):
        run.path.write_text(text)
        with pytest.raises(InputError, match="no record of a measurement"):
            evidence.load(run)
    monkeypatch.setattr(evidence, "ROOT", tmp_path.parent)
    with pytest.raises(EnvironmentProblem, match="git knows no commit here"):
        evidence._git("rev-parse", "HEAD")


def test_a_busy_machine_is_seen(run: Run, tmp_path: Path) -> None:
    """Another program's core counts, and the run's own do not."""
    (tmp_path / "measured.py").write_text(MEASURED.replace("return 1.5", "return sum(range(10**7)) * 0.0 + 1.5"))
    commit(tmp_path)
    spinning = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        busy = evidence.measure(run)
    finally:
        spinning.kill()
        spinning.wait()
    assert busy.others > 0.2  # of a core; it has a whole one where the machine is otherwise idle


LINE = Line("a: ms", "7", "tool", {"net": "a"}, "s", "{:.1f}", 1e3)
PAPER = Paper(
    "A",
    "B: C",
    "a machine",
    (
        Item(
            "Table 1",
            "times",
            IN_KIND,
            "another net",
            "",
            (Line("a: ms", "7", "tool", {"net": "a"}, "s", "{:.1f}", 1e3),),
        ),
        Item("Table 2", "more", REMADE),
        Item("Figure 1", "most", NOT, "no data"),
    ),
)
RECORD = Record("python -m tool", "abc", "2026-01-01", "0", 3.0, 0.01, {"cpu": "one"}, [[{"net": "a", "s": 1.0}]] * 3)


def test_the_page_has_every_item_and_every_measured_figure() -> None:
    spreading = replace(RECORD, repeats=[[{"net": "a", "s": s}] for s in (1.0, 0.9, 1.25)])
    runs = {"tool": Run("tool", "python -m tool", (), 1)}
    text = overview.page([PAPER], runs, {"tool": spreading})
    assert "| Table 1 | a: ms | 7 | 1000.0 (900.0 to 1250.0) | tool |" in text
    assert (
        "| Table 1 | times | in kind | another net |" in text and "| Figure 1 | most | not remade | no data |" in text
    )
    assert "| [A](#a) | 1 | 1 | 1 |" in text and "```sh\npython -m tool\n```" in text
    assert "| [tool](evidence/tool.json) | `python -m tool` | abc | 2026-01-01 | 3 | 0.01 | one |" in text
    bare = overview.page([PAPER], runs, {})
    assert "No record yet: tool." in bare and "1000.0" not in bare


def test_spread() -> None:
    assert spread([1.0, 1.001, 0.999], "{:.1f}") == "1.0"
    assert spread([3.0, 1.0, 2.0], "{:.0f}") == "2 (1 to 3)"


def test_faults_of_the_register_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(evidence, "FOLDER", tmp_path)
    runs = {"tool": Run("tool", "python -m scripts.papers.plot", ("scripts/papers/items.py",), 1)}
    right = replace(RECORD, command=runs["tool"].command, code=runs["tool"].digest())

    def faults(*items: Item, record: Record = right) -> str:
        return "\n".join(papers.faults((replace(PAPER, items=items),), runs, {"tool": record}))

    assert faults(*PAPER.items) == ""
    assert "a reason is given" in faults(Item("Table 1", "", NOT)) and "a reason" in faults(Item("T", "", REMADE, "x"))
    assert "is said not to be remade" in faults(Item("Table 1", "", NOT, "no", "", (LINE,)))
    assert "there is no page docs/absent.md" in faults(Item("Table 1", "", REMADE, "", "absent.md#x"))
    assert "there is no run other" in faults(Item("Table 1", "", REMADE, "", "", (replace(LINE, run="other"),)))
    assert "0 rows with" in faults(Item("Table 1", "", REMADE, "", "", (replace(LINE, where={"net": "z"}),)))
    assert "older than the code" in faults(record=replace(right, code="0"))
    assert "busy machine" in faults(record=replace(right, others=1.0))
    (tmp_path / "stray.json").write_text("{}")
    assert "stray.json: there is no such run" in faults()


def test_a_busy_machine_is_measured_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers, "RUNS", {"tool": run})
    monkeypatch.setattr(papers, "pages", lambda records: {})
    right = replace(RECORD, command=run.command, code=run.digest())
    loads = [1.0, 0.5, 0.01, 1.0, 1.0, 1.0]
    monkeypatch.setattr(evidence, "measure", lambda run: replace(right, others=loads.pop(0)))
    papers.measure("tool")
    loaded = evidence.load(run)
    assert len(loads) == 3 and loaded and loaded.others == 0.01
    with pytest.raises(HummingbirdError, match="the machine is busy; the record stays as it was"):
        papers.measure("tool")
    assert evidence.load(run) == loaded


def test_every_line_names_one_row_of_its_benchmark() -> None:
    """Rows of two contestants that draw their triples themselves, of several windows and links."""
    line = next(line for item in PAPERS[0].items for line in item.lines if "CrypTen: ms" in line.what)
    shared = {"link": "loopback", "material": "drawn", "seconds_per_image": 1.0}
    rows = [{"protocol": "CrypTen 0.4.1", "window": "[64:0)", **shared}]
    rows += [{"protocol": "published", "window": window, **shared} for window in ("[24:0)", "[20:12)")]
    assert replace(RECORD, repeats=[rows]).figure(line.where, line.key) == [1.0]


def test_records_and_pages_belong_to_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    """Measure a run again after a change of its code: python -m scripts.papers RUN."""
    assert papers.main(["--check"]) == 0, capsys.readouterr().err
    assert papers.main(["--list"]) == 0 and capsys.readouterr().out.count("python -m ") == len(RUNS)
    assert papers.main(["absent"]) == 1 and "there is no run absent" in capsys.readouterr().err


def test_every_run_is_a_command_of_this_repository() -> None:
    used = {line.run for paper in PAPERS for item in paper.items for line in item.lines}
    assert used | {"plans-wikitext2", "plans-movielens", "costs"} == RUNS.keys()  # and these have tables of their own
    for name, run in RUNS.items():
        module = run.command.split()[2].replace(".", "/")
        assert run.command.startswith("python -m ") and any(
            (evidence.ROOT / path).exists() for path in (f"{module}.py", f"{module}/__main__.py")
        ), name
        assert run.files() and run.minutes > 0 and json.dumps(run.command)


def test_a_run_measures_the_headers_that_its_files_include() -> None:
    kernels = evidence.ROOT / "hummingbird/kernels/cpu/csrc"
    found = {path.name for path in evidence.headers(kernels / "ciphertexts.cpp")}
    assert {"panels.h", "reals.h", "dispatch.h", "threads.h"} <= found and "aes.h" not in found
    assert not evidence.headers(kernels.parent / "ciphertexts.py")
    assert kernels / "garble.h" in RUNS["garbling"].files() and kernels / "panels.h" not in RUNS["garbling"].files()
