"""Files of the data folder that image data sets do not need: found by --data or HUMMINGBIRD_DATA, and decompressed."""

from __future__ import annotations

import gzip
import lzma
import os
import zlib
from pathlib import Path

from hummingbird.errors import InputError

_OPEN = {".gz": gzip.open, ".xz": lzma.open}


def read_text(name: str, data: str | Path | None = None) -> str:
    """The text of a file such as wikitext-2/train.txt.xz below the data folder; .xz and .gz are decompressed.

    data: the folder; by default HUMMINGBIRD_DATA. Raises InputError without one, and for a missing or damaged file.
    """
    folder = data if data is not None else os.environ.get("HUMMINGBIRD_DATA")
    if not folder:
        hint = f"give the folder that holds {name} with --data or HUMMINGBIRD_DATA"
        raise InputError("this data set is read from a folder and none is given", where="--data", hint=hint)
    path = Path(folder) / name
    try:
        with _OPEN.get(path.suffix, open)(path, "rb") as file:
            return file.read().decode()
    except FileNotFoundError as problem:
        hint = "give the folder that holds it with --data or HUMMINGBIRD_DATA"
        raise InputError(f"there is no file {name}", where=str(folder), hint=hint) from problem
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError) as problem:
        raise InputError(f"{path.name} is damaged: {problem}", where=str(path.parent)) from problem
