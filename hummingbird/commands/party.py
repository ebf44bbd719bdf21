"""Programs of a party, such as `infer` and `serve`: options of its session and of its net, and its errors.

Errors are also sent to the other parties.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.commands.sources import add_aim_argument, add_net_arguments, net_of, saved_of
from hummingbird.convert import convert_decoder, convert_model
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.graph.example_shapes import settled
from hummingbird.launching.host import may_speak
from hummingbird.lookup import LookedUp
from hummingbird.mpc.plan.builders import CUSTOM
from hummingbird.mpc.plan.decoder import PrivateDecoder
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session import launch
from hummingbird.mpc.session.lanes import environment
from hummingbird.rpc.options import add_tls, count, tls_of
from hummingbird.rpc.service import Tls
from hummingbird.saving import read_net
from hummingbird.saving.folder import description

# The net and its private form ----------------------------------------------------------------------------------------


def add_converted_arguments(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Add the options from --model to --aim, which `nets_of` reads; return the group of --model and --saved."""
    source = add_net_arguments(parser, "owner", "bits", "window", "protocol")
    text = "the party that owns private weights (default: weights are public, and every party has them)"
    parser.add_argument("--owner", type=int, metavar="RANK", help=text)
    windows = parser.add_mutually_exclusive_group()
    text = "windows per layer (docs/bit-config.md); default: exact comparisons"
    windows.add_argument("--bits", type=Path, metavar="FILE", help=text)
    windows.add_argument("--window", metavar="K:M[:Q]", help="one window for all layers, such as 20:12")
    parser.add_argument(
        "--protocol",
        help="masked (default): one opening of k bits under a mask that the dealer knows; gmw: the reduced ring",
    )
    add_aim_argument(parser, "throughput with a dealer, latency with a store, pair for what two parties make")
    return source


Arguments = tuple[BitConfig | Path | BitWindow | None, str | int, str]


def add_prompt_argument(parser: argparse._ActionsContainer, text: str) -> None:
    """Add the option --prompt, of a net that generates text. text: what --input is beside it."""
    text = f"the net generates text: convert it by convert_decoder, for prompts of up to C words; {text}"
    parser.add_argument("--prompt", type=count, metavar="C", help=text)


def decoder_of(args: argparse.Namespace, rank: int, example: Tensor) -> PrivateDecoder:
    """Return the private decoder of the net that --saved or --model names, for prompts of --prompt words.

    example: word vectors (1, places, width), of which only the shape counts. The rest is as for `nets_of`.
    """
    net, arguments = _named(args, rank)
    if isinstance(net, LookedUp):
        hint = "name a net of word vectors: clients look words up themselves"
        raise InputError("a net of private lookups generates no text", where="--prompt", hint=hint)
    return convert_decoder(net, example, args.prompt, *arguments, aim=args.aim)


def _named(args: argparse.Namespace, rank: int) -> tuple[nn.Module, Arguments]:
    """Return the net that --saved or --model names, and its windows, its owner or "public", and its protocol.

    With --saved, also sets `owner` and `protocol` in `args` to those of the saved net.
    """
    folder = saved_of(args, rank)
    if folder is not None:
        saved = description(folder)
        args.owner, args.protocol, args.model = saved.owner, saved.protocol, [str(folder)]
        return read_net(folder, saved, weights=saved.owner in (None, rank)), saved.arguments
    torch.manual_seed(0)  # a net without trained weights must be the same at every party
    net = net_of(args, weights=args.owner in (None, rank))
    args.protocol = args.protocol or "masked"
    return net, (_windows(args), "public" if args.owner is None else args.owner, args.protocol)


def nets_of(args: argparse.Namespace, rank: int, *image: Tensor) -> tuple[nn.Module, PrivateNet]:
    """Return the net that --saved or --model names, and its private form.

    With --saved, also sets `owner` and `protocol` in `args` to those of the saved net. rank: of this party. image: one
    tensor (1, ...) for each input of the net, of which only the shape counts. A net that begins with lookups
    (`LookedUp`) takes no `image`, and only its part after the lookups (`LookedUp.after`) is converted. Raises
    InputError if `image` is given for a net with lookups, or missing for a net of --model without them.
    """
    net, arguments = _named(args, rank)
    if args.saved is not None:
        return net, convert_model(net, *arguments, aim=args.aim)
    if isinstance(net, LookedUp):
        if image:
            hint = "serve it, without --input: its clients bring row numbers and weights"
            raise InputError("a net of private lookups takes no images", where="--model", hint=hint)
        return net, convert_model(net.after, *arguments, net.example(), args.aim)
    if not image:
        raise InputError("the shape of one image is needed", where="--input", hint="such as --input 3x32x32")
    if len(image) > 1:
        return net, convert_model(net, *arguments, image, args.aim)
    taken = settled(net, image[0], custom=tuple(CUSTOM))
    return net, convert_model(taken, *arguments, aim=args.aim)


def _windows(args: argparse.Namespace) -> Path | BitWindow | None:
    """Return the windows that --bits or --window describes, None without either."""
    if args.window is None:
        bits: Path | None = args.bits
        return bits
    numbers = args.window.split(":")
    if len(numbers) not in (2, 3) or not all(number.isdigit() for number in numbers):
        hint = "two or three numbers, K:M or K:M:Q, such as 20:12"
        raise InputError(f"{args.window!r} is not a window", where="--window", hint=hint)
    return BitWindow(*map(int, numbers))


# The session, and errors ---------------------------------------------------------------------------------------------


def add_session_arguments(parser: argparse.ArgumentParser, *, certificates: bool = True) -> None:
    """Add the options --lanes, --device, --dealer, --store, --store-key, --peer-* and --timeout of a session.

    certificates: whether to add --tls-* too.
    """
    group = parser.add_argument_group("session")
    group.add_argument(
        "--lanes",
        type=int,
        metavar="N",
        help="processes of each party, one for each of its GPUs (default: HUMMINGBIRD_LANES, else 1)",
    )
    group.add_argument(
        "--device", default="cpu", metavar="NAME", help="device of the shares, cpu or cuda, the same at all parties"
    )
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--store",
        metavar="DIR|URL",
        help="use material that `python -m hummingbird deal` has dealt in advance, without a dealer: this party's "
        "folder, the folder that holds party-RANK ({rank} is replaced), the folder of `deal --keep`, or an object "
        "store such as s3://bucket/prefix. Anyone who can read two parties' folders can read their secrets",
    )
    source.add_argument(
        "--dealer",
        metavar="HOST:PORT",
        help="address of the dealer of correlated randomness (`python -m hummingbird dealer`), which must not collude "
        "with any party. Default: party 0 starts one on this host. pair: no dealer, two parties make it with each "
        "other; neither may deviate from the protocol. pair:RTT:BANDWIDTH: the same in the fastest way on this link, "
        "in seconds and bits per second, such as pair:0.02:100e6; pair:silent: with far fewer bytes and more work",
    )
    text = "with an object store: this party's key file ({rank} is replaced), of `python -m hummingbird keys`"
    group.add_argument("--store-key", metavar="FILE", help=text)
    add_peer_arguments(group, certificates=certificates)


def add_peer_arguments(group: argparse._ActionsContainer, *, certificates: bool = True) -> None:
    """Add the options --peer-* and --timeout, by which a party reaches the other ones.

    certificates: whether to add --tls-* too.
    """
    if certificates:
        add_tls(
            group,
            "this party's certificate (PEM), for the name party-RANK ({rank} is replaced)",
            "certificate of the authority of all parties and the dealer (PEM)",
        )
    group.add_argument(
        "--peer-listen",
        metavar="HOST:PORT",
        help="address at which this party accepts the connections of all other parties; 0.0.0.0 and [::] mean all "
        "addresses of the host ({rank} is replaced). Default: the address that leads to MASTER_ADDR, and a free port. "
        "One direction suffices: a party that others cannot reach connects to them",
    )
    group.add_argument(
        "--peer-address",
        metavar="HOST:PORT",
        help="the address that the other parties connect to, if it differs: that of a NAT or a Kubernetes Service",
    )
    group.add_argument(
        "--timeout", type=float, default=120.0, help="longest silence of another party, seconds (default 120)"
    )


def session_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `hummingbird.init` that the options describe."""
    tls, party = tls_of(args), str(environment(args.lanes).party)
    if tls is not None:
        tls = Tls(*(Path(str(path).replace("{rank}", party)) for path in (tls.cert, tls.key, tls.ca)))
    options = {name: getattr(args, name) for name in ("lanes", "device", "dealer", "store", "store_key", "timeout")}
    for name in ("peer_listen", "peer_address"):
        value = getattr(args, name)
        options[name] = None if value is None else value.replace("{rank}", party)
    return {**options, "tls": tls}


def run_party(main: Callable[[], None]) -> None:
    """Call `main`, the program of one party, and handle its errors.

    An error is printed in two lines, sent to the other parties, and ends this process with exit code 1.
    """
    try:
        main()
        launch.uninit()
    except (HummingbirdError, ValueError, OSError) as error:
        launch.leaving()
        # Print before anything else: a launcher may end this process as soon as another party knows of the error. In
        # one write, so that parties on one terminal do not mix their lines.
        if may_speak():
            sys.stderr.write(f"[{launch.name()}] error: {_words(error)}\n")
            sys.stderr.flush()
        launch.abort(error)
        sys.exit(1)


def _words(error: Exception) -> str:
    """Return the text of an error, with where it happened and a hint."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.strerror} (at {error.filename})\nhint: is the path right, and may this user read it?"
    return str(error)
