"""Clients by certificate, over mutual TLS between all: an id belongs to the name in the certificate."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest
import torch

from hummingbird.errors import PeerError, TrustError
from hummingbird.prg import new_seed
from hummingbird.serving.client import Client
from hummingbird.serving.message import Request, split
from hummingbird.wire import service as wire
from tests.support.dealers import Authority
from tests.support.parties import finish, free_port, start
from tests.support.patience import HANG, until
from tests.support.serving import served
from tests.support.serving_nets import doubled


@pytest.mark.slow
def test_mutual_tls_and_ids_by_certificate(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path, "ours"), Authority(tmp_path, "others")
    for rank in range(2):
        ours.issue(f"party-{rank}", f"party-{rank}", "localhost")
    alice, bob, stranger = ours.issue("alice"), ours.issue("bob"), others.issue("alice")
    addresses = [f"localhost:{free_port()}" for _ in range(2)]
    stem = str(tmp_path / "ours-party-{rank}")
    tls = ["--tls-cert", f"{stem}.crt", "--tls-key", f"{stem}.key", "--tls-ca", str(ours.path)]
    net = ["--model", "tests.support.serving_nets:doubled", "--input", "4", "--window", "30:0"]
    processes = start(["-m", "hummingbird", "serve", *net, "--listen", *addresses, *tls], 2)
    try:
        until(lambda: answers(addresses, alice), "a service to start")
        x = torch.rand(2, 4)
        with Client(addresses, tls=alice, timeout=HANG) as client, torch.no_grad():
            assert (client(x) - doubled()(x)).abs().max() < 1e-3
            known = client.service
        with pytest.raises(TrustError, match="plain text"):
            Client(["192.0.2.1:9100", addresses[1]])
        for wrong in (None, stranger):
            with pytest.raises(PeerError):
                Client(addresses, tls=wrong, timeout=1.0)
        with Client(addresses, tls=alice, timeout=HANG) as client, Client(addresses, tls=bob, timeout=HANG) as thief:
            deadline, id = int(1e3 * (time.time() + HANG)), new_seed()
            messages = [
                Request(id, new_seed(), deadline, 2, body).to_bytes(known, rank)
                for rank, body in enumerate(split(torch.zeros(2, 4, dtype=torch.int64), known.bits, 2))
            ]
            asked = [
                wire.begin(client._groups[0]._channels[rank], "Ask", message, timeout=HANG)
                for rank, message in enumerate(messages)
            ]
            assert len({len(call.result()) for call in asked}) == 1
            for rank, message in enumerate(messages):  # with the claim of the first, in which nobody believes here
                with pytest.raises(grpc.RpcError) as caught:
                    wire.call(thief._groups[0]._channels[rank], "Ask", message, timeout=HANG)
                assert "belongs to another client" in str(caught.value.details())
        for process in processes:
            process.terminate()
        assert served(finish(processes)) == (4, 2)
    finally:
        for process in processes:
            process.kill()


def answers(addresses: list[str], tls: wire.Tls) -> bool:
    try:
        Client(addresses, tls=tls, timeout=2.0).close()
    except PeerError:
        return False
    return True
