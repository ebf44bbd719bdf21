"""A table in parts on several devices answers as one: here on CPUs, in test_gpu.py with the kernels of a GPU."""

from __future__ import annotations

import pytest
import torch

from hummingbird import ring
from hummingbird.errors import InputError
from hummingbird.pir import Client, Owner, Server, Source, local_servers
from hummingbird.pir.serving import workers
from hummingbird.pir.serving.workers import Split, TableShard, opened

ROWS = 5000  # 5 leaves, the last one cut: parts of 1, 2 and 2
TABLE = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))
THREE = "cpu,cpu,cpu"


def test_parts_are_whole_leaves_in_order() -> None:
    assert workers.cut(ROWS, 3, "") == [(0, 1024), (1024, 3072), (3072, ROWS)]
    assert workers.cut(10, 1, "") == [(0, 10)]
    assert isinstance(opened(Source.of(TABLE), "cpu"), TableShard)


@pytest.mark.parametrize("decoder", ["xor", "sum"])
def test_answers_and_the_state_are_the_whole_tables(decoder: str) -> None:
    owner, wanted = Owner(), torch.tensor([0, 1023, 1024, 3071, 3072, 4999])
    whole, parts = (local_servers(TABLE, owner=owner.public, device=name) for name in ("cpu", THREE))
    assert whole[0].state == parts[0].state  # digests of all leaves
    client = Client(parts, decoder=decoder)
    assert client.rows(wanted).equal(TABLE[wanted])
    changed, new = torch.tensor([4999, 0, 1024]), torch.randn(3, 4)
    client.update(owner.update(client.facts, client.state, changed, new))
    now = TABLE.clone()
    now[changed] = new
    assert client.rows(wanted).equal(now[wanted])
    for server in parts:
        server.close()


def test_sums_add_up_over_parts() -> None:
    servers, wanted = local_servers(ring.encode(TABLE), device=THREE), torch.tensor([3, 4999])
    assert Client(servers, decoder="sum").rows(wanted).equal(ring.encode(TABLE[wanted]))


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_sums_wrap(width: int) -> None:
    most = torch.full((2, 8), 255, dtype=torch.uint8)
    assert (workers.joined([most, most], width).view(workers.kernel.WIDTHS[width]) == -2).all()
    assert workers.joined([most, most, most], 0).equal(most)


def test_every_part_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: without one of the parts, a row is wrong."""
    servers = local_servers(TABLE, device=THREE)
    for server in servers:
        assert isinstance(server._shard, Split)
        del server._shard._parts[1]
    client = Client(servers)
    assert client.rows(torch.tensor([5])).equal(TABLE[[5]])
    assert not client.rows(torch.tensor([2000])).equal(TABLE[[2000]])


def test_devices_that_do_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match="6 parts for 5,000 rows.*\nhint: each has whole leaves of 1024 rows, of which"
    ):
        Server(TABLE, 0, device="cpu," * 5 + "cpu")
    with pytest.raises(InputError, match="no device ''"):
        Server(TABLE, 0, device="cpu,")
    loaded: list[TableShard] = []
    monkeypatch.setattr(TableShard, "load", loaded.append)
    with pytest.raises(InputError, match="no device 'gpu'"):
        Server(TABLE, 0, device="cpu,gpu")
    assert not loaded  # every device is looked at before anything is read
