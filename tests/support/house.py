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


def counts(root: Path) -> Iterator[tuple[str, str]]:
    """Rows of the table."""
    modules = parsed(root)
    texts = {name: text for name, (text, _) in modules.items()}
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
    yield "class names in several modules", str(len(several(modules)))
    yield "scripts: files, lines", "{}, {}".format(*lines(root, "scripts", ".py", ".cpp"))
    yield "scripts in the top folder", str(len(list((root / "scripts").glob("*.py"))))
    yield "tests: files, lines", "{}, {}".format(*lines(root, "tests", ".py"))


def main() -> None:
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    for name, count in counts(root):
        print(f"{name:<56}{count:>16}")


if __name__ == "__main__":
    main()
