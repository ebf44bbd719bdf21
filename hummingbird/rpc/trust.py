"""Addresses and certificates: who may listen and call where, decided before anything is opened.

Trust follows from the address: plain text stays on this host (unix sockets, loopback); everything else needs TLS, in
which the service shows a certificate. Callers show one too (mutual TLS), or a token (tokens.py).
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from hummingbird.errors import EnvironmentProblem, InputError, TrustError

PathLike = str | os.PathLike[str]


class Pem(NamedTuple):
    """The contents of the files of a `Tls`; None for one that is not named."""

    cert: bytes | None
    key: bytes | None
    ca: bytes | None

    def expiry(self) -> dict[str, float]:
        """When the certificates end, Unix time in seconds, by what they are: "cert", "ca". The earliest of a chain."""
        return {
            name: min(found.not_valid_after_utc.timestamp() for found in x509.load_pem_x509_certificates(content))
            for name, content in (("cert", self.cert), ("ca", self.ca))
            if content is not None
        }


@dataclass(frozen=True)
class Tls:
    """Paths of this side's certificate chain and key, and of everyone's authority (PEM, no passphrase).

    All three are mutual TLS. Where callers show tokens instead of certificates, a service has cert and key alone, and a
    caller ca alone. TrustError for another choice.
    """

    cert: PathLike | None = None
    key: PathLike | None = None
    ca: PathLike | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None) or (self.cert is None and self.ca is None):
            what = "TLS needs a certificate and its key, or the certificate of an authority"
            raise TrustError(what, where="Tls", hint="cert, key and ca for mutual TLS; with tokens cert and key, or ca")

    @property
    def mutual(self) -> bool:
        """Whether both sides show a certificate."""
        return self.cert is not None and self.ca is not None

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """For plain sockets: the connecting and the accepting side; both demand the other's certificate, TLS 1.3.

        TrustError where one of the three files is not named, EnvironmentProblem for files that cannot be used.
        """
        if self.cert is None or self.key is None or self.ca is None:
            raise TrustError("both sides show certificates here", where="Tls", hint="name all three: cert, key, ca")
        self.read()
        pair = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for context in pair:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_cert_chain(self.cert, self.key)
                context.load_verify_locations(self.ca)
            except ssl.SSLError as error:  # what OpenSSL refuses by its own rules, a short key for instance
                what = f"not usable TLS files: {error.reason or 'OpenSSL refuses them'}"
                raise EnvironmentProblem(what, where=str(self.cert)) from None
        return pair

    def read(self) -> Pem:
        """The files' contents.

        They are parsed here because gRPC accepts anything and then fails at every handshake, in its log only.
        EnvironmentProblem for a file that cannot be used, an expired certificate among them.
        """
        cert, key, ca = (None if path is None else _content(path) for path in (self.cert, self.key, self.ca))
        certified = None if cert is None else _valid(cert, self.cert).public_key()
        if key is not None:
            try:
                public = load_pem_private_key(key, None).public_key()
            except (ValueError, TypeError, UnsupportedAlgorithm) as error:
                raise _unusable(error, self.key) from None
            if certified != public:
                what = f"the key does not belong to the certificate {self.cert}"
                raise EnvironmentProblem(what, where=str(self.key))
        if ca is not None:
            _valid(ca, self.ca)
        return Pem(cert, key, ca)


def _content(path: PathLike) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise EnvironmentProblem(f"cannot read a TLS file: {error.strerror}", where=str(path)) from None


def _parsed(content: bytes, path: PathLike | None) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(content)
        for certificate in found:
            certificate.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise _unusable(error, path) from None
    return found


def _valid(content: bytes, path: PathLike | None) -> x509.Certificate:
    """The first certificate of a file, whose time it is."""
    first, now = _parsed(content, path)[0], datetime.datetime.now(datetime.timezone.utc)
    for wrong, verb, moment in (
        (now > first.not_valid_after_utc, "expired", first.not_valid_after_utc),
        (now < first.not_valid_before_utc, "is not valid before", first.not_valid_before_utc),
    ):
        if wrong:
            what = f"the certificate {verb} {moment:%Y-%m-%d %H:%M:%S} UTC"
            raise EnvironmentProblem(what, where=str(path), hint="have another one issued; is the clock right?")
    return first


def _unusable(error: Exception, path: PathLike | None) -> EnvironmentProblem:
    hint = "PEM files are needed, the key without a passphrase"
    return EnvironmentProblem(f"not a usable TLS file: {error}", where=str(path), hint=hint)


# Addresses ------------------------------------------------------------------------------------------------------------


def check_address(address: str, tls: Tls | None) -> None:
    """InputError unless `address` is unix:PATH or HOST:PORT; TrustError for another host in plain text."""
    if address.startswith("unix:"):
        if not 0 < len(os.fsencode(address[5:])) <= 107:  # sockaddr_un holds 108 bytes, the last one zero
            raise InputError("a unix socket's path has 1 to 107 bytes", where=address, hint="use a shorter directory")
        return
    host, _ = split(address)
    if tls is None and not loopback(host):
        raise TrustError(
            "plain text is for unix sockets and loopback addresses only: on a network, seeds could be read or replaced",
            where=address,
            hint="give certificates (mutual TLS), or use unix:PATH or 127.0.0.1:PORT on one host",
        )


def check_own_folder(path: PathLike, where: str) -> None:
    """TrustError unless the folder of this unix socket is this user's, and no other user can enter it.

    For a path that was heard from others: whoever listens there is then this user. where: who asks. OSError where
    there is no such folder.
    """
    folder = Path(path).parent
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        hint = "all of them run as one user; if they do, somebody else has named this path"
        raise TrustError(f"{folder} is not a folder of this user alone", where=where, hint=hint)


def split(address: str) -> tuple[str, int]:
    """Host, without the brackets of IPv6, and port of HOST:PORT or [IPV6]:PORT; InputError for anything else."""
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not host or (":" in host and not bracketed) or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InputError(f"not an address: {address!r}", hint="use unix:PATH, HOST:PORT or [IPV6]:PORT")
    return host.strip("[]"), int(port)


def joined(host: str, port: int) -> str:
    """The text that `split` reads as this host and port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def loopback(host: str) -> bool:
    """Whether a host name or address is this host's own, by its text."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
