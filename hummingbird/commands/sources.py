"""The user's net and images, returned by functions that are named on the command line.

    --model my_nets:small 10 --data my_data:images split=test

calls my_nets.small(10) and my_data.images(split="test"), from modules in the current folder, or installed ones.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird import ranks
from hummingbird.commands.checkpoint import read_weights
from hummingbird.errors import ConfigError, HummingbirdError, InputError

_WORDS = ("MODULE:FUNCTION", "ARGUMENT")


def add_model_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options --model and --weights, which `net_of` reads."""
    text = "a function that returns a torch net, and its arguments, VALUE or KEY=VALUE (FUNCTION: default get_model)"
    parser.add_argument("--model", required=True, nargs="+", metavar=_WORDS, help=text)
    text = "its trained weights, a state dict of torch.save (default: those of the function)"
    parser.add_argument("--weights", type=Path, metavar="FILE", help=text)


def add_net_arguments(parser: argparse.ArgumentParser, *settings: str, required: bool = True) -> None:
    """Add the options --model and --weights, and --saved in their place, which `saved_of` reads.

    settings: names, in the parsed arguments, of the command's other options that a saved net replaces. required:
    whether one of --model and --saved must be given.
    """
    group = parser.add_argument_group("net")
    source = group.add_mutually_exclusive_group(required=required)
    text = "a function that returns a torch net, and its arguments, VALUE or KEY=VALUE (FUNCTION: default get_model)"
    source.add_argument("--model", nargs="+", metavar=_WORDS, help=text)
    text = "in place of --model: a folder that `hummingbird.save` or the command `save` wrote, with windows, protocol "
    text += "and owner; needs no code of the net ({rank} is replaced by the party's rank)"
    source.add_argument("--saved", metavar="DIR", help=text)
    text = "the trained weights of --model, a state dict of torch.save (default: those of the function)"
    group.add_argument("--weights", type=Path, metavar="FILE", help=text)
    parser.set_defaults(saved_settings=("weights", *settings))


def add_aim_argument(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the option --aim; without it, `args.aim` is None. default: the aim that is then used, for the help."""
    text = "aim of the choice of tables: latency, the fewest rounds, or throughput, the fewest bits of parties and "
    text += "dealer together (throughput:RATIO counts each bit of the dealer RATIO times); the same at all parties and "
    text += "for a "
    parser.add_argument("--aim", help=f"{text}store (default: {default})")


def saved_of(args: argparse.Namespace, rank: int = 0) -> Path | None:
    """Return the folder of the saved net that --saved names, with {rank} replaced; None without the option.

    Raises ConfigError if --saved stands beside an option that the saved net replaces.
    """
    if args.saved is None:
        return None
    if given := [name for name in args.saved_settings if getattr(args, name)]:
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
    """Return the inputs that the function of --example returns; None without the option.

    Raises HummingbirdError for a missing function.
    """
    return None if args.example is None else call(args.example, "--example", "an example")


def net_of(args: argparse.Namespace, *, weights: bool = True) -> nn.Module:
    """Return the net from the function of --model, in eval mode.

    weights: whether to load the file of --weights into it. Raises HummingbirdError for a missing function, or one that
    returns no net, and errors of `read_weights`.
    """
    net = call(args.model, "--model", "net", default="get_model")
    if not isinstance(net, nn.Module):
        what = f"expected a torch.nn.Module, got {type(net).__name__}"
        raise InputError(what, where="--model", hint="name a function that returns a net")
    if weights and args.weights is not None:
        read_weights(net, args.weights, "--weights")
    return net.eval()


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
    """Call the function that an option's words name, and return its result. words: MODULE:FUNCTION, then its arguments.

    noun: the kind of result, for errors. default: the function's name where the words name only a module. Raises
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
