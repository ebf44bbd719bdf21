"""Requests for correlated randomness, and how every party gets its share of it from a seed.

A request is two lists of named fields and one function. The *free* fields are uniform: party i expands its own share of
them from its own 128-bit seed. The *derived* fields are a function of the free ones: all parties but one expand their
shares of those as well, and only that one, the request's receiver, needs a message, the correction

    derived - (sum or xor of the other parties' shares),

which is uniform from its point of view, and from that of any parties together that are not all. So a request costs its
receiver the bits of the derived fields and everyone else nothing. The receivers take turns (receiver_rotation.py). The
dealer holds all seeds, and sees no input; it must not collude with any party (Beaver 1995; "corrections to one party",
there always the same one, is the layout of CrypTen's trusted third party, Knott et al. 2021, section 3).

Fields that kernels draw or unpack by themselves are left to them (`Field.left`).

Every request has a turn of its own. Its seed is derive(party seed, receiver, number, kind), so no two requests share a
bit of randomness.
"""

from __future__ import annotations

import dataclasses
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from hummingbird.errors import DealerError, HummingbirdError
from hummingbird.kernels.shares.words import Words, plain
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.parameters import LIMIT, faults
from hummingbird.prg import Stream, derive, expands_on_devices

Shares = TypeVar("Shares", covariant=True)
Draw = Callable[
    [Field, int], list[Words]
]  # the next field's shares: of all parties (0), or of all but the receiver (1)


@dataclass(frozen=True)
class Request(ABC, Generic[Shares]):
    """One piece of correlated randomness; a subclass has its parameters as fields (`parameters`), JSON values only.

    A request that exists is within the limits: making one with other parameters is a DealerError.
    `Shares`: the named tuple of tensors that a party gets (`Session.correlation`).
    """

    kind: ClassVar[str]  # its name on the wire, which registers the class

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            assert cls.kind not in REGISTERED, f"two requests of kind {cls.kind!r}"
            REGISTERED[cls.kind] = cls

    @cached_property
    def free(self) -> Fields:
        """The uniform fields, in the order in which they are drawn."""
        raise NotImplementedError

    @cached_property
    def derived(self) -> Fields:
        """The fields that the free ones decide, in the order in which they are drawn and sent."""
        return {}

    def derive(self, *args: Any, **free: Any) -> dict[str, Tensor]:
        """The derived values by name, from the free values by name: the dealer's work.

        A free field that is `apart` is the list of the parties' shares instead.
        """
        return {}

    def correct(self, draw: Draw) -> list[Tensor]:
        """Compute the corrections (`layout`), the dealer's work, from the parties' shares of the fields: the receiver's
        are the first, the others' follow in any order.
        """
        free: dict[str, Any] = {}
        for name, item in self.free.items():
            shares = [plain(share) for share in draw(item, 0)]
            free[name] = shares if item.apart else item.combine(shares)
        values = self.derive(**free)
        others = ((name, item, [plain(share) for share in draw(item, 1)]) for name, item in self.derived.items())
        return [item.correction(values[name], shares) for name, item, shares in others]

    def correct_at_once(self, draw: Draw) -> list[Tensor]:
        """The same, by a kernel that draws by itself: of a request all of whose fields are left to kernels."""
        raise NotImplementedError

    @abstractmethod
    def shares(self, **tensors: Any) -> Shares:
        """A party's shares of all fields, from tensors by name."""

    def check(self) -> None:
        """Raise ValueError for parameters that do not fit each other, or need more memory than the fields do."""

    def __post_init__(self) -> None:
        malformed = f"malformed request for {self.kind!r}"
        if fault := faults(self):
            raise DealerError(f"{malformed}: {fault}", hint="run smaller batches, if a size is too large")
        try:
            self.check()
            fields = [*self.free.values(), *self.derived.values()]
        except HummingbirdError:  # not the request's: a signal (mpc/session/launch.py) may interrupt anything
            raise
        except Exception as error:  # sizes that no product has
            raise DealerError(f"{malformed}: {str(error)[:200]}") from None
        if any(n < 0 for item in fields for n in item.shape):
            raise DealerError(f"{malformed}: a negative size")
        if max(math.prod(item.shape) for item in fields) > LIMIT:
            raise DealerError(f"a request for {self.kind!r} exceeds {LIMIT} elements", hint="run smaller batches")

    @property
    def params(self) -> dict[str, Any]:
        """The parameters by name."""
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}

    @property
    def parts(self) -> Fields:
        """The fields of which a party gets its share, in order."""
        return {**{name: item for name, item in self.free.items() if not item.earlier}, **self.derived}

    @property
    def correction_bits(self) -> int:
        """Offline bits that the receiver is sent."""
        return sum(item.bits for item in self.derived.values())

    @property
    def share_bytes(self) -> int:
        """Size of the receiver's shares in memory, which no other party's exceed."""
        drawn = sum(item.share_bytes for item in self.free.values() if not item.earlier)
        return drawn + sum(item.received_bytes for item in self.derived.values())

    def to_json(self) -> dict[str, Any]:
        """The request as JSON values, for `registry.from_json`."""
        return {"kind": self.kind, "params": self.params}

    def __str__(self) -> str:
        """Text that is equal for equal requests (a tuple is a list in JSON)."""
        return f"{self.kind} {json.dumps(self.params, sort_keys=True)}"


REGISTERED: dict[str, type[Request[Any]]] = {}  # every class with a kind, in the order in which they were defined


class ReceiverTurn(NamedTuple):
    """A request's place among all: the party that receives its correction, and how many this one has received before.

    No other request of a session, or of a store, has the same: it names the request's randomness.
    """

    receiver: int
    number: int


def _stream(seed: bytes, turn: ReceiverTurn, request: Request[Any], device: torch.device | str = "cpu") -> Stream:
    return Stream(derive(seed, "request", turn.receiver, turn.number, request.kind), device)


def _draw(item: Field, seed: bytes, stream: Stream, rank: int) -> Words:
    """A free field's share: from the request's stream, or from its own if it outlives the request."""
    return item.draw(stream if item.key is None else Stream(derive(seed, "fixed", item.key), stream.device), rank)


def expand(
    request: Request[Any], turn: ReceiverTurn, seed: bytes, rank: int, device: torch.device | str = "cpu"
) -> dict[str, Words]:
    """Party `rank`'s shares of the free fields, and of the derived ones too unless it is the receiver, on `device`."""
    stream = _stream(seed, turn, request, device)
    shares = {name: _draw(item, seed, stream, rank) for name, item in request.free.items() if not item.earlier}
    if rank == turn.receiver:
        return shares
    return {**shares, **{name: item.draw(stream, rank) for name, item in request.derived.items()}}


def layout(request: Request[Any]) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    """Types and shapes of a request's corrections."""
    return [item.layout for item in request.derived.values()]


def received(request: Request[Any], corrections: Sequence[Tensor]) -> dict[str, Words]:
    """The receiver's shares of the derived fields, from the corrections."""
    pairs = zip(request.derived.items(), corrections, strict=True)
    return {name: item.received(correction) for (name, item), correction in pairs}


def corrections(
    request: Request[Any], turn: ReceiverTurn, seeds: Sequence[bytes], device: torch.device | str = "cpu"
) -> list[Tensor]:
    """The dealer's work: what the receiver must be sent (`layout`), from all parties' seeds by rank.

    device: where it is computed, if kernels there can expand the seeds and draw all fields.
    """
    at_once = all(item.left for item in request.parts.values())
    chacha = all(map(expands_on_devices, seeds))
    streams = [_stream(seed, turn, request, device if at_once and chacha else "cpu") for seed in seeds]
    # What a GPU draws, or AES-128 in packed words, has kernels that draw, compute and pack in one pass.
    at_once = at_once and (streams[0].on_device or streams[0].packs)

    parties = [(seed, stream, rank) for rank, (seed, stream) in enumerate(zip(seeds, streams, strict=True))]
    parties.insert(0, parties.pop(turn.receiver))

    def draw(item: Field, least: int) -> list[Words]:
        if at_once:
            return [item.leave(stream) for _, stream, _ in parties[least:]]
        return [_draw(item, seed, stream, rank) for seed, stream, rank in parties[least:]]

    return request.correct_at_once(draw) if at_once else request.correct(draw)
