"""Garbled ReLUs on one thread: garbling and evaluating, for each instruction set, and Impala's circuit beside them.

    python -m scripts.bench.garble --json garble.json

A time is the least of several calls, for --count instances. "three adders" computes the same by the circuit of Impala
(Choi et al., 2022), two sums and a selection, with our hash and our half-gates: scripts/bench/three_adders.cpp, which
--adders compiles. Results are compared with plain numbers before they are timed.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the project's folder must be importable
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from hummingbird.commands.files import check_outputs, write_json
from hummingbird.commands.program import end, machine
from hummingbird.errors import EnvironmentProblem, HummingbirdError, InputError
from hummingbird.hybrid.gc import relu
from hummingbird.kernels import devices
from hummingbird.kernels.cpu import library
from hummingbird.prg import fresh, new_seed
from hummingbird.table import text_table
from scripts.bench.he_kernels import best
from scripts.bench.party import ROOT

ADDERS = "three adders"
_CSRC, _COMPILER = ROOT / "hummingbird/kernels/cpu/csrc", "c++"
_FLAGS = ("-O3", "-std=c++17", "-fno-exceptions", "-fno-rtti", "-shared", "-fPIC")


class Inputs:
    """Shares, masks and labels of one measurement, drawn."""

    def __init__(self, count: int, width: int, ring: int) -> None:
        stream = fresh()
        self.key, self.delta = new_seed(), relu.new_delta(stream)
        self.labels, self.own = (relu.new_labels(stream, count, width) for _ in range(2))
        self.shares, self.others = (stream.words(count) & (1 << width) - 1 for _ in range(2))
        self.masks = stream.words(count) & (1 << ring) - 1
        self.held = relu.chosen(self.labels, self.delta, self.others)


def ours(circuit: relu.Circuit, count: int) -> tuple[float, float, int]:
    """Seconds to garble and to evaluate, and bytes of the tables; HummingbirdError for a wrong result."""
    x, low = Inputs(count, circuit.width, circuit.ring), (1 << circuit.ring) - 1
    head = (circuit, x.key, 0)
    if circuit.garbler == "data":
        arguments = (*head, x.delta, x.labels, x.shares, x.masks)
        tables, extra = relu.garble(*arguments), -x.masks
        garbling, held = best(lambda: relu.garble(*arguments)), (x.held,)
        result, evaluating = relu.evaluate(*head, *held, tables), best(lambda: relu.evaluate(*head, *held, tables))
    else:
        tables, extra = relu.garble_model(*head, x.delta, x.labels, x.own)
        garbling = best(lambda: relu.garble_model(*head, x.delta, x.labels, x.own))
        sent = relu.chosen(x.own, x.delta, x.shares)
        result = relu.evaluate_model(*head, x.held, sent, tables)
        evaluating = best(lambda: relu.evaluate_model(*head, x.held, sent, tables))
    _compare(f"{circuit}", result, relu.plain(circuit, x.shares + x.others) + extra & low)
    return garbling, evaluating, tables.numel()


def _compare(what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    if not torch.equal(found, expected):
        raise HummingbirdError("a garbled circuit does not compute its function", where=what)


class Adders:
    """Impala's circuit, compiled into a folder."""

    def __init__(self, folder: str) -> None:
        path = Path(folder) / "adders.so"
        sources = (ROOT / "scripts/bench/three_adders.cpp", _CSRC / "dispatch.cpp")
        words = [_COMPILER, *_FLAGS, f"-I{_CSRC}", *map(str, sources), "-o", str(path)]
        try:
            subprocess.run(words, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            message = f"could not compile scripts/bench/three_adders.cpp: {said.strip().splitlines()[0]}"
            hint = "install a C++ compiler, or leave --adders out"
            raise EnvironmentProblem(message, where=_COMPILER, hint=hint) from None
        self._library = ctypes.CDLL(str(path))
        self._library.adders_tile_bytes.restype = ctypes.c_int64

    def measure(self, width: int, ring: int, count: int, isa: str) -> tuple[float, float, int]:
        """Seconds to garble and to evaluate, and bytes of the tables; HummingbirdError for a wrong result."""
        if self._library.hb_set_isa(library.ISAS.index(isa)):
            raise EnvironmentProblem(f"this processor has no {isa}", where="scripts.bench.garble")
        x, tiles = Inputs(count, width, ring), relu.tiles(count)
        tables = torch.empty(self._library.adders_tile_bytes(width, ring) * tiles, dtype=torch.uint8)
        results = torch.zeros(count, dtype=torch.int64)

        def run(labels: torch.Tensor, out: torch.Tensor | None) -> None:
            given = (x.delta, labels, x.shares, x.masks, tables)
            pointers = [ctypes.c_void_p(value.data_ptr()) for value in given]
            last = None if out is None else ctypes.c_void_p(out.data_ptr())
            self._library.adders_run(width, ring, x.key, ctypes.c_int64(tiles), *pointers, last)

        run(x.labels, None)
        run(x.held, results)
        sums = x.shares + x.others
        expected = relu.plain(relu.Circuit("relu", width, ring, "data"), sums) + x.masks & (1 << ring) - 1
        _compare(ADDERS, results, expected)
        return best(lambda: run(x.labels, None)), best(lambda: run(x.held, results)), tables.numel()


def isas() -> list[str]:
    """The instruction sets of this processor, the widest first."""
    before = library.isa()
    found = [isa for isa in reversed(library.ISAS) if library.set_isa(isa)]
    library.set_isa(before)
    return found


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each circuit and instruction set."""
    circuits = [
        relu.Circuit(kind, args.width, args.ring, garbler)
        for kind, garbler in (("relu", "data"), ("relu", "model"), ("lift", "data"))
    ]
    rows, before = [], library.isa()

    def add(name: str, isa: str, seconds: tuple[float, float, int]) -> None:
        garbling, evaluating, octets = seconds
        rows.append(
            {
                "circuit": name,
                "instructions": isa,
                "garble_ms": 1e3 * garbling,
                "evaluate_ms": 1e3 * evaluating,
                "sum_ms": 1e3 * (garbling + evaluating),
                "bytes_each": octets / args.count,
            }
        )

    with tempfile.TemporaryDirectory() as folder:
        adders = Adders(folder) if args.adders else None
        try:
            for isa in isas():
                library.set_isa(isa)
                for circuit in circuits:
                    add(f"{circuit.kind}, garbler {circuit.garbler}", isa, ours(circuit, args.count))
                if adders:
                    add(ADDERS, isa, adders.measure(args.width, args.ring, args.count, isa))
        finally:
            library.set_isa(before)
    return rows


def run(args: argparse.Namespace) -> None:
    """Measure, print the table, write the rows."""
    if args.count < 16 or args.count % 16:
        raise InputError(f"expected whole tiles of 16 instances, got {args.count}", where="--count")
    if args.adders and not args.width < args.ring <= 75 - 5 * args.width:
        message = f"three adders take rings from {args.width + 1} to {75 - 5 * args.width} bits, got {args.ring}"
        raise InputError(message, where="--ring", hint="leave --adders out for other sizes")
    check_outputs(args)
    if not library.available():
        raise EnvironmentProblem("the native kernels are not built", where="kernels", hint="see CONTRIBUTING.md")
    devices.keep_freed_memory()  # as the services do
    torch.set_num_threads(1)
    rows = measure(args)
    head = ("circuit", "instructions", "garble ms", "evaluate ms", "sum ms", "bytes each")
    cells = [[value if isinstance(value, str) else f"{value:,.2f}" for value in row.values()] for row in rows]
    print(text_table(head, cells, left=2))
    if args.json:
        write_json(args.json, [row | {"count": args.count, **machine()} for row in rows])


def main(arguments: list[str] | None = None) -> int:
    """Run the program; 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--count", type=int, default=10_000, help="instances, whole tiles of 16 (default: %(default)s)")
    p.add_argument("--width", type=int, default=10, help="bits of a share (default: %(default)s)")
    p.add_argument("--ring", type=int, default=20, help="bits of a result (default: %(default)s)")
    p.add_argument("--adders", action="store_true", help="Impala's circuit too: needs a C++ compiler")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    args = p.parse_args(arguments)
    return end(lambda: run(args), lambda: "interrupted: nothing was written")


if __name__ == "__main__":
    sys.exit(main())
