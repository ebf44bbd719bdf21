"""One party's place in an object store: claims, requests and their number, and errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hummingbird.errors import DealerError, EnvironmentProblem, InputError
from hummingbird.mpc.dealer import bucket as module
from hummingbird.mpc.dealer.bucket import Bucket
from tests.support.object_server import ObjectServer, served
from tests.support.parties import together
from tests.support.patience import PROGRAM

URL = "s3://place/nets/digits"


@pytest.fixture(scope="module")
def shared_server() -> Iterator[ObjectServer]:
    with served() as server:
        yield server


@pytest.fixture
def server(shared_server: ObjectServer) -> Iterator[ObjectServer]:
    shared_server.begin("place")
    yield shared_server


def test_one_of_many_claims_a_set(server: ObjectServer) -> None:
    buckets = [Bucket(URL, 0) for _ in range(8)]
    for name in ("set0", "set1", "set2", "set3"):
        assert sum(together([lambda bucket=bucket, name=name: bucket.claim(name) for bucket in buckets])) == 1
    assert not any(bucket.claim("set0") for bucket in buckets)  # nor does the winner claim it twice
    assert Bucket(URL, 1).claim("set0") and Bucket(URL, 0, lane=1).claim(
        "set0"
    )  # other parties and lanes have their own


def test_a_claim_whose_answer_was_lost_is_kept(server: ObjectServer) -> None:
    """The client repeats it, and meets its own claim; another process is refused all the same."""
    server.loses = lambda kind, number: kind == "PUT claims" and number == 1
    assert Bucket(URL, 0).claim("one") and server.counts["PUT claims"] == 2
    assert not Bucket(URL, 0).claim("one")


def test_a_start_refuses_a_store_that_takes_both_claims(server: ObjectServer, tmp_path: Path) -> None:
    Bucket(URL, 0).check()
    assert server.counts == {"PUT claims": 2, "GET claims": 1, "DELETE": 1}
    Bucket(f"file://{tmp_path}", 0).check()
    server.ignores = True
    with pytest.raises(DealerError, match="would let two processes use one set"):
        Bucket(URL, 0).check()


@pytest.mark.parametrize("size", [1, 1000, 4095, 4096, 4097, 12_288])
def test_bytes_and_requests(server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """A set takes a GET for each part, and no byte is sent twice."""
    monkeypatch.setattr(module, "PART", 4096)
    (tmp_path / "set").write_bytes(bytes(range(256)) * (size // 256) + bytes(size % 256))
    bucket = Bucket(URL, 0)
    bucket.put("one", tmp_path / "set")
    assert b"".join(bucket.read("one")) == (tmp_path / "set").read_bytes()
    assert server.counts == {"PUT sets": 1, "GET sets": -(-size // 4096)} and server.sent == size
    assert list(bucket.names()) == [["one"]] and server.counts["LIST sets"] == 1
    bucket.delete("one")
    bucket.delete("one")
    assert list(bucket.names()) == [] == list(bucket.read("one"))


def test_thousands_of_names(server: ObjectServer) -> None:
    bucket, names = Bucket(URL, 0), [f"{number:04d}" for number in range(1005)]
    server.fill(*(f"{bucket.where}/sets/lane-0/{name}" for name in names))
    pages = list(bucket.names())
    assert [len(page) for page in pages] == [1000, 5] and sum(pages, []) == names and server.counts["LIST sets"] == 2


def test_errors_say_what_to_do(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DealerError, match=r"no such bucket.*NoSuchBucket"):
        Bucket("s3://nowhere/x", 0).check()
    with pytest.raises(InputError, match="s3://bucket/prefix"):
        Bucket("s4://place", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(DealerError, match=r"(?s)the object store failed.*AWS_ENDPOINT_URL"):
        Bucket(URL, 0, timeout=1.0).check()


def test_without_credentials(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client then asks the address at which the hosts of clouds find theirs: here there is nobody."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9/metadata")
    with pytest.raises(DealerError, match=r"(?s)no credentials for the object store.*AWS_ACCESS_KEY_ID"):
        Bucket(URL, 0, timeout=1.0).check()


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(EnvironmentProblem, match=r"(?s)obstore.*pip install 'hummingbird-mpc\[bucket\]'"):
        Bucket(URL, 0)


def test_claiming_and_reading_import_no_torch() -> None:
    code = "import sys, hummingbird.mpc.dealer.set_reader; print({'torch', 'crypten', 'obstore'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PROGRAM, check=True)
    assert done.stdout == "set()\n"
