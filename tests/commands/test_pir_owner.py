"""`pir-owner`: keys, signed tables, updates at two pir-servers over TLS, resumed where one has missed some."""

from __future__ import annotations

import contextlib
import json
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hummingbird.__main__ import main
from hummingbird.pir import BatchCode, BatchedEmbedding, Client, KeywordClient, Owner, Plan, Source, TableLink
from hummingbird.pir.integrity import read_key
from hummingbird.pir.table_server import connected, disconnect
from hummingbird.rpc.service import Tls
from tests.jobs.pir_servers import Pair
from tests.support.dealers import Authority
from tests.support.patience import HANG

TABLE = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def sockets() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hb"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with keys, a table, new rows for two of it, and their indices."""
    assert owner("keygen", "--key", tmp_path / "key") == 0
    np.save(tmp_path / "t.npy", TABLE.numpy())
    np.save(tmp_path / "rows.npy", np.full((2, 3), 7, np.float32))
    np.save(tmp_path / "indices.npy", np.array([5, 20]))
    return tmp_path


def owner(*words: str | Path) -> int:
    return main(["pir-owner", *map(str, words)])


def new_rows(place: Path) -> list[str | Path]:
    return ["--indices", place / "indices.npy", "--rows", place / "rows.npy"]


def test_keys_are_the_owners_alone_and_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, public = tmp_path / "key", tmp_path / "key.pub"
    assert owner("keygen", "--key", key) == 0
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert Owner(read_key(key)).public == read_key(public) and read_key(public).hex() in capsys.readouterr().out
    for there, other in ((key, public), (public, key)):
        kept = there.read_bytes()
        other.unlink(missing_ok=True)
        assert owner("keygen", "--key", key) == 1
        assert "never overwritten" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == [there.name] and there.read_bytes() == kept
        other.write_bytes(kept)
    assert owner("keygen", "--key", tmp_path / "none" / "key") == 1
    assert "there is no folder" in capsys.readouterr().err


def test_a_signed_table_is_its_owners(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert owner("sign", "--key", place / "key", "--table", place / "t.npy", "--out", place / "s.safetensors") == 0
    assert "200 rows of 3 float32 signed" in capsys.readouterr().out
    signed = Source.open(place / "s.safetensors")
    assert np.array_equal(np.asarray(signed.records)[:, :12], Source.of(TABLE).records)
    again = Owner(read_key(place / "key")).sign(Source.of(TABLE), bytes.fromhex(signed.facts.table_id))
    assert np.array_equal(again.records, signed.records)
    for out, table, what in (
        ("s.npy", "t.npy", "no .safetensors file"),
        ("s2.safetensors", "s.safetensors", "only a plain table's rows are signed"),
        ("s2.safetensors", "key", "unknown kind of file"),
    ):
        assert owner("sign", "--key", place / "key", "--table", place / table, "--out", place / out) == 1
        assert what in capsys.readouterr().err
    assert owner("sign", "--key", place / "rows.npy", "--table", place / "t.npy", "--out", place / "x.safetensors") == 1
    assert "not a key of 64 hexadecimal digits" in capsys.readouterr().err


@pytest.mark.slow
def test_updates_over_tls_are_resumed(place: Path, sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority(place, "ours")
    server, mine = authority.issue("pir", "localhost"), authority.issue("owner")
    options = ["--table", str(place / "t.npy"), "--owner", str(place / "key.pub"), *tls_options(server)]
    pair = Pair(sockets, *options, tls=mine)
    ask = ["--servers", *pair.last, *tls_options(mine)]
    key = ["--key", place / "key"]
    try:
        pair.wait()
        assert owner("update", *key, *ask, *new_rows(place)) == 0
        out = capsys.readouterr().out.splitlines()
        assert out[0].startswith("before: server 0") and out[0].count("version 0") == 2
        assert out[1] == "2 rows changed" and out[2].startswith("now: ") and out[2].count("at version 1") == 2
        pair.kill(1)
        assert owner("update", *key, *ask, "--timeout", "1", *new_rows(place)) == 1
        assert "server 1" in capsys.readouterr().err
        missed_by_one(pair, place, mine)
        pair.start(1)
        pair.wait()
        assert owner("update", *key, *ask) == 0
        out = capsys.readouterr().out.splitlines()
        assert "at version 2" in out[0] and "at version 1" in out[0]
        assert out[1] == f"server 1 ({pair.last[1]}) was behind: 1 update handed to it"
        assert out[2].count("at version 2") == 2
        client = Client(pair.last, tls=mine, timeout=HANG)
        now = TABLE.clone()
        now[[5, 20]] = 7
        now[100] = 9
        assert torch.equal(client.rows(torch.arange(200)), now)
        client.close()
        assert owner("metrics", *ask) == 0
        out = capsys.readouterr().out
        assert out.count("200 rows of 3 float32, version 2, digest") == 2 and "200 lookups in" in out
        assert owner("metrics", *ask, "--json") == 0
        shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["version"] for line in shown] == [2, 2] and shown[0]["digest"] == shown[1]["digest"]
        assert owner("keygen", "--key", place / "other") == 0
        assert owner("update", "--key", place / "other", *ask, *new_rows(place)) == 1
        assert "not signed by this table's owner" in capsys.readouterr().err
        np.save(place / "rows.npy", np.full((2, 3), 7.0))
        assert owner("update", *key, *ask, *new_rows(place)) == 1
        assert "rows of torch.float64, the table's are float32" in capsys.readouterr().err
        assert owner("update", *key, *ask, "--rows", place / "rows.npy") == 1
        assert "--indices and --rows belong together" in capsys.readouterr().err
    finally:
        pair.close()


def tls_options(tls: Tls) -> list[str]:
    return ["--tls-cert", str(tls.cert), "--tls-key", str(tls.key), "--tls-ca", str(tls.ca)]


def missed_by_one(pair: Pair, place: Path, tls: Tls) -> None:
    """An update that reaches server 0 only."""
    from hummingbird.pir.messages import TableDescription
    from hummingbird.pir.table_server import Remote

    link = Remote("server 0", pair.last[0], tls, HANG)
    description = TableDescription.unpack(link.begin(b"", "Describe")())
    signer = Owner(read_key(place / "key"))
    message = signer.update(description.facts, description.state, torch.tensor([100]), torch.full((1, 3), 9.0))
    link.begin(message, "Update")()
    link.close()


@pytest.mark.slow
def test_updates_of_a_plan(place: Path, sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hot = torch.arange(0, 200, 5)
    plan = Plan(BatchCode.cuckoo(200, 9), BatchCode.cuckoo(len(hot), 6), hot)
    (place / "plan.json").write_text(plan.to_json())
    key = ["--key", place / "key"]
    assert owner("sign", *key, "--table", place / "t.npy", "--out", place / "s.safetensors") == 0
    options = ["--table", place / "s.safetensors", "--plan", place / "plan.json", "--owner", place / "key.pub"]
    pair = Pair(sockets, *map(str, options), tables=2)
    try:
        pair.wait()
        update = ["update", *key, "--plan", place / "plan.json", *new_rows(place)]
        hot_ones = [addresses[0] for addresses in pair.addresses]
        assert owner(*update, "--servers", *hot_ones) == 1
        assert "not the full table of this plan" in capsys.readouterr().err
        assert owner(*update, "--servers", *pair.last) == 0
        assert "2 rows changed" in capsys.readouterr().out
        clients = [
            Client(both, timeout=HANG, owner=read_key(place / "key.pub")) for both in zip(*pair.addresses, strict=True)
        ]
        now = TABLE.clone()
        now[[5, 20]] = 7
        wanted = torch.tensor([5, 20, 21, 199])
        assert torch.equal(BatchedEmbedding(plan, clients)(wanted), now[wanted])
        for client in clients:
            client.close()
    finally:
        pair.close()
    assert [path.name for path in place.glob("*.journal")]


def test_a_table_by_keyword(place: Path, sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Built with room, served, changed twice; the file of the owner stays as it is, and catches up."""
    words = [f"wörd {number}" for number in range(200)]
    (place / "words").write_text("\n".join(words))
    build = ["build", "--table", place / "t.npy", "--keywords", place / "words"]
    assert owner(*build, "--room", "300", "--out", place / "k.safetensors") == 0
    assert "by keyword" in (out := capsys.readouterr().out) and "200 rows read" in out
    pair = Pair(sockets, *map(str, ["--table", place / "k.safetensors", "--owner", place / "key.pub", "--verify"]))
    update = ["update", "--key", place / "key", "--table", place / "k.safetensors", "--servers", *pair.last]
    (place / "new").write_text(f"fig\n{words[3]}\n")
    (place / "gone").write_text(f"{words[7]}\r\n{words[7]}\n")
    try:
        pair.wait()
        assert owner(*update, "--keywords", place / "new", "--rows", place / "rows.npy") == 0
        assert "201 keywords, of at most 30" in capsys.readouterr().out
        assert owner(*update, "--remove", place / "gone") == 0
        assert "200 keywords" in (out := capsys.readouterr().out) and "the file has 200" in out
        assert owner(*update, "--remove", place / "gone") == 0  # as after a failure
        assert "0 keywords to remove, 1 are not there" in capsys.readouterr().out
        np.save(place / "double.npy", np.zeros((2, 3)))
        (place / "gone").write_text(words[8])
        both = ["--remove", place / "gone", "--keywords", place / "new", "--rows", place / "double.npy"]
        assert owner(*update, *both) == 1 and "float64" in capsys.readouterr().err
        with contextlib.closing(KeywordClient(pair.last, timeout=HANG)) as client:
            rows, found = client.rows([*words, "fig"])
            now = torch.cat([TABLE, torch.full((1, 3), 7.0)])
            now[3], now[7] = 7, 0
            assert torch.equal(rows, now) and found.tolist() == [number != 7 for number in range(201)]
        for options, what in (
            (["--remove", place / "none"], "cannot read the file"),
            (["--keywords", place / "new"], "an option is missing"),
            (["--remove", place / "gone", "--indices", place / "indices.npy"], "a table by keyword has none"),
            (["--keywords", place / "words", "--rows", place / "rows.npy"], "for 200 keywords"),
        ):
            assert owner(*update, *options) == 1
            assert what in capsys.readouterr().err
    finally:
        pair.close()


def test_what_is_not_built(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for table, options, what in (
        ("t.npy", ["--out", place / "k.npy"], "no .safetensors file"),
        ("t.npy", ["--out", place / "k.safetensors", "--room", "500"], "a table by number"),
        ("t.npy", ["--out", place / "k.safetensors", "--column", "x"], "has no columns"),
        ("t.parquet", ["--out", place / "k.safetensors"], "name the column with the rows"),
        ("none.npy", ["--out", place / "k.safetensors"], "cannot read the table"),
    ):
        assert owner("build", "--table", place / table, *options) == 1
        captured = capsys.readouterr()
        assert what in captured.err, captured.err
    assert owner("build", "--table", place / "t.npy", "--out", place / "k.safetensors") == 0
    assert np.array_equal(Source.open(place / "k.safetensors").records, Source.of(TABLE).records)


def test_one_of_several_tables_is_updated(place: Path, sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The owner names the table; the others stay, and a name that no table has is an error that lists the names."""
    np.save(place / "u.npy", -TABLE.numpy())
    options = ["--tables", f"t={place}/t.npy", f"u={place}/u.npy", "--owner", str(place / "key.pub")]
    pair = Pair(sockets, *options)
    ask = ["--servers", *pair.last]
    update = ["update", "--key", place / "key", *ask, *new_rows(place)]
    try:
        pair.wait()
        assert owner(*update, "--name", "u") == 0
        out = capsys.readouterr().out
        assert "2 rows changed" in out and out.count("table u at version 1") == 2
        for name, version in (("t", 0), ("u", 1)):
            assert owner("metrics", *ask, "--name", name, "--json") == 0
            told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert [each["version"] for each in told] == [version] * 2
        links = connected(pair.last, None, HANG, "test")
        t, u = (Client([TableLink(link, name) for link in links]).rows(torch.tensor([5, 6])) for name in "tu")
        disconnect(links)
        assert torch.equal(t, TABLE[5:7]) and torch.equal(u, torch.stack([torch.full((3,), 7.0), -TABLE[6]]))
        for words in ((*update, "--name", "v"), update, ("metrics", *ask, "--name", "v")):
            assert owner(*words) == 1
            error = capsys.readouterr().err
            assert error.startswith("error: ") and "t, u" in error
    finally:
        pair.close()
