"""Two servers as programs over gRPC: updates, TLS, deaths, slowness, fuzzed bytes, the end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hummingbird.errors import AgreementError, InputError, OverloadError, PeerError, UnavailableError
from hummingbird.kernels.lookups import LEAF_ROWS
from hummingbird.pir import Client, Owner, PrivateEmbeddingBag, Server, Service, Source, dpf, local_servers, pair
from hummingbird.pir.batching.batch_code import BatchCode
from hummingbird.pir.batching.plan import Plan
from hummingbird.pir.serving import workers as worker_processes
from hummingbird.pir.serving.workers import Workers
from tests.support import python
from tests.support.dealers import Authority
from tests.support.paths import ROOT
from tests.support.patience import HANG, suspend

OWNER = Owner()
TABLE = torch.randn(5000, 8, generator=torch.Generator().manual_seed(0))


class Program:
    """A pir-server in a process of its own."""

    def __init__(self, folder: Path, party: int, *options: str) -> None:
        self.address = f"unix:{folder}/{party}.sock"
        command = [sys.executable, "-m", "hummingbird", "pir-server", "--table", str(folder / "t.npy")]
        command += ["--party", str(party), "--listen", self.address, "--owner", str(folder / "owner"), *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = python.Popen(
            command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def ready(self) -> Program:
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline() for _ in range(2)]
        assert lines[-1] == f"pir-server listening on {self.address}\n", (lines, self.process.communicate(timeout=HANG))
        return self

    def stop(self) -> tuple[str, str]:
        self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=HANG)


@pytest.fixture(scope="module")
def programs() -> Iterator[list[Program]]:
    folder = Path(tempfile.mkdtemp(prefix="hb"))  # pytest's own may be too long for a socket's path
    np.save(folder / "t.npy", TABLE.numpy())
    (folder / "owner").write_text(OWNER.public.hex() + "\n")
    started = [Program(folder, 0), Program(folder, 1, "--max-batch", "64", "--max-wait", "0.5")]
    try:
        yield [program.ready() for program in started]
    finally:
        for program in started:
            program.process.kill()
            program.process.communicate()
        shutil.rmtree(folder)


@contextlib.contextmanager
def connected(programs: list[Program], **options) -> Iterator[Client]:
    client = Client([program.address for program in programs], timeout=HANG, **options)
    yield client
    client.close()


@contextlib.contextmanager
def served(*servers: Server, tls=None, **options) -> Iterator[list[str]]:
    """Addresses of servers in this process, behind real sockets."""
    folder = Path(tempfile.mkdtemp(prefix="hb"))
    services = []
    try:
        for number, server in enumerate(servers):
            services.append(Service(server, f"unix:{folder}/{number}", tls, **options))
        yield [f"unix:{folder}/{number}" for number in range(len(servers))]
    finally:
        for service in services:
            service.stop(1.0)
        shutil.rmtree(folder)


# Programs, in this order: the last tests end them ---------------------------------------------------------------------


def test_a_bag_over_two_programs(programs):
    bag = torch.nn.EmbeddingBag(5000, 8, mode="sum", padding_idx=3, _weight=TABLE.clone())
    indices = torch.tensor([[0, 4999, 3], [1023, 1024, 2500]])
    for decoder, prf in (("xor", "aes"), ("sum", "chacha12")):
        with connected(programs, decoder=decoder, prf=prf) as client:
            assert torch.equal(PrivateEmbeddingBag.from_torch(bag, client)(indices), bag(indices).detach())


def test_updates_reach_both_programs(programs, monkeypatch):
    with connected(programs) as client:
        indices, rows = torch.tensor([0, 4999]), torch.randn(2, 8)
        update = OWNER.update(client.facts, client.state, indices, rows)
        assert client.update(update).version == 1
        assert torch.equal(client.rows(torch.tensor([4999, 0, 1])), torch.cat([rows.flip(0), TABLE[1:2]]))
        late = OWNER.update(client.facts, client.state, indices[:1], rows[:1])
        client.links[0].begin(late, "Update")()  # one of the two only
        with pytest.raises(AgreementError, match=r"server 0.*version 2.*server 1.*version 1"):
            monkeypatch.setattr(pair, "_SETTLE", 0.1)
            with connected(programs):
                pass
        forged = Owner().update(client.facts, client.state, indices[:1], rows[:1])
        with pytest.raises(PeerError, match="not signed") as caught:
            client.links[1].begin(forged, "Update")()
        assert programs[1].address in caught.value.where
        client.update(late)
        assert torch.equal(client.rows(indices[:1]), rows[:1])


def test_metrics(programs):
    with connected(programs) as client:
        client.rows(torch.arange(9))
        now = json.loads(client.links[0].begin(b"", "Metrics")())
    assert now["batches"]["9"] >= 1 and sum(now["latency_ms"].values()) == now["queries"]
    assert sum(int(size) * count for size, count in now["batches"].items()) == now["queries"]
    assert 0 < now["p50_ms"] <= now["p99_ms"] and now["queries_per_second"] > 0


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_server_is_named(programs, slow):
    with connected(programs) as client:
        client.links[slow].timeout = 0.7
        suspend(programs[slow].process.pid)
        try:
            with pytest.raises(PeerError, match="no answer in time") as caught:
                client.rows(torch.tensor([1]))
            assert programs[slow].address in caught.value.where
        finally:
            programs[slow].process.send_signal(signal.SIGCONT)
        client.links[slow].timeout = HANG
        assert torch.equal(client.rows(torch.tensor([1])), TABLE[1:2])


class Away:
    """A server that is away for some calls, and overloaded for some."""

    def __init__(self, server: Server, *errors: Exception) -> None:
        self.name, self._server, self.errors, self.queries = server.name, server, list(errors), list[bytes]()

    def begin(self, message: bytes, method: str = "Answer") -> Callable[[], bytes]:
        if method != "Answer":
            return self._server.begin(message, method)
        self.queries.append(message)
        error = self.errors.pop(0) if self.errors else None

        def failing() -> bytes:
            assert error is not None
            raise error

        return self._server.begin(message, method) if error is None else failing


def test_a_lookup_is_repeated_with_new_keys_where_servers_are_away():
    gone, full = UnavailableError("this server is stopping"), OverloadError("no room", retry_after=0.1)
    servers = [Away(Server(TABLE, party), *errors) for party, errors in enumerate(([gone, full, gone], [full, gone]))]
    with contextlib.closing(Client(servers, timeout=HANG)) as client:
        assert torch.equal(client.rows(torch.tensor([7])), TABLE[7:8])
    for server in servers:
        assert len(server.queries) == len(set(server.queries)) == 4  # neither sees one key twice
    servers[1].errors = [PeerError("it is broken")]
    with contextlib.closing(Client(servers, timeout=HANG)) as client, pytest.raises(PeerError, match="it is broken"):
        client.rows(torch.tensor([7]))


def test_the_longer_of_two_waits_counts():
    missing, full = UnavailableError("a part is missing", retry_after=2 * HANG), OverloadError("no room")
    servers = [Away(Server(TABLE, 0), missing), Away(Server(TABLE, 1), full)]
    with contextlib.closing(Client(servers, timeout=HANG)) as client:
        with pytest.raises(UnavailableError, match="neither server answers.*a part is missing.*no room") as caught:
            client.rows(torch.tensor([7]))
    assert caught.value.retry_after == 2 * HANG


@pytest.mark.slow
def test_the_end_and_a_death(programs):
    with contextlib.closing(Client([program.address for program in programs], timeout=3.0)) as client:
        out, errors = programs[0].stop()
        assert programs[0].process.returncode == 0 and errors == ""
        assert out.startswith("pir-server party 0: ") and "queries in" in out and "p99" in out
        with pytest.raises(PeerError) as caught:
            client.rows(torch.tensor([1]))
        assert programs[0].address in caught.value.where
        programs[1].process.kill()
        programs[1].process.wait(HANG)
        with pytest.raises(PeerError, match="neither server answers: server 0.*; server 1") as caught:
            client.rows(torch.tensor([1]))
    with pytest.raises(PeerError, match="nothing answers") as caught:
        Client([program.address for program in programs], timeout=0.3)
    assert caught.value.where.startswith("server 0 (unix:")


def test_bad_command_lines(tmp_path):
    def run(*options: str) -> str:
        from hummingbird.__main__ import main

        np.save(tmp_path / "t.npy", TABLE[:10].numpy())
        arguments = ["pir-server", "--table", str(tmp_path / "t.npy"), "--party", "0", "--listen", f"unix:{tmp_path}/s"]
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        threads = torch.get_num_threads()
        try:
            with open(tmp_path / "err", "w") as errors, contextlib.redirect_stderr(errors):
                assert main([*arguments, *options]) == 1
        finally:
            torch.set_num_threads(threads)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return (tmp_path / "err").read_text()

    assert "is another" not in run("--table", str(tmp_path / "none.npy"))
    assert "No such file" in run("--table", str(tmp_path / "none.npy"))
    assert "--tls-ca" in run("--tls-cert", "x")
    assert "not a key of 64 hexadecimal digits" in run("--owner", str(tmp_path / "t.npy"))
    assert "plain text is for unix sockets" in run("--listen", "0.0.0.0:7000")
    assert "batches of 0" in run("--max-batch", "0")
    assert "0 threads" in run("--threads", "0")
    assert "3 parts for 10 rows" in run("--workers", "3")
    (tmp_path / "plan.json").write_text(Plan(BatchCode.cuckoo(10, 4)).to_json())
    plan = ("--plan", str(tmp_path / "plan.json"))
    assert "2 addresses, 1 needed" in run(*plan, "--listen", f"unix:{tmp_path}/a", f"unix:{tmp_path}/b")
    assert "malformed plan" in run("--plan", str(tmp_path / "t.npy"))
    for options in (("--workers", "2"), ("--device", "cuda")):
        assert "--plan with --workers" in run(*plan, *options)
    if not torch.cuda.is_available():
        assert "no GPU that PyTorch can use" in run("--device", "cuda")


# In this process, over sockets ----------------------------------------------------------------------------------------


def test_mutual_tls(tmp_path):
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    with served(*local_servers(TABLE[:50]), tls=ours.issue("pir", "localhost")) as addresses:
        client = Client(addresses, tls=ours.issue("client"), timeout=HANG)
        assert torch.equal(client.rows(torch.tensor([49])), TABLE[49:50])
        client.close()
        with pytest.raises(PeerError, match="TLS failed") as caught:
            Client(addresses, tls=theirs.issue("client"), timeout=HANG)
        assert addresses[0] in caught.value.where


def test_servers_that_disagree_over_the_wire(monkeypatch):
    monkeypatch.setattr(pair, "_SETTLE", 0.1)
    zero = Server(TABLE[:50], 0)
    for other, what in (
        (Server(TABLE[:51], 1), "different tables.*50 rows of 8 float32.*51 rows of 8 float32"),
        (Server(TABLE[:50].half(), 1), "different tables.*float32.*float16"),
        (Server(TABLE[1:51], 1), "different contents"),
        (Server(TABLE[:50], 0), "party 0 answers as party 1"),
    ):
        with served(zero, other) as addresses, pytest.raises(AgreementError, match=what) as caught:
            Client(addresses, timeout=HANG)
        assert all(address in str(caught.value) for address in addresses[1:])


def test_signed_answers_over_the_wire():
    identities = [os.urandom(32), os.urandom(32)]
    signed = OWNER.sign(Source.of(TABLE[:50]))
    servers = [Server(signed, party, identity=secret) for party, secret in enumerate(identities)]
    with served(*servers) as addresses:
        client = Client(addresses, owner=OWNER.public)
        assert torch.equal(client.rows(torch.tensor([3, 4])), TABLE[3:5])
        client.close()


def test_more_than_a_message_holds():
    wide = torch.randint(0, 256, (300, 20_000), dtype=torch.uint8)
    with served(*local_servers(wide)) as addresses:
        client = Client(addresses)
        indices = torch.arange(299, -1, -1)  # 6 MB
        assert torch.equal(client.rows(indices), wide[indices])
        client.close()


# Workers --------------------------------------------------------------------------------------------------------------


def test_workers_answer_as_one_process(tmp_path, monkeypatch):
    python.forking(monkeypatch, worker_processes)
    data = torch.randint(0, 1 << 15, (3 * LEAF_ROWS + 5, 4), dtype=torch.int16)
    np.save(tmp_path / "t.npy", data.numpy())
    source = Source.open(tmp_path / "t.npy")
    workers = Workers(tmp_path / "t.npy", None, 2)
    try:
        whole = Server(source, 0, owner=OWNER.public, journal=tmp_path / "journal")
        whole.update(OWNER.update(whole.facts, whole.state, torch.tensor([1024]), data[:1] + 1))
        shutil.copy(tmp_path / "journal", tmp_path / "other")
        shared = Server(source, 0, shard=workers, owner=OWNER.public, journal=tmp_path / "other")
        assert shared.state == whole.state and shared.state.version == 1
        assert shared.state == whole.state  # however many workers: the same digest
        keys = dpf.generate(torch.tensor([0, 1024, 3076]), len(data))[0]
        update = OWNER.update(whole.facts, whole.state, torch.tensor([0, 2047, 2048, 3076]), data[5:9])
        for _ in range(2):
            for decoder in ("xor", "sum"):
                assert torch.equal(shared.answer(keys, decoder)[1], whole.answer(keys, decoder)[1])
            assert shared.update(update) == whole.update(update)
        workers._workers[1]._process.kill()
        workers._workers[1]._process.wait(HANG)
        with pytest.raises(PeerError, match="the worker for rows 2048 to 3076 has ended"):
            shared.check()
        with pytest.raises(PeerError, match="has ended"):
            shared.answer(keys, "xor")
    finally:
        workers.close()
    (tmp_path / "bad.npy").write_bytes(b"x")
    with pytest.raises(InputError, match="not a table"):
        Workers(tmp_path / "bad.npy", None, 1)
