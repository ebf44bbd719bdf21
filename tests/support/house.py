"""Counts of what an engineer has to learn: files, lines, names. `python -m tests.support.house [ROOT]`."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

_SMALL = 50  # lines
_SVG = re.compile(r"<(svg|rect|polyline|path|text)[ >]")
_SERVER = re.compile(r"\b(grpc|aio)\.server\(|ThreadingHTTPServer\)")
_ON_DISK = re.compile(r"os\.replace|os\.fsync|fcntl\.|os\.rename|\.rename\(")


def parsed(root: Path, folder: str = "hummingbird") -> dict[str, tuple[str, ast.Module]]:
    """Modules by name: text and tree."""
    found = {}
    for path in sorted((root / folder).rglob("*.py")):
        text = path.read_text()
        found[".".join(path.relative_to(root).with_suffix("").parts)] = text, ast.parse(text)
    return found


def lines(root: Path, folder: str, *suffixes: str) -> tuple[int, int]:
    """Files of these suffixes, and their lines."""
    paths = [path for path in (root / folder).rglob("*") if path.suffix in suffixes]
    return len(paths), sum(len(path.read_text().splitlines()) for path in paths)


def importers(modules: dict[str, tuple[str, ast.Module]]) -> dict[str, set[str]]:
    """Who imports a module of the package."""
    found: dict[str, set[str]] = {name: set() for name in modules}
    for own, (_, tree) in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    for name in (f"{node.module}.{alias.name}", node.module):
                        if name in found:
                            found[name].add(own)
                            break
    return found


def several(modules: dict[str, tuple[str, ast.Module]]) -> list[str]:
    """Names of public classes that several modules have."""
    names = Counter(
        node.name
        for _, tree in modules.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


def called(tree: ast.Module) -> list[str]:
    """The last names of all that a module calls: `f` of `f()` and of `module.f()`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [ast.unparse(call.func).rpartition(".")[2] for call in calls]


def glossary(root: Path) -> set[str]:
    """The words that the glossary explains, in lower case; none where there is no glossary."""
    page = root / "docs/glossary.md"
    used = page.read_text().partition("## Words that are not used")[0] if page.exists() else ""
    rows = re.findall(r"^\| ([^|]+) \| ", used, re.MULTILINE)
    return {word for row in rows for word in row.lower().split(", ")}


def counts(root: Path) -> Iterator[tuple[str, str]]:
    """Rows of the table."""
    modules = parsed(root)
    texts = {name: text for name, (text, _) in modules.items()}
    outside = [tree for name, (_, tree) in modules.items() if not name.startswith("hummingbird.rpc.")]
    files, total = lines(root, "hummingbird", ".py", ".cpp", ".h")
    yield "package, Python and C++: lines, files", f"{total}, {files}"
    yield f"Python files below {_SMALL} lines", str(sum(len(text.splitlines()) < _SMALL for text in texts.values()))
    once = {
        name: texts[name]
        for name, users in importers(modules).items()
        if len(users) == 1 and next(iter(users)).rpartition(".")[0] == name.rpartition(".")[0]
    }
    yield (
        "with one importer, in their own folder: files, lines",
        f"{len(once)}, {sum(t.count(chr(10)) for t in once.values())}",
    )
    yield "context variables", str(sum(text.count("ContextVar(") for text in texts.values()))
    yield (
        "modules with a `global` statement",
        str(sum(bool(re.search(r"^\s+global ", t, re.M)) for t in texts.values())),
    )
    yield "files with json.loads", str(sum("json.loads" in text for text in texts.values()))
    yield "files that rename, fsync or lock", str(sum(bool(_ON_DISK.search(text)) for text in texts.values()))
    yield "files that make a gRPC or an HTTP server", str(sum(bool(_SERVER.search(text)) for text in texts.values()))
    yield (
        "programs under run_service, with a ServiceProgram of their own",
        ", ".join(str(sum(called(tree).count(name) for tree in outside)) for name in ("run_service", "ServiceProgram")),
    )
    yield "programs under run_client", str(sum(called(tree).count("run_client") for tree in outside))
    yield (
        "users of admission's Quota, of Retry: modules",
        ", ".join(str(sum(name in called(tree) for tree in outside)) for name in ("Quota", "Retry")),
    )
    names, words = several(modules), glossary(root)
    unexplained = sum(name.lower() not in words for name in names)
    yield "class names in several modules, not in the glossary", f"{len(names)}, {unexplained}"
    drawn = [path for folder in ("hummingbird", "scripts", "search") for path in (root / folder).rglob("*.py")]
    yield "files with SVG by hand", str(sum(bool(_SVG.search(path.read_text())) for path in drawn))
    yield "scripts: files, lines", "{}, {}".format(*lines(root, "scripts", ".py", ".cpp"))
    yield "scripts in the top folder", str(len(list((root / "scripts").glob("*.py"))))
    yield "tests: files, lines", "{}, {}".format(*lines(root, "tests", ".py"))


def main() -> None:
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    for name, count in counts(root):
        print(f"{name:<66}{count:>12}")


if __name__ == "__main__":
    main()
