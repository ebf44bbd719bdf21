"""Saving of nets, and loading at parties that do not have the net's Python code: `save`, `load`, `load_net`.

    hummingbird.save(net, "saved", bits="bits.json", weights=1)     # at the owner of the weights; no session is needed
    private = hummingbird.load("saved")                             # at every party: what convert_model returns

A saved net is not a private net, whose tensors belong to one session, but the net as data (`graph.SavedNet`): its
traced steps, of a closed list of operations, before batch norms are folded, with its own parameters. Loading makes a
module from them and converts it like any other net: `load(folder)` is `convert_model` of `load_net(folder)`, with the
saved windows, owner and protocol. So there is one way from a net to a private net, and `simulate`, `validate_model` and
the searches also take a loaded net. Names, fingerprints, windows, costs and answers are those of the original net.

description.py    net.json: the steps, the tensors' types and shapes, and how the net is converted
weights.py        files of weights: safetensors, bound to one net.json
folder.py         the folder: written as a whole or not at all
"""

from __future__ import annotations

from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hummingbird import convert, graph
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import InputError, ModelError, Problem
from hummingbird.graph import SavedNet, Step
from hummingbird.graph.example_shapes import fingerprints
from hummingbird.graph.ops.public import MOST_NUMBERS
from hummingbird.graph.schema import check
from hummingbird.mpc.plan import builders
from hummingbird.mpc.plan.net import PrivateNet, SharedResult
from hummingbird.mpc.session import session as sessions
from hummingbird.prg import new_seed
from hummingbird.saving import folder as folders
from hummingbird.saving import weights as files
from hummingbird.saving.description import NetDescription
from hummingbird.structure import TENSOR, constants

__all__ = ["NetDescription", "load", "load_net", "save"]


def save(
    net: nn.Module,
    folder: str | PathLike[str],
    bits: BitConfig | BitWindow | str | PathLike[str] | None = None,
    weights: str | int = "public",
    protocol: str = "masked",
    example: Any = None,
) -> None:
    """Save a net, and how it is converted, to a new folder, from which `load` makes the private net.

    The other arguments and the errors are those of `convert_model`; no session is needed. Private weights
    (`weights=RANK`) go to a file of their own, `party-RANK.safetensors`, which no other party may have. Also raises
    ModelError for layers that only code can express (`register_converter`), and InputError for a folder that exists
    already or cannot be written, and at a party that does not have the weights.

    >>> hummingbird.save(net, "saved", bits=BitWindow(20, 12))
    >>> private = hummingbird.load("saved")
    >>> private.comparing_layers
    ['1']
    """
    place = Path(fspath(folder))
    if isinstance(net, PrivateNet):
        hint = "save the net it was made from: hummingbird.save(net, folder, bits=..., weights=...)"
        raise InputError("a private net holds shares and belongs to a session", where="save", hint=hint)
    folders.check_free(place)
    config, owner = BitConfig.of(bits), convert.owner_of(weights)
    if owner is not None and sessions.is_initialized() and sessions.current().rank != owner:
        what = f"party {sessions.current().rank} does not have the weights of party {owner}"
        hint = f"party {owner} saves the net, and gives net.json to the others"
        raise InputError(what, where="save", hint=hint)
    convert.build(net, config, weights, protocol, example=example)  # raises whatever convert_model raises
    steps, tensors = _named(_savable(net, example, owner))
    if owner is not None:
        config.check_use(lambda: fingerprints(net, graph.trace(net, example=example), example), protocol, None)
        # The provenance of windows may reveal something about the weights; the check above has used it.
        known = {key: config.provenance[key] for key in ("protocol", "parties") if key in config.provenance}
        config = replace(config, provenance=known)
    elif "net" in config.provenance:  # it may be the fingerprint of the net without the example
        steps_of = graph.fingerprint(graph.trace(net, example=example))
        config = replace(config, provenance={**config.provenance, "net": steps_of})
    salt = b"" if owner is None else new_seed(32)
    seal = files.seal(tensors, salt)
    saved = NetDescription(tuple(steps), tensors, "public" if owner is None else owner, protocol, config, seal)
    text = saved.to_json().encode()
    NetDescription.from_json(text, str(place / folders.NET))  # never write a file that this release cannot read
    with folders.written(place) as draft:
        (draft / folders.NET).write_bytes(text)
        path = draft / files.name_of(owner)
        files.write(path, saved, tensors, salt)
        path.chmod(0o644 if owner is None else 0o600)


def load(folder: str | PathLike[str], aim: str | None = None) -> PrivateNet[SharedResult]:
    """Load the private net of a folder that `save` wrote, without the net's code.

    aim: as for `convert_model`; the folder does not hold it, as it depends on the session. With private weights, the
    folder of a party that is not their owner holds net.json only. Raises InputError for a folder that holds no saved
    net or an incomplete one, for changed or foreign files, and for files of other parties; AgreementError if, after
    `init`, the parties have loaded different nets; and the errors of `convert_model`.

    >>> hummingbird.save(net, "saved")
    >>> private = hummingbird.load("saved", aim="latency")
    >>> hummingbird.load("elsewhere")
    Traceback (most recent call last):
        ...
    hummingbird.errors.InputError: no saved net: cannot read net.json: No such file or directory (at elsewhere)
    hint: the folder that hummingbird.save wrote
    """
    saved = folders.description(Path(fspath(folder)))
    rank = sessions.current().rank if sessions.is_initialized() else None
    net = read_net(folder, saved, weights=rank is None or saved.owner in (None, rank))
    return convert.convert_model(net, *saved.arguments, aim=aim)


def load_net(folder: str | PathLike[str]) -> SavedNet:
    """Load the net of a folder that `save` wrote, as a plain module, which computes the same as the net at inference.

    It serves for `simulate`, `validate_model`, and for other windows. Raises InputError as `load` does, and if the
    folder lacks private weights.

    >>> hummingbird.save(net, "saved")
    >>> torch.equal(hummingbird.load_net("saved")(images), net(images))
    True
    """
    return read_net(folder, folders.description(Path(fspath(folder))))


def read_net(folder: str | PathLike[str], saved: NetDescription, *, weights: bool = True) -> SavedNet:
    """Load a net from a folder that `save` wrote, as a plain module, given the description in its net.json.

    saved: this description, which the caller has read. weights: whether to read the weights; if not, the net has zeros
    in their place. Raises InputError for missing or changed files, and for files of another party.
    """
    place = Path(fspath(folder))
    rank = sessions.current().rank if sessions.is_initialized() else None
    folders.check_strangers(place, saved, rank)
    tensors = files.read(place / files.name_of(saved.owner), saved) if weights else files.zeros(saved)
    given = {id(meta): tensors[name] for name, meta in saved.tensors.items()}
    return SavedNet([_with(step, given) for step in saved.steps])


def _with(step: Step, tensors: dict[int, Tensor]) -> Step:
    """Return a copy of a step with other tensors among its attributes.

    tensors: the new tensor for each old one, by the old one's id().
    """
    attrs = {key: tensors[id(value)] if isinstance(value, Tensor) else value for key, value in step.attrs.items()}
    return replace(step, attrs=attrs)


def _savable(net: nn.Module, example: Any, owner: int | None) -> list[Step]:
    """Trace a net to the steps that are saved in net.json, which all parties may see.

    If the weights are private, the steps contain no number of them. example: as for `convert_model`. owner: the rank of
    the party that owns the weights; None if they are public. Raises ModelError that lists all layers made by
    `register_converter`, which are code and cannot be saved; InputError for an example that cannot be saved.
    """
    steps = graph.unfolded(net, custom=tuple(builders.CUSTOM), example=example, secret=owner is not None)
    hint = "write it with layers of torch.nn and known functions, or convert the net where its code is"
    own = [
        Problem(step.name, f"{type(step.attrs['module']).__name__}, a layer of register_converter, is code", hint)
        for step in steps
        if step.op == "custom"
    ]
    if own:
        raise ModelError(own, hint="a saved net is data: it holds no code")
    if any(isinstance(value, Tensor) for step in steps for value in constants(step.attrs.get("call", TENSOR))):
        what = "the example holds tensors that cannot be written as part of a net"
        hint = f"public tensors of whole numbers or truth values, of at most {MOST_NUMBERS} numbers, can"
        raise InputError(what, where="example", hint=hint)
    check(steps)
    return steps


def _named(steps: list[Step]) -> tuple[list[Step], dict[str, Tensor]]:
    """Return the steps as they are, and a dict with all tensors of their attributes, by name.

    A name is STEP.ATTRIBUTE, as in files of weights. A tensor that several steps have occurs once, with the name from
    the first of them.
    """
    tensors: dict[str, Tensor] = {}
    known: set[int] = set()
    for step in steps:
        for key, value in step.attrs.items():
            if isinstance(value, Tensor) and id(value) not in known:
                known.add(id(value))
                tensors[f"{step.name}.{key}"] = value
    return steps, tensors
