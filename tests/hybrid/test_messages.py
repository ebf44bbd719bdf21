"""Openings: what both sides must have in common, and who is named where they do not."""

from __future__ import annotations

import json

import pytest
import torch

from hummingbird.errors import AgreementError, InputError
from hummingbird.hybrid import messages
from hummingbird.version import VERSION

PLAN = "ab" * 32
SIDES = "the model's side", "the data's side"


def test_another_release_format_or_plan_names_both_sides() -> None:
    opening = json.loads(messages.opening(PLAN, slot=3))
    assert messages.read_opening(json.dumps(opening).encode(), PLAN, *SIDES)["slot"] == 3
    for changed, what in (
        ({"release": "0.0.9"}, f"the data's side is release 0.0.9, format 1; the model's side is release {VERSION}"),
        ({"format": 9}, "format 9; the model's side"),
        ({"plan": "cd" * 32}, "the data's side works by plan cdcdcdcdcdcd, the model's side by plan abababababab"),
        ({"plan": None}, "by plan None"),
    ):
        with pytest.raises(AgreementError) as caught:
            messages.read_opening(json.dumps({**opening, **changed}).encode(), PLAN, *SIDES)
        assert what in str(caught.value) and caught.value.hint


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff" * 9, b"[" * 4000, b" " * 5000 + b"{}"])
def test_what_is_no_opening_is_malformed(data: bytes) -> None:
    with pytest.raises(InputError, match="malformed message"):
        messages.read_opening(data, PLAN, *SIDES)


@pytest.mark.parametrize("value", [None, True, -1, 1.0, "1", 1 << 63])
def test_numbers_are_whole_and_small(value: object) -> None:
    with pytest.raises(InputError, match="no slot"):
        messages.number_of({"slot": value}, "slot")


@pytest.mark.parametrize("value", [None, 7, "", "ab" * 15, "AB" * 16, "zz" * 16])
def test_names_are_hexadecimal(value: object) -> None:
    with pytest.raises(InputError, match="no session"):
        messages.text_of({"session": value}, "session", 16)


@pytest.mark.parametrize("ring", [1, 7, 20, 32])
def test_integers_and_labels_arrive(ring: int) -> None:
    x = torch.arange(30).view(2, 3, 5) * 123_456_789 & (1 << ring) - 1
    data = messages.pack(x, ring)
    assert len(data) == messages.words_bytes(30, ring)
    assert torch.equal(messages.unpack(data, (2, 3, 5), ring), x[None])
    labels = torch.arange(12).view(3, 2, 2)
    assert torch.equal(messages.labels_of(messages.octets(labels)), labels.view(6, 2))
