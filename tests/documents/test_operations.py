"""docs/operations.md: the lines that make certificates make usable ones, and every metric has its row."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from hummingbird.he.service.room import Room
from hummingbird.he.service.server import Service as HeService
from hummingbird.hybrid.service import Service as GcService
from hummingbird.wire.front import Front, ServiceConfig
from hummingbird.wire.service import Tls
from tests.support.pages import blocks, text_of
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM
from tests.support.services import HANDLERS, asked, free_port

PAGE = ROOT / "docs/operations.md"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_lines_for_certificates(tmp_path: Path) -> None:
    (lines,) = (block for block in blocks(PAGE, "sh") if "openssl" in block)
    script = lines.replace("server.example", "localhost")
    done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM)
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.glob("*.key"))

    def tls(name: str) -> Tls:
        return Tls(tmp_path / f"{name}.pem", tmp_path / f"{name}.key", tmp_path / "ca.pem")

    address = f"localhost:{free_port()}"
    with Front("test", ServiceConfig((address,), tls=tls("server"))) as front:
        front.serve(HANDLERS)
        assert asked(address, "Name", tls=tls("alice")) == b"'alice'"


def test_every_metric_has_its_row() -> None:
    he, gc, registry = HeService.__new__(HeService), GcService.__new__(GcService), CollectorRegistry()
    he.room = Room(1, 1)
    gc._opened = list  # type: ignore[method-assign]
    for service in (he, gc):
        service.measure(registry)
    with Front("test", ServiceConfig(())) as front:
        text = (generate_latest(registry) + generate_latest(front.metrics.registry)).decode()
    made = set(re.findall(r"^# TYPE (hummingbird_\w+) ", text, re.MULTILINE))
    made = {name for name in made if not name.endswith("_created")}
    shown = set(re.findall(r"hummingbird_\w+", text_of(PAGE)))
    assert made and shown == made
    rules = yaml.safe_load(blocks(PAGE, "yaml")[0])
    assert len(rules) == 6 and all({"alert", "expr"} <= set(rule) for rule in rules)
