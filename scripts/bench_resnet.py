"""ResNet inference end to end: CrypTen as shipped against the reduced ring, two processes on this host.

    python -m scripts.bench_resnet --batch 8 --json resnet.json

The net is the paper's ResNet-18 for 32x32 images (average pooling after the stem, 188,416 ReLUs per image), with
random weights and with weights trained here on scikit-learn's digits (scaled to 32x32, in three channels), so that
nothing has to be downloaded.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the project's folder must be importable
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from hummingbird.bits import BitWindow
from hummingbird.table import text_table
from models import MODELS, get_model, load_checkpoint
from scripts.data import load
from scripts.party import machine, run_party, torchrun


def images(split: str) -> tuple[Tensor, Tensor]:
    """The digits as 3x32x32 images, normalised."""
    x, y = load("digits", split)
    return F.interpolate(x, size=32, mode="bilinear", align_corners=False).expand(-1, 3, -1, -1).contiguous(), y


def train(name: str, epochs: int, path: Path) -> None:
    """A few epochs on the digits: trained weights with trained statistics, in well under a minute."""
    torch.manual_seed(0)
    net = get_model(name, 10)
    x, y = images("train")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net.train()
    for _ in range(epochs):
        for index in tqdm(torch.randperm(len(x)).split(64), desc="training", unit="batch", leave=False):
            loss = F.cross_entropy(net(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.save(net.state_dict(), path)


def build(args: argparse.Namespace) -> torch.nn.Module:
    """The same net at every party; random weights get sensible batch-norm statistics from one pass over images."""
    torch.manual_seed(0)
    net = get_model(args.model, 10)
    if args.checkpoint:
        load_checkpoint(args.checkpoint, net)
    else:
        with torch.no_grad():
            net.train()(images("train")[0][:32])
    return net.eval()


def finish(args: argparse.Namespace, figures: dict[str, Any], logits: Tensor, plain: Tensor) -> None:
    """Add the errors, and write one row."""
    figures |= {
        "largest_logit_error_percent": 100 * float((logits - plain).abs().max() / plain.abs().max()),
        "agreement_percent": 100 * float((logits.argmax(1) == plain.argmax(1)).float().mean()),
    }
    args.json.write_text(json.dumps(figures))


def crypten_worker(args: argparse.Namespace) -> None:
    """One party of CrypTen as shipped."""
    from hummingbird import graph
    from hummingbird.mpc._crypten import crypten
    from scripts.crypten_baseline import infer, start

    rank, counter = start()
    net = build(args)
    steps, x = graph.trace(net), images("test")[0][: args.batch]
    with crypten.no_grad():
        shared = crypten.cryptensor(x, src=0)
        for _ in range(2):  # the first pass warms up
            crypten.communicator.get().barrier()
            counter.rounds = counter.bits = 0
            counter.provider_seconds = 0.0
            started = time.perf_counter()
            logits = infer(steps, shared).get_plain_text()
            seconds = time.perf_counter() - started
    if rank == 0:
        figures = {
            "protocol": "CrypTen 0.4.1",
            "window": "[64:0)",
            "seconds_per_image": seconds / args.batch,
            "online_seconds_per_image": (seconds - counter.provider_seconds) / args.batch,
            "offline_seconds_per_image": counter.provider_seconds / args.batch,
            "online_megabytes_per_image": counter.bits / 8e6 / args.batch,
            "offline_megabytes_per_image": None,
            "rounds": counter.rounds,
        }
        with torch.no_grad():
            finish(args, figures, logits, net(x))


def gmw_worker(args: argparse.Namespace) -> None:
    """One party of the reduced ring."""
    import hummingbird
    from hummingbird.mpc import session as sessions

    session = sessions.init()
    torch.set_num_threads(1)
    net = build(args)
    k, _, m = args.window.partition(":")
    window = BitWindow(int(k), int(m))
    private = hummingbird.convert_model(net, window)
    x = images("test")[0][: args.batch]
    shared = hummingbird.cryptensor(x if session.rank == 0 else None, src=0)
    for _ in range(2):
        session.channel.exchange_text("ready")
        with hummingbird.meter() as meter:
            started = time.perf_counter()
            logits = private(shared).get_plain_text()
            seconds = time.perf_counter() - started
    if session.rank == 0:
        total = meter.total
        assert total.bits_sent == total.bits_predicted, "the meter and cost.py differ"
        figures = {
            "protocol": "gmw",
            "window": str(window),
            "seconds_per_image": seconds / args.batch,
            "online_seconds_per_image": (seconds - total.offline_seconds) / args.batch,
            "offline_seconds_per_image": total.offline_seconds / args.batch,
            "online_megabytes_per_image": total.bits_sent / 8e6 / args.batch,
            "offline_megabytes_per_image": total.offline_bits / 8e6 / args.batch,
            "rounds": total.rounds,
        }
        with torch.no_grad():
            finish(args, figures, logits, net(x))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--model", choices=[name for name in sorted(MODELS) if name.startswith("resnet")], default="resnet18"
    )
    p.add_argument("--batch", type=int, default=8, help="images at once (default 8)")
    p.add_argument("--windows", nargs="+", default=["64:0", "24:0", "20:12"], metavar="K:M", help="windows to measure")
    p.add_argument("--weights", nargs="+", choices=("random", "trained"), default=["random", "trained"])
    p.add_argument("--epochs", type=int, default=2, help="of training on the digits (default 2)")
    p.add_argument("--json", type=Path, help="write the rows to a file")
    p.add_argument("--checkpoint", type=Path, help=argparse.SUPPRESS)
    p.add_argument("--window", help=argparse.SUPPRESS)
    p.add_argument("--worker", choices=("crypten", "gmw"), help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.worker == "crypten":
        return crypten_worker(args)
    if args.worker == "gmw":
        return run_party(lambda: gmw_worker(args))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        trained = Path(folder) / "trained.pt"
        if "trained" in args.weights:
            train(args.model, args.epochs, trained)
        runs = [(weights, w) for weights in args.weights for w in ("crypten", *args.windows)]
        for weights, what in tqdm(runs, unit="run", leave=False):
            options = ["--model", args.model, "--batch", str(args.batch)]
            options += ["--worker", "crypten"] if what == "crypten" else ["--worker", "gmw", "--window", what]
            options += ["--checkpoint", str(trained)] if weights == "trained" else []
            rows.append({"weights": weights, **torchrun(2, "scripts.bench_resnet", options)})
    for row in rows:
        baseline = next(r for r in rows if r["weights"] == row["weights"])
        row["speedup_total"] = baseline["seconds_per_image"] / row["seconds_per_image"]
        row["fewer_online_bytes"] = baseline["online_megabytes_per_image"] / row["online_megabytes_per_image"]
        row |= {"model": args.model, "batch": args.batch, **machine()}
    head = (
        "weights",
        "protocol",
        "window",
        "s/image",
        "online s",
        "offline s",
        "MB sent",
        "offline MB",
        "rounds",
        "logit error",
        "agree",
        "speed",
        "bytes",
    )
    cells = [
        (
            r["weights"],
            r["protocol"],
            r["window"],
            f"{r['seconds_per_image']:.3f}",
            f"{r['online_seconds_per_image']:.3f}",
            f"{r['offline_seconds_per_image']:.3f}",
            f"{r['online_megabytes_per_image']:.2f}",
            "-" if r["offline_megabytes_per_image"] is None else f"{r['offline_megabytes_per_image']:.2f}",
            f"{r['rounds']}",
            f"{r['largest_logit_error_percent']:.3f} %",
            f"{r['agreement_percent']:.0f} %",
            f"{r['speedup_total']:.1f}x",
            f"{r['fewer_online_bytes']:.1f}x",
        )
        for r in rows
    ]
    print(f"{args.model}, batch {args.batch}, 2 parties on loopback; per image and party\n")
    print("logit error: in percent of the largest logit; agree: images with the same answer as in plain torch\n")
    print(text_table(head, cells, left=3))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
