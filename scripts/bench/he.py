"""Inference on ciphertexts, timed: nets, kernels, the plain torch path, and each optimisation switched off in turn.

    python -m scripts.bench.he --json he.json
    python -m scripts.bench.he --only kernels ablation

Every net runs in a process of its own with one thread; over a socket, client and server have one thread each. The
CryptoNets run several times, the fast and the torch path taking turns, and medians are shown. Marks stand beside the
figures, and those of nGraph-HE2 (Boemer et al., WAHC 2019: Xeon Platinum 8180, one thread for the CryptoNets, 24
threads over a local network, 56 threads for MobileNetV2).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the project's folder must be importable
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tqdm import tqdm

from hummingbird.commands.files import check_writable
from hummingbird.commands.program import device_name, end, machine
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.kernels import devices
from hummingbird.table import text_table
from scripts.bench import he_ablation, he_kernels, he_nets
from scripts.bench.party import ROOT

Rows = list[dict[str, Any]]
SECTIONS = ("nets", "torch", "sockets", "mobilenet", "kernels", "ablation")
ACTIVATIONS = ("relu", "square")
_PATHS = ("nets", "torch")  # that run the same nets
_PASSES = 2  # over the images of such a run
_MARKS = {"cryptonets-relu": 0.15, "cryptonets-square": 1.2}  # milliseconds per image
_PAPER = {
    "cryptonets-relu": 1.44,
    "cryptonets-square": 7.23,
    "mobilenetv2-0.35-96": 27.0,
    "mobilenetv2-0.35-224": 129.0,
}
_SOCKET_MARK, _SOCKET_PAPER = {"cryptonets-relu": 5000}, {"cryptonets-relu": 2959, "cryptonets-square": 1998}
_GIGABYTES_PAPER = {"mobilenetv2-0.35-96": 60, "mobilenetv2-0.35-224": 324}


def work(args: argparse.Namespace) -> Rows:
    """The rows of one job, in this process: SECTION, or SECTION:ACTIVATION."""
    devices.keep_freed_memory()  # as the service does
    section, _, activation = args.worker.partition(":")
    if section in ("kernels", "ablation"):
        module = he_kernels if section == "kernels" else he_ablation
        with tqdm(total=module.STEPS, desc=args.worker, leave=False) as bar:
            rows = module.measure(bar.update)
    elif section == "mobilenet":
        given, name = he_nets.mobilenet(args.size, args.batch), f"mobilenetv2-0.35-{args.size}"
        with tqdm(total=args.batch, desc=name, unit="image", leave=False) as bar:
            rows = [he_nets.in_process(name, given, bar.update, device=args.device)]
    else:
        given, name = he_nets.cryptonets(activation, args.data, args.images), f"cryptonets-{activation}"
        if section == "sockets":
            rows = [he_nets.over_a_socket(name, activation, given, args.repeats)]
        else:
            with tqdm(total=_PASSES * len(given.images), desc=args.worker, unit="image", leave=False) as bar:
                rows = [he_nets.in_process(name, given, bar.update, _PASSES)]
    return [{"section": section, **row, **machine()} for row in rows]


def jobs(sections: list[str], repeats: int) -> list[str]:
    """Sections to run, one process each; the torch path needs the fast one to compare with, and takes turns with it."""
    paths = [path for path in _PATHS if path in sections or "torch" in sections]
    listed = [f"{path}:{activation}" for activation in ACTIVATIONS for _ in range(repeats) for path in paths]
    for section in SECTIONS:
        if section in sections and section not in _PATHS:
            listed += [f"sockets:{a}" for a in ACTIVATIONS] if section == "sockets" else [section]
    return listed


def launch(job: str, args: argparse.Namespace) -> Rows:
    """A job in a process of its own; HummingbirdError with what it said if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if job.startswith("torch"):
        environment["HUMMINGBIRD_KERNELS"] = "torch"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "scripts.bench.he", "--worker", job, "--json", str(file)]
        for option in ("images", "batch", "size", "repeats", "device"):
            command += [f"--{option}", str(getattr(args, option))]
        command += ["--data", args.data] if args.data else []
        ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        if ended.returncode:
            raise HummingbirdError(f"the job ended with code {ended.returncode}; its error is above", where=job)
        rows: Rows = json.loads(file.read_text())
        return rows


def medians(rows: Rows) -> Rows:
    """The median of several runs of a net, on the torch path with the median of how many times longer it took than
    the run of the fast path before it.
    """
    runs: dict[tuple[str, str], Rows] = {}
    for row in rows:
        if row["section"] in _PATHS:
            runs.setdefault((row["section"], row["net"]), []).append(row)
    chosen = []
    for (path, net), repeats in runs.items():
        times = [row["milliseconds_per_image"] for row in repeats]
        row = repeats[times.index(statistics.median_low(times))]
        if path == "torch":
            ratios = [a / b["milliseconds_per_image"] for a, b in zip(times, runs["nets", net], strict=True)]
            row["times_the_fast_path"] = statistics.median(ratios)
        chosen.append(row)
    return chosen + [row for row in rows if row["section"] not in _PATHS]


def show(rows: Rows) -> None:
    """Print a table for every section."""
    for section in SECTIONS:
        here = [row for row in rows if row["section"] == section]
        if here:
            head, cells = _TABLES[section](here)
            print(f"\n{section} ({here[0]['kernels']}; {here[0]['cpu']})\n")
            print(text_table(head, cells))


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _nets(rows: Rows) -> tuple[list[str], list[list[str]]]:
    head = ["net", "ms/image", "encrypt", "server", "decrypt", "client", "mark", "paper", "kB up", "kB down", "GB"]
    head += ["predicted", "paper", "accuracy", "torch", "other", "error", "x fast"]
    cells = []
    for row in rows:
        parts = [row[f"{part}milliseconds_per_image"] for part in ("", "encrypt_", "server_", "decrypt_", "client_")]
        cells.append(
            [
                row["net"],
                *map(_number, parts),
                _number(_MARKS.get(row["net"]), 2),
                _number(_PAPER.get(row["net"]), 2),
                *(_number(row[f"kilobytes_{way}_per_image"], 1) for way in ("up", "down")),
                *(_number(row[f"{kind}_gigabytes"], 2) for kind in ("peak", "predicted")),
                _number(_GIGABYTES_PAPER.get(row["net"]), 0),
                *(f"{100 * row[key]:.2f} %" if key in row else "" for key in ("accuracy", "torch_accuracy")),
                str(row["other_answers"]),
                f"{row['largest_error']:.1e}",
                _number(row.get("times_the_fast_path"), 2),
            ]
        )
    return head, cells


def _sockets(rows: Rows) -> tuple[list[str], list[list[str]]]:
    head = ["net", "images/s", "mark", "paper", "kB up", "kB down", "accuracy", "torch", "other"]
    cells = [
        [
            row["net"],
            _number(row["images_per_second"], 0),
            _number(_SOCKET_MARK.get(row["net"]), 0),
            _number(_SOCKET_PAPER.get(row["net"]), 0),
            *(_number(row[f"kilobytes_{way}_per_image"], 1) for way in ("up", "down")),
            *(f"{100 * row[key]:.2f} %" for key in ("accuracy", "torch_accuracy")),
            str(row["other_answers"]),
        ]
        for row in rows
    ]
    return head, cells


def _kernels(rows: Rows) -> tuple[list[str], list[list[str]]]:
    head = ["kernel", "us", "mark", "SEAL", "ms", "G mul-adds/s"]
    keys = [("microseconds", 2), ("mark_microseconds", 1), ("seal_microseconds", 0)]
    keys += [("milliseconds", 2), ("g_multiply_adds_per_second", 1)]
    return head, [[row["kernel"], *(_number(row.get(key), digits) for key, digits in keys)] for row in rows]


def _ablation(rows: Rows) -> tuple[list[str], list[list[str]]]:
    head = ["optimisation", "on ms", "off ms", "off / on", "on error", "off error", "on MB", "off MB", "measured"]
    cells = [
        [
            row["optimisation"],
            *(_number(row[key], 2) for key in ("on_milliseconds", "off_milliseconds", "ratio")),
            *(f"{row[key]:.1e}" if key in row else "" for key in ("on_error", "off_error")),
            *(_number(row[key] / 1e6, 2) if key in row else "" for key in ("on_bytes", "off_bytes")),
            row["measured"],
        ]
        for row in rows
    ]
    return head, cells


_TABLES = {
    "nets": _nets,
    "torch": _nets,
    "sockets": _sockets,
    "mobilenet": _nets,
    "kernels": _kernels,
    "ablation": _ablation,
}


def run(args: argparse.Namespace) -> None:
    """Run all jobs, print the tables, write the rows."""
    for option in ("images", "batch", "repeats"):
        if getattr(args, option) < 1:
            raise InputError("at least one", where=f"--{option}")
    if args.size < 32:
        raise InputError(f"images of {args.size} pixels", where="--size", hint="at least 32")
    device_name(args.device)
    if args.device != "cpu" and args.only != ["mobilenet"]:
        hint = "give --only mobilenet"
        raise InputError("the other sections are measured on the CPU", where="--device", hint=hint)
    if args.json:
        check_writable(args.json, "--json")
    if args.worker:
        args.json.write_text(json.dumps(work(args)))
        return
    rows: Rows = []
    listed = jobs(args.only, args.repeats)
    for number, job in enumerate(listed, 1):
        print(f"{number} of {len(listed)}: {job}", file=sys.stderr)
        rows += launch(job, args)
    rows = medians(rows)
    show(rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="default: all")
    p.add_argument("--images", type=int, default=10000, help="of MNIST's test images (default: %(default)s)")
    p.add_argument("--batch", type=int, default=2048, help="images for MobileNetV2 (default: %(default)s)")
    p.add_argument("--size", type=int, default=96, help="their height and width (default: %(default)s)")
    p.add_argument("--repeats", type=int, default=3, help="runs of each of the CryptoNets (default: %(default)s)")
    p.add_argument("--device", default="cpu", help="for MobileNetV2: cpu (default) or cuda, at client and server")
    p.add_argument("--data", metavar="FOLDER", help="data folder (default: HUMMINGBIRD_DATA, else a download)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    p.add_argument("--worker", metavar="JOB", help=argparse.SUPPRESS)
    return p


def main(arguments: list[str] | None = None) -> int:
    """Run the program; 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    args = parser().parse_args(arguments)
    return end(lambda: run(args), lambda: "interrupted: nothing was written")


if __name__ == "__main__":
    sys.exit(main())
