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
    written = messages.OnlineOpening(plan=PLAN, session="cd" * 16, slot=3).pack()
    opening = {"format": 1, "release": VERSION, "plan": PLAN, "session": "cd" * 16, "slot": 3}
    assert written == json.dumps(opening).encode()
    assert messages.read_opening(written, PLAN, *SIDES, messages.OnlineOpening).slot == 3
    for changed, what in (
        ({"release": "0.0.9"}, f"the data's side is release 0.0.9, format 1; the model's side is release {VERSION}"),
        ({"format": 9}, "format 9; the model's side"),
        ({"plan": "cd" * 32}, "the data's side works by plan cdcdcdcdcdcd, the model's side by plan abababababab"),
        ({"plan": None}, "by plan None"),
    ):
        with pytest.raises(AgreementError) as caught:
            messages.read_opening(json.dumps({**opening, **changed}).encode(), PLAN, *SIDES, messages.OnlineOpening)
        assert what in str(caught.value) and caught.value.hint


def read_with(**fields: object) -> messages.OnlineOpening:
    """An online opening in which these fields are others."""
    opening = {"format": 1, "release": VERSION, "plan": PLAN, "session": "cd" * 16, "slot": 3, **fields}
    return messages.read_opening(json.dumps(opening).encode(), PLAN, *SIDES, messages.OnlineOpening)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff" * 9, b"[" * 4000, b" " * 5000 + b"{}"])
def test_what_is_no_opening_is_malformed(data: bytes) -> None:
    with pytest.raises(InputError, match="malformed message"):
        messages.read_opening(data, PLAN, *SIDES, messages.CallOpening)


@pytest.mark.parametrize("value", [None, True, -1, 1.0, "1", 1 << 63])
def test_numbers_are_whole_and_small(value: object) -> None:
    with pytest.raises(InputError, match="malformed message: slot is .*, not a whole number"):
        read_with(slot=value)


@pytest.mark.parametrize("value", [None, 7, "", "ab" * 15, "AB" * 16, "zz" * 16])
def test_names_are_hexadecimal(value: object) -> None:
    with pytest.raises(InputError, match="malformed message: session is not 16 bytes in hexadecimal"):
        read_with(session=value)


@pytest.mark.parametrize(
    "fields", [{"ticket": "ab" * 16}, {"input": "shares"}, {"ticket": "ab" * 16, "input": "other"}, {"more": 1}]
)
def test_other_fields_are_refused(fields: dict[str, object]) -> None:
    assert read_with(ticket="ab" * 16, input="switched").input == "switched"
    with pytest.raises(InputError, match="malformed message"):
        read_with(**fields)


@pytest.mark.parametrize("ring", [1, 7, 20, 32])
def test_integers_and_labels_arrive(ring: int) -> None:
    x = torch.arange(30).view(2, 3, 5) * 123_456_789 & (1 << ring) - 1
    data = messages.pack(x, ring)
    assert len(data) == messages.words_bytes(30, ring)
    assert torch.equal(messages.unpack(data, (2, 3, 5), ring), x[None])
    labels = torch.arange(12).view(3, 2, 2)
    assert torch.equal(messages.labels_of(messages.octets(labels)), labels.view(6, 2))
