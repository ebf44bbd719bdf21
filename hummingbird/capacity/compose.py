"""Constants of any net for the services of Garimella et al., computed from its layers.

    net = composed(torch_net, (3, 32, 32))               # under the shipped profile
    service = paper.service("cg", net, threads=paper.Threads(4, 17, 32), up=835e6, down=165e6, store=16e9)

The net may be untrained, or on the meta device: only shapes count. Layers of the homomorphic evaluation run in parallel
(LPHE): each is assigned, in order, to the first free thread. `PublishedProfile.error` is the error of such composed
seconds on the six measured nets. `garbled_here` replaces the authors' seconds of garbled circuits by those of a
measured machine: AND gates times the seconds of one gate.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

import torch
from torch import nn

from hummingbird import graph
from hummingbird.capacity.profile import Profile as Measured
from hummingbird.capacity.published import Garbler, LayerUnits, LinearFit, Net, PublishedProfile, Units, asplos23
from hummingbird.errors import ModelError, Problem
from hummingbird.graph import calls
from hummingbird.graph.example_shapes import settled
from hummingbird.graph.steps import refs

_LAYERS = frozenset(("conv", "linear"))
# Linear operations without weights, which each side computes on its own shares.
_LOCAL = frozenset(
    "input output add sub neg avg_pool adaptive_avg_pool mean sum cat flatten reshape permute transpose squeeze "
    "unsqueeze chunk split getitem pad size int".split()
)

_GATE_BYTES = 32  # of a garbled AND (half gates: Zahur, Rosulek and Evans, EUROCRYPT 2015)


def composed(net: nn.Module, shape: Sequence[int], profile: PublishedProfile | None = None, name: str = "net") -> Net:
    """Compute the seconds and bytes of private inference with a net, by the protocol of Garimella et al., from its
    layers.

    shape: of an image, (C, H, W). profile: has the costs of one ciphertext, one ReLU and so on; default: `asplos23`.
    name: of the net, for reports. Returns a `Net`. Raises ModelError for layers that are neither linear nor ReLUs,
    naming all of them, and errors of tracing.
    """
    units = (profile or asplos23()).units
    layers, relus, results = describe(net, shape)
    return assembled(name, units, layers, relus, results)


def garbled_here(measured: Measured, profile: PublishedProfile | None = None) -> tuple[PublishedProfile, str]:
    """Return a changed profile: its seconds of garbled circuits are those measured on another machine.

    measured: the profile of that machine, whose seconds count for client and server; ConfigError if it has fewer than
    two rows "gc". profile: the profile to change, by default `asplos23`. Also returns a note, for users, on the origin
    of the new seconds. How many AND gates a ReLU has is computed from the bytes of its circuit.
    """
    profile = profile or asplos23()
    work = {"and_gates": profile.units.garbled_relu_bytes / _GATE_BYTES, "instances": 1.0}
    each = {verb: measured.seconds("gc", part, work) for verb, part in (("garble", "garble"), ("eval", "evaluate"))}
    lines = {
        name: LinearFit(measured.compute("", each[name.partition("_")[0]]).core_seconds, 0.0) for name in profile.lines
    }
    return dataclasses.replace(profile, lines=lines), f"garbled circuits: AND gates, {measured.origin(*each.values())}"


def describe(net: nn.Module, shape: Sequence[int]) -> tuple[list[LayerUnits], int, int]:
    """Return a net's convolutions and linear layers, in order, its number of ReLUs, and the number of values in its
    result.

    Both numbers are for one image. shape: of an image, (C, H, W). Raises ModelError for layers that are neither linear
    nor ReLUs, naming all of them, and errors of tracing.
    """
    steps = graph.trace(settled(net, torch.empty(1, *shape)))
    hint = "the paper measured convolutions, linear layers and ReLUs; pool by an average"
    found = [
        Problem(step.name, f"no measured price for {step.op}", hint)
        for step in steps
        if step.op not in _LOCAL | _LAYERS | {"relu"}
    ]
    if found:
        raise ModelError(found)
    steps = calls.weightless(steps)
    values = graph.run_all(steps, *calls.on_meta(steps, (1, *shape)))
    layers = [_layer(step, values, made) for step, made in zip(steps, values, strict=True) if step.op in _LAYERS]
    relus = sum(made.numel() for step, made in zip(steps, values, strict=True) if step.op == "relu")
    return layers, relus, values[-1].numel()


def _layer(step: graph.Step, values: Sequence[torch.Tensor], made: torch.Tensor) -> LayerUnits:
    """Return the sizes (`LayerUnits`) of the convolution or linear layer that `step` computes.

    values: for every step of the net, its result for one image. made: the result of `step`.
    """
    weight, source = step.attrs["weight"], next(refs(step.inputs)).index
    given = values[source]
    return LayerUnits(
        step.name,
        source,
        inputs=given.numel(),
        outputs=made.numel(),
        channels=weight.shape[0],
        pixels=given[0, 0].numel() if step.op == "conv" else 1,
        area=weight[0, 0].numel(),
        groups=step.attrs.get("groups", 1),
    )


def assembled(name: str, units: Units, layers: Sequence[LayerUnits], relus: int, results: int) -> Net:
    """Compute the seconds and bytes of private inference with a net of these layers, by the protocol of Garimella et
    al.

    name: of the net, for reports. units: the costs of one ciphertext, one ReLU and so on. relus: number of ReLUs for
    one image. results: number of values in the net's result. Returns a `Net`. Values that several layers read are sent
    once, in as many ciphertexts as the most demanding of these layers needs.
    """
    inputs = {layer.source: layer.inputs for layer in layers}
    sent: dict[int, int] = {}
    for layer in layers:
        sent[layer.source] = max(sent.get(layer.source, 0), units.up(layer))
    up, down = sum(sent.values()), sum(units.down(layer) for layer in layers)
    seconds = [units.evaluation(layer) for layer in layers]
    garbler = Garbler(
        offline_encode=units.offline_encode * relus,
        garbled=round(units.garbled_relu_bytes * relus),
        base_ot=units.base_ot_bytes,
        ot_setup=units.ot_setup_bytes * relus,
        ot_send=units.ot_send_bytes * relus,
        input=sum(units.value_bytes * count + units.message_bytes for count in inputs.values()),
        encode=units.encode * relus,
        linear=units.multiply * sum(layer.multiplications for layer in layers),
        labels=units.label_bytes * relus,
        prediction=units.value_bytes * results + units.message_bytes,
    )
    image = units.value_bytes * next(iter(inputs.values())) + units.message_bytes
    return Net(
        name=name,
        relus=relus,
        linear_values=sum(inputs.values()) + relus + results,
        server_values=relus + results,
        keygen=units.keygen,
        key=units.key_bytes,
        encrypt=units.encrypt * up,
        up=units.ciphertext_bytes * up,
        he=tuple(lphe(seconds, threads) * (1 + units.thread * (threads - 1)) for threads in range(1, len(layers) + 1)),
        down=units.ciphertext_bytes * down,
        decrypt=units.decrypt * down,
        sg=garbler,
        cg=garbler._replace(input=image, labels=0),
    )


def lphe(seconds: Sequence[float], threads: int) -> float:
    """Compute how many seconds `threads` threads take to evaluate some layers in parallel.

    seconds: what each layer takes on one thread. The layers begin in order, each on the thread that is free first, and
    use no other thread. The result is the end of the last layer.
    """
    free = [0.0] * threads
    for length in seconds:
        heapq.heappush(free, heapq.heappop(free) + length)
    return max(free)
