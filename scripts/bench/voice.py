"""A voice's embedding in private: 1.6 s of speech through three LSTM or GRU layers, between two parties on this host.

    python -m scripts.bench.voice --json voice.json
    python -m scripts.bench.voice --cells gru --aims throughput --within 0.005

160 frames of 40 numbers, three layers of 256 units, a linear layer with ReLU, and a division by the norm: the shape
of Resemblyzer, whose weights it takes for the LSTM, and synthetic speech, if the packages of
docs/trained-elsewhere.md are there. Otherwise, and for the GRU, weights and frames are random. Frames are multiplied
by 64, and the first weights divided by it: a quiet frame has powers of 3e-5, and the rounding of inputs to 2^-16
alone would make the embedding err by 8 %. Ranges and errors of functions are those that `hummingbird.find_rows` and
`find_errors` find on other inputs. Each run takes another input, from its shares to the opened embedding, then the
same input times 1.1, and at last one of a tenth more frames, with the ranges found for fewer. The dealer works on the
same cores meanwhile. The error is the largest one, relative to the embedding's largest number.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitConfig
from hummingbird.commands.party import run_party
from hummingbird.commands.program import machine
from hummingbird.errors import InputError
from scripts.bench.contest import Sample
from scripts.bench.link import Link, places
from scripts.bench.party import launch
from scripts.program import columns, main_of, new_parser, write_rows

MODULE, LAYERS, WIDTH, FRAMES, BANDS = "scripts.bench.voice", 3, 256, 160, 40
PACKAGES = ("resemblyzer", "espeakng_loader")
HERTZ, WINDOW, HOP = 16000, 400, 160  # of the spectrogram: samples a second, in a window, and from one to the next
KINDS: dict[str, type[nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU}
AIMS = ("rounds", "throughput")
LOUDER, LONGER, WITHIN = 1.1, 1.1, 0.01
LONGEST = round(LONGER * FRAMES)
UP = 64.0  # the frames' factor, and the divisor of the first weights
SHOWN = [
    ("net", "{cell}"),
    ("aim", "{aim}"),
    ("run", "{run}"),
    ("frames", "{frames}"),
    ("input", "x {times:g}"),
    ("s to convert", "{convert_seconds:.1f}"),
    ("s", "{seconds:.2f}"),
    ("CPU s", "{cpu_seconds:.2f}"),
    ("MB sent", "{online_megabytes:.2f}"),
    ("rounds", "{rounds}"),
    ("MB offline", "{offline_megabytes:,.1f}"),
    ("error", "{error_percent:.3f} %"),
    ("cosine", "{cosine:.6f}"),
]


class Voice(nn.Module):
    """The net: frames (N, FRAMES, BANDS) -> embeddings (N, WIDTH) of length 1."""

    def __init__(self, cell: str) -> None:
        super().__init__()
        self.lstm = KINDS[cell](BANDS, WIDTH, LAYERS, batch_first=True)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the embeddings."""
        state = self.lstm(x)[1]
        last = (state[0] if isinstance(state, tuple) else state)[-1]
        found = torch.relu(self.linear(last))
        return found / torch.norm(found, dim=1, keepdim=True)


def trained() -> bool:
    """Whether the packages with trained weights and speech are there."""
    return all(importlib.util.find_spec(name) is not None for name in PACKAGES)


def net(cell: str) -> Voice:
    """The net, with the same weights in every process, for frames times UP."""
    torch.manual_seed(0)
    made = Voice(cell)
    if cell == "lstm" and trained():
        from scripts.tools.trained_nets import folder

        known = torch.load(folder("resemblyzer") / "pretrained.pt", map_location="cpu", weights_only=True)
        made.load_state_dict({name: x for name, x in known["model_state"].items() if name in made.state_dict()})
    made.eval().requires_grad_(False).lstm.weight_ih_l0.div_(UP)
    return made


def inputs(first: int, count: int, frames: int) -> Tensor:
    """Some of the inputs, (count, frames, BANDS): speech, or random frames, times UP. frames: up to LONGEST."""
    found = _frames(first, count)
    return UP * (found[:, -FRAMES:][:, :frames] if frames <= FRAMES else found[:, -frames:])


def _frames(first: int, count: int) -> Tensor:
    if not trained():
        return torch.rand(first + count, LONGEST, BANDS, generator=torch.Generator().manual_seed(0))[first:]
    from scripts.tools.trained_nets import spoken

    waves = spoken()
    chosen = waves[(7 * torch.arange(first, first + count)) % len(waves)] / 2**15
    return spectrogram(chosen)[:, -LONGEST:]


def spectrogram(waves: Tensor) -> Tensor:
    """Powers of frequencies on the mel scale, of samples (N, n) brought to -30 dB: (N, frames, BANDS)."""
    loud = waves.pow(2).mean(1, keepdim=True).sqrt()
    window = torch.hann_window(WINDOW)
    given = {"window": window, "center": True, "pad_mode": "constant", "return_complex": True}
    powers = torch.stft(waves / loud * 10**-1.5, WINDOW, HOP, **given).abs().pow(2)
    return (_mels() @ powers).transpose(1, 2).contiguous()


def _mels() -> Tensor:
    """Triangles over the frequencies of a spectrogram, of area 1: below 1 kHz of equal widths, then of equal ratios."""
    octave = torch.tensor(6.4, dtype=torch.float64).log() / 27
    most = 15 + torch.tensor(HERTZ / 2000, dtype=torch.float64).log() / octave
    at = torch.linspace(0, float(most), BANDS + 2, dtype=torch.float64)
    ends = torch.where(at >= 15, 1000 * torch.exp(octave * (at - 15)), at * 200 / 3)[:, None]
    hertz = torch.linspace(0, HERTZ / 2, WINDOW // 2 + 1, dtype=torch.float64)
    low, middle, high = ends[:-2], ends[1:-1], ends[2:]
    inside = torch.minimum((hertz - low) / (middle - low), (high - hertz) / (high - middle)).clamp(min=0)
    return (inside * 2 / (high - low)).float()


def write_bits(path: Path, args: argparse.Namespace) -> None:
    """Find the ranges and errors of the net's functions for an aim, and write them to a file."""
    plain, known = net(args.cell), inputs(0, 24, args.frames)
    rows = hummingbird.find_rows(plain, known)
    rows = hummingbird.find_errors(plain, known[::3], rows, within=args.within, aim=args.aim)
    BitConfig().with_rows(rows).save(path)


def party(args: argparse.Namespace) -> None:
    """One party: party 0 writes a row for each run."""
    session, rows = hummingbird.init(), list[dict[str, Any]]()
    for frames in (args.frames, round(LONGER * args.frames)):
        plain, example = net(args.cell), inputs(0, 1, frames)
        started = time.perf_counter()
        private = hummingbird.convert_model(plain, bits=args.bits, example=example, aim=args.aim)
        convert_seconds = time.perf_counter() - started
        runs = [(run, times) for run in range(args.repeats) for times in (1.0, LOUDER)]
        for run, times in runs if frames == args.frames else [(0, 1.0)]:
            x = times * inputs(24 + run, 1, frames)
            shared = hummingbird.cryptensor(x if session.rank == 0 else None, src=0)
            session.channel.exchange_text("ready")
            with hummingbird.meter() as meter:
                started, cpu = time.perf_counter(), time.process_time()
                result = private(shared)
                seconds, used = time.perf_counter() - started, time.process_time() - cpu
            opened, sample, expected = result.get_plain_text(), Sample.of(seconds, meter), plain(x)
            rows.append(
                {
                    "run": run,
                    "frames": frames,
                    "times": times,
                    "convert_seconds": convert_seconds,
                    "seconds": seconds,
                    "cpu_seconds": used,
                    "online_megabytes": sample.online_bits / 8e6,
                    "offline_megabytes": sample.offline_bits / 8e6,
                    "rounds": sample.rounds,
                    "error_percent": 100 * float((opened - expected).abs().max() / expected.abs().max()),
                    "cosine": float(torch.cosine_similarity(opened.double(), expected.double()).min()),
                }
            )
    hummingbird.uninit()
    if args.result is not None and session.rank == 0:
        args.result.write_text(json.dumps(rows))


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows: of each net and aim, two for each run."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, places(Link(), 2) as where:
        for cell in args.cells:
            for aim in args.aims:
                args.cell, args.aim, args.bits = cell, aim, Path(folder) / f"{cell}-{aim}.json"
                write_bits(args.bits, args)
                words = ["--worker", "party", "--repeats", str(args.repeats), "--cell", cell, "--aim", aim]
                found = launch(where, MODULE, [*words, "--frames", str(args.frames), "--bits", str(args.bits)])
                weights = "trained" if cell == "lstm" and trained() else "random"
                facts = {"cell": cell, "weights": weights, "aim": aim, "within": args.within}
                rows += [{**facts, **row, **machine()} for row in found]
    return rows


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, MODULE)
    made.add_argument("--cells", nargs="+", choices=KINDS, default=list(KINDS), help="of the layers (default: both)")
    made.add_argument("--aims", nargs="+", choices=AIMS, default=AIMS, help="of the plan (default: both)")
    text = "of the embedding, for which the functions' errors are chosen (default: 0.01)"
    made.add_argument("--within", type=float, default=WITHIN, metavar="E", help=text)
    made.add_argument("--frames", type=int, default=FRAMES, metavar="N", help=f"the first N of {FRAMES} (default: all)")
    made.add_argument("--repeats", type=int, default=3, metavar="N", help="inputs (default 3)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    for hidden in ("--bits", "--result"):
        made.add_argument(hidden, type=Path, help=argparse.SUPPRESS)
    for hidden in ("--cell", "--aim"):
        made.add_argument(hidden, help=argparse.SUPPRESS)
    made.add_argument("--worker", choices=("party",), help=argparse.SUPPRESS)
    return made


def run(args: argparse.Namespace) -> None:
    """Measure, and print the table."""
    if args.repeats < 1:
        raise InputError("no runs", where="--repeats", hint="a whole number from 1")
    if not 2 <= args.frames <= FRAMES:
        raise InputError(f"{args.frames} frames", where="--frames", hint=f"a whole number from 2 to {FRAMES}")
    torch.set_num_threads(1)
    if args.worker:
        run_party(lambda: party(args))
        return
    rows = measured(args)
    print(columns(rows, SHOWN, left=2))
    write_rows(args.json, rows)


main = main_of(parser, run)


if __name__ == "__main__":
    sys.exit(main())
