"""Every parser of bytes that come from a file or from another process: valid samples, and how it is called.

The parsers of encrypted inference have a table of their own.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import socket
import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from hummingbird import slots
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.channel import handshake
from hummingbird.channel.channel import Channel
from hummingbird.commands.sources import load_checkpoint
from hummingbird.convert import build
from hummingbird.errors import HummingbirdError, PeerError
from hummingbird.mpc.correlations.request import ReceiverTurn, corrections, layout
from hummingbird.mpc.dealer import folder
from hummingbird.mpc.dealer.client import DealerClient
from hummingbird.mpc.dealer.deal import deal
from hummingbird.mpc.dealer.kept import Kept
from hummingbird.mpc.dealer.server import CorrectRequest, DealerService, _read, handlers
from hummingbird.mpc.protocols.masked import MaskedOpening
from hummingbird.mpc.session import meeting, rendezvous
from hummingbird.mpc.session.lanes import LanePosition
from hummingbird.pir import Owner, Server, Source, dpf
from hummingbird.pir import messages as pir
from hummingbird.pir.batching.batch_code import BatchCode
from hummingbird.pir.batching.plan import Plan
from hummingbird.pir.integrity import Identity, Statement, public_key, read_key
from hummingbird.pir.serving.server import audit
from hummingbird.prg import CIPHERS
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc.frame import pack_tensors, unpack_tensors
from hummingbird.rpc.security import check_address
from hummingbird.saving import folder as saved_folder
from hummingbird.saving import read_net, save
from hummingbird.saving import weights as saved_weights
from hummingbird.saving.description import NetDescription, _digest
from hummingbird.version import VERSION
from models import get_model
from tests.support import keeping
from tests.support.correlation_checks import CASES
from tests.support.dealers import Authority
from tests.support.updates import journaled, journals

ROWS, PARTIES = 40, 2


@dataclass(frozen=True)
class Parser:
    """samples: inputs to change, valid ones if `valid`. parse: reads one, or raises one of `errors`, nothing else."""

    samples: Sequence[bytes]
    parse: Callable[[bytes], object]
    errors: type[Exception] = HummingbirdError
    valid: bool = True


def _file(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A parser of files."""

    def parse(data: bytes) -> object:
        path.unlink(missing_ok=True)  # an inode of its own: another input's may still be mapped
        path.write_bytes(data)
        return read(path)

    return parse


def bits(root: Path) -> dict[str, Parser]:
    layers = {"relu": BitWindow(20, 12), "layer1.0.relu#1": BitWindow(0, 0)}
    config = BitConfig(BitWindow(18, 3), layers, {"net": "00", "seed": 1, "accuracy": [0.9, None]})
    samples = [config.to_json().encode(), BitConfig().to_json().encode()]
    return {"bits": Parser(samples, _file(root / "b", BitConfig.load))}


def checkpoints(root: Path) -> dict[str, Parser]:
    net, samples = get_model("digits", 10), []
    for zipped in (True, False):
        buffer = io.BytesIO()
        torch.save(net.state_dict(), buffer, _use_new_zipfile_serialization=zipped)
        samples.append(buffer.getvalue())
    read = _file(root / "c.pt", lambda path: load_checkpoint(path, net))

    def packed(data: bytes) -> object:
        """A changed pickle in an archive whose checksums are right."""
        archive = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(samples[0])) as whole, zipfile.ZipFile(archive, "w") as made:
            for name in whole.namelist():
                made.writestr(name, data if name.endswith("data.pkl") else whole.read(name))
        return read(archive.getvalue())

    with zipfile.ZipFile(io.BytesIO(samples[0])) as whole:
        pickled = whole.read(next(name for name in whole.namelist() if name.endswith("data.pkl")))
    return {
        "checkpoint": Parser(samples, read, ValueError),
        "checkpoint's pickle": Parser([pickled], packed, ValueError),
    }


def stores(root: Path) -> dict[str, Parser]:
    set_id, place = "ab" * 16, root / "ledger"
    place.mkdir()
    used = slots.beginning(set_id) + b'{"used": 0}\n{"bound": "weights", "digest": "00"}\n{"used": 2}\n'
    requests = [request for request, _ in CASES]
    facts = {"architecture": "a", "bits": "b", "protocol": "gmw", "weights": "public"}
    deal(root / "store", setup=[], steps=[requests[:6]], shape=(4, 6), slots=2, parties=PARTIES, facts=facts)
    party = folder.lane_folder(root / "store", 0, 0)
    header, seed = party / folder.HEADER, (party / folder.SEED).read_bytes()

    def signed(data: bytes) -> bytes:
        """A sample with a valid digest, as whoever has the seed can make it."""
        with contextlib.suppress(ValueError, RecursionError):
            fields = json.loads(data)
            if isinstance(fields, dict):
                fields.pop("digest", None)
                return json.dumps({**fields, "digest": slots.header_digest(fields, seed)}).encode()
        return data

    read = _file(header, lambda path: folder.read_header(party))
    return {
        "ledger": Parser([used], _file(place / folder.LEDGER, lambda path: slots.Ledger(path, set_id).close())),
        "kept store": Parser([keeping.keeper(root / "kept").kept.line()], lambda data: Kept.read(data, root)),
        "store header": Parser([header.read_bytes()], read),
        "store header, signed": Parser([header.read_bytes()], lambda data: read(signed(data))),
    }


def saved_nets(root: Path) -> dict[str, Parser]:
    """net.json, as it is and with its digest made right, converted without the weights; their file."""
    made, small = root / "saved", nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())
    save(nn.Sequential(small, nn.Linear(8, 3), nn.Hardtanh()), made, BitWindow(20, 4))
    text, weights = (made / "net.json").read_bytes(), made / "weights.safetensors"
    known = saved_folder.description(made)

    def convert(data: bytes) -> object:
        saved = NetDescription.from_json(data, "net.json")
        if sum(tensor.numel() for tensor in saved.tensors.values()) > 1 << 20:
            return None  # as many weights as the net says: another test has little memory
        net = read_net(root / "none", saved, weights=False)
        return build(net, *saved.arguments)

    def signed(data: bytes) -> object:
        with contextlib.suppress(ValueError, RecursionError, TypeError):
            fields = json.loads(data)
            whole = {"format": "hummingbird-net", "version": 1, "hummingbird": VERSION, "net": fields}
            return convert(json.dumps({**whole, "digest": _digest(fields)}).encode())
        return convert(data)

    read = _file(root / "w", lambda path: saved_weights.read(path, known))
    return {
        "saved net": Parser([text], convert),
        "saved net, signed": Parser([json.dumps(json.loads(text)["net"]).encode()], signed),
        "saved weights": Parser([weights.read_bytes()], read),
    }


def dealers() -> dict[str, Parser]:
    methods, context = handlers(DealerService()), type("Context", (), {"is_active": lambda self: True})()
    join, leave, correct = (lambda data, n=n: methods[n](data, context) for n in ("Join", "Leave", "Correct"))
    session = {"session": "00" * 16, "token": "11" * 16}
    first = {"session": "00" * 16, "rank": 0, "parties": PARTIES, "version": VERSION, "cipher": "aes-128-ctr"}
    items = [request.to_json() for request, _ in CASES]
    asked = [
        json.dumps({**session, "first": 0, "conversation": 0, "wait": 1.5, "requests": [item]}).encode()
        for item in items
    ]

    def requests(data: bytes) -> None:
        _read(data, CorrectRequest)

    def answer(data: bytes) -> object:
        client = DealerClient.__new__(DealerClient)
        client.address, client.rank, client.parties, client._timeout = "unix:d", 0, PARTIES, 1.0
        client._session, client._cipher, client._channel = bytes(16), "aes-128-ctr", None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rpc_client, "call", lambda *_, **__: data)
            return client._join()

    request = MaskedOpening(9, k=12, m=2, tables=2, ring=64)
    frame = pack_tensors(corrections(request, ReceiverTurn(0, 0), [bytes(16), bytes(range(16))]))
    assert len(layout(request)) == 6

    def correction(data: bytes) -> object:
        client = DealerClient.__new__(DealerClient)
        client.address = "unix:d"
        cuts = [data[start : start + 100] for start in range(0, len(data), 100)]
        return client._receive(iter(cuts), request)

    def seconds(data: bytes) -> object:
        client = DealerClient.__new__(DealerClient)
        client.address, client._told = "unix:d", 1.0
        trailer = (("dealer-seconds", data.decode(errors="replace")),)
        messages = type("Messages", (), {"__next__": lambda _: next(iter(())), "trailing_metadata": lambda _: trailer})
        return client._finish(messages())

    good = json.dumps({"seed": "00" * CIPHERS["aes-128-ctr"], "token": "11" * 16}).encode()
    return {
        "dealer's Join": Parser([json.dumps(first).encode()], join, valid=False),
        "dealer's Leave": Parser([json.dumps(session).encode()], leave, valid=False),
        "dealer's requests": Parser(asked, requests),
        "dealer's Correct": Parser(asked, lambda data: list(correct(data)), valid=False),
        "answer to Join": Parser([good], answer),
        "dealt corrections": Parser([frame], correction),
        "dealer's seconds": Parser([b"1.500000"], seconds),
    }


def tables(root: Path) -> dict[str, Parser]:
    source, owner = Source.of(torch.randn(ROWS, 3)), Owner()
    array = io.BytesIO()
    np.save(array, np.zeros((ROWS, 3), np.float32))
    saved = []
    for number, made in enumerate((source, owner.sign(source))):
        made.save(root / f"{number}.safetensors")
        saved.append((root / f"{number}.safetensors").read_bytes())
    entry = json.dumps({"w": {"dtype": "F16", "shape": [2, 2], "data_offsets": [0, 8]}}).encode()
    saved.append(struct.pack("<Q", len(entry)) + entry + bytes(8))
    open_safe = _file(root / "t.safetensors", Source.open)

    def headed(data: bytes) -> object:
        """A changed header, with its right length and as much data as it announces."""
        ends = [int(end) for end in re.findall(rb'"data_offsets": \[\d+, (\d+)\]', data)]
        return open_safe(struct.pack("<Q", len(data)) + data + bytes(min(max(ends, default=4096), 1 << 16)))

    heads = [data[8 : 8 + int.from_bytes(data[:8], "little")] for data in saved]
    code = BatchCode.cuckoo(ROWS, 4)
    hot = Plan(code, BatchCode(4, 3), torch.arange(4), torch.full((ROWS, 2), -1))
    plans = [Plan(code).to_json().encode(), hot.to_json().encode()]
    key = owner.public.hex().encode()
    return {
        "npy": Parser([array.getvalue()], _file(root / "t.npy", Source.open)),
        "safetensors": Parser(saved, open_safe),
        "safetensors header": Parser(heads, headed),
        "plan": Parser(plans, _file(root / "p.json", Plan.load)),
        "journal": Parser(journals(root), _file(root / "j", journaled)),
        "key file": Parser([key + b"\n"], _file(root / "k", read_key)),
        "public key": Parser([owner.public], lambda data: public_key(data, "test")),
        "secret key": Parser([owner.key], Owner),
    }


def lookups() -> dict[str, Parser]:
    source, owner, identity = Source.of(torch.randn(ROWS, 3)), Owner(), Identity(bytes(range(32)))
    signed = owner.sign(source)
    keys = dpf.generate(torch.arange(3), ROWS)[0]
    queries = [pir.pack_query("xor", keys), pir.pack_query("sum", keys)]
    server = Server(signed, 0, owner=owner.public, identity=bytes(range(32)))
    answer = server.handle(queries[0])
    updated = Server(signed, 0, owner=owner.public)
    update = owner.update(server.facts, server.state, torch.tensor([1, 5]), torch.randn(2, 3))
    statement = Statement(0, queries[0], answer, True)

    def changed(name: str) -> Callable[[bytes], object]:
        return lambda data: audit(server, replace(statement, **{name: data}), identity.public)

    def framed(data: bytes) -> object:
        return unpack_tensors(data, max_tensors=64)

    return {
        "frame": Parser([pack_tensors([keys, torch.arange(3), torch.zeros(2, 0)]), answer], framed),
        "query": Parser(queries, lambda data: pir.unpack_query(data, signed.facts, 0)),
        "query at a server": Parser(queries, server.handle),
        "answer": Parser([answer], lambda data: pir.unpack_answer(data, 3, signed.facts, True)),
        "update": Parser([update], lambda data: pir.unpack_update(data, signed.facts)),
        "update at a server": Parser([update], updated.update, valid=False),
        "description": Parser([server.describe()], pir.TableDescription.unpack),
        "statement's query": Parser([statement.query], changed("query")),
        "statement's answer": Parser([statement.answer], changed("answer")),
    }


def parties(root: Path) -> dict[str, Parser]:
    calls = {call.hello(bytes(16)): call for call in [handshake.Hello(1, 0, True)]}

    @contextlib.contextmanager
    def hearing(data: bytes) -> Any:
        """A channel to a party that has sent this, and left."""
        pair, back = socket.socketpair(), socket.socketpair()
        pair[0].sendall(data)
        pair[0].close()
        channel = Channel(0, PARTIES, {1: back[1]}, {1: pair[1]}, 5.0)
        try:
            yield channel
        finally:
            channel.close()
            back[0].close()

    def hello(data: bytes) -> None:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        listening = SimpleNamespace(  # TCP's option means nothing to this kind of socket
            recv=ends[1].recv,
            sendall=lambda _: None,
            **dict.fromkeys(("setblocking", "setsockopt", "close"), lambda *_: None),
        )
        ends[0].sendall(data)
        ends[0].close()
        try:
            for _ in handshake.take(listening, b"", calls, {}, bytes(16), None, ["party-0", "party-1"]):  # type: ignore[arg-type]
                pass
        except OSError as error:
            raise PeerError("a stranger") from error
        finally:
            ends[1].close()

    like = [torch.zeros(2, 3, dtype=torch.int64), torch.zeros(5, dtype=torch.uint8)]
    sent: list[bytes] = []
    tap = socket.socketpair()
    speaking = Channel(1, PARTIES, {0: tap[0]}, {0: tap[1]}, 5.0)
    for action in (lambda: speaking.send(0, *like), lambda: speaking._submit(0, 1, 0, [memoryview(b'{"a": "1"}')])):
        speaking._sent[0] = 0
        action()
        sent.append(tap[1].recv(4096))
    speaking._say(0, 2, "stopped\nhint: none")
    sent.append(tap[1].recv(4096))
    speaking.close()

    def tensors(data: bytes) -> None:
        with hearing(data) as channel:
            channel.receive(1, like)

    def text(data: bytes) -> None:
        with hearing(data) as channel:
            channel.exchange_text("mine")

    def said(function: Callable[[Any], object]) -> Callable[[bytes], object]:
        """A function of a channel on which the other party has sent this text."""
        return lambda data: function(
            SimpleNamespace(
                rank=0,
                parties=2,
                name="party 0",
                names=["party 0", "party 1"],
                exchange_text=lambda _: {1: data.decode(errors="replace")},
            )
        )

    class Store:
        facts, next_slot = {"store": "x"}, 3

        def skip_to(self, slot: int) -> None:
            assert 0 <= slot < 10**20

        def close(self) -> None:
            pass

    def next_slot(channel: Any) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rendezvous, "StoreDealer", lambda *_, **__: Store())
            patch.setattr(rendezvous, "agree", lambda *_: None)
            return rendezvous.open_store(channel, "x", LanePosition(0, 2, 0, 1), 1.0)

    def agree(channel: Any) -> None:
        rendezvous.agree(channel, "net", {"net": "00"})

    def address(data: bytes) -> None:
        check_address(data.decode(errors="replace"), None)

    folder_ = root / "tls"
    folder_.mkdir()
    tls = Authority(folder_, "ours").issue("party-0")
    files = {name: Path(getattr(tls, name)) for name in ("cert", "key", "ca")}

    def pem(name: str) -> Parser:
        parse = _file(folder_ / f"changed-{name}", lambda path: replace(tls, **{name: path}).contexts())
        return Parser([files[name].read_bytes()], parse)

    addresses = [b"127.0.0.1:7000", b"unix:/tmp/x.sock", b"[::1]:80", b"localhost:1"]

    def roll(data: bytes) -> object:
        return meeting.read_roll(data, dist.HashStore(), PARTIES)

    cards = [asdict(meeting.Card(f"127.0.0.1:{port}", 1)) for port in (7000, 7001)]
    called = json.dumps({"cards": cards, "token": "00" * 16, "dealer": "unix:/tmp/x.sock"}).encode()
    return {
        "roll": Parser([called], roll),
        "hello": Parser([next(iter(calls))], hello),
        "channel's tensors": Parser(sent, tensors, valid=False),
        "channel's text": Parser(sent, text, valid=False),
        "facts": Parser([b'{"net": "00", "bits": "x"}'], said(agree), valid=False),
        "next slot": Parser([b"7"], said(next_slot)),
        "X25519 key": Parser([b"09" + b"00" * 31], said(lambda c: rendezvous.zero_sharing_seeds(c, 16))),
        "address": Parser(addresses, address),
        **{f"TLS {name}": pem(name) for name in files},
    }


def all_parsers(root: Path) -> dict[str, Parser]:
    """The table; files are made under `root`."""
    return {
        **bits(root),
        **checkpoints(root),
        **stores(root),
        **saved_nets(root),
        **dealers(),
        **tables(root),
        **lookups(),
        **parties(root),
    }
