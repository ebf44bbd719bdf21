"""The layers give what torch's give, bit for bit, and what they send tells nothing but the input's shape."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hummingbird.errors import AgreementError, ConfigError, InputError
from hummingbird.pir import Client, PrivateEmbedding, PrivateEmbeddingBag, Server, local_servers
from hummingbird.pir.messages import keys_in_a_query

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int8)


def weight(rows: int, dim: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Rows with every kind of bit pattern, NaNs of several payloads among them."""
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (rows, dim * dtype.itemsize), dtype=torch.uint8, generator=generator)
    return data.view(dtype)


def plain(rows: int, dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(rows)).to(dtype)


def same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal bits, NaN and -0 included."""
    size = got.dtype.itemsize
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    return (
        got.shape == expected.shape
        and got.dtype == expected.dtype
        and torch.equal(got.view(words), expected.view(words))
    )


class Recorder:
    """A server that notes the sizes of all messages."""

    def __init__(self, server: Server) -> None:
        self.server, self.name, self.sizes = server, server.name, []

    def begin(self, query, method):
        if method != "Answer":
            return self.server.begin(query, method)
        answer = self.server.handle(query)
        self.sizes.append((len(query), len(answer)))
        return lambda: answer


def recorded(table) -> tuple[Recorder, Recorder]:
    zero, one = local_servers(table)
    return Recorder(zero), Recorder(one)


@pytest.mark.parametrize("decoder", ["xor", "sum"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_embedding_equals_torchs(dtype, decoder):
    for rows, dim in ((1, 1), (1023, 3), (2500, 8)):
        embedding = nn.Embedding.from_pretrained(weight(rows, dim, dtype))
        private = PrivateEmbedding.from_torch(embedding, local_servers(embedding), decoder=decoder)
        indices = torch.tensor([[0, rows - 1, rows // 2], [rows // 3, 0, 0]])
        assert same(private(indices), embedding(indices))
        assert same(private(indices.int()[:, :0]), embedding(indices[:, :0]))
        assert same(private(indices[0, 1]), embedding(indices[0, 1]))


def test_every_row_of_a_table_under_both_prfs():
    embedding = nn.Embedding.from_pretrained(weight(1500, 4))
    servers = local_servers(embedding)
    for prf in ("aes", "chacha12"):
        private = PrivateEmbedding.from_torch(embedding, servers, prf=prf)
        assert same(private(torch.arange(1500)), embedding.weight)


def test_padding_and_options_that_are_about_gradients():
    table = plain(40, 4)
    embedding = nn.Embedding(40, 4, padding_idx=-3, sparse=True, scale_grad_by_freq=True, _weight=table)
    private = PrivateEmbedding.from_torch(embedding, local_servers(table))
    assert private.padding_idx == 37
    indices = torch.tensor([37, 1, 37])
    assert same(private(indices), embedding(indices).detach())
    assert not private(indices).requires_grad and not list(private.parameters()) and not private.state_dict()
    elsewhere = nn.Embedding.from_pretrained(torch.empty(40, 4, device="meta"))  # who asks need not hold the rows
    assert same(PrivateEmbedding.from_torch(elsewhere, local_servers(table))(indices), table[indices])


BAGS = [
    {},
    {"offsets": True},
    {"offsets": True, "last": True},
    {"weights": True},
    {"offsets": True, "weights": True},
    {"offsets": True, "padding": 5},
    {"padding": 5, "weights": True},
]


@pytest.mark.parametrize("dtype", TYPES[:3], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_equal_torchs(mode, dtype):
    table = plain(2000, 16, dtype)
    client = Client(local_servers(table))
    indices = torch.randint(0, 2000, (6, 7), generator=torch.Generator().manual_seed(1))
    indices[:, 2], indices[4] = 5, 5  # some padding, and a bag of nothing else
    for case in BAGS:
        if case.get("weights") and mode != "sum":
            continue
        last = case.get("last", False)
        bag = nn.EmbeddingBag(
            2000, 16, mode=mode, padding_idx=case.get("padding"), include_last_offset=last, _weight=table.clone()
        )
        private = PrivateEmbeddingBag.from_torch(bag, client)
        inputs = [indices]
        if case.get("offsets"):
            inputs = [
                indices.reshape(-1),
                torch.tensor([0, 3, 3, 20, 42] if last else [0, 3, 3, 20]),
            ]  # one bag is empty
        weights = {"per_sample_weights": plain(6, 7, dtype).view(inputs[0].shape)} if case.get("weights") else {}
        with torch.no_grad():
            expected = bag(*inputs, **weights)
        assert same(private(*inputs, **weights), expected), case


def test_a_bag_without_lookups():
    table = plain(9, 2)
    bag = nn.EmbeddingBag(9, 2, mode="sum", _weight=table)
    private = PrivateEmbeddingBag.from_torch(bag, local_servers(table))
    nothing = torch.empty(0, dtype=torch.int64), torch.tensor([0, 0])
    assert same(private(*nothing), bag(*nothing).detach())


def test_what_is_refused():
    table = plain(30, 4)
    servers = recorded(table)
    client = Client(servers)
    with pytest.raises(ConfigError, match="max_norm") as caught:
        PrivateEmbedding.from_torch(nn.Embedding(30, 4, max_norm=1.0), client)
    assert "renormalise" in caught.value.hint
    with pytest.raises(ConfigError, match="max_norm"):
        PrivateEmbeddingBag.from_torch(nn.EmbeddingBag(30, 4, max_norm=1.0), client)
    for other in (nn.Embedding(31, 4), nn.Embedding(30, 4, dtype=torch.float16)):
        with pytest.raises(AgreementError, match="servers' table"):
            PrivateEmbedding.from_torch(other, client)
    with pytest.raises(InputError, match="expected nn.EmbeddingBag, got Embedding"):
        PrivateEmbeddingBag.from_torch(nn.Embedding(30, 4), client)
    with pytest.raises(ConfigError, match="padding_idx"):
        PrivateEmbedding(client, padding_idx=30)
    with pytest.raises(ConfigError, match="beside a client"):
        PrivateEmbedding(client, decoder="sum")
    with pytest.raises(ConfigError, match="int8"):
        PrivateEmbeddingBag(local_servers(weight(3, 3, torch.int8)))
    bag = PrivateEmbeddingBag(client, mode="mean")
    one, two = torch.tensor([1, 2]), torch.tensor([[1, 2]])
    for arguments in (
        (one,),
        (two, torch.tensor([0])),
        (one, torch.tensor([1])),
        (one, torch.tensor([0, 3])),
        (one, torch.tensor([0, 2, 1])),
        (one, torch.tensor([0.0])),
        (two, None, torch.ones(1, 2)),  # weights are for sums
    ):
        with pytest.raises(InputError):
            bag(*arguments)
    assert servers[0].sizes == servers[1].sizes == []


def test_an_index_outside_is_refused_before_anything_is_sent():
    servers = recorded(plain(1234567 % 1000, 4))
    private = PrivateEmbedding(servers)
    for indices in (torch.tensor([3, 567]), torch.tensor([3, -1]), torch.tensor([987654321])):
        with pytest.raises(InputError, match="outside of the table") as caught:
            private(indices)
        assert "987654321" not in str(caught.value)
    for indices in (torch.tensor([1.0]), torch.tensor([1], dtype=torch.int16), [1]):
        with pytest.raises((InputError, AttributeError)):
            private(indices)
    assert servers[0].sizes == []


def trace(private: nn.Module, servers: tuple[Recorder, Recorder], *arguments) -> list[list[tuple[int, int]]]:
    for server in servers:
        server.sizes.clear()
    private(*arguments)
    return [list(server.sizes) for server in servers]


def test_traffic_does_not_depend_on_the_indices():
    table = plain(3000, 16)
    servers = recorded(table)
    embedding = PrivateEmbedding(servers, padding_idx=0)
    bag = PrivateEmbeddingBag(servers, mode="sum", padding_idx=0)
    kinds = {
        "distinct": torch.arange(12),
        "all the same": torch.full((12,), 7),
        "all padding": torch.zeros(12, dtype=torch.int64),
        "first and last": torch.tensor([0, 2999] * 6),
        "random": torch.randint(0, 3000, (12,)),
    }
    traces = {name: trace(embedding, servers, indices) for name, indices in kinds.items()}
    assert all(found == traces["distinct"] for found in traces.values()), traces
    bags = {name: trace(bag, servers, indices.view(3, 4)) for name, indices in kinds.items()}
    assert all(found == traces["distinct"] for found in bags.values()), bags
    offsets = [torch.tensor([0, 0, 0]), torch.tensor([0, 5, 12])]  # they stay at the client
    assert all(trace(bag, servers, kinds["random"], off) == traces["distinct"] for off in offsets)
    # Another shape is another trace: this test can fail.
    assert trace(embedding, servers, torch.arange(13)) != traces["distinct"]


def test_many_lookups_go_in_several_messages():
    table = plain(20, 2)
    servers = recorded(table)
    private = PrivateEmbedding(servers)
    most = keys_in_a_query(private.client.facts)
    indices = torch.randint(0, 20, (most + 1,))
    assert same(private(indices), table[indices])
    assert [len(server.sizes) for server in servers] == [2, 2]
