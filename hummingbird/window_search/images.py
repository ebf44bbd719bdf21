"""Validation images, from a tensor, a data set, a DataLoader, or any iterable of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hummingbird.errors import InputError
from hummingbird.progress import progress_line

_HINT = "a tensor (N, ...), a DataLoader, or batches: tensors (B, ...), or pairs of images and labels (B, ...)"
_LABELLED = "a DataLoader or a data set of (image, label), batches of (images, labels), or one pair of tensors"


def gathered(
    images: Tensor | Dataset[Any] | Iterable[Any], labels: Tensor | None, most: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the first `most` images (N, ...) as one tensor, and their labels (N, ...), or None if there are none.

    images: a tensor, a data set, or batches: tensors, or pairs of images and labels. labels: the labels of all images,
    if `images` has none. most: how many images; None: all. No batch is read beyond them; a progress bar appears after
    two seconds. Raises InputError for batches of another form, or of different shapes, and for labels both in the
    batches and in `labels`.
    """
    if isinstance(images, Tensor):
        return images[:most], None if labels is None else labels[:most]
    if isinstance(images, Dataset):
        images = DataLoader(images, batch_size=128)
    if isinstance(images, (str, bytes)) or not isinstance(images, Iterable):
        raise InputError(f"expected images, got {type(images).__name__}", where="images", hint=_HINT)
    parts, told, count = [], [], 0
    for number, batch in enumerate(_batches(images)):
        pair = isinstance(batch, (tuple, list)) and len(batch) == 2
        part, own = batch if pair else (batch, None)
        if not isinstance(part, Tensor) or not (own is None or isinstance(own, Tensor)):
            what = f"batch {number} is {_kind(batch)}"
            raise InputError(what, where="images", hint=_HINT)
        if own is not None and len(own) != len(part):
            raise InputError(f"batch {number} has {len(part)} images and {len(own)} labels", where="images", hint=_HINT)
        parts.append(part)
        told.append(own)
        count += len(part)
        if most is not None and count >= most:
            break
    if not parts:
        raise InputError("no images in an empty iterable", where="images", hint=_HINT)
    own_labels = [own for own in told if own is not None]
    if own_labels and labels is not None:
        hint = "give labels in the batches, or as a tensor, not both"
        raise InputError("batches with labels, and labels beside them", where="labels", hint=hint)
    if own_labels and len(own_labels) < len(told):
        raise InputError("some batches have labels and some have none", where="images", hint=_HINT)
    try:
        whole, every = torch.cat(parts), torch.cat(own_labels) if own_labels else labels
        return whole[:most], None if every is None else every[:most]
    except (RuntimeError, TypeError) as problem:
        what = f"batches that do not fit each other: {str(problem).partition(chr(10))[0]}"
        raise InputError(what, where="images", hint=_HINT) from None


def loaded(source: Any, where: str, most: int | None = None) -> tuple[Tensor, Tensor | None]:
    """Gather the first `most` images (N, ...) and their labels (N, ...); integer labels become int64.

    source: a DataLoader, a data set, batches, or a pair of tensors. The labels are None if there are none. where: the
    name of the source, for errors. Raises InputError for batches of another form or of different shapes, and for labels
    that are no numbers.
    """
    pair = isinstance(source, (tuple, list)) and len(source) == 2 and isinstance(source[0], Tensor)
    try:
        images, labels = source if pair else gathered(source, None, most)
    except InputError as problem:
        raise InputError(problem.what, where=where, hint=_LABELLED) from None
    if images.is_meta or (isinstance(labels, Tensor) and labels.is_meta):
        raise InputError("tensors on the meta device have no values", where=where, hint="load them on the CPU or a GPU")
    if labels is None:
        return images[:most], None
    if not isinstance(labels, Tensor) or labels.is_complex() or labels.ndim < 1:
        got = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        hint = "a tensor (N, ...): the class of every image, 0 or 1, or real numbers as the net gives them"
        raise InputError(f"labels are {got}", where=where, hint=hint)
    if images.ndim < 2 or len(images) != len(labels):
        what = f"images of shape {tuple(images.shape)} and {len(labels)} labels"
        raise InputError(what, where=where, hint="images (N, ...), and one label for each")
    return images[:most], (labels if labels.is_floating_point() else labels.long())[:most].cpu()


def fingerprint(*tensors: Tensor) -> str:
    """Compute the SHA-256, in hexadecimal, of the types, shapes and values of tensors."""
    data = hashlib.sha256()
    for tensor in tensors:
        data.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        data.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return data.hexdigest()


def _batches(images: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of a data set, with a progress bar after two seconds.

    Raises InputError if images of the data set differ in shape, so that they form no batch.
    """
    try:
        yield from progress_line(images, desc="images", unit="batch", delay=2)
    except RuntimeError as problem:  # of torch's default_collate, in this process or a worker
        if "stack expects each tensor to be equal size" not in str(problem):
            raise
        hint = "resize and crop them in the data set's transform"
        raise InputError("the images differ in shape and make no batch", where="images", hint=hint) from None


def _kind(batch: Any) -> str:
    if isinstance(batch, (tuple, list)):
        return f"a {type(batch).__name__} of {', '.join(type(part).__name__ for part in batch[:4]) or 'nothing'}"
    return type(batch).__name__
