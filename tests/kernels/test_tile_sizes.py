"""Sizes of tiles: from the file by card, else the defaults; searched by measured times, and kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hummingbird.errors import InputError
from hummingbird.kernels.gpu import sizes as module
from hummingbird.kernels.gpu.sizes import DEFAULTS, candidates, keep, sizes, tune

CARD = torch.device("cuda", 0)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of its own, and a card named A."""
    path = tmp_path / "sizes.json"
    path.write_text("{}")
    monkeypatch.setattr(module, "FILE", path)
    monkeypatch.setattr(module, "card", lambda index: "A")
    module.stored.cache_clear()
    return path


def test_the_shipped_file_names_known_sizes_only() -> None:
    for kernels in json.loads(module.FILE.read_text()).values():
        for kernel, found in kernels.items():
            assert found in list(candidates(kernel))


def test_the_fastest_sizes_are_found_and_kept(file: Path) -> None:
    def seconds(run: Callable[[], object]) -> float:
        found = sizes(str(run()), CARD)
        return abs(found.get("LANES", 0) - 64) + abs(found["num_warps"] - 2) + abs(found.get("size", 512) - 512)

    before = sizes("lift", CARD)
    assert before == DEFAULTS["lift"]
    found = tune({"lift": lambda: "lift", "dpf": lambda: "dpf"}, seconds)
    assert found == {"lift": {"LANES": 64, "num_warps": 2}, "dpf": {"size": 512, "num_warps": 2}}
    assert sizes("lift", CARD) == before  # until they are kept
    keep("A", {"lift": found["lift"]})
    keep("B", {"lift": before})
    keep("A", {"dpf": found["dpf"]})
    assert sizes("lift", CARD) == found["lift"] and sizes("dpf", CARD) == found["dpf"]
    assert sizes("lift", torch.device("cpu")) == before and sizes("rows", CARD) == DEFAULTS["rows"]
    assert set(json.loads(file.read_text())) == {"A", "B"}


def test_an_older_card_has_smaller_tiles_of_products(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, outputs in (((8, 0), 32), ((8, 9), 32), ((9, 0), 64), ((10, 0), 64)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, version=version: version)
        assert sizes("multiply", CARD) == {**DEFAULTS["multiply"], "OUTPUTS": outputs}
    assert sizes("multiply", torch.device("cpu")) == DEFAULTS["multiply"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    keep("A", {"multiply": DEFAULTS["multiply"]})
    assert sizes("multiply", CARD) == DEFAULTS["multiply"]  # those that were found


def test_what_has_no_sizes_is_refused(file: Path) -> None:
    with pytest.raises(InputError, match="no sizes of matmul"):
        tune({"matmul": lambda: None}, lambda run: 0.0)
    assert not module._tried
