"""A net and images that functions of the user's own return, named on the command line.

    --model my_nets:small 10 --data my_data:images split=test

calls my_nets.small(10) and my_data.images(split="test"), of modules in the current folder or installed.
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
    """--model and --weights, which `net_of` reads."""
    text = "a function that returns a torch net, and its arguments, VALUE or KEY=VALUE (FUNCTION: default get_model)"
    parser.add_argument("--model", required=True, nargs="+", metavar=_WORDS, help=text)
    text = "its trained weights, a state dict of torch.save (default: those that the function gives it)"
    parser.add_argument("--weights", type=Path, metavar="FILE", help=text)


def add_net_arguments(parser: argparse.ArgumentParser, *settings: str, required: bool = True) -> None:
    """--model and --weights, or --saved in their place, which `saved_of` reads.

    settings: the command's other options that a saved net brings with it, as their names in the parsed arguments.
    """
    group = parser.add_argument_group("net")
    source = group.add_mutually_exclusive_group(required=required)
    text = "a function that returns a torch net, and its arguments, VALUE or KEY=VALUE (FUNCTION: default get_model)"
    source.add_argument("--model", nargs="+", metavar=_WORDS, help=text)
    text = (
        "in place of these: a folder that `hummingbird.save` or the command `save` wrote, with its windows, protocol "
    )
    text += "and owner; it needs no code of the net ({rank} is replaced by the party's)"
    source.add_argument("--saved", metavar="DIR", help=text)
    text = "the weights of --model, a state dict of torch.save (default: those that the function gives it)"
    group.add_argument("--weights", type=Path, metavar="FILE", help=text)
    parser.set_defaults(saved_settings=("weights", *settings))


def add_aim_argument(parser: argparse.ArgumentParser, default: str) -> None:
    """--aim, None where it is not given; default: what is then taken."""
    text = (
        "what tables are chosen for: latency, the fewest rounds, or throughput, the fewest bits of parties and dealer "
    )
    text += "together (throughput:RATIO: a bit of the dealer counts RATIO times); the same at all parties and for a "
    parser.add_argument("--aim", help=f"{text}store (default: {default})")


def saved_of(args: argparse.Namespace, rank: int = 0) -> Path | None:
    """The folder that --saved names for a party, None without; ConfigError beside options that it brings with it."""
    if args.saved is None:
        return None
    if given := [name for name in args.saved_settings if getattr(args, name)]:
        option = "--" + given[0].replace("_", "-")
        hint = f"leave {option} out, or name the net by --model"
        raise ConfigError(f"{option} beside --saved, which brings its own", where="--saved", hint=hint)
    return Path(args.saved.replace("{rank}", str(rank)))


def add_images_argument(parser: argparse._ActionsContainer, option: str, what: str, *, required: bool = True) -> None:
    """An option such as --data, which `images_of` reads; what: the images that are meant, and what labels are for."""
    text = f"{what}: a function that returns them, and its arguments"
    parser.add_argument(option, required=required, nargs="+", metavar=_WORDS, help=text)


def add_example_argument(parser: argparse._ActionsContainer) -> None:
    """--example, which `example_of` reads."""
    text = (
        "a function that returns a batch of the net's inputs, a tensor, a tuple or a dict, for nets that take several,"
    )
    text += " token numbers or flags; and its arguments"
    parser.add_argument("--example", nargs="+", metavar=_WORDS, help=text)


def example_of(args: argparse.Namespace) -> Any:
    """The inputs that --example names, None without. Raises HummingbirdError where there is no such function."""
    return None if args.example is None else call(args.example, "--example", "an example")


def net_of(args: argparse.Namespace, *, weights: bool = True) -> nn.Module:
    """The net that --model names, in eval mode, with the weights of --weights unless `weights` is false.

    Raises HummingbirdError where there is no such function, or it gives no net; errors of `read_weights`.
    """
    net = call(args.model, "--model", "net", default="get_model")
    if not isinstance(net, nn.Module):
        what = f"expected a torch.nn.Module, got {type(net).__name__}"
        raise InputError(what, where="--model", hint="name a function that returns a net")
    if weights and args.weights is not None:
        read_weights(net, args.weights, "--weights")
    return net.eval()


def images_of(words: Sequence[str], option: str) -> tuple[Tensor, Tensor | None]:
    """Images float32 (N, ...) and labels (N, ...), None without, of the function that the words of an option name.

    Labels that are whole numbers are int64. It may return (images, labels), images alone, a data set or a DataLoader.
    Raises HummingbirdError where there is no such function, or it gives none of these.
    """
    from hummingbird.window_search.images import gathered  # needs CrypTen, which he-server does without

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
    """The result of the function that the words of an option name: MODULE:FUNCTION, then its arguments."""
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
    """Name, "" without one, and value of KEY=VALUE or VALUE; digits are a number."""
    key, equals, value = word.partition("=")
    if not (equals and key.isidentifier()):
        key, value = "", word
    return key, int(value) if value.isdigit() else value


def place(net: nn.Module, device: str) -> nn.Module:
    """The net on --device, of several GPUs on this rank's; InputError for one unknown to torch, or not there."""
    try:
        return net.to(ranks.device(device))
    except (RuntimeError, AssertionError) as problem:
        what = str(problem).partition("\n")[0]
        raise InputError(what, where=f"--device {device}", hint="cpu always works") from problem


def default_device() -> str:
    """A GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"
