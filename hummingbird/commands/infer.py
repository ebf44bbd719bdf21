"""`infer`: private inference under torchrun; party 0 owns the images, and only it learns the results.

The net is the same at every party: with public weights all have them, with --owner only that party does. Party 0 calls
the function of --data; the others learn how many images there are, and their shape.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import hummingbird
from hummingbird.bits import BitWindow
from hummingbird.commands.files import check_outputs, write_json
from hummingbird.commands.party import add_session_arguments, run_party, session_options
from hummingbird.commands.program import without_folders
from hummingbird.commands.sources import add_images_argument, add_model_arguments, images_of, net_of
from hummingbird.errors import InputError
from hummingbird.mpc import session as sessions
from hummingbird.mpc.dealer.store import StoreDealer
from hummingbird.mpc.net import PrivateNet
from hummingbird.wire.meter import Meter

HELP = "Run a net on images that no other party reads, under torchrun."
_EPILOG = """examples, with my_net.py and my_data.py in the current folder:
  two parties on this host, and a dealer that party 0 starts:
    torchrun --standalone --nproc_per_node=2 -m hummingbird infer --model my_net:net --weights net.pt \\
        --data my_data:images test --bits bits.json

  the weights are party 1's secret, and it alone needs their file:
    torchrun --standalone --nproc_per_node=2 -m hummingbird infer --model my_net:net --weights net.pt --owner 1 \\
        --data my_data:images test --json result.json

my_net.net() returns the net, my_data.images("test") images (N, ...), or a pair of images and labels (N,); a data
set or a DataLoader will do.
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    sub = commands.add_parser(
        "infer",
        help=HELP,
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = sub.add_argument_group("net and images")
    add_model_arguments(group)
    add_images_argument(group, "--data", "party 0's images, with labels if accuracy is to be told")
    group.add_argument("--samples", type=int, metavar="N", help="the first N of these images (default: all)")
    text = "the party whose secret the weights are (default: they are public, and every party has them)"
    sub.add_argument("--owner", type=int, metavar="RANK", help=text)
    text = "most images at a time, two such batches in turns (default: %(default)s)"
    sub.add_argument("--batch", type=int, default=100, metavar="N", help=text)
    windows = sub.add_mutually_exclusive_group()
    text = "windows per layer (docs/bit-config.md); default: exact comparisons"
    windows.add_argument("--bits", type=Path, metavar="FILE", help=text)
    windows.add_argument("--window", metavar="K:M", help="one window for all layers instead, e.g. 20:12")
    sub.add_argument(
        "--protocol",
        default="masked",
        help="masked (default): one opening of k bits under a mask that the dealer knows; gmw: the reduced ring",
    )
    sub.add_argument("--layers", action="store_true", help="print the meter's table layer by layer")
    sub.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    add_session_arguments(sub)
    sub.set_defaults(run=lambda args: run_party(lambda: run(args)))


def run(args: argparse.Namespace) -> None:
    """One party: meet the others, convert the net, run it on the images, and at party 0 show what it costs."""
    if args.batch < 1 or (args.samples is not None and args.samples < 1):
        raise InputError("--batch and --samples must be at least 1")
    if os.environ.get("RANK", "0") == "0":  # the party that writes
        check_outputs(args)
    session = sessions.init(**session_options(args))
    torch.manual_seed(0)  # a net that comes without weights must be the same at every party
    net = net_of(args, weights=args.owner in (None, session.rank))
    owner = "public" if args.owner is None else args.owner
    private = hummingbird.convert_model(net, _windows(args), owner, args.protocol)
    private.images_per_slice = args.batch
    images, labels = torch.empty(0), None
    if session.rank == 0:
        images, labels = images_of(args.data, "--data")
        images, labels = images[: args.samples], None if labels is None else labels[: args.samples]
    # Only party 0 has the images, so it tells the others how many there are, and their shape.
    said = session.channel.exchange_text(" ".join(map(str, images.shape)))
    total, *shape = images.shape if session.rank == 0 else map(int, said[0].split())
    private.costs((min(args.batch, total), *shape), session.parties)  # says at once if the net cannot take such images
    _check_store(private, tuple(shape), total)

    session.channel.exchange_text("ready")
    started = time.perf_counter()
    with hummingbird.meter() as meter, tqdm(total=total, unit="image", disable=session.rank != 0) as bar:
        shared = hummingbird.cryptensor(images if session.rank == 0 else None, src=0)
        logits = private(shared, progress=bar.update).get_plain_text(dst=0)
    seconds = time.perf_counter() - started
    if session.rank == 0:
        with torch.no_grad():
            # With private weights party 0 has no net to compare with, unless they are its own.
            plain = net(images) if args.owner in (None, 0) else None
        figures = _figures(args, logits, plain, labels, meter, seconds, session.parties)
        _show(figures, meter, args.layers)
        if args.json:
            write_json(args.json, figures)


def _windows(args: argparse.Namespace) -> Path | BitWindow | None:
    """The values of --bits or --window."""
    if args.window is None:
        bits: Path | None = args.bits
        return bits
    upper, _, lower = args.window.partition(":")
    if not (upper.isdigit() and lower.isdigit()):
        raise InputError(f"{args.window!r} is not a window", where="--window", hint="two numbers, K:M, such as 20:12")
    return BitWindow(int(upper), int(lower))


def _check_store(private: PrivateNet, shape: tuple[int, ...], total: int) -> None:
    """Say how much material a store holds; DealerError if it is for another net or shape, or too little."""
    store = sessions.current().dealer
    if not isinstance(store, StoreDealer):
        return
    size = store.header.shape[0]
    if store.rank == 0:
        print(f"the store holds material for {store.slots_left * size} images, in slices of {size}")
    store.admit(private.facts, [(size, *shape)] * -(-total // size))


def _figures(
    args: argparse.Namespace,
    logits: Tensor,
    plain: Tensor | None,
    labels: Tensor | None,
    meter: Meter,
    seconds: float,
    parties: int,
) -> dict[str, object]:
    """Flat figures of a run, units in the key names."""
    count, total = len(logits), meter.total
    figures: dict[str, object] = {
        "model": " ".join(without_folders(args.model)),
        "dataset": " ".join(without_folders(args.data)),
        "protocol": args.protocol,
        "parties": parties,
        "images": count,
        "batch": args.batch,
        **_accuracy("private", logits, labels),
        "seconds": seconds,
        "milliseconds_per_image": 1e3 * seconds / count,
        "online_seconds": seconds - total.offline_seconds,
        "offline_seconds": total.offline_seconds,
        "online_kilobytes_per_image": total.bits_sent / 8e3 / count,
        "offline_kilobytes_per_image": total.offline_bits / 8e3 / count,
        "rounds_per_batch": total.rounds / (-(-count // args.batch)),
        "bits_predicted_equal_bits_sent": total.bits_predicted == total.bits_sent,
    }
    if plain is not None:
        figures |= {
            **_accuracy("plain", plain, labels),
            "agreement_percent": 100 * float((_answers(plain) == _answers(logits)).double().mean()),
            "largest_logit_error": float((plain - logits).abs().max()),
            "largest_logit": float(plain.abs().max()),
        }
    return figures


def _accuracy(which: str, logits: Tensor, labels: Tensor | None) -> dict[str, float]:
    if labels is None:
        return {}
    return {f"accuracy_{which}_percent": 100 * float((_answers(logits) == labels).double().mean())}


def _answers(logits: Tensor) -> Tensor:
    """Places of the largest outputs, one for each image."""
    return logits.reshape(len(logits), -1).argmax(1)


def _show(figures: dict[str, object], meter: Meter, layers: bool) -> None:
    """Print the figures, and the meter's table."""
    for key, value in figures.items():
        print(f"{key.replace('_', ' '):32} {f'{value:.6g}' if isinstance(value, float) else value}")
    print("\n" + meter.table(every_layer=layers))
