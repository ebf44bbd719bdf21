"""The page docs/lookup-plans.md: the rows of `search.pir_plan --json` as tables.

As Figures 11 and 16 to 19 of Lam et al. (ASPLOS 2024), in kind: quality against inferences per second, bytes and PRF
blocks, for bins alone and with each of the paper's devices, and for what stands here in their place. A cell is the best
of the plans that were tried, stay within the budget of bytes and lose no more than the column says, so that each line
of a table is the front that a figure draws.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from scripts.papers.results_page import table
from search.pir_plan import ECO, RELAXED, chosen

Row = dict[str, Any]

# Percent: eco, relaxed of AUC, one between, relaxed of perplexity.
LOSSES = (100 * ECO, 100 * RELAXED["AUC"], 2.0, 100 * RELAXED["perplexity"])
NAMES = {"movielens": "MovieLens, MLP", "wikitext2": "WikiText-2, LSTM"}
_FAMILIES = {"plain": "one key per lookup", "bins": "bins", "cuckoo": "cuckoo code"}
_SPEED = ("inferences_per_second", 1.0, True)
_PAIRS = (("co-design", "bins"), ("co-design", "one key"), ("cuckoo", "one key"), ("cuckoo", "co-design"))
TITLE = "# Plans for private lookups (Lam et al., Figures 11 and 16 to 19, in kind)\n"
INTRODUCTION = """
Quality of the nets when their rows come by a plan, against what an inference costs. Made of the rows of

```sh
{commands}
```

{facts}
"""
FACTS = """
{machine}. Plans are tried on the validation split, profiles are of the training split: a loss is a percentage of the
validation quality with all rows found. Bytes and PRF blocks are counted; inferences per second are those of one core of
each server, by a model of a server fitted to passes on this machine ({error} off at most), {clients} inferences in a
pass, PRF {prf}, at most {kilobytes} kB and {seconds:g} s. The chosen plans were also built: real servers answered
{clients} inferences of the test split in a pass, all rows that the planner finds were right, and "timed" is how many
inferences a second that makes, messages unpacked and packed; CPU time of one core, without a network. "bins" is the
paper's batch retrieval, "hot" and "companions" its co-design; "cuckoo code" stands in place of bins. Plans that drop
more than half of the rows are left out. "-": no plan that was tried loses so little.
"""
PAPER = """
The paper reports, on a V100 and nets of its own: over 5 times the throughput by co-design at fixed quality, up to
100,000 queries per second; for one key per lookup in 2^20 rows 965 to 1,358 queries per second with AES and 3,640 with
ChaCha, and 1.3 on a CPU thread, 21 on 32. Its language model has a perplexity of 92 after far more training; its third
application, Taobao (AUC 0.58), is left out for want of the data.
"""


def page(rows: Sequence[Row]) -> str:
    """The page in Markdown, from the rows of any number of applications."""
    if not rows:
        return f"{TITLE}\nNo record yet: `python -m scripts.papers plans-wikitext2 plans-movielens` makes them.\n"
    apps = {name: [row for row in rows if row["application"] == name] for name in dict.fromkeys(_apps(rows))}
    some = rows[0]
    said = {
        "machine": f"hummingbird {some['hummingbird']}, PyTorch {some['torch']}, {some['cpu']}",
        "error": f"{max(row['speed_model_error_percent'] for row in rows):.0f} %",
        "clients": some["clients"],
        "prf": some["prf"],
        "kilobytes": _kilobytes(some["budgets_bytes"][0]),
        "seconds": some["budget_seconds"],
    }
    facts = textwrap.fill(FACTS.format(**said).strip(), 120)
    parts = [
        TITLE + INTRODUCTION.format(commands="\n".join(dict.fromkeys(row["command"] for row in rows)), facts=facts),
        _chosen(apps),
        *(
            _front(_within(apps, budget), f"Inferences per second within {_kilobytes(budget)} kB", *_SPEED)
            for budget in some["budgets_bytes"]
        ),
        _gains(apps) + PAPER,
        _front(apps, "kB per inference, both servers, both ways", "bytes_per_inference", 1e-3, False),
        _front(apps, "Thousands of PRF blocks per inference at each server", "prf_blocks", 1e-3, False),
    ]
    return "\n".join(parts)


def _apps(rows: Sequence[Row]) -> list[str]:
    return [row["application"] for row in rows]


def _family(name: str) -> str:
    kind, *more = name.split(" + ")
    return " + ".join([_FAMILIES[kind], *more])


def _order(family: str) -> tuple[int, int, bool]:
    """By kind, then by how many devices come with it, a hot table first."""
    return [*_FAMILIES].index(family.split(" + ")[0]), family.count("+"), "hot" not in family


def _best(rows: Sequence[Row], loss: float, key: str, most: bool) -> float | None:
    """The largest or smallest of the rows that lose at most `loss` percent."""
    values = [row[key] for row in rows if row["loss_percent"] <= loss]
    return (max(values) if most else min(values)) if values else None


def _within(apps: dict[str, list[Row]], budget: float) -> dict[str, list[Row]]:
    return {name: [row for row in rows if row["bytes_per_inference"] <= budget] for name, rows in apps.items()}


def _kilobytes(budget: float) -> str:
    return f"{budget / 1e3:g}"


def _front(apps: dict[str, list[Row]], title: str, key: str, factor: float, most: bool) -> str:
    """For each family the best that a loss allows."""
    lines = []
    for name, rows in apps.items():
        for number, family in enumerate(sorted({row["family"] for row in rows}, key=_order)):
            here = [row for row in rows if row["family"] == family]
            best = [_best(here, loss, key, most) for loss in LOSSES]
            cells = ["-" if value is None else _number(value * factor) for value in best]
            lines.append((NAMES.get(name, name) if not number else "", _family(family), *cells))
    head = ("application", "plans", *(f"loss <= {loss:g} %" for loss in LOSSES))
    return f"## {title}\n\n" + table(head, lines, left=2)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _gains(apps: dict[str, list[Row]]) -> str:
    """The worth of co-design: the fastest plans beside the fastest without it, for eco and for relaxed."""
    lines = []
    budgets = next(iter(apps.values()))[0]["budgets_bytes"]
    for budget, name, rows in ((b, *each) for b in budgets for each in _within(apps, b).items()):
        kinds = {
            "one key": [row for row in rows if row["kind"] == "plain"],
            "bins": [row for row in rows if row["family"] == "bins"],
            "co-design": [row for row in rows if row["kind"] == "bins" and row["family"] != "bins"],
            "cuckoo": [row for row in rows if row["kind"] == "cuckoo"],
        }
        for loss in (100 * ECO, 100 * RELAXED[apps[name][0]["measure"]]):
            speed = {kind: _best(some, loss, "inferences_per_second", True) for kind, some in kinds.items()}
            times = [_times(speed[fast], speed[slow]) for fast, slow in _PAIRS]
            lines.append((f"{NAMES.get(name, name)}, {_kilobytes(budget)} kB, loss <= {loss:g} %", *times))
    return table(("times as fast", *(f"{fast} / {slow}" for fast, slow in _PAIRS)), lines)


def _times(fast: float | None, slow: float | None) -> str:
    return "-" if fast is None or slow is None else f"{fast / slow:.1f}"


def _chosen(apps: dict[str, list[Row]]) -> str:
    """The fastest plans that lose nothing, and little, and what they are worth on the test split."""
    lines, notes = [], []
    for name, rows in apps.items():
        some = rows[0]
        notes.append(
            f"{NAMES.get(name, name)}: {some['table_rows']:,} rows of {some['row_bytes']} bytes; {some['measure']} "
            f"with all rows {some['exact']:.4f} on {some['inferences']:,} inferences of the validation split, "
            f"{some['test_exact']:.4f} on {some['test_inferences']:,} of the test split."
        )
        picked = [(b, *pair) for b in some["budgets_bytes"] for pair in chosen(rows, some["measure"], b)]
        for budget, word, row in picked:
            hot = f" + {row['hot']} hot of {100 * row['share']:g} %" if row["hot"] else ""
            lines.append(
                (
                    f"{NAMES.get(name, name)}, {word}, {_kilobytes(budget)} kB",
                    _family(row["family"]),
                    f"{row['full']}{hot}",
                    f"{row['dropped_percent']:.2f}",
                    f"{row['loss_percent']:.2f}",
                    f"{row['test_loss_percent']:.2f}",
                    f"{row['bytes_per_inference'] / 1e3:,.1f}",
                    f"{row['inferences_per_second']:,.0f}",
                    f"{row['timed_inferences_per_second']:,.0f}",
                    f"{row['client_milliseconds']:.2f}",
                )
            )
    head = ("chosen for", "plan", "keys", "dropped %", "loss %", "test loss %", "kB")
    head += ("inferences/s", "timed", "client ms")
    return "## Chosen plans\n\n" + "\n\n".join(notes) + "\n\n" + table(head, lines, left=2)
