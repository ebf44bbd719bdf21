"""Which packages the base needs and which an extra brings; two packages of one import name; and types for a user."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from setuptools.config.pyprojecttoml import load_file

import hummingbird
from hummingbird.errors import EnvironmentProblem, refuse_namesake
from hummingbird.launching import sending
from hummingbird.mpc.dealer.bucket import Bucket
from hummingbird.pictures import picture
from hummingbird.rpc import spans, telemetry
from hummingbird.rpc.server import ServiceConfig, ServiceProgram
from tests.support import python
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM
from tests.test_floors import FILES, PACKAGE, last_name, nodes, parsed

PROJECT = load_file(ROOT / "pyproject.toml")["project"]
MODULES = {  # of packages whose import name is another
    "grpcio": "grpc",
    "opentelemetry-api": "opentelemetry",
    "grpcio-health-checking": "grpc_health",
    "prometheus-client": "prometheus_client",
    "typing-extensions": "typing_extensions",
}


def modules(requirements: Iterable[str]) -> set[str]:
    names = {Requirement(line).name for line in requirements}
    return {MODULES.get(name, name) for name in names}


BASE = modules(PROJECT["dependencies"])
TOOLS = ("test", "docs", "nets", "deploy")  # for those who change the package, or run its programs
EXTRAS = {name: modules(lines) for name, lines in PROJECT["optional-dependencies"].items() if name not in TOOLS}


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """The third-party modules that a file imports, each with the extra that a `with needs(..)` around it names."""
    extra: dict[ast.AST, str] = {}
    for node in nodes(parsed(path.read_text())):
        call = node.items[0].context_expr if isinstance(node, ast.With) else None
        if isinstance(node, ast.With) and isinstance(call, ast.Call) and last_name(call.func) == "needs":
            assert isinstance(call.args[0], ast.Constant)
            for child in node.body:
                extra |= dict.fromkeys(ast.walk(child), str(call.args[0].value))
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in (
            {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"hummingbird", "triton", "google"}
        ):
            yield name, extra.get(node, "")


def test_every_import_is_of_the_base_or_of_an_extra_that_code_uses() -> None:
    """Triton comes with torch where there are GPUs, Google's protobuf with CrypTen's onnx."""
    assert {"torch", "crypten", "grpc"} <= BASE
    assert {"serve", "launch", "bucket", "parquet", "ray", "plot", "hub", "trace"} == set(EXTRAS)
    found = {pair for path in FILES for pair in imports(path)}
    brought = {name: extra for extra, names in EXTRAS.items() for name in names}
    assert {name for name, _ in found} <= BASE | set(brought)
    assert {name for name, _ in found} >= (BASE - {"torchvision", "sklearn"}) | set(brought)  # those are CrypTen's
    assert {(name, extra) for name, extra in found if extra} <= {(name, brought.get(name, "")) for name, _ in found}
    assert {extra for _, extra in found} == {"", *EXTRAS}


BARRED = """
import sys
for name in {names!r}:
    sys.modules[name] = None  # an import of it would raise
import torch
import hummingbird
from hummingbird import he, hybrid, pir
from hummingbird.__main__ import COMMANDS, parser
parser(COMMANDS)
for name in hummingbird.__all__:
    getattr(hummingbird, name)
hummingbird.init()
private = hummingbird.convert_model(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()).eval())
print(tuple(private(hummingbird.cryptensor(torch.rand(3, 4))).get_plain_text().shape))
"""


AGAIN = """
import sys
for name, module in list(sys.modules.items()):
    given = name.startswith("torch.") and not module.__spec__  # by the adapter to CrypTen, in place of torch's
    if given or name.split(".")[0] in ("crypten", "hummingbird", *{names!r}):
        del sys.modules[name]
"""


@pytest.mark.parametrize(
    "start", [pytest.param(python.run, id="fork"), pytest.param(subprocess.run, id="new", marks=pytest.mark.slow)]
)
def test_the_base_runs_without_the_extras(start: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """A new interpreter imports other packages, too, without them; a fork this package alone."""
    names = sorted(set().union(*EXTRAS.values()))
    program = ("" if start is subprocess.run else AGAIN) + BARRED
    words = [sys.executable, "-W", "ignore", "-c", program.format(names=names)]
    ended = start(words, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM)
    assert ended.returncode == 0 and ended.stdout == "(3, 2)\n", ended.stdout + ended.stderr


def metrics(tmp_path: Path) -> None:
    ServiceProgram("test", ServiceConfig((f"unix:{tmp_path}/s",), metrics="0"))


def health(tmp_path: Path) -> None:
    telemetry.ask(f"unix:{tmp_path}/s")


def launched(tmp_path: Path) -> None:
    sending.packed_call(print, (), {})


def in_bucket(tmp_path: Path) -> None:
    Bucket(f"file://{tmp_path}", 0)


def traced(tmp_path: Path) -> None:
    spans.enable()


def plotted(tmp_path: Path) -> None:
    with picture(1, 1):
        pass


@pytest.mark.parametrize(
    ("use", "module", "extra"),
    [
        (metrics, "prometheus_client", "serve"),
        (health, "grpc_health", "serve"),
        (launched, "cloudpickle", "launch"),
        (in_bucket, "obstore", "bucket"),
        (plotted, "matplotlib", "plot"),
        (traced, "opentelemetry", "trace"),
    ],
)
def test_what_lacks_its_extra_names_it(
    use: Callable[[Path], None], module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "hummingbird.rpc.metrics", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EnvironmentProblem, match=f"needs the package {module}.*") as caught:
        use(tmp_path)
    assert caught.value.hint == f"pip install 'hummingbird-mpc[{extra}]'" and extra in EXTRAS


# Another package of this import name ----------------------------------------------------------------------------------

THEIRS = (
    '__version__ = "0.4.12"\n__domain__ = "microsoft.gsl"\n'  # hummingbird-ml's own hummingbird/__init__.py, in part
)


def test_two_packages_of_the_import_name_are_an_error_at_import(tmp_path: Path) -> None:
    """Installed beside each other, and into one folder, where the last one's __init__.py stays."""
    refuse_namesake()
    beside, over = tmp_path / "beside/hummingbird/ml", tmp_path / "over/hummingbird/ml"
    for folder in (beside, over):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder.parent / "__init__.py").write_text(THEIRS)
    for name in ("__main__.py", "errors.py", "version.py"):
        (over.parent / name).write_text((PACKAGE / name).read_text())
    for where, words in (
        (f"{ROOT}:{beside.parent.parent}", ["-c", "import hummingbird"]),
        (str(over.parent.parent), ["-m", "hummingbird", "info"]),
    ):
        ended = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={"PYTHONPATH": where},
            capture_output=True,
            text=True,
            timeout=PROGRAM,
        )
        assert ended.returncode == 1
        assert "two packages of the import name hummingbird are installed" in ended.stderr
        assert "hummingbird/ml/__init__.py)\nhint: use an environment for each" in ended.stderr


# Types for a user -----------------------------------------------------------------------------------------------------

PROGRAM_WITH_TYPES = "tests/support/typed_program.py"
CHECKERS = {
    "mypy": ["mypy", "--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={ROOT}/.mypy_cache/strict"],
    "pyright": ["pyright", "--level=error", f"--pythonpath={sys.executable}"],
}


def test_the_program_with_types_has_every_public_name() -> None:
    """`make lint` checks what it asserts of them."""
    tree = ast.parse((ROOT / PROGRAM_WITH_TYPES).read_text())
    names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {f"hummingbird.{name}" for name in hummingbird.__all__} <= names


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_user_s_program_with_types_passes_strict_checkers(checker: str) -> None:
    if checker == "pyright" and not (importlib.util.find_spec("pyright") and shutil.which("node")):
        pytest.skip("pyright or node is not installed")
    words = [sys.executable, "-m", *CHECKERS[checker], PROGRAM_WITH_TYPES]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_package_says_that_it_has_types() -> None:
    assert (PACKAGE / "py.typed").is_file()
