"""Every operation, privately between real parties, against torch within the error that fixed point allows."""

from __future__ import annotations

import json

import pytest

from tests.parties import succeed


@pytest.mark.parametrize(
    ("parties", "weights"), [(2, "public"), (3, "public"), (2, "1"), (3, "0")], ids=["2", "3", "2-private", "3-private"]
)
def test_operations_match_torch_and_send_what_was_predicted(parties: int, weights: str) -> None:
    ended = succeed(["-m", "tests.jobs", "operations", weights], parties)
    results = json.loads(ended[0].out.strip().splitlines()[-1])
    assert len(results) > 50
    wrong = {name: pair for name, pair in results.items() if not pair[0] <= pair[1]}
    assert not wrong, f"error above bound: {wrong}"
