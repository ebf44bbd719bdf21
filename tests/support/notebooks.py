"""The tutorials as programs: executed in a kernel of their own, and written again with what they show.

python -m tests.support.notebooks docs/tutorials/*.ipynb     executes them anew, in place
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import nbformat
from nbclient import NotebookClient

from tests.support.paths import ROOT
from tests.support.patience import PROGRAM

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


if __name__ == "__main__":
    for name in sys.argv[1:]:
        found = executed(Path(name), ROOT)
        found.metadata = {"kernelspec": found.metadata.kernelspec, "language_info": {"name": "python"}}
        nbformat.write(found, name)
