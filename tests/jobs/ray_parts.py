"""Lookups in a table on the nodes of a Ray cluster, in a network with nothing but loopback.

    unshare -rn python -m tests.jobs.ray_parts SCENARIO FOLDER

Ray talks over the host's outer address, and anybody who reaches it may run code; here there is no such address. The
cluster is one of `ray.cluster_utils`: every node is a few processes of this host. Party 1 is a server in this process
with the whole table, so a right row says that the parts combine to what one process computes.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}

import numpy as np
import ray
import torch
from ray.cluster_utils import Cluster

from hummingbird.errors import AgreementError, EnvironmentProblem, HummingbirdError, InputError, UnavailableError
from hummingbird.pir import Client, Owner, Server, Source
from hummingbird.pir.serving import ray_parts
from hummingbird.pir.serving.ray_parts import RayParts
from hummingbird.pir.serving.server import open_server
from scripts.bench.pir_ray import main
from tests.support.patience import HANG, suspend, until
from tests.support.services import health_or_none

STORE = 80 << 20  # bytes of a node's object store
OWNER = Owner()


def loopback() -> None:
    """Switch on the loopback device of this namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x41))  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[Cluster]:
    """A head without CPUs, and nodes of one CPU each."""
    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        made.extra = [made.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(nodes)]
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def actors() -> list[int]:
    """Processes of parts below this process, lowest first."""
    parents, names = dict[int, int](), dict[int, str]()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            names[int(path.name)] = (path / "cmdline").read_bytes().decode(errors="replace")
    found = []
    for pid, name in names.items():
        above = pid
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        if above and name.startswith("ray::RayPart"):
            found.append(pid)
    return sorted(found)


class Losses(logging.Handler):
    """Counts the parts that the server has reported as lost."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += " is lost" in record.getMessage()

    def beyond(self, before: int) -> None:
        """Wait until more than `before` have been reported."""
        until(lambda: self.count > before, "the loss to be noticed")


def table(folder: Path, rows: int, dim: int) -> tuple[Path, torch.Tensor]:
    weight = torch.randint(-(1 << 31), (1 << 31) - 1, (rows, dim), dtype=torch.int32)
    np.save(folder / "t.npy", weight.numpy())
    return folder / "t.npy", weight


# Scenarios ------------------------------------------------------------------------------------------------------------


def program(folder: Path, runs: int = 2) -> None:
    """`pir-server --ray` of two parts: right rows; a part is killed: not ready, refused, updated, right again. Then the
    program is killed; and, in a second run, it has the updates, and ends in order while a node is lost.
    """
    path, rows = table(folder, 5000, 4)
    (folder / "key.pub").write_text(OWNER.public.hex())
    address = f"unix:{folder}/0.sock"
    wanted = torch.tensor([0, 1, 1023, 1024, 2048, 4998, 4999] * 16)  # a wrong row shows in half of its lookups
    other = Server(rows, 1, owner=OWNER.public)
    with cluster(2) as made:
        words = [sys.executable, "-m", "hummingbird", "pir-server", "--table", str(path), "--party", "0"]
        words += ["--listen", address, "--owner", str(folder / "key.pub"), "--ray", made.address, "--parts", "2"]
        for run in range(runs):
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
                try:
                    assert server.stdout is not None
                    while "listening on" not in (line := server.stdout.readline()):
                        assert line, "the program ended"
                    threading.Thread(target=server.stdout.read, daemon=True).start()
                    until(lambda: health_or_none(address) == "SERVING", "the server to be ready")
                    client = Client((address, other), timeout=HANG)
                    assert client.rows(wanted).equal(rows[wanted])
                    if not run:
                        assert client.state == other.state  # the digests of all leaves
                        first = actors_of(server.pid)
                        os.kill(first[0], signal.SIGKILL)
                        until(lambda: health_or_none(address) == "NOT_SERVING", "the loss to be noticed")
                        hasty = Client((address, other), timeout=0.5)
                        try:
                            hasty.rows(wanted)
                            raise AssertionError("answered without a part")
                        except UnavailableError as error:
                            assert "1 of 2 parts of the table are missing; part" in error.what
                            assert error.retry_after is not None and error.retry_after >= 1
                        changed, new = torch.tensor([4999, 0, 1024]), torch.ones(3, 4, dtype=torch.int32)
                        client.update(OWNER.update(client.facts, client.state, changed, new))
                        rows[changed] = new
                        assert client.rows(wanted).equal(rows[wanted])
                        until(lambda: health_or_none(address) == "SERVING", "the part to be back")
                        changed, new = torch.tensor([1, 4998]), torch.full((2, 4), 7, dtype=torch.int32)
                        client.update(OWNER.update(client.facts, client.state, changed, new))
                        rows[changed] = new
                        assert client.rows(wanted).equal(rows[wanted]) and client.state.version == 2
                    client.close()
                    if run:  # an orderly end while a part waits for a node
                        made.remove_node(made.extra.pop(), allow_graceful=False)
                        until(lambda: health_or_none(address) == "NOT_SERVING", "the loss to be noticed")
                        server.terminate()
                    else:
                        server.kill()
                    assert server.wait(HANG) == (0 if run else -signal.SIGKILL)
                finally:
                    server.kill()
            until(lambda: not actors(), "the parts to end with their server")


def lost_part(folder: Path) -> None:
    """The first run of that program alone."""
    program(folder, 1)


def actors_of(server: int) -> list[int]:
    """Processes of parts; there is one server in the cluster."""
    until(lambda: len(actors()) == 2, f"the parts of server {server}")
    return actors()


def refusals(folder: Path) -> None:
    """Bad addresses, files, numbers, and each refusal says what to do; a part whose node has another file when it is
    restarted stays missing, says why, and comes back when the file is mended.
    """
    path, rows = table(folder, 3000, 2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{taken.getsockname()[1]}"  # nobody listens there
    refused(EnvironmentProblem, "no Ray cluster answers.*ray start --head", closed, path, 2)
    os.environ["RAY_ADDRESS"] = closed
    refused(EnvironmentProblem, "no Ray cluster answers", "auto", path, 2)
    del os.environ["RAY_ADDRESS"]
    refused(InputError, "not the address of a Ray cluster.*auto, local or HOST:PORT", "ray://127.0.0.1:1", path, 2)
    refused(InputError, "4 parts for 3,000 rows", closed, path, 4)
    refused(InputError, "cannot read the table: No such file", closed, folder / "none.npy", 2)
    with cluster(2) as made:
        ray_parts.PLACE = 3.0
        text = "no room for 3 parts of 1 CPUs and 0.6 GB each.*3 nodes with 2 CPUs"
        refused(EnvironmentProblem, text, made.address, path, 3)
        ray_parts.PLACE = HANG
        seen = Source.open(path)
        Source.open = lambda path, tensor: seen  # this host has the file; its nodes have none, or another one
        refused(InputError, "No such file.*part 0 of 2.*every node needs", made.address, folder / "none.npy", 2)
        np.save(folder / "other.npy", rows.numpy() + 1)
        refused(AgreementError, "another table in the file", made.address, folder / "other.npy", 2)
        server = open_server(path, 0, ray=made.address, parts=2)
        # A wrong row shows in the lookups whose keys select it, that is in half of them.
        client, wanted = Client((server, Server(rows, 1)), timeout=HANG), torch.tensor([5, 2999] * 32)
        assert client.rows(wanted).equal(rows[wanted])
        changed = rows.clone()
        changed[5] += 1  # one row, in the part that ends
        np.save(folder / "other.npy", changed.numpy())
        right = path.rename(folder / "right.npy")  # the parts have mapped this file
        (folder / "other.npy").rename(path)
        parts = server._shard
        assert isinstance(parts, RayParts)
        parts._ray.kill(parts._parts[0].actor, no_restart=False)
        until(lambda: "another table in the file" in parts._parts[0].why, "the reason")
        time.sleep(3 * ray_parts._AGAIN)  # it is tried again meanwhile, and refused again
        assert not server.check()
        right.rename(path)
        until(server.check, "the part to be back")
        assert client.rows(wanted).equal(rows[wanted])
        server.close()


def refused(kind: type[HummingbirdError], text: str, address: str, path: Path, count: int) -> None:
    try:
        RayParts(address, path, None, count).close()
    except kind as error:
        assert re.search(text, str(error), re.DOTALL), str(error)
        return
    raise AssertionError(f"not refused: {text}")


def hang(folder: Path) -> None:
    """A part that does not answer, and has not ended, is replaced by a fresh process."""
    ray_parts._WORK = 5.0
    path, rows = table(folder, 5000, 4)
    with cluster(2) as made:
        server, wanted = open_server(path, 0, ray=made.address, parts=2), torch.tensor([0, 4999])
        both = (server, Server(rows, 1))
        stopped = actors()[0]
        suspend(stopped)
        try:
            Client(both, timeout=0.1).rows(wanted)
            raise AssertionError("answered without a part")
        except UnavailableError as error:
            assert "GetTimeoutError" in error.what
        assert Client(both, timeout=HANG).rows(wanted).equal(rows[wanted])
        assert stopped not in actors()
        server.close()


def kills(folder: Path) -> None:
    """2^20 rows over 4 parts, two clients and updates: 50 kills of parts and 5 of nodes, no wrong row."""
    count, nodes = int(os.environ["HB_KILLS"]), int(os.environ["HB_NODES"])
    path, rows = table(folder, 1 << 20, 8)
    tables, other = [rows.clone()], Server(rows, 1, owner=OWNER.public)
    losses = Losses()
    logging.getLogger("hummingbird").addHandler(losses)
    ended, wrong, seen, refusals = threading.Event(), list[str](), [0, 0], [0, 0]
    with cluster(4) as made:
        server = open_server(path, 0, ray=made.address, parts=4, owner=OWNER.public, journal=folder / "journal")
        assert server.state == other.state  # equal digests of all leaves
        changes: list[tuple[torch.Tensor, torch.Tensor]] = []

        def load(number: int) -> None:
            generator = torch.Generator().manual_seed(number)
            client = Client((server, other), timeout=0.3, decoder=("xor", "sum")[number])
            while not ended.is_set():
                places = torch.randint(1 << 20, (8,), generator=generator)
                places[:4] = torch.randint(64, (4,), generator=generator) * 16384  # rows that updates change
                try:
                    state, found = client.read(places)
                except UnavailableError as error:
                    assert error.retry_after is not None
                    refusals[number] += 1
                    time.sleep(0.05)
                    continue
                except AgreementError:  # an update has reached one server
                    continue
                expected = tables[0][places]
                for indices, new in changes[: state.version]:
                    for place, row in zip(indices.tolist(), new, strict=True):
                        expected[places == place] = row
                if not found.equal(expected):
                    wrong.append(f"version {state.version}: rows {places.tolist()}")
                seen[number] += 1

        threads = [threading.Thread(target=load, args=(number,), daemon=True) for number in (0, 1)]
        for thread in threads:
            thread.start()
        backs: dict[str, list[float]] = {"part": [], "node": []}
        rng = random.Random(1)
        owner = Client((server, other), timeout=HANG)
        for turn in range(count + nodes):
            what = "node" if turn % (count // nodes + 1) == count // nodes else "part"
            time.sleep(rng.random())
            started, before = time.monotonic(), losses.count
            if what == "part":
                victims = actors()
                os.kill(rng.choice(victims), signal.SIGKILL)
            else:
                made.remove_node(made.extra.pop(rng.randrange(4)), allow_graceful=False)
            if turn % 2:  # then the update is made while the server knows that a part is missing
                losses.beyond(before)
            indices = torch.randperm(64)[:5] * 16384
            new = torch.randint(-1000, 1000, (5, 8), dtype=torch.int32)
            changes.append((indices, new))
            owner.update(OWNER.update(owner.facts, owner.state, indices, new))
            losses.beyond(before)
            if what == "node":
                made.extra.append(made.add_node(num_cpus=1, object_store_memory=STORE))
            until(server.check, f"the {what} to be back")
            backs[what].append(time.monotonic() - started)
            owner.rows(torch.arange(64) * 16384)
        ended.set()
        for thread in threads:
            thread.join(HANG)
        last = tables[0].clone()
        for indices, new in changes:
            last[indices] = new
        places = torch.arange(64) * 16384
        assert owner.rows(places).equal(last[places]) and owner.state.version == count + nodes
        server.close()
    assert not wrong, wrong[:3]
    assert min(seen) > 0 and sum(refusals) > 0
    for what, times in backs.items():
        if times:
            middle, most = sorted(times)[len(times) // 2], max(times)
            print(f"MEASURED {len(times)} kills of a {what}: back after {middle:.1f} s, at most {most:.1f} s")
    print(f"MEASURED {sum(seen)} right answers, {sum(refusals)} refused, 0 wrong, {len(changes)} updates")


def bench(folder: Path) -> None:
    """The bench of parts, on a small table."""
    words = ["--rows", "5000", "--row-bytes", "8", "--parts", "2", "--keys", "5", "--passes", "2"]
    assert main([*words, "--json", str(folder / "rows.json")]) == 0


if __name__ == "__main__":
    loopback()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    {"program": program, "lost_part": lost_part, "refusals": refusals, "kills": kills, "bench": bench, "hang": hang}[
        sys.argv[1]
    ](Path(sys.argv[2]))
    print("PASSED", flush=True)
    os._exit(0)
