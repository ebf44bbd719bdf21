"""`infer`: private inference as one of the parties; party 0 owns the images, and only it learns the results.

The net is the same at every party; public weights are at all parties, with --owner only that party has the weights.
Party 0 calls the function of --data; the others learn the number of images and their shape. With --lanes, every lane of
party 0 calls it and takes its part of the images, and lane 0 gathers the results; the function must return the same
images to every lane.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hummingbird
from hummingbird.channel.meter import Meter
from hummingbird.commands.output import check_outputs, write_json
from hummingbird.commands.party import (
    add_converted_arguments,
    add_session_arguments,
    nets_of,
    run_party,
    session_options,
)
from hummingbird.commands.program import add_command, without_folders
from hummingbird.commands.sources import add_images_argument, images_of
from hummingbird.errors import InputError
from hummingbird.mpc.dealer.kept_store import STORES
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session import launch
from hummingbird.mpc.session.lanes import part
from hummingbird.mpc.session.session import Session
from hummingbird.progress import progress_line
from hummingbird.window_search.answers import Answers, fitting

# The figures of a run of `infer`, which party 0 prints and --json writes: flat, with units in the key names -----------


class RunFigures(NamedTuple):
    """The results and the costs of a run of `infer`, over all lanes.

    outputs: the net's results (N, ...) for all images. plain: the results in plain torch for comparison, or None.
    labels: the images' labels, or None. meter: the counts of all lanes of party 0. seconds: from the start until the
    last lane was done. lanes: float64 (lanes, 2), for each lane its seconds, and its processor seconds summed over the
    parties. batches: how many batches all lanes ran together.
    """

    outputs: Tensor
    plain: Tensor | None
    labels: Tensor | None
    meter: Meter
    seconds: float
    lanes: Tensor
    batches: int
    parties: int


def figures(args: argparse.Namespace, run: RunFigures) -> dict[str, object]:
    """Return the figures of a run of `infer` by name, with units in the names.

    args: the command's options. run: its results and costs.
    """
    count, total = len(run.outputs), run.meter.total
    out: dict[str, object] = {
        "model": " ".join(without_folders(args.model)),
        "dataset": " ".join(without_folders(args.data)),
        "protocol": args.protocol,
        "parties": run.parties,
        "lanes": len(run.lanes),
        "images": count,
        "batch": args.batch,
        **_accuracy("private", run.outputs, run.labels),
        "seconds": run.seconds,
        "seconds_by_lane": run.lanes[:, 0].tolist(),
        "processor_seconds": float(run.lanes[:, 1].sum()),
        "milliseconds_per_image": 1e3 * run.seconds / count,
        "online_seconds": run.seconds - total.offline_seconds,
        "offline_seconds": total.offline_seconds,
        "online_kilobytes_per_image": total.bits_sent / 8e3 / count,
        "offline_kilobytes_per_image": total.offline_bits / 8e3 / count,
        "rounds_per_batch": total.rounds / run.batches,
        "bits_predicted_equal_bits_sent": total.bits_predicted == total.bits_sent,
    }
    if run.plain is not None:
        out |= {
            **_accuracy("plain", run.plain, run.labels),
            "agreement_percent": 100 * _answers(run.plain, run.labels).kept(run.outputs),
            "largest_logit_error": float((run.plain - run.outputs).abs().max()),
            "largest_logit": float(run.plain.abs().max()),
        }
    return out


def show(found: dict[str, object], meter: Meter, layers: bool) -> None:
    """Print the figures of a run, one in a line, and then the meter's table.

    found: the figures by name. layers: whether the table has a row for every layer, or only the sum.
    """
    for key, value in found.items():
        print(f"{key.replace('_', ' '):32} {_text(value)}")
    print("\n" + meter.table(every_layer=layers))


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _accuracy(which: str, outputs: Tensor, labels: Tensor | None) -> dict[str, float]:
    found = _answers(outputs, labels).accuracy(outputs)
    return {} if found is None else {f"accuracy_{which}_percent": 100 * found}


def _answers(outputs: Tensor, labels: Tensor | None) -> Answers:
    """Return an object that compares other outputs for the same images with `outputs`, and with the labels, if any."""
    return Answers(outputs, [("result", tuple(outputs.shape[1:]))], labels)


# ---------------------------------------------------------------------------------------------------------------------

HELP = "Run a net on images that no other party sees: as one party of `run`, or of torchrun on several hosts."
_EPILOG = """examples, with my_net.py and my_data.py in the current folder:
  two parties on this host, and a dealer that party 0 starts:
    python -m hummingbird run --parties 2 -- -m hummingbird infer --model my_net:net --weights net.pt \\
        --data my_data:images test --bits bits.json

  with private weights of party 1, which alone needs their file:
    python -m hummingbird run --parties 2 -- -m hummingbird infer --model my_net:net --weights net.pt --owner 1 \\
        --data my_data:images test --json result.json

  two parties of two lanes each, for parties with several GPUs (CPUs work as well):
    python -m hummingbird run --parties 2 --lanes 2 -- -m hummingbird infer --model my_net:net --weights net.pt \\
        --data my_data:images test

  a saved net with its windows, at parties without the net's code (`python -m hummingbird save`):
    python -m hummingbird run --parties 2 -- -m hummingbird infer --saved saved --data my_data:images test

my_net.net() returns the net, my_data.images("test") images (N, ...), or a pair of images and labels (N,); a data
set or a DataLoader will do.
"""


def add_parser(commands: Any) -> None:
    """Add the command `infer`, with its options, to the command line."""
    sub = add_command(commands, "infer", HELP, __doc__, _EPILOG)
    add_converted_arguments(sub)
    group = sub.add_argument_group("images")
    add_images_argument(group, "--data", "party 0's images, with labels for the accuracy")
    group.add_argument("--samples", type=int, metavar="N", help="the first N of these images (default: all)")
    text = "most images at a time in a lane; two such batches are interleaved (default: %(default)s)"
    sub.add_argument("--batch", type=int, default=100, metavar="N", help=text)
    sub.add_argument("--layers", action="store_true", help="print the meter's table layer by layer")
    sub.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    add_session_arguments(sub)
    sub.set_defaults(run=lambda args: run_party(lambda: run(args)))


def run(args: argparse.Namespace) -> None:
    """Run the program of one party: meet the others, convert the net, and run it on the images.

    Party 0 then prints the results and costs.
    """
    if args.batch < 1 or (args.samples is not None and args.samples < 1):
        raise InputError("--batch and --samples must be at least 1")
    if os.environ.get("RANK", "0") == "0":  # the party that writes
        check_outputs(args)
    session = launch.init(**session_options(args))
    images, labels = torch.empty(0), None
    if session.rank == 0:
        images, labels = images_of(args.data, "--data")
        images, labels = images[: args.samples], None if labels is None else labels[: args.samples]
    # Only party 0 has the images: it tells the others their number and shape.
    said = session.channel.exchange_text(" ".join(map(str, images.shape)))
    total, *shape = images.shape if session.rank == 0 else map(int, said[0].split())
    net, private = nets_of(args, session.rank, torch.empty(1, *shape))
    private.images_per_slice = args.batch
    parts = [part(session.place._replace(lane=lane), total) for lane in range(session.lanes)]
    counts, mine = [places.stop - places.start for places in parts], images[session.part(total)]
    # Raises at once if the net cannot take such images.
    private.costs((min(args.batch, max(counts)), *shape), session.parties)
    if labels is not None:
        fitting([result[1:] for _, result in private.results((1, *shape))[1]], total, labels)
    if session.lanes > 1 and not private.rowwise((total, *shape)):
        what = "this net computes images together, so that lanes cannot share a batch"
        raise InputError(what, where="--lanes", hint="run it with one lane")
    _check_store(private, session, tuple(shape), counts[session.lane])

    first = session.rank == 0 and session.lane == 0
    session.channel.exchange_text("ready")
    session.gathering.arrive()
    started, busy, outputs = time.perf_counter(), time.process_time(), torch.empty(0)
    with progress_line(total=total, desc="inference", unit="image", quiet=not first) as bar:
        tally = session.gathering.tally(counts)
        with hummingbird.meter() as meter:
            if counts[session.lane]:
                shared = hummingbird.cryptensor(mine if session.rank == 0 else None, src=0)
                outputs = private(shared, progress=lambda n: _advance(bar, tally.add(n))).get_plain_text(dst=0)
        busy = time.process_time() - busy
        tally.wait(lambda done: _advance(bar, done))
    seconds = time.perf_counter() - started
    busy += sum(map(float, session.channel.exchange_text(repr(busy)).values()))
    if session.rank > 0:
        return
    logits, merged = session.gather(outputs.cpu()), session.gather_meter(meter)
    by_lane = session.gather(torch.tensor([[meter.seconds, busy]], dtype=torch.float64))
    if logits is None or merged is None or by_lane is None:  # at all lanes but the first
        return
    seconds = max(seconds, float(by_lane[:, 0].max()))  # another lane may have begun slightly earlier
    with torch.no_grad():
        # With another party's private weights, party 0 has no net to compare with.
        plain = net(images) if args.owner in (None, 0) else None
    batches = sum(-(-count // args.batch) for count in counts)
    found = figures(args, RunFigures(logits, plain, labels, merged, seconds, by_lane, batches, session.parties))
    show(found, merged, args.layers)
    if args.json:
        write_json(args.json, found)


def _advance(bar: Any, done: int) -> None:
    """Advance a progress bar until it shows `done` units in all; it never goes back."""
    if done > bar.n:
        bar.update(done - bar.n)


def _check_store(private: PrivateNet, session: Session, shape: tuple[int, ...], count: int) -> None:
    """Check that the session's store, if it has one, suffices for this lane's images, and print how much it holds.

    shape: of one image. count: images of this lane. Raises DealerError if the store is for another net or shape, or
    holds too little.
    """
    store = session.dealer
    if not isinstance(store, STORES):
        return
    size, each = store.slice_shape[0], " for each lane" if session.lanes > 1 else ""
    if session.rank == 0 and session.lane == 0:
        print(f"the store holds material for {store.slots_left * size} images{each}, in slices of {size}")
    store.admit(private.facts, [(size, *shape)] * -(-count // size))
