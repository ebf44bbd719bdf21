"""torch.fx graph -> list of steps: capture the net, walk its nodes, look each up in the vocabulary, fold batch norms.

A node that cannot be converted becomes one Problem and a value that passes every check, so the walk reaches the end and
lists all problems. torch.fx: Reed et al. 2022, "torch.fx: practical program capture and transformation".
"""

from __future__ import annotations

import inspect
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from hummingbird.errors import ModelError, Problem
from hummingbird.graph.alias import VIEWS, Aliases, function_name, in_place
from hummingbird.graph.batch import BatchSize
from hummingbird.graph.build import BOOL, INT, PUBLIC, SIZE, UNKNOWN, StepBuilder, Unsupported
from hummingbird.graph.build import TENSOR as TENSOR_KIND
from hummingbird.graph.capture import Capture, RandomnessCheck, capture, is_leaf
from hummingbird.graph.example import Example, given, is_private, leaves, plain
from hummingbird.graph.hints import RANDOM, function_hint, is_unsupported, module_hint
from hummingbird.graph.ops import elementwise, public
from hummingbird.graph.ops.norms import check_variance
from hummingbird.graph.ops.vocabulary import FUNCTIONS, IN_PLACE_OPERATORS, KEYWORDS, METHODS, Rule, module_rule
from hummingbird.graph.programs import ProgramNet
from hummingbird.graph.properties import integer_values, ranks
from hummingbird.graph.rewrite import fold
from hummingbird.graph.saved import SavedNet
from hummingbird.graph.scalar_reads import HiddenNumbers
from hummingbird.graph.steps import Ref, Step, compact
from hummingbird.graph.unwrap import plain_copy, unwrapped
from hummingbird.structure import TENSOR, spelled


def trace(
    net: nn.Module,
    *,
    custom: Collection[type[nn.Module]] = (),
    elementwise: bool = False,
    example: Any = None,
    secret: bool = False,
) -> list[Step]:
    """Trace a net at inference into a list of steps, from "input" to "output", with batch norms folded.

    custom: module types to keep whole, as steps "custom".
    elementwise: accept all of torch's elementwise functions, as steps "elementwise" if they have no rule of their own;
        for a caller that computes on plain values.
    example: an input to run the net on while it is traced, so that forward() may ask for shapes: a tensor, a tuple of
        arguments, or a dict of keyword arguments.
    secret: refuse numbers that forward() reads from parameters and buffers.

    The net is not changed. Raises ModelError with all problems, InputError for an object that is no net or an example
    that it does not take.

        >>> [step.op for step in trace(nn.Sequential(nn.Linear(4, 2), nn.ReLU()))]
        ['input', 'linear', 'relu', 'output']
    """
    return fold(_steps(net, custom, elementwise, example, secret), join=not elementwise)


def unfolded(
    net: nn.Module, *, custom: Collection[type[nn.Module]] = (), example: Any = None, secret: bool = False
) -> list[Step]:
    """Trace a net as `trace` does, but leave batch norms unfolded in the steps, as `SavedNet` takes them."""
    return compact(_steps(net, custom, False, example, secret))


def problems(
    net: nn.Module, *, custom: Collection[type[nn.Module]] = (), example: Any = None, secret: bool = False
) -> list[Problem]:
    """List all reasons why `trace` would refuse the net with these arguments, by the layer's qualified name."""
    return _convert(net, custom, False, example, secret)[1]


def walk(net: nn.Module, *, custom: Collection[type[nn.Module]] = (), example: Any = None) -> TraceState:
    """Trace as `trace` does, but without folding batch norms; return the `TraceState`, which has each call's step."""
    walked, found = _walk(net, custom, False, example)
    if found or walked is None:
        raise ModelError(found)
    return walked


def _steps(
    net: nn.Module, custom: Collection[type[nn.Module]], elementwise: bool, example: Any, secret: bool
) -> list[Step]:
    """Trace a net as `trace` does, without folding batch norms; raise ModelError with all problems."""
    steps, found = _convert(net, custom, elementwise, example, secret)
    if found:
        raise ModelError(found, hint=getattr(unwrapped(net), "program_hint", ""))
    return steps


def _convert(
    net: nn.Module, custom: Collection[type[nn.Module]], elementwise: bool, example: Any, secret: bool
) -> tuple[list[Step], list[Problem]]:
    if isinstance(unwrapped(net), SavedNet):
        return _saved(net)
    walked, found = _walk(net, custom, elementwise, example, secret)
    return ([] if walked is None else walked.builder.steps), found


def _builder(root: nn.Module, plain: bool = False) -> StepBuilder:
    return StepBuilder(root, ranks, integer_values, plain)


def _saved(net: nn.Module) -> tuple[list[Step], list[Problem]]:
    """Return the steps of a `SavedNet`, and its problems: hooks, and weights that `trace` would not accept."""
    twin = plain_copy(net)
    assert isinstance(twin, SavedNet)
    builder, steps, found = _builder(twin), [], _around(twin)
    for step in twin.steps:
        attrs = dict(step.attrs)
        try:
            if _hooked(twin.step(step.name)):
                raise Unsupported("a forward hook here would be lost", _UNHOOK)
            attrs |= {key: builder.weight(value, key) for key, value in attrs.items() if isinstance(value, Tensor)}
            if step.op == "batch_norm":
                check_variance(attrs["var"], attrs["eps"])
        except Unsupported as problem:
            found.append(Problem(step.name, problem.what, problem.hint))
        steps.append(replace(step, attrs=attrs))
    return steps, found


def _walk(
    net: nn.Module, custom: Collection[type[nn.Module]], elementwise: bool, example: Any, secret: bool = False
) -> tuple[TraceState | None, list[Problem]]:
    try:
        twin = plain_copy(net)  # forward() runs once below, and may write to anything
    except ModelError as error:
        return None, error.problems
    found = [] if is_leaf(twin, tuple(custom)) else _around(twin)  # problems of the call of the whole net
    if example is None and isinstance(twin, ProgramNet):
        example = twin.program_example
    call = None if example is None else given(twin, example)
    readings: list[Example | None] = [None] if call is None else [*call.readings()]
    if isinstance(twin, ProgramNet) and not twin.program_any_batch:
        readings = [reading for reading in readings if reading is not None and not reading.any_batch]
    walked, problems = _best(twin, custom, elementwise, readings, secret)
    if isinstance(twin, ProgramNet) and call is not None and not problems:  # then it has known operations only
        problems = twin.program_check(partial(call.call, leaves=call.leaves))
    return walked, list(dict.fromkeys(found + problems))


def _best(
    net: nn.Module,
    custom: Collection[type[nn.Module]],
    elementwise: bool,
    readings: list[Example | None],
    secret: bool,
) -> tuple[TraceState | None, list[Problem]]:
    """Trace the net as each of `readings` says, until one fits; return the best trace and its problems.

    readings: ways to understand the example (`Example.readings`), or [None]. The best is the first without problems
        that takes any batch size, else the first without problems, else the last.
    """
    best: tuple[TraceState | None, list[Problem]] | None = None
    for reading in readings:
        if best is not None and not best[1] and reading is not None and not reading.any_batch:
            break  # it is traced for one batch already
        with HiddenNumbers(net) if secret else nullcontext() as hidden:
            walked, problems = _walked(net, custom, elementwise, reading, hidden)
        if walked is not None and not problems and not walked.captured.fixed:
            return walked, problems
        if best is None or best[1]:  # report the problems of the last reading, which has the fewest symbols
            best = walked, problems
    assert best is not None
    return best


def _walked(
    net: nn.Module, custom: Collection[type[nn.Module]], elementwise: bool, reading: Example | None, hidden: Any
) -> tuple[TraceState | None, list[Problem]]:
    """Trace the net once, as the example `reading` says (one of `Example.readings`), or without an example for None.

    Returns the `TraceState` (None if the net cannot be traced) and the problems. hidden: the `HiddenNumbers` of the
    net, or None.
    """
    with torch.no_grad(), RandomnessCheck() as chance:
        captured = capture(net, tuple(custom), reading)
        if captured.graph is None:
            return None, captured.problems
        walked = TraceState(captured, tuple(custom), elementwise)
        walked.builder.hidden = hidden
        walked.nodes()
    found = captured.problems + walked.problems
    if chance.drawn:
        found.append(Problem("net", f"forward() draws random numbers ({chance.drawn})", RANDOM))
    return walked, found


def _around(net: nn.Module) -> list[Problem]:
    """List the problems of the net object itself: hooks on it and a replaced forward(), which a trace would lose."""
    hooks = nn.modules.module
    found = []
    if _hooked(net):
        found.append(Problem("net", "a forward hook on the net itself would be lost", _UNHOOK))
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        what = "a forward hook on all modules (register_module_forward_hook) would be lost"
        found.append(Problem("net", what, "remove it before the net is converted"))
    if "forward" in vars(net):
        found.append(Problem("net", "forward() was replaced on this object", _SUBCLASS))
    return found


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


_UNHOOK = "remove the hooks first (for weight_norm and spectral_norm, the remove_ function makes it permanent)"
_SUBCLASS = "write a subclass with this forward(), or delete the replacement: del module.forward"


class TraceState:
    """The walk over a captured graph that converts its calls to steps.

    made: for each traced call its step. renamed: for each in-place call the nodes whose value it changes.
    """

    def __init__(self, captured: Capture, custom: tuple[type[nn.Module], ...], elementwise: bool = False) -> None:
        assert captured.graph is not None
        self.captured, self.custom, self.elementwise = captured, custom, elementwise
        self.live = _live(captured)
        self.builder, self.aliases = _builder(captured.root, elementwise), Aliases(self.live)
        self.problems: list[Problem] = []
        self.values: dict[fx.Node, Any] = {}
        self.calls: Counter[str] = Counter()
        self.made: dict[fx.Node, Step] = {}
        self.renamed: dict[fx.Node, list[fx.Node]] = {}
        self.sizes: dict[int, Ref] = {}  # multiples of the batch's size
        self.taken = {name for name, _ in captured.root.named_modules()}

    def nodes(self) -> None:
        """Convert every node that the result needs to steps; a node that cannot be converted becomes a problem."""
        for node in self.live:
            self.builder.name = self._name(node)
            before = len(self.builder.steps)
            try:
                value = self._value(node)
                if len(self.builder.steps) > before:
                    self.made[node] = self.builder.steps[-1]
                self.values[node] = value
                self._remember(node, value)
            except Unsupported as problem:
                what = problem.what + self.captured.place(node)
                self.problems.append(Problem(self.builder.name.partition("#")[0], what, problem.hint))
                self.values[node] = self._unknown()
                self.aliases.fresh(node)

    def _unknown(self) -> Ref:
        return self.builder.emit("unknown", kind=UNKNOWN)

    def _name(self, node: fx.Node) -> str:
        scope, root, module = self.captured.scopes.get(node, ""), self.captured.root, node.op == "call_module"
        label = node.meta.get("label")  # of a function that every time step applies
        name = str(node.target) if module or node.op in ("placeholder", "output") else label or node.name
        name = f"{scope}.{name}" if scope and not module else name
        known = isinstance(root, ProgramNet) and scope in root.program_layers and node.op.startswith("call")
        if module or label or known:
            name = scope if known and not label else name
            self.calls[name] += 1
            return name if self.calls[name] == 1 else f"{name}#{self.calls[name] - 1}"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def _value(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._input(node)
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.captured.root)
        module = self.captured.root.get_submodule(str(node.target)) if node.op == "call_module" else None
        sized = any(isinstance(value, BatchSize) for value in leaves((node.args, node.kwargs)))
        if self._is_public(node, sized):
            args, kwargs = self._arguments(node, self._argument)
            return public.emit(self.builder, str(public.name_of(node)), args, kwargs)
        takes = isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or public.takes(node.target)
        args, kwargs = self._arguments(node, self._argument if takes else self._shared)
        if node.op == "output":
            return self._output(args[0])
        if not sized and not any(isinstance(self.values[source], Ref) for source in node.all_input_nodes):
            constant = _constant(node, module, args, kwargs)
            self.builder.learn(constant, module is not None or any(map(self.builder.owns, leaves((args, kwargs)))))
            return constant
        if module is not None:
            return self._module(str(node.target), module, args, kwargs)
        if node.kwargs.get("out") is not None:
            raise Unsupported("a result written into out=", "use the result of the call")
        rule = METHODS.get(str(node.target)) if node.op == "call_method" else FUNCTIONS.get(node.target)
        name = function_name(node)
        if rule is None:
            kind = "method" if node.op == "call_method" else "function"
            problem = Unsupported(f"{kind} {name} is not in the vocabulary", function_hint(name, node.target))
            return self._elementwise(name, args, kwargs, problem)
        try:
            return _apply(rule, self.builder, args, kwargs)
        except Unsupported as problem:
            return self._elementwise(name, args, kwargs, problem)

    def _elementwise(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], problem: Unsupported) -> Ref:
        """Emit a step "elementwise" of torch's function `name`, and return its Ref; raise `problem` if refused."""
        found = elementwise.known(name) if self.elementwise else None
        if found is None:
            raise problem
        return elementwise.emit(self.builder, found, args, kwargs)

    def _is_public(self, node: fx.Node, sized: bool) -> bool:
        """Whether every party can compute a call by itself: it is in `public.FUNCTIONS` and has public arguments.

        Arguments may be public values, sizes, and constants that are no weights. A call with constants only does not
        count: one argument must be a public value, or (`sized`) a size that grows with the batch.
        """
        given = [self.values[source] for source in node.all_input_nodes]
        kinds = [self.builder.kind(value) for value in given]
        known = all(kind in (PUBLIC, INT, SIZE) for kind, x in zip(kinds, given, strict=True) if isinstance(x, Ref))
        weights = any(not isinstance(x, Ref) and not (isinstance(x, Tensor) and not is_private(x)) for x in given)
        return known and (sized or PUBLIC in kinds) and not weights and public.name_of(node) is not None

    def _arguments(self, node: fx.Node, read: Callable[[Any], Any]) -> tuple[Any, dict[str, Any]]:
        args = plain(fx.node.map_aggregate(node.args, read))
        return args, {key: plain(fx.node.map_aggregate(value, read)) for key, value in node.kwargs.items()}

    def _shared(self, value: Any) -> Any:
        """Return an argument's value; if it is public, emit a step that makes it private, and return that value."""
        found = self._argument(value)
        if self.builder.kind(found) != PUBLIC:
            return found
        dtype = self.captured.types.get(value, torch.float32)
        whole = not dtype.is_floating_point and dtype != torch.bool
        return public.share(self.builder, found, BOOL if dtype == torch.bool else TENSOR_KIND, whole)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, BatchSize):
            return self._size(value.factor)
        return self.values[value] if isinstance(value, fx.Node) else value

    def _size(self, factor: int) -> Ref:
        """Return `factor` times the batch size, by steps that read the size of the input."""
        if factor not in self.sizes:
            size = self.builder.emit("size", self.builder.first("input"), suffix=f".batch{factor}", kind=INT, dim=0)
            if factor > 1:
                size = self.builder.emit("int", size, factor, suffix=f".batch{factor}", kind=INT, function="mul")
            self.sizes[factor] = size
        return self.sizes[factor]

    def _input(self, node: fx.Node) -> Ref:
        """Return a placeholder's value: an input, or its part of the tensor that packs all private inputs."""
        call = self.captured.example
        if call is None:
            if any(step.op == "input" for step in self.builder.steps):
                raise Unsupported(
                    "a second input of the net", "give an example: hummingbird.convert_model(net, example=(x, y))"
                )
            return self.builder.emit("input")
        placeholders = [other for other in self.live if other.op == "placeholder"]
        number = placeholders.index(node)
        private = [x for x in call.leaves if is_private(x)]
        shapes = [tuple(x.shape[1:]) for x in private]
        if not number:
            self._begin(call, placeholders, shapes)
        leaf = call.leaves[number]
        if not is_private(leaf):
            follows = call.follows(leaf) and not self.captured.fixed
            shape = (None if follows else leaf.shape[0], *leaf.shape[1:]) if leaf.dim() else ()
            kept = str(leaf.dtype).removeprefix("torch.")
            return self.builder.emit("public", kind=PUBLIC, title=call.names[number], shape=shape, dtype=kept)
        if len(private) == 1:
            return self.builder.first("input")
        place = sum(is_private(x) for x in call.leaves[:number])
        sizes = [math.prod(shape) for shape in shapes]
        start = sum(sizes[:place])
        part = (slice(None), slice(start, start + sizes[place]))
        found = self.builder.emit("getitem", self.builder.first("input"), suffix=".part", index=part)
        return self.builder.emit("reshape", found, -1, *shapes[place])

    def _begin(self, call: Example, placeholders: list[fx.Node], shapes: list[tuple[int, ...]]) -> None:
        """Emit the step "input" of the net. Its value is the one private input, or all private inputs packed.

        call: the example. placeholders: the graph's nodes for all inputs. shapes: of each private input for one image.
        """
        names = tuple(name for name, x in zip(call.names, call.leaves, strict=True) if is_private(x))
        batch = call.batch if self.captured.fixed else None
        shape = (batch, *shapes[0]) if len(shapes) == 1 else (batch, sum(math.prod(shape) for shape in shapes))
        pairs = zip(placeholders, call.leaves, strict=True)
        mine, name = next((x for x, leaf in pairs if is_private(leaf)), None), self.builder.name
        if mine is not None and len(shapes) == 1 and mine is not placeholders[0]:
            self.builder.name = self._name(mine)
        spelt = spelled(call.structure, public.is_short)
        attrs: dict[str, Any] = {"names": names, "shapes": tuple(shapes), "call": spelt}
        self.builder.emit("input", suffix="" if len(shapes) == 1 else ".all", shape=shape, **attrs)
        self.builder.name = name

    def _output(self, value: Any) -> Ref:
        if self.captured.structure == TENSOR:
            if self.builder.kind(value) in (TENSOR_KIND, UNKNOWN):
                return self.builder.emit("output", value)
            what = "constant, which depends on no input" if not isinstance(value, Ref) else self.builder.kind(value)
            raise Unsupported(f"the net returns a {what}, not one tensor", "return tensors that the net computes")
        results = tuple(self.builder.tensor(leaf, "everything that the net returns") for leaf in value)
        if not results:
            raise Unsupported("the net returns no tensor", "return tensors that the net computes")
        packed = self.builder.emit("pack", results, suffix=".all")
        return self.builder.emit("output", packed, structure=self.captured.structure)

    def _module(self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if path in self.captured.opaque:
            return self._unknown()
        found, plain = module_rule(module), elementwise.module(type(module)) if self.elementwise else None
        if type(module) not in self.custom and plain is None and (found is None or is_unsupported(module)):
            raise Unsupported(f"{type(module).__name__} is not in the vocabulary", module_hint(module))
        if "forward" in vars(module):
            raise Unsupported("its forward() was replaced on this object", _SUBCLASS)
        if _hooked(module):
            raise Unsupported("a forward hook here would be lost", _UNHOOK)
        if type(module) in self.custom:
            if kwargs or not args:
                raise Unsupported("a custom module takes positional tensors only", "call it without keywords")
            inputs = [self.builder.tensor(value, "every argument of a custom module") for value in args]
            return self.builder.emit("custom", *inputs, module=module)
        if found is None:
            assert plain is not None
            name, names = plain
            return elementwise.emit(self.builder, name, args, kwargs | {n: getattr(module, n) for n in names.split()})
        rule, names = found
        return _apply(rule, self.builder, args, kwargs | {name: getattr(module, name) for name in names.split()})

    def _remember(self, node: fx.Node, value: Any) -> None:
        """Note in which memory a call's result `value` is; after a call in place, update all nodes that it changes."""
        base = node.all_input_nodes[0] if node.all_input_nodes else None
        written = in_place(self.captured.root, node)
        if written and self.builder.kind(value) == BOOL:
            raise Unsupported("a comparison in place", "use the form that is not in place")
        if base is None or node.op == "output" or not isinstance(value, Ref):
            self.aliases.fresh(node)
        elif written and value != self.values[base] and self.builder.kind(value) in (TENSOR_KIND, UNKNOWN):
            if self.builder.kind(self.values[base]) in ("", PUBLIC):
                raise Unsupported("writes into a parameter, a buffer or a public input", "write it without in-place")
            self.renamed[node] = self.aliases.written(node, base)
            for other in self.renamed[node]:
                self.values[other] = value
            self.aliases.same(node, base)
        elif value == self.values[base] and function_name(node) not in ("clone", "contiguous"):
            self.aliases.same(node, base)
        elif self.builder.steps[value.index].op in VIEWS or function_name(node) == "contiguous":
            self.aliases.view(node, base)
        else:
            self.aliases.fresh(node)


def _live(captured: Capture) -> list[fx.Node]:
    """List the nodes that become steps: all that the output and calls in place need, and inputs without default."""
    assert captured.graph is not None
    needed: set[fx.Node] = set()
    for node in reversed(captured.graph.nodes):
        required = node.op == "placeholder" and not node.args and not str(node.target).startswith("*")
        if node.op == "output" or required or in_place(captured.root, node):
            needed.add(node)
        if node in needed:
            needed.update(node.all_input_nodes)
    return [node for node in captured.graph.nodes if node in needed]


def _apply(rule: Rule, builder: StepBuilder, args: Iterable[Any], kwargs: dict[str, Any]) -> Any:
    kwargs = {KEYWORDS.get(name, name): value for name, value in kwargs.items()}
    try:
        bound = inspect.signature(rule).bind(builder, *args, **kwargs)
    except TypeError as error:
        raise Unsupported(f"called with arguments that are not known: {error}", "use the common arguments") from None
    return rule(*bound.args, **bound.kwargs)


def _constant(node: fx.Node, module: nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute a call that does not depend on the net's input, and return its result, a constant of the steps.

    node: the call. module: the module that it calls, or None. args, kwargs: the values of its arguments. Raises
    Unsupported for a call in place, and for one that fails.
    """
    name = function_name(node)
    if node.target in IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__")):
        raise Unsupported("writes into a parameter or buffer", "use the form that is not in place")
    try:
        if module is not None:
            return module(*args, **kwargs)
        if isinstance(node.target, str):
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        return node.target(*args, **kwargs)
    except Unsupported:
        raise
    except Exception as error:  # the user's own code runs here
        raise Unsupported(f"evaluating this constant fails: {error}", "compute it in __init__") from error
