"""Progress lines of long phases: one line in a terminal, a bar in a notebook, nothing in a log file."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm


def progress_line(
    items: Iterable[Any] | None = None,
    *,
    total: float | None = None,
    desc: str | None = None,
    unit: str = "it",
    initial: int = 0,
    delay: float = 0.0,
    bar_format: str | None = None,
    quiet: bool = False,
) -> tqdm[Any]:
    """Return a tqdm bar that disappears when its phase ends.

    It shows nothing if stderr is neither a terminal nor a notebook's, or if TQDM_DISABLE is set.
    items: what to iterate over; None: the caller reports with `update(n)`, in a `with` block. total: of all items.
    desc: the phase's name. unit: the name of one item. initial: items that were finished before. delay: seconds before
    the first display, for a phase that is often fast. bar_format: as in tqdm. quiet: show nothing anywhere.

        for image in progress_line(images, desc="reading", unit="image"):
            ...
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a notebook without ipywidgets gets the line of a terminal
        from tqdm.auto import tqdm

    hidden = {"disable": True} if quiet or not (sys.stderr.isatty() or _notebook()) else {}
    return tqdm(
        items,
        total=total,
        desc=desc,
        unit=unit,
        initial=initial,
        delay=delay,
        bar_format=bar_format,
        leave=False,
        **hidden,
    )


def _notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config
