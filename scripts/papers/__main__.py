"""Every table and figure of the five papers that this project builds on, beside what is measured here.

    python -m scripts.papers                     # measure what has no record, or none of the present code; hours
    python -m scripts.papers lookups garbling    # these runs alone
    python -m scripts.papers --list              # runs, their minutes and the state of their records
    python -m scripts.papers --check             # exit code 1 unless records and pages belong to the code; no measuring

A run's record is written to docs/evidence when it ends, so an interrupted call goes on where it stopped; then the pages
docs/results.md and docs/lookup-plans.md are written from all records. Commit first: a record names the commit that it
measured. Data come from HUMMINGBIRD_DATA.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from hummingbird import disk
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.table import text_table
from scripts.papers import evidence, overview, results_lookup
from scripts.papers.evidence import MOST_OTHERS, Record, Run
from scripts.papers.items import NOT, REMADE, Paper
from scripts.papers.register import PAPERS
from scripts.papers.runs import RUNS
from scripts.program import ROOT, main_of, new_parser

_TRIES = 3  # measurements of a run while other programs use the machine
_PLANS = ("plans-wikitext2", "plans-movielens")


def pages(records: Mapping[str, Record]) -> dict[Path, str]:
    """Write all pages; returns their contents by file. records: by the names of their runs."""
    plans = [row for name in _PLANS if name in records for row in records[name].rows()]
    return {
        ROOT / "docs/results.md": overview.page(PAPERS, RUNS, records),
        ROOT / "docs/lookup-plans.md": results_lookup.page(plans),
    }


def faults(papers: tuple[Paper, ...], runs: Mapping[str, Run], records: Mapping[str, Record]) -> list[str]:
    """Return what is wrong with the register and the records, a sentence each."""
    found = []
    for paper in papers:
        for item in paper.items:
            where = f"{paper.name}, {item.name}"
            if bool(item.reason) == (item.state == REMADE):
                found.append(f"{where}: a reason is given for what is not remade as it was, and only for that")
            if item.state == NOT and item.lines:
                found.append(f"{where}: it has figures and is said not to be remade")
            if item.page and not (ROOT / "docs" / item.page.partition("#")[0]).exists():
                found.append(f"{where}: there is no page docs/{item.page.partition('#')[0]}")
            for line in item.lines:
                if line.run not in runs:
                    found.append(f"{where}: there is no run {line.run}")
                elif line.run in records:
                    try:
                        records[line.run].figure(line.where, line.key)
                    except InputError as problem:
                        found.append(f"{where}: {line.what}: {problem.what}")
    for name, record in records.items():
        if problem := record.problem(runs[name]):
            found.append(f"docs/evidence/{name}.json: {problem}")
    unknown = {path.stem for path in evidence.FOLDER.glob("*.json")} - runs.keys()
    return found + [f"docs/evidence/{name}.json: there is no such run" for name in sorted(unknown)]


def load_all() -> dict[str, Record]:
    """Read the records of all runs that have one."""
    loaded = {name: evidence.load(run) for name, run in RUNS.items()}
    return {name: record for name, record in loaded.items() if record}


def measure(name: str) -> None:
    """Measure a run, again while other programs use the machine, and write its record."""
    run = RUNS[name]
    for attempt in range(1, _TRIES + 1):
        print(f"{name}: {run.command} ...", file=sys.stderr, flush=True)
        record = evidence.measure(run)
        if record.others <= MOST_OTHERS:
            break
        print(f"{name}: other programs used {record.others:.2f} cores (try {attempt} of {_TRIES})", file=sys.stderr)
    before = evidence.load(run) if run.path.exists() else None
    if record.others > MOST_OTHERS and before is not None and before.problem(run) is None:
        raise HummingbirdError("the machine is busy; the record stays as it was", where=name, hint="try again later")
    evidence.save(run, record)
    write_pages()  # an interrupted call leaves pages that belong to the records


def write_pages() -> None:
    """Write the pages from all records."""
    for path, text in pages(load_all()).items():
        disk.save(path, [text.encode()])


def run(args: argparse.Namespace) -> None:
    """Measure, list or check."""
    if unknown := [name for name in args.runs if name not in RUNS]:
        raise InputError(f"there is no run {unknown[0]}", where="runs", hint=f"runs: {', '.join(RUNS)}")
    records = load_all()
    if args.list:
        _list(records)
    elif args.check:
        _check(records)
    else:
        wanted = args.runs or [name for name in RUNS if name not in records or records[name].problem(RUNS[name])]
        for name in wanted:
            measure(name)
        write_pages()
        _check(load_all())


def _list(records: Mapping[str, Record]) -> None:
    rows = []
    for name, each in RUNS.items():
        state = "no record" if name not in records else records[name].problem(each) or "right"
        rows.append((name, f"{each.minutes * each.repeats:.0f}", state, each.command))
    print(text_table(("run", "minutes", "record", "command"), rows, left=1))


def _check(records: Mapping[str, Record]) -> None:
    found = faults(PAPERS, RUNS, records)
    for path, text in pages(records).items() if not found else ():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            found.append(f"{path.relative_to(ROOT)}: differs from what the records say; run python -m scripts.papers")
    for fault in found:
        print(fault, file=sys.stderr)
    if found:
        raise HummingbirdError(f"{len(found)} faults in the evidence", where="docs/evidence", hint="they are above")
    print(f"{len(records)} of {len(RUNS)} runs have a record; records and pages belong to the code")


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    made = new_parser(__doc__, "scripts.papers")
    made.add_argument("runs", nargs="*", metavar="RUN", help="runs to measure (default: all without a right record)")
    group = made.add_mutually_exclusive_group()
    group.add_argument("--list", action="store_true", help="list the runs, and measure nothing")
    group.add_argument("--check", action="store_true", help="check records and pages, and measure nothing")
    return made


main = main_of(parser, run, "interrupted: the records of runs that ended are written")


if __name__ == "__main__":
    sys.exit(main())
