"""docs/operations.md: the lines that make certificates make usable ones, and every metric has its row."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from prometheus_client import CollectorRegistry, generate_latest

from hummingbird.he.service.server import Service as HeService
from hummingbird.he.service.server import turns_of
from hummingbird.hybrid.service import Service as GcService
from hummingbird.hybrid.sessions import Sessions
from hummingbird.mpc.dealer.figures import DealerFigures, KeeperFigures
from hummingbird.mpc.dealer.kept import Keeper
from hummingbird.mpc.dealer.server import DealerService
from hummingbird.pir.serving.figures import Figures as PirFigures
from hummingbird.pir.serving.metrics import Metrics as PirMetrics
from hummingbird.rpc.metrics import Metrics
from hummingbird.rpc.server import ServiceConfig, ServiceProgram
from hummingbird.rpc.service import Tls
from hummingbird.serving.figures import Figures
from tests.support.pages import blocks, text_of
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM
from tests.support.ports import free_port
from tests.support.services import HANDLERS, asked

PAGE = ROOT / "docs/operations.md"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_lines_for_certificates(tmp_path: Path) -> None:
    lines = next(block for block in blocks(PAGE, "sh") if "openssl" in block)
    script = lines.replace("server.example", "localhost")
    done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM)
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.glob("*.key"))

    def tls(name: str) -> Tls:
        return Tls(tmp_path / f"{name}.pem", tmp_path / f"{name}.key", tmp_path / "ca.pem")

    address = f"localhost:{free_port()}"
    with ServiceProgram("test", ServiceConfig((address,), tls=tls("server"))) as program:
        program.serve(HANDLERS)
        assert asked(address, "Name", tls=tls("alice")) == b"'alice'"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_lines_for_the_hosts_of_serve(tmp_path: Path) -> None:
    first, second = (block for block in blocks(PAGE, "sh") if "openssl" in block)
    assert "ca.key" in first and "for name in" in second
    done = subprocess.run(["sh", "-ec", first + second], cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM)
    assert done.returncode == 0, done.stderr
    for name in ("dealer", "party-0", "party-1", "alice"):
        folder = tmp_path / name
        assert folder.stat().st_mode & 0o077 == 0 == (folder / "key.pem").stat().st_mode & 0o077
        Tls(folder / "cert.pem", folder / "key.pem", folder / "ca.pem").read()
        certificate = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
        (common,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        hosts = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert common.value == name and hosts.get_values_for_type(x509.DNSName) == [name, f"{name}.example"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_lines_for_the_secrets_of_three_owners(tmp_path: Path) -> None:
    """The files that the chart mounts, for the names of every group."""
    lines = next(block for block in blocks(PAGE.with_name("kubernetes.md"), "sh") if "openssl" in block)
    done = subprocess.run(["sh", "-ec", lines], cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM)
    assert done.returncode == 0, done.stderr
    secrets = [block for block in blocks(PAGE.with_name("kubernetes.md"), "sh") if "create secret" in block]
    for name, domain in (("party-0", "a.example"), ("party-1", "b.example"), ("dealer", "c.example")):
        folder = tmp_path / name
        assert (folder / "tls.key").stat().st_mode & 0o077 == 0
        Tls(folder / "tls.crt", folder / "tls.key", folder / "ca.crt").read()
        certificate = x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes())
        (common,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        hosts = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert common.value == name and hosts.get_values_for_type(x509.DNSName) == [name, f"*.{domain}"]
    assert len(secrets) == 2 and all("--from-file=party-0/ca.crt" in block for block in secrets)


def made_metrics(tmp_path: Path) -> set[str]:
    """The names of everything that the services count."""
    he, gc, registry = HeService.__new__(HeService), GcService.__new__(GcService), CollectorRegistry()
    keeper = Keeper.__new__(Keeper)
    keeper.unused, keeper.sets, keeper.seconds = int, 0, 0.0  # type: ignore[method-assign]
    he.room = turns_of(1, 1)
    gc._sessions = Sessions(tmp_path, "")
    for service in (he, gc):
        service.measure(registry)
    Figures(registry)
    registry.register(DealerFigures(DealerService()))
    registry.register(KeeperFigures(keeper, 1))
    registry.register(PirFigures({"full": (PirMetrics(), lambda: 0)}, lambda: 0))
    text = (generate_latest(registry) + generate_latest(Metrics().registry)).decode()
    made = set(re.findall(r"^# TYPE (hummingbird_\w+) ", text, re.MULTILINE))
    return {name for name in made if not name.endswith("_created")}


def test_every_metric_has_its_row(tmp_path: Path) -> None:
    shown = set(re.findall(r"hummingbird_\w+", text_of(PAGE)))
    assert shown and shown == made_metrics(tmp_path)


def test_units_may_write_what_their_programs_write() -> None:
    """With the rest of a unit as the page has it, where all of the disk is read-only."""
    units = [unit for page in sorted(PAGE.parent.glob("*.md")) for unit in blocks(page, "ini")]
    assert any("ProtectSystem=strict" in unit for unit in units)
    writing = re.compile(r"--(?:out|store|journal|state|log) (/\S+)")
    found = {(unit, path) for unit in units for path in writing.findall(unit)}
    assert found
    for unit, path in found:
        assert re.search(rf"^ReadWritePaths=(?:.* )?{re.escape(path)}(?: |$)", unit, re.MULTILINE), unit
