"""A party that torchrun starts twice: party 1 dies in its first life, after it has met the other one."""

from __future__ import annotations

import os

import torch

import hummingbird
from tests.support.patience import HANG

session = hummingbird.init(timeout=HANG)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and session.rank == 1:
    os._exit(3)
shared = hummingbird.cryptensor(torch.tensor([1.5, -2.0]) if session.rank == 0 else None, src=0)
values = (shared + shared).get_plain_text().tolist()
os.write(1, f"party {session.rank}, life {os.environ['TORCHELASTIC_RESTART_COUNT']}: {values}\n".encode())
hummingbird.uninit()
