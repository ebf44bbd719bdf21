"""Put a submission for the workload ml-inference into a clone of the FHE Benchmarking Suite.

    python -m scripts.papers.fhe_suite.install --clone ml-inference --data DATA
    cd ml-inference && python3 harness/run_submission.py 3 --seed 3

It replaces the folder `submission` and the scripts `get_openfhe.sh` and `build_task.sh` of the clone. The net is
checkpoints/one-square.pt, converted here, with ranges measured on MNIST's training images. The stages are programs of
the shell that call he-keygen, he-encrypt, he-evaluate and he-decrypt of this checkout. docs/encrypted.md has what was
measured.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path

from torch import Tensor

from hummingbird import he
from hummingbird.errors import InputError
from models import trained
from scripts.program import ROOT, main_of, new_parser
from scripts.train.data import load

HERE = Path(__file__).resolve().parent
WEIGHTS = ROOT / "checkpoints" / "one-square.pt"
SHAPE = (1, 28, 28)
INPUT_RANGE = 3.0  # MNIST's pixels, normalised, are from -0.43 to 2.83
SAMPLES = 2000
SCRIPTS = ("get_openfhe.sh", "build_task.sh")


def plan(weights: Path, samples: Tensor) -> he.Plan:
    """The plan of the net with these weights. samples: images (n, 1, 28, 28), normalised, n >= 2."""
    return he.make_plan(
        trained("one-square", 10, str(weights)), SHAPE, "polynomial", input_range=INPUT_RANGE, samples=samples
    )


def install(clone: Path, weights: Path, samples: Tensor) -> he.Public:
    """Put the submission into a clone of the workload; return the net's description.

    weights: of the net. samples: images (n, 1, 28, 28), as for `plan`. InputError for a folder that is no clone.
    """
    missing = [name for name in ("harness", "scripts", "submission") if not (clone / name).is_dir()]
    if missing:
        hint = "git clone https://github.com/fhe-benchmarking/ml-inference.git"
        raise InputError(f"no clone of the workload: there is no {missing[0]}", where=str(clone), hint=hint)
    made = plan(weights, samples)
    submission = clone / "submission"
    end_server(submission / "build" / "server.in")
    shutil.rmtree(submission)
    submission.mkdir()
    he.Server(made).save(submission / "net.server")
    (submission / "client.json").write_text(made.public.to_json())
    (submission / "settings").write_text(
        "".join(
            f"{name}={shlex.quote(str(value))}\n" for name, value in (("PYTHON", sys.executable), ("CHECKOUT", ROOT))
        )
    )
    shutil.copy(HERE / "stage.sh", submission / "stage.sh")
    shutil.copy(HERE / "README.md", submission / "README.md")
    for name in SCRIPTS:
        shutil.copy(HERE / name, clone / "scripts" / name)
    return made.public


def end_server(pipe: Path) -> None:
    """Tell the server of an earlier run to end, by an empty line in its pipe, if there is one."""
    if pipe.is_fifo():
        with open(os.open(pipe, os.O_RDWR), "w") as into:  # opened for both, so that it does not wait for a reader
            into.write("\n")


def run(args: argparse.Namespace) -> None:
    """Install, and say what the sizes will be."""
    images, _ = load("mnist", "train", args.data)
    public = install(args.clone, args.weights, images[:SAMPLES])
    up, down = public.batch_bytes()
    size = f"{up / 1e6:.2f} MB up and {down / 1e6:.2f} MB down for each {public.slots} images"
    print(f"{args.clone / 'submission'}: {size}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, "scripts.papers.fhe_suite.install")
    made.add_argument(
        "--clone", required=True, type=Path, metavar="FOLDER", help="a clone of the workload's repository"
    )
    made.add_argument(
        "--weights", type=Path, default=WEIGHTS, metavar="FILE", help="of the net (default: the checkpoint)"
    )
    made.add_argument("--data", metavar="FOLDER", help="data folder (default: HUMMINGBIRD_DATA, else a download)")
    return made


main = main_of(parser, run)

if __name__ == "__main__":
    sys.exit(main())
