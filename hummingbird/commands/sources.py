"""The user's net, weights and images: functions and files named on the command line, and checkpoints of weights.

    --model my_nets:small 10 --data my_data:images split=test

calls my_nets.small(10) and my_data.images(split="test"), from modules in the current folder, or installed ones.

A checkpoint is a state dict of tensors written by torch.save and read with weights_only=True, so that a foreign file
can neither run code, nor take more memory than its size: torch.save compresses nothing. Weights in half precision are
cast to float32, and rows of 8 bits multiplied by their scales. They are loaded into a net, or an error says exactly
why they do not fit.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hummingbird import ranks
from hummingbird.errors import ConfigError, HummingbirdError, InputError, needs
from hummingbird.graph.programs import SUFFIXES, from_object, load_program

# Checkpoints of trained weights --------------------------------------------------------------------------------------

Net = TypeVar("Net", bound=nn.Module)

_SCALES = ".row_scales"  # behind the name of a tensor of 8 bits, the name of the scales of its rows
_SHOWN = 3  # names listed of each kind of misfit
_HINT = "torch.save(net.state_dict(), FILE) makes one"


def _some(kind: str, items: list[str]) -> list[str]:
    if not items:
        return []
    more = f", ... ({len(items)} in all)" if len(items) > _SHOWN else ""
    return [f"{kind}: {', '.join(items[:_SHOWN])}{more}"]


def _plain(value: torch.Tensor) -> bool:
    return value.layout == torch.strided and not (value.is_complex() or value.is_quantized or value.is_meta)


def _restored(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a state dict with rows of 8 bits multiplied by their scales, which it has no more: float32 tensors."""
    found = dict(state)
    for key, value in state.items():
        scales = state.get(key + _SCALES)
        if scales is None or value.dtype != torch.int8 or not value.ndim or scales.shape != value.shape[:1]:
            continue
        if _plain(value) and _plain(scales) and scales.is_floating_point():
            found[key] = value.float() * scales.float().view(-1, *(1,) * (value.ndim - 1))
            del found[key + _SCALES]
    return found


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
    state, own = _restored(state), model.state_dict()
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
    """Load a checkpoint, the state dict in the file `path`, into a net.

    The errors are made for users of the command line: InputError for a missing file, or one that does not fit the net.
    where: the option that names the file. hint: the error's hint for a missing file.
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
    model.load_state_dict(_restored(torch.load(io.BytesIO(content), weights_only=True)))


def weights_file(model: nn.Module, kind: torch.dtype) -> bytes:
    """Return a state dict of `model` as the content of a file, which `load_weights` reads.

    kind: how floating-point numbers are stored. torch.float32; torch.float16, half the size; or torch.int8, a quarter:
    tensors of two or more dimensions as int8 with a float32 scale for each row (its largest number is 127), the others
    as float16. Raises InputError for a value that the type cannot hold.
    """
    state: dict[str, Tensor] = {}
    for key, value in model.state_dict().items():
        value = value.cpu().contiguous()
        if kind == torch.int8 and value.is_floating_point() and value.ndim > 1:
            scales = value.abs().flatten(1).amax(1).float() / 127
            by_row = scales.clamp(min=torch.finfo(torch.float32).tiny).view(-1, *(1,) * (value.ndim - 1))
            state[key], state[key + _SCALES] = (value / by_row).round().to(torch.int8), scales
        else:
            stored = torch.float16 if kind == torch.int8 else kind
            state[key] = value.to(stored) if value.is_floating_point() else value
    large = [key.removesuffix(_SCALES) for key, value in state.items() if not torch.isfinite(value).all()]
    if large:
        raise InputError("a value is above 65504, the largest float16", where=large[0], hint="save without --half")
    # Through a file object: with a path, torch.save writes the file's name into the archive and so into its hash.
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


# Functions named on the command line ---------------------------------------------------------------------------------

_WORDS = ("MODULE:FUNCTION", "ARGUMENT")
_MODEL = "the net: a function that returns it, and its arguments, VALUE or KEY=VALUE (FUNCTION: default get_model); or "
_MODEL += (
    "a file, net.onnx, net.pt2 or net.pt (TorchScript); or hf:NAME, a net of transformers in a folder or the cache"
)


def add_model_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options --model and --weights, which `net_of` reads."""
    parser.add_argument("--model", required=True, nargs="+", metavar=_WORDS, help=_MODEL)
    text = "its trained weights, a state dict of torch.save (default: those of the function)"
    parser.add_argument("--weights", type=Path, metavar="FILE", help=text)


def add_net_arguments(
    parser: argparse.ArgumentParser, *settings: str, required: bool = True
) -> argparse._MutuallyExclusiveGroup:
    """Add the options --model and --weights, and --saved in their place, which `saved_of` reads.

    Returns the group of --model and --saved, of which only one may be given.
    settings: names, in the parsed arguments, of the command's other options that a saved net replaces. required:
    whether one of --model and --saved must be given.
    """
    group = parser.add_argument_group("net")
    source = group.add_mutually_exclusive_group(required=required)
    source.add_argument("--model", nargs="+", metavar=_WORDS, help=_MODEL)
    text = "in place of --model: a folder that `hummingbird.save` or the command `save` wrote, with windows, protocol "
    text += "and owner; needs no code of the net ({rank} is replaced by the party's rank)"
    source.add_argument("--saved", metavar="DIR", help=text)
    text = "the trained weights of --model, a state dict of torch.save (default: those of the function)"
    group.add_argument("--weights", type=Path, metavar="FILE", help=text)
    parser.set_defaults(saved_settings=("weights", *settings))
    return source


def add_aim_argument(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the option --aim; without it, `args.aim` is None. default: the aim that is then used, for the help."""
    text = "aim of the choice of tables: latency, the fewest rounds with small tables; rounds, ReLUs of narrow windows "
    text += (
        "in one round, with more bytes of the dealer; or throughput, the fewest bits of parties and dealer together "
    )
    text += (
        "(throughput:RATIO counts each bit of the dealer RATIO times); or link:RTT:BANDWIDTH, for each layer the form "
    )
    text += "of the fewest seconds, such as link:0.04:100e6; or pair, what two parties make without a dealer; "
    text += "the same at all parties and for a "
    parser.add_argument("--aim", help=f"{text}store (default: {default})")


def saved_of(args: argparse.Namespace, rank: int = 0) -> Path | None:
    """Return the folder of the saved net that --saved names, with {rank} replaced; None without the option.

    Raises ConfigError if --saved stands beside an option that the saved net replaces.
    """
    if args.saved is None:
        return None
    if given := [name for name in args.saved_settings if getattr(args, name) not in (None, False)]:
        option = "--" + given[0].replace("_", "-")
        hint = f"leave {option} out, or name the net by --model"
        raise ConfigError(f"{option} beside --saved, which brings its own", where="--saved", hint=hint)
    return Path(args.saved.replace("{rank}", str(rank)))


def add_images_argument(parser: argparse._ActionsContainer, option: str, what: str, *, required: bool = True) -> None:
    """Add an option such as --data, which `images_of` reads. what: description of images and labels, for the help."""
    text = f"{what}: a function that returns them, and its arguments"
    parser.add_argument(option, required=required, nargs="+", metavar=_WORDS, help=text)


def add_example_argument(parser: argparse._ActionsContainer) -> None:
    """Add the option --example, which `example_of` reads."""
    text = "a function that returns a batch of the net's inputs (a tensor, a tuple or a dict), for nets with several "
    text += "inputs, token numbers or flags; and its arguments"
    parser.add_argument("--example", nargs="+", metavar=_WORDS, help=text)


def example_of(args: argparse.Namespace) -> Any:
    """Return the batch of inputs that the function of --example returns: a tensor, a tuple or a dict.

    Returns None without the option. Raises HummingbirdError for a missing function.
    """
    return None if args.example is None else call(args.example, "--example", "an example")


def net_of(args: argparse.Namespace, *, weights: bool = True) -> nn.Module:
    """Return the net that --model names, in eval mode: from a function, a program's file, or transformers.

    weights: whether to load the file of --weights into it. Raises HummingbirdError for a missing function, or one that
    returns no net, and errors of `load_program`, `pretrained` and `read_weights`.
    """
    first, *more = args.model
    if first.startswith("hf:") or Path(first).suffix in SUFFIXES:
        if more:
            what = f"{more[0]!r} after {first}, which takes no arguments"
            raise ConfigError(what, where="--model", hint="arguments follow MODULE:FUNCTION only")
        net: Any = pretrained(first.removeprefix("hf:")) if first.startswith("hf:") else load_program(first)
    else:
        net = call(args.model, "--model", "net", default="get_model")
    net = from_object(net) or net
    if not isinstance(net, nn.Module):
        what = f"expected a torch.nn.Module, got {type(net).__name__}"
        raise InputError(what, where="--model", hint="name a function that returns a net")
    if weights and args.weights is not None:
        read_weights(net, args.weights, "--weights")
    return net.eval()


def pretrained(name: str) -> nn.Module:
    """Return a trained net of transformers, float32, of the class that its configuration names.

    name: a folder that save_pretrained wrote, or a name in the local cache of the Hugging Face hub. Nothing is
    downloaded, and no code of the net's own repository runs. Raises InputError for a name that is not there, or a
    configuration without a class of transformers.
    """
    where = f"--model hf:{name}"
    with needs("hub", "--model hf:NAME"):
        import transformers
    try:
        config = transformers.AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=False)
        kind = getattr(transformers, (config.architectures or [""])[0], None)
        if kind is None:
            what = (
                f"its configuration names {config.architectures}, no class of transformers {transformers.__version__}"
            )
            raise InputError(what, where=where, hint="write a function that makes the net: --model MODULE:FUNCTION")
        net = kind.from_pretrained(name, config=config, local_files_only=True, use_safetensors=True)
    except (OSError, ValueError) as error:
        what = f"neither a folder nor in the cache: {str(error).strip().partition(chr(10))[0]}"
        hint = f"fetch it once with `hf download {name}`, or save it into a folder with save_pretrained"
        raise InputError(what, where=where, hint=hint) from None
    found: nn.Module = net.float().eval()
    return found


def images_of(words: Sequence[str], option: str) -> tuple[Tensor, Tensor | None]:
    """Return images, float32 (N, ...), and labels, (N, ...) or None, from the function that an option's words name.

    Integer labels become int64. The function may return (images, labels), images alone, a data set or a DataLoader.
    Raises HummingbirdError for a missing function, or one that returns something else.
    """
    from hummingbird.window_search.images import gathered  # imports CrypTen, which he-server does not need

    found = call(words, option, "images")
    images, labels = found if isinstance(found, tuple) and len(found) == 2 else gathered(found, None)
    if not isinstance(images, Tensor) or images.ndim < 2 or not len(images) or images.is_complex():
        got = f"{tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        hint = "a tensor (N, ...), a pair of images and labels (N, ...), a data set, or a DataLoader"
        raise InputError(f"expected images, got {got}", where=option, hint=hint)
    if labels is not None:
        if not isinstance(labels, Tensor) or labels.shape[:1] != images.shape[:1] or labels.is_complex():
            got = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
            what = f"expected labels ({len(images)}, ...), got {got}"
            hint = "one label for each image: its class from 0, 0 or 1, or real numbers as the net gives them"
            raise InputError(what, where=option, hint=hint)
        labels = labels if labels.is_floating_point() else labels.long()
    return images.float(), labels


def call(words: Sequence[str], option: str, noun: str, *, default: str = "") -> Any:
    """Import and call the function that an option names; return its result.

    words: MODULE:FUNCTION, then the function's arguments, each VALUE or KEY=VALUE. option: the option, for errors.
    noun: the kind of result, for errors. default: the function's name if the first word names only a module. Raises
    HummingbirdError for a missing function, or if the function fails.
    """
    module, _, function = words[0].partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        make = getattr(importlib.import_module(module), function or default)
    except (ImportError, AttributeError, ValueError) as error:
        raise HummingbirdError(
            f"cannot import {words[0]!r}: {error}",
            where=option,
            hint=f"PACKAGE.MODULE:FUNCTION, a function that returns {'a net' if noun == 'net' else noun}",
        ) from None
    arguments = [_argument(word) for word in words[1:]]
    try:
        return make(*(value for key, value in arguments if not key), **{key: value for key, value in arguments if key})
    except (TypeError, ValueError, OSError) as error:
        what, _, hint = str(error).partition("\nhint: ")
        hint = hint or "its arguments follow its name on the command line"
        raise HummingbirdError(f"{words[0]} gives no {noun}: {what}", where=option, hint=hint) from None


def _argument(word: str) -> tuple[str, Any]:
    """Split an argument KEY=VALUE into key and value; for a VALUE alone the key is "". Digits become an integer."""
    key, equals, value = word.partition("=")
    if not (equals and key.isidentifier()):
        key, value = "", word
    return key, int(value) if value.isdigit() else value


def place(net: nn.Module, device: str) -> nn.Module:
    """Move the net to the device that --device names, where "cuda" is this rank's own GPU, and return it.

    Raises InputError for an unknown or missing device.
    """
    try:
        return net.to(ranks.device(device))
    except (RuntimeError, AssertionError) as problem:
        what = str(problem).partition("\n")[0]
        raise InputError(what, where=f"--device {device}", hint="cpu always works") from problem


def default_device() -> str:
    """Return the default of --device: "cuda" if there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"
