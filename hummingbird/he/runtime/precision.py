"""Precision of an image's values at the client: predicted by the plan, measured in free slots; poor images are refused.

The plan predicts the error of the returned integers, which is the same for all images. Each image has its own scale, so
its precision is the ratio of its integers' root mean square to that error. Slots without an image encrypt zeros; all
zeros give equal results up to errors, so the deviation among these slots measures the errors.

Values larger than the plan expects have larger errors, and an activation that clips values may then leave only errors.
For such images the client runs its steps once more with added errors, and refuses an image if the results differ by
more than 2^-LEAST of their size.

In polynomial mode all images have the plan's scales: an image whose values are small beside typical ones, or cancel,
may come back as errors only. So there every image is checked by the same rule. But the outputs of an image of ordinary
size may be near zero by chance; they need 4 bits, or 2 if there is only one output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.errors import InputError
from hummingbird.graph import OPS, Ref, Step
from hummingbird.graph.steps import map_refs
from hummingbird.he.runtime.rounds import Return

LEAST = 6  # bits
# Of an image of ordinary size. One output of typical size T is below 2^-10 T, four errors of 2^-12 T, once in 1,300.
ORDINARY, _ONE = 4, 2
TIMES = 8  # repetitions with other errors, so that the errors of few values do not cancel by chance
SMALL = 2.0**-4  # of a typical image: below, a small output is not by chance
OUTLIERS = "their values are too far apart in size: look for outliers, normalize as in training"
PLANNED = (
    "their values are small beside those that the plan was made for, or cancel: convert with samples= of your data or "
    "a smaller input_range=, or with mode='client-aided', where each image has its own scale"
)
_SHOWN = 8  # images named in an error


class Precision:
    """Measures how precise a batch's answers are: for each image, how many bits of a typical value are right.

    The client adds all integers that the server returns (`add`), and then reads `predicted` and `measured`: float64
    (images,), on the CPU. `predicted` comes from the plan. `measured` comes from slots that hold no image; it is None
    if the batch leaves fewer than two of them.
    images: number of images. slots: number of images of a full batch. device: where the returned integers are.
    """

    def __init__(self, images: int, slots: int, device: torch.device | str = "cpu") -> None:
        self._images, self._free = images, slots - images
        # Squares of relative errors: predicted, measured.
        self._squares = torch.zeros(2, images, dtype=torch.float64, device=device)
        self._energy = torch.zeros(images, dtype=torch.float64, device=device)
        self._spread = torch.zeros((), dtype=torch.float64, device=device)
        self.mark()

    @property
    def squares(self) -> Tensor:
        """The squares of relative errors, summed up to the last `mark`: float64 (2, images), first predicted, then
        measured.
        """
        return self._marked[0]

    def restore(self, squares: Tensor) -> None:
        """Continue from the sums of errors that another process had reached for this batch.

        squares: the other process's `squares`, float64 (2, images).
        """
        self._squares = squares
        self.mark()

    def mark(self) -> None:
        """Remember the present sums of values and errors, so that `rewind` can return to them if a turn is repeated."""
        self._marked = self._squares.clone(), self._energy.clone(), self._spread.clone()

    def rewind(self) -> None:
        """Return to the sums of values and errors at the last `mark`, because a turn is repeated."""
        self._squares, self._energy, self._spread = (part.clone() for part in self._marked)

    def add(self, back: Return, integers: Tensor, last: bool) -> None:
        """Take a slice of integers that the server returned into the sums of values and errors.

        integers: float64 (ciphertexts, slots). back: the returned value that they are part of. last: whether this is
        the last slice of this value.
        """
        self._energy += integers[:, : self._images].square().sum(0)
        if self._free > 1:
            self._spread += integers[:, self._images :].var(1).sum()
        if last:
            energy = self._energy / back.count
            size = energy.clamp(min=2.0**-60)
            self._squares[0] += back.noise**2 / size + back.relative**2
            self._squares[1] += self._spread / back.count / size + back.relative**2
            self._energy, self._spread = torch.zeros_like(energy), torch.zeros_like(self._spread)

    @property
    def predicted(self) -> Tensor:
        return self._bits(0)

    @property
    def measured(self) -> Tensor | None:
        return self._bits(1) if self._free > 1 else None

    def _bits(self, which: int) -> Tensor:
        return (-torch.log2(self._squares[which].cpu()) / 2).clamp(min=0.0)


def summary(batches: Sequence[Precision]) -> str:
    """Return a line for the report about the bits of a call's answers that are right, predicted and measured."""
    predicted = torch.cat([batch.predicted for batch in batches])
    least = int(predicted.argmin())
    found = [batch.measured for batch in batches if batch.measured is not None]
    measured = f"{float(torch.cat(found).median()):.1f}, in free slots" if found else "not known, as no slots are free"
    return (
        f"precision, bits of an image's typical values: predicted {float(predicted.median()):.1f}, least "
        f"{float(predicted[least]):.1f} (image {least}); measured {measured}"
    )


def least_bits(outputs: int, small: Tensor) -> Tensor:
    """Return how many bits of each image's outputs must be right in polynomial mode: int64 (images,).

    outputs: number of outputs of an image.
    small: bool (images,), true for an image whose values are all far below typical ones. Such an image needs 6 bits.
    Others need 4, or 2 if there is only one output, since an output may happen to be near zero.
    """
    return torch.where(small, LEAST, _ONE if outputs == 1 else ORDINARY)


class Shadow:
    """A second run of the client's steps on a few images, with random errors added to what the server returned.

    It shows how far the errors of encryption change later values.
    images: int64 (n,), positions of these images in the batch. first: number of the batch's first image, for error
    messages. hint: what the user can do, for error messages. times: how often each image runs, with other errors each
    time.
    """

    def __init__(self, images: Tensor, first: int, hint: str = OUTLIERS, times: int = 1) -> None:
        self._images, self._first, self._hint, self._times = images.repeat(times), first, hint, times
        self._values: dict[int, Any] = {}

    def add(self, index: int, value: Tensor, errors: Tensor) -> None:
        """Store a value that the server returned, for the images of this second run, with random errors added.

        index: number of the value's step. value: the value for all images of the batch, (batch, ...). errors: standard
        deviation of the errors for each image, (batch,).
        """
        few, deviations = value[self._images], errors[self._images].to(value.dtype)
        key = prg.derive(bytes(prg.SEED_BYTES), index)  # a fixed key: these errors are not secret
        errors_of_one = (prg.Stream(key, few.device).words(*few.shape) >> 11).to(few.dtype) * (2.0**-52 * 3**0.5)
        self._values[index] = few + errors_of_one * deviations.view(-1, *[1] * (few.dim() - 1))

    def run(self, index: int, step: Step, values: Mapping[int, Any]) -> None:
        """Run a step on the images of this second run, whose values have errors added, and store the result.

        index: number of the step. values: the values of all images without added errors, by number of the step. They
        are read where this run has none of its own.
        """

        def read(ref: Ref) -> Any:
            return self._values.get(ref.index, self._few(values[ref.index]))

        self._values[index] = OPS[step.op](step.attrs, *map_refs(step.inputs, read))

    def check(self, index: int, value: Tensor, where: str, least: Tensor | None = None) -> None:
        """Raise InputError, naming the images, if errors change a step's values too much: by more than 2^-6 of their
        size.

        The size of values and changes is their root mean square. Only the images of this second run are checked.
        index: number of the step; nothing is checked if the second run does not have it. value: the step's value for
        all images of the batch, without added errors. where: name of the step.
        least: int64 (batch,): for each image the number of bits that must be right; None: 6 bits.
        """
        if index not in self._values:
            return
        judged = self._images[: len(self._images) // self._times]
        bits = torch.full((len(judged),), LEAST) if least is None else least[judged].cpu()
        tolerance = torch.exp2(-bits.double()).to(value.device)
        few = value[judged].double().reshape(len(judged), -1)
        moved = self._values[index].double().reshape(self._times, len(judged), -1)
        right = (moved - few).square().mean((0, 2)).sqrt() <= tolerance * few.square().mean(1).sqrt()
        wrong = ~right  # NaN compares as wrong
        if bool(wrong.any()):
            images, fewest = named(judged[wrong], self._first), int(bits[wrong.cpu()].min())
            what = f"{images}: less than {fewest} bits of the values here would be right"
            raise InputError(what, where=where, hint=self._hint)

    def _few(self, value: Any) -> Any:
        return tuple(self._few(part) for part in value) if isinstance(value, tuple) else value[self._images]


def named(images: Tensor, first: int) -> str:
    """Return the numbers of some images as text for an error message.

    images: positions in a batch. first: number of the batch's first image.
    """
    numbers = [str(first + int(i)) for i in images[:_SHOWN]]
    more = f" and {len(images) - _SHOWN} more" if len(images) > _SHOWN else ""
    return f"image {numbers[0]}" if len(images) == 1 else f"images {', '.join(numbers)}{more}"
