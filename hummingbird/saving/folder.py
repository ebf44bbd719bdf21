"""The folder of a saved net: written as a whole or not at all, and never overwritten.

net.json                 for every party: the net as data
weights.safetensors      public weights, for every party;  or
party-1.safetensors      weights of party 1, mode 0600, for this party only
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hummingbird import disk
from hummingbird.errors import InputError
from hummingbird.saving import weights
from hummingbird.saving.description import NetDescription

NET = "net.json"


def check_free(folder: Path) -> None:
    """Raise InputError unless a folder can be created at this path. `save` calls it before it does any work."""
    if folder.exists() or folder.is_symlink():
        hint = "name a new folder, or remove this one: nothing is written over"
        raise InputError("the folder is there already", where=str(folder), hint=hint)
    if not folder.parent.is_dir() or not os.access(folder.parent, os.W_OK):
        raise InputError(f"no folder {folder.parent} that can be written", where=str(folder), hint="make it first")


@contextmanager
def written(folder: Path) -> Iterator[Path]:
    """Return a context that makes a new folder for its block to write into; the block gets the temporary path.

    At the end of the block the folder is on the disk, and is named `folder`. Raises InputError if no such folder can be
    made.
    """
    check_free(folder)
    try:
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))  # mode 0700
        try:
            yield draft
            for path in draft.iterdir():
                disk.sync(path)
            mask = os.umask(0)
            os.umask(mask)
            draft.chmod(0o777 & ~mask)
            check_free(folder)  # another process may have created it meanwhile
            disk.publish(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        hint = "name a folder on a disk with room"
        raise InputError(f"cannot write: {error.strerror or error}", where=str(folder), hint=hint) from None


def description(folder: Path) -> NetDescription:
    """Read the net.json in a folder of a saved net; return its content.

    Raises InputError for a folder without this file, and for a file that is damaged or not a saved net's.
    """
    path = folder / NET
    try:
        with open(path, "rb") as file:
            text = file.read((16 << 20) + 1)
    except OSError as error:
        what = f"no saved net: cannot read {NET}: {error.strerror}"
        raise InputError(what, where=str(folder), hint="the folder that hummingbird.save wrote") from None
    return NetDescription.from_json(text, str(path))


def check_strangers(folder: Path, saved: NetDescription, rank: int | None) -> None:
    """Raise InputError if a folder of a saved net holds a party's weights that should not be there or be readable.

    saved: the folder's net.json. Only the file of the weights' owner may be there; and if it is, this party may be able
    to read it only as that owner. rank: this party's rank; None: there is no session, and the caller may own the
    weights.
    """
    for path in sorted(folder.glob("party-*.safetensors")):
        if path.name != weights.name_of(saved.owner):
            whose = "public weights" if saved.owner is None else f"weights of party {saved.owner}"
            hint = "each party's folder holds net.json and at most its own file"
            raise InputError(f"a file of another party: the net has {whose}", where=str(path), hint=hint)
        if rank is not None and rank != saved.owner and os.access(path, os.R_OK):
            what = f"party {rank} can read the private weights of party {saved.owner}"
            hint = f"give the other parties a folder with {NET} alone"
            raise InputError(what, where=str(path), hint=hint)
