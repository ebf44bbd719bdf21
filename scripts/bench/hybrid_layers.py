"""Rows of scripts/bench/hybrid.py: encrypted linear layers, both sides in one process on one thread.

Times are those of a core, which other work on the machine changes less: one thread computes, and nothing waits.
A layer's time is that of everything offline but the wire: packing and encryption of r, products, masks, the reply,
decryption; its weights are transformed before. Beside it stands the time of Impala's Table 3, for the convolutions of
that table. The linear layers are those of its Table 2, which has 5 ms to 510 ms for them, with all keys there.

Each layer is checked before it is timed: both shares add up to W r.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird import prg
from hummingbird.cost import bfv_switching_key
from hummingbird.he import bfv
from hummingbird.he.bfv import taps
from hummingbird.kernels import devices
from scripts.bench.hybrid_rows import Row, row
from scripts.program import median

RING = 20  # bits of a share
DENSITIES = (1.0, 0.1)  # of weights that are not zero


class Shape(NamedTuple):
    """A layer and its figures: milliseconds as a mark, and of Impala's Table 3."""

    name: str
    image: tuple[int, ...]
    weight: tuple[int, ...]
    padding: int = 0
    mark: str = ""
    paper: float | None = None


LAYERS = (
    Shape("32x32x32, 3x3, 32", (32, 32, 32), (32, 32, 3, 3), 1, "<= 25", 920),
    Shape("16x16x128, 3x3, 128", (128, 16, 16), (128, 128, 3, 3), 1, "<= 60", 3680),
    Shape("64x64x64, 3x3, 64", (64, 64, 64), (64, 64, 3, 3), 1, "", 38_000),
    Shape("28x28x256, 3x3, 256", (256, 28, 28), (256, 256, 3, 3), 1, "<= 300"),
    Shape("16x16x128, 1x1, 128", (128, 16, 16), (128, 128, 1, 1)),
    Shape("28x28x1, 5x5, 5", (1, 28, 28), (5, 1, 5, 5)),
    Shape("linear, 256 to 128", (256,), (128, 256)),
    Shape("linear, 1024 to 128", (1024,), (128, 1024)),
    Shape("linear, 4096 to 1024", (4096,), (1024, 4096), 0, "<= 60", 510),
)
SPARSE = Shape("16x16x128, 3x3, 128", (128, 16, 16), (128, 128, 3, 3), 1)
TOGETHER = 14  # images of the sparse layer in a polynomial: as many as fit


class Case:
    """A layer on random r and weights of 8 bits, and both sides' steps.

    images: how many share a polynomial. density: part of the weights that are not zero; with a density the layer is
    evaluated by taps, else by products.
    """

    def __init__(self, shape: Shape, images: int = 1, density: float | None = None) -> None:
        self.shape, self.density = shape, density
        self.layout = layout = bfv.Layout.of(shape.image, shape.weight, padding=shape.padding, images=images)
        self.images = (images,) if images > 1 else ()
        self.r = torch.randint(1 << RING, (*self.images, *shape.image))
        self.weights = torch.randint(1, 128, shape.weight)
        self.prepared: Any  # int32 polynomials, or terms
        if density is None:
            self.prepared = bfv.transform(layout.pack_weights(self.weights))
        else:
            self.weights *= torch.rand(shape.weight) < density
            self.prepared = taps.terms(layout, self.weights)
        self.secret = bfv.Secret.new()
        self.public = self.secret.public()

    def ask(self) -> bytes:
        """The data's side: its message."""
        return self.secret.encrypt(self.layout.pack_input(self.r), RING).to_bytes()

    def multiply(self, x: Tensor) -> Tensor:
        """The sums of products, or of taps, for ciphertexts of r."""
        if self.density is None:
            return self.layout.multiply(x, self.prepared)
        return taps.multiply(self.layout, x, self.prepared)

    def answer(self, asked: bytes) -> tuple[bytes, Tensor]:
        """The model's side: its message, and s."""
        layout = self.layout
        sums = self.multiply(bfv.Fresh.from_bytes(asked, layout.inputs).parts())
        masks = bfv.draw_masks(prg.fresh(), layout.replies, RING)
        return bfv.evaluate(self.public, sums, masks, RING, layout.used).to_bytes(), layout.unpack(masks)

    def read(self, answered: bytes) -> Tensor:
        """The data's side: W r - s."""
        reply = bfv.Reply.from_bytes(answered, self.layout.used)
        return self.layout.unpack(self.secret.decrypt(reply, RING))

    def check(self) -> int:
        """Bytes of both messages; RuntimeError if a result is not W r."""
        asked = self.ask()
        answered, s = self.answer(asked)
        if self.weights.dim() == 2:
            wanted = self.r @ self.weights.T
        else:
            images = self.r.double() if self.images else self.r[None].double()
            wanted = F.conv2d(images, self.weights.double(), padding=self.shape.padding).long().view(s.shape)
        if not torch.equal((self.read(answered) + s) % (1 << RING), wanted % (1 << RING)):
            raise RuntimeError(f"{self.shape.name}: a result is not that of the layer")
        return len(asked) + len(answered)


def layers(repeats: int, shapes: tuple[Shape, ...] = LAYERS) -> Iterator[Row]:
    """Milliseconds and bytes of each layer, of the server's and the client's part."""
    devices.keep_freed_memory()  # as the service does
    for shape in shapes:
        case = Case(shape)
        layout, size = case.layout, case.check()
        asked = case.ask()
        answered, _ = case.answer(asked)
        client = 1e3 * (_median(case.ask, repeats) + _median(lambda: case.read(answered), repeats))  # noqa: B023 - runs now
        server = _server(case, repeats)
        parts = {"client_milliseconds": client, "server_milliseconds": server, "products": layout.products}
        yield row(f"layer {shape.name}", "ms", client + server, mark=shape.mark, paper=shape.paper, **parts)
        yield row(f"layer {shape.name}: both messages", "bytes", size, predicted=layout.up_bytes + layout.down_bytes)


def sparse(repeats: int, shape: Shape = SPARSE) -> Iterator[Row]:
    """Milliseconds of a convolution tap by tap, without zeros and with 90 %, and what the second takes of the first.

    For each image, of as many as a polynomial holds; beside it the server's whole part, its reply included. The same by
    products of polynomials, which zeros do not shorten, for as many images and for one.
    """
    devices.keep_freed_memory()
    times = []
    for density in DENSITIES:
        case = Case(shape, TOGETHER, density)
        case.check()
        times.append(_convolution(case, repeats) / TOGETHER)
        what = f"taps {shape.name}, {1 - density:.0%} zeros, an image of {TOGETHER}"
        yield row(f"{what}: convolution", "ms", times[-1])
        yield row(f"{what}: the server's whole part", "ms", _server(case, repeats) / TOGETHER)
    yield row(f"taps {shape.name}: convolution, 90% zeros to none", "times", times[1] / times[0], mark="<= 0.2")
    for images in (TOGETHER, 1):
        case = Case(shape, images)
        case.check()
        what = f"products {shape.name}, any weights, an image of {images}"
        yield row(f"{what}: convolution", "ms", _convolution(case, repeats) / images)
        yield row(f"{what}: the server's whole part", "ms", _server(case, repeats) / images)


def _convolution(case: Case, repeats: int) -> float:
    parts = bfv.Fresh.from_bytes(case.ask(), case.layout.inputs).parts()
    return 1e3 * _median(lambda: case.multiply(parts), repeats)


def _server(case: Case, repeats: int) -> float:
    asked = case.ask()
    return 1e3 * _median(lambda: case.answer(asked), repeats)


def _median(run: Callable[[], object], repeats: int) -> float:
    """The median time of a core that a call takes, in seconds."""
    return median(run, repeats, time.process_time)


def switching(repeats: int) -> Iterator[Row]:
    """Milliseconds of a key switch of one ciphertext, and bytes of the key."""
    user, other = bfv.Secret.new(), bfv.Secret.new()
    key = user.switching_key(other.public())
    x = user.encrypt(torch.randint(1 << RING, (8, bfv.DEGREE)), RING).parts()
    yield row(
        "key switch of a ciphertext",
        "ms",
        1e3 * _median(lambda: bfv.switch_key(key, x), repeats) / 8,
        mark="<= 1",
        paper=5,
    )
    yield row("switching key, once", "bytes", len(key.to_bytes()), predicted=bfv_switching_key())
