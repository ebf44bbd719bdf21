"""A party or the dealer dies: clients hear so at once, and the service comes back without a hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from hummingbird.errors import PeerError
from hummingbird.serving.client import Client
from tests.support.parties import free_port
from tests.support.paths import ROOT
from tests.support.patience import HANG, until
from tests.support.rebirth import hasty
from tests.support.serving import Service, served
from tests.support.serving_nets import centred, doubled


def again(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """The same program in the same environment, as a service manager starts it again."""
    text = Path(f"/proc/{process.pid}/environ").read_text()
    variables = dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
    words = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")[:-1]
    process.kill()
    process.communicate()
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=variables, cwd=ROOT, text=True, stdout=pipe, stderr=pipe)


@pytest.mark.slow
def test_parties_and_dealer_die_and_come_back() -> None:
    """Also: requests of a net that computes images together run one by one, each as if it were alone."""
    net, x = centred(), torch.tensor([[1.0, -2.0, 3.0], [5.0, 0.25, 0.0]])
    options = ["--model", "tests.support.serving_nets:centred", "--input", "3", "--max-batch", "8"]
    with Service(*options) as service, service.client() as client, hasty(service.addresses) as impatient:
        assert not client.service.rowwise
        for rank in (1, 0):
            service.processes[rank] = again(service.processes[rank])
            with pytest.raises(PeerError):
                impatient(x)
            assert (client(x) - net(x)).abs().max() < 1e-3
        (dealer,) = children(service.processes[0].pid)
        os.kill(dealer, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{dealer}/exe").exists(), "the dealer to die")
        assert (client(x) - net(x)).abs().max() < 1e-3
        ended = service.stop()
        assert served(ended)[1] >= 2  # by this process of party 0, in two lives or more
        assert "interrupted" in ended[1].err and "meeting the others again" in ended[1].err


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_parties_that_are_told_to_end_answer_what_is_inside() -> None:
    """Under load, the first of them a little earlier: every request is answered, rightly, or refused in words."""
    net, x = doubled(), torch.rand(6, 4)

    def ask(service: Service) -> list[str]:
        found: list[str] = []
        with service.client(10.0) as client, torch.no_grad():
            while True:
                try:
                    found.append("right" if (client(x) - net(x)).abs().max() < 1e-3 else "wrong")
                except PeerError as error:
                    return [*found, str(error)]

    options = ["--model", "tests.support.serving_nets:doubled", "--input", "4", "--window", "30:0", "--max-batch", "8"]
    with Service(*options) as service, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, service) for _ in range(4)]
        time.sleep(1.0)
        service.processes[1].terminate()
        images, batches = served(service.stop())
        outcomes = [future.result(HANG) for future in asked]
    right = sum(len(found) - 1 for found in outcomes)
    assert all(set(found[:-1]) <= {"right"} and "wrong" not in found for found in outcomes), outcomes
    assert right > 0 and images % 6 == 0 and images >= 6 * right and batches > 0


@pytest.mark.slow
def test_run_starts_its_parties_again() -> None:
    net, x, ports = doubled(), torch.rand(2, 4), [free_port(), free_port()]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    command = ["-m", "hummingbird", "run", "--parties", "2", "--max-restarts", "3", "--"]
    serve = ["-m", "hummingbird", "serve", "--model", "tests.support.serving_nets:doubled", "--input", "4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    launcher = subprocess.Popen(
        [sys.executable, *command, *serve, "--listen", *addresses], cwd=ROOT, env=environment, start_new_session=True
    )
    try:
        until(lambda: reachable(addresses), "the service to start")
        with Client(addresses, timeout=HANG) as client:
            assert (client(x) - net(x)).abs().max() < 1e-2
            victims = [pid for pid in children(launcher.pid) if "serve" in Path(f"/proc/{pid}/cmdline").read_text()]
            os.kill(victims[0], signal.SIGKILL)
            assert (client(x) - net(x)).abs().max() < 1e-2
    finally:
        launcher.send_signal(signal.SIGTERM)
        code = launcher.wait(HANG)
    assert code == 0


def reachable(addresses: list[str]) -> bool:
    try:
        Client(addresses, timeout=2.0).close()
    except PeerError:
        return False
    return True
