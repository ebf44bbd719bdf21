"""How large a kernel's tiles are on a card: from sizes.json, which `tune` has searched on a GPU; else the defaults.

    {"NVIDIA H100 80GB HBM3": {"lift": {"lanes": 128, "num_warps": 4}}}

Nothing is searched while a net runs: parties on equal cards run equal programs.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch

FILE = Path(__file__).with_name("sizes.json")

Sizes = dict[str, int]  # a kernel's constants by name, num_warps and num_stages

DEFAULTS: dict[str, Sizes] = {
    "chacha20": {"size": 128, "num_warps": 4},
    "dpf": {"size": 128, "num_warps": 4},
    "rows": {"Q": 64, "C": 128, "R": 64, "num_warps": 8},  # with more, registers are spilled
    "open_words": {"LANES": 128, "num_warps": 4},
    "mask_words": {"LANES": 128, "num_warps": 4},
    "compare_opened": {"LANES": 128, "num_warps": 4},
    "lift": {"LANES": 128, "num_warps": 4},
    "deal_masks": {"LANES": 128, "num_warps": 4},
    "cut": {"PLACES": 32, "CHANNELS": 32, "num_warps": 4},
    "multiply": {"PLACES": 64, "OUTPUTS": 64, "TERMS": 64, "num_warps": 8, "num_stages": 2},
}


@functools.cache
def stored() -> dict[str, dict[str, Sizes]]:
    """Sizes by card and kernel, as the file has them."""
    found: dict[str, dict[str, Sizes]] = json.loads(FILE.read_text())
    return found


@functools.cache
def _card(index: int) -> str:
    return torch.cuda.get_device_name(index)


def sizes(kernel: str, device: torch.device) -> Sizes:
    """A kernel's sizes on a device."""
    found: Any = {}
    if device.type == "cuda":
        card = _card(torch.cuda.current_device() if device.index is None else device.index)
        found = stored().get(card, {}).get(kernel, {})
    return {**DEFAULTS[kernel], **found}
