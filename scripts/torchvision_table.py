"""torchvision's classification nets in private: how far the logits are from torch's, and why other nets are refused.

    python -m scripts.torchvision_table --out docs/torchvision.md --json torchvision.json
    python -m scripts.torchvision_table --nets resnet18 mobilenet_v3_small

Weights are random, batch norms calibrated on 32 images (scripts/torchvision_images.py): Tiny-ImageNet's validation set
from --data or HUMMINGBIRD_DATA, else random images. Then some of them go through private inference as
`convert_model(net)` does it by default, exact comparisons and public weights, with both parties' own code in one
process (`simulate(mode="exact")`). Each net has a process of its own, so that memory is bounded by the largest one;
nets that need more than --memory are converted in shapes only. Rows are kept in the --json file as they are made: the
same command with --resume goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from tqdm import tqdm

from hummingbird import convert, graph
from hummingbird.commands.files import check_writable
from hummingbird.commands.program import end
from hummingbird.errors import EnvironmentProblem, HummingbirdError, InputError, ModelError, Problem
from hummingbird.mpc import builders
from hummingbird.simulation.exact import Parties
from scripts.torchvision_images import calibrate, photographs, random_images

SIDES = (64, 75, 96, 128, 224)  # of images; the first that a net takes
CALIBRATION = 32  # images
BYTES = 40  # per weight at most, measured: a net, its traced copy, and its ring elements on the way
PARTIES = 2
HEAD = """# torchvision's classification nets

Made by `python -m scripts.torchvision_table --out docs/torchvision.md` with torchvision {version}: {converted} of
{total} nets convert. {ran} ran privately between two parties, `masked`, exact comparisons, public
weights, on {images} images ({kind}), in the smallest of the sizes {sides} that it takes. Weights are
random, since none can be downloaded here; batch norms have the statistics of {calibration} images, these among
them: a net without training is badly conditioned on others (EfficientNet-B4: logits up to 260, and bfloat16 errs by
70 %). "Values compared": outputs of layers with a window (ReLU and its kin, max pooling, smooth activations), per
image. The error is the largest difference of a logit to torch's, in percent of the largest logit; a class is kept if
the largest logit is the same one.

| net | side | layers with a window | values compared, millions | error, % | classes kept |
|---|---:|---:|---:|---:|---:|
"""
REFUSED = """
The others are refused, with every reason by name; here is the first.

| net | reason |
|---|---|
"""
COMPARING = frozenset(builders.COMPARING)


@dataclass
class Row:
    """A net of the table; `reason`: why it is refused; `note`: why it converts but did not run."""

    name: str
    reason: str = ""
    note: str = ""
    side: int = 0
    layers: int = 0
    compared: int = 0
    error: float = 0.0  # in percent of the largest logit
    kept: int = 0
    images: int = 0
    seconds: float = 0.0  # of an image, all parties' on one core

    def __str__(self) -> str:
        if self.reason:
            return f"| {self.name} | {self.reason} |"
        ran = f"{self.error:.2g} | {self.kept} of {self.images}" if not self.note else f"{self.note} | -"
        return f"| {self.name} | {self.side} | {self.layers} | {self.compared / 1e6:.2f} | {ran} |"


def make(name: str) -> nn.Module:
    """The net with random weights, in eval mode."""
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return torchvision.models.get_model(name, weights=None, **options).eval()


def skeleton(name: str) -> nn.Module:
    """The net without weights, on torch's meta device; with weights where its constructor reads values, as RegNet's."""
    try:
        with torch.device("meta"):
            return make(name)
    except NotImplementedError:
        return make(name)


def describe(name: str, net: nn.Module) -> Row:
    """Facts that are known without weights: why a net is refused, or the size it takes and what it compares."""
    if found := graph.problems(net):
        return Row(name, reason=first_reason(found))
    steps, why = graph.trace(net), ""
    for side in SIDES:
        try:
            values = graph.run_all(steps, torch.empty(1, 3, side, side, device="meta"))
        except RuntimeError as error:  # torch's own: the map has vanished at this size
            why = str(error).partition("\n")[0]
            continue
        pools = [step for step in steps if step.op.startswith("adaptive")]
        if not all(divides(values[pool.inputs[0].index], pool.attrs["output_size"]) for pool in pools):
            why = "an adaptive pool does not divide its map"
            continue
        compared = [math.prod(v.shape) for s, v in zip(steps, values, strict=True) if s.op in COMPARING]
        return Row(name, side=side, layers=len(compared), compared=sum(compared))
    return Row(name, reason=f"takes none of the sizes {SIDES}: {why}")


def divides(x: torch.Tensor, output_size: Sequence[int | None]) -> bool:
    """Whether an adaptive pool's windows are of one size."""
    space = x.shape[-len(output_size) :]
    return all(size % (out or size) == 0 for size, out in zip(space, output_size, strict=True))


def first_reason(found: Sequence[Problem]) -> str:
    """The first problem with its place and hint, and how many there are."""
    more = f"; {len(found) - 1} more" if len(found) > 1 else ""
    return f"{found[0].what} (`{found[0].name}`; {found[0].hint}{more})"


def measure(name: str, images: int, data: Path | None, memory: float) -> Row:
    """The row of a net: described, calibrated and run."""
    torch.manual_seed(0)
    net = skeleton(name)
    row = describe(name, net)
    if row.reason:
        return row
    weights = sum(parameter.numel() for parameter in net.parameters())
    if weights * BYTES > memory * 2**30:
        row.note = f"not run: {weights * BYTES / 2**30:.0f} GiB"
        return row
    net = make(name) if any(parameter.is_meta for parameter in net.parameters()) else net
    batch = photographs(CALIBRATION, row.side, data)
    batch = random_images(CALIBRATION, row.side) if batch is None else batch
    calibrate(net, batch)
    started = time.perf_counter()
    try:
        _run(row, net, batch[:images])
    except ModelError as error:  # of weights, which the description has not seen
        row.reason = first_reason(error.problems)
    except HummingbirdError as error:
        row.reason = f"refused in the run: {error.what}"
    row.seconds = (time.perf_counter() - started) / images
    return row


def _run(row: Row, net: nn.Module, images: torch.Tensor) -> None:
    """Fills in errors and classes, image by image: memory for one."""
    private = convert.build(net)
    parties = Parties(PARTIES, 0, images.device)
    largest = error = 0.0
    with torch.no_grad():
        for image in images.split(1):
            expected, got = net(image), parties.run(private, image)
            largest = max(largest, float(expected.abs().max()))
            error = max(error, float((got - expected).abs().max()))
            row.kept += int(bool(got.argmax() == expected.argmax()))
            row.images += 1
    row.error = 100 * error / largest


def apart(name: str, images: int, data: Path | None, memory: float) -> Row:
    """`measure` in a process of its own, which gives its memory back; EnvironmentProblem if it was killed."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(measure, name, images, data, memory).result()
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
    """The page: nets that convert, then those that do not."""
    taken = [row for row in rows if not row.reason]
    sides = ", ".join(map(str, SIDES))
    ran = "All but those marked" if any(row.note for row in taken) else "All of them"
    head = HEAD.format(converted=len(taken), total=len(rows), ran=ran, sides=sides, calibration=CALIBRATION, **settings)
    text = head + "".join(f"{row}\n" for row in taken)
    refused = [row for row in rows if row.reason]
    return text + (REFUSED + "".join(f"{row}\n" for row in refused) if refused else "")


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, help="write the page there (default: print it)")
    p.add_argument("--json", type=Path, help="keep rows there as they are made")
    p.add_argument("--resume", action="store_true", help="go on with the rows of --json")
    p.add_argument("--nets", nargs="+", metavar="NAME", help="these nets only")
    p.add_argument("--images", type=int, default=4, help="private images per net (default: %(default)s)")
    p.add_argument("--data", type=Path, help="folder that holds tiny-imagenet-val (default: HUMMINGBIRD_DATA)")
    p.add_argument("--memory", type=float, default=8.0, help="GiB that a net may need (default: %(default)s)")
    args = p.parse_args(argv)

    def run() -> None:
        known = torchvision.models.list_models(module=torchvision.models)
        names = args.nets or known
        if unknown := [name for name in names if name not in known]:
            raise InputError(f"torchvision has no {', '.join(unknown)}", where="--nets", hint="a name such as resnet18")
        if args.images < 1:
            raise InputError(f"{args.images} images", where="--images", hint="at least 1")
        if args.resume and args.json is None:
            raise InputError("no rows to go on with", where="--resume", hint="give the file of rows with --json")
        for path, option in ((args.out, "--out"), (args.json, "--json")):
            if path is not None:
                check_writable(path, option)
        kind = "random" if photographs(1, SIDES[0], args.data) is None else "Tiny-ImageNet, validation"
        settings = {"version": torchvision.__version__, "images": args.images, "kind": kind}
        rows = {row.name: row for row in earlier(args.json, settings)} if args.resume else {}
        for name in tqdm([name for name in names if name not in rows], unit="net", file=sys.stderr):
            rows[name] = apart(name, args.images, args.data, args.memory)
            if args.json is not None:
                kept = {"settings": settings, "rows": [asdict(row) for row in rows.values()]}
                args.json.write_text(json.dumps(kept, indent=1) + "\n")
        text = page([rows[name] for name in names], settings)
        if args.out is None:
            print(text)
        else:
            args.out.write_text(text)

    hint = "interrupted: go on with --resume" if args.json else "interrupted: nothing was written"
    return end(run, lambda: hint)


if __name__ == "__main__":
    sys.exit(main())
