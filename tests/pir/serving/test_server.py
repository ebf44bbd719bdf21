"""Tables, messages and servers in this process: files, fuzzed bytes, versions, sums."""

from __future__ import annotations

import contextlib
import json
import random
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch

from hummingbird import pir, ring
from hummingbird.errors import AgreementError, ConfigError, HummingbirdError, InputError, PeerError, TrustError
from hummingbird.kernels.lookups import key_bytes
from hummingbird.pir import Client, Owner, Server, Source, dpf, local_servers
from hummingbird.pir.messages import TableDescription, keys_in_a_query, pack_query, unpack_answer, unpack_update
from hummingbird.pir.table import Facts
from hummingbird.rpc.frame import pack_tensors


def table(rows: int = 1500, dim: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


def test_every_public_name_resolves():
    assert sorted(pir.__all__) == sorted(pir._HOMES)
    assert all(getattr(pir, name) is not None for name in pir.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = pir.nonsense


# Files ----------------------------------------------------------------------------------------------------------------


def safetensors(path, header: object, data: bytes = b"", length: int | None = None):
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def served(source: Source) -> torch.Tensor:
    return Client(local_servers(source)).rows(torch.arange(source.facts.rows))


def test_tables_from_files(tmp_path):
    data = table(7, 3)
    np.save(tmp_path / "t.npy", data.numpy())
    assert torch.equal(served(Source.open(tmp_path / "t.npy")), data)
    np.save(tmp_path / "i.npy", np.arange(-4, 4, dtype=np.int8).reshape(4, 2))
    assert served(Source.open(str(tmp_path / "i.npy"))).tolist() == [[-4, -3], [-2, -1], [0, 1], [2, 3]]
    half = data.bfloat16()
    header = {
        "__metadata__": {"format": "pt"},
        "other": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "weight": {"dtype": "BF16", "shape": [7, 3], "data_offsets": [8, 50]},
    }
    path = safetensors(tmp_path / "t.safetensors", header, bytes(8) + half.view(torch.uint8).numpy().tobytes())
    assert torch.equal(served(Source.open(path, "weight")), half)
    with pytest.raises(InputError, match="holds 2 tensors") as caught:
        Source.open(path)
    assert "other, weight" in caught.value.hint
    with pytest.raises(InputError, match="no tensor 'wieght'"):
        Source.open(path, "wieght")
    with pytest.raises(InputError, match="of F32 with shape .2. is no table"):
        Source.open(path, "other")


def test_a_saved_table_is_the_same(tmp_path):
    for number, source in enumerate((Source.of(table(2100, 3).half()), Owner().sign(Source.of(table(20, 3))))):
        source.save(tmp_path / f"{number}.safetensors")
        again = Source.open(tmp_path / f"{number}.safetensors")
        assert (again.facts, again.version) == (source.facts, source.version)
        assert np.array_equal(again.records, source.records)
        assert Server(again, 0).state == Server(source, 0).state


def test_files_that_are_no_tables(tmp_path):
    good = {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}

    def changed(**fields):
        return {"w": {**good["w"], **fields}}

    cases = [
        safetensors(tmp_path / f"{i}.safetensors", header, bytes(16), length)
        for i, (header, length) in enumerate(
            [
                (changed(data_offsets=[0, 17]), None),
                (changed(data_offsets=[1, 17]), None),
                (changed(data_offsets=[-16, 0]), None),
                (changed(data_offsets=[0]), None),
                (changed(data_offsets="xy"), None),
                (changed(shape=[2, 2, 1]), None),
                (changed(shape=[2, -2]), None),
                (changed(shape=[1 << 70, 1 << 70]), None),
                (changed(shape=[True, 4]), None),
                (changed(shape=7), None),
                (changed(dtype="C64"), None),
                (changed(dtype=["F32"]), None),
                ({"w": 3}, None),
                ({}, None),
                ([1], None),
                (b"{", None),
                (b"[" * 50_000, None),
                (good, 1 << 40),
                (good, 5),
                (
                    {
                        "records": {"dtype": "U8", "shape": [2, 8], "data_offsets": [0, 16]},
                        "__metadata__": {"hummingbird.pir": '{"version": 0, "rows": 3, "dim": 2, "dtype": "float32"}'},
                    },
                    None,
                ),
            ]
        )
    ]
    (tmp_path / "short.safetensors").write_bytes(b"\1\2")
    (tmp_path / "t.bin").write_bytes(b"rows")
    (tmp_path / "t.npy").write_bytes(b"\x93NUMPY nonsense")
    np.save(tmp_path / "flat.npy", np.zeros(4, np.float32))
    np.save(tmp_path / "fortran.npy", np.asfortranarray(np.zeros((4, 3), np.float32)))
    np.save(tmp_path / "big.npy", np.zeros((4, 3), ">f4"))
    np.save(tmp_path / "objects.npy", np.array([[{}]]), allow_pickle=True)
    np.save(tmp_path / "empty.npy", np.zeros((0, 4), np.float32))
    names = (
        "short.safetensors",
        "t.bin",
        "t.npy",
        "flat.npy",
        "fortran.npy",
        "big.npy",
        "objects.npy",
        "empty.npy",
        "none.npy",
    )
    for path in [*cases, *(tmp_path / name for name in names)]:
        with pytest.raises(InputError):
            Source.open(path)
    with pytest.raises(InputError, match="this is no table"):
        Source.of(torch.zeros(3))
    with pytest.raises(InputError, match="too large"):
        Facts(5, 1 << 20, "float32")


def test_damaged_files(tmp_path):
    generator = random.Random(0)
    np.save(tmp_path / "good.npy", np.ones((5, 3), np.float32))
    Source.of(table(5, 3)).save(tmp_path / "good.safetensors")
    np.savez(tmp_path / "archive.npz", np.ones((5, 3)))
    (tmp_path / "archive.npz").rename(tmp_path / "archive.npy")
    (tmp_path / "empty.npy").touch()
    for name in ("archive.npy", "empty.npy"):
        with pytest.raises(InputError):
            Source.open(tmp_path / name)
    for kind in ("npy", "safetensors"):
        good = (tmp_path / f"good.{kind}").read_bytes()
        for _ in range(200):
            data = bytearray(good[: generator.choice([len(good), generator.randrange(1, len(good))])])
            for _ in range(generator.randrange(4)):
                data[generator.randrange(len(data))] = generator.choice([generator.randrange(256), *b"09,[("])
            (tmp_path / f"bad.{kind}").write_bytes(data)
            with contextlib.suppress(InputError):  # nothing else
                np.asarray(Source.open(tmp_path / f"bad.{kind}").records).sum()


# Messages -------------------------------------------------------------------------------------------------------------


def query(rows: int = 1500, party: int = 0, count: int = 3) -> bytes:
    return pack_query("xor", dpf.generate(torch.arange(count), rows)[party])


def test_damaged_queries_are_refused_and_nothing_is_told():
    server, good = Server(table(), 0), query()
    server.handle(good)
    generator = random.Random(0)
    texts = set()
    for _ in range(400):
        data = bytearray(good)
        kind = generator.randrange(3)
        if kind == 0:
            data = data[: generator.randrange(len(data))]
        elif kind == 1:
            data += generator.randbytes(generator.randrange(1, 40))
        else:
            for _ in range(generator.randrange(1, 4)):
                data[generator.randrange(len(data))] = generator.randrange(256)
        try:
            answer = server.handle(bytes(data))
        except InputError as error:
            texts.add(error.what)
        else:  # a changed seed is still a key
            unpack_answer(answer, 3, server.facts, False)
    secret = [text for text in texts if "key" in text]
    assert secret == ["a key is not for party 0 and 1,500 rows of 4 float32, or damaged"], texts


def test_queries_of_another_table_party_or_size():
    server = Server(table(), 0)
    for data in (query(rows=1499), query(rows=5000), query(party=1)):
        with pytest.raises(InputError, match="a key is not for party 0 and 1,500 rows"):
            server.handle(data)
    keys = dpf.generate(torch.arange(3), 1500)[0]
    with pytest.raises(InputError, match="there is no such decoder"):
        server.handle(pack_tensors([torch.tensor([2], dtype=torch.uint8), keys]))
    most = keys_in_a_query(server.facts)
    with pytest.raises(InputError, match=f"1 to {most} keys"):
        server.handle(pack_query("xor", keys[:1].expand(most + 1, -1)))
    with pytest.raises(InputError, match=f"1 to {most} keys"):
        server.handle(pack_query("xor", keys[:0]))
    assert key_bytes(1 << 20) * keys_in_a_query(Facts(1 << 20, 64, "float32")) < 4 << 20


class Wrong:
    """A server whose answers another function makes."""

    def __init__(self, server: Server, change) -> None:
        self.server, self.change, self.name = server, change, server.name

    def begin(self, data, method):
        if method != "Answer":
            return self.server.begin(data, method)
        return lambda: self.change(self.server.handle(data))


@pytest.mark.parametrize("party", [0, 1])
def test_damaged_answers_name_the_server(party):
    generator = random.Random(party)

    def cut(answer: bytes) -> bytes:
        return answer[: generator.randrange(len(answer))]

    def padded(answer: bytes) -> bytes:
        return answer + b"x"

    for change in (cut, cut, cut, padded, lambda answer: generator.randbytes(90), lambda answer: b""):
        servers = list(local_servers(table()))
        servers[party] = Wrong(servers[party], change)
        with pytest.raises(PeerError, match="malformed") as caught:
            Client(servers).rows(torch.tensor([3]))
        assert caught.value.where == f"server {party} (in this process)"


def test_damaged_descriptions_are_refused():
    good = TableDescription.unpack(Server(table(), 1).describe())
    assert (good.party, good.facts, good.signs) == (1, Facts(1500, 4, "float32"), False)
    fields = json.loads(good.pack())
    for change in (
        {"party": "1"},
        {"state": 3},
        {"state": {"version": -1, "digest": "00" * 16}},
        {"state": {"version": 1, "digest": "00" * 15}},
        {"facts": {"rows": 5}},
        {"facts": {"rows": 5, "dim": 2, "dtype": "float33"}},
        {"facts": {"rows": True, "dim": 2, "dtype": "float32"}},
        {"facts": {"rows": 5, "dim": 2, "dtype": "float32", "table_id": "zz"}},
        {"signs": 1},
        {"release": 3},
    ):
        with pytest.raises(InputError):
            TableDescription.unpack(json.dumps({**fields, **change}).encode())
    for data in (b"", b"[]", b"\xff", b"[" * 10_000):
        with pytest.raises(InputError):
            TableDescription.unpack(data)


# Two servers ----------------------------------------------------------------------------------------------------------


def test_servers_that_disagree():
    zero, one = local_servers(table())
    with pytest.raises(AgreementError, match="party 1 answers as party 0") as caught:
        Client((one, zero))
    assert caught.value.where == "server 1 (in this process)"
    with pytest.raises(TrustError, match="one server would get both keys"):
        Client((zero, zero))
    with pytest.raises(ConfigError, match="two servers"):
        Client((zero,))
    with pytest.raises(
        AgreementError, match="different tables.*server 0.*1,500 rows of 4 float32; server 1.*1,501 rows"
    ):
        Client((zero, Server(table(1501), 1)))
    with pytest.raises(AgreementError, match="different tables.*float32.*int32"):
        Client((zero, Server(table().view(torch.int32), 1)))
    with pytest.raises(AgreementError, match="different contents.*version 0, digest.*version 0, digest"):
        Client((zero, Server(table(seed=1), 1)), timeout=0.1)
    for options in ({"decoder": "or"}, {"prf": "md5"}):
        with pytest.raises(ConfigError, match="no such choice"):
            Client((zero, one), **options)


def changed(owner: Owner, client: Client, *indices: int) -> tuple[bytes, torch.Tensor]:
    rows = torch.randn(len(indices), client.facts.dim)
    return owner.update(client.facts, client.state, torch.tensor(indices), rows), rows


def test_updates():
    owner, data = Owner(), table()
    zero, one = local_servers(data.clone(), owner=owner.public)
    client = Client((zero, one))
    before = client.state
    first, rows = changed(owner, client, 1499, 0)
    assert client.update(first).version == before.version + 1 and zero.state == one.state == client.state
    assert torch.equal(client.rows(torch.tensor([0, 1499, 1])), torch.stack([rows[1], rows[0], data[1]]))
    assert client.update(first) == zero.state  # sent again: nothing happens
    second, _ = changed(owner, client, 3)
    client.update(second)
    state = zero.state
    zero.update(first)  # a replay
    assert zero.state == state and torch.equal(client.rows(torch.tensor([0])), rows[1:])
    other = Client(local_servers(table(seed=4), owner=owner.public))
    foreign, _ = changed(owner, other, 3)
    with pytest.raises(AgreementError, match="for version 0"):
        one.update(foreign)
    assert zero.state == one.state == client.state


def test_updates_that_are_refused():
    owner = Owner()
    zero, one = local_servers(table(), owner=owner.public)
    client, state = Client((zero, one)), zero.state
    good, rows = changed(owner, client, 3, 4)
    with pytest.raises(InputError, match="not signed by this table's owner"):
        zero.update(changed(Owner(), client, 3)[0])
    with pytest.raises(InputError, match="takes no updates"):
        Server(table(), 0).update(good)
    generator = random.Random(0)
    for _ in range(200):
        data = bytearray(good)
        place = generator.randrange(len(data))
        data[place] ^= 1 << generator.randrange(8)
        with pytest.raises(HummingbirdError):
            zero.update(bytes(data[: generator.choice([len(data), place])]))
    for indices in ([3, 3], [3, 1500], [-1, 3]):
        with pytest.raises(InputError, match="distinct rows"):
            zero.update(owner.update(client.facts, client.state, torch.tensor(indices), rows))
    with pytest.raises(InputError, match="too many for one update"):
        owner.update(replace(client.facts, rows=1 << 20), state, torch.arange(200_000), torch.zeros(200_000, 4))
    for wrong in (rows[:1], rows.double(), rows[:, :2]):
        with pytest.raises(InputError, match="no rows of"):
            owner.update(client.facts, client.state, torch.tensor([3, 4]), wrong)
    assert zero.state == state and torch.equal(client.rows(torch.tensor([3])), table()[3:4])
    assert unpack_update(good, client.facts)[0] == state


def test_a_client_waits_for_the_update_to_reach_both():
    owner, data = Owner(), table()
    zero, one = local_servers(data, owner=owner.public)
    client = Client((zero, one))
    update, rows = changed(owner, client, 7)
    zero.update(update)
    asked = []

    def late(answer: bytes) -> bytes:
        asked.append(1)
        if len(asked) == 2:
            one.update(update)
        return answer

    client.links[1] = Wrong(one, late)
    assert torch.equal(client.rows(torch.tensor([7])), rows)
    assert len(asked) == 3 and client.state == zero.state
    zero.update(changed(owner, client, 8)[0])
    with pytest.raises(AgreementError, match="server 0.*version 2.*server 1.*version 1"):  # after two seconds
        client.rows(torch.tensor([8]))


def test_answers_of_two_tables_of_one_version_are_not_put_together():
    """One of the servers was started again with another table of this size: no row of either would come out."""
    client = Client(local_servers(table()))
    client.links[1] = local_servers(table(seed=1))[1]
    with pytest.raises(AgreementError, match="different contents.*server 0.*version 0.*server 1.*version 0"):
        client.rows(torch.tensor([9]))


def test_a_replaced_table_is_noticed():
    client = Client(local_servers(table()))
    new = table(1500, 4).view(torch.int32)
    client.links[:] = local_servers(new)
    with pytest.raises(AgreementError, match="was 1,500 rows of 4 float32, it is 1,500 rows of 4 int32"):
        client.rows(torch.tensor([1]))


def test_answers_to_sums_add_up_to_the_row_times_a_sign_that_the_client_knows():
    """Shares of s * row, which parties of `hummingbird serve` keep for themselves (hummingbird/lookup.py)."""
    code = ring.encode(table(2100, 3))
    servers = local_servers(code)
    indices = torch.tensor([0, 1, 1023, 1024, 2099, 5, 5, 5])
    keys0, keys1, signs = dpf.generate(indices, 2100)
    zero, one = (servers[party].answer(keys, "sum")[1].view(torch.int64) for party, keys in enumerate((keys0, keys1)))
    assert torch.equal(zero - one, signs[:, None] * code[indices]) and set(signs.tolist()) == {1, -1}
    assert not torch.equal(zero + one, signs[:, None] * code[indices])  # it can fail
