"""Rules of the house beside imports: where randomness and servers come from, pickle, sizes, words, paths."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.test_floors import FILES, PACKAGE, imported, last_name, nodes, offenders, parsed, part

PRINTING = {
    "__main__.py",
    "rpc/programs.py",
    "he/service/command.py",
    "he/service/file_command.py",
    "hybrid/command.py",
    "pir/serving/command.py",
}  # and commands/

RANDOM_CALLS = re.compile(
    r"^(rand|randn|randint|randperm|normal|bernoulli|multinomial|poisson|rand_like|randn_like|randint_like"
    r"|random_|uniform_|normal_|bernoulli_|exponential_|geometric_|cauchy_|log_normal_|manual_seed|Generator)$"
)


# These hide nothing from anybody: the order of training, the weights of a net that comes without any; what is read
# without running its instructions, which a test below looks at; and code for the processes that the writer has started.
HARMLESS = {
    "capacity/arrivals.py": {"Generator", "manual_seed", "exponential_", "uniform_", "random_"},
    "commands/training.py": {"randperm", "randint", "rand", "Generator", "manual_seed"},
    "commands/finetune.py": {"manual_seed"},
    "commands/party.py": {"manual_seed"},
    "commands/sources.py": {"load"},
    "generation.py": {"Generator", "multinomial"},  # the choice of a word, at the party that sees the logits
    "graph/programs/exported.py": {"load"},
    "launching/sending.py": {"cloudpickle", "load"},
}


def forbidden(source: str) -> list[str]:
    """Pickle, torch.load, and randomness that is not prg.py's."""
    tree, bad = parsed(source), []
    for name, line in imported(tree):
        if name.split(".")[0] in {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "random"}:
            bad.append(f"line {line}: import of {name}")
        if name.startswith(("numpy.random", "torch.load", "torch.random")):
            bad.append(f"line {line}: {name}")
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and (node.attr in ("load", "random") or RANDOM_CALLS.match(node.attr)):
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
        if name == "commands/check.py":
            return []
        if name.startswith("simulation/"):  # a simulation hides nothing: torch's generators are fast
            found = [use for use in found if not use.endswith((".random_", ".Generator", ".manual_seed"))]
        return [use for use in found if re.split(r"[. ]", use)[-1] not in HARMLESS.get(name, set())]

    assert not offenders(rule)


SVG = re.compile(r"<(svg|g|rect|circle|line|polyline|path|text)[ >]")


def test_pictures_are_drawn_by_matplotlib() -> None:
    """No program writes the elements of an SVG itself."""
    written = "out = f'<rect x=\"{x}\"/>'"
    found = [path for folder in ("hummingbird", "scripts", "search") for path in sorted((ROOT / folder).rglob("*.py"))]
    assert not [str(path) for path in found if SVG.search(path.read_text())] and SVG.search(written)


def unsafe_loads(source: str) -> list[int]:
    """Lines with a torch.load that may run what the file says."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    loads = [call for call in calls if ast.unparse(call.func) == "torch.load"]
    return [call.lineno for call in loads if "weights_only=True" not in map(ast.unparse, call.keywords)]


def test_weights_are_loaded_without_pickle() -> None:
    for path in ("commands/sources.py", "launching/sending.py"):
        assert unsafe_loads((PACKAGE / path).read_text()) == []
    assert unsafe_loads("torch.load(file)") == unsafe_loads("torch.load(file, weights_only=False)") == [1]


def dangling(source: str) -> list[int]:
    """Lines that take the address of a tensor which nothing holds: the memory may be another one's before its use.

    A cache is no holder: of two threads that compute its first entry at the same time, one has a result of its own.
    """
    calls = (node for node in nodes(parsed(source)) if isinstance(node, ast.Call))
    return [
        node.lineno
        for node in calls
        if isinstance(node.func, ast.Attribute)
        and node.func.attr == "data_ptr"
        and isinstance(node.func.value, ast.Call)
    ]


def test_kernels_get_addresses_of_tensors_that_are_held() -> None:
    assert {str(path): found for path in FILES if (found := dangling(path.read_text()))} == {}
    assert dangling("run(table(ring).data_ptr(), x.data_ptr())\ny = table(ring)\nrun(y.data_ptr())") == [1]


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
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("server", "serve") and ast.unparse(node) in made:
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Call) and last_name(node.func) == "ServiceProgram":
            found.append(f"line {node.lineno}: ServiceProgram")
    return found


# In a process that has other work, for as long as a caller holds it, and not for a program: without health and figures.
IN_PROCESS = {"pir/serving/service.py": ["hummingbird.rpc.service.serve"]}


def test_only_rpc_serves_strangers() -> None:
    found = offenders(lambda path: part(path) != "rpc" and [use.split(": ")[1] for use in serving(path.read_text())])
    assert found == IN_PROCESS


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
    assert serving((PACKAGE / "rpc/service.py").read_text()) and serving((PACKAGE / "rpc/metrics.py").read_text())
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
    if not re.search(r"""['"]\s*(What|Of)\b""", source):
        return []
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
    calls = [node for node in nodes(parsed(source)) if isinstance(node, ast.Call)]
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
