"""Commands about a net that is named on the command line: estimate its cost, deal material for it."""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
from pathlib import Path
from typing import Any

from torch import nn

from hummingbird.errors import HummingbirdError

_DEAL = """Deal correlated randomness for a number of images in advance, into one folder per party: runs with
`hummingbird.init(store=...)` or `scripts/infer.py --store` then need no dealer online.

Trust: this process draws the secrets of all parties. Whoever holds the folders of two parties can read everything that
the parties compute with them, inputs included. So deal on a host that no party controls, hand each party its own folder
over a secure channel, and then delete this host's copies. No images are needed here, and no private weights; public
ones are: how small they are decides how many bits a layer adds. So let --model name a function that loads them.

Every slot, the material of one slice of images, is for single use. Never run a party from a copy or a restored backup
of its folder: the marks of what was used are in it."""


def estimate(args: argparse.Namespace) -> int:
    """Print rounds and bits of every layer of a net, and wire time, before anything runs."""
    from hummingbird.report import estimate_table

    print(estimate_table(_convert(args), args.input, args.parties, args.bandwidth, args.rtt))
    return 0


def deal(args: argparse.Namespace) -> int:
    """Deal material for a number of images into one folder per party, for runs without a dealer."""
    from tqdm import tqdm

    from hummingbird.kernels import heap
    from hummingbird.mpc.dealer.deal import deal as write
    from hummingbird.mpc.dealer.store import material_facts
    from hummingbird.mpc.rehearsal import rehearse

    heap.keep()
    private = _convert(args)
    plan = rehearse(private, args.input, args.parties)
    slots = -(-args.images // args.input[0])
    size = sum(request.correction_bits for request in plan.setup) + slots * sum(r.correction_bits for r in plan.batch)
    print(f"{slots} slices of {args.input[0]} images for {args.parties} parties: {size / 8e6:,.1f} MB for party 0")
    with tqdm(total=slots * args.input[0], unit="image", leave=False) as bar:
        seconds = write(
            args.out,
            setup=plan.setup,
            batch=plan.batch,
            shape=args.input,
            slots=slots,
            parties=args.parties,
            facts=material_facts(private.facts),
            progress=bar.update,
        )
    print(f"dealt in {seconds:.1f} s: {args.out}/party-0 .. party-{args.parties - 1}")
    print("hand each party its folder over a secure channel, and delete it here: two of them open everything")
    return 0


def _convert(args: argparse.Namespace) -> Any:
    """The private net that --model, --bits, --protocol and --private-weights describe."""
    from hummingbird.bits import BitConfig
    from hummingbird.convert import convert_model

    weights = 0 if args.private_weights else "public"
    # The net of the command line has no trained weights, so that the windows are for another one.
    bits = BitConfig.load(args.bits).windows if args.bits else None
    return convert_model(build(args), bits=bits, weights=weights, protocol=args.protocol)


def build(args: argparse.Namespace) -> nn.Module:
    """The net that --model and what follows it name; HummingbirdError where there is none."""
    module_name, _, function = args.model.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
        make = getattr(module, function or "get_model")
    except (ImportError, AttributeError) as error:
        raise HummingbirdError(
            f"cannot import {args.model!r}: {error}",
            where="--model",
            hint="PACKAGE.MODULE:FUNCTION, a function that returns a net",
        ) from None
    try:
        positional = [value for value in args.model_args if not isinstance(value, tuple)]
        net: nn.Module = make(*positional, **dict(value for value in args.model_args if isinstance(value, tuple)))
    except (TypeError, ValueError) as error:
        what, _, hint = str(error).partition("\nhint: ")
        hint = hint or "its arguments follow its name on the command line"
        raise HummingbirdError(f"{args.model} gives no net: {what}", where="--model", hint=hint) from None
    return net


def _argument(text: str) -> Any:
    """A number or a text; from KEY=VALUE a pair of the name and one of these."""
    key, equals, value = text.partition("=")
    named = bool(equals) and key.isidentifier()
    value = value if named else text
    plain = int(value) if value.isdigit() else value
    return (key, plain) if named else plain


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.lower().replace(",", "x").split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 8x3x32x32") from None
    if min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} holds a size below 1")
    return shape


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def add_model_arguments(sub: argparse.ArgumentParser) -> None:
    """--model and the arguments of its function, which `build` reads."""
    sub.add_argument("--model", required=True, metavar="MODULE:FUNCTION", help="a function that returns a torch net")
    sub.add_argument("model_args", nargs="*", type=_argument, help="its arguments: VALUE or KEY=VALUE")


def _add_net_arguments(sub: argparse.ArgumentParser, shape: str) -> None:
    add_model_arguments(sub)
    sub.add_argument("--input", required=True, type=_shape, metavar="BxCxHxW", help=shape)
    sub.add_argument("--bits", type=Path, help="bit configuration (JSON); default: exact comparisons")
    sub.add_argument("--parties", type=_count, default=2, help="number of parties (default 2)")
    sub.add_argument("--private-weights", action="store_true", help="the weights belong to one party")
    sub.add_argument("--protocol", default="masked", help="masked (default) or gmw")


def add_parsers(commands: Any) -> None:
    """Add `estimate` and `deal` to the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    sub = commands.add_parser(
        "estimate",
        help=estimate.__doc__,
        description=estimate.__doc__,
        formatter_class=raw,
        epilog="examples:\n"
        "  python -m hummingbird estimate --model models:get_model resnet18 10 --input 8x3x32x32\n"
        "  python -m hummingbird estimate --model torchvision.models:resnet50 --input 1x3x224x224 "
        "--bits bits.json --bandwidth 352e6 --rtt 0.02",
    )
    _add_net_arguments(sub, "shape of one batch")
    sub.add_argument("--bandwidth", type=_positive, default=10e9, metavar="BITS/S", help="per party (default 10e9)")
    sub.add_argument(
        "--rtt", type=_positive, default=0.0002, metavar="SECONDS", help="round-trip time (default 0.0002)"
    )
    sub.set_defaults(run=estimate)
    sub = commands.add_parser(
        "deal",
        help=deal.__doc__,
        description=_DEAL,
        formatter_class=raw,
        epilog="example:\n"
        "  python -m hummingbird deal --model models:get_model digits 10 --input 20x1x8x8 \\\n"
        "      --bits checkpoints/digits.bits.json --images 200 --out store\n"
        "  torchrun --standalone --nproc_per_node=2 scripts/infer.py --model digits --checkpoint "
        "checkpoints/digits.pt \\\n"
        "      --bits checkpoints/digits.bits.json --images 200 --store store",
    )
    _add_net_arguments(sub, "shape of one slice: a batch is cut into slices of it")
    sub.add_argument("--images", required=True, type=_count, help="for how many images; rounded up to whole slices")
    sub.add_argument("--out", required=True, type=Path, metavar="DIR", help="a new folder, for DIR/party-RANK")
    sub.set_defaults(run=deal)
