"""Checkpoints of trained weights: loads them into a net, or says exactly why they do not fit, and writes their content.

A checkpoint is a state dict of tensors written by torch.save and read with weights_only=True, so that a foreign file
can neither run code, nor take more memory than its size: torch.save compresses nothing. Weights in half precision are
cast to float32.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from hummingbird.errors import InputError

Net = TypeVar("Net", bound=nn.Module)

_SHOWN = 3  # names listed of each kind of misfit
_HINT = "torch.save(net.state_dict(), FILE) makes one"


def _some(kind: str, items: list[str]) -> list[str]:
    if not items:
        return []
    more = f", ... ({len(items)} in all)" if len(items) > _SHOWN else ""
    return [f"{kind}: {', '.join(items[:_SHOWN])}{more}"]


def _plain(value: torch.Tensor) -> bool:
    return value.layout == torch.strided and not (value.is_complex() or value.is_quantized or value.is_meta)


def load_checkpoint(path: str | Path, model: Net) -> Net:
    """Load the state dict in the file `path` into `model`, as float32 on the model's device, and return the model.

    Raises FileNotFoundError if there is no such file, and ValueError, without changing the model, if the file is no
    plain state dict or does not fit; the message names the first keys that are missing, unexpected, of another shape,
    or not of a plain real tensor.

        net = load_checkpoint("checkpoints/digits.pt", get_model("digits", 10)).eval()
    """
    with open(path, "rb") as file:
        try:
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                        raise ValueError("its archive is compressed")
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as problem:  # the unpickler runs the file's instructions, which may raise anything
            raise ValueError(f"{path} is no weights-only checkpoint: {problem}") from problem
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in state.items()
    ):
        raise ValueError(
            f"{path} holds no state dict of tensors\nhint: save it with torch.save(net.state_dict(), path)"
        )
    own = model.state_dict()
    problems = [
        *_some("missing", [key for key in own if key not in state]),
        *_some("unexpected", [key for key in state if key not in own]),
        *_some(
            "mis-shaped",
            [
                f"{key} is {tuple(state[key].shape)}, the net has {tuple(own[key].shape)}"
                for key in own
                if key in state and _plain(state[key]) and state[key].shape != own[key].shape
            ],
        ),
        *_some("of no plain real tensor", [key for key in own if key in state and not _plain(state[key])]),
    ]
    if problems:
        raise ValueError(
            f"{path} does not fit {type(model).__name__}:\n  "
            + "\n  ".join(problems)
            + "\nhint: build the net with the name, num_classes and options it was trained with"
        )
    model.float().load_state_dict(state)  # copies into the net's own tensors, so halves become float32
    return model


def read_weights(net: nn.Module, path: Path, where: str, hint: str = _HINT) -> None:
    """Load a checkpoint into a net, as `load_checkpoint` does, with errors for users of the command line.

    Raises InputError for a missing file, or one that does not fit the net. where: the option that names the file. hint:
    the error's hint for a missing file.
    """
    try:
        load_checkpoint(path, net)
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror}", where=where, hint=hint) from problem
    except ValueError as problem:
        what, _, hint = str(problem).partition("\nhint: ")
        raise InputError(what, where=where, hint=hint) from problem


def load_weights(content: bytes, model: nn.Module) -> None:
    """Load weights into a model, from the content that `weights_file` returned for a net of the same kind.

    The model's tensors keep their types.
    """
    model.load_state_dict(torch.load(io.BytesIO(content), weights_only=True))


def weights_file(model: nn.Module, *, half: bool) -> bytes:
    """Return the content of a file with the state dict of `model`.

    half: whether floating-point numbers are stored as float16, else as float32. Raises InputError for a value that the
    type cannot hold.
    """
    kind = torch.float16 if half else torch.float32
    state = {
        key: (value.to(kind) if value.is_floating_point() else value).cpu().contiguous()
        for key, value in model.state_dict().items()
    }
    large = [key for key, value in state.items() if not torch.isfinite(value).all()]
    if large:
        raise InputError("a value is above 65504, the largest float16", where=large[0], hint="save without --half")
    # Through a file object: with a path, torch.save writes the file's name into the archive and so into its hash.
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()
