"""Random docstrings of the package, for somebody who has not seen the code: `python -m tests.support.reading SEED`.

The reader judges each by itself: understood at first reading, or not. Those that were not are rewritten, and the next
reading has another seed.
"""

from __future__ import annotations

import ast
import random
import sys

from tests.support.house import parsed
from tests.support.paths import ROOT


def documented() -> list[tuple[str, str]]:
    """Qualified name with its signature, and docstring, of every function and class of the package that has one."""
    found = []

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inside = f"{name}.{child.name}"
                if text := ast.get_docstring(child):
                    signature = f"({ast.unparse(child.args)})" if not isinstance(child, ast.ClassDef) else ""
                    found.append((inside + signature, text))
                visit(child, inside)

    for module, (_, tree) in parsed(ROOT).items():
        visit(tree, module)
    return sorted(found)


def main() -> None:
    """Print docstrings that the seed chooses."""
    seed, count = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 60
    for number, (name, text) in enumerate(random.Random(seed).sample(documented(), count), 1):
        print(f"--- {number}. {name}\n{text}\n")


if __name__ == "__main__":
    main()
