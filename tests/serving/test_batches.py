"""Batches between two parties: which material they have made before it is wanted."""

from __future__ import annotations

import pytest
import torch

import hummingbird
from hummingbird.launching import launch
from hummingbird.serving.models import ServedModel
from hummingbird.serving.plan import describe
from hummingbird.serving.worker import Batches
from models import get_model
from tests.support import python

_SLICE, _IMAGE = 4, (1, 8, 8)


def _run(session: hummingbird.Session, net: torch.nn.Module) -> tuple[list[list[int]], int]:
    """Images of the slices whose material is there after each batch, and how many batches used such material."""
    private = hummingbird.convert_model(net, hummingbird.BitConfig.of(hummingbird.BitWindow(28, 0)))
    private.images_per_slice = _SLICE
    done: list[int] = []
    model = ServedModel(private, describe(private, _IMAGE, _SLICE, session, "ab" * 16))
    batches = Batches(session, lambda: None, lambda model, ids, counts, padding, share: done.append(len(share)))
    there, used = [], 0
    for images in (1, _SLICE, _SLICE, 3, _SLICE):
        before = dict(batches._ahead.get(model, {}))
        batches.add(model, [b"id"], [torch.zeros(images, *_IMAGE, dtype=torch.int64)])
        used += batches._queue[0][0].works[0].supply in before.values()
        batches.run()
        there.append(sorted(shape[0] for shape in batches._ahead[model]))
        batches.provide()
    assert done == [1, _SLICE, _SLICE, 3, _SLICE]
    return there, used


def test_a_full_slice_finds_its_material_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second one on: the first says what a slice asks for."""
    python.forking(monkeypatch, launch)
    for there, used in hummingbird.launch(_run, get_model("digits", 10).eval()):
        assert there == [[], [1], [1, _SLICE], [1, _SLICE], [1, _SLICE]]
        assert used == 1
