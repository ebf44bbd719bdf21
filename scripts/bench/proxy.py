"""Impala's setting, timed: a user without a store asks a proxy for slots and the model's server for answers.

    python -m scripts.bench.proxy --json proxy.json

`gc-server` and `gc-proxy` are programs of one thread on this host, and the user is this process. A slot lies ready at
the proxy before each image. "shares" sends the image under a mask from the proxy, "switched" sends it encrypted.
Accuracy is that of the images asked, each once.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from hummingbird.commands.output import check_outputs
from hummingbird.commands.program import machine
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.hybrid.user import ProxiedNet
from hummingbird.hybrid.users import INPUTS
from hummingbird.progress import progress_line
from scripts.bench.hybrid_nets import SHIPPED, Case
from scripts.bench.hybrid_rows import Row
from scripts.bench.party import serving
from scripts.program import ROOT, add_json, columns, main_of, new_parser, write_rows
from scripts.train.data import DATASETS, load

SLOTS = 2  # that the proxy keeps: one for the next image while another is dealt
_READY = 600.0  # seconds for the proxy to hold its slots
_SHOWN = (
    ("net", "{net}"),
    ("input", "{input}"),
    ("right", "{right} of {images}"),
    ("s", "{seconds:.3f}"),
    ("user's CPU s", "{user_cpu_seconds:.4f}"),
    *(
        (f"kB {when}", lambda row, when=when: f"{1e3 * row[f'megabytes_{when}']:,.1f}")
        for when in ("sent", "received", "once")
    ),
)


def parser() -> argparse.ArgumentParser:
    p = new_parser(__doc__)
    names = [case.model for case in SHIPPED]
    p.add_argument("--nets", nargs="+", choices=names, default=names, help="default: all")
    p.add_argument("--images", type=int, default=20, help="of each net and input (default: %(default)s)")
    p.add_argument("--data", metavar="FOLDER", help="data folder (default: HUMMINGBIRD_DATA, else a download)")
    add_json(p)
    return p


def measured(case: Case, count: int, data: str | None) -> Iterator[Row]:
    """Yield a row for each way to send images: the medians over `count` images of the test split."""
    images, labels = (x[:count] for x in load(case.dataset, "test", data))
    weights = ROOT / "checkpoints" / case.weights
    shape = "x".join(map(str, DATASETS[case.dataset].shape))
    with tempfile.TemporaryDirectory(prefix="hb") as name:
        folder = Path(name)
        server, proxy = (f"unix:{folder / who}.sock" for who in ("server", "proxy"))
        model = ["models:trained", case.model, str(DATASETS[case.dataset].classes), str(weights)]
        words = ["gc-server", "--model", *model, "--input", shape, "--bits", str(ROOT / "checkpoints" / case.bits)]
        words += ["--store", str(folder / "server"), "--listen", server]
        asked = ["gc-proxy", "--server", server, "--store", str(folder / "proxy"), "--slots", str(SLOTS)]
        asked += ["--listen", proxy]
        with serving(words, ready="gc-server listening on "), serving(asked, ready="gc-proxy listening on "):
            for kind in INPUTS:
                with ProxiedNet(server, proxy, input=kind) as net:
                    yield {"net": case.model, "input": kind, **_asked(net, folder / "proxy", images, labels)}


def _asked(net: ProxiedNet, store: Path, images: torch.Tensor, labels: torch.Tensor) -> Row:
    seconds, own, right = [], [], 0
    for image, label in zip(images, labels, strict=True):
        _wait(store)
        started, used = time.perf_counter(), time.process_time()
        logits = net(image[None])
        seconds.append(time.perf_counter() - started)
        own.append(time.process_time() - used)
        right += int(logits.argmax(1).item() == int(label))
    received = sum(size for name, size in net.online.items() if name.endswith("answer"))
    return {
        "images": len(images),
        "right": right,
        "seconds": statistics.median(seconds),
        "user_cpu_seconds": statistics.median(own),
        "megabytes_sent": (net.online.total() - received) / len(images) / 1e6,
        "megabytes_received": received / len(images) / 1e6,
        "megabytes_once": net.once.total() / 1e6,
    }


def _wait(store: Path) -> None:
    """Wait until the proxy holds all its slots, so that nothing else runs beside the next image."""
    deadline = time.monotonic() + _READY
    while len(list(store.rglob("slot-*"))) < SLOTS:
        if time.monotonic() > deadline:
            raise HummingbirdError(f"the proxy did not hold {SLOTS} slots within {_READY:.0f} s", where=str(store))
        time.sleep(0.05)
    time.sleep(0.2)  # a slot's file is there shortly before its dealing has ended


def run(args: argparse.Namespace) -> None:
    """Measure the nets, print the table, write the rows."""
    if args.images < 1:
        raise InputError("at least one", where="--images")
    check_outputs(args)
    torch.set_num_threads(1)
    cases = [case for case in SHIPPED if case.model in args.nets]
    rows = [
        row for case in progress_line(cases, desc="proxy", unit="net") for row in measured(case, args.images, args.data)
    ]
    print(columns(rows, _SHOWN, 2))
    write_rows(args.json, [{**row, **machine()} for row in rows])


main = main_of(parser, run)

if __name__ == "__main__":
    main()
