"""Figures of a simulated service as tables for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hummingbird.capacity.quantities import shown_rate, shown_seconds
from hummingbird.table import text_table

KINDS = ("mean", "p50", "p95", "p99")
PARTS = ("wait", "blocked", "online")


def run_table(found: Mapping[str, Any]) -> str:
    """The table of `Run.figures`."""
    lines = [
        found["service"],
        f"{found['runs']} runs of {found['requests']:,} requests at {shown_rate(found['requests_per_second'])}, seed "
        f"{found['seed']}; the first {found['warm_up_requests']} of each left out",
        f"engine: {found['engine']}: {found['why']}",
        f"largest rate {shown_rate(found['limit_requests_per_second'])}, set by {found['limit_cause']}",
    ]
    blocks = ["\n".join(lines), _latencies(found) if found["stable"] else _growing(found)]
    if found["stable"] and not found["steady"]:
        wanted = 10 / (1 - found["load"]) ** 2
        blocks.append(
            f"at {100 * found['load']:.0f} % of the largest rate a queue has a long memory: "
            f"these are figures of the first {found['requests']:,} requests\n"
            f"hint: --requests {wanted:,.0f} shows how it goes on"
        )
    shares = [
        f"{100 * found[name]:.2f} % {words}" for name, words in (("rejected", "rejected"), ("gave_up", "gave up"))
    ]
    blocks.append(
        f"goodput {found['goodput_images_per_second'] * 3600:,.0f} images/h; {', '.join(shares)}; "
        f"{found['requests_in_system']:.2f} requests there, {found['tokens_in_store']:,.1f} tokens in store on average"
    )
    rows = [(name, f"{100 * used:.1f} %") for name, used in _most(found["utilisation"])]
    return "\n\n".join([*blocks, text_table(("used", "of it"), rows)])


def _most(utilisation: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(utilisation.items(), key=lambda item: -item[1])


def _latencies(found: Mapping[str, Any]) -> str:
    rows = [
        (
            kind,
            shown_seconds(found[f"{kind}_seconds"]),
            f"{shown_seconds(found[f'{kind}_low'])} to {shown_seconds(found[f'{kind}_high'])}",
            *(shown_seconds(found[f"{part}_{kind}_seconds"]) for part in PARTS),
        )
        for kind in KINDS
    ]
    table = text_table(("latency", "", "95 % interval", *PARTS), rows)
    return f"{table}\nwait: for a slot; blocked: for tokens; online: the protocol. Percentiles of parts are their own."


def _growing(found: Mapping[str, Any]) -> str:
    grown = found["growth_seconds_per_second"]
    words = "-" if math.isnan(grown) else f"{grown:.3g} s"
    return (
        f"above the largest rate: {100 * found['load']:.0f} % of it. Latency grows by {words} each second, without\n"
        f"end, so that it has no percentiles\nhint: ask for less, or change {found['limit_cause']}"
    )
