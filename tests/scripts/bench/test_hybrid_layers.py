"""The benchmark of encrypted layers: rows with bytes as predicted, and no figure of a wrong result."""

from __future__ import annotations

import pytest

from scripts.bench import hybrid_layers
from scripts.bench.hybrid_layers import Case, Shape

SMALL = (Shape("8x8x4, 3x3, 5", (4, 8, 8), (5, 4, 3, 3), 1, "<= 9", 10), Shape("linear", (30,), (7, 30)))


def test_rows_of_layers_state_the_bytes_of_the_messages() -> None:
    rows = list(hybrid_layers.layers(1, SMALL))
    assert [row["unit"] for row in rows] == ["ms", "bytes"] * 2 and rows[0]["mark"] == "<= 9" and rows[0]["paper"] == 10
    for row in rows[1::2]:
        assert row["measured"] == row["predicted"] > 50_000
    for row in rows[::2]:
        assert row["measured"] == row["client_milliseconds"] + row["server_milliseconds"] > 0 < row["products"]


def test_rows_of_sparse_layers() -> None:
    rows = list(hybrid_layers.sparse(1, Shape("16x16x8, 3x3, 8", (8, 16, 16), (8, 8, 3, 3), 1)))
    dense, _, few, _, ratio, *_ = (row["measured"] for row in rows)
    assert ratio == few / dense and rows[4]["mark"] == "<= 0.2" and len(rows) == 9
    assert all(row["measured"] > 0 for row in rows)


def test_rows_of_key_switching() -> None:
    time, size = hybrid_layers.switching(1)
    assert time["measured"] > 0 and size["measured"] == size["predicted"]


def test_a_wrong_result_ends_the_benchmark() -> None:
    shape = SMALL[0]
    case = Case(shape)
    assert case.check() == case.layout.up_bytes + case.layout.down_bytes
    case.weights[0, 0, 0, 0] += 1
    with pytest.raises(RuntimeError, match="not that of the layer"):
        case.check()
