"""Small services for tests: what they offer, who calls them, and one as a process (tests/jobs/service.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2

from hummingbird.rpc import client as rpc_client
from hummingbird.rpc.admission import caller_name
from hummingbird.rpc.security import line_of, new_token
from hummingbird.rpc.status import explain
from tests.support import python
from tests.support.paths import ROOT
from tests.support.patience import HANG


def asked(address: str, method: str, data: bytes = b"", *, timeout: float = HANG, **caller: object) -> bytes:
    """One call on a channel of its own."""
    channel = rpc_client.connect(address, timeout=timeout, **caller)  # type: ignore[arg-type]
    try:
        return rpc_client.call(channel, method, data, timeout=timeout)
    except grpc.RpcError as error:
        raise explain(error, address) from None
    finally:
        channel.close()


def name(request: bytes, context: grpc.ServicerContext) -> bytes:
    return repr(caller_name(context)).encode()


HANDLERS = {"Name": name, "Echo": lambda request, context: request}


def file_of(folder: Path, *names: str) -> tuple[Path, list[str]]:
    """A service's file of tokens, and the tokens."""
    tokens = [new_token() for _ in names]
    path = folder / "tokens"
    path.write_text("# who may call\n\n" + "".join(map(line_of, names, tokens)))
    path.chmod(0o600)
    return path, tokens


def health(address: str, asks: str = "") -> str:
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        answer = check(health_pb2.HealthCheckRequest(service=asks).SerializeToString(), timeout=HANG)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(health_pb2.HealthCheckResponse.FromString(answer).status)


def health_or_none(address: str) -> str | None:
    try:
        return health(address)
    except grpc.RpcError:
        return None


class started:
    """A process that has said its first line, killed at the end."""

    def __init__(self, command: list[str]) -> None:
        self.process = python.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> subprocess.Popen[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "listening on " in line, line + (self.process.stderr.read() if self.process.stderr else "")
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
