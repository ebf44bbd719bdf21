"""The benchmark of a sparse net: every way deals as many slots, and sends the bytes that are predicted."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from hummingbird.hybrid.plan import SET
from scripts.bench import hybrid_sparse
from scripts.bench import party as bench_party
from scripts.bench.hybrid_nets import Served
from scripts.bench.hybrid_sparse import Way
from tests.hybrid.test_together import CUT, SHAPE
from tests.support import python
from tests.support.hybrid_nets import images


@pytest.mark.slow
def test_ways_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    python.forking(monkeypatch, bench_party)
    with ExitStack() as servers:
        served = Served(["tests.hybrid.test_together:sparse", "0"], SHAPE, CUT)
        net, _, server = servers.enter_context(served.running())
        ways = [Way("by products", net, server, 1), Way("by taps", net, server, SET)]
        found = list(hybrid_sparse.rows(ways, images(SHAPE, SET), 1))
        assert net.ready == 0
    assert len(found) == 2 * 3 * 3 and all(row["measured"] > 0 for row in found)
    sizes = {row["what"]: (row["measured"], row["predicted"]) for row in found if row["unit"] == "MB"}
    assert all(measured == pytest.approx(predicted, abs=1e-9) for measured, predicted in sizes.values())  # to the byte
    before = "before it is there"
    assert sizes[f"impala-cifar10, by taps: {before}"] < sizes[f"impala-cifar10, by products: {before}"]
