"""The runs: every command whose figures are evidence, and the code that each one measures."""

from __future__ import annotations

from scripts.papers.evidence import Run

_CSRC = "hummingbird/kernels/cpu/csrc"
_HE = (
    *("hummingbird/he/scheme/*.py", "hummingbird/he/runtime/*.py", "hummingbird/he/compile/*.py"),
    *("hummingbird/kernels/cpu/ciphertexts.py", "scripts/bench/he*.py", f"{_CSRC}/panels.h"),
    *(f"{_CSRC}/ciphertexts.cpp", f"{_CSRC}/ntt.cpp", f"{_CSRC}/products.cpp"),
)
_LOOKUPS = (f"{_CSRC}/dpf.cpp", "hummingbird/kernels/cpu/lookups.py", "hummingbird/pir/dpf.py")
_PLANS = (*_LOOKUPS, "hummingbird/pir/batching/*.py", "search/pir_*.py")
_GARBLING = (f"{_CSRC}/garble.cpp", "hummingbird/hybrid/gc/*.py", "scripts/bench/three_adders.cpp")
_HYBRID = (
    *_GARBLING,
    *("hummingbird/he/bfv/*.py", "hummingbird/ot/*.py", "hummingbird/hybrid/*.py", "hummingbird/polynomials/*.py"),
    *(f"{_CSRC}/bfv.cpp", f"{_CSRC}/ntt.cpp", f"{_CSRC}/cot.cpp", f"{_CSRC}/monomials.cpp", "scripts/bench/hybrid*.py"),
)
_SHARES = (
    *("hummingbird/mpc/protocols/*.py", "hummingbird/mpc/layers/*.py", f"{_CSRC}/masked.cpp", f"{_CSRC}/products.cpp"),
    *(f"{_CSRC}/dealing.cpp", f"{_CSRC}/kernels.cpp"),
)
_CONTEST = (
    *_SHARES,
    "hummingbird/crypten/*.py",
    *(f"scripts/bench/{name}.py" for name in ("published", "contest", "crypten_baseline")),
)
_PLAN = "python -m search.pir_plan --budget-bytes 300kB 150kB 75kB"

RUNS = {
    run.name: run
    for run in (
        Run("he-nets", "python -m scripts.bench.he --only nets torch sockets", _HE, 6, 1),
        Run("he-10gbit", "python -m scripts.bench.he --only sockets --link 10gbit", _HE, 1, 1),
        Run("he-sparse", "python -m scripts.bench.he --only sparse", _HE, 3, 1),
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
        Run("hybrid-proxy", "python -m scripts.bench.proxy", _HYBRID, 3, 1),
        Run("hybrid-accuracy", "python -m scripts.bench.hybrid --only accuracy --twin 10000", _HYBRID, 15, 1),
        Run("hybrid-nets", "python -m scripts.bench.hybrid --only characterised", _HYBRID, 4, 1),
        Run(
            "relu-parts",
            "python -m scripts.bench.parts",
            (*(f"scripts/bench/{name}.py" for name in ("published", "crypten_baseline")), "hummingbird/crypten/*.py"),
            0.5,
            1,
        ),
        Run(
            "resnet",
            "python -m scripts.bench.resnet --batch 8 --weights trained --links loopback 10gbit 352mbit",
            _CONTEST,
            15,
            1,
        ),
        Run(
            "costs",
            "python -m scripts.bench.costs --prices core-hour=0.0446 gb-sent=0.09 --priced 2026-11-28",
            (*_SHARES, *_HYBRID, "hummingbird/mpc/pair/*.py", "hummingbird/capacity/*.py"),
            15,
            1,
        ),
        Run(
            "windows",
            "python -m scripts.papers.results --checkpoints checkpoints",
            (*_CONTEST, "hummingbird/simulation/*.py", "hummingbird/window_search/*.py"),
            90,
            1,
        ),
    )
}
