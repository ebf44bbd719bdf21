"""Lanes: a party with several GPUs runs a process for each, and lane g of all parties is a session of its own.

Party = RANK // lanes, lane = RANK % lanes. Images are independent, so lanes share no secrets of the protocol: lane g of
each party connects only to lane g of the others, with its own seeds and material. Lane 0 of a party is also connected
with the party's other lanes, on this host and on others, and gathers their results.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from dataclasses import field as dataclass_field
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hummingbird import records
from hummingbird.channel import meter as metering
from hummingbird.channel.channel import Channel, named
from hummingbird.channel.meter import Meter, MeterRow
from hummingbird.errors import ConfigError, EnvironmentProblem, InputError, PeerError
from hummingbird.mpc.session.meeting import call_store
from hummingbird.records import field
from hummingbird.rpc.signals import check

VARIABLE = "HUMMINGBIRD_LANES"
_T = TypeVar("_T")


class LanePosition(NamedTuple):
    """The position of this process in the run: its party among `parties`, and its lane among `lanes`.

    near: how many lanes of a party are on each of its hosts; 0: all of them.
    """

    party: int
    parties: int
    lane: int
    lanes: int
    near: int = 0

    @property
    def first(self) -> int:
        """The first lane of this party on this host, which takes connections for all lanes here."""
        return self.lane - self.lane % (self.near or self.lanes)

    @property
    def here(self) -> range:
        """The lanes of this party on this host."""
        return range(self.first, self.first + (self.near or self.lanes))

    @property
    def spread(self) -> bool:
        """Whether the lanes of this party are on several hosts."""
        return 0 < self.near < self.lanes

    @property
    def rank(self) -> int:
        """The rank of this process under torchrun, among the processes of all parties."""
        return self.party * self.lanes + self.lane

    @property
    def world(self) -> int:
        """Number of processes of all parties."""
        return self.parties * self.lanes

    @property
    def name(self) -> str:
        """The name of this process in errors."""
        return self.name_of(self.rank)

    def name_of(self, rank: int) -> str:
        """Return the name, in errors, of the process with this rank under torchrun."""
        return named(rank // self.lanes, rank % self.lanes if self.lanes > 1 else None)


def environment(lanes: int | None = None) -> LanePosition:
    """Return this process's position in the run, from torchrun's variables; without them that of a single party.

    lanes: processes of a party; None: HUMMINGBIRD_LANES, else 1.
    Raises ConfigError if lanes is not positive or does not divide WORLD_SIZE. Raises EnvironmentProblem for variables
    that are no numbers, for a RANK that is not below WORLD_SIZE, and for a host with parts of several parties.
    """
    count = lanes_of(lanes)
    rank = variable("RANK", 0)
    world = variable("WORLD_SIZE", None if "RANK" in os.environ else 1)
    if not 0 <= rank < world:
        raise EnvironmentProblem(f"RANK={rank} is not below WORLD_SIZE={world}")
    if world % count:
        raise ConfigError(
            f"WORLD_SIZE={world} is no multiple of lanes={count}",
            where="lanes",
            hint=f"start parties x lanes processes: {2 * count} for two parties",
        )
    local = variable("LOCAL_WORLD_SIZE", world)
    if local < 1 or (local % count and count % local):
        raise EnvironmentProblem(
            f"LOCAL_WORLD_SIZE={local} is neither a multiple of lanes={count} nor a divisor",
            where="lanes",
            hint="a host has all lanes of its parties, or the lanes of a party are on several hosts, with equally many "
            "on each: --lanes of `run`, or --nproc_per_node of torchrun",
        )
    return LanePosition(rank // count, world // count, rank % count, count, local if local < count else 0)


def lanes_of(lanes: Any = None) -> int:
    """Return how many lanes a party has: `lanes`, or if that is None the variable HUMMINGBIRD_LANES, else 1.

    Raises ConfigError unless the number is a positive integer.
    """
    where, value = "lanes", lanes
    if lanes is None:
        where, value = VARIABLE, os.environ.get(VARIABLE, "1")
        value = int(value) if value.isdecimal() else value
    if type(value) is not int or value < 1:
        hint = "processes of each party, one for each of its GPUs: a whole number from 1"
        raise ConfigError(f"lanes={value!r}", where=where, hint=hint)
    return value


def variable(name: str, default: int | None) -> int:
    """Read a number from torchrun's variable of this name.

    Raises EnvironmentProblem if the value is no number, or if there is neither a value nor a default.
    """
    try:
        return int(os.environ.get(name, "" if default is None else str(default)))
    except ValueError:
        raise EnvironmentProblem(
            f"{name} is {os.environ.get(name, 'not set')}, and not a number",
            hint="start the parties with `python -m hummingbird run`, or with torchrun",
        ) from None


@dataclass(frozen=True)
class LaneLinks:
    """This lane's connections with the other lanes of its party.

    channel: between lane 0 and each other lane; its ranks are lanes. store: has counts, and short texts that are no
    secrets; lane 0 serves it at `port`. numbers: of tallies, which all lanes make in the same order.
    """

    channel: Channel
    store: dist.Store
    port: int
    numbers: Iterator[int] = dataclass_field(default_factory=itertools.count)


# Work of the lanes of a party -----------------------------------------------------------------------------------------
#
# Images are divided among the lanes, and lane 0 gathers the results. Only lanes of one party communicate here. Their
# store counts the work that each lane has done. A lane that waits for a slower one polls the store, since slices may
# take longer than the channel's timeout. Tensors travel over the channel, after all lanes have arrived.

PATIENCE = 3600.0  # seconds that slower lanes may take without progress: more than a slice takes
_POLL = 0.02  # seconds between two polls of the counts
_LOOK = 0.5  # seconds between two checks for a failure
_DIMENSIONS = 8  # most dimensions of a tensor
_DTYPES = tuple(
    getattr(torch, name) for name in "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split()
)


def part(place: LanePosition, count: int) -> slice:
    """Choose the images of a request that this lane computes; return their indices as a Python slice.

    place: this lane.
    count: the number of images of all lanes. Each lane takes a part, in the order of lanes. If parts differ in size,
        the first ones have one image more.
    Raises InputError unless `count` is an integer >= 0.
    """
    if type(count) is not int or count < 0:
        raise InputError(
            f"{count!r} images", where="part", hint="the number of images of all lanes, such as len(images)"
        )
    size, more = divmod(count, place.lanes)
    start = place.lane * size + min(place.lane, more)
    return slice(start, start + size + (place.lane < more))


class Tally:
    """Counts the work that each lane of a party has done. All lanes create their tallies in the same order.

    place: this lane.
    goals: the amount of work that each lane is to do, such as its number of images.
    failure: returns why a lane of any party has failed, the first one that did; None if none is known to have failed.
    links: between the lanes of this party; None for a party with one lane.
    """

    def __init__(
        self,
        place: LanePosition,
        goals: Sequence[int],
        failure: Callable[[], str | None],
        links: LaneLinks | None = None,
    ) -> None:
        self._place, self._goals, self._failure, self._links = place, goals, failure, links
        self._store: dist.Store = dist.HashStore()
        if links is not None:
            self._store = dist.PrefixStore(f"tally/{next(links.numbers)}", links.store)

    def add(self, number: int) -> int:
        """Count `number` units of work of this lane, and return the sum over all lanes."""
        return sum(self._counts(number))

    def wait(self, told: Callable[[int], object] = lambda done: None, patience: float | None = None) -> None:
        """Wait until every lane has done as much work as its goal.

        told: called at every poll with the work done so far, summed over all lanes. patience: seconds without progress;
        None: `PATIENCE`.
        Raises PeerError if a lane of any party has failed, or after so many seconds without progress.
        """
        patience = PATIENCE if patience is None else patience
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
            if now - since > patience:
                raise PeerError(
                    f"{waits} did nothing for {patience:g} s",
                    where=self._place.name,
                    hint="a lane may take that long for a slice of images: give smaller ones",
                )
            if now - looked > _LOOK:
                if why := self._failure() or _left(self._place, self._links):
                    what = f"{waits} did not come to the end, after a failure: {why}"
                    raise PeerError(what, where=self._place.name, hint="its own output says why")
                looked = now
            check()
            time.sleep(_POLL)

    def _counts(self, number: int = 0) -> list[int]:
        def counted() -> list[int]:
            mine = self._place.lane
            return [self._store.add(str(lane), number if lane == mine else 0) for lane in range(len(self._goals))]

        return _asked(self._place, self._links, counted)


@dataclass(frozen=True)
class Gathering:
    """Collective operations among the lanes of one party. Every lane calls each method, in the same order.

    place: this lane.
    failure: returns why a lane of any party has failed, the first one that did; None if none is known to have failed.
    links: to the other lanes of this party; None for a party with one lane.
    """

    place: LanePosition
    failure: Callable[[], str | None]
    links: LaneLinks | None = None

    def tally(self, goals: Sequence[int]) -> Tally:
        """Make a new `Tally`, which counts the work that each lane does. goals: the work of each lane, by lane."""
        self._check()
        return Tally(self.place, goals, self.failure, self.links)

    def _check(self) -> None:
        """Raise PeerError if the session has ended: with the links gone, this lane would gather from itself alone."""
        if self.place.lanes > 1 and self.links is None:
            what = "the session has ended"
            raise PeerError(
                what, where=self.place.name, hint="gather before hummingbird.uninit(), or call init() again"
            )

    def arrive(self, patience: float | None = None) -> None:
        """Wait until all lanes of this party have called this method. patience: seconds; None: `PATIENCE`.

        Raises PeerError if a lane of any party has failed, or after so many seconds without progress.
        """
        here = self.tally([1] * self.place.lanes)
        here.add(1)
        here.wait(patience=patience)

    def told(self, what: str, text: str = "") -> str:
        """Return lane 0's text at every lane of this party. It goes through the lanes' store, which others may read.

        what: a name for the text, used once in a session.
        text: lane 0's text; ignored at other lanes.
        Raises PeerError if a lane of any party has failed, or if lane 0 gives no text within `PATIENCE` seconds.
        """
        self._check()
        since = looked = time.monotonic()
        store = dist.PrefixStore("told", self.links.store if self.links else dist.HashStore())
        if self.place.lane == 0:
            _asked(self.place, self.links, lambda: store.set(what, text))
        while not _asked(self.place, self.links, lambda: store.check([what])):
            now = time.monotonic()
            why = self.failure() or _left(self.place, self.links) if now - looked > _LOOK else None
            if why or now - since > PATIENCE:
                ended = f"lane 0 of this party did not tell its {what}"
                ended += f", after a failure: {why}" if why else f" within {PATIENCE:g} s"
                raise PeerError(ended, where=self.place.name, hint="its own output says why")
            looked = now if now - looked > _LOOK else looked
            check()
            time.sleep(_POLL)
        return _asked(self.place, self.links, lambda: store.get(what)).decode()

    def tensors(self, tensor: Tensor) -> list[Tensor]:
        """Gather the tensors of all lanes at lane 0; other lanes get an empty list. Waits for the slowest lane.

        tensor: this lane's, of 1 to 8 dimensions. Lane 0 gets all of them on the device of its own tensor.
        Raises InputError for anything else than such a tensor, and PeerError if a lane is lost.
        """
        if not isinstance(tensor, Tensor) or tensor.dtype not in _DTYPES or not 1 <= tensor.dim() <= _DIMENSIONS:
            got = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise InputError(f"cannot gather {got}", where="gather", hint="a tensor of numbers, of 1 to 8 dimensions")
        self._check()
        if self.links is None:
            return [tensor]
        self.arrive()
        channel, mine, out = self.links.channel, tensor.detach().cpu(), [tensor.detach()]
        head = torch.zeros(2 + _DIMENSIONS, dtype=torch.int64)
        with metering.uncounted():  # nothing that parties send each other
            if self.place.lane > 0:
                head[: 2 + mine.dim()] = torch.tensor([_DTYPES.index(mine.dtype), mine.dim(), *mine.shape])
                channel.send(0, head)
                channel.send(0, mine)
                return []
            for lane in range(1, self.place.lanes):
                kind, dimensions, *shape = channel.receive(lane, [head])[0].tolist()
                out += channel.receive(lane, [torch.empty(shape[:dimensions], dtype=_DTYPES[kind])])
        return [found.to(tensor.device) for found in out]

    def rows(self, rows: Tensor) -> Tensor | None:
        """Gather the rows of all lanes of this party at lane 0, as one tensor; other lanes get None.

        The rows are in the order of lanes.
        rows: (N, ...), for N images of this lane; a lane without images passes a tensor without elements.
        Raises InputError for rows that do not fit together, and PeerError if a lane is lost.
        """
        found = [part for part in self.tensors(rows) if part.numel()]
        if self.place.lane > 0:
            return None
        if any((other.dtype, other.shape[1:]) != (found[0].dtype, found[0].shape[1:]) for other in found):
            shapes = ", ".join(f"{other.dtype} {tuple(other.shape)}" for other in found)
            raise InputError(f"the lanes have rows that do not fit together: {shapes}", where="gather")
        return torch.cat(found) if found else rows

    def meter(self, meter: Meter) -> Meter | None:
        """Merge the meters of all lanes of this party: lane 0 gets the merged meter, other lanes get None.

        Counts are sums over the lanes, seconds are those of the slowest lane (`Meter.over_lanes`).
        meter: this lane's.
        """
        if self.place.lanes == 1:
            return meter
        text = records.write(LaneMeter(meter.seconds, tuple(meter.rows.values())))
        told = self.tensors(torch.tensor(list(text.encode()), dtype=torch.uint8))
        meters = [records.read(bytes(words.tolist()), LaneMeter, name="meter", most=1 << 30) for words in told]
        made = [Meter({row.layer: row for row in each.rows}, each.seconds) for each in meters]
        return Meter.over_lanes(made) if made else None


@dataclass(frozen=True)
class LaneMeter:
    """A lane's meter as a record, which the lane sends to lane 0: its seconds, and its rows, one for each layer."""

    seconds: float = field(records.real())
    rows: tuple[MeterRow, ...] = field(
        records.many(records.through(records.anything(), lambda row: MeterRow(**row), asdict), 1 << 20)
    )


def _left(place: LanePosition, links: LaneLinks | None) -> str:
    """Return a sentence if lane 0 has closed its connection to this lane, which it does last or after a failure."""
    return links.channel.loss() if links is not None and place.lane else ""


def _asked(place: LanePosition, links: LaneLinks | None, question: Callable[[], _T]) -> _T:
    """Make calls of the lanes' store, and return their result.

    With several lanes another thread makes them: torch waits without end for an answer if lane 0's host is suspended.
    Raises PeerError if lane 0 has ended, or does not answer within the channel's timeout.
    """
    if links is None:
        return question()
    try:
        return call_store(time.monotonic() + links.channel.timeout, question, port=links.port)
    except (RuntimeError, TimeoutError) as error:
        raise _lost(place, error) from None


def _lost(place: LanePosition, error: Exception) -> PeerError:
    reason = str(error).partition("\n")[0][:200]
    return PeerError(f"another lane of this party is lost: {reason}", where=place.name, hint="see that lane's message")
