"""Facts that must be the same at all parties: they compare them before they compute."""

from __future__ import annotations

import json
import os

from hummingbird import records
from hummingbird.channel.channel import Channel
from hummingbird.errors import AgreementError, InputError

_SAME = "all parties must run the same program with the same arguments and files"


def agree(channel: Channel, what: str, facts: dict[str, str], hint: str = _SAME) -> None:
    """Compare facts with all parties: 1 round.

    what: the name of the operation in errors.
    facts: text by name; all parties must have the same.
    Raises AgreementError at every party if they differ. It names both sides.
    """
    for peer, text in sorted(channel.exchange_text(text_of(facts)).items()):
        theirs = _facts(text)
        differences = []
        for key in sorted(set(facts) | set(theirs)):
            mine, other = str(facts.get(key)), str(theirs.get(key))
            if mine != other:
                start = len(os.path.commonprefix([mine, other]))
                mine, other = _around(mine, start), _around(other, start)
                differences.append(f"{key}: {channel.name} has {mine}, {channel.names[peer]} has {other}")
        if differences:
            raise AgreementError(
                f"the parties disagree on {'; on '.join(differences)}",
                where=what,
                hint=hint,
            )


def text_of(facts: dict[str, str]) -> str:
    """Facts as the text that parties exchange."""
    return json.dumps(facts)


def _around(text: str, place: int) -> str:
    """Cut a long text to the characters around the index `place`, for an error."""
    first, last = max(0, place - 60), place + 40
    return ("..." if first else "") + text[first:last] + ("..." if last < len(text) else "")


def _facts(text: str) -> dict[str, str]:
    """Read the facts in another party's message. For a malformed message return one fact that no party has."""
    try:
        facts: dict[str, str] = records.read(text, records.mapping(records.anything(), 1 << 10), name="facts")
    except InputError:
        return {"program": "another one"}
    return facts
