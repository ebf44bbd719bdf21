"""A watch for random numbers from torch: a net that draws them has no one answer, and a trace would keep one draw."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Chance(TorchDispatchMode):
    """A block in which every operation of this thread passes by; `drawn` names the first that took random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.drawn = self.drawn or func.__name__.partition(".")[0]
        return func(*args, **(kwargs or {}))
