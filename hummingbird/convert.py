"""A trained PyTorch net to a private one: `convert_model(net)`, layer by layer over the canonical steps of
`hummingbird.graph`.

    net = hummingbird.convert_model(net.eval(), bits=BitConfig.load("bits.json"))
    logits = net(hummingbird.cryptensor(images, src=0))

Nothing is converted unless everything can be: `validate_model` lists every problem at once, by qualified name.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird import graph
from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError, ModelError, Problem
from hummingbird.graph import OPS, Step, whole
from hummingbird.mpc import activations as act
from hummingbird.mpc import session as sessions
from hummingbird.mpc import smooth, splines
from hummingbird.mpc.averaging import AdaptiveAvgPool, AvgPool, Mean
from hummingbird.mpc.layer import FLOOR, Combine, Layer, Local
from hummingbird.mpc.linear import AddConstant, Linear, Multiply, Pad, Scale, Square
from hummingbird.mpc.maximum import AdaptiveMaxPool, Argmax, MaxPool, Softmax
from hummingbird.mpc.net import PrivateNet
from hummingbird.mpc.planner import Built, Planner, digest
from hummingbird.mpc.protocols.comparison import Comparison
from hummingbird.mpc.protocols.gmw import Gmw
from hummingbird.mpc.protocols.registry import named
from hummingbird.ring import SCALE

_custom: dict[type[nn.Module], Callable[[nn.Module], nn.Module]] = {}


def register_converter(module_type: type[nn.Module], build: Callable[[nn.Module], nn.Module]) -> None:
    """Teach `convert_model` a layer: `build(module)` returns a module from CrypTen tensors (scale 2^16) to one of them.

    Return a `hummingbird.mpc.layer.Layer` with a `cost` method to have it priced and metered exactly. The module's
    parameters and buffers are public: with private weights it must have none. ConfigError for other arguments.
    """
    if not isinstance(module_type, type) or not issubclass(module_type, nn.Module):
        got = type(module_type).__name__ if isinstance(module_type, nn.Module) else repr(module_type)
        hint = f"the type itself: register_converter({got}, ...)" if isinstance(module_type, nn.Module) else ""
        what = f"expected a subclass of torch.nn.Module, got {'an instance of ' if hint else ''}{got}"
        raise ConfigError(what, where="module_type", hint=hint or "register_converter(MyLayer, lambda module: ...)")
    if not callable(build):
        hint = "a function from the module to its private form: lambda module: module"
        raise ConfigError(f"expected a function, got {build!r}", where="build", hint=hint)
    _custom[module_type] = build


def validate_model(net: nn.Module) -> list[Problem]:
    """Every reason why `net` cannot be converted, by qualified name with a hint; an empty list when it can."""
    return _problems(net, None)


def _problems(net: nn.Module, owner: int | None) -> list[Problem]:
    return graph.problems(net, custom=tuple(_custom)) or _unpriced(net, owner)


def _unpriced(net: nn.Module, owner: int | None) -> list[Problem]:
    """Steps without a private form or without values, and numbers that fixed point cannot hold."""
    steps = graph.trace(net, custom=tuple(_custom))
    found = whole.rounded(steps)
    for step in steps:
        if any(tensor.is_meta for tensor in _tensors(step)):
            hint = "net.to_empty(device='cpu'), then load_state_dict"
            found.append(Problem(step.name, "its weights are on the meta device and have no values", hint))
        elif step.op == "custom":
            found += _unbuilt(step)
        elif step.op not in _BUILDERS and step.op not in _PLAIN:
            hint = "register_converter can teach one for its module"
            found.append(Problem(step.name, f"no private form of {step.op!r}", hint))
        elif step.op in _BUILDERS:
            try:
                _BUILDERS[step.op](step, Gmw(EXACT), owner)
            except InputError as error:
                found.append(Problem(step.name, error.what, error.hint))
    return found


def _tensors(step: Step) -> list[Tensor]:
    """Constants and weights of a step."""
    values = step.attrs.values()
    modules = [value for value in values if isinstance(value, nn.Module)]
    own = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    return own + [value for value in values if isinstance(value, Tensor)]


def _unbuilt(step: Step) -> list[Problem]:
    """What is wrong with the private form of a custom layer."""
    kind = type(step.attrs["module"])
    try:
        built = _custom[kind](step.attrs["module"])
        if isinstance(built, nn.Module):
            return []
        outcome = f"returned {type(built).__name__}, not a torch.nn.Module"
    except Exception as error:  # the user's own code runs here
        outcome = f"raised {type(error).__name__}: {error}"
    what = f"the converter registered for {kind.__name__} {outcome}"
    return [Problem(step.name, what, "return a module whose forward takes and gives CrypTen tensors")]


def convert_model(
    net: nn.Module,
    bits: BitConfig | BitWindow | str | PathLike[str] | None = None,
    weights: str | int = "public",
    protocol: str = "masked",
) -> PrivateNet:
    """The private twin of a trained net; the net itself is left as it is and used as in eval mode.

    bits: windows by layer (`BitConfig`, one `BitWindow` for all, or a JSON file's path); None: exact comparisons.
    weights: "public", or the rank of the party whose weights they are; the others' values are then ignored, only
        shapes count.
    protocol: "masked", a ReLU by one masked opening of k bits, whose masks the dealer knows; or "gmw", HummingBird's
        reduced-ring ReLU, whose comparison is computed by the parties on dealt triples. Both trust the dealer not to
        collude with a party.
    Raises ModelError with all problems, ConfigError for bits that name no layer of the net or were found for another
    net (of private weights their owner alone can tell), AgreementError if, after `init`, the parties differ. Warns of
    bits that were found for another protocol or number of parties.
    """
    parties = sessions.current().parties if sessions.is_initialized() else None
    private = build(net, bits, weights, protocol, parties)
    if sessions.is_initialized():
        private.prepare()
    return private


def build(
    net: nn.Module,
    bits: BitConfig | BitWindow | str | PathLike[str] | None = None,
    weights: str | int = "public",
    protocol: str = "masked",
    parties: int | None = None,
) -> PrivateNet:
    """`convert_model` without a word to the other parties; parties: how many there will be, None if not known."""
    config = _config(bits)
    owner = _owner(weights)
    named(protocol)
    if problems := _problems(net, owner):
        raise ModelError(problems, hint="replace these layers, or teach them with register_converter")
    steps = graph.trace(net, custom=tuple(_custom))
    if owner is not None and (
        constants := [step.name for step in steps if isinstance(step.attrs.get("value"), Tensor)]
    ):
        # They would be public, and read from every party's own net.
        hint = 'use weights="public", or move them into a Linear, Conv or BatchNorm layer'
        raise ModelError([Problem(name, "a constant tensor cannot be private", hint) for name in constants])
    if owner is not None and (public := [step.name for step in steps if step.op == "custom" and _tensors(step)]):
        # They would be each party's own, and the result of their products garbage.
        hint = 'use weights="public", or keep parameters and buffers in Linear, Conv and BatchNorm layers'
        raise ModelError([Problem(name, "the weights of a custom layer cannot be private", hint) for name in public])
    config.check_names([step.name for step in steps if step.op in _COMPARING])
    if owner is None or (sessions.is_initialized() and sessions.current().rank == owner):
        config.check_use(lambda: graph.fingerprint(steps), protocol, parties)
    plan = Planner(_builder(protocol, config, owner), protocol).plan(steps)
    facts = {
        "architecture": graph.fingerprint([_bare(step) for step in steps], weights=False),
        "net": graph.fingerprint(
            [_bare(step) for step in steps] if owner is not None else steps, weights=owner is None
        ),
        "bits": " ".join(config.windows.to_json().split()),
        "plan": digest(plan),
        "protocol": protocol,
        "weights": "public" if owner is None else f"private to party {owner}",
    }
    settings = f"protocol {protocol}, weights {facts['weights']}"
    return PrivateNet(plan, [_bare(step) for step in steps], facts, settings, config.input_range)


def _config(bits: BitConfig | BitWindow | str | PathLike[str] | None) -> BitConfig:
    if bits is None:
        return BitConfig(EXACT)
    if isinstance(bits, BitConfig):
        return bits
    if isinstance(bits, BitWindow):
        return BitConfig(bits)
    if isinstance(bits, (str, PathLike)):
        return BitConfig.load(bits)  # type: ignore[arg-type]
    raise ConfigError(f"expected a BitConfig, a BitWindow or a path, got {type(bits).__name__}", where="bits")


def _owner(weights: str | int) -> int | None:
    if weights == "public":
        return None
    parties = sessions.current().parties if sessions.is_initialized() else None
    if type(weights) is int and weights >= 0 and (parties is None or weights < parties):
        return weights
    raise ConfigError(f"weights={weights!r}", where="weights", hint='"public", or the rank of the party that owns them')


def _bare(step: Step) -> Step:
    """The step without weights: tensors on the meta device."""
    attrs = {
        key: value.to("meta")
        if isinstance(value, Tensor)
        else deepcopy(value).to("meta")
        if isinstance(value, nn.Module)
        else value
        for key, value in step.attrs.items()
    }
    return Step(step.name, step.op, step.inputs, attrs)


def _builder(protocol: str, config: BitConfig, owner: int | None) -> Callable[[Step], Built]:
    """Layer or plain function of a step, and what it asks of its inputs."""
    comparison = named(protocol)

    def build(step: Step) -> Built:
        if step.op == "custom":
            return Built(_custom[type(step.attrs["module"])](step.attrs["module"]), None, SCALE, True)
        if step.op in _PLAIN:
            function = None if step.op in ("input", "output") else _bind(step)
            return Built(None, function, SCALE if step.op == "output" else 62, step.op == "output")
        layer = _BUILDERS[step.op](step, comparison(config.window(step.name)), owner)
        return Built(layer, None, layer.input_limit, False)

    return build


def _bind(step: Step) -> Callable[..., Any]:
    """The graph's own definition, for steps on sizes and on tuples of tensors."""
    function, attrs = OPS[step.op], step.attrs
    return lambda *values: function(attrs, *values)


# One builder per canonical op: (step, comparison, owner of the weights) -> layer
# ----------------------------------------

Build = Callable[[Step, Comparison, int | None], Layer]


def _conv(step: Step, comparison: Comparison, owner: int | None) -> Layer:
    a = step.attrs
    transposed = step.op == "conv_transpose"
    names = ("stride", "padding", "dilation", *(("output_padding",) if transposed else ()))
    options = {name: [int(v) for v in a[name]] for name in names} | {"groups": int(a["groups"])}
    return Linear(f"{step.op}{len(a['stride'])}d", a["weight"], a["bias"], options, owner)


def _linear(step: Step, comparison: Comparison, owner: int | None) -> Layer:
    return Linear("matmul", step.attrs["weight"].t().contiguous(), step.attrs["bias"], {}, owner)


def _affine(step: Step, comparison: Comparison, owner: int | None) -> Layer:
    return Linear("mul", step.attrs["scale"], step.attrs["shift"], {}, owner)


def _sum(step: Step, comparison: Comparison, owner: int | None) -> Layer:
    dims, keep = step.attrs["dims"], step.attrs["keepdim"]
    if dims is None:
        return Local(lambda x: x.sum(), "sum over all", FLOOR)
    return Local(lambda x: x.sum(dims, keepdim=keep), f"sum over {dims}", FLOOR)


def _add(step: Step, comparison: Comparison, owner: int | None) -> Layer:
    if "value" in step.attrs:
        return AddConstant(_constant(step))
    return Combine(lambda xs: xs[0] + xs[1], "add", 1)


def _sub(step: Step, comparison: Comparison, owner: int | None) -> Layer:
    if "value" not in step.attrs:
        return Combine(lambda xs: xs[0] - xs[1], "subtract", 1)
    return AddConstant(_constant(step), sign=-1) if step.attrs.get("reversed") else AddConstant(-_constant(step))


def _mul(step: Step, comparison: Comparison, owner: int | None) -> Layer:
    if "value" not in step.attrs:
        return Multiply()
    factor = _constant(step)
    if factor.numel() != 1:
        hint = "put the factors into a Linear, Conv or BatchNorm layer, or scale the input before it is shared"
        raise InputError(f"a product with a constant tensor of shape {tuple(factor.shape)}", hint=hint)
    return Scale(float(factor))


def _constant(step: Step) -> Tensor:
    return torch.as_tensor(step.attrs["value"], dtype=torch.float64)


def _max_pool(step: Step, comparison: Comparison, owner: int | None) -> Layer:
    a = step.attrs
    return MaxPool(a["kernel"], a["stride"], a["padding"], a["dilation"], a["ceil_mode"], comparison)


def _avg_pool(step: Step, comparison: Comparison, owner: int | None) -> Layer:
    a = step.attrs
    return AvgPool(a["kernel"], a["stride"], a["padding"], a["ceil_mode"], a["count_include_pad"], a.get("divisor"))


def _squashing(step: Step, comparison: Comparison, owner: int | None) -> Layer:
    return act.Smooth(step.op, smooth.squashing(step.op), comparison)


def _local(function: Callable[[dict[str, Any]], Callable[..., Any]]) -> Build:
    return lambda step, comparison, owner: Local(function(step.attrs), step.op)


def _defined(step: Step, comparison: Comparison, owner: int | None) -> Layer:
    """Reshaping: the graph's own definition, applied to the share."""
    return Local(_bind(step), ", ".join(f"{key}={value}" for key, value in step.attrs.items()))


def _pad(step: Step, comparison: Comparison, owner: int | None) -> Layer:
    return Pad(step.attrs["pads"], float(step.attrs["value"]))


_COMPARING: dict[str, Build] = {
    "relu": lambda step, comparison, owner: act.ReLU(comparison),
    "leaky_relu": lambda step, comparison, owner: act.LeakyReLU(step.attrs["slope"], comparison),
    "prelu": lambda step, comparison, owner: act.PReLU(step.attrs["weight"], comparison, owner),
    "hardtanh": lambda step, comparison, owner: act.Hardtanh(step.attrs["low"], step.attrs["high"], comparison),
    "hardsigmoid": lambda step, comparison, owner: act.Spline(step.op, splines.hard_sigmoid(), comparison),
    "hardswish": lambda step, comparison, owner: act.Hardswish(comparison),
    "sigmoid": _squashing,
    "tanh": _squashing,
    "silu": lambda step, comparison, owner: act.EvenSmooth(step.op, smooth.even("silu"), comparison),
    "gelu": lambda step, comparison, owner: act.EvenSmooth(
        step.op, smooth.even(f"gelu-{step.attrs['approximate']}"), comparison
    ),
    "softmax": lambda step, comparison, owner: Softmax(step.attrs["dim"], comparison),
    "argmax": lambda step, comparison, owner: Argmax(step.attrs["dim"], step.attrs["keepdim"], comparison),
    "max_pool": _max_pool,
    "adaptive_max_pool": lambda step, comparison, owner: AdaptiveMaxPool(step.attrs["output_size"], comparison),
}
_BUILDERS: dict[str, Build] = {
    **_COMPARING,
    "conv": _conv,
    "conv_transpose": _conv,
    "linear": _linear,
    "affine": _affine,
    "avg_pool": _avg_pool,
    "adaptive_avg_pool": lambda step, comparison, owner: AdaptiveAvgPool(step.attrs["output_size"]),
    "mean": lambda step, comparison, owner: Mean(step.attrs["dims"], step.attrs["keepdim"]),
    "sum": _sum,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "neg": _local(lambda a: lambda x: -x),
    "square": lambda step, comparison, owner: Square(),
    "cat": lambda step, comparison, owner: Combine(lambda xs: torch.cat(xs, step.attrs["dim"]), "concatenate"),
    "stack": lambda step, comparison, owner: Combine(lambda xs: torch.stack(xs, step.attrs["dim"]), "stack"),
    "pad": _pad,
    **dict.fromkeys(("flatten", "reshape", "permute", "transpose", "squeeze", "unsqueeze", "chunk", "split"), _defined),
}
_PLAIN = frozenset({"input", "output", "size", "int", "getitem", "custom"})
