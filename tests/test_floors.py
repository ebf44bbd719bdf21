"""The house rules that a program can check: who imports whom, where randomness comes from, sizes, paths."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.patience import PROGRAM

PACKAGE = ROOT / "hummingbird"
FILES = sorted(PACKAGE.rglob("*.py"))


def offenders(rule: Callable[[Path], object]) -> dict[str, object]:
    """Files of the package that break a rule, each with the breaches that `rule` finds in it."""
    found = {str(path.relative_to(PACKAGE)): rule(path) for path in FILES}
    return {name: breaches for name, breaches in found.items() if breaches}


# By the first part of the name below `hummingbird`; a module that is not listed has no floor, which fails the test.
FLOORS = [
    {"errors", "version", "table", "structure", "disk", "records"},
    {"ring", "inputs", "bits", "cost", "prg", "ledger", "fitting", "graph", "kernels"},
    {"channel", "rpc", "ranks"},
    {"mpc", "crypten", "he", "pir", "hybrid.gc"},
    {"hybrid"},
    {"convert", "saving", "report", "capacity", "simulation", "window_search", "lookup", "launching", "serving"},
    {"__init__", "__main__", "commands", "selftest"},
]
SIBLINGS = {"mpc", "he", "pir", "hybrid.gc"}  # never import each other
INSIDE = {"hybrid.gc"}  # folders with a floor of their own, below that of the package that they are in
PRINTING = {
    "__main__.py",
    "selftest.py",
    "rpc/programs.py",
    "he/service/command.py",
    "hybrid/command.py",
    "pir/serving/command.py",
}  # and commands/


def part(path: Path) -> str:
    """`mpc` for hummingbird/mpc/plan/net.py, `ring` for hummingbird/ring.py."""
    return part_of(path.relative_to(PACKAGE).with_suffix("").parts)


def part_of(pieces: Sequence[str]) -> str:
    """The part of a module, from the pieces of its name below `hummingbird`."""
    folder = ".".join(pieces[:2])
    return folder if folder in INSIDE else pieces[0]


def floor(name: str) -> int:
    """The floor of a part of the package."""
    found = [number for number, names in enumerate(FLOORS) if name in names]
    assert found, f"hummingbird.{name} has no floor: add it to FLOORS"
    return found[0]


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Absolute names of everything imported, with lines: `from a import b` gives a.b; also import_module("...")."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "import_module":
            if isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value), node.lineno


@functools.cache
def parsed(source: str) -> ast.Module:
    """The tree of a source, to be read: many tests look at the same."""
    return ast.parse(source)


def without_typing(tree: ast.Module) -> ast.Module:
    """The module without its `if TYPE_CHECKING:` blocks."""

    class Drop(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | None:
            typing_only = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            return None if typing_only else self.generic_visit(node)

    return Drop().visit(tree)


def upward(source: str, own: str) -> list[str]:
    """Imports in `source`, a module of part `own`, that leave its floor upwards or reach a sibling."""
    bad = []
    for name, line in imported(parsed(source)):
        pieces = name.split(".")
        if pieces[0] != "hummingbird" or name == "hummingbird.__future__":
            continue
        target = part_of(pieces[1:]) if len(pieces) > 1 else "__init__"
        if not any(target in names for names in FLOORS):
            is_module = (PACKAGE / target).is_dir() or (PACKAGE / f"{target}.py").exists()
            assert not is_module, f"hummingbird.{target} has no floor: add it to FLOORS"
            target = "__init__"  # a public name, which is the package's own
        if floor(target) > floor(own) or (target in SIBLINGS and own in SIBLINGS and target != own):
            bad.append(f"line {line}: {own} (floor {floor(own)}) imports {name} (floor {floor(target)})")
    return bad


def test_modules_import_their_own_floor_or_below() -> None:
    def rule(path: Path) -> list[str]:
        source = path.read_text()
        if path == PACKAGE / "__init__.py":  # its names load on first use; only the type checker sees the imports
            source = ast.unparse(without_typing(ast.parse(source)))
        return upward(source, part(path))

    assert not offenders(rule)


def test_the_floor_test_can_fail() -> None:
    assert upward("from hummingbird.mpc.session import session", "channel")
    assert upward("import hummingbird", "ring")
    assert upward("from hummingbird import meter", "convert")
    assert upward("def f():\n    import hummingbird.convert", "mpc")
    assert upward("from hummingbird.he import ckks", "mpc")
    assert not upward("from hummingbird.channel import meter\nfrom hummingbird import ring, cost", "mpc")


# The rooms of a package from the lowest on; a module beside them is below all.
ROOMS = {"he": ["scheme", "bfv", "runtime", "compile", "service"], "pir": ["batching", "serving"]}


def room(name: str) -> int:
    """The height of a module's room in its package: 2 for hummingbird.he.runtime.client, 0 beside the rooms."""
    _, package, *rest = name.split(".")
    return ROOMS[package].index(rest[0]) + 1 if rest and rest[0] in ROOMS[package] else 0


def upstairs(source: str, own: str) -> list[str]:
    """Imports in `source`, the module `own`, of higher rooms of its package."""
    package = own.rpartition(".")[0].split(".")[:2]
    names = [name for name, _ in imported(parsed(source)) if name.split(".")[:2] == package]
    return [name for name in names if room(name) > room(own)]


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_their_own_or_a_lower_one(package: str) -> None:
    folders = {path.parent.name for path in (PACKAGE / package).glob("*/__init__.py")}
    assert folders == set(ROOMS[package])
    for path in (PACKAGE / package).rglob("*.py"):
        if path != PACKAGE / package / "__init__.py":  # it shows what is public, from all rooms
            assert upstairs(path.read_text(), name_of(path)) == [], path


def test_the_test_of_rooms_can_fail() -> None:
    assert upstairs("from hummingbird.he.compile.im2col import Map", "hummingbird.he.runtime.operations")
    assert upstairs("from hummingbird.pir.serving.server import Server", "hummingbird.pir.client")
    assert not upstairs("from hummingbird.he.scheme import ckks", "hummingbird.he.runtime.client")
    assert not upstairs("from hummingbird.rpc import service", "hummingbird.pir.client")


def name_of(path: Path) -> str:
    """`hummingbird.mpc.plan.net` for hummingbird/mpc/plan/net.py."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def needs(source: str, known: set[str]) -> set[str]:
    """The modules that one imports when it is loaded, or for its types."""
    body = parsed(source).body
    loaded = [part for node in body for part in (node.body if isinstance(node, ast.If) else [node])]
    targets = [name for node in loaded if isinstance(node, (ast.Import, ast.ImportFrom)) for name, _ in imported(node)]
    return {name if name in known else name.rpartition(".")[0] for name in targets} & known


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle; none: an empty list."""
    left = dict(graph)
    while free := [name for name, before in left.items() if not before & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left)


def test_no_modules_import_each_other_in_a_circle() -> None:
    """For types neither: who reads one of them must not have to read the other first."""
    known = {name_of(path) for path in FILES}
    graph = {name_of(path): needs(path.read_text(), known) - {name_of(path)} for path in FILES}
    assert not (found := circle(graph)), found


def test_the_circle_test_can_fail() -> None:
    typing = "if TYPE_CHECKING:\n    from hummingbird.b import B"
    a, b = needs(typing, {"hummingbird.a", "hummingbird.b"}), needs("import hummingbird.a", {"hummingbird.a"})
    assert a == {"hummingbird.b"} and b == {"hummingbird.a"}
    assert circle({"hummingbird.a": a, "hummingbird.b": b, "c": {"hummingbird.a"}}) != []
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def foreign(source: str, own: str) -> list[str]:
    """Private names of other packages that a module reads: imported, or as attributes of what it has imported."""
    tree = parsed(source)
    packages = {name.rpartition(".")[2]: name for name, _ in imported(tree) if name.startswith("hummingbird.")}
    found = [name for name in packages.values() if name.rpartition(".")[2].startswith("_")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if isinstance(node.value, ast.Name) and node.value.id in packages:
                found.append(f"{packages[node.value.id]}.{node.attr}")
    return [name for name in found if name.split(".")[1] != own.partition(".")[0]]


def test_private_names_stay_in_their_package() -> None:
    allowed = "hummingbird.crypten.adapter"  # a module
    assert not offenders(
        lambda path: [name for name in foreign(path.read_text(), part(path)) if not name.startswith(f"{allowed}.")]
    )


def test_the_test_of_private_names_can_fail() -> None:
    source = "from hummingbird import convert\nfrom hummingbird.he.report import _cut\nconvert._custom\nconvert.__doc__"
    assert foreign(source, "twin") == ["hummingbird.he.report._cut", "hummingbird.convert._custom"]
    assert foreign(source, "he") == ["hummingbird.convert._custom"]


def test_the_package_itself_loads_nothing_early() -> None:
    """`import hummingbird` must stay cheap: neither torch nor CrypTen, which windows and the dealer do not need."""
    code = "import sys, hummingbird; hummingbird.BitWindow(8, 0); print({'torch', 'crypten'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM)
    assert ended.stdout.strip() == "set()", ended.stdout + ended.stderr


def test_every_public_name_resolves() -> None:
    import hummingbird

    assert sorted(hummingbird.__all__) == sorted([*hummingbird._HOMES, "__version__"])
    for name in hummingbird.__all__:
        assert getattr(hummingbird, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = hummingbird.nonsense


def test_only_the_adapter_imports_crypten() -> None:
    found = offenders(lambda path: [n for n, _ in imported(parsed(path.read_text())) if n.split(".")[0] == "crypten"])
    assert set(found) == {"crypten/adapter.py"}


def crypten_uses(source: str) -> list[str]:
    """Imports of CrypTen's tensors, and of what makes and opens them."""
    names = [name for name, _ in imported(parsed(source))]
    return [name for name in names if name.startswith(("hummingbird.crypten.adapter", "hummingbird.crypten.tensors"))]


# `cryptensor` is public, a net takes and returns CrypTen's tensors, and `info` shows CrypTen's version.
TAKES_CRYPTEN = {"__init__.py", "mpc/plan/net.py", "commands/info.py"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_cryptens_tensors_stay_at_the_edge(path: Path) -> None:
    """Inside, code works on `Shared` (mpc/session/sharing.py)."""
    if part(path) != "crypten" and str(path.relative_to(PACKAGE)) not in TAKES_CRYPTEN:
        assert crypten_uses(path.read_text()) == []


def test_the_test_of_cryptens_tensors_can_fail() -> None:
    assert crypten_uses("from hummingbird.crypten.adapter import MPCTensor")
    assert crypten_uses("def f():\n    from hummingbird.crypten import tensors")
    assert not crypten_uses("from hummingbird.mpc.session.sharing import Shared")


# Functions that users call, and CrypTen's, which take no session. All others take it as an argument.
PUBLIC_EDGE = {
    "convert.py",
    "launching/launch.py",
    "mpc/plan/net.py",
    "mpc/session/launch.py",
    "saving/__init__.py",
    "serving/reconnect.py",
    "serving/serve.py",
}


def session_lookups(source: str) -> list[int]:
    """Lines that use `sessions.current` or `sessions.is_initialized`."""
    tree, names = parsed(source), {"current", "is_initialized"}
    home = "hummingbird.mpc.session.session."
    found = [line for name, line in imported(tree) if name in {home + each for each in names}]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sessions":
            found += [node.lineno] if node.attr in names else []
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_session_is_an_argument(path: Path) -> None:
    if part(path) != "crypten" and str(path.relative_to(PACKAGE)) not in PUBLIC_EDGE:
        assert session_lookups(path.read_text()) == []


def test_the_test_of_sessions_can_fail() -> None:
    assert session_lookups("from hummingbird.mpc.session.session import current")
    assert session_lookups("def f():\n    return sessions.current().rank")
    assert not session_lookups("def f(session):\n    return session.rank, self.current()")


def context_variables(source: str) -> list[int]:
    """Lines that make a context variable or a variable of one thread."""
    calls = [node for node in ast.walk(parsed(source)) if isinstance(node, ast.Call)]
    kinds = {"contextvars.ContextVar", "ContextVar", "threading.local"}
    return [call.lineno for call in calls if ast.unparse(call.func) in kinds]


def test_a_run_has_two_context_variables(tmp_path: Path) -> None:
    """The layer that the meter counts for, and the computation that an interleaving runs."""
    holders = [str(path.relative_to(PACKAGE)) for path in FILES for _ in context_variables(path.read_text())]
    memory = "kernels/reference/ciphertexts/workspace.py"  # keeps no state of a run, only memory that it uses again
    assert [holder for holder in holders if holder != memory] == ["channel/interleave.py", "channel/meter.py"]
    assert context_variables("import contextvars\nslice = contextvars.ContextVar('slice')") == [2]


RANDOM_CALLS = re.compile(
    r"^(rand|randn|randint|randperm|normal|bernoulli|multinomial|poisson|rand_like|randn_like|randint_like"
    r"|random_|uniform_|normal_|bernoulli_|exponential_|geometric_|cauchy_|log_normal_|manual_seed|Generator)$"
)


# These hide nothing from anybody: the order of training, the weights of a net that comes without any; what is read
# without running its instructions, which a test below looks at; and code for the processes that the writer has started.
HARMLESS = {
    "commands/training.py": {"randperm", "randint", "rand", "Generator", "manual_seed"},
    "commands/data_parallel.py": {"manual_seed"},
    "commands/finetune.py": {"manual_seed"},
    "commands/converted.py": {"manual_seed"},
    "commands/checkpoint.py": {"load"},
    "launching/values.py": {"load"},
    "launching/sending.py": {"cloudpickle"},
}


def forbidden(source: str) -> list[str]:
    """Pickle, torch.load, and randomness that is not prg.py's."""
    tree, bad = parsed(source), []
    for name, line in imported(tree):
        if name.split(".")[0] in {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "random"}:
            bad.append(f"line {line}: import of {name}")
        if name.startswith(("numpy.random", "torch.load", "torch.random")):
            bad.append(f"line {line}: {name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if (owner, node.attr) in {("torch", "load"), ("np", "random"), ("numpy", "random"), ("torch", "random")}:
                bad.append(f"line {node.lineno}: {owner}.{node.attr}")
            elif RANDOM_CALLS.match(node.attr):
                bad.append(f"line {node.lineno}: {owner}.{node.attr}")
    return bad


def test_no_pickle_and_no_weak_randomness() -> None:
    """Nothing of the kind, but where it hides nothing: a self test's data are the same at every party on purpose."""

    def rule(path: Path) -> list[str]:
        found, name = forbidden(path.read_text()), str(path.relative_to(PACKAGE))
        if name in ("selftest.py", "capacity/drawing.py"):
            return []
        if name.startswith("simulation/"):  # a simulation hides nothing: torch's generators are fast
            found = [use for use in found if not use.endswith((".random_", ".Generator", ".manual_seed"))]
        return [use for use in found if re.split(r"[. ]", use)[-1] not in HARMLESS.get(name, set())]

    assert not offenders(rule)


def unsafe_loads(source: str) -> list[int]:
    """Lines with a torch.load that may run what the file says."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    loads = [call for call in calls if ast.unparse(call.func) == "torch.load"]
    return [call.lineno for call in loads if "weights_only=True" not in map(ast.unparse, call.keywords)]


def test_weights_are_loaded_without_pickle() -> None:
    for path in ("commands/checkpoint.py", "launching/values.py"):
        assert unsafe_loads((PACKAGE / path).read_text()) == []
    assert unsafe_loads("torch.load(file)") == unsafe_loads("torch.load(file, weights_only=False)") == [1]


def test_the_randomness_test_can_fail() -> None:
    for line in (
        "import pickle",
        "from cloudpickle import loads",
        "from random import random",
        "import torch\nx = torch.rand(3)",
        "x.uniform_(0, 1)",
        "import numpy as np\nnp.random.default_rng()",
        "torch.load('f')",
        "from torch import load",
        "torch.Generator()",
    ):
        assert forbidden(line), line
    assert not forbidden("import secrets\nx = stream.words(3)")


def tracked() -> list[Path]:
    """The files in git's index that are there; skips the test where the sources are no checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for path in (ROOT / name for name in listed.stdout.split("\0") if name) if path.is_file()]


def serving(source: str) -> list[str]:
    """Uses of what makes a server of strangers' calls, or its program: `hummingbird.rpc` does so for all services."""
    tree, made = parsed(source), {"grpc.server", "grpc.aio.server", "aio.server", "service.serve"}
    names = ("grpc.server", "grpc.aio.server", "http.server", "socketserver", "hummingbird.rpc.service.serve")
    found = [f"line {line}: {name}" for name, line in imported(tree) if name.startswith(names)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in made:
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "ServiceProgram":
            found.append(f"line {node.lineno}: ServiceProgram")
    return found


# In a process that has other work, for as long as a caller holds it, and not for a program: without health and figures.
IN_PROCESS = {"pir/serving/service.py": ["hummingbird.rpc.service.serve"]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_rpc_serves_strangers(path: Path) -> None:
    found = [use.split(": ")[1] for use in serving(path.read_text())]
    if part(path) != "rpc":
        assert found == IN_PROCESS.get(str(path.relative_to(PACKAGE)), [])


def test_the_test_of_servers_can_fail() -> None:
    for line in (
        "import grpc\ngrpc.server(pool)",
        "from grpc import server",
        "from grpc import aio\naio.server()",
        "import grpc.aio\nmake = grpc.aio.server",
        "from http.server import ThreadingHTTPServer",
        "import socketserver",
        "from hummingbird.rpc.service import serve",
        "from hummingbird.rpc import service\nservice.serve({}, address)",
        "with ServiceProgram('x', config) as program:\n    pass",
        "from hummingbird.rpc import server\nserver.ServiceProgram('x', config)",
    ):
        assert serving(line), line
    assert serving((PACKAGE / "rpc/service.py").read_text()) and serving((PACKAGE / "rpc/telemetry.py").read_text())
    assert not serving("import grpc\ngrpc.insecure_channel(a)\ndef f(program: ServiceProgram) -> None: ...")


MOST_LINES = 500


def long_files(paths: Iterable[Path]) -> dict[str, int]:
    """Files of more than `MOST_LINES` lines."""
    sizes = {str(path): len(path.read_text().splitlines()) for path in paths}
    return {name: size for name, size in sizes.items() if size > MOST_LINES}


def test_no_file_is_long(tmp_path: Path) -> None:
    assert not long_files([*FILES, *(p for p in tracked() if p.suffix in {".py", ".cpp", ".h", ".cu", ".md"})])
    (tmp_path / "long.py").write_text("\n" * (MOST_LINES + 1))
    assert long_files([tmp_path / "long.py"])


def size(paths: Iterable[Path]) -> int:
    """Size of all files in bytes."""
    return sum(path.stat().st_size for path in paths)


def test_tracked_files_stay_small(tmp_path: Path) -> None:
    assert size(tracked()) <= 48 << 20
    (tmp_path / "weights.pt").write_bytes(bytes(3 << 20))
    assert size([*tracked(), *[tmp_path / "weights.pt"] * 16]) > 48 << 20


def unclear_docstrings(source: str) -> list[str]:
    """First lines of docstrings that begin with "What" or "Of" and not with a verb or a noun phrase."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    return [text.splitlines()[0] for text in texts if re.match(r"(What|Of)\b", text)]


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = {
        str(path.relative_to(ROOT)): unclear_docstrings(path.read_text()) for path in tracked() if path.suffix == ".py"
    }
    assert not {name: lines for name, lines in found.items() if lines}
    assert unclear_docstrings('"""What it is."""') and unclear_docstrings('def f():\n    """Of x."""')


def prints(source: str) -> list[int]:
    """Lines that call print."""
    calls = [node for node in ast.walk(parsed(source)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]


def test_the_library_does_not_print() -> None:
    found = offenders(lambda path: prints(path.read_text()))
    assert not {name for name in found if name not in PRINTING and not name.startswith("commands/")}
    assert prints("def f():\n    print(1)") == [2]


def test_every_module_says_what_it_is() -> None:
    def silent(source: str) -> bool:
        return bool(source.strip()) and not ast.get_docstring(parsed(source))

    assert not offenders(lambda path: silent(path.read_text()))
    assert silent("x = 1") and not silent("")


@pytest.mark.parametrize("name", ["bits", "cost", "disk", "errors", "records", "table", "version"])
def test_plain_modules_need_only_the_standard_library(name: str) -> None:
    roots = {target.split(".")[0] for target, _ in imported(ast.parse((PACKAGE / f"{name}.py").read_text()))}
    own = {target for target, _ in imported(ast.parse((PACKAGE / f"{name}.py").read_text())) if "hummingbird" in target}
    assert roots - {"hummingbird"} <= sys.stdlib_module_names
    plain = ("hummingbird.errors.", "hummingbird.records")
    assert all(target.startswith(plain) for target in own)


def test_no_path_of_one_machine_in_tracked_files() -> None:
    places = re.compile(rb"(?<![\w.-])/(?:" + b"|".join([b"work", b"root", b"home", b"Users"]) + rb")/[\w.-]+")
    found = {}
    for path in tracked():
        hits = {hit.decode() for hit in places.findall(path.read_bytes())} if path.suffix != ".pt" else set()
        if hits:
            found[str(path.relative_to(ROOT))] = hits
    assert not found
    assert places.search(b'open("/' + b'home/me/x")')  # it can fail


def test_no_stubs() -> None:
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X{3})\b")
    code = [p for p in tracked() if p.suffix in {".py", ".cpp", ".md", ".toml"}]
    texts = [p for p in code if p.relative_to(ROOT).parts[0] != "tests"]  # which look for them, as this one does
    assert not {str(p.relative_to(ROOT)) for p in texts if marks.search(p.read_text())}
