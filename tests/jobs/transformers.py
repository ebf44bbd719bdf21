"""Small ones of the repository's transformers between two parties: `python -m tests.jobs.transformers`.

Party 0 prints one line of JSON: the results of each net.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitConfig
from hummingbird.mpc.session import launch
from models.bert import Bert
from models.vit import vit
from tests.jobs.programs import unequal
from tests.support.patience import HANG


def nets(layers: int = 2) -> dict[str, tuple[nn.Module, Tensor]]:
    """Each net with its inputs, two images or texts."""
    torch.manual_seed(0)
    bert = Bert(words=20, choices=4, length=6, width=16, heads=2, layers=layers)
    return {
        "vit": (vit(5, width=16, heads=2, layers=layers).eval(), torch.randn(2, 3, 32, 32)),
        "bert": (bert.eval(), bert.words(torch.randint(20, (2, 6))).detach()),
    }


def rows(net: nn.Module, x: Tensor) -> BitConfig:
    """Rows of a net's softmaxes and norms for windows: as they are in these inputs, and a quarter more."""
    return BitConfig(rows=hummingbird.find_rows(net, x))


def main() -> None:
    session = launch.init(timeout=HANG)
    found = {}
    cases: dict[str, tuple[nn.Module, Tensor, BitConfig | None, str | int]] = {}
    for name, case in nets().items():
        cases |= {name: (*case, None, "public"), f"{name}, rows": (*case, rows(*case), "public")}
    cases["bert, rows, private"] = *nets()["bert"], rows(*nets()["bert"]), 1
    for name, (net, x, bits, weights) in cases.items():
        private = hummingbird.convert_model(net, bits, weights, example=x)
        with hummingbird.meter() as counted:
            out = private(hummingbird.cryptensor(x if session.rank == 0 else None, src=0)).get_plain_text()
        assert not (bad := unequal(counted)), bad
        found[name] = out.tolist()
    if session.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
