"""Tables for people: what a net will cost."""

from __future__ import annotations

from collections.abc import Sequence

from hummingbird.cost import FREE, TABLE_BITS, Cost
from hummingbird.mpc.layer import FLOOR
from hummingbird.mpc.net import PrivateNet
from hummingbird.table import text_table


def estimate_table(
    net: PrivateNet, input_shape: Sequence[int], parties: int, bandwidth: float, rtt: float, lanes: int = 1
) -> str:
    """Range, rounds, bits and wire time of every layer, per batch of `input_shape`, and the sum.

    bandwidth: bits per second and party; rtt: round-trip time in seconds. Computation is not included.
    lanes: of each party; each runs such a batch at the same time, with its part of the bandwidth.
    """
    rows, total, elements = [], FREE, 0
    for planned in net.costs(input_shape, parties):
        total += planned.cost
        if planned.range is None or planned.op in _SHAPES:
            continue
        elements += planned.elements if planned.window else 0
        rows.append(
            (
                planned.name,
                planned.op,
                planned.window,
                planned.variant,
                f"2^{planned.range}",
                f"{planned.elements:,}",
                str(planned.cost.rounds),
                f"{planned.cost.bits / max(1, planned.elements):,.1f}",
                f"{planned.cost.bits / 8e3:,.1f}",
                f"{planned.cost.offline_bits / 8e3:,.1f}",
                f"{1e3 * planned.cost.seconds(bandwidth / lanes, rtt):,.2f}",
            )
        )
    rows.append(
        (
            "total",
            "",
            "",
            "",
            "",
            f"{elements:,}",
            str(total.rounds),
            f"{total.bits / max(1, elements):,.1f}",
            f"{total.bits / 8e3:,.1f}",
            f"{total.offline_bits / 8e3:,.1f}",
            f"{1e3 * total.seconds(bandwidth / lanes, rtt):,.2f}",
        )
    )
    counted = ("elements", "rounds", "bits each", "sent kB", "offline kB", "wire ms")
    link = f"{bandwidth / 1e9:g} Gb/s, {1e3 * rtt:g} ms round trip"
    each = f" and lane, {lanes} lanes at a time on the link" if lanes > 1 else ""
    what = f"{parties} parties, input {tuple(input_shape)}, {link}; per party{each}"
    table = text_table(("layer", "kind", "window", "sign by", "below", *counted), rows, left=5, total=True)
    return "\n\n".join([what, table, *_lanes(total, input_shape[0], lanes), *_notes(net, parties, rows)])


_SHAPES = frozenset("flatten reshape permute transpose squeeze unsqueeze chunk split".split())  # the same values


def _lanes(batch: Cost, images: int, lanes: int) -> list[str]:
    """A line below the table on all lanes of a party, if there are several."""
    if lanes == 1:
        return []
    sent, offline = (f"{lanes * bits / 8e3:,.1f} kB" for bits in (batch.bits, batch.offline_bits))
    return [f"{lanes} lanes together: {lanes * images} images, {sent} sent, {offline} offline"]


def _notes(net: PrivateNet, parties: int, rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines below the table: the price of private weights, paid once, and why `cost.tables` chose what it shows."""
    variants, out, setup = " ".join(row[3] for row in rows), [], net.setup_cost(parties)
    if setup != FREE:
        out.append(
            f"private weights, once: {setup.bits / 8e3:,.1f} kB sent in {setup.rounds} round, "
            f"{setup.offline_bits / 8e3:,.1f} kB offline"
        )
    out.append(
        f"below: results are right if every value stays below this, with a window every value that is compared; never "
        f"less than 2^{FLOOR}\nbut for values that are known to be smaller, and for the windows that were chosen"
    )
    if "table " in variants:
        out.append("table w: one step table of 2^w bits, for every w <= 8: no other way sends less in fewer rounds")
    if "tree " in variants:
        out.append(
            "tree of n: n step tables below a tree: the fewest rounds for which the tables of one ReLU take at most "
            f"{TABLE_BITS}\nbits, and then the fewest bits, online and offline together"
        )
    return out
