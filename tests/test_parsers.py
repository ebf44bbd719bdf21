"""Fuzz: a parser reads its input, or raises an error of this package; at once, and in no more memory than it holds.

HUMMINGBIRD_FUZZ=20000 python -m pytest tests/test_parsers.py      # inputs for each parser
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mutations import mutated
from tests.support.parsers import Parser, all_parsers
from tests.support.serving_parsers import services

COUNT = int(os.environ.get("HUMMINGBIRD_FUZZ", "300"))
SECONDS = 20.0  # of computing, for one input; the slowest take milliseconds
ROOM = 64 << 20  # bytes that all inputs of a parser may add to this process; they have a few KB
NAMES = [
    *("bits", "checkpoint", "checkpoint's pickle", "ledger", "store header", "store header, signed", "kept store"),
    *("dealer's Join", "dealer's Leave", "dealer's requests", "dealer's Correct", "answer to Join"),
    *("dealt corrections", "dealer's seconds", "npy", "safetensors", "safetensors header", "plan", "key file"),
    *("journal",),
    *("public key", "secret key", "frame", "query", "query at a server"),
    *("answer", "update", "update at a server", "description", "statement's query"),
    *("statement's answer", "hello", "channel's tensors", "channel's text", "facts", "next slot", "X25519 key"),
    *("saved net", "saved net, signed", "saved weights"),
    *("asked party 0", "asked party 1", "asked party 0 with keys", "asked party 1 with keys"),
    *("asked for a word", "answer to ask", "service's description"),
    *("roll", "address", "TLS cert", "TLS key", "TLS ca"),
]


@pytest.fixture(scope="module")
def parsers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Parser]:
    return {**all_parsers(tmp_path_factory.mktemp("parsers")), **services()}


def test_every_parser_is_named(parsers: dict[str, Parser]) -> None:
    assert sorted(parsers) == sorted(NAMES)


@contextmanager
def limited_memory() -> Iterator[None]:
    """No more than `ROOM` above what this process has: an allocation beyond it fails, and is no error of ours."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("name", NAMES)
def test_parsers_raise_errors_of_this_package_only(parsers: dict[str, Parser], name: str) -> None:
    parser, generator, refused, slowest = parsers[name], random.Random(name), 0, 0.0
    for sample in parser.samples:
        if parser.valid:
            parser.parse(sample)
    with limited_memory():
        for _ in range(COUNT):
            data = mutated(generator, parser.samples)
            started = time.thread_time()
            try:
                parser.parse(data)
            except parser.errors as error:
                refused += 1
                assert len(str(error)) < 20_000, name
            except Exception as error:
                raise AssertionError(f"{type(error).__name__}: {error}, from {data[:2000]!r}") from error
            slowest = max(slowest, time.thread_time() - started)
    assert refused and slowest < SECONDS, (refused, slowest)
    print(f"MEASURED {name}: {COUNT} inputs, {refused} refused, slowest {1e3 * slowest:.1f} ms")
