"""Dealers for tests: one in this process, one as a process of its own, and certificates for both."""

from __future__ import annotations

import copy
import datetime
import json
import os
import shutil
import socket
import ssl
import warnings
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from torch import Tensor

from hummingbird.mpc.correlations.request import Material, ReceiverTurn, Request
from hummingbird.mpc.dealer.client import DealerClient, LocalDealer
from hummingbird.mpc.dealer.server import DealerService, handlers
from hummingbird.mpc.protocols.owned import OwnedProduct
from hummingbird.prg import Stream, derive
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc import service
from hummingbird.rpc.service import Tls
from tests.support.patience import HANG


class OwningDealer(LocalDealer):
    """A dealer in the process of one of two parties, which also deals for private weights of its own party.

    secret: the seed of both parties' material.
    """

    def __init__(self, rank: int, secret: bytes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it protects nothing: nothing is to be protected
            super().__init__(rank, 2, [derive(secret, "owning dealer", each) for each in range(2)])
        self.secret, self.made, self.weights = secret, 0, dict[int, Tensor]()

    def own(self, key: int, weight: Tensor) -> None:
        self.weights[key] = weight

    def _deal(self, request: Request[Any], conversation: int) -> Material:
        if not isinstance(request, OwnedProduct):
            return super()._deal(request, conversation)
        self.made += 1
        stream = Stream(derive(self.secret, "owned", self.made))
        a, c = stream.words(*request.size0), stream.words(*request.derived["c"].shape)
        if self.rank != request.owner:
            return Material({"a": a, "c": c})
        return Material(
            {"a": torch.zeros_like(a), "c": request.derive(a, self.weights[request.key].view(request.size1))["c"] - c}
        )


class Running:
    """A dealer served from this process on a unix socket, and clients that are closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.dealer = DealerService()
        self.address = f"unix:{folder}/d.sock"
        self.server = service.serve(handlers(self.dealer), self.address)
        self.clients: list[DealerClient] = []

    def join(self, rank: int, parties: int, session: bytes, timeout: float = HANG) -> DealerClient:
        client = DealerClient(self.address, session=session, rank=rank, parties=parties, timeout=timeout)
        self.clients.append(client)
        return client

    def all(self, parties: int) -> list[DealerClient]:
        session = os.urandom(16)
        return [self.join(rank, parties, session) for rank in range(parties)]


def raw(running: Running, method: str, **fields) -> list[bytes]:
    """A raw request, as a foreign program could send it."""
    channel = rpc_client.connect(running.address, timeout=HANG)
    data = json.dumps({"conversation": 0, **fields} if method == "Correct" else fields).encode()
    try:
        if method == "Correct":
            return list(rpc_client.stream(channel, method, data, timeout=HANG))
        return [rpc_client.call(channel, method, data, timeout=HANG)]
    finally:
        channel.close()


def refusal(running: Running, method: str, **fields) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        raw(running, method, **fields)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION, caught.value
    return caught.value.details()


def next_turn(dealer: Any, request: Request[Any]) -> ReceiverTurn:
    """The turn that a party's dealer will give a request if it is the next one."""
    (turn,) = copy.deepcopy(dealer._turns).take([request])
    return turn


SQUARE = {"kind": "square", "params": {"shape": [2], "bits": 64}}


class Authority:
    """A certificate authority that issues into a folder."""

    def __init__(self, folder: Path, label: str) -> None:
        self.folder, self.label = folder, label
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, label)])
        self.path = folder / f"{label}.pem"
        self.path.write_bytes(self._sign(self.name, self.key, ca=True))

    def _sign(self, subject, key, *, ca=False, names=(), hours=1):
        """A certificate of these subject names, from two hours ago to `hours` from now."""
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(hours=2))
        builder = builder.not_valid_after(now + datetime.timedelta(hours=hours))
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        if names:
            entries = [x509.DNSName(name) for name in names]
            builder = builder.add_extension(x509.SubjectAlternativeName(entries), critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, common_name: str, *names: str, hours: float = 1) -> Tls:
        """A certificate for a common name, or for none, and for other names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else [])
        stem = self.folder / f"{self.label}-{common_name or names[0]}"
        stem.with_suffix(".crt").write_bytes(self._sign(subject, key, names=names or (common_name,), hours=hours))
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        stem.with_suffix(".key").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
        return Tls(stem.with_suffix(".crt"), stem.with_suffix(".key"), self.path)


class Live:
    """The certificate files of a running service, and how an operator replaces them."""

    def __init__(self, folder: Path, first: Tls) -> None:
        folder.mkdir()
        self.tls = Tls(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
        self.put(first)

    def put(self, other: Tls) -> None:
        for name in ("cert", "key", "ca"):
            shutil.copy(getattr(other, name), getattr(self.tls, name))


def shown(port: int, caller: Tls) -> str:
    """The serial number of the certificate that a service at a port of localhost shows to a new caller."""
    context = ssl.create_default_context(cafile=caller.ca)
    context.load_cert_chain(str(caller.cert), caller.key)
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", port), HANG) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as secure:
            found = secure.getpeercert()
    assert found is not None
    return str(found["serialNumber"])
