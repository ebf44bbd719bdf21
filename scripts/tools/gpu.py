"""Everything that waits for a GPU, in one command: set-up, tests, benchmarks and checks, within some minutes.

    python -m scripts.tools.gpu wheels --wheels wheels            # with a network: 6 MB, for the other machine
    python -m scripts.tools.gpu --wheels wheels --out result      # with a GPU: writes result/gpu.json and gpu.md
    python -m scripts.tools.gpu --out result                      # goes on where that stopped
    python -m scripts.tools.gpu page --out result                 # the figures into docs/gpu.md
    python -m scripts.tools.gpu --dry-run --out tried             # every step on a CPU, tiny: minutes

What the machine needs: Linux on x86-64, one NVIDIA GPU (the sizes are for 80 GB), a C++ compiler, and Python 3.12 with
these packages, torch 2.11 or newer among them:

{present}

The wheels hold what else is imported: {carried}. They are installed for the Python
that runs this. `compute-sanitizer`, and root for `tc`, are used where they are there. Nothing is fetched.

Steps run in the order of value, each in a process with a limit. One that is not expected to end in the minutes left is
not started, and its line says so. `--only` names steps; one that has passed runs again when it is named.

The wheels by hand, which `wheels` runs:

{by_hand}
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from hummingbird.errors import EnvironmentProblem, HummingbirdError, InputError
from hummingbird.kernels.gpu import sizes
from scripts.tools import gpu_page, gpu_run, gpu_setup
from scripts.tools.gpu_steps import STEPS, Run

PAGE = "gpu.md"


def device(dry_run: bool) -> str:
    """Where the steps run; EnvironmentProblem without a GPU."""
    if dry_run:
        return "cpu"
    import torch  # a second, which `--help` does not take

    if not torch.cuda.is_available():
        hint = "--dry-run runs every step on the CPU, with tiny sizes"
        raise EnvironmentProblem("there is no GPU that PyTorch can use", where="scripts.tools.gpu", hint=hint)
    return "cuda"


def run(args: argparse.Namespace) -> bool:
    """Run the steps, write state and page; whether all that ran have passed."""
    if not args.minutes > 0:
        raise InputError("a run takes more than 0 minutes", where="--minutes")
    given = Run(args.wheels, device(args.dry_run))
    args.out.mkdir(parents=True, exist_ok=True)
    steps = [step for step in STEPS if step.always or not args.only or step.name in args.only]
    state = gpu_run.load(args.out)
    for name in args.only or ():
        state["steps"].pop(name, None)
    if not args.dry_run:  # tiles' sizes that earlier calls have found, on a machine that may have forgotten them
        for card, found in gpu_page.sizes_of(state).items():
            sizes.keep(card, found)
    gpu_run.run_all(steps, given, args.out, args.minutes, state)
    (args.out / PAGE).write_text(gpu_page.page(state))
    print(f"written: {args.out / gpu_run.STATE}, {args.out / PAGE}")
    return not any(outcome["state"].startswith("failed") for outcome in state["steps"].values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; 0 on success, 1 if a step failed or after an `error:` line."""
    by_hand = "\n".join(f"    python {' '.join(words)}" for words in gpu_setup.commands("wheels"))
    present = textwrap.fill(", ".join(gpu_setup.PRESENT), 116, initial_indent="    ", subsequent_indent="    ")
    text = str(__doc__).format(by_hand=by_hand, present=present, carried=", ".join(gpu_setup.CARRIED))
    p = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", nargs="?", choices=("run", "wheels", "page"), default="run", help="default: run")
    p.add_argument("--wheels", type=Path, metavar="DIR", help="folder of wheels, to be filled or installed from")
    p.add_argument("--out", type=Path, metavar="DIR", help="folder for the figures, or with those of an earlier call")
    p.add_argument("--minutes", type=float, default=9.0, help="that this call may take (default: %(default)s)")
    names = [step.name for step in STEPS if not step.always]
    p.add_argument("--only", nargs="+", choices=names, metavar="STEP", help=f"some of {', '.join(names)}")
    p.add_argument("--dry-run", action="store_true", help="on the CPU, with tiny sizes")
    args = p.parse_args(arguments)
    folder = "--wheels" if args.what == "wheels" else "--out"
    try:
        if getattr(args, folder.strip("-")) is None:
            raise InputError(f"{args.what} needs {folder}", where=folder, hint="name a folder")
        if args.what == "wheels":
            for path in gpu_setup.fetch(args.wheels):
                print(f"{path.stat().st_size:>12,} {path.name}")
        elif args.what == "page":
            gpu_page.publish(args.out / gpu_run.STATE)
        elif not run(args):
            return 1
    except HummingbirdError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
