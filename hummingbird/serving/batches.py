"""Batches of several clients' requests through the private net, two slices in turns (three on a GPU).

Whoever has computed a slice asks at once for more, so that under load the opening of one slice is on the wire while
another one computes, across batches as within one. A batch at most half full runs alone: nothing else was waiting. The
order of all messages follows from party 0's lists alone (channel/interleave.py), so it is the same at every party.

The dealer works ahead: on the material of one image while there is nothing to do, so that a lone request does not wait
for it, and on that of one more full slice whenever one begins, so that under load a computation seldom waits for it
with its turn; where either is small enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hummingbird.channel import interleave
from hummingbird.crypten.adapter import MPCTensor, from_share, share_of
from hummingbird.mpc.plan import microbatch
from hummingbird.mpc.plan.net import PrivateNet, Work
from hummingbird.mpc.session.session import Session, Supply
from hummingbird.ring import SCALE

_AHEAD_BYTES = 64 << 20  # of one image, and of one slice: half of what a party holds of material that is not used yet


@dataclass(eq=False, repr=False)
class _Batch:
    """Requests that are computed together; counts: images of each. Slices, their rows that are no client's, and their
    results so far.
    """

    ids: Sequence[bytes]
    counts: Sequence[int]
    works: list[Work]
    padding: int
    outputs: dict[int, MPCTensor] = field(default_factory=dict)


class Batches:
    """The batches of one party; every party makes the same calls in the same order.

    poll: asks for more without waiting, and may call `add`. done: called with ids, images of each, rows of slices that
    were no client's, and this party's share of the results (images, ...), int64, of a batch that is computed.
    """

    def __init__(
        self,
        private: PrivateNet,
        session: Session,
        poll: Callable[[], object],
        done: Callable[[Sequence[bytes], Sequence[int], int, Tensor], None],
    ) -> None:
        self._private, self._session, self._poll, self._done = private, session, poll, done
        self._queue: deque[tuple[_Batch, int]] = deque()  # slices that are to be run: a batch, and which of its slices
        self._at_work = 0
        self._ahead: dict[tuple[int, ...], Supply] = {}  # of one slice, by its shape
        self._image: tuple[int, ...] | None = None  # the shape of one

    def add(self, ids: Sequence[bytes], shares: Sequence[Tensor]) -> None:
        """One batch, of requests' shares int64 (images, ...); its material is made from now on."""
        x = from_share(torch.cat(list(shares)).to(self._session.device), SCALE)
        works = self._private.begin(x, ahead=self._ahead)
        padding = sum(work.part.shape[0] - work.part.images for work in works)
        batch = _Batch(ids, [len(share) for share in shares], works, padding)
        self._queue.extend((batch, number) for number in range(len(works)))
        self._image = works[0].part.shape[1:]
        if len(x) == self._private.images_per_slice:
            self._make_ahead(len(x))

    def run(self) -> None:
        """Run what was added, and what polls add meanwhile; raises what a run of the net does."""
        if self._queue:
            self._at_work = microbatch.in_flight(self._session.device) if self._full else 1
            interleave.Interleave().run([self._work] * self._at_work)

    @property
    def _full(self) -> bool:
        """Whether more requests are likely to wait than were added."""
        slices, most = [batch.works[number].part for batch, number in self._queue], self._private.images_per_slice
        return len(slices) > 1 or most is None or 2 * slices[0].images > most

    def provide(self) -> None:
        """Have one image's material made ahead: there is nothing to do."""
        self._make_ahead(1)

    def _make_ahead(self, images: int) -> None:
        """Have the material of a slice made ahead, unless it is there or comes from a store."""
        if self._image is not None and self._session.dealer.slice_shape is None:
            shape = (images, *self._image)
            material = None if shape in self._ahead else self._private.material(shape, _AHEAD_BYTES)
            if material is not None:
                self._ahead[shape] = material

    def _work(self) -> None:
        """Run slices until there are none, or no other computation is left to take turns with."""
        while True:
            if not self._queue:
                self._poll()
            if not self._queue:
                break
            batch, number = self._queue.popleft()
            batch.outputs[number] = self._private.run(batch.works[number])
            if len(batch.outputs) == len(batch.works):
                self._finish(batch)
            if self._at_work == 1:
                break
        self._at_work -= 1

    def _finish(self, batch: _Batch) -> None:
        outputs = [batch.outputs[number] for number in range(len(batch.works))]
        out = microbatch.join(outputs, [work.part for work in batch.works])
        self._done(batch.ids, batch.counts, batch.padding, share_of(out).cpu())
