"""The runs: every command whose figures are evidence, and the code that each one measures."""

from __future__ import annotations

from scripts.papers.evidence import Run

_CSRC = "hummingbird/kernels/cpu/csrc"
_HE = (
    *("hummingbird/he/scheme/*.py", "hummingbird/he/runtime/*.py", "hummingbird/kernels/cpu/ciphertexts.py"),
    *(f"{_CSRC}/ciphertexts.cpp", f"{_CSRC}/ntt.*", f"{_CSRC}/products.cpp"),
)
_LOOKUPS = (f"{_CSRC}/dpf.*", f"{_CSRC}/slices.h", "hummingbird/kernels/cpu/lookups.py", "hummingbird/pir/dpf.py")
_PLANS = (*_LOOKUPS, "hummingbird/pir/batching/*.py", "search/pir_*.py")
_GARBLING = (f"{_CSRC}/garble.*", "hummingbird/hybrid/gc/*.py")
_HYBRID = (
    *_GARBLING,
    *("hummingbird/he/bfv/*.py", f"{_CSRC}/bfv.cpp", f"{_CSRC}/ntt.*", f"{_CSRC}/cot.cpp", "hummingbird/ot/*.py"),
)
_SHARES = ("hummingbird/mpc/protocols/masked.py", "hummingbird/mpc/protocols/gmw.py", f"{_CSRC}/masked.cpp")
_PLAN = "python -m search.pir_plan --budget-bytes 300kB 150kB 75kB"

RUNS = {
    run.name: run
    for run in (
        Run("he-nets", "python -m scripts.bench.he --only nets torch sockets", _HE, 6, 1),
        Run("he-parts", "python -m scripts.bench.he --only kernels ablation", _HE, 2),
        *(
            Run(
                f"he-mobilenet-{size}",
                f"python -m scripts.bench.he --only mobilenet --size {size}",
                _HE,
                minutes,
                1,
            )
            for size, minutes in ((96, 2), (128, 3), (160, 4))
        ),
        Run("lookups", "python -m scripts.bench.pir", _LOOKUPS, 2),
        Run(
            "lookups-sizes",
            "python -m scripts.bench.pir --rows 16384 1048576 4194304 --row-bytes 64 256 1024 --batch 1 32 192 "
            "--prf aes chacha12",
            _LOOKUPS,
            8,
            1,
        ),
        Run("lookups-threads", "python -m scripts.bench.pir --batch 1 8 32 64 192 --threads 1 2", _LOOKUPS, 1),
        Run(
            "plans-wikitext2",
            f"{_PLAN} --application wikitext2 --weights checkpoints/wikitext2-lstm.pt --samples 512",
            _PLANS,
            20,
            1,
        ),
        Run(
            "plans-movielens",
            f"{_PLAN} --application movielens --weights checkpoints/movielens-mlp.pt --samples 2048",
            _PLANS,
            20,
            1,
        ),
        Run("garbling", "python -m scripts.bench.garble --adders", _GARBLING, 1),
        Run("hybrid-parts", "python -m scripts.bench.hybrid --only bytes layers", _HYBRID, 1),
        Run("hybrid-images", "python -m scripts.bench.hybrid --only images", _HYBRID, 4, 1),
        Run("hybrid-sparse", "python -m scripts.bench.hybrid --only sparse --repeats 3", _HYBRID, 3, 1),
        Run("hybrid-accuracy", "python -m scripts.bench.hybrid --only accuracy --twin 10000", _HYBRID, 15, 1),
        Run("hybrid-nets", "python -m scripts.bench.hybrid --only characterised", _HYBRID, 4, 1),
        Run("relu", "python -m scripts.bench.relu --links loopback 10gbit 352mbit", _SHARES, 6, 1),
        Run(
            "resnet",
            "python -m scripts.bench.resnet --batch 8 --weights trained --links loopback 10gbit 352mbit",
            _SHARES,
            15,
            1,
        ),
        Run(
            "costs",
            "python -m scripts.bench.costs --prices core-hour=0.0446 gb-sent=0.09 --priced 2026-11-28",
            (*_SHARES, "hummingbird/mpc/pair/*.py", "hummingbird/ot/*.py"),
            15,
            1,
        ),
        Run("windows", "python -m scripts.papers.results --checkpoints checkpoints", _SHARES, 90, 1),
    )
}
