"""Converts a trained PyTorch net to a private one, layer by layer over the canonical steps of `hummingbird.graph`.

    net = hummingbird.convert_model(net.eval(), bits=BitConfig.load("bits.json"))
    logits = net(hummingbird.cryptensor(images, src=0))

A net is converted completely or not at all: `validate_model` lists all problems at once, by qualified name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from os import PathLike
from typing import Any

from torch import Tensor, nn

from hummingbird import graph
from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError, ModelError, Problem
from hummingbird.graph import Step, properties
from hummingbird.graph.causal import CausalNet
from hummingbird.graph.example_shapes import fingerprints
from hummingbird.mpc.functions import smooth
from hummingbird.mpc.layers.linear import WeightOwner
from hummingbird.mpc.plan import columns
from hummingbird.mpc.plan.builders import (
    BUILDERS,
    CUSTOM,
    PLAIN,
    bare,
    builder,
    call_of_weights,
    compares,
)
from hummingbird.mpc.plan.decoder import PrivateDecoder
from hummingbird.mpc.plan.dry_run import requests_of
from hummingbird.mpc.plan.net import PrivateNet, SharedResult
from hummingbird.mpc.plan.ranges import check_ranges, check_rows, narrow, uneven
from hummingbird.mpc.plan.rewritten import Rewritten
from hummingbird.mpc.plan.rounding_plan import Planner, digest
from hummingbird.mpc.protocols.gmw import Gmw
from hummingbird.mpc.protocols.registry import named
from hummingbird.mpc.protocols.step_tables import TableChoice
from hummingbird.mpc.session import session as sessions


def register_converter(module_type: type[nn.Module], build: Callable[[nn.Module], nn.Module]) -> None:
    """Register a function by which `convert_model` converts modules of one more type.

    module_type: the type. build: takes such a module, and returns the module to use in the private net, which maps
    CrypTen tensors (scale 2^16) to one CrypTen tensor. If the returned module is a `hummingbird.mpc.layers.layer.Layer`
    with a `cost` method, it is priced and metered exactly. The parameters and buffers of the original module are
    public: where weights are private, it must have none. Raises ConfigError for other arguments.

    >>> class Exp(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.exp()  # CrypTen's tensors have this function too
    >>> hummingbird.register_converter(Exp, lambda module: module)
    >>> hummingbird.validate_model(torch.nn.Sequential(net, Exp()))
    []
    """
    if not isinstance(module_type, type) or not issubclass(module_type, nn.Module):
        got = type(module_type).__name__ if isinstance(module_type, nn.Module) else repr(module_type)
        hint = f"the type itself: register_converter({got}, ...)" if isinstance(module_type, nn.Module) else ""
        what = f"expected a subclass of torch.nn.Module, got {'an instance of ' if hint else ''}{got}"
        raise ConfigError(what, where="module_type", hint=hint or "register_converter(MyLayer, lambda module: ...)")
    if not callable(build):
        hint = "a function from the module to its private form: lambda module: module"
        raise ConfigError(f"expected a function, got {build!r}", where="build", hint=hint)
    CUSTOM[module_type] = build


def validate_model(net: nn.Module, example: Any = None) -> list[Problem]:
    """Return all reasons why `net` cannot be converted, by qualified name with a hint; an empty list if it can.

    example: as for `convert_model`.

    >>> hummingbird.validate_model(net)
    []
    >>> problem = hummingbird.validate_model(torch.nn.Sequential(net, torch.nn.Hardshrink()))[0]
    >>> print(problem)
    1: Hardshrink is not in the vocabulary  [hint: it jumps: write the comparison itself, such as (x > 0).float()]
    """
    return examined(net, example)[1]


def examined(net: nn.Module, example: Any = None) -> tuple[list[Step], list[Problem]]:
    """Trace a net; return its steps, and all reasons why it cannot be converted. A net without a trace has no steps."""
    try:
        steps = graph.trace(net, custom=tuple(CUSTOM), example=example)
    except ModelError as refused:
        return [], refused.problems
    return steps, _problems(steps, None, BitConfig())


def _problems(steps: list[Step], owner: WeightOwner | None, config: BitConfig) -> list[Problem]:
    """Return the reasons why steps of a net cannot be converted, a `Problem` for each.

    A step cannot be converted if it has no private form, if its weights have no values (they are on the meta device),
    or if fixed point does not hold its numbers precisely enough. owner: of private weights; None: they are public.
    config: the windows.
    """
    found = properties.rounded(steps) + columns.fine(steps, config)
    if owner is None or owner.known:
        found += columns.vanishing(steps, config)
    if owner is None:
        steps = columns.kept(steps)
    elif owner.known:
        found += columns.lost(steps, config)
    built: set[Any] = set()
    for step in steps:
        if any(tensor.is_meta for tensor in _tensors(step)):
            hint = "net.to_empty(device='cpu'), then load_state_dict"
            found.append(Problem(step.name, "its weights are on the meta device and have no values", hint))
        elif step.op == "custom":
            found += _unbuilt(step)
        elif step.op not in BUILDERS and step.op not in PLAIN:
            hint = "register_converter can teach one for its module"
            found.append(Problem(step.name, f"no private form of {step.op!r}", hint))
        elif step.op in BUILDERS and ((key := call_of_weights(step)) is None or key not in built):
            built.add(key)
            try:
                BUILDERS[step.op](step, Gmw(EXACT), owner)
            except InputError as error:
                found.append(Problem(step.name, error.what, error.hint))
    return found


def _of_tables(steps: list[Step], config: BitConfig) -> list[Problem]:
    """Return a `Problem` for each function that has no other form than a table, which only a dealer can make.

    config: the windows; a function whose window has no bits is left out of the net.
    """
    hint = "use a dealer, or a function that is constant to the left and a line to the right: GELU, ELU, sigmoid"
    return [
        Problem(step.name, f"two parties without a dealer cannot make tables of {step.attrs['expression']}", hint)
        for step in steps
        if step.op == "function" and not (compares(step) and not config.window(step.name).w)
        if smooth.tailed(step.attrs["expression"], step.attrs.get("rises", False)) is None
    ]


def _tensors(step: Step) -> list[Tensor]:
    """Return all tensors that a step holds: its module's parameters and buffers, and its constants."""
    values = step.attrs.values()
    modules = [value for value in values if isinstance(value, nn.Module)]
    own = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    return own + [value for value in values if isinstance(value, Tensor)]


def _unbuilt(step: Step) -> list[Problem]:
    """Return a list with one problem if the converter for a step's module fails, else an empty list.

    The converter is a function that the user has registered (`register_converter`). It fails if it raises an error or
    returns something that is no torch module.
    """
    kind = type(step.attrs["module"])
    try:
        built = CUSTOM[kind](step.attrs["module"])
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
    example: Any = None,
    aim: str | None = None,
) -> PrivateNet[SharedResult]:
    """Convert a trained net to a private form of what it computes in eval mode; the net itself does not change.

    bits: windows by layer (`BitConfig`, one `BitWindow` for all, or a JSON file's path); None: exact comparisons. Its
        `rows` are assumptions on the rows of softmaxes and norms, which then cost much less; a row that breaks them
        gives a random result, without notice.
    weights: "public", or the rank of the party that owns the weights; the other parties pass nets of the same shapes,
        whose weights do not count.
    protocol: "masked", a ReLU by one masked opening of k bits, whose masks the dealer knows; or "gmw", HummingBird's
        reduced-ring ReLU, whose comparison the parties compute on dealt triples. Both trust the dealer not to collude
        with a party.
    example: an input with which the net is traced, for a forward() that reads shapes or takes several inputs: a tensor,
        a tuple of arguments or a dict of keyword arguments. Only its shapes count; later inputs must have these shapes,
        but for the number of images. Floating-point tensors are private; others (masks, numbers of words) are public,
        and every party passes the same ones to a call. Flags and None are part of the converted net, and so are public
        tensors whose values forward() reads.
    aim: the choice of tables for the masked opening. "latency": the fewest rounds with small tables. "rounds": the
        same, but ReLUs of narrow windows take one round in place of two, with up to 1.25 KiB of the dealer for each: of
        up to 6 bits, and of 7 if layers read up to 40 bits of the results. They decide as by the other aims; it is for
        stores on slow links. "throughput": the fewest bits of all parties and the dealer together; a smooth function is
        then a spline of masked comparisons if that moves fewer bits than a table (the spline's comparisons decide from
        bit 8 on, or from a lower bit if the layer's window does). "throughput:RATIO" counts each bit of the dealer
        RATIO times, the bandwidth of the parties' links over that of the dealer's. "link:RTT:BANDWIDTH:DEALT": for each
        layer the form, of these three, of the fewest seconds; the numbers are seconds there and back, bits per second
        of a party, and bits per second at which dealt material comes (10e9 if left out). All parties, and their stores,
        must have the same aim. "pair": the forms whose material two parties can make without a dealer
        (`init(dealer="pair")`), with the fewest bits of both: no functions are looked up; "pair:KIND:BITS" for another
        kind of transfers and another price of one (docs/pair.md). None: that of the dealer in such a session,
        throughput if a dealer streams material into this session, latency with a store or without a session.
    Raises ModelError with all problems, ConfigError for bits that name no layer of the net or were found for another
    net (with private weights only their owner can tell), AgreementError if, after `init`, the parties differ. Warns of
    bits that were found for another protocol or number of parties, and of weights above 2^7 in the first layer, which
    magnify the rounding of small inputs.

    >>> private = hummingbird.convert_model(net, bits=BitWindow(20, 12))
    >>> private.comparing_layers
    ['1']
    >>> hummingbird.convert_model(net, bits=BitConfig(layers={"relu": BitWindow(20, 12)}))
    Traceback (most recent call last):
        ...
    hummingbird.errors.ConfigError: the bit configuration names ['relu'], which the net lacks
    hint: layers that compare in this net: 1
    """
    session = sessions.current() if sessions.is_initialized() else None
    if aim is None:
        aim = "latency" if session is None else session.aim
    private: PrivateNet[SharedResult] = build(
        net, bits, weights, protocol, session.parties if session else None, example, aim
    )
    if sessions.is_initialized():
        private.set_up()
    return private


def build(
    net: nn.Module,
    bits: BitConfig | BitWindow | str | PathLike[str] | None = None,
    weights: str | int = "public",
    protocol: str = "masked",
    parties: int | None = None,
    example: Any = None,
    aim: str = "latency",
) -> PrivateNet[SharedResult]:
    """Return the private form of a net, as `convert_model` does, but without communication between parties.

    net, bits, weights, protocol, example: as for `convert_model`. aim: likewise, but not None. parties: number of
    parties, None if not known; if it is known, it is compared with the provenance of the windows. Raises the errors of
    `convert_model`, without AgreementError.
    """
    chosen = TableChoice.of(aim)
    steps, config, owner = _prepared(net, bits, weights, protocol, parties, example, chosen)
    order = Rewritten.of(steps, protocol, None if owner is None else config, config.rows)
    plan = Planner(builder(protocol, order.windows(config), owner, chosen), protocol).plan(order.steps)
    facts = _facts(steps, config, owner, chosen, protocol, digest(plan))
    settings = f"protocol {protocol}, weights {facts['weights']}"
    private: PrivateNet[SharedResult] = PrivateNet(
        plan, [bare(step) for step in order.steps], facts, settings, config.input_range
    )
    if chosen.pair:
        private.requests_of = requests_of
    return private


def _prepared(
    net: nn.Module,
    bits: BitConfig | BitWindow | str | PathLike[str] | None,
    weights: str | int,
    protocol: str,
    parties: int | None,
    example: Any,
    aim: TableChoice,
) -> tuple[list[Step], BitConfig, WeightOwner | None]:
    """Trace a net and check it with its windows; return its steps, the windows, and the owner of private weights.

    The arguments and the errors are those of `build`.
    """
    config = BitConfig.of(bits)
    owner = _owner(owner_of(weights))
    named(protocol)
    try:
        # Numbers of private weights must not be in the steps, which are the same at all parties.
        steps = graph.trace(net, custom=tuple(CUSTOM), example=example, secret=owner is not None)
        problems = _problems(steps, owner, config) + (_of_tables(steps, config) if aim.pair else [])
    except ModelError as refused:
        problems = refused.problems
    if problems:
        raise ModelError(problems, hint="replace these layers, or teach them with register_converter")
    if owner is not None and (public := [step.name for step in steps if step.op == "custom" and _tensors(step)]):
        # Each party would use its own weights, and their products would be garbage.
        hint = 'use weights="public", or keep parameters and buffers in Linear, Conv and BatchNorm layers'
        raise ModelError([Problem(name, "the weights of a custom layer cannot be private", hint) for name in public])
    config.check_names([step.name for step in steps if compares(step)])
    check_rows(config, steps)
    check_ranges(config, steps)
    told = owner is None or (sessions.is_initialized() and owner.known)
    coarse = columns.coarse(steps) if told else ()
    for sentence in [
        *coarse,
        *narrow(config, steps, named(protocol)(EXACT, aim=aim).has_tables),
        *uneven(config, steps),
    ]:
        warnings.warn(sentence, stacklevel=4)
    if told:
        config.check_use(partial(_fingerprints, net, None if owner is not None else steps, example), protocol, parties)
    return steps, config, owner


def _facts(
    steps: list[Step], config: BitConfig, owner: WeightOwner | None, aim: TableChoice, protocol: str, plan: str
) -> dict[str, str]:
    """Return what the parties compare when they convert a net, a text for each name. plan: the plan's digest."""
    shapes = [bare(step) for step in steps]
    return {
        "architecture": graph.fingerprint(shapes, weights=False),
        "net": graph.fingerprint(shapes if owner is not None else steps, weights=owner is None),
        "bits": " ".join(config.windows.to_json().split()),
        "plan": plan,
        "aim": str(aim),
        "protocol": protocol,
        "weights": "public" if owner is None else str(owner),
    }


def convert_decoder(
    net: nn.Module,
    example: Tensor,
    prompt: int = 64,
    bits: BitConfig | BitWindow | str | PathLike[str] | None = None,
    weights: str | int = "public",
    protocol: str = "masked",
    aim: str | None = None,
) -> PrivateDecoder:
    """Convert a causal net to a private form that generates text, word after word (`generate`).

    net: it computes logits (1, N, words) from word vectors (1, N, width), each row from the words up to its own.
    example: float (1, N, width), whose values do not count; N is the number of places of a conversation.
    prompt: places of a conversation's first step, from 1 to N; a shorter prompt is padded in front.
    bits, weights, protocol, aim: as for `convert_model`. Raises the errors of `convert_model`, and ModelError for a net
    that is not causal, with every step that prevents it.

    >>> class Gpt(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.words, self.qkv = torch.nn.Embedding(20, 16), torch.nn.Linear(16, 48)
    ...     def forward(self, x):
    ...         q, k, v = self.qkv(x).chunk(3, -1)
    ...         attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    ...         return (x + attended) @ self.words.weight.T
    >>> gpt = Gpt().eval()
    >>> hummingbird.convert_decoder(gpt, torch.zeros(1, 8, 16), prompt=4).places
    8
    """
    session = sessions.current() if sessions.is_initialized() else None
    if not isinstance(example, Tensor) or example.dim() != 3 or example.shape[0] != 1:
        got = tuple(example.shape) if isinstance(example, Tensor) else type(example).__name__
        raise InputError(
            f"expected word vectors (1, N, width), got {got}", where="example", hint="torch.zeros(1, N, width)"
        )
    places, width = example.shape[1:]
    if type(prompt) is not int or not 1 <= prompt <= places:
        raise ConfigError(f"prompt={prompt!r}", where="prompt", hint=f"from 1 to the example's {places} places")
    if aim is None:
        aim = "latency" if session is None else session.aim
    parties = session.parties if session else None
    chosen = TableChoice.of(aim)
    if chosen.pair and owner_of(weights) is not None:
        what = "a decoder with private weights for two parties without a dealer, who hold no conversations"
        raise ConfigError(what, where="weights", hint="use a dealer, and another aim than pair")
    steps, config, owner = _prepared(net, bits, weights, protocol, parties, example, chosen)
    order = Rewritten.of(steps, protocol, None if owner is None else config, config.rows)
    causal = CausalNet.of(order.steps, places, width)
    causal.check(prompt)
    facts = _facts(steps, config, owner, chosen, protocol, "")
    settings = f"protocol {protocol}, weights {facts['weights']}"
    layers = builder(protocol, order.windows(config), owner, chosen)
    private = PrivateDecoder(causal, prompt, layers, protocol, facts, settings, config.input_range)
    if session is not None:
        private.set_up(session)
    return private


def _fingerprints(net: nn.Module, steps: list[Step] | None, example: Any) -> list[str]:
    """Return the fingerprints of this net; windows fit the net if their provenance names one of them.

    steps: the net's steps as `graph.trace` returns them; None: the net is traced here. Steps of private weights will
    not do: they lack numbers that forward() reads from weights. example: the input to trace with, as for
    `convert_model`.
    """
    custom = tuple(CUSTOM)
    steps = graph.trace(net, custom=custom, example=example) if steps is None else steps
    return fingerprints(net, steps, example, custom=custom)


def _owner(rank: int | None) -> WeightOwner | None:
    """Return the `WeightOwner` of private weights: the owner's rank, and whether this process knows the weights.

    rank: of the owner; None for public weights, for which None is returned. Without a session the weights count as
    known.
    """
    if rank is None:
        return None
    return WeightOwner(rank, known=not sessions.is_initialized() or sessions.current().rank == rank)


def owner_of(weights: str | int) -> int | None:
    """Return the rank of the party that owns the weights, or None if all parties know them.

    weights: "public" or this rank. Raises ConfigError for anything else, and for a rank that the session does not have.
    """
    if weights == "public":
        return None
    parties = sessions.current().parties if sessions.is_initialized() else None
    if type(weights) is int and weights >= 0 and (parties is None or weights < parties):
        return weights
    raise ConfigError(f"weights={weights!r}", where="weights", hint='"public", or the rank of the party that owns them')
