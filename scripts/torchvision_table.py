"""Which of torchvision's classification nets convert, and the named reason for those that do not.

    python -m scripts.torchvision_table --out docs/torchvision.md

Nets are built without weights (on torch's meta device), validated, and evaluated for shapes only, at the input size
torchvision trained them on.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
import torchvision
from tqdm import tqdm

from hummingbird import graph
from hummingbird.convert import validate_model
from hummingbird.errors import InputError, Problem
from hummingbird.mpc.averaging import equal_windows

HEAD = """# torchvision's classification nets

Made by `python -m scripts.torchvision_table --out docs/torchvision.md` with torchvision {version}. {converted} of
{total} nets convert. "Values compared": outputs of layers with a window (ReLU and its kin, max pooling, smooth
activations), per image.

| net | input | converts | layers with a window | values compared, millions |
|---|---|---|---:|---:|
"""
COMPARING = {"relu", "leaky_relu", "prelu", "hardtanh", "max_pool", "adaptive_max_pool", "softmax"}
COMPARING |= {"sigmoid", "hardsigmoid", "tanh", "silu", "hardswish", "gelu"}


def describe(name: str) -> tuple[bool, str]:
    """Whether a net converts, and its row of the table."""
    size = 299 if name == "inception_v3" else 224
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    try:
        with torch.device("meta"):
            net = torchvision.models.get_model(name, weights=None, **options).eval()
    except NotImplementedError:  # a constructor that reads values, as maxvit_t's: small enough to be built in full
        net = torchvision.models.get_model(name, weights=None, **options).eval()
    found = validate_model(net)
    if found:
        return False, f"| {name} | {size} | no: {reason(found)} | | |"
    steps = graph.trace(net)
    values = graph.run_all(steps, torch.empty(1, 3, size, size, device="meta"))
    for step in steps:
        if step.op.startswith("adaptive"):
            try:
                equal_windows(tuple(values[step.inputs[0].index].shape), step.attrs["output_size"])
            except InputError as error:
                return False, f"| {name} | {size} | no: {error.what} (`{step.name}`) | | |"
    compared = [math.prod(v.shape) for s, v in zip(steps, values, strict=True) if s.op in COMPARING]
    return True, f"| {name} | {size} | yes | {len(compared)} | {sum(compared) / 1e6:.2f} |"


def reason(found: list[Problem]) -> str:
    """Every distinct reason, with its hint, the first place and the number of places."""
    places: dict[tuple[str, str], list[str]] = {}
    for problem in found:
        places.setdefault((problem.what, problem.hint), []).append(problem.name)
    texts = []
    for (what, hint), names in places.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        texts.append(f"{what} (`{names[0]}`{more}; {hint})")
    return "; ".join(texts)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, help="write the table there (default: print it)")
    p.add_argument("--only", nargs="+", help="these nets only")
    args = p.parse_args()
    names = args.only or torchvision.models.list_models(module=torchvision.models)
    rows = [describe(name) for name in tqdm(names, unit="net")]
    head = HEAD.format(version=torchvision.__version__, converted=sum(ok for ok, _ in rows), total=len(rows))
    text = head + "\n".join(row for _, row in rows) + "\n"
    if args.out:
        args.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
