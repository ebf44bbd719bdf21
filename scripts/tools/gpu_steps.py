"""The steps of `scripts.tools.gpu`, in the order of value."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hummingbird.errors import EnvironmentProblem
from scripts.program import ROOT
from scripts.tools.gpu_setup import CARRIED  # whose modules have the same names

_RESNET = ["-m", "scripts.bench.resnet", "--weights", "random", "--windows", "20:12", "--contestants", "stored"]
_BOTH = ["--links", "loopback", "10gbit"]  # batches are six slices: three are under way at a time


@dataclass(frozen=True)
class Run:
    """The options of a call that steps need: the wheels' folder, and the device, a CPU for the dry run."""

    wheels: Path | None
    device: str

    @property
    def tiny(self) -> bool:
        """Whether this is the dry run."""
        return self.device == "cpu"


@dataclass(frozen=True)
class Step:
    """One program. seconds: expected on an H100 with 16 cores. words: after the name of Python; None if there is
    nothing to do. writes: whether it takes `--json FILE` for its figures.

    always: for a step that prepares the machine, which every call needs. needs: a program that must be installed.
    """

    name: str
    what: str
    seconds: float
    words: Callable[[Run], list[str] | None]
    writes: bool = True
    always: bool = False
    needs: str = ""
    before: tuple[str, ...] = ()  # words before Python's name
    environment: dict[str, str] = field(default_factory=dict)


def _bench(common: list[str], full: list[str], tiny: list[str], device: bool = True) -> Callable[[Run], list[str]]:
    """A benchmark's words: some common ones, some by size, and the device."""

    def words(run: Run) -> list[str]:
        return [*common, *(tiny if run.tiny else full), *(["--device", run.device] if device else [])]

    return words


def _wheels(run: Run) -> list[str] | None:
    """Install what is missing of the wheels; nothing is fetched."""
    missing = [name for name in CARRIED if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    found = sorted(map(str, run.wheels.glob("*.whl"))) if run.wheels else []
    if not found:
        hint = "give --wheels a folder that `python -m scripts.tools.gpu wheels` has filled on a machine with a network"
        raise EnvironmentProblem(f"not installed here: {', '.join(missing)}", where="--wheels", hint=hint)
    return ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", *found]


def _native(run: Run) -> list[str]:
    """Build the C++ kernels, unless they are there and load."""
    return ["-c", "import sys; from scripts.tools.gpu_setup import build_kernels; sys.exit(build_kernels())"]


def _tests(run: Run) -> list[str]:
    """The files with tests marked `gpu`; not in several processes where all of them are skipped."""
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    many = [] if run.tiny or importlib.util.find_spec("xdist") is None else ["-n", "6", "--dist", "load"]
    return ["-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *many, *map(str, files)]


def _pir(run: Run) -> list[str]:
    words = ["-m", "scripts.bench.pir", "--prf", "chacha12", "--decoders", "sum32"]
    if run.tiny:
        return [*words, "--rows", "3000", "--row-bytes", "8", "--batch", "3", "--repeats", "1"]
    return [*words, "--rows", str(1 << 20), "--row-bytes", "256", "--batch", "64", "512", "2048", "--paths", run.device]


_SMOKE = _bench(["-m", "scripts.bench.kernels", "--check"], ["--elements", "100003"], ["--elements", "67"])
_SANITIZED = _bench(["-m", "scripts.bench.kernels", "--check", "--triton"], ["--elements", "1003"], ["--elements", "9"])

STEPS = [
    Step("wheels", "packages that this machine lacks", 20, _wheels, writes=False, always=True),
    Step("native", "the C++ kernels are built", 60, _native, writes=False, always=True),
    Step("smoke", "every kernel once, against its definition", 60, _SMOKE),
    Step(
        "resnet18",
        "ResNet-18 on 516 CIFAR-sized images",
        150,
        _bench(
            [*_RESNET, "--model", "resnet18"],
            [*_BOTH, "--batch", "516", "--slice", "86", "--repeats", "2"],
            ["--batch", "2", "--slice", "1", "--repeats", "1"],
        ),
    ),
    Step("tests", "the tests marked gpu", 150, _tests, writes=False),
    Step(
        "kernels",
        "every kernel's share of its roof",
        60,
        _bench(["-m", "scripts.bench.kernels"], ["--elements", str(1 << 24)], ["--elements", "9"]),
    ),
    Step(
        "products",
        "linear layers of shares, by every way that is exact",
        90,
        _bench(
            ["-m", "scripts.bench.linear", "--no-torch"],
            ["--model", "resnet18", "--batch", "512", "--budget", "0.1"],
            ["--model", "resnet18", "--batch", "1", "--budget", "0.001"],
        ),
    ),
    Step(
        "relu",
        "ReLUs between two parties on one device",
        70,
        _bench(
            ["-m", "scripts.bench.relu", "--windows", "20:12", "--contestants"],
            ["masked", "stored", *_BOTH, "--count", "10000000", "--repeats", "3"],
            ["stored", "--count", "1000", "--repeats", "1"],
        ),
    ),
    Step("pir", "lookups in 2^20 rows of 256 bytes", 40, _pir),
    Step(
        "resnet50",
        "ResNet-50 on 18 ImageNet-sized images",
        150,
        _bench(
            [*_RESNET, "--model", "resnet50_imagenet"],
            [*_BOTH, "--batch", "18", "--slice", "3", "--repeats", "2"],
            ["--batch", "2", "--slice", "1", "--size", "32", "--repeats", "1"],
        ),
    ),
    Step(
        "he",
        "MobileNetV2 on encrypted images",
        120,
        _bench(
            ["-m", "scripts.bench.he", "--only", "mobilenet"],
            ["--batch", "4096", "--size", "96"],
            ["--batch", "2", "--size", "32"],
        ),
    ),
    *(
        Step(
            tool,
            f"compute-sanitizer's {tool} on a small run of each Triton kernel",
            100,
            _SANITIZED,
            needs="compute-sanitizer",
            before=("compute-sanitizer", "--tool", tool, "--error-exitcode", "86", "--print-limit", "20"),
            # Blocks of a cache would hide what is beyond a tensor.
            environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        )
        for tool in ("memcheck", "racecheck")
    ),
    Step(
        "tune",
        "sizes of the kernels' tiles are searched",
        200,
        _bench(
            ["-m", "scripts.bench.kernels", "--tune"],
            ["chacha20", "mask_words", "open_words", "compare_opened", "lift", "deal_masks", "dpf"]
            + ["evaluate_opened", "deal_polynomials"],
            ["open_words", "--elements", "9"],
        ),
    ),
    Step(
        "tune-products",
        "the same for products",
        300,
        _bench(
            ["-m", "scripts.bench.kernels", "--tune"], ["cut", "multiply", "multiply_wide"], ["cut", "--elements", "9"]
        ),
    ),
    Step(
        "tune-rows",
        "the same for sums of rows",
        300,
        _bench(["-m", "scripts.bench.kernels", "--tune"], ["rows"], ["open_words", "--elements", "9"]),
    ),
]


def missing(step: Step) -> str:
    """The program that a step needs and that is not installed, or ""."""
    return step.needs if step.needs and shutil.which(step.needs) is None else ""
