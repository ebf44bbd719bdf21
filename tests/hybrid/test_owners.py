"""A session is its client's alone, by the name of a certificate or token, also after the server's restart."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hummingbird.errors import AccessError
from hummingbird.hybrid.client import RemoteNet
from hummingbird.hybrid.store import HEADER
from hummingbird.rpc.admission import Admission
from hummingbird.rpc.security import Tokens
from tests.hybrid.test_arithmetic import images
from tests.support.dealers import Authority
from tests.support.hybrid import close, model, serving
from tests.support.patience import HANG
from tests.support.services import file_of

NOT_YOURS = "belongs to another client"


@contextmanager
def with_the_folder_of(folder: Path, address: str, caller: dict[str, Any]) -> Iterator[RemoteNet]:
    """Another client that has got hold of a client's folder, and so knows the session's name and secrets."""
    stolen = folder.with_name("stolen")
    shutil.rmtree(stolen, ignore_errors=True)
    shutil.copytree(folder, stolen)
    with RemoteNet(address, stolen, timeout=HANG, **caller) as net:
        yield net


@pytest.mark.parametrize("by", ["certificate", "token"])
def test_another_client_cannot_use_a_session(tmp_path: Path, by: str) -> None:
    made, x = model(), images(1).float()
    if by == "certificate":
        ours = Authority(tmp_path, "ours")
        served: dict[str, Any] = {"tls": ours.issue("server", "localhost")}
        alice, bob = ({"tls": ours.issue(name)} for name in ("alice", "bob"))
    else:
        path, (first, second) = file_of(tmp_path, "alice", "bob")
        served = {"gate": Admission(tokens=Tokens(path))}
        alice, bob = {"token": first}, {"token": second}
    with serving(made, tmp_path / "m", **served) as (address, _):
        with RemoteNet(address, tmp_path / "d", timeout=HANG, **alice) as net:
            net.prepare(3)
        with with_the_folder_of(tmp_path / "d", address, bob) as net:
            with pytest.raises(AccessError, match=NOT_YOURS):
                net(x)
            with pytest.raises(AccessError, match=NOT_YOURS):
                net.prepare(1)
        with RemoteNet(address, tmp_path / "e", timeout=HANG, **bob) as net:
            assert close(net(x), made, x)  # one of its own
    with serving(made, tmp_path / "m", **served) as (address, _):  # which reads its folders anew
        with with_the_folder_of(tmp_path / "d", address, bob) as net, pytest.raises(AccessError, match=NOT_YOURS):
            net(x)
        with RemoteNet(address, tmp_path / "d", timeout=HANG, **alice) as net:
            assert net.ready == 3 and close(net(x), made, x)  # no slot is burned
    owners = {json.loads(path.read_text())["owner"] for path in (tmp_path / "m").glob(f"*/{HEADER}")}
    assert owners == {"alice", "bob"}
    with serving(made, tmp_path / "m") as (address, _):  # to callers without names
        with RemoteNet(address, tmp_path / "d", timeout=HANG) as net, pytest.raises(AccessError, match=NOT_YOURS):
            net(x)
