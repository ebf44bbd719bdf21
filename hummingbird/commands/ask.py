"""`ask`: a client of `serve`, which needs neither the net nor CrypTen."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hummingbird.commands.output import check_outputs, write_json
from hummingbird.rpc import options, spans
from hummingbird.rpc.options import positive
from hummingbird.rpc.programs import run_client
from hummingbird.serving.client import Client
from hummingbird.structure import leaf

HELP = "Have the parties of `serve` run their net on images that none of them sees."
_EPILOG = """example:
  python -m hummingbird ask --parties 127.0.0.1:9100 127.0.0.1:9101 --images images.npy --labels labels.npy
a net of two inputs (row numbers and weights, where it looks rows up), and of several results, by name in one file:
  python -m hummingbird ask --parties 127.0.0.1:9100 127.0.0.1:9101 --images left.npy right.npy --out results.npz
"""


def add_parser(commands: Any) -> None:
    """Add the command `ask`, with its options, to the command line."""
    sub = commands.add_parser(
        "ask",
        help=HELP,
        description="Have the parties of `serve` run their net on images that none of them sees: each receives a share "
        "of the images, and sends a share of the results. Images are a .npy file of numbers (n, ...), normalised as in "
        "training.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = sub.add_mutually_exclusive_group(required=True)
    text = "every party's HOST:PORT or unix:PATH, in any order"
    where.add_argument("--parties", nargs="+", metavar="ADDRESS", help=text)
    text = "file of the groups of parties that serve this net: a line of addresses for each; requests go to those with "
    where.add_argument("--groups", type=Path, metavar="FILE", help=text + "little work")
    text = "which of the service's models: NAME@VERSION, or NAME for its newest version (default: the only one)"
    sub.add_argument("--model", default="", metavar="NAME", help=text)
    options.add_images(sub, "results", several=True)
    sub.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    text = "longest wait for the answer to a request, seconds (default: %(default)s)"
    sub.add_argument("--timeout", type=positive, default=60.0, help=text)
    text = "record spans of requests, for OpenTelemetry: where they go, its own variables and launcher say"
    sub.add_argument("--trace", action="store_true", help=text)
    options.add_caller(sub)
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Send the images to the parties, and write the results; print figures, and the accuracy if there are labels.

    Returns the exit code 0.
    """
    check_outputs(args)
    if args.trace:
        spans.enable()
    given, labels = options.inputs_of(args, args.images)
    count = len(given[0])
    measured: dict[str, Any] = {}

    def ask(client: Client, progress: Callable[..., Any]) -> Any:
        # Row numbers of a lookup stay integers; only the first input may hold row numbers.
        inputs = [x if client.service.lookups and not place else x.float() for place, x in enumerate(given)]
        return client(*inputs, progress=progress)

    def figures(client: Client, seconds: float) -> list[str]:
        parties, up, down = client.service.parties, client.sent_bytes / count, client.received_bytes / count
        measured.update(images=count, parties=parties, seconds=seconds)
        measured.update(bytes_up_per_image=up, bytes_down_per_image=down)
        rate = f"{count} images in {seconds:.2f} s, {count / seconds:,.1f} images/s"
        return [f"{rate}; {up / 1e3:.2f} kB up and {down / 1e3:.2f} kB down per image, {parties} parties"]

    results, _ = run_client(
        args,
        _client(args),
        count,
        labels,
        names=lambda client: [part.name for part in client.service.outputs],
        ask=ask,
        figures=figures,
    )
    if labels is not None:
        right = int((options.decided(leaf(results)) == labels).sum())
        measured["accuracy_percent"] = 100 * right / len(labels)
    if args.json is not None:
        write_json(args.json, measured)
    return 0


def _client(args: argparse.Namespace) -> Client:
    how = {"timeout": args.timeout, "model": args.model, **options.caller_of(args)}
    return Client(args.parties, **how) if args.groups is None else Client.from_file(args.groups, **how)
