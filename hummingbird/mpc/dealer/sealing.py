"""Sealing: encryption of what a dealer leaves for one party in a place that others can read and write.

Dealer and party have a pair of X25519 keys each. A sealed object can be opened only with the party's private key, and
made only with the dealer's private key or the party's own:

    header     4 bytes of length, then a record of JSON: format, release, name, party, lane, size and three public keys,
               the last of a pair that serves for this object only
    chunks     1 MiB of plain bytes each, the last one shorter, under AES-256-GCM: 16 bytes more

The key of the chunks is HKDF-SHA256(X25519(single-use, party) | X25519(dealer, party)), with the whole header in the
derivation, so that an object with a changed header has another key (as HPKE's mode Auth, RFC 9180, which binds `info`
and both results in the same way). A chunk's nonce is its number, and the header has the size of the content: chunks
that are missing, repeated or in another order are noticed.

Nothing here imports torch. Who gets a party's private key can open what was sealed to it before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hummingbird import disk, records
from hummingbird.errors import DealerError, InputError
from hummingbird.records import field
from hummingbird.version import VERSION

FORMAT, FORMAT_VERSION = "hummingbird sealed object", 1
CHUNK, TAG = 1 << 20, 16  # bytes
_LENGTH = 4  # bytes of the header's length
_MOST_HEADER = 1 << 14  # bytes
_LARGEST = 1 << 40  # bytes of plain text: more than any store has, and far below the 2^64 blocks of a key
_KEY = 32  # bytes
_PUBLIC = "hummingbird-key-"  # a public key in its file is this word and 64 hexadecimal digits
_MAKE = "python -m hummingbird keys --help"


# Keys -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyPair:
    """A party's or a dealer's keys, as its key file has them.

    private: the private key, 32 bytes.
    dealers: public keys of the dealers from which a party accepts material; empty at a dealer.
    """

    private: bytes = field(records.hexadecimal(_KEY))
    dealers: tuple[bytes, ...] = field(records.many(records.hexadecimal(_KEY), 64))
    format: str = records.constant("hummingbird key pair")

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return X25519PrivateKey.from_private_bytes(self.private).public_key().public_bytes_raw()


def new_key(path: Path, dealers: Iterable[bytes] = ()) -> KeyPair:
    """Draw a pair of keys, write it to the file `path`, which only this user can read, and its public key to PATH.pub.

    dealers: the public keys of the dealers from which the owner, a party, will accept material.
    Raises InputError if one of the files exists or cannot be written.
    """
    made, public = (
        KeyPair(X25519PrivateKey.generate().private_bytes_raw(), tuple(dealers)),
        path.with_name(f"{path.name}.pub"),
    )
    try:
        disk.create(path, [f"{records.write(made)}\n".encode()], mode=disk.PRIVATE)
        disk.create(public, [f"{_PUBLIC}{made.public.hex()}\n".encode()])
    except OSError as problem:
        hint = "a key is never replaced: name another file, in a folder where this user may write"
        raise InputError(f"{problem.strerror}", where=str(problem.filename or path), hint=hint) from None
    return made


def read_key(path: str | Path) -> KeyPair:
    """Read a key file of `new_key`. Raises InputError if it is missing, damaged, or readable for others."""
    where = str(path)
    try:
        if Path(path).stat().st_mode & 0o077:
            raise InputError("others may read this private key", where=where, hint="chmod 600, or make a new one")
        text = Path(path).read_bytes()
    except OSError as problem:
        raise InputError(
            f"the key cannot be read: {problem.strerror}", where=where, hint=f"to make one: {_MAKE}"
        ) from None
    return records.read(text, KeyPair, name="key file", where=where, hint=f"to make one: {_MAKE}")


def read_public(path: str | Path) -> bytes:
    """Read a file with a public key, 32 bytes, which `new_key` has written. Raises InputError for any other file."""
    where, hint = str(path), f"name the file FILE.pub that belongs to a key: {_MAKE}"
    try:
        text = Path(path).read_bytes()[:256].decode("ascii", "replace").strip()
        if not text.startswith(_PUBLIC):
            raise ValueError
        key = bytes.fromhex(text.removeprefix(_PUBLIC))
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))  # refuses points of small order
    except OSError as problem:
        raise InputError(f"the public key cannot be read: {problem.strerror}", where=where, hint=hint) from None
    except ValueError:
        raise InputError("this is no public key", where=where, hint=hint) from None
    return key


# Objects --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SealedHeader:
    """The first record of a sealed object, in plain text and authenticated.

    name: of the object, such as the id of a set of slots. party, lane: of its owner. size: of the content, in bytes.
    dealer, receiver, single_use: public keys.
    """

    name: str = field(records.text(64))
    party: int = field(records.whole())
    lane: int = field(records.whole())
    size: int = field(records.whole(0, _LARGEST))
    dealer: bytes = field(records.hexadecimal(_KEY))
    receiver: bytes = field(records.hexadecimal(_KEY))
    single_use: bytes = field(records.hexadecimal(_KEY))
    format: str = records.constant(FORMAT)
    format_version: int = records.constant(FORMAT_VERSION)
    hummingbird_version: str = records.constant(VERSION)


def seal(
    pieces: Iterable[bytes], size: int, dealer: KeyPair, receiver: bytes, *, name: str, party: int, lane: int
) -> Iterator[bytes]:
    """Yield the pieces of a sealed object.

    pieces: its content, `size` bytes in all. dealer: the sender's keys. receiver: the party's public key. name, party,
    lane: what the header says of the object.
    """
    once = X25519PrivateKey.generate()
    keys = (dealer.public, receiver, once.public_key().public_bytes_raw())
    text = records.write(SealedHeader(name, party, lane, size, *keys)).encode()
    to = X25519PublicKey.from_public_bytes(receiver)
    shared = once.exchange(to) + X25519PrivateKey.from_private_bytes(dealer.private).exchange(to)
    cipher = AESGCM(_derived(shared, text))
    yield len(text).to_bytes(_LENGTH, "big") + text
    found = 0
    for number, chunk in enumerate(_cut(iter(pieces), CHUNK)):
        found += len(chunk)
        yield cipher.encrypt(_nonce(number), chunk, None)
    assert found == size, "the content has another size than was said"


def unseal(pieces: Iterable[bytes], owner: KeyPair, *, name: str, party: int, lane: int, where: str) -> Iterator[bytes]:
    """Yield the content of a sealed object, piece by piece; each piece is authenticated before it is yielded.

    pieces: of the object. owner: the party's keys. name, party, lane: what the header must say. where: the object's
    name in errors.
    Raises DealerError for an object that is damaged, of another release, for somebody else, or of an unknown dealer.
    """
    source, kept = iter(pieces), bytearray()
    length = int.from_bytes(_take(source, kept, _LENGTH), "big")
    if not 0 < length <= _MOST_HEADER:
        raise _damaged("it does not begin with a header", where)
    text = _take(source, kept, length)
    header = _header(text, owner, where)
    for what, found, wanted in (
        ("named", header.name, name),
        ("for party", header.party, party),
        ("for lane", header.lane, lane),
    ):
        if found != wanted:
            hint = "was it copied or renamed? leave each object where the dealer has put it"
            raise DealerError(f"this object is {what} {found}, and not {wanted}", where=where, hint=hint)
    own = X25519PrivateKey.from_private_bytes(owner.private)
    try:
        shared = b"".join(
            own.exchange(X25519PublicKey.from_public_bytes(key)) for key in (header.single_use, header.dealer)
        )
    except ValueError:
        raise _damaged("it has a public key of small order", where) from None
    cipher = AESGCM(_derived(shared, text))
    for number in range(max(1, -(-header.size // CHUNK))):
        size = min(CHUNK, header.size - number * CHUNK)
        try:
            yield cipher.decrypt(_nonce(number), bytes(_take(source, kept, size + TAG)), None)
        except InvalidTag:
            raise _damaged(
                f"bytes {number * CHUNK:,} to {number * CHUNK + size:,} of its content are not the dealer's", where
            ) from None
    if kept or next(source, b""):
        raise _damaged("bytes follow its last chunk", where)


def _header(text: bytes, owner: KeyPair, where: str) -> SealedHeader:
    how: Any = {"name": "header of a sealed object", "where": where, "error": DealerError}
    named = records.of(records.parse(text, **how), records.mapping(records.anything(), 16), **how)
    found = (
        str(named.get("format"))[:40],
        str(named.get("format_version"))[:40],
        str(named.get("hummingbird_version"))[:40],
    )
    if found != (FORMAT, str(FORMAT_VERSION), VERSION):
        what = f"this is {found[0]!r}, format {found[1]}, of version {found[2]}; this is version {VERSION}"
        raise DealerError(what, where=where, hint="deal with the release that the parties run, under another prefix")
    header = records.of(named, SealedHeader, **how)
    if header.receiver != owner.public:
        what = (
            f"this object is sealed to the key {_short(header.receiver)}, this party has the key {_short(owner.public)}"
        )
        raise DealerError(
            what, where=where, hint="--store-key names this party's key file; `deal --to` its .pub, by rank"
        )
    if header.dealer not in owner.dealers:
        what = f"this object is by the dealer with the key {_short(header.dealer)}, whom this party does not accept"
        raise DealerError(
            what, where=where, hint="make a key for this dealer: python -m hummingbird keys FILE --dealer PUB"
        )
    return header


def _take(source: Iterator[bytes], kept: bytearray, count: int) -> bytes:
    """Return the next `count` bytes, or fewer at the end. source: further pieces. kept: bytes read and not taken."""
    while len(kept) < count and (more := next(source, b"")):
        kept += more
    taken = bytes(kept[:count])
    del kept[:count]
    return taken


def _cut(source: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield the bytes of all pieces in chunks of `size`, the last one shorter; one empty chunk if there are none."""
    kept, first = bytearray(), True
    while (chunk := _take(source, kept, size)) or first:
        yield chunk
        first = False


def _derived(shared: bytes, header: bytes) -> bytes:
    return HKDF(SHA256(), _KEY, salt=None, info=b"hummingbird sealed object" + header).derive(shared)


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")  # the key serves for this object only


def _short(key: bytes) -> str:
    return f"{key.hex()[:16]}.."


def _damaged(what: str, where: str) -> DealerError:
    hint = "its slots are lost; run again to go on with another set. Who can write here?"
    return DealerError(f"this object is damaged: {what}", where=where, hint=hint)
