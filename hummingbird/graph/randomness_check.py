"""A watch for random numbers from torch: a net that draws them has no one answer, and a trace would keep one draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class RandomnessCheck(TorchDispatchMode):
    """A block in which every operation of this thread passes by; `drawn` names the first that took random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and not _drops_nothing(func, args, kwargs or {}):
            self.drawn = self.drawn or func.__name__.partition(".")[0]
        return func(*args, **(kwargs or {}))


def _drops_nothing(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an operation's only random numbers are those of a dropout, of none: attention, as torch has it."""
    names = [argument.name for argument in func._schema.arguments]
    if "dropout_p" not in names:
        return False
    place = names.index("dropout_p")
    given = args[place] if place < len(args) else kwargs.get("dropout_p", func._schema.arguments[place].default_value)
    return bool(given == 0)
