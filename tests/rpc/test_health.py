"""`python -m hummingbird health`, for probes: what it prints, and its exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hummingbird.__main__ import main
from hummingbird.errors import NotFoundError, UnavailableError
from hummingbird.rpc import telemetry
from hummingbird.rpc.server import ServiceConfig, ServiceProgram
from hummingbird.rpc.service import Tls, serve
from tests.support.dealers import Authority
from tests.support.paths import ROOT
from tests.support.patience import HANG
from tests.support.services import HANDLERS, file_of
from tests.support.services import health as asked_for_health


def test_callers_with_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, address = Authority(tmp_path, "ours"), f"unix:{tmp_path}/s"
    mine = ours.issue("probe", "probe")
    words = ["health", address, "--tls-cert", str(mine.cert), "--tls-key", str(mine.key), "--tls-ca", str(mine.ca)]
    with ServiceProgram("test", ServiceConfig((address,), tls=ours.issue("server", "localhost"))) as program:
        program.serve(HANDLERS)
        assert main(words) == 1 and capsys.readouterr().out == "NOT_SERVING\n"
        program.ready()
        assert main(words) == 0 and capsys.readouterr().out == "SERVING\n"
        assert main([*words[:2], "--tls-ca", str(mine.ca), "--timeout", "5"]) == 1  # no certificate
        assert capsys.readouterr().err.startswith("error: ")
    with pytest.raises(UnavailableError):
        telemetry.ask(address, mine)


def test_what_lives_need_not_be_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"unix:{tmp_path}/s"
    with ServiceProgram("test", ServiceConfig((address,))) as program:
        program.serve(HANDLERS)
        assert main(["health", address]) == 1 and main(["health", address, "--live"]) == 0
        assert capsys.readouterr().out == "NOT_SERVING\nSERVING\n"
        assert asked_for_health(address, "livez") == "SERVING"
        assert asked_for_health(address, "readyz") == asked_for_health(address, "") == "NOT_SERVING"
        program.ready()
        assert main(["health", address]) == main(["health", address, "--live"]) == 0
        program.ready(False)
        assert main(["health", address]) == 1


def test_a_part_of_a_program_serves_only_while_the_program_does(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    with ServiceProgram("test", ServiceConfig((address,))) as program:
        program.serve(HANDLERS)
        program.part("digits@1", True)
        program.part("digits@2", False)
        assert asked_for_health(address, "digits@1") == "NOT_SERVING"
        program.ready()
        assert [asked_for_health(address, f"digits@{n}") for n in (1, 2)] == ["SERVING", "NOT_SERVING"]
        program.part("digits@1", None)
        with pytest.raises(NotFoundError):
            telemetry.ask(address, name="digits@1")


def test_a_probe_imports_no_torch(tmp_path: Path) -> None:
    """Which takes seconds, and more of them on a busy host."""
    address = f"unix:{tmp_path}/s"
    script = f"""
import sys
from hummingbird.__main__ import main
assert main(["health", {address!r}]) == 0
print(sorted(name for name in ("crypten", "numpy", "torch") if name in sys.modules))
"""
    with ServiceProgram("test", ServiceConfig((address,))) as program:
        program.serve(HANDLERS)
        program.ready()
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, text=True, capture_output=True, timeout=HANG)
    assert done.stdout == "SERVING\n[]\n", done.stderr


def test_no_token_is_needed(tmp_path: Path) -> None:
    issued, address = Authority(tmp_path, "ours").issue("server", "localhost"), f"unix:{tmp_path}/s"
    tokens, _ = file_of(tmp_path, "alice")
    with ServiceProgram("test", ServiceConfig((address,), tls=Tls(issued.cert, issued.key), tokens=tokens)) as program:
        program.serve(HANDLERS)
        program.ready()
        assert main(["health", address, "--tls-ca", str(issued.ca)]) == 0


def test_an_answer_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"unix:{tmp_path}/s"
    server = serve({}, address)  # a service without health
    assert main(["health", address]) == 1 and "no service of this kind" in capsys.readouterr().err
    server.stop(0).wait()
