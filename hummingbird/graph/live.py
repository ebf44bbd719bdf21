"""The net itself, call by call, each with the step that it becomes: for a simulation that trains with the net.

`trace` copies weights and folds batch norms. Here every call runs on the live modules, as in forward(), except calls
that the caller replaces by functions of its own. The same walk finds them, so the names are the same. Where an in-place
call is replaced, all names of the tensor get the new value, as in the list of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from hummingbird.errors import InputError, ModelError
from hummingbird.graph.batch import BatchSize
from hummingbird.graph.calls import Inputs
from hummingbird.graph.capture import capture, is_leaf
from hummingbird.graph.ops.functions import OP as FUNCTION
from hummingbird.graph.ops.functions import pieces
from hummingbird.graph.saved import SavedNet
from hummingbird.graph.steps import Step, compact, map_refs
from hummingbird.graph.trace import problems, walk
from hummingbird.graph.unwrap import plain_copy, submodule, unwrapped
from hummingbird.structure import TENSOR, Structure, rebuild


@dataclass(frozen=True)
class LiveCall:
    """One call that a net's forward() makes: a node of the net's trace, with the step that the call becomes.

    renamed: nodes whose value is this call's result from here on, because the call writes in place.
    training: the arguments, positional and by keyword, that the same call has if the net is in training mode.
    dead: nodes whose values nothing reads after this call.
    source: the node whose value the step takes, if this call and earlier ones are one function of that value
        (graph/ops/functions.py); None otherwise.
    """

    node: fx.Node
    step: Step | None
    renamed: tuple[fx.Node, ...]
    training: tuple[Any, Any]
    dead: tuple[fx.Node, ...]
    source: fx.Node | None = None


@dataclass(frozen=True)
class LiveNet:
    """All calls that a net's forward() makes, in order; `run` makes them again with the net's present weights.

    A simulation that trains a net uses it to replace some of the calls. wrapped: whether the net is itself a single
    layer, which the trace then names "0".
    """

    calls: tuple[LiveCall, ...]
    wrapped: bool
    trains: bool  # whether forward() makes the same calls in training
    constants: dict[str, Tensor]  # tensors that forward() makes itself
    steps: tuple[Step, ...]  # the net's, without weights
    structure: Structure  # of its results

    def __deepcopy__(self, memo: dict[int, Any]) -> LiveNet:
        return self  # it holds no weights and never changes

    def run(self, net: nn.Module, inputs: Inputs, instead: Mapping[str, Callable[..., Any]]) -> Any:
        """Run forward()'s calls on these inputs, and return the result; several results are a tuple in order.

        net: the net, whose present weights are used. instead: step name -> a function that is called in place of that
        step's call. Its arguments are the tensors that the call reads; for a PReLU, the weight too.
        """
        net = unwrapped(net)
        if net.training and not self.trains:
            hint = "fine-tune the net in eval mode, or take the test of self.training out of forward()"
            raise InputError("forward() takes another way in training mode", where="simulate", hint=hint)
        values: dict[fx.Node, Any] = {}
        left, like = iter(self._placed(inputs)), inputs.packed()
        for call in self.calls:
            x = next(left) if call.node.op == "placeholder" else like
            values[call.node] = value = self._value(net, call, x, values, instead)
            for other in call.renamed if call.step is not None and call.step.name in instead else ():
                values[other] = value
            if call.node.op == "output":
                return value
            for node in call.dead:
                values.pop(node, None)
        raise AssertionError("a graph ends with its output")

    def _placed(self, inputs: Inputs) -> Sequence[Any]:
        """List the values with which a run begins, one for each placeholder of the graph, in the graph's order.

        inputs: the inputs of the run, as `Inputs` of a call.
        """
        return inputs.leaves

    def result(self, out: Any) -> Any:
        """Return forward()'s result: its structure, filled with `out`, the net's results in order (or the only one)."""
        return rebuild(self.structure, iter([out] if self.structure == TENSOR else out))

    def _value(
        self,
        net: nn.Module,
        call: LiveCall,
        x: Any,
        values: dict[fx.Node, Any],
        instead: Mapping[str, Callable[..., Any]],
    ) -> Any:
        node = call.node
        if node.op == "placeholder":
            return x
        target = str(node.target)
        path = target.partition(".")[2] if self.wrapped else target
        if node.op == "get_attr":
            return self.constants[path].to(x.device) if path in self.constants else _attribute(net, path)
        given: Any = call.training if net.training else (node.args, node.kwargs)
        args: Any
        kwargs: Any

        def actual(value: Any) -> Any:
            if isinstance(value, fx.Node):
                return values[value]
            return value.factor * len(x) if isinstance(value, BatchSize) else value

        args, kwargs = (fx.node.map_aggregate(part, actual) for part in given)
        if node.op == "output":
            return args[0]
        module = _module(net, path) if node.op == "call_module" else None
        if call.step is not None and call.step.name in instead:
            if call.source is not None:
                return instead[call.step.name](values[call.source])
            if call.step.op in _OF_TWO:
                return _compared(call.step, instead[call.step.name], args, kwargs)
            tensor = args[0] if args else kwargs["input"]
            if call.step.op in ("norm", "normalize") and isinstance(other := args[-1] if args else None, Tensor):
                tensor = max(tensor, other, key=Tensor.numel)  # a product with an inverse root, in either order
            if call.step.op != "prelu":
                return instead[call.step.name](tensor)
            weight = module.weight if module is not None else args[1] if len(args) > 1 else kwargs["weight"]
            return instead[call.step.name](tensor, weight)
        if module is not None:
            return module(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]


_OF_TWO = frozenset({"maximum", "minimum", "greater", "cosine"})


def _compared(step: Step, twin: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call `twin`, which replaces a layer of two tensors, or of a tensor and a number; return its result.

    twin: takes the tensor alone if `step` has the number as an attribute, else both tensors. args, kwargs: the
    arguments of the layer's call. The result of a step "greater" is converted to bool.
    """
    operands = [*args, *(value for key, value in kwargs.items() if key in ("input", "other", "x1", "x2"))]
    if step.op == "cosine":
        operands = [value for value in operands if isinstance(value, Tensor)]
    elif "value" in step.attrs:
        operands = [value for value in operands if isinstance(value, Tensor)][:1]
    elif not isinstance(operands[0], Tensor):
        operands.reverse()
    out = twin(*operands)
    return out.bool() if step.op == "greater" else out


def _module(net: nn.Module, path: str) -> nn.Module:
    return net.step(path) if isinstance(net, SavedNet) else submodule(net, path)


def _attribute(net: nn.Module, path: str) -> Any:
    home, _, name = path.rpartition(".")
    return getattr(submodule(net, home), name)


def live(net: nn.Module, custom: tuple[type[nn.Module], ...], example: Any = None) -> LiveNet:
    """Return the `LiveNet` of a net that `trace` accepts: the calls of its forward(). The net is not changed.

    custom: module types to keep whole. example: as for `trace`. Raises ModelError as `trace` does.
    """
    if isinstance(saved := unwrapped(net), SavedNet):
        return _saved(saved)
    walked = walk(net, custom=custom, example=example)
    nodes, graph = walked.live, walked.captured.graph
    assert graph is not None
    with torch.no_grad():
        other = capture(plain_copy(net).train(), custom, walked.captured.example).graph
    training = _arguments(graph, other) if other is not None else None
    made, sources = _joined(walked.made, walked.builder.steps)
    last = {source: node for node in nodes for source in _read(node, sources)}
    place = {node: number for number, node in enumerate(nodes)}

    def renamed(node: fx.Node) -> tuple[fx.Node, ...]:
        return tuple(x for x in walked.renamed.get(node, ()) if x in last and place[last[x]] > place[node])

    wrapped = is_leaf(unwrapped(net), custom)
    constants = {
        str(node.target): getattr(walked.captured.root, str(node.target))
        for node in nodes
        if node.op == "get_attr" and str(node.target).startswith("_tensor_constant")
    }
    calls = tuple(
        LiveCall(
            node,
            _without_weights(made.get(node)),
            renamed(node),
            (training or {}).get(node, (node.args, node.kwargs)),
            tuple(source for source in _read(node, sources) if last[source] is node),
            sources.get(node),
        )
        for node in nodes
    )
    steps = tuple(step for made in walked.builder.steps if (step := _without_weights(made)) is not None)
    return LiveNet(calls, wrapped, training is not None, constants, steps, walked.captured.structure)


def _joined(made: Mapping[fx.Node, Step], steps: Sequence[Step]) -> tuple[dict[fx.Node, Step], dict[fx.Node, fx.Node]]:
    """Find the calls that are, with earlier ones, one function of one value; `trace` makes one step of them.

    made: the step of each node. steps: all steps of the net. Returns `made` with such a function as the step of the
    last of its calls, and for the node of this call the node whose value the function takes.
    """
    steps = compact(steps)
    nodes = {step.name: node for node, step in made.items()}
    out, sources = dict(made), dict[fx.Node, fx.Node]()
    for number, (source, text) in pieces(steps).items():
        node = nodes.get(steps[number].name)
        if node is None:
            continue  # one of several steps of a call, which runs as it is
        sources[node] = nodes[steps[source].name]
        out[node] = replace(steps[number], op=FUNCTION, attrs={"expression": text})
    return out, sources


def _read(node: fx.Node, sources: Mapping[fx.Node, fx.Node]) -> list[fx.Node]:
    """List the nodes whose values a call may read: those of its arguments, and its source (`_joined`)."""
    return [*node.all_input_nodes, *([sources[node]] if node in sources else [])]


class _SavedLive(LiveNet):
    """The calls of a `SavedNet`; a run gives it all private inputs packed into one tensor, then the public inputs."""

    def _placed(self, inputs: Inputs) -> Sequence[Any]:
        return [inputs.packed(), *inputs.public]


def _saved(net: SavedNet) -> LiveNet:
    """Make the `LiveNet` of a `SavedNet`: one call for each step, as a saved step is a module."""
    if found := problems(net):
        raise ModelError(found)
    graph, nodes = fx.Graph(), list[fx.Node]()
    steps = net.steps
    for step in steps:
        inputs = step.inputs
        if "structure" in step.attrs:  # the results one by one, in place of the packed tensor
            inputs = steps[inputs[0].index].inputs
        arguments = map_refs(inputs, lambda ref: nodes[ref.index])
        kind = {"input": "placeholder", "public": "placeholder", "output": "output"}.get(step.op, "call_module")
        nodes.append(graph.create_node(kind, step.name, arguments))
    made, sources = _joined(dict(zip(nodes, steps, strict=True)), steps)
    last = {source: node for node in nodes for source in _read(node, sources)}
    calls = tuple(
        LiveCall(
            node,
            _without_weights(made[node]),
            (),
            (node.args, node.kwargs),
            tuple(source for source in _read(node, sources) if last[source] is node),
            sources.get(node),
        )
        for node in nodes
    )
    bare = tuple(one for step in steps if (one := _without_weights(step)) is not None)
    return _SavedLive(calls, False, True, {}, bare, steps[-1].attrs.get("structure", TENSOR))


def _without_weights(step: Step | None) -> Step | None:
    if step is None:
        return None
    return replace(step, attrs={key: x for key, x in step.attrs.items() if not isinstance(x, (Tensor, nn.Module))})


def _arguments(graph: fx.Graph, other: fx.Graph) -> dict[fx.Node, tuple[Any, Any]] | None:
    """Match the calls of two traces of one net, and return the other trace's arguments for each node of `graph`.

    The result maps a node of `graph` to the arguments, positional and by keyword, of the same call in `other`; nodes
    among them are replaced by their counterparts in `graph`. It is None unless both graphs have the same calls in the
    same order.
    """
    if len(graph.nodes) != len(other.nodes):
        return None
    pairs = dict(zip(other.nodes, graph.nodes, strict=True))
    if any((a.op, a.target) != (b.op, b.target) for a, b in pairs.items()):
        return None
    return {
        mine: tuple(fx.node.map_arg(part, lambda node: pairs[node]) for part in (theirs.args, theirs.kwargs))
        for theirs, mine in pairs.items()
    }
