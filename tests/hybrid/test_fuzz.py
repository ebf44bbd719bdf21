"""Fuzz of every message, file and description of two parties: a result, or an error of this package without secrets.

HUMMINGBIRD_FUZZ=20000 python -m pytest tests/hybrid/test_fuzz.py      # inputs for each reader
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hummingbird import slots
from hummingbird.errors import HummingbirdError, StoreError
from hummingbird.he import bfv
from hummingbird.hybrid import messages, plan_json, proxy_view, session, store
from hummingbird.hybrid.data_side import DataSide
from hummingbird.hybrid.message_stream import MessageStream, Outgoing, both
from hummingbird.hybrid.model_side import ModelSide
from hummingbird.hybrid.service import Service
from hummingbird.hybrid.store import Header, Store
from hummingbird.hybrid.switched import keys_of
from hummingbird.rpc.frame import pack_tensors
from tests.hybrid.test_arithmetic import images
from tests.support.hybrid import model
from tests.support.mutations import mutated
from tests.support.patience import HANG

COUNT = int(os.environ.get("HUMMINGBIRD_FUZZ", "40"))
DIGEST = "ab" * 32
SIDES = ("data", "model")


class Memory(Store):
    """A store without files and ledgers, in which every slot can be dealt and used again."""

    def __init__(self, header: Header, seed: bytes, material: Sequence[torch.Tensor]) -> None:
        self.header, self.seed, self.material = header, seed, list(material)
        self.kept: dict[int, list[torch.Tensor]] = {}

    @property
    def ready(self) -> list[int]:
        return sorted(self.kept)

    @property
    def first(self) -> int:
        return 0

    def deal(self, slot: int | None = None) -> int:
        if slot is not None and not 0 <= slot < store.MAX_SLOTS:
            raise StoreError("used up")
        return slot or 0

    def keep(self, slot: int, tensors: Sequence[torch.Tensor]) -> None:
        self.kept[slot] = list(tensors)

    def use(self, slot: int | None = None) -> tuple[int, list[torch.Tensor]]:
        return slot or 0, self.kept[slot or 0]


def in_memory(patch: pytest.MonkeyPatch) -> None:
    """Have set-ups make stores of this kind."""
    create = staticmethod(lambda folder, header, seed, material: Memory(header, seed, material))
    patch.setattr(session, "Store", SimpleNamespace(create=create))


@dataclass(frozen=True)
class Sides:
    """Both sides of a session with slot 0 ready, and every message of a conversation: (role, what it reads)."""

    roles: dict[str, Callable[[MessageStream], object]]
    read: dict[str, list[bytes]]
    secrets: list[bytes]


class _Tapped:
    """Messages, written down as they are read."""

    def __init__(self, source: Any, kept: list[bytes]) -> None:
        self._source, self._kept = source, kept

    def next(self, timeout: float) -> bytes | None:
        message = self._source.next(timeout)
        if message:
            self._kept.append(message)
        return message


class _Replayed:
    """Messages that are there already."""

    def __init__(self, sent: Sequence[bytes]) -> None:
        self._sent = iter(sent)

    def next(self, timeout: float) -> bytes | None:
        return next(self._sent, None)


def sides_of(garbler: str) -> Sides:
    made, read = model(garbler), dict[str, list[bytes]]()

    def tapped(name: str, role: Callable[[MessageStream], object]) -> Callable[[MessageStream], object]:
        def run(link: MessageStream) -> object:
            link._incoming = _Tapped(link._incoming, read.setdefault(name, []))
            return role(link)

        return run

    def converse(
        name: str, data: Callable[[MessageStream], object], at_model: Callable[[MessageStream], object]
    ) -> None:
        roles[f"{name}, data"], roles[f"{name}, model"] = data, at_model
        both(tapped(f"{name}, data", data), tapped(f"{name}, model", at_model), HANG)

    def set_up(role: Any) -> Callable[[MessageStream], None]:
        return lambda link: stores.setdefault(role, role(link, garbler, DIGEST, Path()))

    roles: dict[str, Callable[[MessageStream], object]] = {}
    stores: dict[Any, Memory] = {}
    with pytest.MonkeyPatch.context() as patch:
        in_memory(patch)
        converse("set-up", set_up(session.set_up_data), set_up(session.set_up_model))
    ours, theirs = stores[session.set_up_data], stores[session.set_up_model]
    data, at_model = DataSide(made.plan, DIGEST, ours), ModelSide(made)
    step, output, x = made.plan.input, made.plan.output, made.plan.encode(images(1).float())

    def offline(link: MessageStream) -> None:
        messages.read_opening(link.receive_text("opening"), DIGEST, "us", "them", messages.OfflineOpening)
        at_model.prepare(link, theirs)

    def online(link: MessageStream) -> None:
        messages.read_opening(link.receive_text("opening"), DIGEST, "us", "them", messages.OnlineOpening)
        given = link.receive("input", messages.words_bytes(step.count, step.ring))
        share = at_model.begin(link, theirs, 0).infer(messages.unpack(given, step.shape, step.ring))
        link.send("logits", messages.pack(share, output.ring))

    converse("offline", lambda link: data.prepare(link, 1), offline)
    converse("online", lambda link: data.infer(link, data.take(), x), online)
    secrets = [value for kept in (ours, theirs) for value in (kept.seed, *_pieces(kept.material))]
    return Sides(roles, read, secrets)


def _pieces(tensors: Sequence[torch.Tensor]) -> Iterator[bytes]:
    return (tensor.contiguous().view(-1).view(torch.uint8)[-16:].numpy().tobytes() for tensor in tensors)


def told(error: Exception, secrets: Sequence[bytes]) -> None:
    """An error's text is short, and shows no secret."""
    text = str(error)
    assert len(text) < 20_000 and not any(secret.hex() in text or repr(secret) in text for secret in secrets), text


@pytest.fixture(scope="module", params=["data", "model"])
def sides(request: pytest.FixtureRequest) -> Sides:
    return sides_of(request.param)


@pytest.mark.parametrize("name", [f"{call}, {side}" for call in ("set-up", "offline", "online") for side in SIDES])
def test_a_role_that_reads_anything_ends(sides: Sides, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory(monkeypatch)
    generator, role, whole = random.Random(name), sides.roles[name], sides.read[name]
    role(MessageStream(_Replayed(whole), Outgoing(), "the other side", HANG))  # as it was
    refused = 0
    for _ in range(COUNT):
        sent, at = list(whole), generator.randrange(len(whole))
        match generator.randrange(4):
            case 0:
                del sent[at]
            case 1:
                sent.insert(at, generator.choice(whole))
            case _:
                sent[at] = mutated(generator, [whole[at]])
        try:
            role(MessageStream(_Replayed(sent), Outgoing(), "the other side", HANG))
        except HummingbirdError as error:
            refused += 1
            told(error, sides.secrets)
    assert refused


def readers(root: Path) -> dict[str, tuple[list[bytes], Callable[[bytes], object]]]:
    """Valid samples and what reads them."""
    made, seed = model(), bytes(range(16))
    kept = Store.create(root / "s", Header("data", "ab" * 16, DIGEST), seed, [torch.arange(9)])
    kept.keep(kept.deal(), [torch.arange(9), torch.arange(3, dtype=torch.uint8)])
    kept.close()
    header, slot = root / "s" / store.HEADER, root / "s" / "slot-0000000"
    ledgers = {name: (root / "s" / name).read_bytes() for name in (store.DEALT, store.USED)}
    whole = {path: path.read_bytes() for path in (header, slot)}

    def opened(path: Path, data: bytes) -> None:
        """The store with one file changed, and its first slot used."""
        for name, content in {**ledgers, **whole, path: data}.items():
            (root / "s" / name).write_bytes(content)
        with Store(root / "s") as changed:
            changed.use()

    def signed_header(data: bytes) -> bytes:
        with suppress(ValueError, RecursionError):
            fields = json.loads(data)
            if isinstance(fields, dict):
                fields.pop("digest", None)
                return json.dumps({**fields, "digest": slots.header_digest(fields, seed)}).encode()
        return data

    def signed_slot(data: bytes) -> bytes:
        return data + store._mac(seed, store.SLOT, 0, data)

    service = Service(made, root / "m")
    context: Any = _Nameless()
    step = made.plan.input
    user = bytes.fromhex(service.digest) + bytes(16 + messages.words_bytes(step.count, step.ring))
    secret = bfv.Secret.new()
    keys = bytes.fromhex(service.digest) + keys_of(secret, bfv.Secret.new().public().to_bytes())
    service.close()
    text = plan_json.describe(made, seed)
    return {
        "opening": (
            [messages.OnlineOpening(plan=DIGEST, session="ab" * 16, slot=3).pack()],
            lambda data: messages.read_opening(data, DIGEST, "us", "them", messages.OnlineOpening),
        ),
        "description": ([text], plan_json.read_description),
        "ends": ([proxy_view.proxy_view(made.plan, DIGEST)], proxy_view.read_proxy_view),
        "header": ([whole[header]], lambda data: opened(header, data)),
        "header, signed": ([whole[header]], lambda data: opened(header, signed_header(data))),
        "slot": ([whole[slot]], lambda data: opened(slot, data)),
        "slot, signed": ([whole[slot][:-16], pack_tensors([])], lambda data: opened(slot, signed_slot(data))),
        "ledger": (list(ledgers.values()), lambda data: opened(root / "s" / store.DEALT, data)),
        "user's keys": ([keys], lambda data: service._users.keys(data, context)),
        "user's input": ([user], lambda data: service._users.input(data, context)),
    }


class _Nameless:
    """The context of a call whose caller has no name."""


READERS = ["opening", "description", "ends", "header", "header, signed", "slot", "slot, signed", "ledger"]


@pytest.mark.parametrize("name", [*READERS, "user's input", "user's keys"])
def test_readers_raise_errors_of_this_package_only(tmp_path: Path, name: str) -> None:
    found = readers(tmp_path)
    assert sorted(found) == sorted([*READERS, "user's input", "user's keys"])
    (samples, read), generator, refused = found[name], random.Random(name), 0
    for _ in range(2 * COUNT):
        try:
            read(mutated(generator, samples))
        except HummingbirdError as error:
            refused += 1
            told(error, [bytes(range(16))])
    assert refused
