"""Files of weights: safetensors, which hold tensors and no code. A file and its net.json are bound to each other.

The file contains the digest of its net.json, which contains the seal of the file: SHA-256 of a salt and of all tensors.
Public weights have no salt. A party's weights have a salt of 32 random bytes, in its file only: so the seal, which
every party sees, cannot confirm a guess of the weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hummingbird import records
from hummingbird.errors import InputError
from hummingbird.saving.description import NetDescription

_OWN = "hummingbird"  # one entry in the file's metadata, as entries have no order: equal nets are equal files
FORMAT, VERSION = "hummingbird-weights", "1"


def name_of(owner: int | None) -> str:
    """Return the name of the file of a net's weights. owner: the rank of their owner, None for public weights."""
    return "weights.safetensors" if owner is None else f"party-{owner}.safetensors"


def seal(tensors: Mapping[str, Tensor], salt: bytes) -> str:
    """Return a SHA-256, in hexadecimal, of the weights and a salt, by which net.json fits these weights alone.

    tensors: the weights by name; their names, types, shapes and values count. salt: random bytes, so that nobody can
    test guesses of private weights; empty for public weights. The result is the same on every machine.
    """
    digest = hashlib.sha256(b"hummingbird-weights-1" + len(salt).to_bytes(8, "little") + salt)
    for name, tensor in sorted(tensors.items()):
        head = f"{name}\0{tensor.dtype} {tuple(tensor.shape)}".encode()
        digest.update(len(head).to_bytes(8, "little") + head)
        array = tensor.detach().cpu().contiguous().reshape(-1).numpy()
        digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).data)
    return digest.hexdigest()


def write(path: Path, saved: NetDescription, tensors: Mapping[str, Tensor], salt: bytes) -> None:
    """Write a net's weights to a file that is valid only with one net.json.

    saved: the content of that net.json. tensors: the weights by name. salt: that of the weights' `seal`. The file's
    metadata has the description's digest, the owner of the weights, and the salt.
    """
    words = {"format": FORMAT, "version": VERSION, "net": saved.digest, "party": str(saved.weights), "salt": salt.hex()}
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(content, path, {_OWN: json.dumps(words)})


def read(path: Path, saved: NetDescription) -> dict[str, Tensor]:
    """Read the weights of a saved net from its file; return a dict of the tensors by name.

    saved: the content of the net.json that belongs to it. Raises InputError for a missing, incomplete, changed or
    foreign file.
    """
    again = "copy it again from where the net was saved"
    if not path.is_file():
        whose = "its public weights" if saved.owner is None else f"the private weights of party {saved.owner}"
        hint = f"{path.name} belongs to net.json" + ("" if saved.owner is None else ", at that party alone")
        raise InputError(f"the net's folder lacks {whose}", where=str(path), hint=hint)
    try:
        with safe_open(path, "pt") as file:
            words = _words(file.metadata() or {})
            _check_words(words, saved, path)
            _check_header(file, saved, path)
            tensors = {name: file.get_tensor(name).clone() for name in saved.tensors}
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        what = f"not a whole safetensors file: {str(error)[:200]}"
        raise InputError(what, where=str(path), hint=again) from None
    try:
        salt = bytes.fromhex(words.get("salt", "-"))
    except ValueError:
        salt = b"-"
    if seal(tensors, salt) != saved.seal:
        raise InputError("the weights have changed since they were saved", where=str(path), hint=again)
    return tensors


def zeros(saved: NetDescription) -> dict[str, Tensor]:
    """Return tensors of zeros, by name, for the net of a party that does not have the weights.

    saved: the content of net.json, which has the weights' types and shapes. Such a party needs no more.
    """
    return {name: torch.zeros((), dtype=x.dtype).expand(x.shape) for name, x in saved.tensors.items()}


def _words(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return what this package wrote into the metadata of a file of weights, as a dict of texts.

    metadata: of the file, by name. The result is empty if another program wrote the file. Raises ValueError for an
    entry that cannot be read.
    """
    try:
        words = records.read(metadata.get(_OWN, "{}"), records.mapping(records.anything(), 16), name="metadata")
    except InputError as error:
        raise ValueError(error.what) from None
    return {key: str(value) for key, value in words.items()}


def _check_words(words: Mapping[str, str], saved: NetDescription, path: Path) -> None:
    if words.get("format") != FORMAT:
        hint = f"hummingbird.save writes {path.name}; weights of other origin go into the net before it is saved"
        raise InputError("weights that hummingbird did not save", where=str(path), hint=hint)
    if words.get("version") != VERSION:
        what = f"saved in version {words.get('version', '')[:32]} of the format, this release reads version {VERSION}"
        raise InputError(what, where=str(path), hint="save the net again with this release")
    if words.get("party") != str(saved.weights):
        what = f"weights of {_whose(words.get('party', ''))}, and the net is for those of {_whose(str(saved.weights))}"
        raise InputError(what, where=str(path), hint="each party has its own file and no other's")
    if words.get("net") != saved.digest:
        what = f"weights of net {words.get('net', '')[:16]}, and this net.json is {saved.digest[:16]}"
        raise InputError(what, where=str(path), hint="net.json and the weights come from one call of hummingbird.save")


def _whose(party: str) -> str:
    return "all parties" if party == "public" else f"party {party[:16]}"


def _check_header(file: Any, saved: NetDescription, path: Path) -> None:
    """Raise InputError unless a file of weights has the tensors of net.json: their names, types and shapes.

    file: the opened safetensors file; no values are read. saved: the content of net.json. path: the file's name, for
    errors.
    """
    names = set(file.keys())
    wrong = sorted(names ^ set(saved.tensors))
    if wrong:
        kind = "unknown" if wrong[0] in names else "missing"
        what = f"{len(wrong)} tensor(s) more or less than in net.json; {kind}: {wrong[0][:80]!r}"
        raise InputError(what, where=str(path))
    for name, tensor in saved.tensors.items():
        part = file.get_slice(name)
        got = f"{part.get_dtype()} {tuple(part.get_shape())}"
        wanted = f"F{8 * tensor.dtype.itemsize} {tuple(tensor.shape)}"
        if got != wanted:
            raise InputError(f"{name} is {got}, net.json has {wanted}", where=str(path))
