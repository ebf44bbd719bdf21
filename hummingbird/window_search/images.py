"""Validation images as they come: a tensor, a data set, a DataLoader, or any iterable of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hummingbird.errors import InputError

_HINT = "a tensor (N, ...), a DataLoader, or batches: tensors (B, ...), or pairs of images and int64 labels (B,)"


def gathered(images: Tensor | Dataset[Any] | Iterable[Any], labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """All images (N, ...) and their labels int64 (N,), None where there are none; everything is held in memory.

    Raises InputError for batches that are neither, or that do not fit each other, and for labels given twice.
    """
    if isinstance(images, Tensor):
        return images, labels
    if isinstance(images, Dataset):
        images = DataLoader(images, batch_size=128)
    if isinstance(images, (str, bytes)) or not isinstance(images, Iterable):
        raise InputError(f"expected images, got {type(images).__name__}", where="images", hint=_HINT)
    parts, told = [], []
    for number, batch in enumerate(images):
        pair = isinstance(batch, (tuple, list)) and len(batch) == 2
        part, own = batch if pair else (batch, None)
        if not isinstance(part, Tensor) or not (own is None or isinstance(own, Tensor)):
            what = f"batch {number} is {_kind(batch)}"
            raise InputError(what, where="images", hint=_HINT)
        if own is not None and len(own) != len(part):
            raise InputError(f"batch {number} has {len(part)} images and {len(own)} labels", where="images", hint=_HINT)
        parts.append(part)
        told.append(own)
    if not parts:
        raise InputError("no images in an empty iterable", where="images", hint=_HINT)
    own_labels = [own for own in told if own is not None]
    if own_labels and labels is not None:
        hint = "give labels in the batches, or as a tensor, not both"
        raise InputError("batches with labels, and labels beside them", where="labels", hint=hint)
    if own_labels and len(own_labels) < len(told):
        raise InputError("some batches have labels and some have none", where="images", hint=_HINT)
    try:
        return torch.cat(parts), torch.cat(own_labels) if own_labels else labels
    except (RuntimeError, TypeError) as problem:
        what = f"batches that do not fit each other: {str(problem).partition(chr(10))[0]}"
        raise InputError(what, where="images", hint=_HINT) from None


def fingerprint(*tensors: Tensor) -> str:
    """SHA-256 of the types, shapes and numbers of tensors."""
    data = hashlib.sha256()
    for tensor in tensors:
        data.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        data.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return data.hexdigest()


def _kind(batch: Any) -> str:
    if isinstance(batch, (tuple, list)):
        return f"a {type(batch).__name__} of {', '.join(type(part).__name__ for part in batch[:4]) or 'nothing'}"
    return type(batch).__name__
