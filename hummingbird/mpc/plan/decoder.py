"""A private decoder: a causal net that generates text, word after word, with keys and values as shares that stay.

A conversation is a fixed, public sequence of steps: a *prompt* of C places, then single words, up to N places in all.
Each step is a chunk of the net (graph/causal.py) with a plan of its own; words have one plan for each length of the
cache (64, 128, 256, ..., N), of which they take the shortest that holds all places so far. A prompt of fewer words is
padded in front, and its padding is hidden. Only the last place goes through what follows the last attention.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from hummingbird.channel import meter
from hummingbird.cost import Cost
from hummingbird.errors import ConfigError, InputError
from hummingbird.graph import Step
from hummingbird.graph.causal import CausalNet, buckets
from hummingbird.graph.steps import refs
from hummingbird.kernels import devices
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.layers.cached import CachedMean, ProductWithCache
from hummingbird.mpc.plan.builders import bare
from hummingbird.mpc.plan.dry_run import DryRun, Zeros, silent
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.plan.prices import PlannedCost
from hummingbird.mpc.plan.rounding_plan import Built, Planner, digest, settle_rings
from hummingbird.mpc.plan.steps import PlanStep
from hummingbird.mpc.protocols.weight_mask import FixedWeight, open_weights, opening_cost
from hummingbird.mpc.session.conversation import Conversation
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE
from hummingbird.version import VERSION


class PrivateDecoder(nn.Module):
    """The private form of a causal net, for conversations; `convert_decoder` makes it.

    causal: the net's steps. prompt: C, the places of the first step. build: makes a step's layer (`builders.builder`).
    facts: what all parties must agree on; the plans' digest and the lengths are added.
    input_range: the largest |x| of word vectors for which the windows were found; None: not known.
    `places` is N, `width` that of a word vector, `words` the number of logits of a place.

    >>> class Gpt(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.words, self.qkv = torch.nn.Embedding(20, 16), torch.nn.Linear(16, 48)
    ...     def forward(self, x):
    ...         q, k, v = self.qkv(x).chunk(3, -1)
    ...         attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    ...         return (x + attended) @ self.words.weight.T
    >>> private = hummingbird.convert_decoder(Gpt().eval(), torch.zeros(1, 8, 16), prompt=4)
    >>> private.prompt, private.places, private.width, private.words
    (4, 8, 16, 20)
    >>> private.shape(1)  # of the word vectors that a conversation's second step reads
    (1, 1, 16)
    >>> sum(row.cost.rounds for row in private.costs(1, parties=2)) > 0
    True
    """

    def __init__(
        self,
        causal: CausalNet,
        prompt: int,
        build: Callable[[Step], Built],
        protocol: str,
        facts: dict[str, str],
        settings: str,
        input_range: float | None = None,
    ) -> None:
        super().__init__()
        self.input_range = input_range
        self.places, self.width, self.prompt, self._settings = causal.places, causal.width, prompt, settings
        self.words = causal.words
        lengths = buckets(prompt, causal.places) if prompt < causal.places else []
        self.lengths = (prompt, *lengths)
        chunks = [causal.chunk(prompt, prompt), *(causal.chunk(1, length) for length in lengths)]
        planner = Planner(build, protocol, few_rows=True)  # one for all plans: they share the weights
        plans = [planner.plan(chunk) for chunk in chunks]
        _keep(plans)
        text = f"{self.places} places, a prompt of {prompt}"
        self.facts = facts | {"plan": " ".join(map(digest, plans)), "conversation": text}
        self.nets = nn.ModuleList(
            PrivateNet(plan, [bare(step) for step in chunk], self.facts, settings)
            for plan, chunk in zip(plans, chunks, strict=True)
        )
        self._set_up_for: object = None
        self._requests: dict[int, list[list[Request[Any]]]] = {}  # by number of parties: of each plan

    def plan_of(self, number: int) -> int:
        """Return which plan step `number` of a conversation has: 0 for the prompt, else that of its cache's length.

        Raises InputError for a step that does not exist.
        """
        if not 0 <= number <= self.places - self.prompt:
            what = f"step {number} of a conversation that has {1 + self.places - self.prompt}"
            raise InputError(what, where="conversation", hint="convert the net for more places")
        held = self.prompt + number
        return 0 if not number else next(at for at, length in enumerate(self.lengths) if at and held <= length)

    def shape(self, number: int) -> tuple[int, int, int]:
        """Return the shape of the word vectors that step `number` of a conversation reads."""
        return 1, self.prompt if number == 0 else 1, self.width

    def padded(self, x: Shared) -> tuple[Shared, int]:
        """Return a prompt's word vectors, (1, 1 to C, width), padded in front to C places, and how many are padding.

        The padding repeats the first word, within the net's range; it is hidden.
        """
        hidden = self.prompt - x.shape[1]
        return Shared(torch.cat([x.share[:, :1].expand(-1, hidden, -1), x.share], 1), x.scale), hidden

    def costs(self, number: int, parties: int) -> list[PlannedCost]:
        """Return rounds and bits of every layer in a conversation's step `number`: 0 is the prompt, 1 the next word."""
        net: PrivateNet = self.nets[self.plan_of(number)]  # type: ignore[assignment]
        return net.costs(self.shape(number), parties)

    def setup_cost(self, parties: int) -> Cost:
        """Return the cost of `set_up` for private weights: the parties open every masked weight once."""
        return opening_cost(self._fixed_weights, parties)

    @property
    def _fixed_weights(self) -> list[FixedWeight]:
        return list({id(x): x for x in self.modules() if isinstance(x, FixedWeight)}.values())

    def set_up(self, session: Session) -> None:
        """Compare net and settings with the other parties (1 round), and share private weights, once in a session.

        Raises AgreementError if the parties differ, and InputError if the weights were shared in another session.
        """
        if self._set_up_for is session.run:
            return
        if self._set_up_for is not None and "private" in self.facts["weights"]:
            raise InputError("the weights were shared in an earlier session", hint="convert the net again after init()")
        session.agree("convert_decoder", {"hummingbird version": VERSION, **self.facts})
        self.to(session.device)
        for net in self.nets:
            net.share_weights(session)  # type: ignore[operator]
        if self._fixed_weights:
            with meter.layer("weights", "open", self.setup_cost(session.parties)):
                open_weights(session, self._fixed_weights)
        devices.return_freed_memory()  # the conversion's
        self._set_up_for = session.run

    def conversation(self, session: Session) -> DecoderConversation:
        """Begin a conversation; all parties begin the same ones, in the same order. The first one sets the net up.

        session: of this party. Raises as `set_up`, and DealerError if a store has none left.
        """
        self.set_up(session)
        kinds = self.requests(session.parties, session.rank)
        steps = [kinds[self.plan_of(number)] for number in range(1 + self.places - self.prompt)]
        return DecoderConversation(self, session, Conversation(session, self.facts, steps))

    def requests(self, parties: int, rank: int = 0) -> list[list[Request[Any]]]:
        """Return what each plan asks of the dealer, in the order of `lengths`, found by one run of each on zeros.

        The first step of a conversation also asks for the masks of its caches: they come with the first plan.
        """
        if parties not in self._requests:
            self._requests[parties] = _dry_run(self, silent(parties, rank, Zeros((1, self.prompt, self.width))))
        return self._requests[parties]

    def dry_run(self, parties: int, rank: int = 0) -> tuple[DryRun, list[int]]:
        """Return the requests of a conversation, for a dealer that deals in advance, and the plan of each step.

        The `setup` of the first has those of private weights; its `batch` is empty, and `requests` has the plans'.
        """
        dealer = Zeros((1, self.prompt, self.width))
        twin = copy.deepcopy(self) if self._fixed_weights else self
        session = silent(parties, rank, dealer)
        if twin is not self:
            with meter.paused():
                twin.set_up(session)
        setup = list(dealer.requests)
        self._requests[parties] = _dry_run(twin, session)
        return DryRun(setup, []), [self.plan_of(number) for number in range(1 + self.places - self.prompt)]

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivateDecoder:
        memo[id(self._set_up_for)] = self._set_up_for
        twin = memo[id(self)] = PrivateDecoder.__new__(PrivateDecoder)
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def extra_repr(self) -> str:
        return f"private generation: {self._settings}, {self.facts['conversation']}"


class DecoderConversation:
    """A conversation with a private decoder, at one party: `read` takes the prompt, then one word after the other.

    Any error within a step ends it: what its masks have hidden is not opened again (mpc/session/conversation.py).
    """

    def __init__(self, decoder: PrivateDecoder, session: Session, conversation: Conversation) -> None:
        self._decoder, self._session, self._conversation = decoder, session, conversation
        self._first = 0

    @property
    def used(self) -> int:
        """How many places are used, padding included."""
        taken = self._conversation.taken
        return self._decoder.prompt + taken - 1 if taken else 0

    @property
    def left(self) -> int:
        """How many places are left; 0 once the conversation is over."""
        return self._decoder.places - self.used if self._conversation.left else 0

    def read(self, x: Shared, first: int = 0) -> Shared:
        """Read the prompt, or the next word; return the logits of the place behind it, (1, 1, words).

        x: word vectors, scale 2^16: first (1, C, width), with the prompt's words at the end, then (1, 1, width).
        The logits are for opening: they have all bits of fraction with which they are computed, up to 48.
        first: how many of the prompt's places are padding, the same at all parties.
        Raises InputError, before anything is sent, for another shape, and if no place is left. Cost: `costs`.
        """
        number, decoder = self._conversation.taken, self._decoder
        if number > decoder.places - decoder.prompt:
            what = f"all {decoder.places} places of this conversation are used"
            raise InputError(what, where="conversation", hint="begin another one, or convert the net for more places")
        if tuple(x.shape) != decoder.shape(number) or x.scale != SCALE:
            what = f"word vectors of shape {tuple(x.shape)}, expected {decoder.shape(number)}"
            raise InputError(what, where="conversation", hint="the prompt first, padded in front, then single words")
        if not 0 <= first < decoder.prompt or (number and first):
            what = f"{first} hidden places of a prompt of {decoder.prompt}"
            raise InputError(what, where="conversation", hint="a prompt has a word at least; later steps hide nothing")
        self._first = first if number == 0 else self._first
        at = torch.tensor([self._first, 0 if number == 0 else decoder.prompt + number - 1])
        net: PrivateNet = decoder.nets[decoder.plan_of(number)]  # type: ignore[assignment]
        with self._conversation.step() as session:
            return net.steps(session, x, [at])

    def close(self) -> None:
        """End the conversation, and give up the material that is left. May be called twice; sends nothing."""
        self._conversation.close()


def _dry_run(decoder: PrivateDecoder, session: Session) -> list[list[Request[Any]]]:
    """Run each plan of a decoder on zeros; return the requests that each makes."""
    conversation = Conversation(session, decoder.facts, None)
    found = []
    with meter.paused():
        for number in [0, *(decoder.lengths[at] - decoder.prompt for at in range(1, len(decoder.lengths)))]:
            net: PrivateNet = decoder.nets[decoder.plan_of(number)]  # type: ignore[assignment]
            x = Shared(torch.zeros(decoder.shape(number), dtype=torch.int64))
            with conversation.step() as one:
                net.steps(one, x, [torch.tensor([0, decoder.prompt + number - 1 if number else 0])])
            found.append(one.requests)
    return found


def _keep(plans: Sequence[Sequence[PlanStep]]) -> None:
    """Settle one number of right bits for each cache, over all plans. Raises ConfigError where plans do not agree."""
    caches: dict[int, list[tuple[PlanStep, ProductWithCache | CachedMean, int]]] = {}
    for plan in plans:
        for step in plan:
            if isinstance(layer := step.layer, (ProductWithCache, CachedMean)):
                scale = plan[list(refs(step.inputs))[1].index].scale
                cut = layer.needs_of_each([SCALE, scale, SCALE], 0)[1] - layer.needs_of_each([SCALE, 0, SCALE], 0)[1]
                caches.setdefault(layer.cache.key, []).append((step, layer, scale - cut))
    for found in caches.values():
        width = max(layer.width for _, layer, _ in found)
        for step, layer, rest in found:
            layer.kept = width
            if (rest, type(layer)) != (found[0][2], type(found[0][1])):
                what = f"its cache rests with {found[0][2]} bits of fraction, and a chunk would write {rest}"
                raise ConfigError(what, where=step.name, hint="give softmaxes and norms one window for all lengths")
    for plan in plans:
        settle_rings(plan)
        for step in plan:
            if isinstance(layer := step.layer, (ProductWithCache, CachedMean)):
                given = [plan[ref.index] for ref in list(refs(step.inputs))[:2]]
                needed = layer.needs_of_each([each.scale for each in given], layer.read)[1]
                if given[1].valid < needed:
                    what = f"{given[1].valid} bits of new rows are right, and {needed} are needed"
                    raise ConfigError(what, where=step.name, hint="use a narrower window for this attention's softmax")
