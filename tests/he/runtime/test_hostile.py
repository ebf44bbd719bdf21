"""Bytes and descriptions from anybody: errors of this library only, no hang, no memory beyond what was allowed.

python -m tests.he.runtime.test_hostile 20000        # so many inputs for each parser
"""

from __future__ import annotations

import copy
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hummingbird import he, records
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.he.compile.convert import make_plan
from hummingbird.he.runtime import client_spec, files, memory, messages
from hummingbird.he.runtime.client import Client
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.rounds import Download, Upload
from hummingbird.he.runtime.server import Server
from tests.support.he_cases import AIDED, LINEAR, PRODUCTS, Fn, conv, made

ALLOWED = 16 << 20  # bytes that a description may ask of a client here
SLACK = 512 << 20  # bytes by which the process may grow in all: batches of at most `ALLOWED`, and what they work with
SECONDS = 120.0  # of computing, for one input; the slowest take less than one
NASTY: list[Any] = [
    *(None, True, -1, 0, 1, 2, 3, 1.5, 1 << 31, 1 << 40, 1 << 63, 1 << 70, -(1 << 63), 10**300, 1e308, -0.0),
    *("", "x", "9" * 5000, "1e400", "nan", "\x1b[2J", [], {}, [[]], [0] * 50, [1 << 24] * 3, {"ref": 0}, {"ref": 99}),
    *({"tuple": []}, {"tuple": [{"ref": 0}] * 3}, {"slice": [0, None, 2]}, {"ellipsis": True}, {"float": "inf"}),
    *(float("nan"), float("inf"), "chunk", "split", "max_pool", "pad", "elementwise", "server", "input", "output"),
]


@cache
def descriptions() -> list[str]:
    """Texts of what servers tell their clients."""
    return [plan.public.to_json() for plan in nets()]


def nets() -> Iterator[he.Plan]:
    for case in (AIDED["relu, max pool, softmax"], AIDED["residual with a layer in the branch"]):
        yield make_plan(*made(case))
    yield make_plan(*made(LINEAR["chunk, slice, cat"]))
    yield make_plan(*made(PRODUCTS["polynomial activation"]), "polynomial")
    net = Fn(lambda s, x: s.b(torch.exp(s.a(x).split(2, 1)[0]).clamp(max=3)), a=conv(1, 4, 2), b=conv(2, 2, 1))
    yield make_plan(net.eval(), (1, 4, 4))


def places(value: Any) -> list[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in list(items) for place in [(value, key), *places(item)]]


def changed_json(rng: random.Random, text: str) -> bytes:
    """A JSON text with a few values replaced, copied, doubled or left out; or its bytes damaged."""
    fields = json.loads(text)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        here = places(fields)
        container, key = rng.choice(here)
        action = rng.randrange(5)
        if action == 0 and isinstance(container[key], int):
            container[key] = container[key] * rng.choice([-1, 2, 1 << 20]) + rng.choice([-1, 0, 1])
        elif action == 1:
            other, place = rng.choice(here)
            container[key] = json.loads(json.dumps(other[place]))
        elif action == 2 and isinstance(container[key], list):
            container[key] = container[key] * rng.choice([0, 2, 300])
        elif action == 3:
            del container[key]
        else:
            container[key] = copy.deepcopy(rng.choice(NASTY))
    return damaged(rng, json.dumps(fields).encode(), 0.3)


def damaged(rng: random.Random, data: bytes, chance: float = 1.0) -> bytes:
    if rng.random() > chance:
        return data
    at, kind = rng.randrange(len(data) + 1), rng.randrange(5)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[at + rng.randrange(9) :]
    if kind == 2:
        return data[:at] + rng.choice([b"[", b"{", b'"', b"[" * 9999, b'{"tuple":[' * 999, b"9" * 9999]) + data[at:]
    if kind == 3:
        return rng.randbytes(rng.randrange(200))
    return data[:at] + data


def describe(rng: random.Random, texts: list[str]) -> None:
    """A description, and what a client does by it where it asks for little memory: up to the end, on any answers."""
    description = Public.from_json(changed_json(rng, rng.choice(texts)))
    needed = memory.at_client(description)
    assert needed > 0
    if needed > ALLOWED or sum(turn.sent + turn.returned for turn in description.turns) > 300:
        return
    batch = Client(description).begin(torch.rand(2, *description.input_shape))
    ring = description.parameters.ring
    for number, turn in enumerate(description.turns):
        for _ in batch.uploads(number):
            pass
        for first, stop, back in turn.down():
            shape = stop - first, back.size, back.primes, ring.degree
            batch.receive(Download(number, first, torch.randint(-100, 100, shape, dtype=torch.int32)))
    batch.result()


def open_call(rng: random.Random, texts: list[str]) -> None:
    good = messages.opening("0" * 64, 1).decode()
    messages.read_opening(changed_json(rng, good), 3)


def take_upload(rng: random.Random, texts: list[str]) -> None:
    """A slice as messages of any sizes, damaged, to the server's turn."""
    plan = _SMALL
    (sent,) = Client(plan.public).begin(torch.rand(1, 4)).uploads(0)
    parts = [damaged(rng, part, 0.5) for part in messages.pack_upload(plan.public, sent)]
    stream = iter(parts + [b""] * rng.randrange(2))
    turn = Server(plan).turn(0)
    turn.receive(messages.read_upload(plan.public, 0, 0, len(sent.body), lambda: _next(stream)))
    list(turn.downloads())


def take_download(rng: random.Random, texts: list[str]) -> None:
    plan = _SMALL
    batch, turn = Client(plan.public).begin(torch.rand(1, 4)), Server(plan).turn(0)
    for sent in batch.uploads(0):
        turn.receive(sent)
    (back,) = turn.downloads()
    parts = [damaged(rng, part, 0.5) for part in messages.pack_download(plan.public, back)]
    stream = iter(parts)
    ((first, stop, tensor),) = plan.public.turns[0].down()
    batch.receive(messages.read_download(plan.public, 0, first, stop, tensor, lambda: _next(stream)))
    batch.result()


def answer_request(rng: random.Random, texts: list[str]) -> None:
    """A request as bytes, damaged or with another head, to a server."""
    request = Client(_SMALL.public).begin(torch.rand(1, 4)).request()
    Server(_SMALL).answer(other_head(rng, request))


def accept_answer(rng: random.Random, texts: list[str]) -> None:
    batch = Client(_SMALL.public).begin(torch.rand(1, 4))
    batch.accept(other_head(rng, Server(_SMALL).answer(batch.request())))
    batch.result()


def other_head(rng: random.Random, message: bytes) -> bytes:
    if rng.randrange(2):
        return damaged(rng, message)
    return changed_json(rng, message[: messages.HEAD_BYTES].decode()).ljust(messages.HEAD_BYTES) + message[256:]


def load_server(rng: random.Random, texts: list[str]) -> None:
    """A server's file whose record is another, with a seal that is right."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.server"
        files.write_server(path, _SMALL.public, _SMALL.programs)
        head, tensors = files._read(path, files.SERVER, files.ServerHead)
        text = changed_json(rng, records.write(head))
        files._write(path, records.read(text, files.ServerHead, name="head"), tensors)
        Server.load(path)


def hand_over(rng: random.Random, texts: list[str]) -> None:
    """Values that are no slice at all, for client and server, and values that are no images."""
    anything: list[Any] = [None, 3, b"x", "x", [], torch.zeros(0), torch.zeros(3, 2, 2048, dtype=torch.int32)]
    anything += [torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.int64), torch.full((1, 4), float("nan"))]
    client, turn = Client(_SMALL.public), Server(_SMALL).turn(0)
    pick = rng.randrange(3)
    if pick == 0:
        client.batches(rng.choice(anything))
    elif pick == 1:
        turn.receive(Upload(rng.choice([0, 1, -1]), rng.choice([0, 1]), rng.choice(anything), rng.choice(anything)))
    else:
        batch = client.begin(torch.rand(1, 4))
        list(batch.uploads(0))
        batch.receive(Download(rng.choice([0, 1, -1]), rng.choice([0, 1]), rng.choice(anything)))


def _next(stream: Iterator[bytes]) -> bytes:
    try:
        return next(stream)
    except StopIteration:
        raise InputError("the stream ended") from None


torch.manual_seed(0)
_SMALL = make_plan(nn.Linear(4, 2), (4,))
_MESSAGES = (describe, open_call, take_upload, take_download, answer_request, accept_answer)
PARSERS: dict[str, Callable[[random.Random, list[str]], None]] = {
    f.__name__: f for f in (*_MESSAGES, load_server, hand_over)
}


def hammer(name: str, count: int, seed: int = 0) -> int:
    """Give a parser `count` inputs; how many it refused. Anything but an error of this library fails the test."""
    rng, texts, refused = random.Random(seed), descriptions(), 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        started = time.thread_time()
        try:
            PARSERS[name](rng, texts)
        except HummingbirdError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"input {number} of {name}, seed {seed}") from error
        assert time.thread_time() - started < SECONDS, f"input {number} of {name}, seed {seed}"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < SLACK
    return refused


@pytest.mark.parametrize("count", [80, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PARSERS)
def test_anything_is_an_error_of_the_house(name: str, count: int) -> None:
    assert hammer(name, count) > count // 4


def edited(change: Callable[[dict[str, Any]], None]) -> str:
    fields = json.loads(make_plan(*made(AIDED["relu, max pool, softmax"])).public.to_json())
    change(fields)
    return json.dumps(fields)


def pieces(op: str, attrs: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    """The first step of the client made one that cuts a large input into many tensors."""

    def change(fields: dict[str, Any]) -> None:
        fields["input_shape"] = [1 << 22]
        fields["steps"] = [fields["steps"][0], ["cut", op, {"tuple": [{"ref": 0}]}, attrs], *fields["steps"][2:]]
        fields["turns"][0]["steps"] = [0, 1]

    return change


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda f: f.update(steps=f["steps"] * 2000), r"steps is a list of \d+ items, not a list of 0 to 4096 items"),
        (lambda f: f["turns"][0].update(steps=list(range(5000))), "a list of"),
        (lambda f: f["turns"][0]["returns"][0].update(gains=[1] * 5000), "a list of"),
        (lambda f: f["turns"][0]["sends"].extend(f["turns"][0]["sends"] * 9000), "a list of"),
        (lambda f: f.update(input_shape=[1] * 17), "input_shape is a list of 17 items, not a list of 0 to 16 items"),
        (lambda f: f.update(primes=f["primes"] * 99), "primes"),
        (lambda f: f.update(steps=f["steps"], name="x" * (5 << 20)), "bytes"),
        (lambda f: f["steps"][1].__setitem__(0, "\x1b[2Jlayer"), "the name of step"),
        (lambda f: f["steps"][1].__setitem__(1, "int"), "'int'"),
        (lambda f: f["steps"][1].__setitem__(1, "input"), "not one input"),
        (pieces("split", {"sizes": 1, "dim": 1}), "makes 4194304"),
        (pieces("chunk", {"chunks": 1 << 22, "dim": 1}), "makes 4194304"),
        (
            lambda f: f["turns"][0]["returns"][0].update(noise=-1.0),
            r"turns\[0\].returns\[0\].noise is -1.0, not a number from 0",
        ),
        (
            lambda f: f["turns"][0]["returns"][0].update(one_gain=1 << 2000),
            r"one_gain is .*, not a whole number in 0..2\^1000-1",
        ),
        (lambda f: f["turns"][0].update(usual=99), "usual"),
    ],
)
def test_descriptions_are_bounded_before_they_are_walked(change: Callable[[dict[str, Any]], None], what: str) -> None:
    text = edited(change)
    with pytest.raises(InputError, match=what):
        Public.from_json(text)


def test_a_description_that_asks_for_too_many_ciphertexts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = edited(lambda fields: None)
    Public.from_json(text)
    monkeypatch.setattr(client_spec, "_MOST_CROSSING", 40)
    with pytest.raises(InputError, match="more than 40 ciphertexts"):
        Public.from_json(text)
    with pytest.raises(InputError, match="nested more than"):
        Public.from_json("[" * 100_000)


def test_a_pool_that_reads_too_much_is_refused() -> None:
    net = nn.Sequential(nn.MaxPool2d(3), conv(1, 1, 2)).eval()
    fields = json.loads(make_plan(net, (1, 12, 12)).public.to_json())
    fields["input_shape"] = [1, 3000, 3000]
    fields["steps"][1][3].update(kernel={"tuple": [1500, 1500]}, stride={"tuple": [1, 1]})
    with pytest.raises(InputError, match="reads too many values"):
        Public.from_json(json.dumps(fields))


def test_tiles_of_one_place_each_cost_no_list_of_them() -> None:
    back = make_plan(nn.Linear(4, 2), (4,)).public.turns[0].returns[0]
    many = replace(back, shape=(1 << 20,), rows=4, places=1 << 18, tile=1)
    started = time.thread_time()
    order: Tensor = many.order()
    assert time.thread_time() - started < SECONDS
    assert order[:5].tolist() == [0, 1 << 18, 2 << 18, 3 << 18, 1]


if __name__ == "__main__":
    for parser in PARSERS:
        begun = time.monotonic()
        print(parser, hammer(parser, int(sys.argv[1]), 1), "refused,", f"{time.monotonic() - begun:.0f} s", flush=True)
