"""Whole runs where parties cannot reach each other as they like: one port each, and an address translation between."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from hummingbird.rpc.service import Tls
from hummingbird.serving.client import Client
from scripts.bench.link import Link, Place
from scripts.bench.link import obstacle as no_link
from scripts.bench.link import places as link_places
from tests.channel.test_connect import Authority
from tests.support import python
from tests.support.parties import environment, finish
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM, until
from tests.support.ports import free_port
from tests.support.serving_nets import doubled

# One session after the other in the same processes; each looks at its own connections to the others.
SESSIONS = """
import os, sys
import hummingbird, torch
from hummingbird.mpc.session.lanes import environment
from hummingbird.mpc.session.rendezvous import beside
lanes, doors = int(sys.argv[1]), sys.argv[2:]
place = environment(lanes)
ports = {int(door.rpartition(":")[2]) for door in doors}
for number in range(2):
    session = hummingbird.init(lanes=lanes, peer_listen=doors[place.party], timeout=300)
    channels = [session.channel] + ([beside(session, None)] if session.lane == 0 else [])
    for channel in channels:
        got = channel.exchange(torch.tensor([place.party, place.lane, number]))
        assert all(said.tolist() == [peer, place.lane, number] for peer, (said,) in got.items()), got
        for connection in (*channel._outgoing.values(), *channel._incoming.values()):
            assert {connection.getsockname()[1], connection.getpeername()[1]} & ports
    for channel in channels[1:]:
        channel.close()
    hummingbird.uninit()
print("done")
"""


def run(parties: int, lanes: int, doors: Sequence[str], **variables: str) -> None:
    port = free_port()
    command = [sys.executable, "-c", SESSIONS, str(lanes), *doors]
    ended = finish(
        [
            (python.Popen if rank else python.Parent)(  # the first one starts a dealer
                command,
                env={**environment(rank, parties * lanes, port), **variables},
                cwd=ROOT,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(parties * lanes)
        ]
    )
    assert all(party.code == 0 and party.out.endswith("done\n") for party in ended), ended


@pytest.mark.parametrize("parties", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_one_port_for_all_lanes_and_for_session_after_session(parties: int) -> None:
    """Parties of two lanes: every connection has a party's port at one of its ends."""
    run(parties, 2, [f"127.0.0.1:{free_port()}" for _ in range(parties)])


@pytest.mark.slow  # doors and the store at IPv6 addresses: test_meeting.py
def test_parties_at_ipv6_addresses() -> None:
    """The store, the parties, and what they announce."""
    from tests.channel.test_one_port import has_ipv6

    if not has_ipv6():
        pytest.skip("this host has no IPv6 loopback")
    run(2, 1, [f"[::1]:{free_port()}" for _ in range(2)], MASTER_ADDR="::1")


# Two networks, and a translation between them ------------------------------------------------------------------------

PUBLIC, STORE, PEER = "198.51.100.1", 29500, 7001  # an address for documentation, on the router alone


def command(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


@contextmanager
def two_private_networks() -> Iterator[tuple[str, str]]:
    """Namespaces of two hosts, 10.77.0.2 and 10.77.1.2, behind a router that gives PUBLIC's port STORE to the first
    one, and PEER to the second, and lets no other connection pass.
    """
    name = f"hb-{uuid.uuid4().hex[:8]}"
    router, hosts = f"{name}-r", [f"{name}-0", f"{name}-1"]
    with ExitStack() as made:
        for space in (router, *hosts):
            command("ip", "netns", "add", space)
            made.callback(command, "ip", "netns", "delete", space)
            command("ip", "-n", space, "link", "set", "lo", "up")
        for number, host in enumerate(hosts):
            ends = ["type", "veth", "peer", "name", f"host{number}", "netns", router]
            command("ip", "-n", host, "link", "add", "eth0", *ends)
            for space, end, last in ((host, "eth0", 2), (router, f"host{number}", 1)):
                command("ip", "-n", space, "addr", "add", f"10.77.{number}.{last}/24", "dev", end)
                command("ip", "-n", space, "link", "set", end, "up")
            command("ip", "-n", host, "route", "add", "default", "via", f"10.77.{number}.1")
        command("ip", "-n", router, "addr", "add", f"{PUBLIC}/32", "dev", "lo")
        within = ["ip", "netns", "exec", router]
        command(*within, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for number, port in ((0, STORE), (1, PEER)):
            there = ["-p", "tcp", "-d", PUBLIC, "--dport", str(port)]
            command(
                *within, *"iptables -t nat -A PREROUTING".split(), *there, "-j", "DNAT", "--to", f"10.77.{number}.2"
            )
            command(*within, *f"iptables -t nat -A POSTROUTING -o host{number} -j MASQUERADE".split())
        for rule in ("-P FORWARD DROP", "-A FORWARD -m conntrack --ctstate ESTABLISHED,DNAT -j ACCEPT"):
            command(*within, "iptables", *rule.split())
        yield hosts[0], hosts[1]


def obstacle() -> str:
    """Why this host cannot make these networks, "" if it can."""
    if os.geteuid():
        return "network namespaces are for root"
    for program in ("ip", "iptables"):
        if shutil.which(program) is None:
            return f"no program {program!r}"
    try:
        with two_private_networks():
            return ""
    except AssertionError as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_a_service_whose_parties_have_one_open_port_each_behind_address_translation() -> None:
    """Party 0's port leads to the store by which they meet, party 1's to itself: party 0 makes all connections.

    Neither can reach the other in any other way. With certificates; the dealer and the client are at Unix sockets.
    """
    if why := obstacle():
        pytest.skip(why)
    with ExitStack() as end:
        folder = Path(tempfile.mkdtemp())  # pytest's own may be too long for a socket's path
        end.callback(shutil.rmtree, folder)
        authority = Authority(folder, "ca")
        for name in ("dealer", "party-0", "party-1", "alice"):
            authority.issue(name, "localhost")

        def tls(name: str) -> list[str]:
            files = {"cert": f"ca-{name}.crt", "key": f"ca-{name}.key", "ca": "ca.pem"}
            return [word for kind, file in files.items() for word in (f"--tls-{kind}", f"{folder}/{file}")]

        program = [sys.executable, "-m", "hummingbird"]

        def start(words: list[str], before: Sequence[str] = (), **variables: str) -> subprocess.Popen[str]:
            with open(folder / f"{uuid.uuid4().hex}.log", "w") as log:
                process = subprocess.Popen(
                    [*before, *program, *words],
                    env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables},
                    cwd=ROOT,
                    text=True,
                    stdout=log,
                    stderr=log,
                )
            end.callback(process.wait)
            end.callback(process.kill)
            return process

        spaces = end.enter_context(two_private_networks())
        for number, space in enumerate(spaces):  # what the rules are to prevent, they prevent
            other = f"10.77.{1 - number}.2"
            ping = f"import socket; socket.create_connection(('{other}', 80), timeout=1)"
            blocked = subprocess.run(["ip", "netns", "exec", space, sys.executable, "-c", ping], capture_output=True)
            assert b"timed out" in blocked.stderr, blocked
        start(["dealer", "--listen", f"unix:{folder}/dealer", *tls("dealer")])
        until((folder / "dealer").exists, "the dealer to listen")
        listens = [f"unix:{folder}/party-{rank}" for rank in range(2)]
        net = "--model tests.support.serving_nets:doubled --input 4 --window 30:0 --timeout 300".split()
        common = ["serve", *net, "--dealer", f"unix:{folder}/dealer"]
        doors = [[], ["--peer-listen", f"10.77.1.2:{PEER}", "--peer-address", f"{PUBLIC}:{PEER}"]]
        parties = []
        for rank in range(2):
            variables = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            variables |= {"MASTER_ADDR": ["10.77.0.2", PUBLIC][rank], "MASTER_PORT": str(STORE)}
            words = [*common, *doors[rank], "--listen", listens[rank], *tls(f"party-{rank}")]
            parties.append(start(words, ["ip", "netns", "exec", spaces[rank]], **variables))

        def ask() -> bool:
            assert all(party.poll() is None for party in parties), said()
            done = subprocess.run([*program, "health", listens[0], *tls("alice")], capture_output=True, cwd=ROOT)
            return done.returncode == 0

        def said() -> str:
            return "\n".join(path.read_text() for path in folder.glob("*.log"))

        until(ask, "the parties to meet")
        x = np.random.default_rng(1).random((3, 4), np.float32)
        np.save(folder / "x.npy", x)
        words = ["ask", "--parties", *listens, "--images", f"{folder}/x.npy", "--out", f"{folder}/y.npy", *tls("alice")]
        done = subprocess.run([*program, *words], capture_output=True, text=True, cwd=ROOT, timeout=PROGRAM)
        assert done.returncode == 0, (done.stderr, said())
        assert np.load(folder / "y.npy").shape[0] == 3
        established = [command("ip", "netns", "exec", space, "cat", "/proc/net/tcp") for space in spaces]
        ports = {line.split()[1].split(":")[1] for line in established[1].splitlines() if re.search(r" 01 ", line)}
        assert f"{PEER:04X}" in ports  # what party 0 made leads here


# Parties of several hosts ---------------------------------------------------------------------------------------------

METRICS = "9109"


@contextmanager
def four_hosts() -> Iterator[tuple[Path, Tls, list[Place], Callable[[int, list[str]], subprocess.Popen[str]]]]:
    """A folder, a client's certificate, four hosts, and what starts a program as one lane of two parties, by its rank.

    Each party has two hosts, with a lane each. All have certificates; a dealer listens at FOLDER/dealer.
    """
    link = Link.parse("1gbit")
    if why := no_link(link):
        pytest.skip(why)
    with ExitStack() as end:
        folder = Path(tempfile.mkdtemp())  # pytest's own may be too long for a socket's path
        end.callback(shutil.rmtree, folder)
        authority, names = Authority(folder, "ca"), ("alice", "dealer", "party-0", "party-1")
        alice, dealer, *parties = [authority.issue(name, "localhost") for name in names]

        def start(words: list[str], tls: Tls, before: Sequence[str] = (), **variables: str) -> subprocess.Popen[str]:
            files = ["--tls-cert", str(tls.cert), "--tls-key", str(tls.key), "--tls-ca", str(tls.ca)]
            process = subprocess.Popen(
                [*before, sys.executable, "-m", "hummingbird", *words, *files],
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables},
                cwd=ROOT,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            end.callback(process.wait)
            end.callback(process.kill)
            return process

        start(["dealer", "--listen", f"unix:{folder}/dealer"], dealer)
        until((folder / "dealer").exists, "the dealer to listen")
        hosts = end.enter_context(link_places(link, 4))
        here = {"WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}

        def lane(rank: int, words: list[str]) -> subprocess.Popen[str]:
            words = [*words, *f"--lanes 2 --timeout 300 --dealer unix:{folder}/dealer".split()]
            variables = {**here, **hosts[rank].environment, "RANK": str(rank)}
            return start(words, parties[rank // 2], hosts[rank].prefix, **variables)

        yield folder, alice, hosts, lane


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_infer_with_the_lanes_of_each_party_on_two_hosts(tmp_path: Path) -> None:
    """Images are divided, and lane 0 has all answers and figures."""
    with four_hosts() as (_, _, _, lane):
        net = "--model models:get_model digits 10 --weights checkpoints/digits.pt --window 20:12 --samples 41".split()
        data = "--data scripts.train.data:load digits test".split()
        words = ["infer", *net, *data, "--json", f"{tmp_path}/result.json"]
        ended = finish([lane(rank, words) for rank in range(4)])
    assert [each.code for each in ended] == [0] * 4, ended
    found = json.loads((tmp_path / "result.json").read_text())
    assert (found["lanes"], found["images"], len(found["seconds_by_lane"])) == (2, 41, 2)
    assert found["agreement_percent"] == 100 and found["bits_predicted_equal_bits_sent"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_a_service_with_the_lanes_of_each_party_on_two_hosts() -> None:
    """Both lanes answer, and again after one of them was killed and is back."""
    net = doubled()
    with four_hosts() as (folder, alice, hosts, lane):
        words = "serve --model tests.support.serving_nets:doubled --input 4 --window 30:0 --max-batch 4".split()
        words += ["--listen", f"unix:{folder}/{{rank}}.sock", "--metrics", METRICS]
        lanes = [lane(rank, words) for rank in range(4)]

        def ask(number: int) -> bool:
            x = torch.rand(4, 4)
            with Client([f"unix:{folder}/{party}.sock" for party in range(2)], timeout=PROGRAM, tls=alice) as client:
                return bool((client(x) - net(x)).abs().max() < 1e-3)

        def ready() -> bool:
            assert all(each.poll() is None for each in lanes), finish(lanes)
            return all((folder / f"{party}.sock").exists() for party in range(2))

        def batches() -> list[int]:
            page = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{METRICS}/metrics').read().decode())"
            figures = command(*hosts[0].prefix, sys.executable, "-c", page)
            return [int(n) for n in re.findall(r'hummingbird_serving_batches_total\{lane="\d"\} (\d+)', figures)]

        until(ready, "a service to start")
        with ThreadPoolExecutor(4) as pool, torch.no_grad():
            assert all(pool.map(ask, range(24)))
            before = batches()
            lanes[3].kill()  # lane 1 of party 1
            lanes[3].wait(HANG)
            lanes[3] = lane(3, words)
            assert all(pool.map(ask, range(24)))
        assert sum(before) == 24 and min(before) > 0, before
        after = batches()
        assert sum(after) >= 48 and after[1] > before[1], (before, after)
