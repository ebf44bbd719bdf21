"""Garbled ReLUs in C++ (csrc/garble.cpp), on torch.get_num_threads() threads."""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.kernels import garble as kernels
from hummingbird.kernels.cpu.library import handle
from hummingbird.kernels.garble import Circuit
from hummingbird.kernels.registry import implements


def _run(
    circuit: Circuit,
    key: bytes,
    tile: int,
    labels: Tensor,
    tables: Tensor,
    results: Tensor | None,
    delta: Tensor | None = None,
    own: Tensor | None = None,
    shares: Tensor | None = None,
    masks: Tensor | None = None,
) -> None:
    given = [None if x is None else x.data_ptr() for x in (delta, labels, own, shares, masks, tables, results)]
    settings = (circuit.kind == "relu", circuit.width, circuit.ring, key, tile, len(labels))
    if len(labels):
        handle().hb_garble(*settings, *given, torch.get_num_threads())


@implements(kernels.garble, "cpu")
def garble(
    circuit: Circuit, key: bytes, tile: int, delta: Tensor, labels: Tensor, shares: Tensor, masks: Tensor
) -> Tensor:
    """Implement `kernels.garble.garble` in C++: garble circuits on the side of the data."""
    tables = torch.empty(circuit.table_bytes(len(labels)), dtype=torch.uint8)
    _run(circuit, key, tile, labels, tables, None, delta, shares=shares, masks=masks)
    return tables


@implements(kernels.garble_model, "cpu")
def garble_model(
    circuit: Circuit, key: bytes, tile: int, delta: Tensor, labels: Tensor, own: Tensor
) -> tuple[Tensor, Tensor]:
    """Implement `kernels.garble.garble_model` in C++: garble circuits on the side of the model."""
    tables = torch.empty(circuit.table_bytes(len(labels)), dtype=torch.uint8)
    offsets = torch.empty(len(labels), dtype=torch.int64)
    _run(circuit, key, tile, labels, tables, offsets, delta, own)
    return tables, offsets


@implements(kernels.evaluate, "cpu")
def evaluate(circuit: Circuit, key: bytes, tile: int, labels: Tensor, tables: Tensor) -> Tensor:
    """Implement `kernels.garble.evaluate` in C++: evaluate circuits that the data's side garbled."""
    results = torch.empty(len(labels), dtype=torch.int64)
    _run(circuit, key, tile, labels, tables, results)
    return results


@implements(kernels.evaluate_model, "cpu")
def evaluate_model(circuit: Circuit, key: bytes, tile: int, labels: Tensor, own: Tensor, tables: Tensor) -> Tensor:
    """Implement `kernels.garble.evaluate_model` in C++: evaluate circuits that the model's side garbled."""
    results = torch.empty(len(labels), dtype=torch.int64)
    _run(circuit, key, tile, labels, tables, results, own=own)
    return results
