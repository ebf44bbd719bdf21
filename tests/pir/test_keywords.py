"""Tables by keyword: every answer, what is sent, changes while the table is served, and what is refused."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hummingbird.errors import InputError, PeerError
from hummingbird.kernels.keywords import SEGMENTS, positions
from hummingbird.kernels.lookups import key_bytes
from hummingbird.pir import BatchCode, Client, KeywordClient, KeywordTable, Owner, Plan, Source, local_servers
from hummingbird.pir import keywords as module
from hummingbird.pir.serving.bucket_server import plan_servers
from hummingbird.pir.serving.server import Server, open_server
from tests.support.patience import HANG

WORDS = [f"word {number}" for number in range(500)]
ROWS = torch.randn(500, 6, generator=torch.Generator().manual_seed(0))


def made(room: int | None = None) -> KeywordTable:
    return KeywordTable(WORDS, ROWS, room=room, seed=bytes(16))


@contextlib.contextmanager
def asking(servers: object, **options: object) -> Iterator[KeywordClient]:
    with contextlib.closing(KeywordClient(servers, timeout=HANG, **options)) as client:  # type: ignore[arg-type]
        yield client


@pytest.mark.parametrize(
    ("dtype", "decoder", "prf", "signed"),
    [
        ("float32", "xor", "aes", False),
        ("uint8", "sum", "aes", False),
        ("bfloat16", "xor", "chacha12", True),
        ("int64", "sum", "chacha12", False),
        ("float16", "sum", "aes", True),
    ],
)
def test_every_keyword_has_its_row_and_no_other_has_one(dtype: str, decoder: str, prf: str, signed: bool) -> None:
    rows = (100 * ROWS).to(getattr(torch, dtype))
    table, owner = KeywordTable(WORDS, rows), Owner()
    source = owner.sign(table.source) if signed else table.source
    with asking(local_servers(source), decoder=decoder, prf=prf, owner=owner.public if signed else None) as client:
        asked = [word for pair in zip(WORDS, [f"{word}?" for word in WORDS], strict=True) for word in pair]
        got, found = client.rows(asked)
        assert torch.equal(got[::2], rows) and got.dtype == rows.dtype and not got[1::2].any()
        assert found.tolist() == [True, False] * len(WORDS)
        assert client["none"] is None and torch.equal(client[WORDS[3].encode()], rows[3])  # type: ignore[arg-type]
        empty, none = client.rows([])
        assert empty.shape == (0, 6) and empty.dtype == rows.dtype and none.shape == (0,)


def test_a_table_is_filled_to_its_load() -> None:
    """Twenty seeds succeed; a table beyond the threshold of cuckoo hashing is refused, and does not hang."""
    words = [b"%d" % number for number in range(3000)]
    for number in range(20):
        table = KeywordTable(words, torch.zeros(3000, 1), seed=number.to_bytes(16, "big"))
        assert len(table) == 3000 and table.source.facts.rows <= 3000 / module.LOAD + SEGMENTS
    with pytest.MonkeyPatch.context() as patch, pytest.raises(InputError, match="found no position"):
        patch.setattr(module, "LOAD", 0.99)
        KeywordTable(words, torch.zeros(3000, 1))


def test_what_is_sent_does_not_depend_on_the_keywords() -> None:
    """Three keys for each keyword, one for each segment, whether it is there, not there, or asked for twice."""
    seen: list[list[tuple[int, ...]]] = [[], []]

    class Noted(Server):
        def handle(self, query: bytes, answer: object = None) -> bytes:
            seen[self.party].append((len(query),))
            return super().handle(query, answer)  # type: ignore[arg-type]

    with asking([Noted(made().source, party) for party in (0, 1)]) as client:
        for words in (WORDS[:4], ["a", "b", "c", "d"], [WORDS[0]] * 4, [b"", WORDS[1], "x", b"\0"]):
            client.rows(words)
    assert all(len(Counter(queries)) == 1 and len(queries) == 4 for queries in seen)


@pytest.mark.slow
def test_keys_of_present_absent_hot_and_cold_keywords_look_the_same() -> None:
    """10^4 lookups of each kind: no byte of a key has another distribution of bits, at either server."""
    kept: list[list[torch.Tensor]] = [[], []]

    class Noted(Server):
        def answer(self, keys: torch.Tensor, decoder: str) -> tuple[Any, torch.Tensor]:
            kept[self.party].append(keys.clone())
            return super().answer(keys, decoder)

    count, bits = 10_000, {}
    random_ = random.Random(2)
    kinds = {
        "hot": [WORDS[7]] * count,
        "cold": [WORDS[random_.randrange(500)] for _ in range(count)],
        "absent": [f"no {number}" for number in range(count)],
    }
    with asking([Noted(made().source, party) for party in (0, 1)]) as client:
        for kind, words in kinds.items():
            client.rows(words)
            for party, queries in enumerate(kept):
                keys = torch.cat(queries).view(count, SEGMENTS, -1)
                assert keys.shape == (count, SEGMENTS, key_bytes(client.client.facts.domain))
                ones = (keys[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1
                bits[kind, party] = ones.sum(0, dtype=torch.int64).double() / count
                queries.clear()
    for party in (0, 1):
        for kind in ("cold", "absent"):
            assert float((bits[kind, party] - bits["hot", party]).abs().max()) < 6 * (0.5 / count) ** 0.5


def test_each_record_of_a_segment_is_chosen_by_its_keyword() -> None:
    """Positions are those of the hash, and the row stands behind its tag."""
    table = made()
    records = torch.from_numpy(table.source.records).view(torch.float32)
    for number, (first, tag) in enumerate(table._digests([word.encode() for word in WORDS])):
        at = positions(np.array([first]), np.array([tag]), table.source.facts.domain)[0].tolist()
        own = [place for place in at if table.source.records[place, :8].tobytes() == tag.tobytes()]
        assert len(own) == 1 and torch.equal(records[own[0], 2:], ROWS[number])


# What is refused ------------------------------------------------------------------------------------------------------


def test_keywords_and_rows_that_do_not_fit() -> None:
    for words, rows, what in (
        (["a", "b", "a"], ROWS[:3], "keyword 0 stands again as number 2"),
        (["a", b"a"], ROWS[:2], "keyword 0 stands again as number 1"),
        (["a", 3], ROWS[:2], "keyword 1 is int"),
        (["a", "\ud800"], ROWS[:2], "keyword 1 is no Unicode text"),
        ([b"x" * (module.MOST_BYTES + 1)], ROWS[:1], "keyword 0 has 65537 bytes"),
        (["a"], ROWS[:2], r"rows \(2, 6\) for 1 keywords"),
        (["a"], [[1.0]], "list for 1 keywords"),
    ):
        with pytest.raises(InputError, match=what):
            KeywordTable(words, rows)  # type: ignore[arg-type]
    for room in (2, 0, True, 1e3):
        with pytest.raises(InputError, match="room for .* of 500 keywords"):
            made(room=room)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="room for 0 of 0 keywords"):
        KeywordTable([], torch.zeros(0, 1), room=0)
    for rows in (ROWS.to(torch.complex64), ROWS > 0, ROWS.to_sparse(), ROWS.to("meta")):
        with pytest.raises(InputError, match="rows of torch"):
            KeywordTable(WORDS, rows)
    with pytest.raises(InputError, match="a seed of another size"):
        KeywordTable(WORDS, ROWS, seed=b"x")
    table = made()
    assert 500 <= table.room < 503
    table.put([f"more {number}" for number in range(table.room - 500)], ROWS[: table.room - 500])
    with pytest.raises(InputError, match=f"the table has room for {table.room} keywords, which are there") as caught:
        table.put("more", ROWS[0])
    assert f"room={2 * table.room}" in caught.value.hint
    with pytest.raises(InputError, match=r"rows of torch.float32 \(2, 6\) for 3 keywords"):
        table.put(WORDS[:3], ROWS[:2])
    with pytest.raises(InputError, match="keyword 1 stands again as number 2"):
        table.put(["x", WORDS[0], WORDS[0]], ROWS[:3])
    with pytest.raises(InputError, match="keyword 1 is not in the table"):
        table.remove([WORDS[0], "nobody"])
    assert WORDS[0] in table
    for row in (ROWS[0, :5], ROWS[0].double(), [1.0] * 6):
        with pytest.raises(InputError, match="a row of"):
            table.put(WORDS[0], row)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="not in the table"):
        table.remove("nobody")


def test_clients_and_servers_of_another_kind(tmp_path: Path) -> None:
    table = made()
    with pytest.raises(InputError, match="a table without keywords"):
        KeywordClient(local_servers(ROWS))
    with contextlib.closing(Client(local_servers(table.source))) as plain:
        with pytest.raises(InputError, match="rows have keywords, and no numbers"):
            plain.rows(torch.tensor([3]))
        with pytest.raises(PeerError, match="a keyword has 3 keys, the query 1"):
            plain.read(torch.tensor([3]))
    table.source.save(tmp_path / "t.safetensors")
    for options in ({"workers": 2}, {"ray": "local"}, {"device": "cuda"}):
        with pytest.raises(InputError, match="a table by keyword"):
            open_server(tmp_path / "t.safetensors", 0, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a table by keyword with a plan"):
        plan_servers(table.source, Plan(BatchCode.cuckoo(table.source.facts.rows, 4)), 0)
    for source in (Source.of(ROWS), Owner().sign(table.source)):
        with pytest.raises(InputError, match="the plain table|looked up by number|signed"):
            KeywordTable.open(source)


@pytest.mark.slow
def test_a_million_rows() -> None:
    """2^20 rows of 32 bytes; half of the keywords are absent."""
    count, asked = 1 << 20, 100_000
    rows = torch.randint(-(2**31), 2**31, (count, 8), dtype=torch.int32)
    table = KeywordTable([b"%d" % number for number in range(count)], rows)
    chosen = torch.randint(0, 2 * count, (asked,))
    with asking(local_servers(table.source)) as client:
        got, found = client.rows([b"%d" % number for number in chosen.tolist()])
    assert torch.equal(found, chosen < count) and torch.equal(got[found], rows[chosen[found]]) and not got[~found].any()
