"""Authentication of services and callers: addresses, certificates, tokens.

The address decides the trust, before anything is opened: plain text stays on this host (unix sockets, loopback);
everything else needs TLS, in which the service shows a certificate. Callers show a certificate too (mutual TLS), or a
token. A service reads its certificates again when their files have changed, so that renewal needs no restart.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import ipaddress
import logging
import os
import ssl
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from hummingbird.errors import EnvironmentProblem, InputError, TrustError
from hummingbird.rpc.status import Unknown

PathLike = str | os.PathLike[str]


class Pem(NamedTuple):
    """The contents of the certificate files that a `Tls` names, as bytes; None for a file that is not named."""

    cert: bytes | None
    key: bytes | None
    ca: bytes | None

    def expiry(self) -> dict[str, float]:
        """Return when the certificates in these files expire, as a dict from "cert" and "ca" to Unix time in seconds.

        In a chain the earliest end counts. A file that is not named has no entry.
        """
        return {
            name: min(found.not_valid_after_utc.timestamp() for found in x509.load_pem_x509_certificates(content))
            for name, content in (("cert", self.cert), ("ca", self.ca))
            if content is not None
        }


@dataclass(frozen=True)
class Tls:
    """The paths of this side's certificate chain and key, and of the certificate of all sides' authority.

    cert, key, ca: the files, PEM without a passphrase. All three together mean mutual TLS. If callers show tokens
    instead of certificates, a service has cert and key alone, and a caller ca alone. Raises TrustError for another
    choice.

    >>> from hummingbird.rpc.security import Tls
    >>> Tls("party-0.pem", "party-0.key", "ca.pem").mutual
    True
    >>> Tls(ca="ca.pem").mutual
    False
    >>> Tls("party-0.pem")
    Traceback (most recent call last):
        ...
    hummingbird.errors.TrustError: TLS needs a certificate and its key, or the certificate of an authority (at Tls)
    hint: cert, key and ca for mutual TLS; with tokens cert and key, or ca
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
        """Whether these files let both sides show a certificate: all three are named."""
        return self.cert is not None and self.ca is not None

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Return a tuple of two TLS 1.3 contexts for plain sockets: the connecting side's, and the accepting side's.

        Each side requires the other's certificate. Raises TrustError unless all three files are named,
        EnvironmentProblem for unusable files.
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
            except ssl.SSLError as error:  # OpenSSL has further rules, such as the length of a key
                what = f"not usable TLS files: {error.reason or 'OpenSSL refuses them'}"
                raise EnvironmentProblem(what, where=str(self.cert)) from None
        return pair

    def read(self) -> Pem:
        """Read the certificate files and check them; return their contents, a `Pem`.

        gRPC would accept any bytes, and then fail at every handshake, with a message in its log only. Raises
        EnvironmentProblem for an unusable file, also for an expired certificate.
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
    """Return the first certificate in a PEM file, parsed, after a check of its dates.

    content: of the file. path: its name, for errors. Raises EnvironmentProblem if the certificate is expired, or not
    valid yet.
    """
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
    """Raise InputError unless a service's `address` is unix:PATH or HOST:PORT, and TrustError if TLS is missing.

    An address on another host needs TLS; `tls` is then not None.
    """
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
    """Raise TrustError unless only this user can enter the folder of a unix socket, and owns it.

    Called before a connection to a path that another process has named: whoever listens there is then a process of this
    user. path: of the socket. where: the name of this side in errors. Raises OSError if there is no such folder.
    """
    folder = Path(path).parent
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        hint = "all of them run as one user; if they do, another user has named this path"
        raise TrustError(f"{folder} is not a folder of this user alone", where=where, hint=hint)


def split(address: str) -> tuple[str, int]:
    """Split an address, HOST:PORT or [IPV6]:PORT; return the host, without brackets, and the port, an int.

    Raises InputError for anything else.
    """
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not host or (":" in host and not bracketed) or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InputError(f"not an address: {address!r}", hint="use unix:PATH, HOST:PORT or [IPV6]:PORT")
    return host.strip("[]"), int(port)


def joined(host: str, port: int) -> str:
    """Return a host and a port as one address, HOST:PORT or [IPV6]:PORT; the inverse of `split`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def loopback(host: str) -> bool:
    """Return whether a host name or an IP address, as text, means this host itself."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# Certificates that are renewed ----------------------------------------------------------------------------------------

_log = logging.getLogger(__name__)
_Stamp = tuple[int, int, int]


class Certificates:
    """The contents of a service's certificate files, for all servers of a program; changed files are read again.

    tls: the files. renewed: called when the contents of changed files come into use. Raises EnvironmentProblem if files
    are unusable at the start; if changed files are unusable, the old contents stay in use.
    """

    def __init__(self, tls: Tls, renewed: Callable[[], object] = lambda: None) -> None:
        self.tls, self._renewed = tls, renewed
        self._lock = threading.Lock()
        self._seen = self._refused = self._stamps()  # before reading, so that a change meanwhile is read again
        self._pem = tls.read()

    def current(self) -> Pem:
        """Return the contents of the files that are in use now, a `Pem`; reads the files if they have changed.

        It is the same object as at the last call if nothing has changed.
        """
        with self._lock:
            if (stamps := self._stamps()) != self._seen:
                self._read(stamps)
            return self._pem

    def ends(self) -> dict[str, Callable[[], float]]:
        """Return a dict from "cert" and "ca" to functions, which return when this certificate expires, Unix time.

        A certificate whose file is not named has no entry.
        """
        return {name: partial(lambda name: self.current().expiry()[name], name) for name in self.current().expiry()}

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for one gRPC server, which always shows the newest certificate.

        Callers must show a certificate, too, if `tls` names their authority.
        """
        given = self.current()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            """Return what gRPC needs of the current certificates; None if this server has them already.

            gRPC calls this before each handshake, from one thread at a time.
            """
            nonlocal given
            if (pem := self.current()) is given:
                return None
            given = pem
            return _configuration(pem)

        return grpc.dynamic_ssl_server_credentials(_configuration(given), fetch, self.tls.mutual)

    def _read(self, stamps: list[_Stamp | None]) -> None:
        """Read the certificate files, which have changed; keep the old contents if they are unusable.

        Unusable files are read again later: a certificate may become valid with time. stamps: the state of each file on
        the disk, by `_stamp`, None for a file that is missing.
        """
        try:
            pem = self.tls.read()
        except EnvironmentProblem as problem:
            if stamps != self._refused:
                _log.warning("the certificates of before stay in use: %s", problem)
            self._refused = stamps
            return
        self._seen = stamps
        if pem != self._pem:
            self._pem = pem
            self._renewed()

    def _stamps(self) -> list[_Stamp | None]:
        return [None if path is None else _stamp(path) for path in (self.tls.cert, self.tls.key, self.tls.ca)]


def _stamp(path: str | os.PathLike[str]) -> _Stamp | None:
    """Return a file's time of change, size and inode number; None for a missing file.

    If the file is changed or replaced, at least one of the three changes.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca)


# Tokens ---------------------------------------------------------------------------------------------------------------

TOKEN_BYTES = 32
NAME_LENGTH = 64
HEADER = "authorization"  # its value: "Bearer " and the token in hexadecimal
_MOST = 1 << 24  # characters of a token file, enough for 200,000 tokens
_HINT = "python -m hummingbird token makes one"


def new_token() -> str:
    """Draw a new secret token, by which a caller says who it is: 64 hexadecimal digits."""
    from hummingbird.prg import new_seed  # imports torch, which takes seconds, and which readers of tokens do not need

    return new_seed(TOKEN_BYTES).hex()


def line_of(name: str, token: str) -> str:
    """Return the line by which a service's token file admits a caller: the caller's name, and the token's hash.

    Raises InputError unless the name is 1 to 64 letters, digits and . _ @ -
    """
    check_name(name)
    return f"{name} {_hash(token)}\n"


def check_name(name: str) -> None:
    """Raise InputError unless a caller's name is 1 to 64 letters, digits and . _ @ -"""
    if not 0 < len(name) <= NAME_LENGTH or not all(s.isascii() and (s.isalnum() or s in "._@-") for s in name):
        raise InputError(f"not a name: {name[:80]!r}", hint="1 to 64 letters, digits and . _ @ -")


def read_token(path: Path) -> str:
    """Return the token in the file that a caller keeps.

    Raises EnvironmentProblem if others may read the file, InputError if it holds no token.

    >>> from pathlib import Path
    >>> from hummingbird import __main__ as program
    >>> from hummingbird.rpc.security import read_token
    >>> program.main(["token", "alice", "--tokens", "tokens.txt", "--out", "alice.token"])
    tokens.txt knows alice: give alice.token to it, over a channel that nobody else reads
    0
    >>> len(read_token(Path("alice.token")))
    64
    """
    text = _read(path, 0o077, "others may read it: chmod 600").strip()
    if len(text) != 2 * TOKEN_BYTES or not set(text) <= set("0123456789abcdef"):
        raise InputError(f"a token has {2 * TOKEN_BYTES} hexadecimal digits", where=str(path), hint=_HINT)
    return text


class Tokens:
    """The callers in a service's token file: `tokens.name_of(context)` finds who calls.

    The file is read again when it has changed, so that a removed name is refused from then on; while the file cannot be
    read, all callers are refused. Raises EnvironmentProblem for a file that cannot be read at first, or that others may
    write; InputError for a malformed line.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._seen = self._stamp()
        self._names = _names(path)

    def name_of(self, context: grpc.ServicerContext) -> str:
        """Return the name of the caller whose token this call shows.

        context: gRPC's, of the call. Raises `Unknown`, UNAUTHENTICATED on the wire, for a call without a token, or with
        one that is not in the file.
        """
        given = dict(context.invocation_metadata()).get(HEADER, "")
        scheme, _, token = str(given).partition(" ")
        if scheme != "Bearer" or not token:
            raise Unknown("this service wants a token", hint="name a file that holds yours (--token-file, token=)")
        found, wanted = None, _hash(token)
        for digest, name in self._current().items():  # all of them, so that the time reveals nothing
            if hmac.compare_digest(digest, wanted):
                found = name
        if found is None:
            raise Unknown("this service does not know the token", hint="was it removed, or is it another service's?")
        return found

    def _current(self) -> dict[str, str]:
        with self._lock:
            try:
                if (stamp := self._stamp()) != self._seen:
                    self._names, self._seen = _names(self._path), stamp
            except (EnvironmentProblem, InputError):
                raise Unknown("this service cannot read its tokens now", hint="its operator can mend them") from None
            return self._names

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise EnvironmentProblem(f"cannot read the tokens: {error.strerror}", where=str(self._path)) from None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _names(path: Path) -> dict[str, str]:
    """Read a service's token file; return a dict from each token's SHA-256, in hexadecimal, to the caller's name.

    Raises EnvironmentProblem for a file that cannot be read or that others may write, InputError for a malformed line,
    two names with the same token, and a file without tokens.
    """
    names: dict[str, str] = {}
    for number, line in enumerate(_read(path, 0o022, "others may write it: chmod 600").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}, line {number}"
        if len(words) != 2 or len(words[1]) != 64 or not set(words[1]) <= set("0123456789abcdef"):
            raise InputError("expected a name and the SHA-256 of a token", where=where, hint=_HINT)
        check_name(words[0])
        if words[1] in names:
            raise InputError("two names have the same token", where=where, hint=_HINT)
        names[words[1]] = words[0]
    if not names:
        raise InputError("the file holds no token", where=str(path), hint=_HINT)
    return names


def _read(path: Path, forbidden: int, problem: str) -> str:
    """Return the text of a file that must be protected from other users.

    forbidden: permission bits, as of chmod(2), that the file's mode must not have. problem: the hint for such a mode.
    Raises EnvironmentProblem if the file cannot be read, or has such a mode.
    """
    try:
        with open(path, encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & forbidden:
                raise EnvironmentProblem(f"the file has mode {mode:o}", where=str(path), hint=problem)
            text = file.read(_MOST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise EnvironmentProblem(f"cannot read the file: {reason}", where=str(path)) from None
    if len(text) > _MOST:
        raise InputError(f"the file holds more than {_MOST} characters", where=str(path), hint=_HINT)
    return text
