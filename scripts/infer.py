"""Private inference under torchrun: party 0 owns the images, and only it learns the logits."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

if not __package__:  # run as a file, `torchrun scripts/infer.py`: the project's folder must be importable
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from tqdm import tqdm

import hummingbird
from hummingbird.errors import InputError
from hummingbird.mpc import launch
from hummingbird.mpc import session as sessions
from hummingbird.mpc.dealer.store import StoreDealer
from hummingbird.mpc.net import PrivateNet
from hummingbird.mpc.protocols.registry import PROTOCOLS
from hummingbird.wire.meter import Meter
from models import MODELS, get_model, load_checkpoint
from scripts.data import DATASETS, load
from scripts.files import check_outputs
from scripts.party import add_session_arguments, run_party, session_options


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="torchrun --standalone --nproc_per_node=2 scripts/infer.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  torchrun --standalone --nproc_per_node=2 scripts/infer.py --model digits \\\n"
        "      --checkpoint checkpoints/digits.pt\n"
        "  torchrun --standalone --nproc_per_node=2 scripts/infer.py --model digits \\\n"
        "      --checkpoint checkpoints/digits.pt --images 200 --store DIR   # of `python -m hummingbird deal`\n"
        "  torchrun --standalone --nproc_per_node=3 scripts/infer.py --model digits \\\n"
        "      --checkpoint checkpoints/digits.pt --bits checkpoints/digits.bits.json --weights 1 --json result.json",
    )
    p.add_argument("--model", required=True, choices=sorted(MODELS), help="a net of models/")
    p.add_argument(
        "--checkpoint",
        type=Path,
        help="its trained weights; with --weights RANK only that party needs the file. Without: random ones",
    )
    p.add_argument(
        "--dataset", choices=sorted(DATASETS), default="digits", help="what party 0's images are (default digits)"
    )
    p.add_argument("--data", type=Path, help="folder of the data sets (or HUMMINGBIRD_DATA); party 0 only")
    p.add_argument("--images", type=int, help="how many test images (default: all)")
    p.add_argument("--batch", type=int, default=100, help="most images at a time, two such batches in turns (100)")
    p.add_argument("--bits", type=Path, help="windows per layer (docs/bit-config.md); default: exact comparisons")
    p.add_argument("--window", metavar="K:M", help="one window for all layers instead, e.g. 20:12")
    p.add_argument(
        "--weights", default="public", help='"public" (default), or the rank of the party that owns the weights'
    )
    p.add_argument(
        "--protocol",
        default=PROTOCOLS[0],
        help="masked (default): one opening of k bits under a mask that the dealer knows; gmw: the reduced ring",
    )
    p.add_argument("--layers", action="store_true", help="print the meter's table layer by layer")
    p.add_argument("--json", type=Path, help="write the figures to a file")
    add_session_arguments(p)
    return p


def windows(args: argparse.Namespace) -> Path | hummingbird.BitWindow | None:
    """--bits or --window."""
    if args.window is None:
        return args.bits
    upper, _, lower = args.window.partition(":")
    if not (upper.isdigit() and lower.isdigit()):
        raise InputError(f"{args.window!r} is not a window", where="--window", hint="two numbers, K:M, such as 20:12")
    return hummingbird.BitWindow(int(upper), int(lower))


def main() -> None:
    args = parser().parse_args()
    if args.batch < 1 or (args.images is not None and args.images < 1):
        raise InputError("--batch and --images must be at least 1")
    if os.environ.get("RANK", "0") == "0":  # the party that writes
        check_outputs(args)
    session = launch.init(**session_options(args))
    owner = int(args.weights) if args.weights.isdigit() else None
    data = DATASETS[args.dataset]
    torch.manual_seed(0)  # random weights must be the same at every party
    net = get_model(args.model, data.classes).eval()
    if args.checkpoint is not None and owner in (None, session.rank):
        load_checkpoint(args.checkpoint, net)
    private = hummingbird.convert_model(net, windows(args), args.weights if owner is None else owner, args.protocol)
    private.images_per_slice = args.batch
    private.costs((args.batch, *data.shape), session.parties)  # says at once if the net cannot take such images
    images = labels = torch.empty(0)
    if session.rank == 0:
        images, labels = load(args.dataset, "test", args.data)
        images, labels = images[: args.images], labels[: args.images]
    # Only party 0 has the data, so it tells the others how much there is.
    said = session.channel.exchange_text(str(len(images)))
    total = len(images) if session.rank == 0 else int(said[0])

    check_store(private, data.shape, total)

    session.channel.exchange_text("ready")
    started = time.perf_counter()
    with hummingbird.meter() as meter, tqdm(total=total, unit="image", disable=session.rank != 0) as bar:
        shared = hummingbird.cryptensor(images if session.rank == 0 else None, src=0)
        logits = private(shared, progress=bar.update).get_plain_text(dst=0)
    seconds = time.perf_counter() - started
    if session.rank == 0:
        with torch.no_grad():
            # With private weights party 0 has no net to compare with, unless they are its own.
            plain = net(images) if owner in (None, 0) else None
        figures = summary(args, logits, plain, labels, meter, seconds, session.parties)
        show(figures, meter, args.layers)
        if args.json:
            args.json.write_text(json.dumps(figures, indent=2) + "\n")


def check_store(private: PrivateNet, shape: tuple[int, ...], total: int) -> None:
    """Say how much material a store holds; DealerError if it is for another net or shape, or too little."""
    store = sessions.current().dealer
    if not isinstance(store, StoreDealer):
        return
    size = store.header.shape[0]
    if store.rank == 0:
        print(f"the store holds material for {store.slots_left * size} images, in slices of {size}")
    store.admit(private.facts, [(size, *shape)] * -(-total // size))


def summary(
    args: argparse.Namespace,
    logits: torch.Tensor,
    plain: torch.Tensor | None,
    labels: torch.Tensor,
    meter: Meter,
    seconds: float,
    parties: int,
) -> dict[str, object]:
    """Flat figures of a run, units in the key names."""
    count, total = len(logits), meter.total
    figures: dict[str, object] = {
        "model": args.model,
        "dataset": args.dataset,
        "protocol": args.protocol,
        "parties": parties,
        "images": count,
        "batch": args.batch,
        "accuracy_private_percent": 100 * float((logits.argmax(1) == labels).double().mean()),
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
            "accuracy_plain_percent": 100 * float((plain.argmax(1) == labels).double().mean()),
            "agreement_percent": 100 * float((plain.argmax(1) == logits.argmax(1)).double().mean()),
            "largest_logit_error": float((plain - logits).abs().max()),
            "largest_logit": float(plain.abs().max()),
        }
    return figures


def show(figures: dict[str, object], meter: Meter, layers: bool) -> None:
    """Print the figures, and the meter's table."""
    for key, value in figures.items():
        print(f"{key.replace('_', ' '):32} {f'{value:.6g}' if isinstance(value, float) else value}")
    print("\n" + meter.table(every_layer=layers))


if __name__ == "__main__":
    run_party(main)
