"""Certificates that are replaced under a running service: what new callers meet, what the metric and the log say."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from hummingbird.errors import EnvironmentProblem, PeerError
from hummingbird.rpc import service
from hummingbird.rpc.security import Certificates, Pem, Tls
from hummingbird.rpc.server import ServiceConfig, ServiceProgram
from tests.support.dealers import Authority, Live, shown
from tests.support.kubernetes import put_files
from tests.support.ports import free_port
from tests.support.services import HANDLERS, asked, file_of


def test_all_servers_of_a_program_show_a_new_certificate(tmp_path: Path) -> None:
    ours, ports = Authority(tmp_path, "ours"), [free_port() for _ in range(2)]
    live, alice = Live(tmp_path / "live", ours.issue("server", "localhost")), ours.issue("alice")
    addresses = tuple(f"localhost:{port}" for port in ports)
    with ServiceProgram("test", ServiceConfig(addresses, tls=live.tls, log=str(tmp_path / "log"))) as program:
        for address in addresses:
            program.serve(HANDLERS, address)
        before = [shown(port, alice) for port in ports]
        assert before == [shown(port, alice) for port in ports]
        live.put(ours.issue("server", "localhost", hours=48))
        after = [shown(port, alice) for port in ports]
        assert len(set(after)) == 1 and set(after).isdisjoint(before)
        for address in addresses:
            assert asked(address, "Name", tls=alice) == b"'alice'"
    events = [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()]
    assert events.count("certificates renewed") == 1


def test_the_authority_of_callers_is_replaced_too(tmp_path: Path) -> None:
    ours, theirs, port = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs"), free_port()
    address, live = f"localhost:{port}", Live(tmp_path / "live", ours.issue("server", "localhost"))
    server = service.serve(HANDLERS, address, live.tls)  # as the dealer does, without a Front
    assert asked(address, "Name", tls=ours.issue("alice")) == b"'alice'"
    with pytest.raises(PeerError, match="refused|TLS failed"):
        asked(address, "Name", tls=theirs.issue("carol"))
    live.put(theirs.issue("server", "localhost"))
    assert asked(address, "Name", tls=theirs.issue("carol")) == b"'carol'"
    trusting = Tls(ours.issue("alice").cert, ours.issue("alice").key, theirs.path)  # the service, with the old name
    with pytest.raises(PeerError, match="refused|TLS failed"):
        asked(address, "Name", tls=trusting)
    server.stop(0).wait()


def test_tokens_over_a_certificate_that_is_replaced(tmp_path: Path) -> None:
    ours, theirs, (path, (alice,)) = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs"), file_of(tmp_path, "a")
    address, live = f"localhost:{free_port()}", Live(tmp_path / "live", ours.issue("server", "localhost"))
    with ServiceProgram(
        "test", ServiceConfig((address,), tls=Tls(live.tls.cert, live.tls.key), tokens=path)
    ) as program:
        program.serve(HANDLERS)
        assert asked(address, "Name", tls=Tls(ca=ours.path), token=alice) == b"'a'"
        live.put(theirs.issue("server", "localhost"))
        assert asked(address, "Name", tls=Tls(ca=theirs.path), token=alice) == b"'a'"


def test_files_that_a_kubelet_replaces_by_one_link(tmp_path: Path) -> None:
    """The paths stay, and so do the links at them: what they lead to is another folder."""
    ours, own = Authority(tmp_path, "ours"), tmp_path / "mounted"

    def put(hours: int) -> Pem:
        new = ours.issue("server", "localhost", hours=hours)
        put_files(own, [Path(str(path)) for path in (new.cert, new.key, new.ca)], ("cert", "key", "ca"))
        return new.read()

    first = put(24)
    found = Certificates(Tls(own / "cert", own / "key", own / "ca"))
    assert found.current() == first == found.current()
    second = put(48)
    assert found.current() == second != first


def _half(live: Tls, good: Tls, bad: Tls) -> None:
    text = Path(str(good.cert)).read_text()
    Path(str(live.cert)).write_text(text[: len(text) // 2])


def _empty(live: Tls, good: Tls, bad: Tls) -> None:
    Path(str(live.ca)).write_text("")


def _no_key(live: Tls, good: Tls, bad: Tls) -> None:
    Path(str(live.key)).unlink()


def _cert_alone(live: Tls, good: Tls, bad: Tls) -> None:
    shutil.copy(str(good.cert), str(live.cert))


def _expired(live: Tls, good: Tls, bad: Tls) -> None:
    for name in ("cert", "key"):
        shutil.copy(getattr(bad, name), getattr(live, name))


@pytest.mark.parametrize(
    "damage, words",
    [
        (_half, "not a usable TLS file"),
        (_empty, "not a usable TLS file"),
        (_no_key, "No such file"),
        (_cert_alone, "does not belong to the certificate"),
        (_expired, "the certificate expired"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_wrong_files_change_nothing_and_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Tls, Tls, Tls], None], words: str
) -> None:
    ours, port = Authority(tmp_path, "ours"), free_port()
    live, alice = Live(tmp_path / "live", ours.issue("server", "localhost")), ours.issue("alice")
    bad = ours.issue("expired", "localhost", hours=-1)
    server = service.serve(HANDLERS, f"localhost:{port}", live.tls)
    before = shown(port, alice)
    good = ours.issue("server", "localhost")
    with caplog.at_level(logging.WARNING):
        damage(live.tls, good, bad)
        assert [shown(port, alice) for _ in range(3)] == [before] * 3
        assert asked(f"localhost:{port}", "Name", tls=alice) == b"'alice'"
        (told,) = [record.getMessage() for record in caplog.records if record.name == "hummingbird.rpc.security"]
    assert "stay in use" in told and words in told and "PRIVATE" not in told
    live.put(good)
    assert shown(port, alice) != before
    server.stop(0).wait()


def test_files_that_become_usable_by_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that is not valid yet: the files do not change again."""
    live = Live(tmp_path / "live", Authority(tmp_path, "ours").issue("server", "localhost"))
    certificates = Certificates(live.tls)
    before, read = certificates.current(), Tls.read
    assert certificates.current() is before
    live.put(Authority(tmp_path, "ours").issue("server", "localhost"))

    def not_yet(self: Tls) -> Pem:
        raise EnvironmentProblem("the certificate is not valid before tomorrow")

    monkeypatch.setattr(Tls, "read", not_yet)
    assert certificates.current() is before
    monkeypatch.setattr(Tls, "read", read)
    assert certificates.current() not in (before, None)


def test_the_check_can_fail(tmp_path: Path) -> None:
    """A server of fixed credentials shows what it began with."""
    ours, port = Authority(tmp_path, "ours"), free_port()
    live, alice = Live(tmp_path / "live", ours.issue("server", "localhost")), ours.issue("alice")
    cert, key, ca = live.tls.read()
    server = grpc.server(None)
    server.add_secure_port(f"localhost:{port}", grpc.ssl_server_credentials([(key, cert)], ca, True))
    server.start()
    before = shown(port, alice)
    live.put(ours.issue("server", "localhost"))
    assert shown(port, alice) == before
    server.stop(0).wait()
