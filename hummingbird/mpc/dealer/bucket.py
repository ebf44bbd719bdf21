"""Sets of slots in an object store, one party's and lane's of them: what is where, claims, and requests.

    URL/party-RANK/sets/lane-LANE/ID      a set: the files of a store's folder (folder.py), sealed (sealing.py)
    URL/party-RANK/claims/lane-LANE/ID    a random id of the one who has claimed this set
    URL/party-RANK/nets/ID                what all sets are dealt for, sealed

A *claim* is an object that is created only if there is none (If-None-Match: *), so that one of several processes
succeeds. The client repeats a request whose answer was lost, and then meets its own claim. So whoever is refused reads
the claim, which holds the claimer's id. A set is read after it was claimed, and deleted when it was read. Its claim
stays, and keeps the set from being used if a delayed request of the dealer creates it again. A rule of the bucket's
life cycle deletes claims, later than sets.

A set belongs to the process that claimed it, and is in a private folder of this process. Nothing of it outlives the
process, so that no slot can be used twice after a crash; what was claimed and not used is lost.

Requests for a set, at each party: 1 PUT (the claim), one GET for each `PART` of bytes, 1 DELETE; at party 0 also its
part of a LIST of 1,000 names. Whoever is refused a claim has made a PUT and a GET. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from hummingbird import disk, records
from hummingbird.errors import DealerError, DiskError, InputError, needs

PART = 8 << 20  # bytes that one request reads
_PAGE = 1000  # names that one request lists
_FILES = ("checksums", "corrections", "ledger", "header.json", "seed")  # the seed last: without it the others are noise
_MOST_LIST = 1 << 12  # bytes of the list of files
_LENGTH = 4  # bytes of the length of that list
_RETRIES = 1000  # the timeout ends them
_RIGHTS = (
    "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL (or what Google or Azure have for them) "
    "say who this is, and where; is it allowed to list, read, create and delete objects there?"
)


def is_url(path: object) -> bool:
    """Return whether the path of a store is a place in an object store, such as s3://bucket/prefix, and no folder."""
    return "://" in str(path)


class Bucket:
    """One lane's place in the object store of one party.

    url: s3://bucket/prefix, gs://bucket/prefix or az://container/prefix; {rank} in it stands for the party's rank.
    rank, lane: of the party's lane.
    timeout: seconds in which a request is repeated if it fails; each attempt may take 30 s (obstore's default).
    Raises EnvironmentProblem if the package obstore is not installed, and InputError for a URL of another kind. The
    methods raise DealerError if the object store refuses a request, or does not answer in time.
    """

    def __init__(self, url: str, rank: int, lane: int = 0, timeout: float = 60.0) -> None:
        with needs("bucket", "a store in a bucket"):
            from obstore.store import from_url
        self.where = f"{url.replace('{rank}', str(rank)).rstrip('/')}/party-{rank}"
        self._lane = f"lane-{lane}"
        how: dict[str, Any] = {"retry_config": {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=timeout)}}
        if self.where.startswith("file:"):
            how = {"mkdir": True}
        try:
            self._store: Any = from_url(self.where, **how)
        except Exception as problem:  # obstore has a class for each kind of fault, under several roots
            hint = "s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
            raise InputError(_first_line(problem), where=self.where, hint=hint) from None

    def check(self) -> None:
        """Try a claim twice, since some object stores ignore If-None-Match; raise DealerError if both succeed.

        Raises DealerError, too, if there is no such bucket. 4 requests.
        """
        path = f"claims/check/{secrets.token_hex(16)}"
        first, second = (self._create(path, secrets.token_hex(16).encode()) for _ in range(2))
        self._ask(path, "delete", path)
        if not first or second:
            hint = "it ignores If-None-Match: take another one, or a newer release of it"
            raise DealerError("this object store would let two processes use one set", where=self.where, hint=hint)

    # Sets -------------------------------------------------------------------------------------------------------------

    def names(self) -> Iterator[list[str]]:
        """Yield the ids of the sets that are there, claimed or not, in lists of at most 1,000. 1 request for each."""
        return self._listed(f"sets/{self._lane}")

    def claim(self, name: str) -> bool:
        """Claim the set `name` for this process; return whether it has it. 1 request, and 1 more if it is refused."""
        return self._create(f"claims/{self._lane}/{name}", secrets.token_hex(16).encode())

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of the set `name`, `PART` by `PART`; nothing if there is no such set. 1 request for each."""
        path, at, size = f"sets/{self._lane}/{name}", 0, 1
        while at < size:
            try:
                part = self._ask(path, "get", path, options={"range": (at, at + PART)})
                data, size = self._taken(path, part), int(part.meta["size"])
            except FileNotFoundError:
                return
            at = at + len(data) if data else size
            yield data

    def delete(self, name: str) -> None:
        """Delete the set `name`, but not its claim. 1 request."""
        with contextlib.suppress(FileNotFoundError):
            self._ask(name, "delete", f"sets/{self._lane}/{name}")

    def put(self, name: str, file: Path) -> None:
        """Upload the set `name`, which then appears all at once. file: the sealed set.

        1 request for up to 5 MiB, else 1 for every 5 MiB and 2 more.
        """
        self._there(f"sets/{self._lane}/{name}", "put", f"sets/{self._lane}/{name}", file)

    # What sets are dealt for ------------------------------------------------------------------------------------------

    def nets(self) -> list[str]:
        """Return the ids of what the sets are dealt for: one; none if nothing has been dealt. 1 request."""
        return [name for page in self._listed("nets") for name in page]

    def net(self, name: str) -> bytes:
        """Return the sealed description `name` of what sets are dealt for. 1 request."""
        return self._taken(name, self._there(name, "get", f"nets/{name}"))

    def add_net(self, name: str, data: bytes) -> None:
        """Store a sealed description of what sets are dealt for, under its id; leave it if it is there. 1 request."""
        self._create(f"nets/{name}", data)

    # Requests ---------------------------------------------------------------------------------------------------------

    def _create(self, path: str, data: bytes) -> bool:
        """Create an object if there is none; return whether it is there with this content."""
        with needs("bucket", "a store in a bucket"):
            from obstore.exceptions import AlreadyExistsError
        try:
            self._there(path, "put", path, data, mode="create")
        except AlreadyExistsError:
            with contextlib.suppress(FileNotFoundError):  # the answer to an earlier request of ours may be lost
                return self._taken(path, self._ask(path, "get", path)) == data
            return False
        return True

    def _listed(self, prefix: str) -> Iterator[list[str]]:
        pages = iter(self._ask(prefix, "list", prefix, chunk_size=_PAGE))
        while (page := self._explained(prefix, partial(next, pages, None))) is not None:
            yield [str(found["path"]).rpartition("/")[2] for found in page]

    def _taken(self, path: str, answer: Any) -> bytes:
        return bytes(self._explained(path, answer.bytes))

    def _there(self, path: str, *request: Any, **how: Any) -> Any:
        try:
            return self._ask(path, *request, **how)
        except FileNotFoundError as problem:
            raise self._nothing(problem) from None

    def _nothing(self, problem: BaseException) -> DealerError:
        hint = "is the bucket's name right? it must exist"
        return DealerError(f"there is no such bucket or object ({_code(problem)})", where=self.where, hint=hint)

    def _ask(self, path: str, method: str, *words: Any, **how: Any) -> Any:
        """Make a request of the object store; return its answer. path: what it is about, for errors.

        method, words, how: the function of obstore, and its arguments after the store.
        """
        import obstore

        return self._explained(path, partial(getattr(obstore, method), self._store, *words, **how))

    def _explained(self, path: str, call: Callable[[], Any]) -> Any:
        from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            return call()
        except (FileNotFoundError, AlreadyExistsError):
            raise
        except (PermissionDeniedError, UnauthenticatedError) as problem:
            what = f"the object store refuses a request for {path}: {_code(problem)}"
            raise DealerError(what, where=self.where, hint=_RIGHTS) from None
        except (BaseError, OSError) as problem:
            text = _first_line(problem)
            if _code(problem) == "NoSuchBucket":
                raise self._nothing(problem) from None
            if "169.254" in text or "metadata" in text or "redential" in text:  # the address that a cloud's hosts ask
                raise DealerError("no credentials for the object store", where=self.where, hint=_RIGHTS) from None
            raise DealerError(f"the object store failed: {text}", where=self.where, hint=_RIGHTS) from None


def _first_line(problem: BaseException) -> str:
    return str(problem).partition("\n")[0][:300]


def _code(problem: BaseException) -> str:
    """Return the code that the object store has given for an error, such as NoSuchBucket, else the error's text."""
    code = str(problem).partition("<Code>")[2].partition("</Code>")[0]
    return code[:60] or _first_line(problem)


# Files of a set -------------------------------------------------------------------------------------------------------


def packed(folder: Path) -> tuple[Iterator[bytes], int]:
    """Return the files of a store's folder as pieces of bytes, to be sealed, and the number of bytes of them all."""
    sizes = {name: (folder / name).stat().st_size for name in _FILES}
    text = json.dumps(sizes).encode()

    def pieces() -> Iterator[bytes]:
        yield len(text).to_bytes(_LENGTH, "big") + text
        for name in _FILES:
            with open(folder / name, "rb") as file:
                while piece := file.read(PART):
                    yield piece

    return pieces(), _LENGTH + len(text) + sum(sizes.values())


def unpack(pieces: Iterable[bytes], folder: Path, where: str) -> None:
    """Write the files that `packed` has put together into a new folder, which only this user can read.

    where: the set's name in errors. Raises DiskError if the disk does not take them.
    """
    source = _Bytes(pieces)
    text = b"".join(source.take(int.from_bytes(b"".join(source.take(_LENGTH)), "big") % _MOST_LIST))
    sizes = records.read(
        text, records.mapping(records.whole(), 8), name="list of files", where=where, error=DealerError
    )
    if tuple(sizes) != _FILES:
        raise DealerError("malformed list of files", where=where, hint="deal with the release that the parties run")
    try:
        folder.mkdir(mode=0o700, parents=True)
        for name in _FILES:
            with disk.opened(folder / name, mode=disk.PRIVATE) as file:
                file.writelines(source.take(sizes[name]))
    except OSError as problem:
        hint = "sets that are read ahead need room in the folder for temporary files: TMPDIR names another one"
        raise DiskError(f"a set cannot be written: {problem.strerror}", where=str(folder), hint=hint) from None
    for _ in source.take(1):
        raise DealerError("bytes follow the last file of this set", where=where)


class _Bytes:
    """The bytes of several pieces; `take(count)` yields the next `count` of them, or fewer at the end."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._rest = iter(pieces), b""

    def take(self, count: int) -> Iterator[bytes]:
        while count > 0 and (piece := self._rest or next(self._pieces, b"")):
            self._rest = piece[count:]
            count -= len(piece[:count])
            yield piece[: len(piece) - len(self._rest)]
