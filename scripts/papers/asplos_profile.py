"""Writes hummingbird/capacity/profiles/asplos23.json from the published constants of Garimella et al.

    python -m scripts.papers.asplos_profile --data FOLDER       # holds characterization/constants.json

Arrays over layers are summed as the formulas of hummingbird/capacity/paper.py want them. Units, by which other nets are
composed, are means and least squares over the arrays of all six nets, `thread` a median, since one table of threads
leaves out a layer; `error` is that of composing the six so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hummingbird.capacity import paper
from hummingbird.capacity.compose import composed, describe, lphe
from hummingbird.capacity.published import FORMAT, VERSION, Net, PublishedProfile, Units, parse
from models import get_model
from scripts.program import main_of, new_parser
from scripts.train.data import read_text

OUT = Path(__file__).parents[2] / "hummingbird/capacity/profiles/asplos23.json"
DATASETS = {"cifar10": (10, 32), "tinyimagenet": (200, 64), "imagenet": (1000, 224)}  # classes, pixels of a side
MODELS: dict[str, dict[str, Any]] = {"resnet18": {"pool": "none"}, "resnet32": {}, "vgg16": {"hidden": 4096}}
Constants = dict[str, Any]
# Measured with powertop on the client, for one number of ReLUs. From the paper's text: the artifact has none.
JOULES = {"garble_client": 2.33, "eval_client": 1.25}


def torch_net(name: str) -> tuple[torch.nn.Module, tuple[int, int, int]]:
    """The net of models/ that a measured one is, without weights, and its images' shape."""
    dataset, _, model = name.partition("/")
    classes, side = DATASETS[dataset]
    with torch.device("meta"):
        return get_model(model, classes, **MODELS[model]).eval(), (3, side, side)


def server_garbles(c: Constants) -> dict[str, Any]:
    """The fields of a `Garbler`, for SG."""
    return {
        "offline_encode": c["off_server_compute_encode"],
        "garbled": c["off_server_write_garbled_c"],
        "base_ot": c["off_client_write_base_ot"],
        "ot_setup": c["off_client_write_ext_ot_setup"],
        "ot_send": c["off_server_write_ext_ot_send"],
        "input": sum(c["on_client_write_linear"]),
        "encode": sum(c["on_server_compute_encode"]),
        "linear": sum(c["on_server_compute_linear"]),
        "labels": int(sum(c["on_server_write_relu"])),
        "prediction": c["on_server_write_pred"],
    }


def client_garbles(c: Constants) -> dict[str, Any]:
    """The fields of a `Garbler`, for CG: of arrays, as many entries as layers whose ReLUs need transfers."""
    layers = len(c["on_client_write_ext_ot_send"])
    linear = c["on_server_compute_linear"]
    return {
        "offline_encode": c["off_client_compute_encode"],
        "garbled": c["off_client_write_garbled_c"],
        "base_ot": c["off_server_write_base_ot"],
        "ot_setup": int(sum(c["on_server_write_ext_ot_setup"][:layers])),
        "ot_send": int(sum(c["on_client_write_ext_ot_send"])),
        "input": c["on_client_write_linear"][0],
        "encode": sum(c["on_client_compute_encode"][:layers]),
        "linear": sum(linear[:layers]) + linear[-1],
        "labels": 0,
        "prediction": c["on_server_write_pred"],
    }


SHARED = {  # of a net, whoever garbles
    "relus": "NUM_RELU",
    "linear_values": "CLIENT_LINEAR_STORAGE",
    "server_values": "SERVER_LINEAR_STORAGE",
    "keygen": "off_client_compute_keygen",
    "key": "off_client_write_key",
    "encrypt": "off_client_compute_he_encrypt",
    "up": "off_client_write_linear",
    "down": "off_server_write_linear",
    "decrypt": "off_client_compute_he_decrypt",
}


def net(data: Constants, name: str) -> dict[str, Any]:
    """The fields of a `Net`; AssertionError where the two files of a net differ in what both state."""
    server, client = (data["networks"][f"{name}/{side}-garbler"] for side in ("server", "client"))
    assert all(server[key] == client[key] for key in SHARED.values())
    dataset, model = name.split("/")
    shared = {field: _sum(server[key]) for field, key in SHARED.items()}
    he = data["he_lphe_s_by_threads"][dataset][model]
    return {**shared, "he": he, "sg": server_garbles(server), "cg": client_garbles(client)}


def _sum(value: float | list[float]) -> float:
    return sum(value) if isinstance(value, list) else value


def units(data: Constants, names: Iterable[str]) -> Units:
    """Costs of one of each over all the nets; the layers that the arrays lack, shortcuts, are left out."""
    units = Units(
        slots=8192,
        ciphertext_bytes=524401,
        value_bytes=9,
        message_bytes=41,
        key_bytes=33180308,
        base_ot_bytes=4096,
        garbled_relu_bytes=17072 + 1 / 512,
        ot_setup_bytes=672,
        ot_send_bytes=1344,
        label_bytes=1184,
        **dict.fromkeys(_FITTED, 0.0),
    )
    total: dict[str, list[float]] = {name: [0.0, 0.0] for name in _FITTED}  # seconds, units

    def count(name: str, seconds: float, number: float) -> None:
        total[name][0] += seconds
        total[name][1] += number

    products: list[tuple[float, float, float]] = []
    slowing: list[float] = []
    for name in names:
        c = data["networks"][f"{name}/server-garbler"]
        layers = [layer for layer in describe(*torch_net(name))[0] if "downsample" not in layer.name]
        count("keygen", c["off_client_compute_keygen"], 1)
        count("encrypt", sum(c["off_client_compute_he_encrypt"]), sum(map(units.up, layers)))
        count("decrypt", sum(c["off_client_compute_he_decrypt"]), sum(map(units.down, layers)))
        count("offline_encode", c["off_server_compute_encode"], c["NUM_RELU"])
        count("encode", sum(c["on_server_compute_encode"]), c["NUM_RELU"])
        count("multiply", sum(c["on_server_compute_linear"]), sum(layer.multiplications for layer in layers))
        for layer, seconds in zip(layers, c["off_server_compute_he_eval"], strict=True):
            if layer.pixels == 1:
                count("row", seconds, units.products(layer))
            else:
                products.append((1.0, units.doublings(layer), seconds / units.products(layer)))
        dataset, model = name.split("/")
        for threads, seconds in enumerate(data["he_lphe_s_by_threads"][dataset][model], 1):
            if threads > 1:
                slowing.append((seconds / lphe(c["off_server_compute_he_eval"], threads) - 1) / (threads - 1))
    found = {name: seconds / number for name, (seconds, number) in total.items() if number}
    found["product"], found["rotation"] = _fit([row[:2] for row in products], [row[2] for row in products])
    return dataclasses.replace(units, **found, thread=statistics.median(slowing))


_FITTED = tuple(
    field.name for field in dataclasses.fields(Units) if field.type == "float" and "bytes" not in field.name
)


def _fit(rows: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Least squares."""
    found: list[float] = np.linalg.lstsq(np.array(rows), np.array(right), rcond=None)[0].tolist()
    return found


def errors(profile: PublishedProfile) -> dict[str, dict[str, float]]:
    """The largest relative errors of T_off and T_on by net, over SG, CG and threads, when the net is composed."""
    found = {}
    for name, measured in profile.nets.items():
        made = composed(*torch_net(name), profile)
        found[name] = {
            phase: max(
                abs(_seconds(kind, made, he, profile, phase) / _seconds(kind, measured, he, profile, phase) - 1)
                for kind in paper.KINDS
                for he in (1, 4, len(measured.he))
            )
            for phase in ("refill", "request")
        }
    return found


def _seconds(kind: str, net: Net, he: int, profile: PublishedProfile, phase: str) -> float:
    at = paper.service(kind, net, paper.Threads(4, he, 32), up=5e8, down=5e8, profile=profile)
    return at.seconds(at.phases()[phase])


def make(data: Constants) -> dict[str, Any]:
    """The profile as a JSON object."""
    names = sorted({name.rpartition("/")[0] for name in data["networks"]})
    gc = data["gc"]
    lines = {name: [slope, gc["fit_intercept_s"][name]] for name, slope in gc["fit_slope_s_per_relu"].items()}
    storage = data["storage_bytes_per_relu"]
    made = {
        "format": FORMAT,
        "version": VERSION,
        "name": "asplos23",
        "source": f"Garimella et al., ASPLOS 2023; {data['source']}",
        "lines": lines,
        "bytes_per_relu": {side: storage[side] for side in ("garbler", "evaluator")},
        "joules": JOULES,
        "nets": {name: net(data, name) for name in names},
        "units": dataclasses.asdict(units(data, names)),
        "error": {},
    }
    return {**made, "error": errors(parse(made))}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = new_parser(__doc__, "scripts.papers.asplos_profile")
    parser.add_argument("--data", metavar="FOLDER", help="the data folder; by default HUMMINGBIRD_DATA")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE", help="by default the shipped profile")
    return parser


def run(args: argparse.Namespace) -> None:
    """Write the profile."""
    made = make(json.loads(read_text("characterization/constants.json", args.data)))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {args.out.name}")


main = main_of(parser, run, "interrupted")


if __name__ == "__main__":
    sys.exit(main())
