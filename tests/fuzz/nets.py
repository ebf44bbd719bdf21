"""Random nets of the whole vocabulary, by private inference and by torch: none may be wrong, none may end raw.

    python -m tests.fuzz.nets --nets 3000 --jobs 2 --json fuzz.json
    python -m tests.fuzz.nets --only 1234                            # one net: code, steps, errors
    python -m tests.fuzz.nets --two-party --nets 3000                # other nets, without a dealer
    python -m tests.fuzz.nets --encrypted --nets 1000                # others, on encrypted images in polynomial mode

Net n is the same whenever it is made. Numbers below 4,225 hold one ordered pair of operations each, in chains of 2 to 8
(tests/fuzz/make.py); both protocols, 2 and 3 parties, public and private weights, all parties in this process. The
verdicts are those of tests/fuzz/run.py, the bounds those of tests/fuzz/bounds.py. With --two-party the nets are
those of tests/fuzz/hybrid.py, for two parties without a dealer, with --encrypted those of tests/fuzz/he.py, with
--recurrent those of tests/fuzz/recurrent.py, with --decoder those of tests/fuzz/decoders.py, with --pair those of
tests/fuzz/pair.py. The exit code is 1 if any net is wrong or raw.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from hummingbird.commands.output import check_writable
from hummingbird.commands.program import end
from hummingbird.progress import progress_line
from hummingbird.table import text_table
from scripts.bench.party import workers
from tests.fuzz import decoders, he, hybrid, pair, recurrent
from tests.fuzz.bounds import UNIT
from tests.fuzz.grammar import KINDS
from tests.fuzz.run import VERDICTS, Result, details, judge

CHUNK = 8  # nets that a process takes at a time
FAILED = ("wrong", "raw")
_GRAMMARS: dict[str, tuple[Callable[[int], str], Callable[[int], Result], Iterable[str]]] = {
    "private": (details, judge, KINDS),
    "recurrent": (recurrent.details, recurrent.judge, recurrent.KINDS),
    "pair": (pair.details, pair.judge, KINDS),
    "decoder": (decoders.details, decoders.judge, decoders.KINDS),
    "two-party": (hybrid.details, hybrid.judge, hybrid.WEIGHTS),
    "encrypted": (he.details, he.judge, he.WEIGHTS),
}


def results(
    numbers: Sequence[int], jobs: int, seconds: float | None, judge: Callable[[int], Result] = judge
) -> Iterator[Result]:
    """Verdicts in no particular order; no new nets are begun after `seconds`."""
    started = time.monotonic()

    def in_time() -> bool:
        return seconds is None or time.monotonic() - started < seconds

    chunks = [numbers[first : first + CHUNK] for first in range(0, len(numbers), CHUNK)]
    if jobs == 1:
        with _one_thread():
            yield from (judge(number) for chunk in chunks if in_time() for number in chunk)
        return
    with workers(jobs, threads=1) as pool:
        waiting = {pool.submit(_several, judge, chunk) for chunk in chunks[: 2 * jobs]}
        left = iter(chunks[2 * jobs :])
        while waiting:
            done = next(as_completed(waiting))
            waiting.remove(done)
            yield from done.result()
            if in_time() and (chunk := next(left, None)) is not None:
                waiting.add(pool.submit(_several, judge, chunk))


def _several(judge: Callable[[int], Result], numbers: Sequence[int]) -> list[Result]:
    return [judge(number) for number in numbers]


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the nets are small
    try:
        yield
    finally:
        torch.set_num_threads(before)


def report(found: Sequence[Result], kinds: Iterable[str] = KINDS) -> str:
    """Verdicts by setting, reasons, how near the bounds, and coverage, as text."""
    settings = Counter((r.protocol, f"{r.parties} parties", r.weights, r.windows, r.verdict) for r in found)
    rows = sorted({key[:-1] for key in settings})
    lines = [text_table(
        ["protocol", "parties", "weights", "windows", *VERDICTS],
        [[*row, *(str(settings[row + (verdict,)]) for verdict in VERDICTS)] for row in rows]
        + [["all", "", "", "", *(str(sum(r.verdict == verdict for r in found)) for verdict in VERDICTS)]],
    )]  # fmt: skip
    for verdict in ("refused", "raw"):
        reasons = Counter(r.reason for r in found if r.verdict == verdict)
        first = {r.reason: r.number for r in reversed(found) if r.verdict == verdict}
        lines += [f"\n{verdict}:"] if reasons else []
        lines += [f"  {count:5}  {reason}  (net {first[reason]})" for reason, count in reasons.most_common()]
    wrong = [r for r in found if r.verdict == "wrong"]
    lines += ["\nwrong:"] if wrong else []
    for r in wrong:
        what = r.reason or f"error {r.error:.3g}, {r.ratio:.3g} times the bound, largest output {r.largest:.3g}"
        setting = f"{r.protocol}, {r.parties} parties, {r.weights} weights, {r.windows}"
        lines.append(f"  net {r.number}: {what}; {setting}; {' '.join(r.kinds)}")
    return "\n".join([*lines, *_distances(found), *_coverage(found, list(kinds))])


def _distances(found: Sequence[Result]) -> list[str]:
    """Quantiles of what is right, and how many nets the bound says little about."""
    right = [r for r in found if r.verdict == "right" and r.largest > UNIT]
    if not right:
        return []
    shares = torch.tensor([0.1, 0.5, 0.9, 0.99, 1.0], dtype=torch.float64)
    columns = {
        "error / bound": [r.ratio for r in right],
        "error / largest output": [r.error / r.largest for r in right],
        "bound / largest output": [r.bound / r.largest for r in right],
    }
    rows = [
        [name, *(f"{v:.2g}" for v in torch.tensor(values, dtype=torch.float64).quantile(shares).tolist())]
        for name, values in columns.items()
        if values
    ]
    vague = sum(r.bound > 0.1 * r.largest for r in right)
    table = text_table(["of what is right", "10 %", "50 %", "90 %", "99 %", "100 %"], rows)
    return ["", table, f"the bound is above 10 % of the largest output for {vague} of {len(right)} nets"]


def _coverage(found: Sequence[Result], kinds: Sequence[str]) -> list[str]:
    """How often each operation ran, and which pairs did not: torch itself cannot compute a few."""
    ran = [r for r in found if r.verdict in ("right", "wrong")]
    counts = Counter(kind for r in ran for kind in r.kinds)
    made = {pair for r in found for pair in zip(r.kinds, r.kinds[1:], strict=False)}
    compared = {pair for r in ran for pair in zip(r.kinds, r.kinds[1:], strict=False)}
    pairs = [(a, b) for a in kinds for b in kinds]
    missing = [f"{a}-{b}" for a, b in pairs if (a, b) not in made]
    lines = ["", "compared by operation: " + ", ".join(f"{kind} {counts[kind]}" for kind in kinds)]
    lines.append(f"ordered pairs: {len(made)} of {len(pairs)} in a net, {len(compared)} of them compared with torch")
    if len(missing) <= 100:
        lines.append("in no net: " + (", ".join(missing) or "none"))
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--nets", type=int, default=3000, help="how many (default: %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="number of the first (default: %(default)s)")
    p.add_argument("--seconds", type=float, help="begin no more nets after this time")
    p.add_argument("--jobs", type=int, default=1, help="processes (default: %(default)s)")
    p.add_argument("--json", type=Path, help="write a row per net there")
    grammar = p.add_mutually_exclusive_group()
    grammar.add_argument("--two-party", action="store_true", help="nets for two parties without a dealer")
    grammar.add_argument("--encrypted", action="store_true", help="nets on encrypted images, in polynomial mode")
    grammar.add_argument("--pair", action="store_true", help="nets whose material two parties make themselves")
    grammar.add_argument("--recurrent", action="store_true", help="recurrent nets")
    grammar.add_argument("--decoder", action="store_true", help="decoders in conversation")
    p.add_argument("--only", type=int, metavar="SEED", help="show this net in detail")
    args = p.parse_args(argv)
    failed = False
    named = {
        "two-party": args.two_party,
        "encrypted": args.encrypted,
        "recurrent": args.recurrent,
        "pair": args.pair,
        "decoder": args.decoder,
    }
    named["private"] = True
    shown, of, kinds = _GRAMMARS[next(name for name, chosen in named.items() if chosen)]

    def run() -> None:
        nonlocal failed
        if args.json is not None:
            check_writable(args.json, "--json")
        if args.only is not None:
            print(shown(args.only))
            return
        numbers = range(args.seed, args.seed + args.nets)
        found = []
        with progress_line(total=len(numbers), unit="net") as bar:
            for result in results(numbers, args.jobs, args.seconds, of):
                found.append(result)
                bar.update()
                bar.set_postfix(failed=sum(r.verdict in FAILED for r in found))
        found.sort(key=lambda r: r.number)
        if args.json is not None:
            args.json.write_text(json.dumps([asdict(r) for r in found], indent=1) + "\n")
        print(report(found, kinds))
        failed = any(r.verdict in FAILED for r in found)

    return end(run, lambda: "interrupted: nothing was written") or int(failed)


if __name__ == "__main__":
    sys.exit(main())
