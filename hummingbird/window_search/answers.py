"""Kinds of answers of a net, and how windows are judged by them: by decisions, or by the distance of outputs.

    classes     the largest of C values, for an image or for each of its positions: decisions
    score       a value above a threshold or not; the threshold is 0.5 if all values are from 0 to 1, else 0: decisions
                and distance
    numbers     integers, such as results of argmax: equal or not
    values      real numbers, such as those of a regression or of pixels: distance
    embedding   rows whose direction matters: distance of unit vectors

The distance of an input's outputs from the exact net's is the root of the mean over its values of
((output - exact) / spread)^2. The spread is the standard deviation of the exact net's outputs over all inputs, for each
column or channel. An input is kept if its decisions stay the same and its distance is at most `NEAR`. Each kind also
has a finer score, which changes before any input is lost: for decisions the change of the net's certainty (below), for
distances d / (1 + d).

Labels and the shapes of outputs determine the kind. Without labels C values are classes, unless they are unit vectors,
and one value is a score if its decisions differ between inputs. Any windows would keep decisions that are the same for
every input: then distances judge. Each of several results has its own kind; an input is judged by the worst of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.errors import ConfigError, InputError
from hummingbird.graph import Step, calls

KINDS = ("classes", "score", "numbers", "values", "embedding")
NEAR = 0.1  # of the spread: the error's variance is then a hundredth of the outputs'
_WIDTH = 0.4  # width of the sigmoid of certainty, in standard deviations of an image's logits
_UNIT = 1e-3  # largest difference between the length of an embedding and 1


class Judged(NamedTuple):
    """How well each input of a batch is answered with windows: two tensors float64 (B,).

    kept: the proportion of an input's decisions that are right, or the same as the exact net's. moved: by how much the
    input's finer score has changed; that score changes before any decision does.
    """

    kept: Tensor
    moved: Tensor


class Values:
    """Judges real numbers: an input's may have a distance of 0.1 at most from the exact net's, or from its label."""

    kind = "values"
    decides = False

    def __init__(self, outputs: Tensor, labels: Tensor | None = None, accurate: bool = False) -> None:
        seen = self._seen(outputs)
        self.spread = _spread(seen)
        self.labels = None if labels is None else self._seen(labels.reshape(outputs.shape))
        self.references: tuple[Tensor, ...] = (self.labels if accurate and self.labels is not None else seen,)
        self.order = _scattered(len(outputs))

    def __str__(self) -> str:
        return f"values, kept within {NEAR:g} of their spread"

    def judge(self, outputs: Tensor, expected: Tensor) -> Judged:
        """Judge a batch: return whether each input is near the right values (1 or 0), and its distance d as d / (1 +
        d).

        expected: the right values of the batch. Near is a distance of 0.1 (`NEAR`) at most.
        """
        distance = self.distance(outputs, expected)
        return Judged((distance <= NEAR).double(), _bounded(distance))

    def right(self, outputs: Tensor) -> Tensor | None:
        """Return 1 for each input with a distance of 0.1 at most from its label, else 0: (N,). None without labels."""
        return None if self.labels is None else (self.distance(outputs, self.labels) <= NEAR).double()

    def distance(self, outputs: Tensor, expected: Tensor) -> Tensor:
        """Return how far each input's outputs are from the expected ones, float64 (B,), as a root mean square.

        The unit is the exact outputs' standard deviation over all inputs. Outputs that are not finite: infinity.
        """
        off = (self._seen(outputs) - expected).double() / self.spread
        return off.flatten(1).square().mean(1).sqrt().nan_to_num(math.inf, math.inf)

    def _seen(self, outputs: Tensor) -> Tensor:
        """Convert outputs (B, *shape) to the numbers that are compared: float32, with two dimensions or more."""
        return outputs.float().reshape(len(outputs), -1) if outputs.dim() < 2 else outputs.float()


class Direction(Values):
    """Judges embeddings, vectors of which only the direction counts, by the distance between their unit vectors."""

    kind = "embedding"

    def __init__(self, outputs: Tensor) -> None:
        super().__init__(outputs)
        self.spread = self.spread.square().mean().sqrt()  # one for all columns, as for an angle

    def __str__(self) -> str:
        return f"embeddings, whose directions are kept within {NEAR:g} of their spread"

    def _seen(self, outputs: Tensor) -> Tensor:
        return torch.nn.functional.normalize(super()._seen(outputs).flatten(1), dim=1)


class Classes:
    """Judges classes: the index of the largest value along dimension `dim`, 1 or -1, must be the exact net's.

    With `accurate` it must be the label. The finer score changes by |p - q|, averaged over positions: p and q are the
    certainties of the right class, in the exact net and with windows. With `accurate`, p is 1.
    """

    kind = "classes"

    def __init__(self, outputs: Tensor, labels: Tensor | None, accurate: bool, dim: int = 1) -> None:
        self.dim, self.labels, self.count = dim, labels, outputs.shape[dim]
        answers = outputs.argmax(dim)
        target = labels if accurate and labels is not None else answers
        sure = certainty(outputs, target, dim)
        self.decides = _differ(answers)
        self.references = target, torch.ones_like(sure) if accurate else sure
        self.order = _each(sure)

    def __str__(self) -> str:
        return f"classes, the largest of {self.count} values" + (
            " at each place" if self.references[0].dim() > 1 else ""
        )

    def judge(self, outputs: Tensor, target: Tensor, expected: Tensor) -> Judged:
        """Judge a batch: return for each input the proportion of right classes, and the mean change of certainty.

        target: the right classes. expected: how certain the exact net is of them, 0 to 1; 1 if they are labels.
        """
        moved = (certainty(outputs, target, self.dim) - expected).abs()
        return Judged(_each(outputs.argmax(self.dim) == target), _each(moved))

    def right(self, outputs: Tensor) -> Tensor | None:
        """Return the proportion of each input's answers that equal the labels, float64 (N,); None without labels."""
        return None if self.labels is None else _each(outputs.argmax(self.dim) == self.labels)


class ThresholdScore:
    """Judges scores: each must stay on its side of a threshold, and an input's scores near the exact net's.

    Near is a distance of 0.1 (`NEAR`) at most. The threshold is 0.5 if all values are from 0 to 1, else 0.
    """

    kind = "score"

    def __init__(self, outputs: Tensor, labels: Tensor | None, accurate: bool) -> None:
        least, most = (float(end) for end in torch.aminmax(outputs))
        self.threshold = 0.5 if least >= 0 and most <= 1 else 0.0
        self.values = Values(outputs)
        self.labels = None if labels is None else labels.reshape(outputs.shape).bool()
        sides = outputs > self.threshold
        target = self.labels if accurate and self.labels is not None else sides
        sure = self._certainty(outputs, target)
        self.decides = _differ(sides)
        self.references = target, torch.ones_like(sure) if accurate else sure, *self.values.references
        self.order = _each(sure)

    def __str__(self) -> str:
        return f"scores, above {self.threshold:g} or not, and kept within {NEAR:g} of their spread"

    def judge(self, outputs: Tensor, target: Tensor, expected: Tensor, exact: Tensor) -> Judged:
        """Judge a batch: return for each input the proportion of right scores, and the change of the finer score.

        All scores of an input are wrong if it is not near the exact net's outputs. The finer score changes as the
        certainty of the right side does, or by the distance if that is more. target: the right sides of the threshold,
        true for above. expected: the exact net's certainties of these sides. exact: its outputs.
        """
        near = self.values.judge(outputs, exact)
        moved = _each((self._certainty(outputs, target) - expected).abs())
        return Judged(_each((outputs > self.threshold) == target) * near.kept, torch.maximum(moved, near.moved))

    def right(self, outputs: Tensor) -> Tensor | None:
        """Return the proportion of each input's answers that equal the labels, float64 (N,); None without labels."""
        return None if self.labels is None else _each((outputs > self.threshold) == self.labels)

    def _certainty(self, outputs: Tensor, sides: Tensor) -> Tensor:
        """Return how certain it is, from 0 to 1, that the values `outputs` are on the given sides of the threshold.

        sides: true for above. The certainty at the threshold is 1/2; that of a value that is not finite is 0.
        """
        steps = (self.values._seen(outputs).double() - self.threshold) / (_WIDTH * self.values.spread)
        return torch.sigmoid(steps.reshape(outputs.shape) * (2 * sides.double() - 1)).nan_to_num(0.0)


class Numbers:
    """Judges results that are integers: each must equal the exact net's or, with `accurate`, the label."""

    kind = "numbers"

    def __init__(self, outputs: Tensor, labels: Tensor | None, accurate: bool) -> None:
        self.labels = None if labels is None else labels.reshape(outputs.shape)
        self.decides = _differ(outputs)
        self.references = (self.labels if accurate and self.labels is not None else outputs,)
        self.order = _scattered(len(outputs))

    def __str__(self) -> str:
        return "whole numbers, equal or not"

    def judge(self, outputs: Tensor, target: Tensor) -> Judged:
        """Judge a batch: return for each input the proportion of right numbers, and 1 less this proportion.

        The latter stands for the change of a finer score. target: the right numbers of the batch.
        """
        kept = _each(outputs == target)
        return Judged(kept, 1 - kept)

    def right(self, outputs: Tensor) -> Tensor | None:
        """Return the proportion of each input's answers that equal the labels, float64 (N,); None without labels."""
        return None if self.labels is None else _each(outputs == self.labels)


class Alike(Values):
    """Judges a net that gives the same answer for all inputs: by how far its outputs are from the exact net's.

    Its decisions cannot judge windows, as almost any windows keep them. decided: the object that judges by decisions;
    here it only compares answers with labels (`right`).
    """

    def __init__(self, outputs: Tensor, decided: Classes | ThresholdScore | Numbers) -> None:
        super().__init__(outputs)
        self.decided = decided

    def __str__(self) -> str:
        return f"{super().__str__()}, for all images have the same answer ({self.decided.kind})"

    def right(self, outputs: Tensor) -> Tensor | None:
        """Return the proportion of each input's answers that equal the labels, float64 (N,); None without labels."""
        return self.decided.right(outputs)


Single = Values | Classes | ThresholdScore | Numbers


class Answers:
    """Judges the outputs that a net gives with windows, by the outputs of the exact net or by labels.

    outputs: the exact net's, (N, ...); several results are packed side by side, (N, values). results: the name of each
    result, and its shape for one input. labels: (N, ...), for the first result whose shape they fit. accurate: compare
    answers with the labels, not with the exact net's. kind: one of `KINDS`, such as "classes"; None: determined by
    labels and outputs.
    Raises InputError for labels that fit no result, and with `accurate` if all answers are the same.
    """

    def __init__(
        self,
        outputs: Tensor,
        results: Sequence[tuple[str, Sequence[int]]],
        labels: Tensor | None = None,
        accurate: bool = False,
        kind: str | None = None,
    ) -> None:
        self.names = [name for name, _ in results]
        self.shapes = [tuple(shape) for _, shape in results]
        found = fitting(self.shapes, len(outputs), labels, kind)
        whole = self._parted(outputs)
        alone = len(self.shapes) == 1
        self.parts = [
            _judge(part, fit, kind, accurate and fit is not None, alone) for part, fit in zip(whole, found, strict=True)
        ]
        self.distances = [Values(part) for part in whole]
        self._exact = [values.references[0] for values in self.distances]
        self.references = [tensor for part in self.parts for tensor in part.references]
        self.order = self.parts[0].order

    def __str__(self) -> str:
        if len(self.parts) == 1:
            return str(self.parts[0])
        return "; ".join(f"{name}: {part}" for name, part in zip(self.names, self.parts, strict=True))

    @property
    def kinds(self) -> list[str]:
        """The kind of each result: "classes", "score", "numbers", "values" or "embedding"."""
        return [part.kind for part in self.parts]

    def judge(self, outputs: Tensor, references: Sequence[Tensor]) -> Judged:
        """Judge a batch: return for each input the proportion of decisions kept, and the change of the finer score.

        The finer score changes before any decision does. references: the batch's rows of `self.references`. If the net
        has several results, each input's worst counts.
        """
        left, found = list(references), []
        for part, values in zip(self.parts, self._parted(outputs), strict=True):
            own, left = left[: len(part.references)], left[len(part.references) :]
            found.append(part.judge(values, *own))
        if len(found) == 1:
            return found[0]
        return Judged(
            torch.stack([one.kept for one in found]).amin(0), torch.stack([one.moved for one in found]).amax(0)
        )

    def kept(self, outputs: Tensor) -> float:
        """Return which proportion of decisions is kept, the mean over inputs. outputs: the net's, for all inputs."""
        return float(self.judge(outputs, self.references).kept.mean())

    def accuracy(self, outputs: Tensor) -> float | None:
        """Return the proportion of outputs, for all inputs, that agree with the labels; None without labels."""
        pairs = zip(self.parts, self._parted(outputs), strict=True)
        found = [right for part, values in pairs if (right := part.right(values)) is not None]
        return float(found[0].mean()) if found else None

    def distance(self, outputs: Tensor) -> float:
        """Return the root mean square of all inputs' distances from the exact net's outputs.

        outputs: the net's, for all inputs. The unit is the standard deviation of the exact outputs over all inputs. If
        the net has several results, the largest of their distances counts.
        """
        trios = zip(self.distances, self._parted(outputs), self._exact, strict=True)
        return max(float(values.distance(part, exact).square().mean().sqrt()) for values, part, exact in trios)

    def _parted(self, outputs: Tensor) -> list[Tensor]:
        """Split outputs, in which a net's results are packed side by side, into these results, each (B, *shape)."""
        if len(self.shapes) == 1:
            return [outputs.reshape(len(outputs), *self.shapes[0])]
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = outputs.split(sizes, 1)
        return [part.reshape(len(part), *shape) for part, shape in zip(parts, self.shapes, strict=True)]


def results(steps: Sequence[Step], image: Sequence[int]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the name of each result of a net, and its shape for one image. image: the shape of one image.

    Raises InputError for a result whose first dimension is not the batch.
    """
    found = calls.named_results(steps, (1, *image))[1]
    for name, shape in found:
        if shape[:1] != (1,):
            what = f"one image gives {name!r} of shape {shape}, expected (1, ...)"
            raise InputError(what, where="net", hint="the first dimension of every result is the batch")
    return [(name, shape[1:]) for name, shape in found]


def fitting(
    shapes: Sequence[Sequence[int]], count: int, labels: Tensor | None, kind: str | None = None
) -> list[tuple[str, Tensor] | None]:
    """Find out for which of a net's results the labels are: the first one whose shape they fit.

    shapes: of the results. count: of the inputs. labels: (count, ...). Returns for each result its kind and the labels,
    or None if they are not for it. Raises InputError for labels that fit no result, ConfigError for an unknown kind.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"unknown kind of answers {kind!r}", where="answers", hint=f"one of {', '.join(KINDS)}")
    found: list[tuple[str, Tensor] | None] = [None] * len(shapes)
    if labels is None:
        return found
    if not isinstance(labels, Tensor) or labels.is_complex() or labels.dim() < 1 or labels.is_meta:
        got = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(f"labels are {got}", where="labels", hint="a tensor with values, a row for every image")
    if len(labels) != count:
        raise InputError(f"{count} images and {len(labels)} labels", where="labels", hint="one label for every image")
    problems = []
    for number, shape in enumerate(shapes):
        try:
            found[number] = _fit(tuple(shape), labels.detach().cpu())
            return found
        except InputError as problem:
            problems.append(problem)
    raise problems[0]


def _fit(shape: tuple[int, ...], labels: Tensor) -> tuple[str, Tensor]:
    """Return the kind of a result that has these labels, and the labels in the form for this kind.

    Kinds: "classes", "classes last" (along the last dimension), "score" or "values". shape: of the result for one
    input. Raises InputError for labels that do not fit.
    """
    count, whole = len(labels), not labels.is_floating_point()
    form = tuple(labels.shape)
    if whole and len(shape) > 0 and shape[0] > 1 and form == (count, *shape[1:]):
        return "classes", _classes(labels, shape[0])
    if whole and len(shape) > 1 and shape[-1] > 1 and form == (count, *shape[:-1]):
        return "classes last", _classes(labels, shape[-1])
    if not _same_but_ones(form[1:], shape):
        rows = "" if not shape or shape[0] == 1 else f", or whole numbers from 0 to {shape[0] - 1} in {_of(shape[1:])}"
        what = f"labels are {labels.dtype} {form}, and the net gives {_of(shape)}"
        raise InputError(
            what, where="labels", hint=f"labels of the outputs' shape{rows}; without labels distances judge"
        )
    labels = labels.reshape(count, *shape)
    if not bool(((labels == 0) | (labels == 1)).all()):
        return "values", labels
    if len(shape) == 1 and shape[0] > 1 and bool((labels.sum(1) == 1).all()):
        return "classes", labels.long().argmax(1)  # one of them is 1
    return "score", labels


def _classes(labels: Tensor, count: int) -> Tensor:
    least, most = (int(end) for end in torch.aminmax(labels.long()))
    if least < 0 or most >= count:
        what = f"labels from {least} to {most}, but the net has {count} classes"
        raise InputError(what, where="labels", hint=f"integers from 0 to {count - 1}")
    return labels.long()


def _judge(outputs: Tensor, fit: tuple[str, Tensor] | None, kind: str | None, accurate: bool, alone: bool) -> Single:
    """Make the object that judges one result of the net: by classes, a threshold, numbers, values or directions.

    outputs: the exact net's, for all inputs. fit: the kind and labels from `_fit`, None without labels. kind: the kind
    that the user asks for, or None. accurate: compare with the labels. alone: whether the net has no other result.
    """
    labels, made = (None, kind or _kind(outputs, alone)) if fit is None else (fit[1], kind or fit[0])
    numbers = kind is None and not outputs.is_floating_point() and (labels is None or not labels.is_floating_point())
    found: Single
    if numbers and made != "classes":
        found = Numbers(outputs, labels, accurate)
    elif made in ("classes", "classes last") and outputs.dim() > 1:
        own = labels if fit is not None and fit[0].startswith("classes") else None
        found = Classes(outputs, own, accurate, -1 if made == "classes last" else 1)
    elif made == "score":
        found = ThresholdScore(outputs, labels if fit is not None and fit[0] == "score" else None, accurate)
    elif made == "numbers":
        found = Numbers(outputs, labels, accurate)
    elif made == "embedding":
        return Direction(outputs)
    else:
        return Values(outputs, labels if fit is not None and fit[0] in ("values", "score") else None, accurate)
    if found.decides:
        return found
    if accurate:
        hint = 'other images, or criterion="agreement", which looks at distances'
        raise InputError("the net gives every image the same answer: any windows keep it", where="images", hint=hint)
    return Alike(outputs, found)


def _kind(outputs: Tensor, alone: bool) -> str:
    """Determine the kind of a result without labels from its outputs. alone: whether the net has no other result."""
    rows = outputs.flatten(1) if outputs.dim() > 1 else outputs[:, None]
    if rows.shape[1] == 1:
        return "score"
    if outputs.dim() == 2:
        if bool((rows.norm(dim=1) - 1).abs().max() < _UNIT) and bool((rows < 0).any()):
            return "embedding"
        if alone:
            return "classes"
    return "values"


def _scattered(count: int) -> Tensor:
    """Return a sort key for each of `count` inputs, by which the first inputs are spread evenly over the data set.

    The first inputs are used for quick scores where no certainty says which inputs matter. A data set may be sorted by
    class. The keys are multiples of the golden ratio mod 1 (Weyl).
    """
    return torch.arange(count, dtype=torch.float64) * ((5**0.5 - 1) / 2) % 1


def _differ(decisions: Tensor) -> bool:
    """Return whether any input's decision differs from the first one's."""
    return bool((decisions != decisions[:1]).any())


def _spread(values: Tensor) -> Tensor:
    """Return the standard deviation over all inputs of each column or channel, in a shape that fits (B, ...).

    Where it is 0, as for a single input, the result is the root mean square of all values, or 1 if they are all 0.
    """
    values = values.double()
    dims = [dim for dim in range(values.dim()) if dim != 1]
    spread = values.std(dims, correction=0, keepdim=True)
    size = values.square().mean().sqrt().expand_as(spread)
    spread = torch.where(spread > 1e-9 * size, spread, size)
    return torch.where(spread > 0, spread, torch.ones_like(spread))


def certainty(logits: Tensor, labels: Tensor, dim: int = 1) -> Tensor:
    """Return how certain a net is of each label, from 0 to 1: float64 in the labels' shape.

    The certainty is sigmoid(margin / 0.4): the margin is the label's logit less the largest other one, in standard
    deviations of the logits of the image (or position); 0 if logits are not finite. It does not change if windows make
    all logits smaller, as pruning does. dim: that of the classes in `logits`.
    """
    logits, chosen = logits.double(), labels.unsqueeze(dim)
    margin = logits.gather(dim, chosen) - logits.scatter(dim, chosen, -float("inf")).amax(dim, keepdim=True)
    return torch.sigmoid(margin.squeeze(dim) / (_WIDTH * logits.std(dim, correction=0))).nan_to_num(0.0)


def _each(values: Tensor) -> Tensor:
    """Compute the mean over each input's values, float64 (B,)."""
    return values.double() if values.dim() == 1 else values.double().flatten(1).mean(1)


def _bounded(distance: Tensor) -> Tensor:
    """Map a distance d to d / (1 + d): from 0 to 1, close to d for small distances."""
    return 1 - 1 / (1 + distance)


def _same_but_ones(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two shapes are the same but for dimensions of size 1."""
    return [size for size in one if size != 1] == [size for size in other if size != 1]


def _of(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, ('N', *shape)))})"
