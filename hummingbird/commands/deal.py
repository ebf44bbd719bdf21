"""`deal`: correlated randomness for a number of images, in advance, for runs without a dealer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tqdm import tqdm

from hummingbird.commands.planned import add_arguments, private_net
from hummingbird.commands.program import add_command
from hummingbird.kernels import heap
from hummingbird.mpc.dealer.deal import deal
from hummingbird.mpc.dealer.store import material_facts
from hummingbird.mpc.dry_run import dry_run
from hummingbird.prg import cipher_of
from hummingbird.wire.options import count

HELP = "Deal material for a number of images into one folder per party, for runs without a dealer."
_DESCRIPTION = """Deal correlated randomness for a number of images in advance, into one folder per party: runs with
`hummingbird.init(store=...)` or `infer --store` then need no dealer online.

Trust: this process draws the secrets of all parties. Whoever holds the folders of two parties can read everything that
the parties compute with them, inputs included. So deal on a host that no party controls, hand each party its own folder
over a secure channel, and then delete this host's copies. No images are needed here, and no private weights; public
ones are: how small they are decides how many bits a layer adds. So give them by --weights, or let --model load them.

Every slot, the material of one slice of images, is for single use. Never run a party from a copy or a restored backup
of its folder: the marks of what was used are in it.

For parties of several lanes (`infer --lanes`) each lane has a folder, seeds and slots of its own, as many as its part
of the images takes: the images are split evenly, and each lane's part is rounded up to whole slices."""
_EPILOG = """example:
  python -m hummingbird deal --model models:get_model digits 10 --weights checkpoints/digits.pt --input 20x1x8x8 \\
      --bits checkpoints/digits.bits.json --images 200 --out store
  torchrun --standalone --nproc_per_node=2 -m hummingbird infer --model models:get_model digits 10 \\
      --weights checkpoints/digits.pt --bits checkpoints/digits.bits.json --data scripts.data:load digits test \\
      --samples 200 --store store
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    sub = add_command(commands, "deal", HELP, _DESCRIPTION, _EPILOG)
    add_arguments(sub, "shape of one slice: a batch is cut into slices of it")
    sub.add_argument("--images", required=True, type=count, help="for how many images; rounded up to whole slices")
    sub.add_argument("--lanes", type=count, default=1, metavar="G", help="lanes of each party (default 1)")
    sub.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="a new folder, for DIR/party-RANK/lane-LANE"
    )
    text = "where the parties will compute: cpu (default), or cuda, for seeds that GPUs expand, and deal, too"
    sub.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help=text)
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Deal material for a number of images into one folder per party, for runs without a dealer."""
    heap.keep()
    private = private_net(args)
    plan = dry_run(private, args.input, args.parties)
    images, lanes = args.input[0], args.lanes
    slots = -(-args.images // (images * lanes))  # of every lane, also of those whose part is smaller by one image
    size = sum(request.correction_bits for request in plan.setup) + slots * sum(r.correction_bits for r in plan.batch)
    each = f" and each of {lanes} lanes" if lanes > 1 else ""
    split = f", {size / 8e6:,.1f} a lane" if lanes > 1 else ""
    amount = f"{lanes * size / 8e6:,.1f} MB for party 0{split}"
    print(f"{slots} slices of {images} images for {args.parties} parties{each}: {amount}")
    with tqdm(total=lanes * slots * images, unit="image", leave=False) as bar:
        seconds = deal(
            args.out,
            setup=plan.setup,
            batch=plan.batch,
            shape=args.input,
            slots=slots,
            parties=args.parties,
            facts=material_facts(private.facts),
            lanes=lanes,
            cipher=cipher_of(args.device),
            progress=bar.update,
        )
    print(f"dealt in {seconds:.1f} s: {args.out}/party-0 .. party-{args.parties - 1}")
    print("hand each party its folder over a secure channel, and delete it here: two of them open everything")
    return 0
