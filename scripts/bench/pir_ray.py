"""A lookup server's table in parts on a Ray cluster: processor time of its passes, beside those of one process.

    python -m scripts.bench.pir_ray --json pir-ray.json
    python -m scripts.bench.pir_ray --rows 16777216 --row-bytes 32 --parts 4 --keys 192 --passes 40

Both answer the same keys, and every answer must be equal. The cluster is one of this host, on loopback: this shows what
the division and Ray cost, and not what more hosts gain. "work" is the processor time of the server and the parts, "all"
also that of Ray's other processes meanwhile, which they take without work too.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hummingbird.commands.output import check_outputs
from hummingbird.commands.program import machine
from hummingbird.errors import AgreementError, InputError, needs
from hummingbird.pir import Server, Source, dpf
from hummingbird.pir.serving.ray_parts import RayPart, RayParts
from scripts.program import add_json, columns, main_of, new_parser, write_rows

_TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds, in which processor time is counted


def spent() -> dict[str, float]:
    """Seconds of processor time: of this process and those of parts ("work"), and of all processes below this one,
    ended ones too ("all").
    """
    found = dict[int, tuple[int, str, float, float]]()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            head, _, rest = (path / "stat").read_text().rpartition(")")
            name = (path / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        parent, *times = (int(rest.split()[at]) for at in (1, 11, 12, 13, 14))  # its own, and its ended children's
        found[int(path.name)] = (parent, name, sum(times[:2]) * _TICK, sum(times) * _TICK)
    total = {"work": 0.0, "all": 0.0}
    for pid, (_, name, own, whole) in found.items():
        above = pid
        while above not in (0, os.getpid()):
            above = found[above][0] if above in found else 0
        if above:
            total["all"] += whole
            works = pid == os.getpid() or name.startswith(f"ray::{RayPart.__name__}")
            total["work"] += own if works else 0.0
    return total


def timed(server: Server, keys: torch.Tensor, decoder: str, passes: int) -> tuple[list[torch.Tensor], dict[str, float]]:
    """The answers of some passes; wall seconds, and processor seconds as `spent` divides them, of one pass."""
    server.answer(keys, decoder)
    before, started = spent(), time.perf_counter()
    answers = [server.answer(keys, decoder)[1] for _ in range(passes)]
    wall, after = time.perf_counter() - started, spent()
    return answers, {"wall": wall / passes, **{name: (after[name] - before[name]) / passes for name in after}}


def measure(args: argparse.Namespace, path: Path) -> list[dict[str, Any]]:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "_node_ip_address": "127.0.0.1"}
    ray.init("local", num_cpus=args.parts, object_store_memory=200 << 20, **options)
    rows = []
    try:
        whole, parts = Server(Source.open(path), 0), RayParts("local", path, None, args.parts)
        divided = Server(Source.open(path), 0, shard=parts)
        if whole.state != divided.state:
            raise AgreementError("the parts have another table than one process", where=str(path))
        for decoder in ("xor", "sum"):
            keys = dpf.generate(torch.randint(args.rows, (args.keys,)), args.rows)[0]
            row = {"rows": args.rows, "row_bytes": args.row_bytes, "keys": args.keys, "decoder": decoder}
            sides = {}
            for name, server in (("one", whole), ("ray", divided)):
                sides[name], took = timed(server, keys, decoder, args.passes)
                row |= {f"{name}_{what}_seconds": seconds for what, seconds in took.items()}
            for one, other in zip(sides["one"], sides["ray"], strict=True):
                if not one.equal(other):
                    raise AgreementError("the parts answer otherwise than one process", where=decoder)
            for what in ("work", "all"):
                row[f"{what}_ratio"] = row[f"ray_{what}_seconds"] / max(row["one_work_seconds"], _TICK)
            rows.append({**row, "parts": args.parts, "passes": args.passes, **machine()})
        divided.close()
    finally:
        ray.shutdown()
    return rows


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = new_parser(__doc__)
    p.add_argument("--rows", type=int, default=1 << 24, help="rows of the table (default 2^24)")
    p.add_argument("--row-bytes", type=int, default=32, help="bytes in a row, a multiple of 4 (default 32)")
    p.add_argument("--parts", type=int, default=4, help="actors, of one thread each (default 4)")
    p.add_argument("--keys", type=int, default=192, help="keys in a pass (default 192)")
    p.add_argument("--passes", type=int, default=40, help="passes of each decoder (default 40)")
    add_json(p)
    return p


def run(args: argparse.Namespace) -> None:
    """Measure, print the table, and write the rows."""
    if min(args.rows, args.row_bytes, args.parts, args.keys, args.passes) < 1 or args.row_bytes % 4:
        where = "--rows, --row-bytes, --parts, --keys, --passes"
        raise InputError("a number that cannot be meant", where=where, hint="at least 1; a row has whole words")
    check_outputs(args)
    with needs("ray", "this program"):
        import ray  # noqa: F401
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="hb") as name:
        path = Path(name) / "table.npy"
        table = np.lib.format.open_memmap(path, "w+", np.int32, (args.rows, args.row_bytes // 4))
        for start in range(0, args.rows, 1 << 18):
            part = table[start : start + (1 << 18)]
            part[:] = torch.randint(-(1 << 31), (1 << 31) - 1, part.shape, dtype=torch.int32).numpy()
        del table, part
        rows = measure(args, path)
    shown = [
        *(("decoder", "{decoder}"), ("one process", "{one_work_seconds:.3f} s"), ("work", "{ray_work_seconds:.3f} s")),
        *(("work / one", "{work_ratio:.3f}"), ("all / one", "{all_ratio:.3f}")),
        *(("wall, one", "{one_wall_seconds:.3f} s"), ("wall, parts", "{ray_wall_seconds:.3f} s")),
    ]
    print(
        f"{args.rows:,} rows of {args.row_bytes} bytes in {args.parts} parts, {args.keys} keys a pass, "
        f"{os.cpu_count()} cores; processor time of a pass; all answers are equal"
    )
    print(columns(rows, shown))
    write_rows(args.json, rows)


main = main_of(parser, run)


if __name__ == "__main__":
    sys.exit(main())
