"""Several tables in one request: torch's results, constant traffic as predicted, updates, and what is refused."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hummingbird.errors import AgreementError, ConfigError, InputError, PeerError
from hummingbird.pir import (
    Client,
    EmbeddingTables,
    KeywordTable,
    Owner,
    ServedTables,
    Server,
    Source,
    TableLink,
    local_tables,
)
from hummingbird.pir.batching import tables as module
from hummingbird.pir.messages import MAX_CALLS, pack_calls, pack_results, unpack_calls, unpack_results
from hummingbird.pir.serving.tables import TablesMethods
from hummingbird.pir.updating import Updater
from hummingbird.rpc.admission import MAX_MESSAGE
from models.dlrm import Dlrm
from tests.jobs.pir_servers import Pair
from tests.support.patience import HANG

SIZES = {"shops": (50, 8, 1), "items": (900, 4, 20), "users": (3000, 5, 3)}  # rows, dim, lookups


def bags(mode: str = "sum", dtype: torch.dtype = torch.float32) -> dict[str, nn.EmbeddingBag]:
    torch.manual_seed(0)
    return {name: nn.EmbeddingBag(rows, dim, mode=mode).to(dtype) for name, (rows, dim, _) in SIZES.items()}


LOOKUPS = {name: count for name, (_, _, count) in SIZES.items()}


def inputs(samples: int, seed: int = 1, fewer: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(rows, (samples, max(0, count - fewer)), generator=generator)
        for name, (rows, _, count) in SIZES.items()
    }


class Noted:
    """A server that notes the sizes of its messages."""

    def __init__(self, server: Any, sizes: list[tuple[str, int, int]]) -> None:
        self.server, self.name, self.sizes = server, server.name, sizes

    def begin(self, message: bytes, method: str = "Several") -> Callable[[], bytes]:
        finish = self.server.begin(message, method)

        def noted() -> bytes:
            answer: bytes = finish()
            if "Answer" in {name for _, name, _ in unpack_calls(message)}:
                self.sizes.append((self.name, len(message), len(answer)))
            return answer

        return noted


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("options", [{}, {"decoder": "sum", "prf": "chacha12"}])
def test_it_gives_what_torch_gives(mode: str, options: dict[str, str]) -> None:
    tables = bags(mode)
    layer = EmbeddingTables.from_torch(tables, LOOKUPS, local_tables(tables), **options)
    for fewer, samples in ((0, 6), (1, 1), (2, 3)):
        wanted = inputs(samples, fewer=fewer)
        out = layer(wanted)
        for name, x in wanted.items():
            expected = tables[name](x) if x.shape[1] else torch.zeros(samples, SIZES[name][1])
            assert torch.equal(out[name], expected), name
    if mode == "sum":
        weights = {"items": torch.randn(6, 20)}
        out = layer(inputs(6), weights)
        assert torch.equal(out["items"], tables["items"](inputs(6)["items"], per_sample_weights=weights["items"]))
    assert layer({name: x.int()[:0] for name, x in inputs(2).items()})["items"].shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    tables = bags("sum", dtype)
    layer = EmbeddingTables(local_tables(tables), LOOKUPS, mode=dict.fromkeys(LOOKUPS, "sum"))
    assert all(torch.equal(out, tables[name](inputs(3)[name])) for name, out in layer(inputs(3)).items())


def test_traffic_is_as_predicted_whatever_is_wanted() -> None:
    """Exactly the predicted bytes; all dummies, hot rows, one row again and again: the same; split where it must be."""
    sizes: list[tuple[str, int, int]] = []
    layer = EmbeddingTables([Noted(server, sizes) for server in local_tables(bags())], LOOKUPS)
    for samples in (1, 7):
        for wanted in (inputs(samples), inputs(samples, fewer=5), {n: x * 0 for n, x in inputs(samples).items()}):
            sizes.clear()
            layer(wanted)
            assert [size[1:] for size in sizes] == [layer.traffic(samples)] * 2
    assert layer._most == 4096 // 20
    layer._most = 3
    sizes.clear()
    out = layer(inputs(7))
    assert [size[1:] for size in sizes[::2]] == [layer.traffic(3), layer.traffic(3), layer.traffic(1)]
    assert torch.equal(out["users"], bags()["users"](inputs(7)["users"]))


def test_signed_rows_and_answers() -> None:
    owner = Owner()
    tables = {name: owner.sign(Source.of(bag)) for name, bag in bags().items()}
    identities = [Owner(), Owner()]  # keys of the same kind
    both = [
        ServedTables({name: Server(table, party, identity=identities[party].key) for name, table in tables.items()})
        for party in (0, 1)
    ]
    keys = [identity.public for identity in identities]
    sizes: list[tuple[str, int, int]] = []
    noted = [Noted(server, sizes) for server in both]
    layer = EmbeddingTables(noted, LOOKUPS, owner=owner.public, identities=keys)
    out = layer(inputs(4))
    assert torch.equal(out["items"], bags()["items"](inputs(4)["items"]))
    assert [size[1:] for size in sizes] == [layer.traffic(4)] * 2
    forged = torch.zeros(900, tables["items"].facts.record_bytes, dtype=torch.uint8)
    both[1].servers["items"].write(torch.arange(900), forged)
    with pytest.raises(PeerError, match="lied"):
        layer(inputs(4))


@pytest.mark.parametrize(("dim", "letters"), [(64, 200), (90, 200), (300, 1), (1, 50)])
def test_the_largest_request_fits_a_message(dim: int, letters: int) -> None:
    """Where the request is the larger one of a sample, and the answer grows faster."""
    tables = {"x" * letters + str(n): torch.zeros(1000, dim) for n in range(4)}
    layer = EmbeddingTables(local_tables(tables), dict.fromkeys(tables, 1))
    assert max(layer.traffic(layer._most)) <= MAX_MESSAGE
    assert layer._most == 4096 or max(layer.traffic(layer._most + 1)) > MAX_MESSAGE


def test_a_service_that_stops_says_so() -> None:
    methods = TablesMethods(local_tables(bags())[0])
    calls = pack_calls([("shops", "Describe", b""), ("items", "Describe", b"")])
    methods._handlers["items"]["Describe"] = lambda data, context: torch.zeros(2) @ torch.zeros(3)
    with pytest.raises(RuntimeError, match="inconsistent|size"):  # a fault of its own keeps its name
        methods.handlers()["Several"](calls, None)  # type: ignore[arg-type]
    methods.close()
    with pytest.raises(PeerError, match="stopping"):
        methods.handlers()["Several"](calls, None)  # type: ignore[arg-type]


def test_updates_of_one_table_reach_its_rows_alone() -> None:
    owner, tables = Owner(), bags()
    servers = local_tables(tables, owner=owner.public)
    layer = EmbeddingTables(servers, LOOKUPS)
    with Updater(owner, [TableLink(server, "shops") for server in servers]) as updater:
        updater.update(torch.arange(50), torch.ones(50, 8))
    out, before = layer(inputs(2)), bags()
    assert torch.equal(out["shops"], torch.ones(2, 8)) and torch.equal(
        out["items"], before["items"](inputs(2)["items"])
    )
    with contextlib.closing(Client([TableLink(server, "shops") for server in servers])) as client:
        assert client.state.version == 1 and torch.equal(client.rows(torch.tensor([3])), torch.ones(1, 8))
    # An update that reaches one server only: the layer waits, and names both.
    users = servers[0].servers["users"]
    users.update(owner.update(users.facts, users.state, torch.tensor([1]), out["users"][:1]))
    with pytest.raises(AgreementError, match="server 0.*table users.*server 1.*table users"):
        layer(inputs(2))


# Programs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sockets() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hb"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_dlrm_from_keys_to_logits(tmp_path: Path, sockets: Path) -> None:
    """Twenty tables with 3 to 47 lookups at two programs: the net's logits, in one request of the predicted bytes."""
    torch.manual_seed(0)
    net = Dlrm(dense=13, tables={f"table{n}": 100 * (n + 1) for n in range(20)}, dim=16).eval()
    lookups = {name: 3 + 44 * n // 19 for n, name in enumerate(net.tables)}
    options = ["--tables"]
    for name, bag in net.tables.items():
        np.save(tmp_path / f"{name}.npy", bag.weight.detach().numpy())
        options.append(f"{name}={tmp_path}/{name}.npy")
    dense = torch.randn(5, 13)
    wanted = {name: torch.randint(100 * (n + 1), (5, lookups[name])) for n, name in enumerate(net.tables)}
    pair = Pair(sockets, *options, "--max-wait", "0")
    try:
        pair.wait()
        layer = EmbeddingTables.from_torch(net.tables, lookups, pair.last, timeout=HANG)
        with torch.inference_mode():
            expected = net(dense, wanted)
            net.tables = layer
            assert torch.equal(net(dense, wanted), expected)
        pair.kill(1)
        layer._timeout = 1.0
        with pytest.raises(PeerError, match="server 1"):
            layer(wanted)
        pair.start(1)
        pair.wait()
        assert torch.equal(net(dense, wanted), expected)
        layer.close()
    finally:
        pair.close()


@pytest.mark.slow
def test_one_request_is_three_times_as_fast_as_twenty(tmp_path: Path, sockets: Path) -> None:
    rows, options, lookups = torch.randn(20_000, 16), ["--tables"], {f"t{n}": 3 + 44 * n // 19 for n in range(20)}
    np.save(tmp_path / "t.npy", rows.numpy())
    for name in lookups:
        options.append(f"{name}={tmp_path}/t.npy")
    pair = Pair(sockets, *options)
    try:
        pair.wait()
        layer = EmbeddingTables(pair.last, lookups, timeout=HANG)
        single = {name: EmbeddingTables(pair.last, {name: count}, timeout=HANG) for name, count in lookups.items()}
        wanted = {name: torch.randint(20_000, (1, count)) for name, count in lookups.items()}
        took = {"one": [], "twenty": []}  # type: dict[str, list[float]]
        for _ in range(15):
            start = time.perf_counter()
            layer(wanted)
            took["one"].append(time.perf_counter() - start)
            start = time.perf_counter()
            for name, one in single.items():
                one({name: wanted[name]})
            took["twenty"].append(time.perf_counter() - start)
        best = {name: min(times) for name, times in took.items()}
        print(f"MEASURED one request {1e3 * best['one']:.1f} ms, twenty {1e3 * best['twenty']:.1f} ms")
        assert best["twenty"] > 2 * best["one"]
    finally:
        pair.close()


# What is refused ------------------------------------------------------------------------------------------------------


def test_arguments_that_do_not_fit() -> None:
    servers, tables = local_tables(bags()), bags()
    for lookups, options, what in (
        ({}, {}, "modes"),
        ({"shops": 0}, {}, "0 lookups in table 'shops'"),
        ({"shops": 1}, {"mode": "best"}, "modes"),
        ({"shops": 1}, {"mode": {"items": "sum"}}, "modes"),
        ({"shops": 20_000}, {}, "a sample's lookups take"),
    ):
        with pytest.raises(ConfigError, match=what):
            EmbeddingTables(servers, lookups, **options)  # type: ignore[arg-type]
    with pytest.raises(PeerError, match="there is no table .shop.") as caught:
        EmbeddingTables(servers, {"shop": 1})
    assert "shops, items, users" in caught.value.hint
    with pytest.raises(ConfigError, match="table 'a' is by keyword"):
        EmbeddingTables(local_tables({"a": KeywordTable(["x"], torch.zeros(1, 2)).source}), {"a": 1})
    with pytest.raises(ConfigError, match="table 'a' of int64"):
        EmbeddingTables(local_tables({"a": torch.zeros(3, 2, dtype=torch.int64)}), {"a": 1})
    with pytest.raises(ConfigError, match="table 'shops' cannot be replaced"):
        EmbeddingTables.from_torch({"shops": nn.EmbeddingBag(50, 8, padding_idx=0)}, {"shops": 1}, servers)
    with pytest.raises(AgreementError, match="the layer's table 'shops' has"):
        EmbeddingTables.from_torch({"shops": nn.EmbeddingBag(51, 8)}, {"shops": 1}, servers)
    layer, good = EmbeddingTables.from_torch(tables, LOOKUPS, servers), inputs(2)
    for change, what in (
        ({"items": torch.zeros(2, 21, dtype=torch.int64)}, r"got torch.int64 \(2, 21\)"),
        ({"items": torch.zeros(2, 3)}, "got torch.float32"),
        ({"items": torch.full((2, 3), 900)}, "outside of the table"),
        ({"items": torch.zeros(3, 2, dtype=torch.int64)}, "samples"),
        ({"more": torch.zeros(2, 2, dtype=torch.int64)}, "inputs for"),
    ):
        with pytest.raises(InputError, match=what):
            layer({**good, **change})
    for weights in (torch.ones(2, 3), torch.ones(2, 20).double(), [[1.0]]):
        with pytest.raises(InputError, match="weights"):
            layer(good, {"items": weights})  # type: ignore[dict-item]
    with pytest.raises(InputError, match="tables"):
        ServedTables({})
    with pytest.raises(InputError, match="tables"):
        ServedTables({"a": Server(torch.zeros(3, 2), 0), "b": Server(torch.zeros(3, 2), 1)})


def test_messages_that_are_no_calls() -> None:
    calls = [("a", "Answer", b"xyz"), ("b", "Describe", b"")]
    assert unpack_calls(pack_calls(calls)) == calls and unpack_results(pack_results([b"", b"1"]), 2) == [b"", b"1"]
    good, server = pack_calls(calls), local_tables(bags())[0]
    generator = np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(good[: generator.integers(1, len(good) + 1)])
        for _ in range(3):
            data[generator.integers(len(data))] = generator.integers(256)
        with contextlib.suppress(InputError):
            server.begin(bytes(data))()
    for message, what in (
        (pack_calls([("shops", "Close", b"")]), "no method 'Close'"),
        (pack_calls([]), "malformed calls"),
        (pack_results([b"[]"]), "malformed calls"),
        (pack_calls([("shops", "Describe", b"")] * (MAX_CALLS + 1)), "calls|tensors"),
        (pack_calls([("shops", "Describe", b"")] * 2), "do not go together"),
        (pack_calls([("shops", "Describe", b""), ("items", "PastUpdate", bytes(8))]), "do not go together"),
    ):
        with pytest.raises(InputError, match=what):
            server.begin(message)()
    with pytest.raises(InputError, match="no method Describe"):
        server.begin(b"", "Describe")
    with pytest.raises(InputError, match="2 results of 3"):
        unpack_results(pack_results([b"", b"1"]), 3)
    assert module.EmbeddingTables is EmbeddingTables
