"""Parsers of a service for clients that are not parties, for the table of tests/support/parsers.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from hummingbird.serving import description as serving
from hummingbird.serving.message import END, Question, Request, joined, pack_answer, split, step_id
from hummingbird.structure import TENSOR
from hummingbird.version import VERSION
from tests.support.parsers import Parser


def services() -> dict[str, Parser]:
    inputs = (serving.TensorSpec("x", (2,)), serving.TensorSpec("y", (2, 2)))
    outputs = tuple(serving.TensorSpec(name, (2,)) for name in ("a", "b"))
    form = ("dict", ("a", "b", "n"), (TENSOR, TENSOR, ("constant", None)))
    known = serving.ServiceDescription(
        VERSION, "ab", 0, "cd" * 16, inputs, outputs, form, 1.5, 16, 21, 16, 43, 2, 8, True
    )
    bodies = split(torch.zeros(2, 6, dtype=torch.int64), known.bits, 2)
    requests = [
        Request(bytes(16), bytes(16), 1 << 40, 2, body).to_bytes(known, rank) for rank, body in enumerate(bodies)
    ]
    rows = serving.TensorSpec("indices", (2,), 600), serving.TensorSpec("weights", (2,))
    looked = replace(known, inputs=rows)
    asked = Question(torch.zeros(2, 2, dtype=torch.int64), torch.arange(4).view(2, 2)).bodies(looked)
    keyed = [Request(bytes(16), bytes(16), 1 << 40, 2, body).to_bytes(looked, rank) for rank, body in enumerate(asked)]
    words, logits = (serving.TensorSpec("words", (6,)),), (serving.TensorSpec("logits", (4,)),)
    text = replace(known, inputs=words, outputs=logits, form=TENSOR, rowwise=False, places=12)
    steps = [
        Request(step_id(bytes(12), step), bytes(16), 1 << 40, count, body).to_bytes(text, 0)
        for step, count in ((0, 2), (1, 1), (END, 0))
        for body in split(torch.zeros(count, 6, dtype=torch.int64), text.bits, 2)[:1]
    ]
    described = [known.answer(1, 2.5, 0), looked.answer(0, 2.5, 0), text.answer(0, 2.5, 0)]
    answer = pack_answer(torch.ones(2, 4, dtype=torch.int64), known.result_bits)

    def read(rank: int) -> Callable[[bytes], object]:
        return lambda data: Request.read(data, known, rank).words(known, rank)

    def read_keyed(rank: int) -> Callable[[bytes], object]:
        return lambda data: Request.read(data, looked, rank).keys(looked)

    return {
        "asked party 0 with keys": Parser([keyed[0]], read_keyed(0)),
        "asked party 1 with keys": Parser([keyed[1]], read_keyed(1)),
        "asked party 0": Parser([requests[0]], read(0)),
        "asked party 1": Parser([requests[1]], read(1)),
        "asked for a word": Parser(steps, lambda data: Request.read(data, text, 0).words(text, 0)),
        "answer to ask": Parser([answer], lambda data: joined([data, answer], 2, known)),
        "service's description": Parser(described, lambda data: serving.Described.read(data, "test")),
    }
