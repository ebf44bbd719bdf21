"""Speed of private lookups at a server: expansion of keys, answers to batches of queries; and of making keys.

    python -m scripts.bench.pir --json pir.json
    python -m scripts.bench.pir --rows 16384 1048576 4194304 --row-bytes 64 256 1024 --batch 1 32 192 --threads 1 2
    python -m scripts.bench.pir --rows 16384 --row-bytes 256 --batch 1 192 --prf chacha12 --paths avx2
    python -m scripts.bench.pir --batch 512 --prf chacha12 --decoders sum32 --paths cuda

An answer is timed as a whole: its keys expanded over all rows, and the product with the table. Without --rows,
--row-bytes, --batch, --prf, --decoders, --paths and --threads the settings are those with a mark, and some beside them;
then making keys is timed, too, and the pseudo-random functions beside those of the package `cryptography`. Times are
CPU time of the one thread that works, the least of the repeats, so other work on the machine counts little; with
several threads, and on a GPU (`--paths cuda`), wall time, from keys in the host's memory to answers there. The time of
reading a table's bytes once, by libc's `memchr`, or by a copy on the GPU, is taken in the same run. All answers are
checked.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from hummingbird.commands.output import check_outputs
from hummingbird.commands.program import device_name, machine
from hummingbird.errors import EnvironmentProblem, HummingbirdError, InputError
from hummingbird.kernels import lookups
from hummingbird.kernels.cpu import library
from hummingbird.kernels.lookups import PRFS, WIDTHS, Table
from hummingbird.pir.dpf import generate
from hummingbird.progress import progress_line
from hummingbird.table import text_table
from scripts.program import add_json, main_of, new_parser, taken, write_rows

GPU = "cuda"
PATHS = ("avx512+gfni", "avx2+gfni", "avx2", "portable", GPU)
DECODERS = ("xor", *(f"sum{width}" for width in WIDTHS))
MILLION = 1 << 20
PIECE = 1 << 14  # different rows of a table, which repeats them
LONE = 1.3  # a lone query's time, in times of reading the table once
# M. Lam et al., GPU-based Private Information Retrieval for On-Device Machine Learning Inference, ASPLOS 2024: queries
# per second for 2^20 rows.
PAPER = (
    ("V100, AES", "965 to 1,358"),
    ("V100, ChaCha", "3,640"),
    ("CPU, 32 threads", "21"),
    ("CPU, 1 thread", "1.3"),
)


class Setting(NamedTuple):
    """One row: a table, a batch of queries, and what answers them.

    path: "" for the fastest here. threads: of the CPU, that share the table.
    """

    rows: int
    row_bytes: int
    batch: int
    prf: str = "aes"
    decoder: str = "xor"
    path: str = ""
    threads: int = 1

    @property
    def on_gpu(self) -> bool:
        """Whether the table is on a GPU."""
        return self.path == GPU

    @property
    def width(self) -> int:
        """Bits of the words that are summed; 0 for XOR."""
        return int(self.decoder.removeprefix("sum")) if self.decoder != "xor" else 0


MARKS = {  # queries per second
    Setting(MILLION, 256, 32): 1300,
    Setting(MILLION, 256, 192): 3500,
    Setting(MILLION, 64, 192): 9000,
    Setting(MILLION, 256, 192, path="avx2"): 1200,
}
GPU_MARKS = {Setting(MILLION, 256, 512, "chacha12", "sum32", GPU): 100_000}  # on an H100
LONE_QUERY = Setting(MILLION, 256, 1)
PLAN = [
    *(Setting(MILLION, 256, batch) for batch in (1, 8, 32, 64, 192)),
    Setting(MILLION, 256, 192, prf="chacha12"),
    Setting(MILLION, 256, 192, decoder="sum8"),
    Setting(MILLION, 256, 192, decoder="sum64"),
    *(Setting(MILLION, 256, 192, path=path) for path in ("avx2+gfni", "avx2", "portable")),
    Setting(MILLION, 64, 192),
    Setting(1 << 14, 256, 192),
]
EXPANSION_MARKS = {"aes": 12.0, "chacha12": 60.0}  # microseconds for 2^20 rows


@contextlib.contextmanager
def on_path(path: str) -> Iterator[str]:
    """Kernels of this instruction set, or the fastest for ""; EnvironmentProblem where the processor lacks it."""
    if path == GPU:
        yield device_name(GPU)
        return
    before, gfni = library.isa(), library.gfni()
    isa, _, extra = path.partition("+")
    try:
        if path and not (library.set_isa(isa) and library.set_gfni(bool(extra))):
            raise EnvironmentProblem(
                f"this machine has no {path}", where="--paths", hint=f"it runs {library.xor_path()}"
            )
        yield path or library.xor_path()
    finally:
        library.set_isa(before)
        library.set_gfni(gfni)


def seconds(run: Callable[[], object], repeats: int, clock: Callable[[], float] = time.thread_time) -> float:
    """The least time of a call, after one to warm up; by default CPU time of this thread."""
    run()
    return min(taken(run, clock) for _ in range(repeats))


def read_seconds(size: int, repeats: int, on_gpu: bool) -> float:
    """Time of reading `size` bytes once; on a GPU, half of the time in which they are copied there."""
    if on_gpu:
        source = torch.empty(size, dtype=torch.uint8, device=GPU)
        target = torch.empty_like(source)

        def copy() -> None:
            target.copy_(source)
            torch.cuda.synchronize()

        return seconds(copy, repeats, time.perf_counter) / 2
    memory, libc = np.full(size, 1, np.uint8), ctypes.CDLL(None)
    libc.memchr.argtypes, libc.memchr.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], ctypes.c_void_p
    return seconds(lambda: libc.memchr(memory.ctypes.data, 0, size), repeats)


def build(count: int, row_bytes: int, on_gpu: bool = False) -> tuple[Table, Tensor, float]:
    """A table, the rows that it repeats, and the seconds that its preparation takes."""
    piece = torch.randint(0, 256, (min(count, PIECE), row_bytes), dtype=torch.uint8)
    table = Table(count, row_bytes, GPU if on_gpu else "cpu")

    def fill() -> None:
        for start in range(0, count, PIECE):
            table.fill(start, piece[: count - start])

    return table, piece, seconds(fill, 1)


def check(setting: Setting, table: Table, piece: Tensor, keys: tuple[Tensor, Tensor, Tensor], alphas: Tensor) -> None:
    """HummingbirdError unless both parties' answers give the wanted rows."""
    if setting.width:
        one, two = (table.answer_sum(k, setting.width).view(WIDTHS[setting.width]) for k in keys[:2])
        got = (keys[2].to(one.dtype)[:, None] * (one - two)).view(torch.uint8)
    else:
        got = table.answer(keys[0]) ^ table.answer(keys[1])
    if not torch.equal(got, piece[alphas % len(piece)]):
        raise HummingbirdError("a wrong row", where=str(setting))


def measure(setting: Setting, table: Table, piece: Tensor, read: float, repeats: int) -> dict[str, Any]:
    """One row of the result."""
    alphas = torch.randint(0, setting.rows, (setting.batch,))
    keys, wall = generate(alphas, setting.rows, setting.prf), setting.on_gpu or setting.threads > 1
    clock = time.perf_counter if wall else time.thread_time
    torch.set_num_threads(setting.threads)
    with on_path(setting.path) as path:
        check(setting, table, piece, keys, alphas)
        if setting.width:
            took = seconds(lambda: table.answer_sum(keys[0], setting.width), repeats, clock)
        else:
            took = seconds(lambda: table.answer(keys[0]), repeats, clock)
    rate, mark = setting.batch / took, (MARKS | GPU_MARKS).get(setting)
    row: dict[str, Any] = {
        "kind": "answer",
        **setting._asdict(),
        "path": path,
        "milliseconds": 1e3 * took,
        "queries_per_second": rate,
        "read_milliseconds": 1e3 * read,
        "read_gigabytes_per_second": setting.rows * setting.row_bytes / read / 1e9,
        "times_of_reading": took / read,
        "mark": f">= {mark:,}/s" if mark else "",
        "met": rate >= mark if mark else None,
    }
    if setting == LONE_QUERY:
        row |= {"mark": f"<= {LONE} reads", "met": took <= LONE * read}
    return row


def expansion(prf: str, path: str, repeats: int, count: int = MILLION) -> dict[str, Any]:
    """Time of making all selection bits of a key; 512 KiB of them in all, for 2^20 rows, stay in the cache."""
    keys, _, _ = generate(torch.randint(0, count, (4,)), count, prf)
    leaves = lookups.leaves_of(count)
    out = torch.empty((len(keys), leaves * lookups.LEAF_BYTES), dtype=torch.uint8)
    expand = library.handle().hb_dpf_expand  # `lookups.expand` would make a new `out` each time
    with on_path(path) as name:
        took = seconds(lambda: expand(keys.data_ptr(), *keys.shape, 0, leaves, out.data_ptr()), repeats) / len(keys)
    mark = EXPANSION_MARKS[prf] if not path and count == MILLION else None
    return {
        "kind": "expansion",
        "rows": count,
        "prf": prf,
        "path": name,
        "microseconds": 1e6 * took,
        "mark": f"<= {mark:.0f} us" if mark else "",
        "met": 1e6 * took <= mark if mark else None,
    }


def key_generation(prf: str, count: int, repeats: int) -> dict[str, Any]:
    """Time of making a pair of keys, at a client."""
    alphas = torch.randint(0, count, (192,))
    took = seconds(lambda: generate(alphas, count, prf), repeats) / len(alphas)
    return {
        "kind": "keys",
        "rows": count,
        "prf": prf,
        "microseconds": 1e6 * took,
        "key_bytes": lookups.key_bytes(count),
    }


def other_functions(repeats: int) -> list[dict[str, Any]]:
    """Time of a block of 16 bytes by functions of `cryptography`, and of a key's expansion if it took these blocks.

    A tree over n leaves takes 8 n blocks for its leaves and 2 (n - 1) for its nodes.
    """
    data, out, leaves = bytes(1 << 20), bytearray((1 << 20) + 16), lookups.leaves_of(MILLION)

    def sha256() -> None:
        digest = hashes.Hash(hashes.SHA256())
        digest.update(data)
        digest.finalize()

    aes = Cipher(algorithms.AES(bytes(16)), modes.ECB()).encryptor()
    chacha = Cipher(algorithms.ChaCha20(bytes(32), bytes(16)), None).encryptor()
    # A block of SHA-256 takes 64 bytes and gives 32: as many blocks of 16 bytes as the data have 32.
    functions = {
        "AES-128": (lambda: aes.update_into(data, out), 16),
        "ChaCha20": (lambda: chacha.update_into(data, out), 16),
        "SHA-256": (sha256, 32),
    }
    rows = list[dict[str, Any]]()
    for name, (run, size) in functions.items():
        block = seconds(run, repeats) / (len(data) / size)
        rows.append(
            {
                "kind": "function",
                "prf": name,
                "nanoseconds_per_block": 1e9 * block,
                "microseconds": 1e6 * block * (8 * leaves + 2 * (leaves - 1)),
            }
        )
    return rows


def settings_of(args: argparse.Namespace) -> list[Setting]:
    """Settings to run: the plan's, or all combinations of the given options."""
    given = (args.rows, args.row_bytes, args.batch, args.prf, args.decoders, args.paths, args.threads)
    if not any(given):
        return PLAN
    defaults = ([MILLION], [256], [1, 32, 192], ["aes"], ["xor"], [""], [1])
    chosen = [values or default for values, default in zip(given, defaults, strict=True)]
    return sorted(itertools.starmap(Setting, itertools.product(*chosen)), key=table_of)


def table_of(setting: Setting) -> tuple[int, int, bool]:
    """The table that a setting needs: rows, bytes of a row, and whether it is on a GPU."""
    return setting.rows, setting.row_bytes, setting.on_gpu


def run(args: argparse.Namespace) -> None:
    """Measure all settings, print the tables, write the rows."""
    for option in ("rows", "row_bytes", "batch", "threads"):
        if any(number < 1 for number in getattr(args, option) or ()):
            raise InputError("at least one", where=f"--{option.replace('_', '-')}")
    if args.repeats < 1:
        raise InputError("at least one", where="--repeats")
    check_outputs(args)
    if not library.available():
        hint = "install the package again, with a C++ compiler, and unset HUMMINGBIRD_KERNELS"
        raise EnvironmentProblem("the kernels in C++ are not there", where="kernels", hint=hint)
    settings = settings_of(args)
    for setting in settings:
        if setting.on_gpu and (setting.prf, setting.decoder) not in {("chacha12", f"sum{width}") for width in WIDTHS}:
            hint = "give --prf chacha12 --decoders sum32"
            raise InputError("a GPU answers sums to ChaCha12 keys only", where="--paths cuda", hint=hint)
    for path in args.paths or ():
        with on_path(path):
            pass
    torch.set_num_threads(1)
    result: list[dict[str, Any]] = []
    if settings is PLAN:
        result += [key_generation(prf, count, args.repeats) for prf in PRFS for count in (1 << 14, MILLION, 1 << 22)]
        result += other_functions(5 * args.repeats)
    expansions = list(itertools.product(PRFS, ("", "avx2", "portable"))) if settings is PLAN else []
    with progress_line(total=len(settings) + len(expansions), unit="setting") as bar:
        for prf, path in expansions:
            with _left_out(bar):
                result.append(expansion(prf, path, 5 * args.repeats))
            bar.update()
        for (count, row_bytes, on_gpu), group in itertools.groupby(settings, key=table_of):
            bar.set_description(f"{count:,} rows of {row_bytes} bytes")
            table, piece, took = build(count, row_bytes, on_gpu)
            read, size = read_seconds(count * row_bytes, 3 * args.repeats, on_gpu), count * row_bytes
            result.append(
                {
                    "kind": "table",
                    "rows": count,
                    "row_bytes": row_bytes,
                    "prepare_gigabytes_per_second": size / took / 1e9,
                    "read_gigabytes_per_second": size / read / 1e9,
                }
            )
            for setting in group:
                with _left_out(bar):
                    result.append(measure(setting, table, piece, read, args.repeats))
                bar.update()
    show(result)
    write_rows(args.json, [row | machine() for row in result])


@contextlib.contextmanager
def _left_out(bar: Any) -> Iterator[None]:
    """A setting of the plan for which this machine lacks an instruction set."""
    try:
        yield
    except EnvironmentProblem as problem:
        bar.write(f"left out: {problem.what}", file=sys.stderr)


def show(result: list[dict[str, Any]]) -> None:
    """Print the rows as tables."""
    said = {True: "yes", False: "NO", None: ""}
    print("DPF expansion included; the least of the repeats\n")
    cells = [
        (
            f"{r['rows']:,} x {r['row_bytes']} B",
            r["prf"],
            r["decoder"],
            r["path"],
            f"{r['threads']}",
            f"{r['batch']}",
            f"{r['milliseconds']:.2f}",
            f"{r['times_of_reading']:.2f}",
            f"{r['queries_per_second']:,.0f}",
            r["mark"],
            said[r["met"]],
        )
        for r in result
        if r["kind"] == "answer"
    ]
    head = ("table", "PRF", "decoder", "runs on", "threads", "batch", "ms", "reads", "queries/s", "mark", "met")
    print(text_table(head, cells, left=4))
    for r in (r for r in result if r["kind"] == "expansion"):
        text = f"{r['rows']:,} bits by {r['prf']} on {r['path']}: {r['microseconds']:.1f} us"
        mark = f" (mark {r['mark']}: {said[r['met']]})" if r["mark"] else ""
        print(f"\nexpansion of a key to {text}{mark}", end="")
    for r in (r for r in result if r["kind"] == "function"):
        print(f"\n{r['prf']} of cryptography: {r['nanoseconds_per_block']:.2f} ns for 16 bytes, ", end="")
        print(f"which makes {r['microseconds']:.1f} us for such a key", end="")
    for r in (r for r in result if r["kind"] == "keys"):
        text = f"{r['rows']:,} rows by {r['prf']}: {r['microseconds']:.1f} us, {r['key_bytes']} bytes each"
        print(f"\nmaking two keys for {text}", end="")
    for r in (r for r in result if r["kind"] == "table"):
        speeds = [r[f"{what}_gigabytes_per_second"] for what in ("read", "prepare")]
        shape = f"{r['rows']:,} x {r['row_bytes']} B"
        print(f"\n{shape}: read at {speeds[0]:.1f} GB/s, prepared at {speeds[1]:.1f} GB/s", end="")
    print("\n\nqueries/s of GPU-DPF (Lam et al., ASPLOS 2024), 2^20 rows, as published:")
    print("\n".join(f"  {name:<16} {rate}" for name, rate in PAPER))


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = new_parser(__doc__)
    p.add_argument("--rows", nargs="+", type=int, metavar="N", help="rows of the table (default 2^20)")
    p.add_argument("--row-bytes", nargs="+", type=int, metavar="N", help="bytes of a row (default 256)")
    p.add_argument("--batch", nargs="+", type=int, metavar="N", help="queries at once (default 1 32 192)")
    p.add_argument("--prf", nargs="+", choices=tuple(PRFS), help="of the keys (default aes)")
    p.add_argument("--decoders", nargs="+", choices=DECODERS, help="XOR, or sums of words (default xor)")
    p.add_argument("--paths", nargs="+", choices=PATHS, help="instruction sets (default: the fastest)")
    p.add_argument("--threads", nargs="+", type=int, metavar="N", help="threads that share a table (default 1)")
    p.add_argument("--repeats", type=int, default=5, help="of which the least time is shown (default: %(default)s)")
    add_json(p)
    return p


main = main_of(parser, run)


if __name__ == "__main__":
    sys.exit(main())
