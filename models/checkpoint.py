"""Load trained weights into a net, or say exactly why they do not fit.

A checkpoint is a state dict of tensors written by torch.save and read with weights_only=True, so that opening a file
from somebody else cannot run code, nor take more memory than its size says: torch.save compresses nothing. Weights
stored in half precision are cast to float32.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

Net = TypeVar("Net", bound=nn.Module)

_SHOWN = 3  # names listed of each kind of misfit


def _some(kind: str, items: list[str]) -> list[str]:
    if not items:
        return []
    more = f", ... ({len(items)} in all)" if len(items) > _SHOWN else ""
    return [f"{kind}: {', '.join(items[:_SHOWN])}{more}"]


def _plain(value: torch.Tensor) -> bool:
    return value.layout == torch.strided and not (value.is_complex() or value.is_quantized or value.is_meta)


def load_checkpoint(path: str | Path, model: Net) -> Net:
    """Load the state dict at `path` into `model`, as float32 on the model's device, and return the model.

    Raises FileNotFoundError when there is no such file and ValueError, leaving the model as it was, when the file is
    no plain state dict or does not fit; the message names the first keys that are missing, unexpected, mis-shaped or
    of no plain real tensor.

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
        except Exception as problem:  # the unpickler runs the file's own instructions, which may fail in any way
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
