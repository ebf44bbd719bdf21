"""Both sides of a net in one process, with the messages of two processes: for trials, tests and measurements."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import Counter
from pathlib import Path
from typing import Generic

import torch
from torch import Tensor

from hummingbird.hybrid import messages, report
from hummingbird.hybrid.data_side import DataSide
from hummingbird.hybrid.message_stream import MessageStream, both
from hummingbird.hybrid.model_side import ModelSide
from hummingbird.hybrid.plan import Model
from hummingbird.hybrid.session import set_up_data, set_up_model
from hummingbird.structure import Result
from hummingbird.table import Report


class HybridNet(Generic[Result]):
    """A converted net with both sides in this process: `net(images)` computes logits, and uses one slot for each image.

    `prepare(n)` deals slots in advance; missing ones are dealt when they are needed. digest: the digest of the model's
    description, which binds the stores to the net. offline, online: bytes of all messages so far, by name.

    >>> model = hybrid.convert_model(net, (4,), bits=BitWindow(20, 10))
    >>> model.prepare(2)  # before the images are there
    >>> model.ready
    2
    >>> model(images[:2]).shape, model.ready
    (torch.Size([2, 3]), 0)
    """

    def __init__(self, model: Model, digest: str) -> None:
        self.plan, self._parts = model.plan, model
        self._calls = list[int]()  # slots that each call has dealt
        self._images = 0  # so far
        self.offline: Counter[str] = Counter()
        self.online: Counter[str] = Counter()
        self._model = ModelSide(model)
        folder = Path(tempfile.mkdtemp(prefix="hummingbird-"))
        self._remove = weakref.finalize(self, shutil.rmtree, folder, True)
        garbler = model.plan.garbler
        store, self._store = both(
            lambda link: set_up_data(link, garbler, digest, folder / "data"),
            lambda link: set_up_model(link, garbler, digest, folder / "model"),
        )
        self._data = DataSide(model.plan, digest, store)

    def __repr__(self) -> str:
        return f"HybridNet({len(self.plan.steps)} steps, {self.ready} slots ready; report() has all)"

    @property
    def ready(self) -> int:
        """The number of slots that are ready."""
        return len(self._data.store.ready)

    def prepare(self, count: int) -> None:
        """Deal `count` slots, each for one image."""

        def data(link: MessageStream) -> None:
            self._data.prepare(link, count)
            _count(self.offline, link)

        def model(link: MessageStream) -> None:
            link.receive_text("opening")
            self._model.prepare(link, self._store)

        both(data, model)
        self._calls.append(count)

    def report(self) -> Report:
        """Return the plan with its prices as a text table; after images have run also the counted bytes."""
        told = report.before(self._parts)
        if not self._images:
            return told
        return Report.of(told, report.after(self.plan, self.offline, self._calls, self.online, self._images))

    def __call__(self, images: Tensor) -> Result:
        """Compute logits, float32 (n, ...), of images (n, ...), in the structure of the net's results.

        Raises InputError for images of another shape, or with values beyond the input's range.
        """
        values = self.plan.encode(images)
        if (lacking := len(values) - self.ready) > 0:
            self.prepare(lacking)
        return self.plan.results(self.plan.decode(torch.cat([self._infer(x[None]) for x in values])))

    def _infer(self, x: Tensor) -> Tensor:
        step, output = self.plan.input, self.plan.output
        slot = self._data.take()

        def data(link: MessageStream) -> Tensor:
            logits = self._data.infer(link, slot, x)
            _count(self.online, link)
            return logits

        def model(link: MessageStream) -> None:
            link.receive_text("opening")
            online = self._model.begin(link, self._store, slot.number)
            given = link.receive("input", messages.words_bytes(step.count, step.ring))
            share = online.infer(messages.unpack(given, step.shape, step.ring))
            link.send("logits", messages.pack(share, output.ring))

        logits: Tensor = both(data, model)[0]
        self._images += 1
        return logits


def _count(total: Counter[str], link: MessageStream) -> None:
    total.update(link.sent)
    total.update(link.received)
