"""A party or the dealer dies: clients hear so at once, and the service comes back without a hand."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird.errors import PeerError
from hummingbird.mpc.session.session import Session
from hummingbird.serving.client import Client
from tests.support import python
from tests.support.parties import environment, finish, start
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM, until
from tests.support.ports import free_port
from tests.support.rebirth import hasty
from tests.support.serving import Service, served
from tests.support.serving_nets import centred, doubled


def again(process: subprocess.Popen[str], **changed: str) -> subprocess.Popen[str]:
    """The same program in the same environment, as a service manager starts it again; changed: options' values."""
    assert isinstance(process, python.Popen) and isinstance(process.args, list)
    words = list(process.args)
    for option, value in changed.items():
        words[words.index(f"--{option}") + 1] = value
    process.kill()
    process.communicate()
    pipe = subprocess.PIPE
    return python.Popen(words, env=process.environment, cwd=ROOT, text=True, stdout=pipe, stderr=pipe)


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


# Each life is told to end while the main thread starts threads, and ends them as `Channel.close` does. A handler that
# raises an exception does so inside Thread.start sooner or later, and a thread that has not started cannot be joined.
_STARTING = """
import random, signal, threading, time
from hummingbird.serving.serve import ReconnectLoop
from hummingbird.serving.party import Methods
from hummingbird.rpc.signals import check
from hummingbird.rpc.server import ServiceConfig, ServiceProgram
random.seed(1)
def begin():
    threads = []
    try:
        while True:
            threads.append(threading.Thread(target=time.monotonic))
            threads[-1].start()
            check()
    finally:
        for thread in threads[-2:]:
            thread.join()
for _ in range(200):
    with ServiceProgram("serve", ServiceConfig(()), second=False) as program:
        signal.signal(signal.SIGALRM, program._on_signal)
        signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.02 * random.random())
        ReconnectLoop(Methods(), begin, program.told, lambda: None).run()
"""


@pytest.mark.slow
def test_a_party_that_starts_threads_may_be_told_to_end_at_any_moment() -> None:
    command = [sys.executable, "-c", _STARTING]
    ended = python.run(command, cwd=ROOT, text=True, capture_output=True, timeout=PROGRAM)
    assert (ended.returncode, ended.stderr) == (0, "")


_STOPS = [(0, 2), *(pytest.param(seed, 25, marks=pytest.mark.slow) for seed in range(1, 5))]


@pytest.mark.parametrize("seed, count", _STOPS)
def test_orderly_stops_under_load(seed: int, count: int) -> None:
    """SIGTERM at any moment, once or twice: no traceback, and code 0 of each party."""
    command = [sys.executable, "-m", "tests.jobs.stops", str(count), str(seed)]
    ended = python.run(
        command, cwd=ROOT, env=environment(0, 1, 1), text=True, capture_output=True, timeout=PROGRAM * count
    )
    assert f"{2 * count} of {2 * count} parties stopped in an orderly way" in ended.stdout, ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_party_with_other_windows_is_waited_out_and_both_sides_are_named() -> None:
    """As one that is away is: when it comes back with the right ones, the same process of the other one serves."""
    folder = Path(tempfile.mkdtemp(prefix="hb"))
    net = ["--model", "tests.support.serving_nets:doubled", "--input", "4", "--listen", f"unix:{folder}/{{rank}}"]
    windows = ("30:0", "20:0")
    processes = start(
        ["-m", "hummingbird", "serve", *net],
        2,
        lambda rank: ["--window", windows[rank], "--log", f"{folder}/{rank}.log"],
    )

    def interrupted(rank: int) -> list[str]:
        events = map(json.loads, (folder / f"{rank}.log").read_text().splitlines())
        return [event["reason"] for event in events if event["event"] == "interrupted"]

    try:
        until(lambda: all(p.poll() is None for p in processes) and len(list(folder.glob("*.log"))) == 2, "a start")
        until(lambda: all(len(interrupted(rank)) > 1 for rank in range(2)), "parties to disagree, twice")
        for rank in range(2):
            reasons = [reason for reason in interrupted(rank) if "the parties disagree on" in reason]
            assert reasons and all(f"party {each} has" in reasons[0] for each in range(2)), interrupted(rank)
            assert processes[rank].poll() is None
        addresses = [f"unix:{folder}/{rank}" for rank in range(2)]
        refusals: list[str] = []

        def refused() -> bool:
            with pytest.raises(PeerError) as caught:
                Client(addresses, timeout=2.0)
            refusals.append(caught.value.what)
            return re.search("interrupted: (the parties do not agree|.*was told|.*party)", refusals[-1]) is not None

        until(refused, "a refusal")  # another one where it takes longer to connect
        assert "30" not in refusals[-1]  # which is the operators' matter
        processes[1] = again(processes[1], window="30:0")
        x = torch.rand(2, 4)
        until(lambda: reachable(addresses), "the service to start")
        with Client(addresses, timeout=HANG) as client, torch.no_grad():
            assert (client(x) - doubled()(x)).abs().max() < 1e-3
        for process in processes:
            process.terminate()
        ended = finish(processes)
        assert served(ended) == (2, 1) and "the parties disagree on" in ended[0].err
    finally:
        for process in processes:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_torchrun_ends_well_when_its_parties_are_told_to(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="hb"))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "hummingbird", "serve"]
    net = ["--model", "tests.support.serving_nets:doubled", "--input", "4", "--listen", f"unix:{folder}/{{rank}}"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with (tmp_path / "said").open("w") as said:
        launcher = python.Popen([sys.executable, *command, *net], cwd=ROOT, env=variables, stdout=said, stderr=said)
    try:
        until(lambda: (tmp_path / "said").read_text().count("serve listening") == 2, "the service to start")
        for pid in children(launcher.pid):
            os.kill(pid, signal.SIGTERM)
        assert launcher.wait(PROGRAM) == 0
        assert "served 0 images" in (tmp_path / "said").read_text()
        assert "Traceback" not in (tmp_path / "said").read_text()
    finally:
        launcher.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_launched_parties_serve_until_they_are_told_to_end() -> None:
    """As under hummingbird.launch, which returns what they return."""
    folder = Path(tempfile.mkdtemp(prefix="hb"))

    def party(session: Session, net: nn.Module, stem: str) -> int:
        hummingbird.serve(hummingbird.convert_model(net), (4,), f"{stem}/{session.rank}")
        return session.rank

    def stop() -> None:
        until(lambda: reachable([f"unix:{folder}/{rank}" for rank in range(2)]), "the service to start")
        for pid in children(os.getpid()):
            if "hummingbird.launching.party" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGTERM)

    try:
        with ThreadPoolExecutor(1) as pool:
            told = pool.submit(stop)
            assert hummingbird.launch(party, doubled(), f"unix:{folder}") == [0, 1]
            told.result(HANG)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def children(pid: int) -> list[int]:
    """Processes that any thread of a process has started."""
    found = [int(pid) for path in Path(f"/proc/{pid}/task").glob("*/children") for pid in path.read_text().split()]
    return [child for child in found if not python.beside(child)]


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

    launcher = python.Popen(
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
