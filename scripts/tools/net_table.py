"""Forty nets in private: how far their results are from torch's, what they cost, and why others are refused.

    python -m scripts.tools.net_table --out docs/nets.md --json nets.json
    python -m scripts.tools.net_table --nets resnet18 bert_tiny --sources pt2 onnx

The nets are those of scripts/tools/net_catalogue.py: torchvision, timm, Hugging Face's transformers, segmentation and
text, with random weights. A net of random weights has dead or exploding activations until its batch
norms know the statistics of their inputs: one pass in which they normalise by the batch sets them. Here on 32 images:
Tiny-ImageNet's validation set from --data or HUMMINGBIRD_DATA, else random images. Then some go through private
inference as `convert_model(net)` does it by default, exact comparisons and public weights, with both parties' own
code in one process (`simulate(mode="exact")`). Each net has a process of its own, so that memory is bounded by the
largest one; nets that need more than --memory are priced only. Each net runs as a torch module, as a .pt2 file and as
an ONNX file, both exported by torch and read by `hummingbird.load_program`. Rows are kept in the --json file as they
are made: the same command with --resume goes on.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import math
import os
import sys
import tempfile
import textwrap
import time
import warnings
import zipfile
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image  # which torchvision needs
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import hummingbird
from hummingbird import convert
from hummingbird.commands.output import check_writable
from hummingbird.commands.program import end
from hummingbird.cost import FREE
from hummingbird.errors import EnvironmentProblem, HummingbirdError, InputError, ModelError, Problem
from hummingbird.progress import progress_line
from scripts.bench.party import workers
from scripts.program import new_parser
from scripts.tools.net_catalogue import LAYER_SCALE, NETS, Entry, prepared

ARCHIVE = "tiny-imagenet-val/tiny-imagenet-val.zip"  # 10,000 photographs, 64 x 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # torchvision's normalisation


def photographs(count: int, side: int, data: str | Path | None = None) -> Tensor | None:
    """The first images of Tiny-ImageNet's validation set, float32 (count, 3, side, side), normalised.

    data: folder that holds ARCHIVE; by default HUMMINGBIRD_DATA. None where neither names it; InputError if damaged.
    """
    folder = data if data is not None else os.environ.get("HUMMINGBIRD_DATA")
    if not folder or not (Path(folder) / ARCHIVE).is_file():
        if data is not None:
            raise InputError(f"there is no file {ARCHIVE}", where="--data", hint="give the folder that holds it")
        return None
    try:
        with zipfile.ZipFile(Path(folder) / ARCHIVE) as archive:
            files = [io.BytesIO(archive.read(f"images/val_{number}.JPEG")) for number in range(count)]
        pixels = torch.stack([torch.from_numpy(np.array(Image.open(file).convert("RGB"))) for file in files])
    except (zipfile.BadZipFile, KeyError, OSError) as problem:
        raise InputError(f"{ARCHIVE} is damaged: {problem}", where=str(folder)) from problem
    return normalised(pixels.permute(0, 3, 1, 2).float() / 255, side)


def random_images(count: int, side: int, seed: int = 0) -> Tensor:
    """Random images with structure at all sizes: sums of noise enlarged from 2 x 2 to 64 x 64; shape as above."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.zeros(count, 3, 64, 64)
    for width in (2, 4, 8, 16, 32, 64):
        noise = torch.randn(count, 3, width, width, generator=generator)
        image += F.interpolate(noise, size=(64, 64), mode="bilinear", align_corners=False)
    return normalised((0.5 + 0.15 * image).clamp(0, 1), side)


def normalised(images: Tensor, side: int) -> Tensor:
    """Images in [0, 1] in another size, by torchvision's mean and deviation."""
    sized = F.interpolate(images, size=(side, side), mode="bilinear", align_corners=False)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (sized - mean) / std


def calibrate(net: nn.Module, images: Tensor) -> None:
    """Give every batch norm the mean and variance of its inputs on these images, in place; the net is in eval mode."""
    net.eval()
    norms = [layer for layer in net.modules() if isinstance(layer, _BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain average, here of one batch
        norm.train()
    with torch.no_grad():
        net(images)
    net.eval()


CALIBRATION = 32  # images
BYTES = 40  # per weight at most, measured: a net, its traced copy, and its ring elements on the way
PARTIES = 2
HEAD = """Made by `python -m scripts.tools.net_table --out docs/nets.md`: {total} of the {catalogue} nets of
`scripts/tools/net_catalogue.py`. Of these, {converted} convert. {ran} ran privately between two parties, `masked`,
exact comparisons, public weights, on {images} inputs ({kind}; random numbers for words and volumes). Weights are
random: nothing is downloaded. Layer scales are {scale}; batch norms have the statistics of {calibration} images, these
among them. Sizes of images and numbers of tokens are small ones: the catalogue has them, and `estimate` prices others.
Libraries: {versions}.

The error is the largest difference of a result to torch's, in percent of the largest result; a class is kept if the
largest logit is the same one, for segmentation at a place, for a language model at a token. Rounds are those of a
batch; online is what a party sends for an input, offline what the dealer sends to all parties.
"""
COLUMNS = """
| net | library | input | error, % | classes kept | rounds | online, MB | offline, MB |
|---|---|---|---:|---:|---:|---:|---:|
"""
REFUSED = """
The others are refused, with every reason by name; here is the first.

| net | source | reason |
|---|---|---|
"""
SOURCES = ("module", "pt2", "onnx")  # a torch module, or the kind of the file that the net is read from


FILES = """
## The same nets from files

torch exported each net to a file, and `hummingbird.load_program` read it ([programs.md](programs.md)). The program ran
privately on the same inputs. The error is its largest difference to the torch module, in percent of the largest result.

| net | source | error, % | classes kept | rounds | online, MB | offline, MB |
|---|---|---:|---:|---:|---:|---:|
"""


@dataclass
class Row:
    """A net of the table; `reason`: why it is refused; `note`: why it converts but did not run."""

    name: str
    library: str
    source: str = SOURCES[0]
    shape: str = ""
    reason: str = ""
    note: str = ""
    error: float = 0.0  # in percent of the largest result
    kept: float = 0.0  # part of the classes
    rounds: int = 0
    online: float = 0.0  # megabytes of a party, for an input
    offline: float = 0.0
    seconds: float = 0.0  # of an input, all parties' on one core

    def __str__(self) -> str:
        if self.reason:
            return f"| {self.name} | {self.source} | {self.reason} |"
        ran = f"{self.error:.2g} | {100 * self.kept:.4g} %" if not self.note else f"{self.note} | -"
        price = f"{self.rounds} | {self.online:.3g} | {self.offline:.3g}"
        if self.source != SOURCES[0]:
            return f"| {self.name} | {self.source} | {ran} | {price} |"
        return f"| {self.name} | {self.library} | {self.shape} | {ran} | {price} |"


def first_reason(found: Sequence[Problem]) -> str:
    """The first problem with its place and hint, and how many there are."""
    more = f"; {len(found) - 1} more" if len(found) > 1 else ""
    return f"{found[0].what} (`{found[0].name}`; {found[0].hint}{more})"


def images_of(side: int, count: int, data: Path | None) -> Tensor:
    """Photographs where there are some, else random images."""
    found = photographs(count, side, data)
    return random_images(count, side) if found is None else found


class Logits(nn.Module):
    """A net as a function of one tensor that returns the tensor of its logits: what files of all kinds can hold."""

    def __init__(self, net: nn.Module, keyword: str) -> None:
        super().__init__()
        self.net, self.keyword = net, keyword

    def forward(self, x: Tensor) -> Tensor:
        return logits(self.net(**{self.keyword: x}) if self.keyword else self.net(x))


def from_file(net: nn.Module, x: Tensor, source: str) -> nn.Module:
    """The net after a way through a file. source: the kind of the file, "pt2" or "onnx"; x: inputs to export it with.

    The batch is free where torch's exporter can leave it so. ModelError if torch cannot export the net.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"net.{source}"
        if source == "onnx":
            names: dict[str, Any] = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
            try:
                with contextlib.redirect_stdout(io.StringIO()):  # it prints the graph that it cannot write
                    torch.onnx.export(net, (x,), path, dynamo=False, **names)  # the other exporter needs onnxscript
            except Exception as error:  # of kinds that torch does not document
                what = f"torch.onnx.export cannot write it: {type(error).__name__}"
                raise ModelError([Problem("net", what, "export it with torch.export")]) from None
            return hummingbird.load_program(path)
        try:
            program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        except Exception:  # of kinds that torch does not document: the net has a constant for its batch
            program = torch.export.export(net, (x,))
        torch.export.save(program, path)
        return hummingbird.load_program(path)


def measure(name: str, source: str, inputs: int, data: Path | None, memory: float) -> Row:
    """The row of a net: made, calibrated, priced and run."""
    return measured(name, NETS[name], source, inputs, data, memory)


def measured(name: str, entry: Entry, source: str, inputs: int, data: Path | None, memory: float) -> Row:
    """`measure` of any entry."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)  # what torch logs when a shape that is tried does not fit
    row = Row(name, entry.library, source)
    torch.manual_seed(0)
    net = prepared(entry.make())
    keyword = entry.keyword
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in net.modules()):
        several = entry.example(partial(images_of, count=CALIBRATION, data=data), CALIBRATION)
        calibrate(net, several[keyword] if keyword else several)
    example = entry.example(partial(images_of, count=inputs, data=data), inputs)
    x = example[keyword] if keyword else example
    row.shape = " x ".join(map(str, x.shape[1:]))
    try:
        with torch.no_grad():
            expected = Logits(net, keyword)(x)
        if source != SOURCES[0]:
            net, example, keyword = from_file(Logits(net, keyword).eval(), x, source), x, ""
        private = convert.build(net, example=example)
        _price(row, private, tuple(x.shape))
        weights = sum(parameter.numel() for parameter in net.parameters())
        if weights * BYTES > memory * 2**30:
            row.note = f"not run: {weights * BYTES / 2**30:.0f} GiB"
            return row
        started = time.perf_counter()
        twin = Logits(hummingbird.simulate(net, mode="exact", seed=0, example=example), keyword)
        _compare(row, expected, twin(x), entry.classes)
        row.seconds = (time.perf_counter() - started) / inputs
    except ModelError as error:
        row.reason = first_reason(error.problems)
    except HummingbirdError as error:
        row.reason = f"refused in the run: {error.what}"
    return row


def _price(row: Row, private: Any, shape: tuple[int, ...]) -> None:
    """Fills in what an input costs; of a net whose inputs depend on each other, a part of the batch."""
    batch = 1 if private.rowwise(shape) else shape[0]
    total = sum((step.cost for step in private.costs((batch, *shape[1:]), PARTIES)), FREE)
    row.rounds = total.rounds
    row.online, row.offline = total.bits / 8e6 / batch, total.offline_bits / 8e6 / batch


def _compare(row: Row, expected: Tensor, got: Tensor, classes: int) -> None:
    """Fills in the error and the classes kept. expected, got: torch's and the private logits."""
    largest = float(expected.abs().max())
    row.error = 100 * float((got - expected).abs().max()) / largest if largest else math.inf
    row.kept = float((got.argmax(classes) == expected.argmax(classes)).float().mean())


def logits(result: Any) -> Tensor:
    """The result that counts, of a net that may return several."""
    for name in ("logits", "out"):
        if not isinstance(result, Tensor) and name in result:
            result = result[name]
    assert isinstance(result, Tensor), f"no logits in a {type(result).__name__}"
    return result


def apart(name: str, source: str, inputs: int, data: Path | None, memory: float) -> Row:
    """`measure` in a process of its own, which gives its memory back; EnvironmentProblem if it was killed."""
    with workers(1) as pool:
        try:
            return pool.submit(measure, name, source, inputs, data, memory).result()
        except BrokenProcessPool:
            hint = "it may have needed more memory than there is: lower --memory, and go on with --resume"
            raise EnvironmentProblem("the process of a net was killed", where=name, hint=hint) from None


def earlier(path: Path, settings: dict[str, Any]) -> list[Row]:
    """The rows of an interrupted run; InputError if it was another one."""
    try:
        kept = json.loads(path.read_text())
        rows, before = [Row(**row) for row in kept["rows"]], kept["settings"]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as problem:
        raise InputError(f"not rows of this program: {problem}", where=str(path), hint="leave --resume out") from None
    if before != settings:
        raise InputError(f"made with {before}, now {settings}", where=str(path), hint="leave --resume out")
    return rows


def page(rows: Sequence[Row], settings: dict[str, Any]) -> str:
    """The page: modules that convert, the same nets from files, and what does not convert."""
    modules = [row for row in rows if row.source == SOURCES[0]]
    taken = [row for row in modules if not row.reason]
    ran = "All but those marked" if any(row.note for row in taken) else "They"
    total = len({row.name for row in rows})
    facts = {"catalogue": len(NETS), "converted": len(taken) if modules else total, "total": total, "ran": ran}
    head = HEAD.format(**facts, calibration=CALIBRATION, scale=LAYER_SCALE, **settings).split("\n\n")
    wrapped = (textwrap.fill(part, 120, break_long_words=False, break_on_hyphens=False) for part in head)
    text = "# Nets in private\n\n" + "\n\n".join(wrapped) + "\n"
    for title, found in (
        (COLUMNS, taken),
        (FILES, [row for row in rows if row.source != SOURCES[0] and not row.reason]),
        (REFUSED, [row for row in rows if row.reason]),
    ):
        text += title + "".join(f"{row}\n" for row in found) if found else ""
    return text


def versions() -> dict[str, str]:
    """Versions of the libraries that are installed."""
    found = {}
    for library in ("torch", "torchvision", "timm", "transformers"):
        try:
            found[library] = str(importlib.import_module(library).__version__)
        except ImportError:
            continue
    return found


def main(argv: Sequence[str] | None = None) -> int:
    p = new_parser(__doc__)
    p.add_argument("--out", type=Path, help="write the page there (default: print it)")
    p.add_argument("--json", type=Path, help="keep rows there as they are made")
    p.add_argument("--resume", action="store_true", help="go on with the rows of --json")
    p.add_argument("--nets", nargs="+", metavar="NAME", help="these nets only")
    p.add_argument("--sources", nargs="+", choices=SOURCES, default=SOURCES, help="what the nets come from (all)")
    p.add_argument("--images", type=int, default=2, help="private inputs per net (default: %(default)s)")
    p.add_argument("--data", type=Path, help="folder that holds tiny-imagenet-val (default: HUMMINGBIRD_DATA)")
    p.add_argument("--memory", type=float, default=8.0, help="GiB that a net may need (default: %(default)s)")
    args = p.parse_args(argv)

    def run() -> None:
        names = args.nets or list(NETS)
        if unknown := [name for name in names if name not in NETS]:
            hint = f"of {', '.join(NETS)}"
            raise InputError(f"there is no net {', '.join(unknown)}", where="--nets", hint=hint)
        if args.images < 1:
            raise InputError(f"{args.images} images", where="--images", hint="at least 1")
        if args.resume and args.json is None:
            raise InputError("no rows to go on with", where="--resume", hint="give the file of rows with --json")
        for path, option in ((args.out, "--out"), (args.json, "--json")):
            if path is not None:
                check_writable(path, option)
        kind = "random images" if photographs(1, 64, args.data) is None else "Tiny-ImageNet, validation"
        known = versions()
        shown = ", ".join(f"{library} {version}" for library, version in known.items())
        settings = {"versions": shown, "images": args.images, "kind": kind}
        rows = {(row.name, row.source): row for row in earlier(args.json, settings)} if args.resume else {}
        cases = [(name, source) for source in args.sources for name in names if NETS[name].library in known]
        for case in progress_line([case for case in cases if case not in rows], unit="net"):
            rows[case] = apart(*case, args.images, args.data, args.memory)
            if args.json is not None:
                kept = {"settings": settings, "rows": [asdict(row) for row in rows.values()]}
                args.json.write_text(json.dumps(kept, indent=1) + "\n")
        text = page([rows[case] for case in cases], settings)
        if args.out is None:
            print(text)
        else:
            args.out.write_text(text)

    hint = "interrupted: go on with --resume" if args.json else "interrupted: nothing was written"
    return end(run, lambda: hint)


if __name__ == "__main__":
    sys.exit(main())
