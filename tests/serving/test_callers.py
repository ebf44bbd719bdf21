"""Clients with names: an id belongs to the name in a certificate, over mutual TLS between all, and names with many
requests that some parties never get keep nobody else out.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

import grpc
import pytest
import torch

from hummingbird.errors import PeerError, TrustError
from hummingbird.prg import new_seed
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc import service as wire
from hummingbird.serving.client import Client
from hummingbird.serving.message import Request, split
from tests.support.dealers import Authority
from tests.support.parties import finish, start
from tests.support.patience import HANG, until
from tests.support.ports import free_port
from tests.support.services import file_of
from tests.support.serving import Service, served
from tests.support.serving_nets import doubled


@pytest.mark.slow
def test_mutual_tls_and_ids_by_certificate(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    for rank in range(2):
        ours.issue(f"party-{rank}", f"party-{rank}", "localhost")
    alice, bob = ours.issue("alice"), ours.issue("bob")
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
        with Client(addresses, tls=alice, timeout=HANG) as client:
            deadline, id = int(1e3 * (time.time() + HANG)), new_seed()
            messages = [
                Request(id, new_seed(), deadline, 2, body).to_bytes(known, rank)
                for rank, body in enumerate(split(torch.zeros(2, 4, dtype=torch.int64), known.bits, 2))
            ]
            hers, his = (
                [rpc_client.connect(address, tls, timeout=HANG) for address in addresses] for tls in (alice, bob)
            )
            asked = [
                rpc_client.begin(hers[rank], "Ask", message, timeout=HANG) for rank, message in enumerate(messages)
            ]
            assert len({len(call.result()) for call in asked}) == 1
            for rank, message in enumerate(messages):  # with the claim of the first, in which nobody believes here
                with pytest.raises(grpc.RpcError) as caught:
                    rpc_client.call(his[rank], "Ask", message, timeout=HANG)
                assert "belongs to another client" in str(caught.value.details())
            for channel in (*hers, *his):
                channel.close()
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


@pytest.mark.slow
def test_half_requests_of_eight_names_lock_nobody_out(tmp_path: Path) -> None:
    """256 calls that wait for a part which never comes, where 256 may be at work: others are answered, and these are
    dropped after seconds, though their deadline is far.
    """
    path, tokens = file_of(tmp_path, *map(str, range(9)))
    net = ["--model", "tests.support.serving_nets:doubled", "--input", "4", "--window", "30:0", "--tokens", str(path)]
    with Service(*net, token=tokens[8]) as service:
        with service.client() as client:
            first, known = service.addresses[0], client.service
        channels = [rpc_client.connect(first, timeout=HANG, token=token) for token in tokens[:8]]
        deadline = int(1e3 * (time.time() + HANG))
        body = split(torch.zeros(1, 4, dtype=torch.int64), known.bits, 2)[0]
        calls = []
        for channel in channels:
            for _ in range(64):
                message = Request(new_seed(), new_seed(), deadline, 1, body).to_bytes(known, 0)
                calls.append(rpc_client.begin(channel, "Ask", message, timeout=HANG))
        x = torch.rand(2, 4)
        with service.client(5.0) as client, torch.no_grad():  # who has just begun, too
            assert (client(x) - doubled()(x)).abs().max() < 1e-3
        found = Counter(str(call.exception().details()).partition(" (at")[0] for call in calls)
        assert found["party 1 never got its part of this request"] >= 192
        assert all(re.search("never got|are at work|are waiting", text) for text in found), found
        for channel in channels:
            channel.close()
        assert served(service.stop()) == (2, 1)
