"""The layer that looks rows up by a plan: torch's outputs where nothing is dropped, and traffic that tells nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hummingbird.errors import AgreementError, ConfigError, InputError
from hummingbird.pir.batching import access_stats
from hummingbird.pir.batching.batch_code import BatchCode
from hummingbird.pir.batching.cost_model import price
from hummingbird.pir.batching.embedding import BatchedEmbedding
from hummingbird.pir.batching.plan import Plan
from hummingbird.pir.client import Client
from hummingbird.pir.integrity import Owner
from hummingbird.pir.messages import pack_query
from hummingbird.pir.serving.bucket_server import plan_servers
from hummingbird.pir.serving.server import Server
from hummingbird.pir.serving.service import Service
from hummingbird.pir.updating import Updater
from models.recommender import Recommender
from tests.support import python
from tests.support.patience import HANG

ROWS = 2500


@lru_cache
def plan_of(kind: str, rows: int = ROWS) -> Plan:
    generator = torch.Generator().manual_seed(5)
    accesses = [(torch.rand(20, generator=generator) ** 3 * rows).long() for _ in range(40)]
    hot = access_stats.hottest(access_stats.frequencies(accesses, rows), 0.1)
    if kind == "cuckoo":
        return Plan(BatchCode.cuckoo(rows, 24))
    if kind == "bins":
        return Plan(BatchCode(rows, 4, 1, 2))
    return Plan(
        BatchCode.cuckoo(rows, 16), BatchCode.cuckoo(len(hot), 16), hot, access_stats.companions(accesses, rows, 2)
    )


def embedding_of(dtype: torch.dtype, dim: int = 5, **options: int) -> nn.Embedding:
    values = torch.randn(ROWS, dim, generator=torch.Generator().manual_seed(1)) * 40
    return nn.Embedding.from_pretrained(values.to(dtype), **options)


def private(embedding: nn.Embedding, plan: Plan, **options: Any) -> BatchedEmbedding:
    servers = [plan_servers(embedding, plan, party) for party in (0, 1)]
    return BatchedEmbedding.from_torch(embedding, plan, *servers, **options)


def inputs(lines: int, length: int) -> Tensor:
    return (torch.rand(lines, length, generator=torch.Generator().manual_seed(3)) ** 3 * ROWS).long()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("kind", ["cuckoo", "hot and companions"])
def test_it_gives_what_torch_gives(dtype: torch.dtype, kind: str) -> None:
    embedding = embedding_of(dtype)
    layer, wanted = private(embedding, plan_of(kind)), inputs(3, 20)
    assert torch.equal(layer(wanted), embedding(wanted))
    assert torch.equal(layer(wanted[0].int()), embedding(wanted[0])) and layer.dropped == 0
    assert layer(wanted[:0]).shape == (0, 20, 5) and layer(wanted[:, :0]).shape == (3, 0, 5)


@pytest.mark.parametrize("options", [{"decoder": "sum"}, {"prf": "chacha12"}])
def test_the_client_options_are_the_clients(options: dict[str, str]) -> None:
    embedding = embedding_of(torch.float32)
    assert torch.equal(private(embedding, plan_of("cuckoo"), **options)(inputs(2, 9)), embedding(inputs(2, 9)))


def test_dropped_rows_and_padding_are_zeros() -> None:
    embedding = embedding_of(torch.float32, padding_idx=0)
    layer, wanted = private(embedding, plan_of("bins")), inputs(4, 20)
    wanted[:, 15:] = 0
    out, exact = layer(wanted), embedding(wanted)
    same = (out == exact).all(-1)
    assert (out[~same] == 0).all() and (out[wanted == 0] == 0).all()
    assert layer.dropped == int((~same & (wanted != 0)).sum()) > 0


def test_a_net_is_unchanged_by_private_lookups() -> None:
    torch.manual_seed(0)
    net = Recommender(ROWS - 1).eval()
    wanted, weights = inputs(5, 16), torch.randn(5, 15)
    wanted[2, 7:] = 0
    weights[2, 6:] = 0
    with torch.inference_mode():
        exact = net(wanted, weights)
        net.items = private(net.items, plan_of("hot and companions"))
        assert torch.equal(net(wanted, weights), exact)
        assert net.items.dropped == 0


class Recording:
    """A link that notes the sizes of what goes through it."""

    def __init__(self, server: Server, trace: list[tuple[str, int, int]]) -> None:
        self.server, self.name, self.trace = server, server.name, trace

    def __getattr__(self, name: str) -> object:
        return getattr(self.server, name)

    def begin(self, query: bytes, *rest: float) -> Callable[[], bytes]:
        answer = self.server.begin(query, *rest)

        def noted() -> bytes:
            data = answer()
            self.trace.append((self.name, len(query), len(data)))
            return data

        return noted


@pytest.mark.parametrize("kind", ["cuckoo", "bins", "hot and companions"])
def test_traffic_is_the_same_whatever_is_wanted(kind: str) -> None:
    """Hot rows, cold ones, one row many times, padding alone, more than there are keys: one trace, at the price."""
    embedding, plan = embedding_of(torch.float32, padding_idx=0), plan_of(kind)
    trace: list[tuple[str, int, int]] = []
    servers = [[Recording(server, trace) for server in plan_servers(embedding, plan, party)] for party in (0, 1)]
    layer = BatchedEmbedding.from_torch(embedding, plan, *servers)
    hot = plan.hot_rows[:40] if plan.hot else torch.arange(40)
    cases = [torch.zeros(40).long(), torch.full((40,), 7), hot, ROWS - 1 - torch.arange(40), inputs(1, 40)[0]]
    traces = []
    for wanted in [*cases, inputs(1, 200)[0], inputs(1, 1)[0]]:
        trace.clear()
        layer(wanted)
        traces.append(list(trace))
    assert all(one == traces[0] for one in traces) and len(traces[0]) == 2 * len(plan.codes)
    cost = price(plan.codes, plan.parts * 20)
    sent, received = (sum(entry[place] for entry in traces[0]) for place in (1, 2))
    headers = 256 * len(traces[0])  # more than those of a frame and a state
    assert cost.up < sent < cost.up + headers and cost.down < received < cost.down + headers


# Rows that are kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bins", "hot and companions"])
def test_kept_rows_take_no_key_and_show_in_no_message(kind: str) -> None:
    """A text that goes on: fewer rows are dropped, all others are right, and every request has the same sizes."""
    embedding, plan = embedding_of(torch.float32, padding_idx=0), plan_of(kind)
    trace: list[tuple[str, int, int]] = []
    servers = [[Recording(server, trace) for server in plan_servers(embedding, plan, party)] for party in (0, 1)]
    text, dropped, traces = inputs(120, 20), {}, {}
    for cache in (0, 100, 10_000):
        layer, seen = BatchedEmbedding.from_torch(embedding, plan, *servers, cache=cache), []
        for line in text:
            trace.clear()
            got, exact = layer(line), embedding(line)
            seen.append(list(trace))
            same = (got == exact).all(-1)
            assert (got[~same] == 0).all()
        assert all(one == seen[0] for one in seen) and len(layer._kept) <= cache
        dropped[cache], traces[cache] = layer.dropped, seen[0]
        assert (layer.cached > 0) == (cache > 0)
    assert traces[0] == traces[100] == traces[10_000]
    if kind == "bins":
        assert dropped[10_000] < dropped[100] < dropped[0] and dropped[10_000] < 0.6 * dropped[0], dropped


def test_rows_that_were_used_longest_ago_are_forgotten() -> None:
    embedding = embedding_of(torch.float32)
    layer = private(embedding, plan_of("cuckoo"), cache=3)
    for wanted, kept in (([1, 2, 3], [1, 2, 3]), ([2], [1, 3, 2]), ([9, 2], [3, 2, 9]), ([4, 4], [2, 9, 4])):
        assert torch.equal(layer(torch.tensor(wanted)), embedding(torch.tensor(wanted)))
        assert sorted(layer._kept) == sorted(kept)
    assert layer.cached == 2
    for cache in (-1, True, 1.5):
        with pytest.raises(ConfigError, match="a cache of"):
            private(embedding, plan_of("cuckoo"), cache=cache)  # type: ignore[arg-type]


@pytest.mark.parametrize("padded", [False, True])
def test_kept_rows_are_of_the_version_of_the_others(padded: bool) -> None:
    """After an update no old row comes back, and the call is made twice, whichever rows it wants, or has kept."""
    embedding, plan, owner = embedding_of(torch.float32, padding_idx=0), plan_of("hot and companions"), Owner()
    trace: list[tuple[str, int, int]] = []
    plain = [plan_servers(embedding, plan, party, owner=owner.public) for party in (0, 1)]
    servers = [[Recording(server, trace) for server in one] for one in plain]
    wanted, now = inputs(1, 12)[0], embedding.weight.clone()
    layer = BatchedEmbedding.from_torch(embedding, plan, *servers, cache=500)
    layer(torch.zeros(12, dtype=torch.int64) if padded else wanted)
    for number, asked in enumerate((wanted, wanted.flip(0), torch.arange(ROWS - 12, ROWS))):
        with Updater(owner, [one[-1] for one in plain], table=plan.table) as updater:
            rows = torch.full((2, 5), float(number))
            updater.update(wanted[:1].repeat(2) + torch.tensor([0, 1]), rows)
        now[wanted[0]], now[wanted[0] + 1], now[0] = *rows, torch.zeros(5)  # 0: padding
        trace.clear()
        assert torch.equal(layer(asked), now[asked])
        assert len([sent for _, sent, _ in trace if sent]) == 4 * len(plan.codes)  # the others ask for the version
        trace.clear()
        assert torch.equal(layer(asked), now[asked]) and len(trace) == 2 * len(plan.codes)


def test_servers_of_another_plan_or_table_are_found_out() -> None:
    embedding, plan = embedding_of(torch.float32), plan_of("cuckoo")
    servers = [plan_servers(embedding, plan, party) for party in (0, 1)]
    with pytest.raises(AgreementError, match="plan"):
        BatchedEmbedding.from_torch(embedding, Plan(BatchCode(ROWS, 30)), *servers)
    with pytest.raises(ConfigError, match="clients"):
        BatchedEmbedding(plan_of("hot and companions"), [Client([one[0] for one in servers])])
    with pytest.raises(AgreementError, match="the layer is"):
        BatchedEmbedding.from_torch(embedding_of(torch.float32, dim=6), plan, *servers)
    with pytest.raises(InputError, match="the table has"):
        plan_servers(torch.zeros(10, 4), plan, 0)
    with pytest.raises(InputError, match="indices"):
        private(embedding, plan)(torch.zeros(1, 2, 3, dtype=torch.int64))
    with pytest.raises(InputError, match="wanted row"):
        private(embedding, plan)(torch.tensor([ROWS]))


def test_a_query_that_is_not_of_whole_inferences_is_refused() -> None:
    from hummingbird.pir import dpf

    (server,) = plan_servers(embedding_of(torch.float32), plan_of("cuckoo"), 0)
    for count in (35, 37, 71):
        keys = dpf.generate(torch.zeros(count, dtype=torch.int64), server.facts.rows)[0]
        with pytest.raises(InputError, match="an inference has 36 keys"):
            server.handle(pack_query("xor", keys))
    with pytest.raises(InputError, match="no updates"):
        server.update(b"")


def test_over_the_wire_several_clients_share_a_pass(tmp_path: Path) -> None:
    embedding, plan = embedding_of(torch.float32), plan_of("cuckoo")
    addresses = [f"unix:{tmp_path}/{party}.sock" for party in (0, 1)]
    services = [
        Service(plan_servers(embedding, plan, party)[0], address, max_batch=4 * plan.keys, max_wait=0.5)
        for party, address in enumerate(addresses)
    ]
    layers = [BatchedEmbedding.from_torch(embedding, plan, addresses[:1], addresses[1:]) for _ in range(4)]
    outputs: dict[int, Tensor] = {}
    threads = [
        threading.Thread(target=lambda n=n: outputs.update({n: layers[n](inputs(4, 20)[n])}))
        for n in range(len(layers))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    try:
        assert torch.equal(torch.stack([outputs[n] for n in range(4)]), embedding(inputs(4, 20)))
    finally:
        for layer in layers:
            layer.clients[0].close()
        for service in services:
            service.stop(0)


# Plans in files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cuckoo", "bins", "hot and companions"])
def test_a_plan_from_a_file_is_the_same(kind: str, tmp_path: Path) -> None:
    plan, path = plan_of(kind), tmp_path / "plan.json"
    path.write_text(plan.to_json())
    other = Plan.load(path)
    assert (other.codes, other.parts) == (plan.codes, plan.parts) and torch.equal(other.hot_rows, plan.hot_rows)
    assert all(torch.equal(a, b) for a, b in zip(other.layouts(), plan.layouts(), strict=True))


def test_files_that_are_no_plans(tmp_path: Path) -> None:
    path, good = tmp_path / "plan.json", json.loads(plan_of("hot and companions").to_json())
    code = good["full"]
    wrong: list[object] = [[], 3, "x", {}, {**good, "format": "other"}, {**good, "full": None}, {**good, "hot": None}]
    wrong += [
        {**good, "full": {**code, **change}} for change in ({"rows": 0}, {"rows": "9"}, {"seed": "x"}, {"more": 1})
    ]
    for name, rows in (("hot_rows", [-1]), ("hot_rows", [0.5]), ("hot_rows", [[1]]), ("companions", [[1]])):
        wrong.append({**good, name: rows})
    wrong.append({**good, "companions": [[ROWS]] * ROWS})
    for fields in wrong:
        path.write_text(json.dumps(fields))
        with pytest.raises(InputError, match="malformed plan"):
            Plan.load(path)
    with pytest.raises(InputError, match="cannot read the plan"):
        Plan.load(tmp_path / "absent.json")


def test_programs_serve_a_plan() -> None:
    """Two tables at each server, hot and full."""
    embedding, folder = embedding_of(torch.float32), Path(tempfile.mkdtemp(prefix="hb"))
    np.save(folder / "t.npy", embedding.weight.numpy())
    (folder / "plan.json").write_text(plan_of("hot and companions").to_json())
    command = [sys.executable, "-m", "hummingbird", "pir-server", "--table", f"{folder}/t.npy"]
    command += ["--plan", f"{folder}/plan.json", "--party"]
    addresses = [[f"unix:{folder}/{name}{party}" for name in ("hot", "full")] for party in (0, 1)]
    programs = [
        python.Popen([*command, str(party), "--listen", *addresses[party]], stdout=subprocess.PIPE, text=True)
        for party in (0, 1)
    ]
    try:
        layer = BatchedEmbedding.from_torch(embedding, Plan.load(folder / "plan.json"), *addresses, timeout=HANG)
        assert torch.equal(layer(inputs(3, 20)), embedding(inputs(3, 20)))
        for client in layer.clients:
            client.close()
    finally:
        for program in programs:
            program.terminate()
        out = [program.communicate(timeout=HANG)[0] for program in programs]
        shutil.rmtree(folder)
    assert all(text.count("listening on") == 1 and text.count("pir-server party") == 4 for text in out)
