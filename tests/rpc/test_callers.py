"""Who may call a service, by certificate or by token, and how errors travel."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from hummingbird.__main__ import main
from hummingbird.errors import (
    AccessError,
    ConfigError,
    EnvironmentProblem,
    HummingbirdError,
    InputError,
    NotFoundError,
    OverloadError,
    PeerError,
    StoreError,
    TrustError,
    UnavailableError,
)
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc import service
from hummingbird.rpc.admission import MAX_MESSAGE
from hummingbird.rpc.security import Tls, Tokens, line_of, read_token
from hummingbird.rpc.server import ServiceConfig, ServiceProgram
from hummingbird.rpc.status import explain
from hummingbird.rpc.telemetry import Health
from tests.support.dealers import Authority
from tests.support.disk import Order
from tests.support.mutations import mutated
from tests.support.patience import HANG
from tests.support.ports import free_port
from tests.support.services import HANDLERS, asked, file_of

# Who is let in --------------------------------------------------------------------------------------------------------


def test_a_file_of_tokens_that_others_may_write_lets_nobody_in(tmp_path: Path) -> None:
    path, (alice,) = file_of(tmp_path, "alice")
    with ServiceProgram("test", ServiceConfig((f"unix:{tmp_path}/s",), tokens=path)) as program:
        program.serve(HANDLERS)
        assert asked(f"unix:{tmp_path}/s", "Name", token=alice) == b"'alice'"
        path.chmod(0o666)
        os.utime(path, (1, 1))
        with pytest.raises(AccessError, match="cannot read its tokens"):
            asked(f"unix:{tmp_path}/s", "Name", token=alice)


def test_tokens_over_tls_of_the_server_alone(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    issued, (path, (alice,)) = ours.issue("server", "localhost"), file_of(tmp_path, "alice")
    address = f"localhost:{free_port()}"
    with ServiceProgram("test", ServiceConfig((address,), tls=Tls(issued.cert, issued.key), tokens=path)) as program:
        program.serve(HANDLERS)
        assert asked(address, "Name", tls=Tls(ca=ours.path), token=alice) == b"'alice'"
        with pytest.raises(AccessError, match="wants a token"):
            asked(address, "Name", tls=Tls(ca=ours.path))
        with pytest.raises(AccessError, match="wants a token"):  # a certificate is no token
            asked(address, "Name", tls=ours.issue("alice"))
        with pytest.raises(PeerError, match="TLS failed"):
            asked(address, "Name", tls=Tls(ca=Authority(tmp_path, "theirs").path), token=alice)
        with pytest.raises(PeerError, match="refused"):  # nobody sends a token in plain text unawares
            asked(address, "Name", token=alice)


def test_certificates_name_their_callers(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    address = f"localhost:{free_port()}"
    with ServiceProgram("test", ServiceConfig((address,), tls=ours.issue("server", "localhost"))) as program:
        program.serve(HANDLERS)
        assert asked(address, "Name", tls=ours.issue("carol")) == b"'carol'"
        # One without a common name has another name: it is no caller without limits, and nobody's party.
        names = {asked(address, "Name", tls=ours.issue("", f"{each}.example")) for each in "ab"}
        assert len(names) == 2 and all(re.fullmatch(b"'sha256:[0-9a-f]{64}'", name) for name in names)


def test_what_does_not_go_together_is_refused_before_anything_listens(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    issued, (path, _) = ours.issue("server", "localhost"), file_of(tmp_path, "alice")
    alone = Tls(issued.cert, issued.key)
    with pytest.raises(TrustError, match="not by both"):
        ServiceConfig(("unix:x",), tls=issued, tokens=path)
    for wrong in ({"cert": issued.cert}, {"key": issued.key, "ca": issued.ca}, {}):
        with pytest.raises(TrustError, match="TLS needs"):
            Tls(**wrong)
    for tls, tokens, match in (
        (alone, None, "certificate or a token"),  # whoever comes would be let in
        (Tls(ca=issued.ca), path, "needs a certificate"),
        (None, path, "plain text"),
    ):
        with ServiceProgram("test", ServiceConfig(("0.0.0.0:9",), tls=tls, tokens=tokens)) as program:
            with pytest.raises(TrustError, match=match):
                program.serve(HANDLERS)
    with pytest.raises(TrustError, match="authority"):
        rpc_client.connect("localhost:9", alone, timeout=1)
    with pytest.raises(TrustError, match="both sides"):
        alone.contexts()


def test_files_of_tokens_that_are_wrong(tmp_path: Path) -> None:
    path, (token,) = file_of(tmp_path, "alice")
    good = path.read_text()
    for text, match in (
        ("", "holds no token"),
        (good + "alice\n", "line 4"),
        (good + f"al/ice {'0' * 64}\n", "not a name"),
        (good + f"bob {'0' * 63}\n", "line 4"),
        (good + good.replace("alice", "bob"), "same token"),
        ("al " + token + "\n" + "x" * 9, "line 2"),
        (good + "#" * (1 << 24), "more than 16777216 characters"),  # tokens behind them would not be known
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=match):
            Tokens(path)
    path.write_text(good)
    path.chmod(0o620)
    with pytest.raises(EnvironmentProblem, match="mode 620"):
        Tokens(path)
    with pytest.raises(EnvironmentProblem, match="No such file"):
        Tokens(tmp_path / "none")


def test_damaged_files_and_requests_are_errors_of_this_package(tmp_path: Path) -> None:
    generator, path, refused = random.Random(0), tmp_path / "tokens", 0
    check: Any = Health().handlers()["Check"]
    good = [(line_of("alice", "0" * 64) + line_of("bob", "1" * 64)).encode(), b"\n\x0bhummingbird"]
    for number in range(400):
        data = mutated(generator, good[number % 2 :][:1])
        path.write_bytes(data)
        try:
            Tokens(path) if number % 2 == 0 else check(data, None)
        except HummingbirdError:
            refused += 1
    assert refused > 100


def test_the_command_makes_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["token", "alice", "--tokens", f"{tmp_path}/tokens", "--out"]
    assert main([*words, f"{tmp_path}/alice"]) == 0
    assert main([*words, f"{tmp_path}/alice2"]) == 0  # a second one, before the first is removed
    token = read_token(tmp_path / "alice")
    assert token not in (tmp_path / "tokens").read_text() and token not in capsys.readouterr().out
    assert (tmp_path / "alice").stat().st_mode & 0o777 == (tmp_path / "tokens").stat().st_mode & 0o777 == 0o600
    with ServiceProgram("test", ServiceConfig((f"unix:{tmp_path}/s",), tokens=tmp_path / "tokens")) as program:
        program.serve(HANDLERS)
        for file in ("alice", "alice2"):
            assert asked(f"unix:{tmp_path}/s", "Name", token=read_token(tmp_path / file)) == b"'alice'"
    assert main([*words, f"{tmp_path}/alice"]) == 1 and "is there already" in capsys.readouterr().err
    assert main(["token", "a b", "--tokens", f"{tmp_path}/t", "--out", f"{tmp_path}/b"]) == 1
    assert not (tmp_path / "t").exists() and not (tmp_path / "b").exists()
    assert main(["token", "bob", "--tokens", f"{tmp_path}", "--out", f"{tmp_path}/b"]) == 1  # a folder
    assert not (tmp_path / "b").exists()
    (tmp_path / "alice").chmod(0o644)
    with pytest.raises(EnvironmentProblem, match="others may read it"):
        read_token(tmp_path / "alice")


def test_a_line_is_added_behind_one_without_an_end(tmp_path: Path) -> None:
    """Else both would be one line that is none, and the service would let nobody in."""
    path, _ = file_of(tmp_path, "alice")
    path.write_text(path.read_text().rstrip())
    assert main(["token", "bob", "--tokens", str(path), "--out", f"{tmp_path}/bob"]) == 0
    with ServiceProgram("test", ServiceConfig((f"unix:{tmp_path}/s",), tokens=path)) as program:
        program.serve(HANDLERS)
        assert asked(f"unix:{tmp_path}/s", "Name", token=read_token(tmp_path / "bob")) == b"'bob'"


def test_both_files_of_a_new_token_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(monkeypatch, tmp_path)
    assert main(["token", "alice", "--tokens", f"{tmp_path}/tokens", "--out", f"{tmp_path}/alice"]) == 0
    assert order.calls == [("fsync", "alice"), ("fsync", "."), ("fsync", "tokens"), ("fsync", ".")]


def test_expired_certificates_are_refused_with_words(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    expired = ours.issue("expired", "localhost", hours=-1)
    with pytest.raises(EnvironmentProblem, match=r"the certificate expired 20\d\d-.* UTC") as caught:
        service.serve({}, "unix:x", expired)
    assert caught.value.where == str(expired.cert)
    with pytest.raises(EnvironmentProblem, match="expired"):
        rpc_client.connect("localhost:9", expired, timeout=1)
    address, (cert, key) = (
        f"localhost:{free_port()}",
        (Path(str(file)).read_bytes() for file in (expired.cert, expired.key)),
    )
    server = grpc.server(None)  # one whose certificate has expired since it began
    server.add_secure_port(address, grpc.ssl_server_credentials([(key, cert)]))
    server.start()
    with pytest.raises(PeerError, match="TLS failed.*(expired|EXPIRED)"):
        rpc_client.connect(address, Tls(ca=ours.path), timeout=HANG)
    server.stop(0)


# Errors on the wire ---------------------------------------------------------------------------------------------------

CASES: list[tuple[Exception, str, type[PeerError]]] = [
    (InputError("bad"), "INVALID_ARGUMENT", PeerError),
    (ConfigError("bad"), "INVALID_ARGUMENT", PeerError),
    (TrustError("no"), "PERMISSION_DENIED", AccessError),
    (AccessError("no"), "PERMISSION_DENIED", AccessError),
    (OverloadError("much", retry_after=2.5), "RESOURCE_EXHAUSTED", OverloadError),
    (UnavailableError("gone"), "UNAVAILABLE", UnavailableError),
    (UnavailableError("a part is missing", retry_after=1.5), "UNAVAILABLE", UnavailableError),
    (NotFoundError("none"), "NOT_FOUND", NotFoundError),
    (StoreError("used", hint="deal more"), "FAILED_PRECONDITION", PeerError),
    (ValueError("a secret: 4711"), "INTERNAL", PeerError),
]


@pytest.mark.parametrize("error, code, kind", CASES, ids=lambda case: type(case).__name__)
def test_errors_have_their_status_and_their_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception, code: str, kind: type[PeerError]
) -> None:
    def fail(request: bytes, context: grpc.ServicerContext) -> bytes:
        raise error

    def late(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"first"
        raise error

    server = service.serve({"Fail": fail, "Late": late}, f"unix:{tmp_path}/s")
    channel = rpc_client.connect(f"unix:{tmp_path}/s", timeout=HANG)
    for call in (
        lambda: rpc_client.call(channel, "Fail", b"", timeout=HANG),
        lambda: list(rpc_client.stream(channel, "Late", b"", timeout=HANG)),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code().name == code
        told = explain(caught.value, "server x")
        assert type(told) is kind and told.where == "server x" and "4711" not in str(told)
        if isinstance(error, HummingbirdError):
            assert (told.what, told.hint) == (error.what, error.hint)
        if isinstance(error, OverloadError):
            assert isinstance(told, OverloadError) and told.retry_after == 2.5 and "2.5 s" in told.hint
        if isinstance(error, UnavailableError):
            assert isinstance(told, UnavailableError) and told.retry_after == error.retry_after
    assert "4711" not in caplog.text and ("ValueError" in caplog.text) == (code == "INTERNAL")
    channel.close()
    server.stop(0).wait()


def test_a_message_that_is_too_large_is_no_matter_of_time(tmp_path: Path) -> None:
    server = service.serve(HANDLERS, f"unix:{tmp_path}/s")
    with pytest.raises(PeerError, match="larger than max") as caught:
        asked(f"unix:{tmp_path}/s", "Echo", bytes(MAX_MESSAGE + 1))
    assert not isinstance(caught.value, OverloadError)
    server.stop(0).wait()
