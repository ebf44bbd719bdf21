"""A private net: a plan, which is data to print and to price, and the loop that runs it.

Every step of the plan names a layer, the earlier steps that it reads, and the scale of its result; conversion fixes all
of these. Shapes follow from the input's shape on torch's meta device. So a net knows every message before a run.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from hummingbird.channel import interleave, meter
from hummingbird.channel.branches import Branches
from hummingbird.channel.channel import Channel
from hummingbird.cost import Cost
from hummingbird.crypten import tensors
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.graph import Interpreter, Step, calls, interpreter
from hummingbird.graph.rowwise import rowwise
from hummingbird.kernels import devices
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.layers.layer import Layer
from hummingbird.mpc.plan import microbatch
from hummingbird.mpc.plan.microbatch import Slice
from hummingbird.mpc.plan.prices import PlannedCost, PlanPrice, agreement_cost, made_by_pair, price
from hummingbird.mpc.plan.steps import PlanStep
from hummingbird.mpc.protocols.owned import OwnedWeight, hold
from hummingbird.mpc.protocols.step_tables import TableChoice, TransferKind
from hummingbird.mpc.protocols.weight_mask import FixedWeight, open_weights, opening_cost
from hummingbird.mpc.session import session as sessions
from hummingbird.mpc.session.session import Session, Supply
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE
from hummingbird.structure import Structure
from hummingbird.version import VERSION

# The result of a private net: a shared tensor, or, where a net returns several, what the user's annotation says.
SharedResult = TypeVar("SharedResult", default=tensors.SharedTensor)
Weight = TypeVar("Weight", bound=nn.Module)

# Public inputs of a call: every party passes them, and the parties compare their digests before they compute.


def agree(session: Session, names: Sequence[str], values: Sequence[Tensor]) -> None:
    """Compare public inputs with the other parties: 1 round. Raises AgreementError, at every party, if they differ."""
    session.agree("public inputs", {name: _digest(x) for name, x in zip(names, values, strict=True)})


def _digest(x: Tensor) -> str:
    array = x.detach().cpu().contiguous()
    state = hashlib.sha256(f"hummingbird-public-1 {array.dtype} {tuple(array.shape)};".encode())
    state.update(array.numpy().astype(array.numpy().dtype.newbyteorder("<")).tobytes())
    return state.hexdigest()


class Work(NamedTuple):
    """One slice of a run: the shared batch x, its images `part` to compute, their public inputs, and their material."""

    x: Shared
    part: Slice
    public: Sequence[Tensor]
    supply: Supply


class PrivateNet(nn.Module, Generic[SharedResult]):
    """The converted net. A call takes and returns CrypTen tensors of scale 2^16; modules keep their qualified names.

    Inside, layers take the session and `Shared` values.

    plan: the steps; each reads earlier ones. They run in this order, or by depth (mpc/plan/depths.py).
    graph: the steps of the net's graph on the meta device: shapes only, no weights.
    facts: what all parties must agree on, a text for each name.
    settings: a text about the conversion, for the printed form.
    input_range: the largest |input| for which the windows were found; None if unknown. An owner of data passes it as
        `cryptensor(x, src, limit=private.input_range)`.
    images_per_slice: the most images that run at a time, the same at all parties; None: as many as memory allows.

    >>> session = hummingbird.init()
    >>> private = hummingbird.convert_model(net)
    >>> logits = private(hummingbird.cryptensor(images, src=0)).get_plain_text()
    >>> bool((logits - net(images)).abs().max() < 0.001)
    True
    >>> hummingbird.uninit()
    """

    images_per_slice: int | None = None
    # Returns the requests of a slice of this shape for so many parties, and the layer that makes each. If it is set,
    # the layers' offline bits are those that two parties need to make this material (`convert_model` with aim "pair").
    requests_of: Callable[[PrivateNet[Any], tuple[int, ...], int], list[tuple[str, Request[Any]]]] | None = None

    def __init__(
        self,
        plan: Sequence[PlanStep],
        graph: Sequence[Step],
        facts: dict[str, str],
        settings: str,
        input_range: float | None = None,
    ) -> None:
        super().__init__()
        self.input_range = input_range
        self.plan, self._graph, self.facts, self._settings = tuple(plan), tuple(graph), facts, settings
        self._set_up_for: object = None
        self._requests: dict[tuple[tuple[int, ...], int], list[Request[Any]]] = {}  # by slice shape and parties
        self._rowwise: dict[tuple[int, ...], bool] = {}  # by the shape of a batch
        self._prices: dict[tuple[tuple[int, ...], int], PlanPrice] = {}
        self._made: dict[tuple[int, ...], list[PlannedCost]] = {}  # by slice shape
        self._walks: dict[tuple[int, ...], Interpreter[PlanStep]] = {}  # by the order of the steps
        self._agreed = [step.name for step in self.plan if step.op == "public"]
        for step in self.plan:
            if step.layer is not None:
                _attach(self, step.name, step.layer)

    @property
    def comparing_layers(self) -> list[str]:
        """Qualified names of the layers that have a window."""
        return [step.name for step in self.plan if getattr(step.layer, "comparison", None) is not None]

    def set_up(self, session: Session | None = None) -> None:
        """Compare net and settings with the other parties (1 round), and share private weights (`setup_cost`).

        Runs once in a session: `convert_model` calls it if there is a session, otherwise the net's first call does.
        session: None for the one that `init` made.
        Raises AgreementError if the parties differ, and InputError if the weights were shared in another session.
        """
        session = sessions.current() if session is None else session
        if self._set_up_for is session.run:
            return
        if self._set_up_for is not None and "private" in self.facts["weights"]:
            raise InputError("the weights were shared in an earlier session", hint="convert the net again after init()")
        session.agree("convert_model", {"hummingbird version": VERSION, **self.facts})
        self.to(session.device)
        session.dealer.admit(self.facts, [])
        self.share_weights(session)
        hold(session, self.owned_weights)
        for known in (self._prices, self._made, self._requests):  # they follow from who has the weights, and from keys
            known.clear()
        if self.fixed_weights:
            with meter.layer("weights", "open", self.setup_cost(session.parties)):
                open_weights(session, self.fixed_weights)
        devices.return_freed_memory()  # the conversion's
        self._set_up_for = session.run

    def share_weights(self, session: Session) -> None:
        """Turn private weights into shares, for `set_up`. Sends nothing."""
        for step in self.plan:
            if isinstance(step.layer, Layer):
                with _located(step):
                    step.layer.share_weights(session)

    def steps(self, session: Session, x: Shared, public: Sequence[Tensor]) -> Shared:
        """Run the plan's steps on one slice x in a session that has its material; return the result. No check."""
        return self._run(session, x, public)

    def rowwise(self, input_shape: Sequence[int]) -> bool:
        """Return whether it is proven that each image's result depends on no other image of its batch.

        Only then is a batch cut into slices. False also for a net that cannot take batches of 1, 2, 3 and 5 images.
        input_shape: of the batch.
        """
        shape = tuple(input_shape)
        if shape not in self._rowwise:
            self._rowwise[shape] = rowwise(self._graph, shape)
        return self._rowwise[shape]

    def input_shape(self, *shapes: Sequence[int]) -> tuple[int, ...]:
        """Return the shape that `costs` takes for private inputs of these shapes: (batch, values) for several."""
        return calls.packed_shape(shapes)

    @property
    def inputs(self) -> list[tuple[str, tuple[int, ...] | None]]:
        """The private inputs, as a list of (name, shape for one image); the shape is None if any is possible."""
        return calls.named_inputs(self._graph)

    def results(self, input_shape: Sequence[int]) -> tuple[Structure, list[tuple[str, tuple[int, ...]]]]:
        """Return the structure of the result for this input shape, and a list with each tensor's name and shape."""
        return calls.named_results(self._graph, input_shape)

    def setup_cost(self, parties: int) -> Cost:
        """Return the cost of `set_up` for private weights: the parties open every masked weight once, for any batch."""
        return opening_cost(self.fixed_weights, parties)

    @property
    def fixed_weights(self) -> list[FixedWeight]:
        """The private weights that are opened behind masks, once each."""
        return self._weights_of(FixedWeight)

    @property
    def owned_weights(self) -> list[OwnedWeight]:
        """The private weights that their owner keeps, once each."""
        return self._weights_of(OwnedWeight)

    def _weights_of(self, kind: type[Weight]) -> list[Weight]:
        layers = [step.layer for step in self.plan if step.layer is not None]
        # Once each: the layer "where.kept" is also a submodule of the layer "where".
        found = {id(x): x for layer in layers for x in layer.modules() if isinstance(x, kind)}
        return list(found.values())

    def costs(self, input_shape: Sequence[int], parties: int) -> list[PlannedCost]:
        """Return rounds and bits of every step for this input shape; InputError if the net cannot take the shape.

        Where steps open side by side, a shared round counts for one of them (mpc/plan/depths.py).
        """
        return self._paid(input_shape, parties)

    def breadth(self, input_shape: Sequence[int], parties: int) -> int:
        """Return how many values the net works on at once, in steps that open side by side. Raises as `costs`."""
        return self._price(input_shape, parties).depths.breadth

    def _price(self, input_shape: Sequence[int], parties: int) -> PlanPrice:
        key = (tuple(input_shape), parties)
        if key not in self._prices:
            self._prices[key] = price(self.plan, self._graph, *key)
        return self._prices[key]

    def _paid(self, input_shape: Sequence[int], parties: int) -> list[PlannedCost]:
        """Return the steps' prices with the offline bits of whoever makes the material."""
        key, steps = (tuple(input_shape), parties), self._price(input_shape, parties).steps
        if self.requests_of is None or parties != 2:
            return steps
        if key[0] not in self._made:
            made = self.requests_of(self, *key)
            self._requests.setdefault(key, [request for _, request in made])
            self._made[key[0]] = made_by_pair(steps, made, self.transfers)
        return self._made[key[0]]

    @property
    def transfers(self) -> TransferKind:
        """How two parties without a dealer make the material: part of the aim "pair"."""
        return TableChoice.of(self.facts["aim"]).transfers

    def pair_requests(self, input_shape: Sequence[int]) -> list[Request[Any]]:
        """Return the requests whose material two parties without a dealer make for a slice; the aim is "pair"."""
        self._paid(input_shape, 2)
        return self._requests[tuple(input_shape), 2]

    def __call__(self, *inputs: Any, progress: Callable[[int], None] | None = None, **named: Any) -> SharedResult:
        """Run the net on CrypTen tensors; return its result. A session's first call checks the input, and sets up.

        inputs, named: the arguments of the original net's forward(). Private tensors are CrypTen tensors
            (`cryptensor`), public ones are plain tensors, as in the example.
        progress: called with a slice's number of images when the slice is done.
        The result has the structure of the original net's result, with CrypTen tensors in it. Its type is one tensor,
        unless `private` is annotated otherwise: `PrivateNet[tuple[SharedTensor, SharedTensor]]`.
        """
        session = sessions.current()
        given = calls.inputs(self._graph, inputs, named, tensors.is_tensor)
        private = [_given(leaf) for leaf in given.private]
        if len(private) == 1:
            x = private[0]
        elif private:
            x = Shared(calls.packed([leaf.share for leaf in private]))
        else:
            x = Shared(torch.zeros(given.batch, 0, dtype=torch.int64, device=session.device))
        if self._set_up_for is not session.run:
            self._check(session, x, progress)
            self.set_up(session)
        out: Shared = super().__call__(session, x, progress, given.public)
        if "structure" not in self._graph[-1].attrs:
            return tensors.tensor(out)
        shapes = calls.shapes_for(self._graph, x.shape)
        wrap = lambda share: tensors.tensor(Shared(share, out.scale))  # noqa: E731
        return calls.unpacked(self._graph, out.share, shapes, wrap)

    def forward(
        self,
        session: Session,
        x: Shared,
        progress: Callable[[int], None] | None = None,
        public: Sequence[Tensor] = (),
    ) -> Shared:
        """Run the net on a shared batch; return its result. A large batch runs in slices, each at the price of `costs`.

        Several inputs are packed into one tensor here, and so are several results (graph/calls.py). Slices are
        interleaved, two at a time, three on a GPU: one computes while the messages of another travel.

        progress: called with a slice's number of images when the slice is done.
        public: the public inputs, in order. The parties compare their digests once, before the first slice.
        """
        if self._set_up_for is not session.run:
            raise InputError("the net is not set up in this session", hint="call the net itself, or set_up() first")
        self._check(session, x, progress)
        if self._agreed:
            with meter.layer(self._agreed[0], "public", agreement_cost(self._agreed, session.parties)):
                agree(session, self._agreed, public)
        work = self.begin(session, x, public)
        outputs: list[Any] = [None] * len(work)
        together = min(microbatch.in_flight(session.device), len(work))

        def run_from(start: int) -> None:
            for number in range(start, len(work), together):
                outputs[number] = self.run(session, work[number])
                if progress is not None:
                    progress(work[number].part.images)

        interleave.Interleave().run([lambda start=start: run_from(start) for start in range(together)])  # type: ignore[misc]
        return microbatch.join(outputs, [each.part for each in work])

    def begin(
        self,
        session: Session,
        x: Shared,
        public: Sequence[Tensor] = (),
        ahead: MutableMapping[tuple[int, ...], Supply] | None = None,
    ) -> list[Work]:
        """Cut a shared batch into slices, and return one `Work` for each; the dealer begins to make their material.

        x, public: the batch of private inputs, and the public inputs, which the parties have compared.
        ahead: material made in advance, by the slice's shape, equal at all parties; a slice takes its material out.
        """
        shape = tuple(x.shape)
        parts = self._slices(session, shape)
        session.dealer.admit(self.facts, [part.shape for part in parts])

        def supply(shape: tuple[int, ...]) -> Supply:
            if ahead and shape in ahead:
                return ahead.pop(shape)
            self._paid(shape, session.parties)  # finds the requests that two parties make ahead
            return session.dealer.reserve(self._requests.get((shape, session.parties)))

        return [Work(x, part, self._public_of(part, public), supply(part.shape)) for part in parts]

    def material(self, session: Session, shape: tuple[int, ...], most: int) -> Supply | None:
        """Reserve the material of a slice of this shape at the dealer, which begins to make it; return it as a supply.

        most: bytes.
        Returns None if the slice's shares take more, or if no slice of this shape has run yet.
        """
        requests = self._requests.get((shape, session.parties))
        if requests is None or sum(request.share_bytes for request in requests) > most:
            return None
        return session.dealer.reserve(requests)

    def run(self, session: Session, work: Work) -> Shared:
        """Run one slice and return its result. Slices may be interleaved (channel/interleave.py)."""
        supplied = session.supplied_by(work.supply)
        out = self._run(supplied, work.part.of(work.x), work.public)
        self._requests[work.part.shape, session.parties] = supplied.requests
        return out

    def _check(self, session: Session, x: Shared, progress: object) -> None:
        """Raise InputError if the net cannot take the batch x, and for wrong `progress` or `images_per_slice`."""
        if progress is not None and not callable(progress):
            raise InputError(f"progress={progress!r}", where="progress", hint="a function of the number of images")
        most = self.images_per_slice
        if most is not None and (type(most) is not int or most < 1):
            raise InputError(f"images_per_slice={most!r}", where="images_per_slice", hint="a positive integer, or None")
        self._price(tuple(x.shape), session.parties)  # raises if the net cannot take such an input

    def _slices(self, session: Session, shape: tuple[int, ...]) -> list[Slice]:
        """Cut a batch of this shape into slices as a store or memory requires; into one if images depend on others."""
        if not self.rowwise(shape):
            return [Slice(0, shape[0], shape)]
        dealt = session.dealer.slice_shape
        if dealt is not None and dealt[1:] == shape[1:]:
            return microbatch.fill(shape, dealt)
        return microbatch.cut(shape, self.breadth(shape, session.parties), self.images_per_slice)

    def _public_of(self, part: Slice, public: Sequence[Tensor]) -> list[Tensor]:
        """Return the public inputs of slice `part`: the rows of its images, and inputs without such rows unchanged."""
        steps = [step.attrs["shape"] for step in self._graph if step.op == "public"]
        return [part.rows(x) if shape[:1] == (None,) else x for shape, x in zip(steps, public, strict=True)]

    def _run(self, session: Session, x: Shared, public: Sequence[Tensor]) -> Shared:
        """Run one slice, x and its public inputs, through all layers of the plan; return the net's result.

        Steps that open side by side are branches: at every depth, the openings of all that are at work are one frame.
        """
        costs, depths = self._paid(x.shape, session.parties), self._price(x.shape, session.parties).depths
        walk = self._walk(depths.order)
        values, depth = walk.start(x, *public), 0

        def compute(number: int, step: PlanStep, arguments: tuple[Any, ...], session: Session = session) -> Any:
            if step.layer is None:
                return step.function(*arguments) if step.function else arguments[0]
            planned = costs[number]
            with meter.layer(step.name, step.op, planned.cost, window=planned.window, elements=planned.elements):
                return self._call(session, step, arguments)

        def branch(number: int, step: PlanStep, arguments: tuple[Any, ...], channel: Channel) -> Any:
            return compute(number, step, arguments, replace(session, channel=channel))  # requests go to the one list

        def done(number: int, value: Any) -> None:
            values[number] = value
            walk.drop(values, number)

        with Branches(session.channel) as branches:
            for number in depths.order:
                while branches.at_work and depth < depths.starts[number]:
                    branches.exchange()
                    depth += 1
                depth, step = depths.starts[number], self.plan[number]
                if number in depths.beside:
                    work = partial(branch, number, step, interpreter.arguments(step, values))
                    branches.begin(step.name, work, partial(done, number), number in depths.leads)
                    del work  # it holds the values that the step reads
                else:
                    walk.run(values, compute, [number])
            while branches.at_work:
                branches.exchange()
        return values[len(self.plan) - 1]

    def _walk(self, order: tuple[int, ...]) -> Interpreter[PlanStep]:
        if order not in self._walks:
            self._walks[order] = Interpreter(self.plan, order)
        return self._walks[order]

    @staticmethod
    def _call(session: Session, step: PlanStep, arguments: tuple[Any, ...]) -> Any:
        assert step.layer is not None
        with _located(step):
            if isinstance(step.layer, Layer):
                return step.layer(session, *arguments)
            # A registered module works on CrypTen tensors, whose functions look for the current session.
            with sessions.entered(session):
                value = step.layer(*_as_tensors(arguments))
        return _from_registered(step, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivateNet:
        # The copy belongs to the same run. Its private weights keep their mask, under which they are open already.
        memo[id(self._set_up_for)] = self._set_up_for
        twin = memo[id(self)] = PrivateNet.__new__(PrivateNet)
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def __reduce_ex__(self, protocol: object) -> Any:
        raise InputError(
            "a private net is not pickled: it holds shares and belongs to a session",
            where="pickle",
            hint="save the net it was made from, and convert that one again; copy.deepcopy copies within a session",
        )

    def extra_repr(self) -> str:
        known = "" if self.input_range is None else f", inputs within +-{self.input_range:g}"
        settings = f"{self._settings}, aim {self.facts['aim']}"
        return f"private inference: {settings}, {len(self.comparing_layers)} layers with a window{known}"


@contextlib.contextmanager
def _located(step: PlanStep) -> Iterator[None]:
    """Make a context that adds the name of the step's layer to errors that name none, such as the errors of ring.py."""
    try:
        yield
    except HummingbirdError as error:
        if not error.where:
            raise type(error)(error.what, where=step.name, hint=error.hint) from error
        raise


def _given(x: Any) -> Shared:
    """Return the share of an input of the net. Raises InputError unless the input is a CrypTen tensor of scale 2^16."""
    if not tensors.is_tensor(x):
        raise InputError(
            f"a private net takes a CrypTen tensor, got {type(x).__name__}",
            where="input",
            hint="hummingbird.cryptensor(x, src=RANK)",
        )
    shared = tensors.shared(x)
    if shared.scale != SCALE:
        raise InputError(f"the input has scale 2^{shared.scale}, expected 2^{SCALE}", where="input")
    return shared


def _as_tensors(value: Any) -> Any:
    """Return `value` with a CrypTen tensor in place of each `Shared`, also within tuples and lists."""
    if type(value) in (tuple, list):  # not torch.Size
        return type(value)(_as_tensors(part) for part in value)
    return tensors.tensor(value) if isinstance(value, Shared) else value


def _from_registered(step: PlanStep, value: Any) -> Shared:
    """Return the share in `value`, the result of a module that a user has registered as a layer's private form.

    Raises InputError unless `value` is a CrypTen tensor of the planned scale.
    """
    if tensors.is_tensor(value) and (shared := tensors.shared(value)).scale == step.scale:
        return shared
    got = f"a tensor of scale 2^{tensors.shared(value).scale}" if tensors.is_tensor(value) else type(value).__name__
    what = f"the registered private form returned {got}, expected a CrypTen tensor of scale 2^{step.scale}"
    raise InputError(what, where=step.name, hint="its forward takes and gives CrypTen tensors")


def _attach(root: nn.Module, name: str, layer: nn.Module) -> None:
    """Make `layer` a submodule of `root` under its qualified name, with the modules in between that the name needs."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in root._modules:
            root._modules[part] = nn.Module()
        root = root._modules[part]  # type: ignore[assignment]
    if leaf in root._modules:  # a container of the layer's further steps, such as "norm.square"
        layer._modules.update(root._modules[leaf]._modules)  # type: ignore[union-attr]
    root._modules[leaf] = layer  # not by add_module, which refuses names of the private net's attributes, like "plan"
