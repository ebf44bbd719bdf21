"""hummingbird: private inference of PyTorch nets between servers.

    import hummingbird

    hummingbird.init()                                        # one process per party
    private = hummingbird.convert_model(net, bits="bits.json")
    logits = private(hummingbird.cryptensor(images, src=0))   # party 0 owns the images
    logits.get_plain_text(dst=0)                              # only party 0 learns the result

Names load on first use: the dealer and the commands start without CrypTen.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hummingbird.errors import refuse_namesake as _refuse_namesake
from hummingbird.version import VERSION as __version__

if TYPE_CHECKING:
    from hummingbird.bits import BitConfig, BitWindow
    from hummingbird.channel.meter import meter
    from hummingbird.convert import convert_decoder, convert_model, register_converter, validate_model
    from hummingbird.crypten.tensors import cryptensor
    from hummingbird.generation import generate
    from hummingbird.graph.programs import load_program
    from hummingbird.launching.launch import launch
    from hummingbird.mpc.session.launch import init, uninit
    from hummingbird.report import estimate
    from hummingbird.saving import load, load_net, save
    from hummingbird.serving.client import Client
    from hummingbird.serving.serve import serve
    from hummingbird.simulation.errors import find_errors
    from hummingbird.simulation.observe import find_rows
    from hummingbird.simulation.simulate import simulate
    from hummingbird.window_search import search_bits
    from hummingbird.window_search.prepare import prepare
    from hummingbird.window_search.study import Study

_refuse_namesake()

_HOMES = {
    "BitConfig": "bits",
    "BitWindow": "bits",
    "Client": "serving.client",
    "Study": "window_search.study",
    "convert_decoder": "convert",
    "convert_model": "convert",
    "cryptensor": "crypten.tensors",
    "estimate": "report",
    "find_errors": "simulation.errors",
    "find_rows": "simulation.observe",
    "generate": "generation",
    "init": "mpc.session.launch",
    "launch": "launching.launch",
    "load": "saving",
    "load_net": "saving",
    "load_program": "graph.programs",
    "meter": "channel.meter",
    "prepare": "window_search.prepare",
    "register_converter": "convert",
    "save": "saving",
    "search_bits": "window_search",
    "serve": "serving.serve",
    "simulate": "simulation.simulate",
    "uninit": "mpc.session.launch",
    "validate_model": "convert",
}

__all__ = [
    "BitConfig",
    "BitWindow",
    "Client",
    "Study",
    "__version__",
    "convert_decoder",
    "convert_model",
    "cryptensor",
    "estimate",
    "find_errors",
    "find_rows",
    "generate",
    "init",
    "launch",
    "load",
    "load_net",
    "load_program",
    "meter",
    "prepare",
    "register_converter",
    "save",
    "search_bits",
    "serve",
    "simulate",
    "uninit",
    "validate_model",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hummingbird' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hummingbird.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
