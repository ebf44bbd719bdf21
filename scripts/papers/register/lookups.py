"""Lam et al., private embedding lookups: Tables 1, 2, 4 and 5, Figures 3 to 20. Table 3 names machines."""

from __future__ import annotations

from typing import Any

from scripts.papers.items import IN_KIND, NOT, Item, Line, Paper

_MILLION, _SMALL, _LARGE = 1 << 20, 1 << 14, 1 << 22
_GPU = "how GPUs are used; no machine with a GPU measured it"


def _rate(what: str, paper: str, run: str, **where: Any) -> Line:
    row = {"kind": "answer", "prf": "aes", "decoder": "xor", **where}
    return Line(f"{what}: queries a second", paper, run, row, "queries_per_second", "{:,.0f}")


def _size(rows: int, row_bytes: int, batch: int, paper: str = "-") -> Line:
    what = f"{rows:,} rows of {row_bytes} B, one core, batch {batch}"
    return _rate(what, paper, "lookups-sizes", rows=rows, row_bytes=row_bytes, batch=batch)


def _latency(batch: int) -> Line:
    where = {"kind": "answer", "batch": batch, "threads": 1}
    return Line(f"batch {batch}: milliseconds", "-", "lookups-threads", where, "milliseconds", "{:,.1f}")


def _keys(rows: int, prf: str) -> Line:
    where = {"kind": "keys", "rows": rows, "prf": prf}
    what = f"a pair of keys for {rows:,} rows, {prf}: microseconds"
    return Line(what, "-", "lookups", where, "microseconds", "{:.1f}")


def _function(prf: str, paper: str) -> Line:
    where = {"kind": "function", "prf": prf}
    what = f"{prf} of the package cryptography: microseconds for a key's blocks, 2^20 rows"
    return Line(what, paper, "lookups", where, "microseconds", "{:,.0f}")


PAPER = Paper(
    name="GPU-DPF",
    source="Lam et al.: GPU-based Private Information Retrieval for On-Device Machine Learning Inference (ASPLOS 2024)",
    machine="NVIDIA V100; a CPU with 32 threads",
    items=(
        Item(
            "Tables 1 and 2",
            "sizes of embedding tables, 1 to 90 GB, and of a real model's five tables",
            IN_KIND,
            "10^8 rows of 32 B by keyword, and 20 tables in one request, on two cores",
            "lookup.md#large-tables",
        ),
        Item(
            "Table 4 and Figure 15",
            "queries a second by size of table: GPU, and CPU with 1 and 32 threads",
            IN_KIND,
            "one core and two threads in place of a V100 and 32 threads; rows of 256 B",
            "lookup.md",
            (
                _size(_SMALL, 256, 192, "60,347 (V100), 2,810 (32 threads)"),
                _size(_MILLION, 256, 192, "965 to 1,358 (V100), 21.2 (32 threads), 1.3 (1 thread)"),
                _size(_LARGE, 256, 192, "468 (V100), 12 (32 threads)"),
                _rate(
                    "2^20 rows of 256 B, batch 192, 1 thread",
                    "1.3",
                    "lookups-threads",
                    rows=_MILLION,
                    row_bytes=256,
                    batch=192,
                    threads=1,
                ),
                _rate(
                    "2^20 rows of 256 B, batch 192, 2 threads",
                    "21.2 (32 threads)",
                    "lookups-threads",
                    rows=_MILLION,
                    row_bytes=256,
                    batch=192,
                    threads=2,
                ),
            ),
        ),
        Item(
            "Table 5",
            "pseudo-random functions: AES-128, SHA-256, ChaCha20, SipHash, HighwayHash",
            IN_KIND,
            "AES and ChaCha12 answer queries here; AES, ChaCha20 and SHA-256 of the package cryptography are timed "
            "alone, and it has no SipHash and no HighwayHash",
            "lookup.md",
            (
                *(
                    _rate(
                        f"{prf}, 2^20 rows of 256 B, one core, batch 192",
                        paper,
                        "lookups-sizes",
                        rows=_MILLION,
                        row_bytes=256,
                        batch=192,
                        prf=prf,
                    )
                    for prf, paper in (("aes", "965 (V100)"), ("chacha12", "3,640 (V100, ChaCha20)"))
                ),
                _function("AES-128", "-"),
                _function("ChaCha20", "-"),
                _function("SHA-256", "-"),
            ),
        ),
        Item(
            "Figure 3",
            "making keys is cheap",
            IN_KIND,
            "on one core",
            "lookup.md",
            tuple(_keys(rows, prf) for rows in (_SMALL, _MILLION, _LARGE) for prf in ("aes", "chacha12")),
        ),
        Item("Figures 5, 6, 8 and 9", "strategies of expansion, and the use of a GPU", NOT, _GPU, "gpu.md"),
        Item(
            "Figure 7",
            "expansion and product fused",
            NOT,
            "the kernel for CPUs has only the fused form; for GPUs, " + _GPU,
            "gpu.md",
        ),
        Item(
            "Figure 11",
            "perplexity and AUC against the rate",
            IN_KIND,
            "nets trained here, on WikiText-2 and on the small set of MovieLens (100,000 ratings); one core",
            "lookup-plans.md",
        ),
        Item("Figure 12", "the time from a query to the net's answer, over 60 Mb/s", NOT, "not measured yet"),
        Item(
            "Figure 13",
            "latency against queries a second",
            IN_KIND,
            "by size of batch, on one core",
            "lookup.md",
            tuple(_latency(batch) for batch in (1, 8, 32, 64, 192)),
        ),
        Item(
            "Figure 14",
            "queries a second by bytes of a row",
            IN_KIND,
            "on one core",
            "lookup.md",
            tuple(_size(_MILLION, row_bytes, 192) for row_bytes in (64, 256, 1024)),
        ),
        Item(
            "Figures 16 and 17",
            "the worth of co-design: rate, computation and bytes at fixed quality",
            IN_KIND,
            "nets trained here; one core: co-design gains where little may be lost, and nothing over bins with enough "
            "keys where 5 % may be",
            "lookup-plans.md",
        ),
        Item(
            "Figures 18 and 19",
            "the same for several budgets",
            IN_KIND,
            "300, 150 and 75 kB; nets trained here",
            "lookup-plans.md",
        ),
        Item("Figure 20", "the same for Taobao", NOT, "its data are not at hand"),
    ),
)
