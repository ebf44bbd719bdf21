"""Sparse nets: slots of a set share ciphertexts, tap by tap; answers, messages and work beside those by products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hummingbird import hybrid
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import InputError, PeerError, StoreError
from hummingbird.he import bfv
from hummingbird.he.bfv import layout as layouts
from hummingbird.he.bfv import taps
from hummingbird.hybrid import messages, plan_json, prices
from hummingbird.hybrid.client import Connection, RemoteNet
from hummingbird.hybrid.encrypted import layout
from hummingbird.hybrid.message_stream import MessageStream, paired
from hummingbird.hybrid.model_side import ModelSide
from hummingbird.hybrid.net import HybridNet
from hummingbird.hybrid.plan import GARBLERS, SET, Linear, Model
from hummingbird.hybrid.proxy import Proxy
from hummingbird.hybrid.together import slots_together, with_sets
from tests.fuzz.hybrid import of_slot
from tests.hybrid.test_programs import ended, program
from tests.support.covering import covering
from tests.support.hybrid import serving
from tests.support.hybrid_nets import NETS, WINDOWS, exact, images
from tests.support.patience import HANG, until

SHAPE = (2, 8, 8)
EXACT = BitConfig(
    BitWindow(20, 0), {"5": BitWindow(24, 0)}, input_range=1.0
)  # every value of the nets below is held: answers are torch's
CUT = BitConfig(BitWindow(19, 9), input_range=1.0)  # values are rounded by the shares: answers follow from the masks
DIGEST = "ab" * 32


def sparse(pattern: int = 0, zeros: float = 0.9) -> nn.Module:
    """Two convolutions, each with as many nonzero weights, 1/4 or -1/4, for any pattern, and a linear layer."""
    net = exact(
        nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 3),
        )
    )
    for number in (0, 2):
        weight = net[number].weight.data  # type: ignore[index,union-attr]
        each = weight[0].numel()
        kept = max(1, round((1 - zeros) * each))  # of each output, so that each output has the same size
        order = torch.rand(len(weight), each, generator=torch.Generator().manual_seed(pattern)).argsort(1)
        weight.zero_().flatten(1).scatter_(1, order[:, :kept], 0.25)
        weight[1::2] *= -1
    return net


def planned(pattern: int = 0, zeros: float = 0.9, bits: BitConfig = CUT, garbler: str = "data") -> Model:
    return hybrid.make_plan(sparse(pattern, zeros), SHAPE, bits, garbler)


def singly(made: Model) -> Model:
    """The same net, with all layers by products."""
    return replace(made, plan=replace(made.plan, steps=tuple(_alone(step) for step in made.plan.steps)))


def _alone(step: Any) -> Any:
    return replace(step, together=1) if isinstance(step, Linear) else step


def shares(made: Model) -> list[int]:
    return [step.together for step in made.plan.linears.values()]


def test_layers_with_few_weights_are_shared() -> None:
    assert shares(planned()) == [14, 14, 1] and planned().plan.in_sets
    assert shares(planned(zeros=0.0)) == [14, 1, 1]  # the first has 144 weights in all
    assert shares(singly(planned())) == [1, 1, 1] and not singly(planned()).plan.in_sets
    assert planned().plan.dealt(31) == [14, 14, 1, 1, 1] and singly(planned()).plan.dealt(15) == [1] * 15


@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(
    ("image", "weight", "options"),
    [
        ((8, 16, 16), (8, 8, 3, 3), {"padding": (1, 1)}),
        ((8, 16, 16), (8, 1, 3, 3), {"padding": (1, 1), "groups": 8}),
        ((4, 32, 32), (8, 4, 3, 3), {"stride": (2, 2)}),
        ((32, 8, 8), (32, 32, 1, 1), {}),
        ((256, 1, 1), (64, 256, 1, 1), {}),
        ((1, 90, 90), (2, 1, 3, 3), {}),
    ],
)
def test_the_choice_is_the_least_work(image: Any, weight: Any, options: Any, zeros: float) -> None:
    """No number of slots that may share needs less work, by counts of products, terms, transforms and replies."""
    torch.manual_seed(0)
    step = Linear("x", "linear", (), (1,), 20, 1.0, image=image, weight=weight, **options)
    integers = torch.randint(1, 9, weight) * (torch.rand(weight) >= zeros)

    def work(slots: int) -> float:
        places, times = layout(step, slots), -(-SET // slots)
        nonzero = int(places.planes.kept(integers).count_nonzero())
        moved = 0 if slots == 1 else places.inputs + places.replies
        many = places.products if slots == 1 else nonzero * places.tiles
        return times * (many + 6 * moved + 16 * places.replies)

    def size(slots: int) -> int:
        return -(-SET // slots) * (layout(step, slots).up_bytes + layout(step, slots).down_bytes)

    plane = layout(step).planes.rows.room(1) * layout(step).planes.columns.room(1)
    allowed = [1, *(n for n in (2, 3, 4, 5, 7, 14) if n * plane <= 4096 and size(n) <= size(1))]
    assert work(slots_together(step, integers)) == min(map(work, allowed))
    assert size(slots_together(step, integers)) <= size(1)


@pytest.mark.parametrize("garbler", GARBLERS)
def test_answers_are_those_of_ideal_parts_bit_for_bit(garbler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of a set by taps, and of slots that are dealt singly by products, follow from the slot's masks alone."""
    made = planned(garbler=garbler)
    work = counted(monkeypatch)
    net, x = HybridNet(made, DIGEST), images(SHAPE, SET + 1)
    net.prepare(SET)
    assert work["terms"] and work["products"] == SET * layout(made.plan.linears[max(made.plan.linears)]).products
    net.prepare(1)
    wanted = torch.cat([of_slot(net, image[None], slot) for slot, image in enumerate(x)])
    assert torch.equal(net(x), wanted)
    other = HybridNet(singly(made), DIGEST)
    other._data.store.seed, other._store.seed = net._data.store.seed, net._store.seed
    work.clear()
    other.prepare(SET + 1)
    assert not work["terms"] and torch.equal(other(x), wanted)


@covering(
    "kept, name",
    ["some", "none", "one"],
    ["groups and strides", "one dimension", "volumes", "padding", "sums", "slopes"],
)
def test_every_kind_of_layer_is_right_by_taps(name: str, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers of a net share ciphertexts here, whether that is less work or not."""
    make, shape = NETS[name]
    bits = BitConfig(BitWindow(19, 9), {"3": BitWindow(20, 9)} if name in WINDOWS else {}, input_range=1.0)
    made = hybrid.make_plan(exact(make()), shape, bits)
    steps = tuple(replace(step, together=SET) if isinstance(step, Linear) else step for step in made.plan.steps)
    weights = {}
    for number, found in made.parameters.items():
        nonzero = found.weight != 0
        first = nonzero & (nonzero.flatten().cumsum(0).view(nonzero.shape) == 1)
        weights[number] = replace(found, weight=found.weight * {"some": nonzero, "none": 0, "one": first}[kept])
    net, work = HybridNet(Model(replace(made.plan, steps=steps), weights), DIGEST), counted(monkeypatch)
    net.prepare(SET)
    assert work["products"] == 0 and (work["terms"] > 0) == (kept != "none")
    x = images(shape, 2)
    assert torch.equal(net(x), torch.cat([of_slot(net, image[None], slot) for slot, image in enumerate(x)]))


@pytest.mark.parametrize("zeros", [0.9, 1.0])
def test_a_set_is_less_work_than_its_slots_singly(zeros: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiplications that are done, counted, and as many as are predicted; a plan's layers that share do less."""
    made = planned(zeros=zeros)
    found, done = HybridNet(made, DIGEST), counted(monkeypatch)
    found.prepare(SET)
    in_set = Counter(done)
    done.clear()
    for _ in range(SET):
        found.prepare(1)
    total, predicted = 0.0, Counter[str]()
    for number, step in made.plan.linears.items():
        nonzero, times = int(made.parameters[number].weight.count_nonzero()), -(-SET // step.together)
        places = layout(step, step.together)
        way = bfv.LayerWork.by_products(places)
        if step.together > 1:
            way = bfv.LayerWork.by_taps(places, nonzero)
        predicted.update({"products": times * way.products, "terms": times * way.terms})
        total += times * way.total
    alone = SET * sum(bfv.LayerWork.by_products(layout(step)).total for step in made.plan.linears.values())
    assert in_set["products"] == predicted["products"] and in_set["terms"] == predicted["terms"]
    assert done["terms"] == 0 and done["products"] == SET * sum(
        layout(step).products for step in made.plan.linears.values()
    )
    assert in_set["replies"] < done["replies"] / 2 and total < alone / 1.5


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often ciphertexts are multiplied from now on, by polynomials and by monomials, and replies are made."""
    count, products, by_taps, evaluate = Counter[str](), layouts.products, taps.ciphertexts.taps, bfv.evaluate

    def multiplied(x: Any, weights: Any, pairs: Any, outputs: int) -> Any:
        count["products"] += len(pairs)
        return products(x, weights, pairs, outputs)

    def tapped(ring: Any, x: Any, *terms: Any) -> Any:
        count["terms"] += len(terms[-1])
        return by_taps(ring, x, *terms)

    def replied(public: Any, sums: Any, *rest: Any) -> Any:
        count["replies"] += len(sums)
        return evaluate(public, sums, *rest)

    monkeypatch.setattr(layouts, "products", multiplied)
    monkeypatch.setattr(taps.ciphertexts, "taps", tapped)
    monkeypatch.setattr(bfv, "evaluate", replied)
    return count


def view(made: Model, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """All messages of the data's side, in order: direction, name, size."""
    net, seen = HybridNet(made, DIGEST), list[tuple[str, str, int]]()
    for name in ("send", "receive"):

        def written(link: MessageStream, what: str, given: Any, name: str = name, own: Any = None) -> Any:
            if link.where == "the model's side":
                seen.append((name, what, given if name == "receive" else len(given)))
            return own(link, what, given)

        own = getattr(MessageStream, name)
        monkeypatch.setattr(
            MessageStream, name, lambda link, what, given, own=own, written=written: written(link, what, given, own=own)
        )
    net.prepare(SET + 2)
    net(images(SHAPE, 2))
    monkeypatch.undo()
    return seen


@pytest.mark.parametrize("garbler", GARBLERS)
def test_the_clients_view_does_not_tell_where_the_zeros_are(garbler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan, and names, order and sizes of all messages; a net without zeros has another plan."""
    one, other = (planned(pattern, garbler=garbler) for pattern in (0, 1))
    assert any(not one.parameters[n].weight.equal(other.parameters[n].weight) for n in one.parameters)
    assert plan_json.to_json(one.plan) == plan_json.to_json(other.plan)
    assert plan_json.to_json(one.plan) != plan_json.to_json(planned(zeros=0.0, garbler=garbler).plan)
    found = view(one, monkeypatch)
    assert found == view(other, monkeypatch) and len(found) > 100
    assert found != view(planned(zeros=0.0, garbler=garbler), monkeypatch)


@pytest.mark.parametrize("garbler", GARBLERS)
def test_every_message_of_a_set_has_its_predicted_size(garbler: str) -> None:
    net = HybridNet(planned(garbler=garbler), DIGEST)
    net.prepare(2 * SET + 3)
    expected = Counter(prices.offline(net.plan, 2 * SET + 3)) + Counter(prices.call())
    assert {name: size for name, size in net.offline.items() if name != "opening"} == expected
    assert sum(prices.offline(net.plan, SET).values()) < SET * sum(prices.offline(net.plan).values())
    assert "in sets of 14" in net.report()
    net(images(SHAPE, 1))
    rows = [line.split() for line in net.report().splitlines() if " offline " in line]
    layers = [row for row in rows if row[0] in ("0", "2", "5")]
    assert len(layers) == 3 and all(row[-1] == row[-2] for row in layers)


def test_programs_answer_as_torch_by_taps_and_by_products(tmp_path: Path) -> None:
    """A server of its own: 14 images with a set's slots, and two whose slots are dealt singly, meanwhile."""
    x, (server, store) = images(SHAPE, SET + 2), (f"unix:{tmp_path}/s", str(tmp_path / "mine"))
    np.save(tmp_path / "x.npy", x.numpy())
    (tmp_path / "bits.json").write_text(EXACT.to_json())
    offered = ["--model", "tests.hybrid.test_together:sparse", "3", "--input", "2x8x8", "--bits"]
    with program("gc-server", server, *offered, f"{tmp_path}/bits.json", "--store", str(tmp_path / "theirs")):
        said = ended("gc-prepare", "--server", server, "--store", store, "--images", str(SET))
        assert said.startswith("14 slots in ") and said.endswith("ready: 14\n")
        given = ["--store", store, "--images", f"{tmp_path}/x.npy", "--out", f"{tmp_path}/y.npy"]
        assert "14 of them with slots that were ready" in ended("gc-client", "--server", server, *given)
        with RemoteNet(server, tmp_path / "mine", timeout=HANG) as net:
            assert [step.together for step in net.plan.linears.values()] == [14, 14, 1]
    with torch.no_grad():
        assert torch.equal(torch.from_numpy(np.load(tmp_path / "y.npy")), sparse(3)(x))


def test_a_proxy_keeps_sets_ready(tmp_path: Path) -> None:
    made = planned()
    with serving(made, tmp_path / "m") as (address, _), Connection(address, tmp_path / "d", timeout=HANG) as held:
        proxy = Proxy(held, SET)
        try:
            until(lambda: held.ready == SET, "a set to be prepared")
        finally:
            proxy.close()
        assert held.offline["0: reply"] == prices.offline(made.plan, SET)["0: reply"]


def test_where_a_set_has_no_room_slots_are_dealt_singly(tmp_path: Path) -> None:
    """A server with room for five slots: as many are dealt, by a client and by a proxy, and then the error says why."""
    made = planned()
    size = ModelSide(made).slot_bytes
    with serving(made, tmp_path / "m", disk=5 * size) as (address, _):
        with Connection(address, tmp_path / "d", timeout=HANG) as held:
            proxy = Proxy(held, SET + 2)
            try:
                until(lambda: held.ready >= 4, "single slots to be prepared")
            finally:
                proxy.close()
        with RemoteNet(address, tmp_path / "e", timeout=HANG) as net, pytest.raises(PeerError, match="above the limit"):
            net.prepare(SET)


def test_a_proxy_of_two_sets_replaces_a_whole_set(tmp_path: Path) -> None:
    made = planned()
    with serving(made, tmp_path / "m") as (address, _), Connection(address, tmp_path / "d", timeout=HANG) as held:
        proxy, once = Proxy(held, 2 * SET), prices.offline(made.plan, SET)["0: reply"]
        try:
            until(lambda: held.offline["0: reply"] == 2 * once, "two sets to be prepared")
            for _ in range(SET):
                held.side.take()
                proxy._wanted.set()
            until(lambda: held.offline["0: reply"] == 3 * once, "the used set to be replaced")
        finally:
            proxy.close()
        assert held.ready == 2 * SET


@contextmanager
def asked(made: Model, *sent: bytes) -> Iterator[tuple[ModelSide, Any, Any]]:
    """The model's side, its store, and its end of a connection on which the data's side has sent these messages."""
    net, (data, model) = HybridNet(made, DIGEST), paired(HANG)
    for message in (bfv.Secret.new().public().to_bytes(), *sent):
        data.send("x", message)
    data.end()
    yield net._model, net._store, model


def test_a_set_of_a_plan_without_sets_and_a_slot_twice_are_refused() -> None:
    with asked(singly(planned()), messages.MANY) as (side, store, link):
        with pytest.raises(InputError, match="a set of slots, which this plan does not have"):
            side.prepare(link, store)
    numbers = messages.numbers([*range(SET - 1), 3])
    with asked(planned(), messages.MANY, numbers) as (side, store, link):
        with pytest.raises(StoreError):
            side.prepare(link, store)
        assert store.ready == []


def test_plans_with_more_slots_than_fit_are_refused() -> None:
    text = plan_json.to_json(planned().plan)
    assert '"together":14' in text and plan_json.from_json(text).linears[1].together == 14
    with pytest.raises(InputError, match="together"):
        plan_json.from_json(text.replace('"together":14', '"together":15'))


def test_nets_whose_sets_would_fill_the_memory_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set holds the inputs and results of all layers: 128 + 512, 512 + 512 and 512 + 3 values for each slot."""
    made = planned()
    monkeypatch.setattr("hummingbird.hybrid.together.MOST_HELD", SET * 2179)
    assert with_sets(singly(made).plan, made.parameters).in_sets
    monkeypatch.setattr("hummingbird.hybrid.together.MOST_HELD", SET * 2179 - 1)
    assert not with_sets(singly(made).plan, made.parameters).in_sets
