"""Requests for correlated randomness: limits of their parameters, how shares are expanded from seeds, who receives.

A request has two lists of named fields and a function. The *free* fields are uniform: party i expands its share of them
from its own seed (of 128 bits, or of 256 for ChaCha20). The *derived* fields are a function of the free ones. All
parties but one, the receiver, also expand their shares of the derived fields. Only the receiver needs a message, the
correction

    derived - (sum or xor of the other parties' shares),

which is uniform in the view of the receiver, and of any set of parties but the set of all. So a request costs its
receiver the bits of the derived fields, and the other parties nothing. The receivers rotate (`ReceiverRotation`). The
dealer holds all seeds and sees no input; it must not collude with any party (Beaver 1995; "corrections to one party",
there always the same one, is the layout of CrypTen's trusted third party, Knott et al. 2021, section 3).

A field that a kernel can draw or unpack by itself is left to the kernel (`Field.left`).

No two requests have the same `ReceiverTurn`. A request's seed is derive(party seed, receiver, number, kind), so no two
requests share a random bit.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from hummingbird.channel.staging import Ready
from hummingbird.errors import DealerError, HummingbirdError
from hummingbird.kernels.shares.packing import Words, anchor, plain
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.prg import Stream, derive, expands_on_devices

# Limits of a request's parameters -------------------------------------------------------------------------------------
#
# They are checked before any use, since a request may come from another process.
#
#     @dataclass(frozen=True)
#     class Truncation(Request[...]):
#         count: int = number()
#         shift: int = number(most=62)

LIMIT = 1 << 28  # elements of one request: 2 GiB of masks
DIMENSIONS = 8
_OPTIONS = ("stride", "padding", "output_padding", "dilation", "groups")  # of torch's convolutions


def number(*, least: int = 0, most: int = LIMIT, **default: int) -> Any:
    """Make a dataclass field for an integer parameter of a request, from `least` to `most`.

    default: the parameter's default, if it has one.
    """
    expected = f"a whole number in {least}..{most}"
    return _parameter(lambda value: _natural(value) and least <= value <= most, expected, **default)


def width() -> Any:
    """Make a keyword-only dataclass field for how many low bits of a ring element are used: 1 to 64, 64 by default."""
    return _parameter(
        lambda value: _natural(value) and 1 <= value <= 64, "a whole number in 1..64", default=64, kw_only=True
    )


def shape() -> Any:
    """Make a dataclass field for a tensor's shape: a tuple of at most `DIMENSIONS` sizes, each from 0 to `LIMIT`."""
    return _parameter(
        lambda value: isinstance(value, tuple) and _sizes(value), f"at most {DIMENSIONS} sizes in 0..{LIMIT}"
    )


def one_of(names: Sequence[str]) -> Any:
    """Make a dataclass field for a parameter of a request that must be one of these names."""
    return _parameter(lambda value: isinstance(value, str) and value in names, f"one of {', '.join(names)}")


def text(good: Callable[[str], bool], expected: str) -> Any:
    """Make a dataclass field for a parameter of a request that is a text for which `good` is true.

    expected: describes such texts, for the error.
    """
    return _parameter(lambda value: isinstance(value, str) and good(value), expected)


def options() -> Any:
    """Make a dataclass field for a request's parameter that holds options of torch's convolutions, by name.

    The names are "stride", "padding", "output_padding", "dilation" and "groups"; a value is an integer or a list of
    integers.
    """

    def good(value: Any) -> bool:
        return isinstance(value, dict) and all(key in _OPTIONS and _option(item) for key, item in value.items())

    return _parameter(good, f"options of {', '.join(_OPTIONS)}")


def faults(request: Any) -> str:
    """Return a message about the first parameter of a request that breaks its limit, or "" if all are good.

    request: a dataclass whose fields were made by `number`, `one_of`, `text`, `options`, `shape` and `width`.
    """
    for item in dataclasses.fields(request):
        value = getattr(request, item.name)
        if not item.metadata["good"](value):
            return f"{item.name} {str(value)[:_SHOWN]} is not {item.metadata['expected']}"
    return ""


_SHOWN = 200  # characters of a bad value that an error shows: another process may have sent it


def _parameter(good: Callable[[Any], bool], expected: str, **how: Any) -> Any:
    return dataclasses.field(metadata={"good": good, "expected": expected}, **how)


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LIMIT


def _sizes(values: Sequence[Any]) -> bool:
    return len(values) <= DIMENSIONS and all(_natural(value) for value in values)


def _option(value: Any) -> bool:
    return _sizes(value) if isinstance(value, list) else _natural(value)


# Requests -------------------------------------------------------------------------------------------------------------

Shares = TypeVar("Shares", covariant=True)
Draw = Callable[
    [Field, int], list[Words]
]  # the next field's shares: those of all parties (0), or of all but the receiver (1)


@dataclass(frozen=True)
class Request(ABC, Generic[Shares]):
    """A request to a dealer for one piece of correlated randomness; each subclass is one kind.

    The fields of a subclass are its parameters, JSON values only. The constructor raises DealerError if one is out of
    its limits. `Shares` is the named tuple of tensors that a party gets for the request (`Session.correlation`).
    """

    kind: ClassVar[str]  # the name in messages; a class that sets it is registered

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            assert cls.kind not in REGISTERED, f"two requests of kind {cls.kind!r}"
            REGISTERED[cls.kind] = cls

    @cached_property
    def free(self) -> Fields:
        """The uniform fields of this request, by name, in the order in which they are drawn."""
        raise NotImplementedError

    @cached_property
    def derived(self) -> Fields:
        """The fields, by name, that the dealer computes from the uniform ones, in the order of drawing and sending."""
        return {}

    def derive(self, *args: Any, **free: Any) -> dict[str, Tensor]:
        """Compute the values of the derived fields from the values of the uniform fields; return them by name.

        Only the dealer does this.
        free: the value of each uniform field, by name; for a field with the flag `apart`, the list of the parties'
            shares instead.
        """
        return {}

    def correct(self, draw: Draw) -> list[Tensor]:
        """Compute the request's corrections, one tensor for each derived field (`layout`). Only the dealer does this.

        draw: takes the next field and a number. With 0 it returns the shares of all parties, first the receiver's; with
            1 those of all parties but the receiver.
        """
        free: dict[str, Any] = {}
        for name, item in self.free.items():
            shares = [plain(share) for share in draw(item, 0)]
            free[name] = shares if item.apart else item.combine(shares)
        values = self.derive(**free)
        others = ((name, item, [plain(share) for share in draw(item, 1)]) for name, item in self.derived.items())
        return [item.correction(values[name], shares) for name, item, shares in others]

    def correct_at_once(self, draw: Draw) -> list[Tensor]:
        """Compute the request's corrections, as `correct` does, by one kernel that also draws the shares; return them.

        Only for requests whose fields are all left to kernels (`Field.left`).
        draw: takes the next field and a number. With 0 it returns the shares of all parties, first the receiver's; with
            1 those of all parties but the receiver. These shares are not drawn yet (`Field.leave`).
        """
        raise NotImplementedError

    @abstractmethod
    def shares(self, **tensors: Any) -> Shares:
        """Put a party's shares of all fields, given by name, into the request's named tuple (`Shares`); return it."""

    def check(self) -> None:
        """Raise ValueError if parameters contradict each other, or if computing the fields takes too much memory.

        The constructor calls it. It limits the size of the fields itself, but their computation may take more memory
        than they do.
        """

    def __post_init__(self) -> None:
        malformed = f"malformed request for {self.kind!r}"
        if fault := faults(self):
            raise DealerError(f"{malformed}: {fault}", hint="run smaller batches, if a size is too large")
        try:
            self.check()
            fields = [*self.free.values(), *self.derived.values()]
        except HummingbirdError:  # not the request's fault: a signal (mpc/session/launch.py) may interrupt anything
            raise
        except Exception as error:  # torch's, for sizes that do not fit each other
            raise DealerError(f"{malformed}: {str(error)[:200]}") from None
        if any(n < 0 for item in fields for n in item.shape):
            raise DealerError(f"{malformed}: a negative size")
        if max(math.prod(item.shape) for item in fields) > LIMIT:
            raise DealerError(f"a request for {self.kind!r} exceeds {LIMIT} elements", hint="run smaller batches")

    @property
    def params(self) -> dict[str, Any]:
        """The request's parameters, by name, with their values."""
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}

    @property
    def parts(self) -> Fields:
        """The fields of which a party gets a share by this request, by name: the uniform ones, then the derived ones.

        Masks that the parties have from an earlier request are left out.
        """
        return {**{name: item for name, item in self.free.items() if not item.earlier}, **self.derived}

    @cached_property
    def correction_bits(self) -> int:
        """Size in bits of the corrections that the dealer sends to the receiver for this request, offline."""
        return sum(item.bits for item in self.derived.values())

    @property
    def share_bytes(self) -> int:
        """Bytes that the receiver's shares take in memory. The other parties' shares take no more."""
        drawn = sum(item.share_bytes for item in self.free.values() if not item.earlier)
        return drawn + sum(item.received_bytes for item in self.derived.values())

    def to_json(self) -> dict[str, Any]:
        """Return the request as a dict of JSON values, from which `registry.from_json` makes an equal request."""
        return {"kind": self.kind, "params": self.params}

    def __str__(self) -> str:
        """Return the request as a text: equal requests have equal texts, and others do not.

        A tuple and a list of JSON with the same entries count as equal.
        """
        return f"{self.kind} {json.dumps(self.params, sort_keys=True)}"


Made = TypeVar("Made", bound=Request[Any])


def made(kind: type[Made], *params: Any) -> Made:
    """Return the request `kind(*params)`: the same object for the same parameters, whose limits are checked once.

    Protocols call it for requests that a net makes again and again. params: by position, integers, texts and tuples.
    """
    found: Made = _made(kind, *params)
    return found


@functools.lru_cache(1 << 12, typed=True)
def _made(kind: type[Any], *params: Any) -> Any:
    return kind(*params)


REGISTERED: dict[str, type[Request[Any]]] = {}  # every class with a kind, in the order of definition


# Receiver rotation ----------------------------------------------------------------------------------------------------
#
# The correction of the next request goes to the party that has received the fewest bits so far.
#
# All parties make the same requests in the same order, and so does a dealer that deals in advance. So all of them know
# the receiver without a message. What two parties have received differs by at most the bits of the largest request: the
# receiver had the fewest bits, and gets those of one request.


class ReceiverTurn(NamedTuple):
    """Position of a request in the receiver rotation, and the conversation whose masks it refers to.

    receiver: the party that receives the request's correction.
    number: how many earlier requests had the same receiver.
    conversation: number of the conversation that makes the request, from 1 on; 0 outside of conversations. It selects
        the masks that belong to a conversation (`Field.conversation`).
    No two requests of a session, or of a store, have the same receiver and number. So these two select the request's
    random numbers.
    """

    receiver: int
    number: int
    conversation: int = 0


class ReceiverRotation:
    """The rule that says which party receives each request's correction, in a run of `parties` parties.

    It is the party that has received the fewest bits so far, counted from the run's first request on. Not thread-safe.
    """

    def __init__(self, parties: int) -> None:
        self._sent, self._served = [0] * parties, [0] * parties

    def take(self, requests: Sequence[Request[Any]], conversation: int = 0) -> list[ReceiverTurn]:
        """Return the receiver turns of the next requests, in order, and count these requests.

        A turn says which party receives the request's correction, and how many corrections that party received before.
        conversation: the number of the conversation that makes these requests; 0 for none.
        """
        return [self._next(request, conversation) for request in requests]

    def _next(self, request: Request[Any], conversation: int) -> ReceiverTurn:
        receiver = self._sent.index(min(self._sent))
        turn = ReceiverTurn(receiver, self._served[receiver], conversation)
        self._sent[receiver] += request.correction_bits
        self._served[receiver] += 1
        return turn


def received_by(rank: int, parties: int, requests: Sequence[Request[Any]]) -> list[Request[Any]]:
    """Choose the requests of a run whose corrections go to party `rank`; return them in order.

    parties: how many there are.
    requests: all requests of the run, from the first one on, since the receiver depends on all earlier ones.
    """
    turns = ReceiverRotation(parties).take(requests)
    return [request for request, turn in zip(requests, turns, strict=True) if turn.receiver == rank]


# Shares and corrections -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Material:
    """This party's shares for one request, and their cost.

    shares: by the name of the field.
    offline_bits: size of the corrections that the dealer made, without framing.
    received_bits: the size of these corrections if this party received them, else 0.
    waiting_seconds: how long this party waited for the shares.
    expanding_seconds: time spent on expanding this party's seed, in the background if shares are made ahead.
    dealer_seconds: the dealer's own work, if the dealer reported it with these shares, else 0.
    ready: the event after which the shares are on the GPU, for `take`; None if they are there already.
    """

    shares: dict[str, Words]
    offline_bits: int = 0
    received_bits: int = 0
    waiting_seconds: float = 0.0
    expanding_seconds: float = 0.0
    dealer_seconds: float = 0.0
    ready: Ready | None = None

    def take(self) -> None:
        """Make the GPU wait for these shares before it runs kernels that this thread starts from now on."""
        if self.ready is not None:
            self.ready.take([anchor(words) for words in self.shares.values()])


def _stream(seed: bytes, turn: ReceiverTurn, request: Request[Any], device: torch.device | str = "cpu") -> Stream:
    return Stream(derive(seed, "request", turn.receiver, turn.number, request.kind), device)


def _draw(item: Field, seed: bytes, stream: Stream, rank: int, conversation: int) -> Words:
    """Draw party `rank`'s share of a uniform field from the request's stream, and return it.

    A field with a key is drawn from another stream, which follows from the party's seed, the key and, if the mask
    belongs to a conversation, the conversation. So all requests with this key get equal shares. A smaller field gets
    the first elements of a larger one with this key, if an element has the same size in both.
    item: the field.
    seed: the party's.
    stream: the party's random stream of this request.
    conversation: the number of the conversation that makes the request; 0 for none.
    """
    if item.key is None:
        return item.draw(stream, rank)
    labels = ("conversation", conversation) if item.conversation else ("fixed",)
    return item.draw(Stream(derive(seed, *labels, item.key), stream.device), rank)


def expand(
    request: Request[Any], turn: ReceiverTurn, seed: bytes, rank: int, device: torch.device | str = "cpu"
) -> dict[str, Words]:
    """Draw party `rank`'s shares for a request from its seed; return them by the name of the field.

    They are the shares of the uniform fields and, unless the party is the receiver, of the derived fields.
    turn: says which party is the receiver, and selects the random numbers.
    seed: the party's.
    device: where the shares are made.
    """
    stream = _stream(seed, turn, request, device)
    free = ((name, item) for name, item in request.free.items() if not item.earlier)
    shares = {name: _draw(item, seed, stream, rank, turn.conversation) for name, item in free}
    if rank == turn.receiver:
        return shares
    return {**shares, **{name: item.draw(stream, rank) for name, item in request.derived.items()}}


def layout(request: Request[Any]) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    """Return the torch type and the shape of each correction of a request, in the order in which they are sent."""
    return [item.layout for item in request.derived.values()]


def received(request: Request[Any], corrections: Sequence[Tensor]) -> dict[str, Words]:
    """Turn the corrections of a request into the receiver's shares; return them by the name of the field.

    corrections: one tensor for each derived field of the request, in the form in which it was sent.
    """
    pairs = zip(request.derived.items(), corrections, strict=True)
    return {name: item.received(correction) for (name, item), correction in pairs}


def corrections(
    request: Request[Any], turn: ReceiverTurn, seeds: Sequence[bytes], device: torch.device | str = "cpu"
) -> list[Tensor]:
    """Compute the corrections that the dealer sends to the receiver of a request; return them in the order of sending.

    There is one tensor for each derived field, which the dealer computes from the request's uniform fields.
    turn: says which party is the receiver, and selects the random numbers.
    seeds: of all parties, by rank.
    device: where the corrections are computed, if kernels there can expand the seeds and draw all fields; else the CPU.
    """
    at_once = all(item.left for item in request.parts.values())
    chacha = all(map(expands_on_devices, seeds))
    streams = [_stream(seed, turn, request, device if at_once and chacha else "cpu") for seed in seeds]
    # Streams on a GPU, and AES-128 streams in packed words, have kernels that draw, compute and pack in one pass.
    at_once = at_once and (streams[0].on_device or streams[0].packs)

    parties = [(seed, stream, rank) for rank, (seed, stream) in enumerate(zip(seeds, streams, strict=True))]
    parties.insert(0, parties.pop(turn.receiver))

    def draw(item: Field, least: int) -> list[Words]:
        if at_once:
            return [item.leave(stream) for _, stream, _ in parties[least:]]
        return [_draw(item, seed, stream, rank, turn.conversation) for seed, stream, rank in parties[least:]]

    return request.correct_at_once(draw) if at_once else request.correct(draw)
