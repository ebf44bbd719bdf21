"""Sealed objects: only the party opens them, only a dealer that it accepts makes them, and no byte can be changed."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hummingbird.errors import DealerError, InputError
from hummingbird.mpc.dealer import sealing
from hummingbird.mpc.dealer.sealing import CHUNK, TAG, KeyPair, new_key, read_key, read_public, seal, unseal

OWNER = {"name": "ab", "party": 1, "lane": 2}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[KeyPair, KeyPair]:
    folder = tmp_path_factory.mktemp("keys")
    dealer = new_key(folder / "dealer")
    return dealer, new_key(folder / "party", [dealer.public])


def sealed(keys: tuple[KeyPair, KeyPair], data: bytes) -> bytes:
    return b"".join(seal([data[:3], data[3:]], len(data), keys[0], keys[1].public, **OWNER))  # type: ignore[arg-type]


def opened(data: bytes, key: KeyPair, size: int = 1 << 18, **changed: object) -> bytes:
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(unseal(pieces, key, where="here", **{**OWNER, **changed}))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_what_is_sealed_is_opened(keys: tuple[KeyPair, KeyPair], size: int) -> None:
    data = os.urandom(size)
    made = sealed(keys, data)
    for piece in (1 << 10, CHUNK + TAG, 1 << 23):
        assert opened(made, keys[1], piece) == data
    assert data[:64] not in made or size == 0 or size < 8
    assert sealed(keys, data) != made  # under a new key each time


def parts(data: bytes) -> list[bytes]:
    """Length, header and chunks of a sealed object."""
    length = int.from_bytes(data[:4], "big")
    rest = data[4 + length :]
    return [data[:4], data[4 : 4 + length], *(rest[at : at + CHUNK + TAG] for at in range(0, len(rest), CHUNK + TAG))]


def damages(data: bytes) -> Iterator[bytes]:
    """The object with parts that are cut off, left out, repeated, exchanged, or with a bit that is changed."""
    pieces = parts(data)
    for number in range(len(pieces)):
        yield b"".join(pieces[:number] + pieces[number + 1 :])
        yield b"".join(pieces[: number + 1] + pieces[number:])
    for one, other in itertools.combinations(range(2, len(pieces)), 2):
        swapped = list(pieces)
        swapped[one], swapped[other] = swapped[other], swapped[one]
        yield b"".join(swapped)
    for at in [*range(0, 4 + len(pieces[1])), *range(4 + len(pieces[1]), len(data), 99_991), len(data) - 1]:
        yield data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    yield data[:-1]
    yield data + b"0"
    yield b""


def test_every_damage_is_noticed(keys: tuple[KeyPair, KeyPair]) -> None:
    data = os.urandom(2 * CHUNK + 100)
    count = 0
    for changed in damages(sealed(keys, data)):
        with pytest.raises(DealerError):
            opened(changed, keys[1])
        count += 1
    assert count > 400


def test_a_header_that_says_something_else_is_another_key(keys: tuple[KeyPair, KeyPair]) -> None:
    """A header that is right in itself, with the chunks of another one."""
    made = parts(sealed(keys, b"0123456789"))
    header = json.loads(made[1]) | {"name": "cd"}
    text = json.dumps(header).encode()
    with pytest.raises(DealerError, match="are not the dealer's"):
        opened(len(text).to_bytes(4, "big") + text + b"".join(made[2:]), keys[1], name="cd")


def test_who_opens_what(keys: tuple[KeyPair, KeyPair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, (dealer, party) = b"0123456789", keys
    made = sealed(keys, data)
    for name, value in (("name", "cd"), ("party", 0), ("lane", 0)):
        with pytest.raises(DealerError, match=f"is .*{OWNER[name]}, and not {value}"):
            opened(made, party, **{name: value})
    with pytest.raises(DealerError, match="is sealed to the key"):
        opened(made, new_key(tmp_path / "other", [dealer.public]))
    with pytest.raises(DealerError, match="whom this party does not accept"):
        opened(made, KeyPair(party.private, ()))
    with pytest.raises(DealerError, match="whom this party does not accept"):
        opened(sealed((new_key(tmp_path / "stranger"), party), data), party)
    monkeypatch.setattr(sealing, "VERSION", "9.9")
    with pytest.raises(DealerError, match="this is version 9.9"):
        opened(made, party)


def test_the_bucket_cannot_make_a_set(keys: tuple[KeyPair, KeyPair], tmp_path: Path) -> None:
    """Who knows both public keys, and neither private one, and names the dealer in the header."""
    dealer, party = keys
    stranger = new_key(tmp_path / "stranger")
    made = parts(sealed((stranger, party), b"0123456789"))
    header = json.loads(made[1]) | {"dealer": dealer.public.hex()}
    text = json.dumps(header).encode()
    with pytest.raises(DealerError, match="are not the dealer's"):
        opened(len(text).to_bytes(4, "big") + text + made[2], party)


def test_key_files(tmp_path: Path) -> None:
    dealer = new_key(tmp_path / "dealer.key")
    party = new_key(tmp_path / "party.key", [read_public(tmp_path / "dealer.key.pub")])
    assert read_key(tmp_path / "party.key") == party and party.dealers == (dealer.public,)
    assert (tmp_path / "party.key").stat().st_mode & 0o777 == 0o600
    assert read_public(tmp_path / "party.key.pub") == party.public
    assert party.private.hex() not in (tmp_path / "party.key.pub").read_text()
    with pytest.raises(InputError, match="File exists"):
        new_key(tmp_path / "party.key")
    (tmp_path / "party.key").chmod(0o640)
    with pytest.raises(InputError, match="others may read this private key"):
        read_key(tmp_path / "party.key")
    with pytest.raises(InputError, match="No such file"):
        read_key(tmp_path / "nothing")
    for text in ("", "hummingbird-key-12", f"hummingbird-key-{'0' * 64}", (tmp_path / "dealer.key").read_text()):
        (tmp_path / "bad").write_text(text)
        with pytest.raises(InputError, match="this is no public key"):
            read_public(tmp_path / "bad")
    (tmp_path / "bad").write_text("{}")
    (tmp_path / "bad").chmod(0o600)
    with pytest.raises(InputError, match="key file"):
        read_key(tmp_path / "bad")
