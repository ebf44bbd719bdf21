"""Images over the lanes of a party: each lane takes a part of them, and lane 0 gathers what comes out.

Only the lanes of one party talk here. What each has done is counted in the store of their process group: a lane that
waits for a slower one looks there again and again, for a wait inside Gloo hears no signal. Tensors go over the group
itself, once all lanes have come.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from hummingbird import records
from hummingbird.channel.meter import Meter, MeterRow
from hummingbird.errors import InputError, PeerError
from hummingbird.mpc.session.lanes import LanePosition
from hummingbird.records import field
from hummingbird.rpc.signals import check

PATIENCE = 3600.0  # seconds for which the slower lanes may do nothing that is counted: more than a slice takes
_POLL = 0.02  # seconds between two looks at the counts
_LOOK = 0.5  # seconds between two looks for a failure
_DIMENSIONS = 8  # of a tensor, at most
_DTYPES = tuple(
    getattr(torch, name) for name in "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split()
)
_numbers = itertools.count()  # of tallies; the same at all lanes, which make them in the same order


def part(place: LanePosition, count: int) -> slice:
    """The images of this lane, of `count`: parts in the order of lanes, the first ones larger by one where they differ.

    InputError unless `count` is a whole number from 0.
    """
    if type(count) is not int or count < 0:
        raise InputError(
            f"{count!r} images", where="part", hint="the number of images of all lanes, such as len(images)"
        )
    size, more = divmod(count, place.lanes)
    start = place.lane * size + min(place.lane, more)
    return slice(start, start + size + (place.lane < more))


class Tally:
    """How much each lane of a party has done, of what it is to do; made at all of them in the same order.

    goals: by lane, such as the number of its images. failure: see `Gathering`.
    """

    def __init__(self, place: LanePosition, goals: Sequence[int], failure: Callable[[], str | None]) -> None:
        self._place, self._goals, self._failure = place, goals, failure
        store = dist.HashStore() if place.lanes == 1 else dist.distributed_c10d._get_default_store()
        self._store = dist.PrefixStore(f"tally/{next(_numbers)}", store)

    def add(self, number: int) -> int:
        """Count what this lane has done, and return the sum over all lanes."""
        return sum(self._counts(number))

    def wait(self, told: Callable[[int], object] = lambda done: None) -> None:
        """Return when every lane has done all of its part; PeerError if a lane of any party has failed, or if nothing
        is done for `PATIENCE` seconds.

        told: called with the sum over all lanes, whenever this looks.
        """
        before, since, looked = -1, time.monotonic(), time.monotonic()
        while True:
            counts = self._counts()
            done = sum(counts)
            told(done)
            behind = [lane for lane, goal in enumerate(self._goals) if counts[lane] < goal]
            if not behind:
                return
            now = time.monotonic()
            if done != before:
                before, since = done, now
            waits = f"lane {' and '.join(map(str, behind))} of this party"
            if now - since > PATIENCE:
                raise PeerError(
                    f"{waits} did nothing for {PATIENCE:g} s",
                    where=self._place.name,
                    hint="a lane may take that long for a slice of images: give smaller ones",
                )
            if now - looked > _LOOK:
                if why := self._failure():
                    what = f"{waits} did not come to the end, after a failure: {why}"
                    raise PeerError(what, where=self._place.name, hint="its own output says why")
                looked = now
            check()
            time.sleep(_POLL)

    def _counts(self, number: int = 0) -> list[int]:
        mine = self._place.lane
        try:
            return [self._store.add(str(lane), number if lane == mine else 0) for lane in range(len(self._goals))]
        except RuntimeError as error:
            raise _lost(self._place, error) from None


@dataclass(frozen=True)
class Gathering:
    """The lanes of a party, as one of them sees them: each method is called by all of them, in the same order.

    failure: asks for the reason of the first lane that has failed, of any party; None if none is known to have.
    """

    place: LanePosition
    failure: Callable[[], str | None]

    def tally(self, goals: Sequence[int]) -> Tally:
        """A count of what each lane has done, of its goal."""
        return Tally(self.place, goals, self.failure)

    def arrive(self) -> None:
        """Wait until all lanes of this party are here. PeerError as `Tally.wait`."""
        here = self.tally([1] * self.place.lanes)
        here.add(1)
        here.wait()

    def told(self, what: str, text: str = "") -> str:
        """Lane 0's text, at every lane of this party; the others give none, and wait for it. what: a name for it, once
        in a session. The text passes through torchrun's store, which others may read. PeerError as `Tally.wait`.
        """
        since = looked = time.monotonic()
        try:
            store = dist.PrefixStore("told", dist.distributed_c10d._get_default_store())
            if self.place.lane == 0:
                store.set(what, text)
            while not store.check([what]):
                now = time.monotonic()
                why = self.failure() if now - looked > _LOOK else None
                if why or now - since > PATIENCE:
                    ended = f"lane 0 of this party did not tell its {what}"
                    ended += f", after a failure: {why}" if why else f" within {PATIENCE:g} s"
                    raise PeerError(ended, where=self.place.name, hint="its own output says why")
                looked = now if now - looked > _LOOK else looked
                check()
                time.sleep(_POLL)
            return store.get(what).decode()
        except RuntimeError as error:
            raise _lost(self.place, error) from None

    def tensors(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all lanes, by lane, at lane 0; none at the others, and only its own with one lane.

        tensor: of 1 to 8 dimensions; the others' come on its device. Waits for the slowest lane. Raises InputError for
        what is no such tensor, PeerError when a lane is lost.
        """
        if not isinstance(tensor, Tensor) or tensor.dtype not in _DTYPES or not 1 <= tensor.dim() <= _DIMENSIONS:
            got = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise InputError(f"cannot gather {got}", where="gather", hint="a tensor of numbers, of 1 to 8 dimensions")
        if self.place.lanes == 1:
            return [tensor]
        self.arrive()
        mine = tensor.detach().cpu().contiguous()
        head = torch.zeros(2 + _DIMENSIONS, dtype=torch.int64)
        head[: 2 + mine.dim()] = torch.tensor([_DTYPES.index(mine.dtype), mine.dim(), *mine.shape])
        heads = [torch.zeros_like(head) for _ in range(self.place.lanes)]
        out = [tensor.detach()]
        try:
            dist.all_gather(heads, head)
            if self.place.lane > 0:
                if mine.numel():
                    dist.send(mine, dst=0)
                return []
            for lane, (kind, dimensions, *shape) in enumerate(word.tolist() for word in heads):
                if lane:
                    out.append(torch.empty(shape[:dimensions], dtype=_DTYPES[kind]))
                    if out[lane].numel():
                        dist.recv(out[lane], src=lane)
        except RuntimeError as error:
            raise _lost(self.place, error) from None
        return [found.to(tensor.device) for found in out]

    def rows(self, rows: Tensor) -> Tensor | None:
        """The rows of all lanes, in the order of lanes, at lane 0; None at the others. See `tensors`.

        rows: (N, ...), N images of this lane; a lane without images gives a tensor of no elements.
        """
        found = [part for part in self.tensors(rows) if part.numel()]
        if self.place.lane > 0:
            return None
        if any((other.dtype, other.shape[1:]) != (found[0].dtype, found[0].shape[1:]) for other in found):
            shapes = ", ".join(f"{other.dtype} {tuple(other.shape)}" for other in found)
            raise InputError(f"the lanes have rows that do not fit together: {shapes}", where="gather")
        return torch.cat(found) if found else rows

    def meter(self, meter: Meter) -> Meter | None:
        """One meter for all lanes at lane 0, as `Meter.over_lanes` says; None at the others."""
        if self.place.lanes == 1:
            return meter
        text = records.write(LaneMeter(meter.seconds, tuple(meter.rows.values())))
        told = self.tensors(torch.tensor(list(text.encode()), dtype=torch.uint8))
        meters = [records.read(bytes(words.tolist()), LaneMeter, name="meter", most=1 << 30) for words in told]
        made = [Meter({row.layer: row for row in each.rows}, each.seconds) for each in meters]
        return Meter.over_lanes(made) if made else None


@dataclass(frozen=True)
class LaneMeter:
    """A lane's meter as it is sent to lane 0."""

    seconds: float = field(records.real())
    rows: tuple[MeterRow, ...] = field(
        records.many(records.through(records.anything(), lambda row: MeterRow(**row), asdict), 1 << 20)
    )


def _lost(place: LanePosition, error: RuntimeError) -> PeerError:
    reason = str(error).partition("\n")[0][:200]
    return PeerError(f"another lane of this party is lost: {reason}", where=place.name, hint="see that lane's message")
