"""torchrun's dynamic rendezvous is told from its static one, warned of and refused; and it is as SECURITY.md says."""

from __future__ import annotations

import base64
import contextlib
import datetime
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

import hummingbird
from hummingbird import __main__ as command
from hummingbird import ranks
from hummingbird.errors import PeerError, TrustError
from tests.launching.test_run import listening
from tests.support import python
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM, until
from tests.support.ports import free_port

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCH_ELASTIC_WORKER_IDENTICAL")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[dist.TCPStore]:
    """A launcher's, which the variables name; the run is called "r"."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    held = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(held.port))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "r")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    yield held


def test_what_a_static_one_writes_is_looked_for(store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranks.dynamic()
    store.set("other/torchelastic/role_info/0", "")
    assert ranks.dynamic()
    store.set("r/torchelastic/role_info/0", "")
    assert not ranks.dynamic()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    assert ranks.dynamic()
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    assert not ranks.dynamic()


def test_agents_that_are_alike_write_nothing(store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_ELASTIC_WORKER_IDENTICAL", "1")
    assert ranks.dynamic()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert not ranks.dynamic()


def test_a_store_that_is_not_there_says_nothing(store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    assert not ranks.dynamic()


def test_a_service_for_other_hosts_is_refused(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for listen in ("unix:/nowhere", "127.0.0.1:9100", "localhost:9100", "[::1]:9100"):
        ranks.refuse_dynamic(listen)
    with pytest.raises(TrustError, match=r"serve, with clients at 192.0.2.1:9100\)\nhint: .*--master-port"):
        ranks.refuse_dynamic("192.0.2.1:9100")
    line = ["serve", "--model", "models:get_model", "digits", "10", "--input", "1x8x8", "--listen", "192.0.2.1:9100"]
    with pytest.raises(SystemExit):
        command.main(line)
    assert "dynamic rendezvous runs code, as this user" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with pytest.raises(TrustError):  # the other party is elsewhere
        ranks.refuse_dynamic("127.0.0.1:9100")
    store.set("r/torchelastic/role_info/0", "")
    ranks.refuse_dynamic("192.0.2.1:9100")


def test_init_warns(store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> list[str]:
        with pytest.warns(UserWarning) as caught:
            hummingbird.init()
        hummingbird.uninit()
        return [str(warning.message) for warning in caught if "one party" not in str(warning.message)]

    (said,) = told()
    assert said == f"{ranks.DYNAMIC}: {ranks.DYNAMIC_HINT}"
    monkeypatch.setenv("LOCAL_RANK", "1")  # one of a host says it
    assert told() == []
    monkeypatch.setenv("LOCAL_RANK", "0")
    store.set("r/torchelastic/role_info/0", "")
    assert told() == []


def test_ranks_are_warned(store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they meet: here nobody else comes."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(ranks, "TIMEOUT", 0.1)
    with pytest.warns(UserWarning, match=ranks.DYNAMIC), pytest.raises(PeerError, match="did not meet"), ranks.job():
        raise AssertionError("nobody comes")


def torchrun(folder: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    """torchrun with one process, which says whether it finds a dynamic rendezvous and waits for the end of stdin."""
    script = "import sys; from hummingbird import ranks; print(ranks.dynamic(), flush=True); sys.stdin.read()"
    (folder / "says.py").write_text(script)
    kept = {name: value for name, value in os.environ.items() if name not in NAMES}
    return python.Parent(
        [sys.executable, "-m", "torch.distributed.run", *options, "--nproc-per-node=1", "says.py"],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


STATIC = "--rdzv-backend=static", "--master-addr=127.0.0.1"
ALIKE = {"TORCH_ELASTIC_WORKER_IDENTICAL": "1"}
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("options", "variables", "expected"),
    [
        (["--master-port=PORT"], {}, False),
        pytest.param(["--standalone"], {}, True, marks=slow),  # the one below, too
        pytest.param([], {}, True, marks=slow),
        pytest.param(["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"], {}, True, marks=slow),
        pytest.param(["--standalone"], {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, True, marks=slow),
        pytest.param(["--standalone"], ALIKE, True, marks=slow),
        pytest.param([*STATIC, "--master-port=PORT"], {}, False, marks=slow),
        pytest.param([*STATIC, "--master-port=PORT", "--rdzv-id=7"], {}, False, marks=slow),
        pytest.param([*STATIC, "--master-port=PORT"], ALIKE, False, marks=slow),
    ],
)
def test_torchruns_lines(tmp_path: Path, options: list[str], variables: dict[str, str], expected: bool) -> None:
    words = [option.replace("PORT", str(free_port())) for option in options]
    with torchrun(tmp_path, *words, **variables) as launcher:
        out, _ = launcher.communicate("", timeout=PROGRAM)
    assert out == f"{expected}\n"


class Touch:
    """A pickle that makes a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_who_reaches_a_dynamic_rendezvous_runs_code_there(tmp_path: Path) -> None:
    """Why it is refused; a static one of several hosts is on all interfaces, too, and loads nothing."""
    mark = tmp_path / "was here"
    with torchrun(tmp_path, "--standalone") as launcher:
        assert launcher.stdout is not None and launcher.stdout.readline() == "True\n"
        assert any(set(host) == {"0"} for host, _ in sockets(launcher.pid))  # all interfaces
        for _, port in sockets(launcher.pid):
            poison(port, mark)
        until(mark.exists, "torchrun to load what was written")
        launcher.kill()


@slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_static_rendezvous_loads_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "was here"
    with torchrun(tmp_path, "--max-restarts=1", f"--master-port={free_port()}") as launcher:
        assert launcher.stdout is not None and launcher.stdout.readline() == "False\n"
        for _, port in sockets(launcher.pid):
            assert poison(port, mark)
        launcher.communicate("", timeout=HANG)
    assert not mark.exists()


def sockets(pid: int) -> set[tuple[str, int]]:
    return {(host, int(port, 16)) for host, port in (found.split(":") for found in listening([pid]))}


def poison(port: int, mark: Path) -> list[str]:
    """Overwrite each value of a store with a pickle that makes a file; returns their names."""
    wait = datetime.timedelta(seconds=HANG)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=wait)
    names = [re.sub("^/", "", name) for name in store.list_keys()]
    for name in names:
        with contextlib.suppress(RuntimeError):
            store.set(name, base64.b64encode(pickle.dumps(Touch(mark))).decode())
    return names
