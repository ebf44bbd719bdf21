"""Who imports whom: floors, rooms, circles, private names, CrypTen, and what is handed down as an argument."""

from __future__ import annotations

import ast
import functools
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
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
    {"errors", "version", "table", "progress", "pictures", "structure", "disk", "records"},
    {"ring", "inputs", "bits", "cost", "prg", "slots", "fitting", "graph", "kernels", "polynomials"},
    {"channel", "rpc", "ranks", "ot"},
    {"mpc", "crypten", "he", "pir", "hybrid.gc"},
    {"hybrid"},
    {
        "convert",
        "generation",
        "saving",
        "report",
        "capacity",
        "simulation",
        "window_search",
        "lookup",
        "launching",
        "serving",
    },
    {"__init__", "__main__", "commands"},
]
SIBLINGS = {"mpc", "he", "pir", "hybrid.gc"}  # never import each other
INSIDE = {"hybrid.gc"}  # folders with a floor of their own, below that of the package that they are in


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
    for node in nodes(tree):
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
    """The tree of a source, to be read: many tests look at the same.

    Without a collection of garbage, which would go through all trees that are kept, every time.
    """
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()


@functools.cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a tree, which is not changed any more."""
    return tuple(ast.walk(tree))


def last_name(node: ast.AST) -> str:
    """`c` for a.b.c, `a` for a, and no text for other nodes: what most nodes differ in, without their whole text."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


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
    for node in nodes(tree):
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
TAKES_CRYPTEN = {"generation.py", "__init__.py", "mpc/plan/net.py", "commands/info.py"}


def test_cryptens_tensors_stay_at_the_edge() -> None:
    """Inside, code works on `Shared` (mpc/session/sharing.py)."""
    found = offenders(lambda path: part(path) != "crypten" and crypten_uses(path.read_text()))
    assert not found.keys() - TAKES_CRYPTEN


def test_the_test_of_cryptens_tensors_can_fail() -> None:
    assert crypten_uses("from hummingbird.crypten.adapter import MPCTensor")
    assert crypten_uses("def f():\n    from hummingbird.crypten import tensors")
    assert not crypten_uses("from hummingbird.mpc.session.sharing import Shared")


# Functions that users call, and CrypTen's, which take no session. All others take it as an argument.
PUBLIC_EDGE = {
    "convert.py",
    "generation.py",
    "launching/launch.py",
    "mpc/plan/net.py",
    "mpc/session/launch.py",
    "saving/__init__.py",
    "serving/serve.py",
}


def session_lookups(source: str) -> list[int]:
    """Lines that use `sessions.current` or `sessions.is_initialized`."""
    tree, names = parsed(source), {"current", "is_initialized"}
    home = "hummingbird.mpc.session.session."
    found = [line for name, line in imported(tree) if name in {home + each for each in names}]
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sessions":
            found += [node.lineno] if node.attr in names else []
    return found


def test_the_session_is_an_argument() -> None:
    found = offenders(lambda path: part(path) != "crypten" and session_lookups(path.read_text()))
    assert not found.keys() - PUBLIC_EDGE


def test_the_test_of_sessions_can_fail() -> None:
    assert session_lookups("from hummingbird.mpc.session.session import current")
    assert session_lookups("def f():\n    return sessions.current().rank")
    assert not session_lookups("def f(session):\n    return session.rank, self.current()")


def context_variables(source: str) -> list[int]:
    """Lines that make a context variable or a variable of one thread."""
    calls = [node for node in nodes(parsed(source)) if isinstance(node, ast.Call)]
    kinds = {"contextvars.ContextVar", "ContextVar", "threading.local"}
    calls = [call for call in calls if last_name(call.func) in {"ContextVar", "local"}]
    return [call.lineno for call in calls if ast.unparse(call.func) in kinds]


def test_a_run_has_two_context_variables(tmp_path: Path) -> None:
    """The layer that the meter counts for, and the computation that an interleaving runs."""
    holders = [str(path.relative_to(PACKAGE)) for path in FILES for _ in context_variables(path.read_text())]
    memory = "kernels/reference/ciphertexts/ring.py"  # keeps no state of a run, only memory that it uses again
    assert [holder for holder in holders if holder != memory] == ["channel/interleave.py", "channel/meter.py"]
    assert context_variables("import contextvars\nslice = contextvars.ContextVar('slice')") == [2]


@pytest.mark.parametrize("name", ["bits", "cost", "disk", "errors", "records", "table", "version"])
def test_plain_modules_need_only_the_standard_library(name: str) -> None:
    roots = {target.split(".")[0] for target, _ in imported(ast.parse((PACKAGE / f"{name}.py").read_text()))}
    own = {target for target, _ in imported(ast.parse((PACKAGE / f"{name}.py").read_text())) if "hummingbird" in target}
    assert roots - {"hummingbird"} <= sys.stdlib_module_names
    plain = ("hummingbird.errors.", "hummingbird.records")
    assert all(target.startswith(plain) for target in own)
