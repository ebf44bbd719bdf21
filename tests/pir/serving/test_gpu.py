"""A table on a GPU answers sums and shares as one on the CPU: in Triton's interpreter, and on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from hummingbird.errors import EnvironmentProblem, InputError
from hummingbird.kernels import registry
from hummingbird.kernels.lookups import RowStore
from hummingbird.pir import Server, Source, local_servers
from hummingbird.pir.serving.server import open_server
from tests.support.triton import interpret, run

# Pieces of one leaf, the last one cut; a part of a larger table; updates; wrong queries beside others.
PROGRAM = """
import pytest, sys, tempfile, threading, torch
from hummingbird import ring
from hummingbird.errors import InputError, PeerError
from hummingbird.kernels.gpu import lookups as gpu
from hummingbird.kernels import lookups
from hummingbird.pir import Client, Owner, PrivateEmbedding, Server, Service, Source, local_servers
from hummingbird.prg import Stream

device, source = torch.device(sys.argv[1]), Stream(bytes(16))
interpreted = device.type == "cpu"
if interpreted:
    on = lookups._store_on
    lookups._store_on = lambda name, *all: gpu.SignedRows(*all[:2], device) if name == "cuda" else on(name, *all)
gpu._MOST_BITS = 3 * 128

size, row_bytes = 1500, 24
data = source.bytes(size * row_bytes).view(size, row_bytes)
here, there = lookups.Table.prepare(data), lookups.Table(size, row_bytes, "cuda")
there.fill(0, data[:1001])
there.fill(1001, data[1001:])
index, new = torch.tensor([7, 1499, 7]), source.bytes(3 * row_bytes).view(3, row_bytes)
here.update(index, new)
there.update(index, new)
keys = torch.cat(lookups.generate(torch.tensor([0, 1499]), size, "chacha12", source.bytes)[:2])
assert torch.equal(there.answer_sum(keys, 32), here.answer_sum(keys, 32))
if interpreted:  # ChaCha takes seconds there, and was interpreted just now; one interpreter serves all threads
    gpu.expand = lambda keys, first, leaves, device: lookups.expand(keys, first, leaves)
    select_sum, alone = gpu.select_sum, threading.Lock()

    def one_at_a_time(*arguments):
        with alone:
            return select_sum(*arguments)

    gpu.select_sum = one_at_a_time
for width in lookups.WIDTHS:
    for batch in (keys, keys[:1]):
        assert torch.equal(there.answer_sum(batch, width), here.answer_sum(batch, width)), width
larger = lookups.generate(torch.tensor([1024]), 1024 + size, "chacha12", source.bytes)[0]
assert torch.equal(there.answer_sum(larger, 32, 1), here.answer_sum(larger, 32, 1))
with pytest.raises(InputError, match="sums to ChaCha12 keys only"):
    there.answer(keys)

for dtype in (torch.float32, torch.float16, torch.int8):
    layer = torch.nn.Embedding(1500, 4)
    layer.weight = torch.nn.Parameter((50 * torch.randn(1500, 4)).to(dtype), requires_grad=False)
    wanted = torch.tensor([[0, 1499], [3, 1024]])
    name = "cuda,cuda" if dtype == torch.float16 else "cuda"  # in two parts, or as a whole
    client = Client(local_servers(layer, device=name), decoder="sum", prf="chacha12")
    private = PrivateEmbedding.from_torch(layer, client)
    assert torch.equal(private(wanted), layer(wanted))

owner, table = Owner(), torch.randn(1500, 4)
code = ring.encode(table)  # as a party of `hummingbird serve` holds it
servers, wanted = local_servers(code, device="cuda"), torch.tensor([3, 1400])
assert torch.equal(Client(servers, decoder="sum", prf="chacha12").rows(wanted), code[wanted])
with pytest.raises(PeerError, match="sums to ChaCha12 keys only"):
    Client(servers, decoder="sum").rows(wanted)

folder = tempfile.mkdtemp(prefix="hb")
addresses = [f"unix:{folder}/{party}" for party in (0, 1)]
served = local_servers(table, owner=owner.public, device="cuda")
services = [Service(server, address, max_wait=0.3) for server, address in zip(served, addresses)]
good, bad = Client(addresses, decoder="sum", prf="chacha12"), [Client(addresses), Client(addresses, decoder="sum")]
refused = []


def ask(client):
    try:
        client.rows(torch.tensor([5]))
    except Exception as error:
        refused.append(str(error))


others = [threading.Thread(target=ask, args=(client,)) for client in bad]
for thread in others:
    thread.start()
assert torch.equal(good.rows(torch.tensor([1, 1499])), table[[1, 1499]])
for thread in others:
    thread.join()
assert len(refused) == 2 and all("sums to ChaCha12 keys only" in text and 'prf="chacha12"' in text for text in refused)
rows_new = torch.randn(1, 4)
good.update(owner.update(good.facts, good.state, torch.tensor([5]), rows_new))
assert torch.equal(good.rows(torch.tensor([5])), rows_new)
for client in (good, *bad):
    client.close()
for service in services:
    service.stop(1.0)
"""


@pytest.mark.slow
def test_in_tritons_interpreter() -> None:
    interpret(PROGRAM, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu() -> None:
    run(PROGRAM, "cuda")


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = torch.randn(5, 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="no GPU that PyTorch can use"):
        local_servers(table, device="cuda")
    with pytest.raises(InputError, match="no device 'tpu'"):
        Server(table, 0, device="tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match="cuda:2 of 2 GPUs.*\nhint: they are cuda:0 to cuda:1"):
        Server(table, 0, device="cuda:2")
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in ("chacha20", "dpf", "lookups", "rows"):
        monkeypatch.delitem(sys.modules, f"hummingbird.kernels.gpu.{name}", raising=False)
    monkeypatch.delitem(registry._KERNELS, (RowStore, "gpu"), raising=False)
    with pytest.raises(InputError, match="Triton cannot be imported"):
        Server(table, 0, device="cuda")
    Source.of(table).save(tmp_path / "t.safetensors")
    with pytest.raises(InputError, match="2 workers for a table on cuda"):
        open_server(tmp_path / "t.safetensors", 0, workers=2, device="cuda")


def test_a_table_that_does_not_fit_on_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any memory is taken; the kernels' module needs Triton."""
    pytest.importorskip("triton")
    from hummingbird.kernels.gpu.lookups import SignedRows

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 80 << 30))
    what = (
        r"rows on cuda:1 take 5\.10 GB with room to answer, 1\.07 are left there.*\nhint: split the table over several"
    )
    with pytest.raises(EnvironmentProblem, match=what):
        SignedRows(1 << 24, 256, torch.device("cuda:1"))
