"""A service as its parties describe it to clients: all N parties must say the same.

`digest` names it in every request, so that a share for another net, another shape, another scale or an earlier run of
the parties is refused where it arrives.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from hummingbird.errors import AgreementError, PeerError
from hummingbird.version import VERSION

DIGEST_BYTES = 16
MOST_PARTIES = 64
_MOST_VALUES = 1 << 26  # of one image, and of its result
_MOST_TEXT = 1 << 16
_LATEST = 1e11  # seconds since 1970


@dataclass(frozen=True)
class Description:
    """The facts that a client must know of a service, and no more.

    release: of hummingbird. net: fingerprint of the facts on which the parties agree. session: this run of the parties.
    shape, result: of one image, and of its result. limit: the largest |x| the windows were made for; None: not known.
    scale, bits: of the input, its bits of fraction, and how many low bits the net reads. result_scale, result_bits:
    likewise. most: images in a request. rowwise: whether the images of a request are known to be computed apart.
    """

    release: str
    net: str
    session: str
    shape: tuple[int, ...]
    result: tuple[int, ...]
    limit: float | None
    scale: int
    bits: int
    result_scale: int
    result_bits: int
    parties: int
    most: int
    rowwise: bool

    @property
    def digest(self) -> bytes:
        """16 bytes that name all of this."""
        text = json.dumps(asdict(self), sort_keys=True).encode()
        return hashlib.blake2b(text, digest_size=DIGEST_BYTES, person=b"hb-serving").digest()

    @property
    def values(self) -> int:
        """Numbers in one image."""
        return math.prod(self.shape)

    @property
    def results(self) -> int:
        """Numbers in one image's result."""
        return math.prod(self.result)

    def answer(self, rank: int, clock: float) -> bytes:
        """The answer of party `rank` to Describe; clock: its time, seconds since 1970."""
        return json.dumps({"rank": rank, "clock": clock, **asdict(self)}).encode()


@dataclass(frozen=True)
class Described:
    """One party's answer: its rank, its clock, and the service."""

    rank: int
    clock: float
    service: Description

    @classmethod
    def read(cls, answer: bytes, where: str) -> Described:
        """Parse `Description.answer`; PeerError for anything else, AgreementError for another release."""
        try:
            if len(answer) > _MOST_TEXT:
                raise ValueError(f"{len(answer)} bytes")
            values = json.loads(answer)
            rank, clock = _whole(values.pop("rank"), 0, MOST_PARTIES - 1), float(values.pop("clock"))
            if not 0 <= clock < _LATEST:
                raise ValueError("clock")
            release = str(values["release"])[:32]
            if release != VERSION:
                what = f"the party runs hummingbird {release}, this client {VERSION}"
                raise AgreementError(what, where=where, hint="install the same release everywhere")
            return cls(rank, clock, _checked(values))
        except (ValueError, TypeError, KeyError, RecursionError, AttributeError, OverflowError) as error:
            what = f"a malformed description: {type(error).__name__} {str(error)[:100]}"
            raise PeerError(what, where=where, hint="is this a party of `hummingbird serve`?") from None


def _checked(values: dict[str, Any]) -> Description:
    names = {field.name for field in fields(Description)}
    if set(values) != names:
        raise ValueError(f"fields {sorted(set(values) ^ names)[:4]}")
    shape, result = (tuple(_whole(size, 1, _MOST_VALUES) for size in values[name]) for name in ("shape", "result"))
    if max(math.prod(shape), math.prod(result)) > _MOST_VALUES or max(len(shape), len(result)) > 8:
        raise ValueError("shapes")
    limit = None if values["limit"] is None else float(values["limit"])
    if limit is not None and not 0 < limit < math.inf:
        raise ValueError("limit")
    if not isinstance(values["rowwise"], bool):
        raise ValueError("rowwise")
    return Description(
        release=values["release"],
        net=bytes.fromhex(values["net"]).hex(),
        session=bytes.fromhex(values["session"]).hex(),
        shape=shape,
        result=result,
        limit=limit,
        scale=_whole(values["scale"], 0, 62),
        bits=_whole(values["bits"], 1, 64),
        result_scale=_whole(values["result_scale"], 0, 62),
        result_bits=_whole(values["result_bits"], 1, 64),
        parties=_whole(values["parties"], 1, MOST_PARTIES),
        most=_whole(values["most"], 1, 1 << 20),
        rowwise=values["rowwise"],
    )


def _whole(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"the number {str(value)[:20]}")
    return value
