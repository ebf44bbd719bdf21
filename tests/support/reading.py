"""Random docstrings of the package, for somebody who has not seen the code: `python -m tests.support.reading SEED`.

It measures whether docstrings are understood. The reader reads each name, signature and docstring once, may look up
words in docs/glossary.md, and sees no code. For each one the reader writes the meaning in own words, or names the
phrase that had no meaning. A second person compares each answer with the code: right, partly or wrong. A docstring that
misled the reader, or is itself inexact, is rewritten, and the next reading has another seed.
"""

from __future__ import annotations

import ast
import random
import sys

from tests.support.house import parsed
from tests.support.paths import ROOT


def documented() -> list[tuple[str, str]]:
    """Qualified name with its signature, and docstring, of every function and class of the package that has one.

    The signature has the type of the result; that of a class is left out.
    """
    found = []

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inside = f"{name}.{child.name}"
                if text := ast.get_docstring(child):
                    found.append((inside + _signature(child), text))
                visit(child, inside)

    for module, (_, tree) in parsed(ROOT).items():
        visit(tree, module)
    return sorted(found)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    if isinstance(node, ast.ClassDef):
        return ""
    return f"({ast.unparse(node.args)})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def main() -> None:
    """Print docstrings that the seed chooses, each with a place for the reader's answer and one for the verdict."""
    seed, count = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 60
    for number, (name, text) in enumerate(random.Random(seed).sample(documented(), count), 1):
        print(f"--- {number}. {name}\n{text}\n\nmeaning, or the phrase without one:\nright, partly or wrong:\n")


if __name__ == "__main__":
    main()
