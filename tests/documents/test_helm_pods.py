"""A group of deploy/helm without a cluster: each pod's command, variables and network policy, in a network namespace.

Three owners' pods of group 1, with the certificates that docs/kubernetes.md makes. Mounted folders are folders of the
test, names are lines of a hosts file, and policies are rules of iptables. The kubelet's part is the test's: it asks the
probes, replaces files by one link as a kubelet does, and starts again what has died.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np
import pytest
import torch

from models import trained
from tests.mpc.session.test_firewalls import command, obstacle
from tests.support import python
from tests.support.kubernetes import HELM, Manifest, container, environment, manifests, of_kind, pod, put_files, words
from tests.support.pages import blocks
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(HELM is None, reason="helm is not installed: go install helm.sh/helm/v3/cmd/helm@latest"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]
GROUP = 1
ADDRESSES = {"party-0": "10.78.0.10", "party-1": "10.78.0.11", "dealer": "10.78.0.12", "client": "10.78.0.20"}
HOSTS = {"party-0": "party-0-g1.a.example", "party-1": "party-1-g1.b.example", "dealer": "dealer-g1.c.example"}
SEES = {
    "party-0": {"callers": ["client"], "parties": ["party-1"], "dealers": ["dealer"]},
    "party-1": {"callers": ["client"], "parties": ["party-0"], "dealers": ["dealer"]},
    "dealer": {"callers": ["party-0", "party-1"]},
}


def rendered(role: str) -> list[Manifest]:
    """A role's objects, with the networks of this test."""
    changed = [
        f"networkPolicy.{name}[{place}].ipBlock.cidr={ADDRESSES[other]}/32"
        for name, others in SEES[role].items()
        for place, other in enumerate(others)
    ]
    return manifests(role, *changed)


class Cluster:
    """Namespaces on one bridge, and the pods that run in them. folder: of all files."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self.folder, self._ends, self._name = folder, ends, f"hb-{uuid.uuid4().hex[:6]}"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._bridge()
        (folder / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{ADDRESSES[role]} {host}\n" for role, host in HOSTS.items())
        )

    def _bridge(self) -> None:
        bridge = f"{self._name}-b"
        for number, (role, address) in enumerate([("b", ""), *ADDRESSES.items()]):
            space = f"{self._name}-{role}"
            command("ip", "netns", "add", space)
            self._ends.callback(command, "ip", "netns", "delete", space)
            command("ip", "-n", space, "link", "set", "lo", "up")
            if not address:
                command("ip", "-n", space, "link", "add", "bridge", "type", "bridge")
                command("ip", "-n", space, "link", "set", "bridge", "up")
                continue
            peer = f"pod{number}"
            command("ip", "-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", peer, "netns", bridge)
            command("ip", "-n", bridge, "link", "set", peer, "master", "bridge", "up")
            command("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            command("ip", "-n", space, "link", "set", "eth0", "up")

    def within(self, role: str, *line: str) -> list[str]:
        """The words that run a command in a namespace, where the names of all pods are known."""
        mount = 'mount --bind "$0" /etc/hosts && exec "$@"'
        return ["ip", "netns", "exec", f"{self._name}-{role}", "sh", "-c", mount, str(self.folder / "hosts"), *line]

    def enforce(self, role: str) -> None:
        """Let pass what a release's NetworkPolicy lets pass, and what a pod says to itself, as a kubelet's probes."""
        (policy,) = of_kind(rendered(role), "NetworkPolicy")
        rules = ["-P INPUT DROP", "-P OUTPUT DROP", "-A INPUT -i lo -j ACCEPT", "-A OUTPUT -o lo -j ACCEPT"]
        rules += [f"-A {chain} -m conntrack --ctstate ESTABLISHED -j ACCEPT" for chain in ("INPUT", "OUTPUT")]
        for chain, way, side, flag in (("INPUT", "ingress", "from", "-s"), ("OUTPUT", "egress", "to", "-d")):
            for rule in policy["spec"].get(way, []):
                networks = [each["ipBlock"]["cidr"] for each in rule.get(side, []) if "ipBlock" in each]
                for port in rule["ports"]:
                    match = f"-p {port['protocol'].lower()} --dport {port['port']}"
                    rules += [f"-A {chain} {match} {flag} {network} -j ACCEPT" for network in networks]
        for rule in rules:
            command(*self.within(role, "iptables", *rule.split()))

    def start(self, role: str) -> None:
        """Start a role's pod, with the words and variables that a kubelet gives it."""
        found = rendered(role)
        mounts = {mount["mountPath"]: self.folder / role / mount["name"] for mount in container(found)["volumeMounts"]}
        places = {**mounts, "/net": self.folder / "net"}  # a part of the image
        for place in places.values():
            place.mkdir(parents=True, exist_ok=True)
        moved = lambda hit: str(places.get(hit[0], hit[0]))  # noqa: E731
        line = [re.sub(r"(?<==)/\w+", moved, word) for word in words(found, GROUP)]
        variables = {**environment(found, GROUP, 1), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        log: IO[bytes] = (self.folder / f"{role}.log").open("ab")
        whole = self.within(role, sys.executable, "-m", "hummingbird", *line)
        self.running[role] = subprocess.Popen(whole, env=variables, stdout=log, stderr=log, cwd=ROOT)
        log.close()

    def said(self, role: str) -> str:
        return (self.folder / f"{role}.log").read_text()

    def probe(self, role: str, kind: str) -> int:
        """The status that a pod's probe gets; 0 if nothing answers."""
        spec = container(rendered(role))
        asked = spec[f"{kind}Probe"]["httpGet"]
        (port,) = (each["containerPort"] for each in spec["ports"] if each["name"] == asked["port"])
        program = (
            "import sys, urllib.request, urllib.error\ntry:\n    print(urllib.request.urlopen(sys.argv[1]).status)\n"
        )
        program += "except urllib.error.HTTPError as error:\n    print(error.code)\nexcept OSError:\n    print(0)\n"
        return int(self.run(role, "-Sc", program, f"http://127.0.0.1:{port}{asked['path']}"))

    def run(self, role: str, *line: str) -> str:
        return command(*self.within(role, sys.executable, *line))

    def await_ready(self, *roles: str) -> None:
        def ready() -> bool:
            for role in roles:
                assert self.running[role].poll() is None, self.said(role)
            return all(self.probe(role, "readiness") == 200 for role in roles)

        until(ready, f"{roles} to be ready")

    def close(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            try:
                process.wait(HANG)
            finally:
                process.kill()


def issued(folder: Path) -> None:
    """Everybody's certificates, by the page's own lines; and alice's, of the same authority."""
    (lines,) = (block for block in blocks(ROOT / "docs/kubernetes.md", "sh") if "openssl" in block)
    alice = lines[lines.index("for release") :].replace(
        "party-0:a.example party-1:b.example dealer:c.example", "alice:x"
    )
    subprocess.run(["sh", "-ec", lines + alice], cwd=folder, check=True, capture_output=True, timeout=PROGRAM)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if reason := obstacle():
        pytest.skip(reason)
    (tmp_path / "authority").mkdir()
    issued(tmp_path / "authority")
    net = "--model models:get_model digits 10 --weights checkpoints/digits.pt --bits checkpoints/digits.bits.json"
    save = [sys.executable, "-m", "hummingbird", "save", *net.split(), "--out", str(tmp_path / "net")]
    assert python.run(save, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM).returncode == 0
    with ExitStack() as ends:
        made = Cluster(tmp_path, ends)
        ends.callback(made.close)
        for role in HOSTS:
            put_files(tmp_path / role / "certs", certificates(made, role))
            made.enforce(role)
        yield made


def certificates(cluster: Cluster, role: str) -> list[Path]:
    (volume,) = (each["projected"] for each in pod(rendered(role))["volumes"] if "projected" in each)
    names = [item["path"] for source in volume["sources"] for item in next(iter(source.values()))["items"]]
    return [cluster.folder / "authority" / role / name for name in names]


def ask(cluster: Cluster, images: torch.Tensor) -> torch.Tensor:
    """A client of group 1, with the command of the page."""
    np.save(cluster.folder / "images.npy", images.numpy())
    (cluster.folder / "groups").write_text(f"{HOSTS['party-0']}:9100 {HOSTS['party-1']}:9100\n")
    own, where = cluster.folder / "authority/alice", cluster.folder
    files = [f"--tls-cert={own}/tls.crt", f"--tls-key={own}/tls.key", f"--tls-ca={own}/ca.crt"]
    words = ["-m", "hummingbird", "ask", f"--groups={where}/groups", f"--images={where}/images.npy"]
    cluster.run("client", *words, f"--out={where}/out.npy", *files, f"--timeout={HANG}")
    return torch.from_numpy(np.load(where / "out.npy"))


PORTS = (7000, 9000, 9100, 9200, 29500)
PASSES = """
import socket, sys
for port in sys.argv[3:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), float(sys.argv[2])).close()
        print(port)
    except ConnectionRefusedError:  # by the pod: its policy lets the port pass, and nothing listens there now
        print(port)
    except TimeoutError:
        pass
"""


def passing(cluster: Cluster, who: str, role: str, seconds: float, ports: Iterable[int]) -> set[int]:
    """The ports of a pod that another one reaches."""
    found = cluster.run(who, "-Sc", PASSES, HOSTS[role], str(seconds), *map(str, ports))
    return {int(port) for port in found.split()}


def test_a_group_of_three_owners_meets_answers_renews_and_comes_back(cluster: Cluster) -> None:
    images = torch.rand(3, 1, 8, 8)
    expected = trained("digits", 10, str(ROOT / "checkpoints/digits.pt"))(images).argmax(1)
    for role in ("party-1", "dealer", "party-0"):  # in any order
        cluster.start(role)
    cluster.await_ready("dealer", "party-0", "party-1")
    assert all(cluster.probe(role, kind) == 200 for role in HOSTS for kind in ("startup", "liveness"))
    assert (ask(cluster, images).argmax(1) == expected).all()

    # The policy: clients reach calls alone, parties each other, nobody the metrics.
    for who, role, ports in (
        ("client", "party-0", {9100}),
        ("client", "dealer", set()),
        ("party-1", "party-0", {7000, 29500}),
        ("party-1", "dealer", {9000}),
        ("dealer", "party-0", set()),
    ):
        assert passing(cluster, who, role, HANG, ports) == ports
        assert passing(cluster, who, role, 0.5, {*PORTS} - ports) == set()

    # A certificate that is renewed: the next caller sees the new one, and nothing restarts.
    shutil.rmtree(cluster.folder / "authority")
    (cluster.folder / "authority").mkdir()
    issued(cluster.folder / "authority")  # of another authority, as a caller can tell
    for role in HOSTS:
        put_files(cluster.folder / role / "certs", certificates(cluster, role))
    assert (ask(cluster, images).argmax(1) == expected).all()
    assert "certificates renewed" in cluster.said("party-0") and "interrupted" not in cluster.said("party-0")

    # A pod that dies: the other party is alive and not ready, and both serve again when it is back.
    lost = cluster.running["party-1"]
    lost.kill()
    lost.wait(HANG)
    until(lambda: cluster.probe("party-0", "readiness") == 503, "party 0 to miss party 1")
    assert cluster.probe("party-0", "liveness") == 200 and cluster.probe("dealer", "readiness") == 200
    cluster.start("party-1")
    cluster.await_ready("dealer", "party-0", "party-1")
    assert (ask(cluster, images).argmax(1) == expected).all()
    assert "interrupted" in cluster.said("party-0")
