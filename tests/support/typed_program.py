"""A user's program with types: every public name, and what it returns.

mypy and pyright check it (`make lint`, tests/test_packages.py); it never runs.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from typing_extensions import assert_type

import hummingbird
from hummingbird import he, hybrid, pir
from hummingbird.bits import Rows
from hummingbird.channel.meter import Meter
from hummingbird.crypten.tensors import SharedTensor
from hummingbird.errors import Problem
from hummingbird.mpc.plan.decoder import PrivateDecoder
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session.session import Session
from hummingbird.report import Estimate
from hummingbird.rpc.security import Tls
from hummingbird.window_search.prepare import Prepared


class Exp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU()).eval()


def windows(found: hummingbird.BitConfig | None = None) -> hummingbird.BitConfig:
    return found or hummingbird.BitConfig(layers={"2": hummingbird.BitWindow(20, 12)})


def infer(session: Session, images: Tensor, loud: bool = False) -> Tensor:
    private = hummingbird.convert_model(net(), bits=windows())
    assert_type(private.input_range, float | None)
    with hummingbird.meter() as meter:
        assert_type(meter, Meter)
        shared = hummingbird.cryptensor(images if session.rank == 0 else None, src=0)
        logits = private(shared * 2 - shared)
    if loud:
        print(meter.table(), meter.total.bits_sent + 1)
    assert_type(logits, SharedTensor)
    assert_type(logits.get_plain_text(dst=0), Tensor)
    return logits.get_plain_text(dst=0)


def several(x: SharedTensor) -> Tensor:
    private: PrivateNet[tuple[SharedTensor, SharedTensor]] = hummingbird.convert_model(net())
    classes, boxes = private(x)
    return classes.get_plain_text() + boxes.get_plain_text()


def alone(folder: Path, images: Tensor, labels: Tensor) -> None:
    assert_type(hummingbird.init(), Session)
    hummingbird.register_converter(Exp, lambda module: module)
    assert_type(hummingbird.validate_model(net()), list[Problem])
    hummingbird.save(net(), folder, windows())
    assert_type(hummingbird.load(folder)(hummingbird.cryptensor(images)), SharedTensor)
    plain: nn.Module = hummingbird.load_net(folder)
    simulated: nn.Module = hummingbird.simulate(plain, windows())
    plain = hummingbird.load_program("net.onnx")
    print(simulated, hummingbird.__version__.split("."))
    rows = assert_type(hummingbird.find_rows(net(), images), dict[str, Rows])
    assert_type(hummingbird.find_errors(net(), images, rows, within=0.01), dict[str, Rows])
    assert_type(hummingbird.estimate(net(), (1, 8, 8), windows()), Estimate)
    prepared = hummingbird.prepare(net(), (images, labels), "8/64")
    assert_type(prepared, Prepared)
    assert_type(prepared.plot(), Figure)
    study = hummingbird.Study(net(), images, labels)
    assert_type(study.search("8/64"), hummingbird.BitConfig)
    assert_type(hummingbird.search_bits(study.groups, lambda config: 0.5, 0.125), hummingbird.BitConfig)
    hummingbird.serve(hummingbird.load(folder), (1, 8, 8), "127.0.0.1:9100")
    hummingbird.uninit()


def written(vectors: Tensor, table: Tensor, numbers: Tensor) -> Tensor | None:
    decoder = hummingbird.convert_decoder(net(), vectors, 8, windows())
    assert_type(decoder, PrivateDecoder)
    return hummingbird.generate(decoder, table, numbers, 20, temperature=0.5, top_k=10)


async def ask(images: Tensor) -> tuple[Tensor, Tensor]:
    tls = Tls("client.pem", "client.key", "ca.pem")
    with hummingbird.Client(["127.0.0.1:9100", "127.0.0.1:9101"], tls=tls) as client:
        assert_type(client(images), Tensor)
    both = hummingbird.Client[tuple[Tensor, Tensor]](["127.0.0.1:9100", "127.0.0.1:9101"])
    return await both.ask(images)


def encrypted(images: Tensor) -> Tensor:
    assert_type(hybrid.convert_model(net(), (1, 8, 8))(images), Tensor)
    return he.convert_model(net(), (1, 8, 8))(images)


def looked_up(table: nn.Embedding) -> Tensor:
    rows: Tensor = pir.PrivateEmbedding.from_torch(table, pir.local_servers(table))(torch.tensor([3]))
    return rows


assert_type(hummingbird.launch(infer, torch.rand(4, 1, 8, 8), parties=3), list[Tensor])
