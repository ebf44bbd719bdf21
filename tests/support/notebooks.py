"""The tutorials as programs: executed in a kernel of their own, and written again with what they show.

python -m tests.support.notebooks docs/tutorials/*.ipynb     executes them anew, in place
python -m tests.support.notebooks examples                    writes them as scripts, into examples/
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import nbformat
from nbclient import NotebookClient

from tests.support.paths import ROOT
from tests.support.patience import PROGRAM

EXAMPLES = ROOT / "examples"
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.ipynb"))
_HIDDEN = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "HUMMINGBIRD_LANES", "HUMMINGBIRD_DATA")


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook after a run of all its cells in `folder`; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    environment = {key: value for key, value in os.environ.items() if key not in _HIDDEN}
    environment |= {"PYTHONPATH": str(ROOT), "TQDM_DISABLE": "1"}  # progress is for who waits
    environment |= {"OMP_NUM_THREADS": "1"}  # small nets: on busy cores a second thread is only waited for
    with patch.dict(os.environ, environment, clear=True):
        NotebookClient(
            notebook,
            timeout=PROGRAM,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
            record_timing=False,
            coalesce_streams=True,
        ).execute()
    return notebook


def texts(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """Everything that cells have printed or shown as text or HTML, and what went to stderr as `stderr: ...`."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                yield output.text if output.name == "stdout" else f"stderr: {output.text}"
            elif output.output_type == "error":
                yield f"stderr: {output.ename}: {output.evalue}"
            else:
                yield from (output.data[kind] for kind in ("text/plain", "text/html") if kind in output.data)


def pictures(notebook: nbformat.NotebookNode) -> int:
    """How many pictures the cells show."""
    return sum("image/png" in output.get("data", ()) for cell in notebook.cells for output in cell.get("outputs", ()))


_PICTURES = """
for number in plt.get_fignums():
    plt.figure(number).savefig(f"{Path(__file__).stem}-{number}.png", bbox_inches="tight")
"""


def _wrapped(text: str) -> Iterator[str]:
    """The lines of a text in Markdown, so short that a comment can hold them."""
    joined = re.sub(r"(?<=[^\n])\n *(?!\n|#|- |\d+\. |\|)", " ", text)
    for line in joined.splitlines():
        indent = "  " if line.startswith("- ") else "   " if line[:1].isdigit() else ""
        yield from textwrap.wrap(line, 118, subsequent_indent=indent) or [""]


def script(path: Path) -> str:
    """A tutorial as a script: its text as comments, and its cells, which print what a notebook would show.

    Pictures are saved in the current folder at the end.
    """
    parts = [f"# {path.relative_to(ROOT)} as a script, by `python -m tests.support.notebooks examples`."]
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append("\n".join(f"# {line}".rstrip() for line in _wrapped(cell.source)))
        else:
            code = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
            last = ast.parse(code).body[-1]
            shown = isinstance(last, ast.Expr) and not code.rstrip().endswith(";")
            if shown and not ast.unparse(last).startswith(("print(", "axis.", "service.")):
                lines = code.splitlines()
                code = "\n".join([*lines[: last.lineno - 1], f"print({ast.unparse(last)})"])
            parts.append(code.rstrip(";"))
    text = "\n\n".join([*parts, _PICTURES])
    text = text.replace("\nimport matplotlib.pyplot", "\nfrom pathlib import Path\n\nimport matplotlib.pyplot", 1)
    ruff = [sys.executable, "-m", "ruff", "--quiet"]
    options = {"cwd": ROOT, "text": True, "capture_output": True, "check": True}
    name = ["--stdin-filename", str(EXAMPLES / path.with_suffix(".py").name), "-"]
    sorted_imports = subprocess.run([*ruff, "check", "--select=I", "--fix", *name], input=text, **options).stdout
    return subprocess.run([*ruff, "format", *name], input=sorted_imports, **options).stdout


if __name__ == "__main__":
    if sys.argv[1:] == ["examples"]:
        EXAMPLES.mkdir(exist_ok=True)
        for path in TUTORIALS:
            (EXAMPLES / path.with_suffix(".py").name).write_text(script(path))
        sys.exit()
    for name in sys.argv[1:]:
        found = executed(Path(name), ROOT)
        found.metadata = {"kernelspec": found.metadata.kernelspec, "language_info": {"name": "python"}}
        nbformat.write(found, name)
