"""Reports as tables: a plan's layers with predicted bytes, and counted bytes beside them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from hummingbird.bits import BitWindow
from hummingbird.he.bfv import noise
from hummingbird.hybrid import prices
from hummingbird.hybrid.encrypted import distance, layout
from hummingbird.hybrid.plan import SET, Gate, Linear, Model, Plan, Step
from hummingbird.hybrid.users import INPUTS
from hummingbird.ring import SCALE
from hummingbird.table import Report, text_table


def before(model: Model) -> Report:
    """Return a plan as a text table: for every layer its window, ring, bytes and noise, for one image.

    Columns that are not plain:
    window: the bits that a gate reads, of the net's values in units of 2^-16.
    k: bits of the shares of a layer's or gate's result.
    room: bits between the noise of a reply and the largest noise that decrypts correctly.
    distance: -log2 of the statistical distance of replies from ones that hide the weights.
    """
    plan, rows, total = model.plan, [], 0.0
    for number, step in _priced(plan).items():
        room = far = ""
        if isinstance(step, Linear):
            weight = model.parameters[number].weight
            least = min(noise.room_bits(layout(step, n).norms(weight), step.ring) for n in {1, step.together})
            far, total = f"{-math.log2(distance(step, weight)):.1f}", total + distance(step, weight)
            room = f"{least:.1f}"
        rows.append((*_row(plan, step), room, far))
    hidden = f"{-math.log2(total):.1f}" if total else ""
    sums = _mega(sum(prices.offline(plan).values())), _mega(sum(prices.online(plan).values()))
    rows.append(("total", "", "", "", f"{sum(gate.count for gate in plan.gates.values()):,}", *sums, "", hidden))
    head = ("layer", "kind", "window", "k", "values", "offline MB", "online MB", "room", "distance")
    return Report.of(text_table(head, rows, left=3, total=True), "\n".join(_notes(plan)), _behind_a_proxy(plan))


def after(
    plan: Plan, offline: Mapping[str, int], calls: Sequence[int], online: Mapping[str, int], images: int
) -> Report:
    """Return a text table of the counted bytes of a slot or an image beside the predicted ones, for each layer.

    offline: counted bytes by message name, of all calls that dealt slots. calls: how many slots each of them dealt.
    online: counted bytes of all `images` together.
    """
    rows, dealt, slots = [], Counter[str](), sum(calls)
    for call in calls:
        dealt.update(prices.offline(plan, call))
    each = {name: count / slots for name, count in dealt.items()} if slots else prices.offline(plan)
    phases: list[tuple[str, Mapping[str, float], Mapping[str, int], int]] = [
        ("offline", each, offline, slots),
        ("online", prices.online(plan), online, images),
    ]
    for title, predicted, counted, times in phases:
        told = {name: count / times for name, count in counted.items() if name in predicted} if times else {}
        for step in [*_priced(plan).values(), None]:
            names = [name for name in predicted if _belongs(name, step)]
            if names:
                numbers = (f"{sum(source.get(name, 0) for name in names):,.0f}" for source in (predicted, told))
                rows.append((step.name if step else "other", title, *numbers))
    return text_table(("layer", "phase", "bytes predicted", "bytes measured"), rows, left=2)


def proxied(plan: Plan, online: Mapping[str, int], served: Mapping[str, int]) -> Report:
    """Return a text table of the counted bytes between a proxy and the model's side beside the predicted ones.

    online: counted bytes by message name. served: number of images by kind of input, "shares" or "switched".
    """
    predicted: Counter[str] = Counter()
    for kind, images in served.items():
        predicted.update({name: images * count for name, count in prices.proxied(plan, kind).items()})
    return _beside(("message",), [((name,), count, online.get(name, 0)) for name, count in predicted.items()])


def user(plan: Plan, kind: str, once: Mapping[str, int], online: Mapping[str, int], images: int) -> Report:
    """Return a text table of the counted bytes of a proxy's user beside the predicted ones.

    plan: only its input and output are read. kind: how the user sends images, "shares" or "switched".
    once: counted bytes before the first image, by method called. online: likewise of all `images` together.
    """
    rows = [((name, "once"), count, once.get(name, 0)) for name, count in prices.user_once(plan, kind).items()]
    each = prices.user(plan, kind).items() if images else ()
    rows += [((name, f"{images} images"), images * count, online.get(name, 0)) for name, count in each]
    return _beside(("message", "times"), rows)


def _beside(head: tuple[str, ...], rows: Sequence[tuple[tuple[str, ...], int, int]]) -> Report:
    sums = ("all", *("" for _ in head[1:])), sum(row[1] for row in rows), sum(row[2] for row in rows)
    cells = [(*names, f"{predicted:,}", f"{counted:,}") for names, predicted, counted in (*rows, sums)]
    return text_table((*head, "bytes predicted", "bytes measured"), cells, left=len(head), total=True)


def _behind_a_proxy(plan: Plan) -> Report:
    rows = []
    for kind in INPUTS:
        found = [prices.user_once(plan, kind), prices.user(plan, kind), prices.proxied(plan, kind)]
        rows.append((kind, *(f"{sum(part.values()):,}" for part in found)))
    return text_table(("bytes behind a proxy", "user, once", "user, an image", "proxy and server"), rows, left=1)


def _priced(plan: Plan) -> dict[int, Step]:
    return {number: step for number, step in enumerate(plan.steps) if isinstance(step, (Linear, Gate))}


def _belongs(name: str, step: Step | None) -> bool:
    layer, colon, _ = name.rpartition(": ")
    return not colon if step is None else bool(colon) and layer == step.name


def _row(plan: Plan, step: Step) -> tuple[str, ...]:
    offline, online = (
        sum(count for name, count in found.items() if _belongs(name, step))
        for found in (prices.offline(plan), prices.online(plan))
    )
    kind, window = step.op, ""
    if isinstance(step, Gate):
        m = SCALE + round(math.log2(step.unit))
        kind, window = step.kind, str(BitWindow(m + step.width, m)) if m >= 0 else f"{step.width} bits"
    return step.name, kind, window, str(step.ring), f"{step.count:,}", _mega(offline), _mega(online)


def _mega(count: int) -> str:
    return f"{count / 1e6:,.3f}" if count else ""


def _notes(plan: Plan) -> list[str]:
    data, model = prices.stored(plan)
    key, once = sum(prices.call().values()), sum(prices.session().values())
    sides = "the data's side" if plan.garbler == "data" else "the model's side"
    rounds, shared = len(plan.gates), sum(step.together > 1 for step in plan.linears.values())
    sets = f"slots dealt in sets of {SET}: {sum(prices.offline(plan, SET).values()) / SET / 1e6:,.3f} MB each offline"
    return [
        *([f"{sets}, as {shared} layers' ciphertexts serve several"] if shared else []),
        f"{sides} garbles; online {rounds} round trips, and one for the image",
        f"a slot in store: {data / 1e6:,.2f} MB at the data's side, {model / 1e6:,.2f} MB at the model's",
        f"in addition, {key:,} bytes for each call that deals slots, and {once:,} once for a session",
        "distance: refused below 30; for n images it is log2 n bits less",
        f"images within +-{plan.input_range:g}; results are right while all cut values stay in their windows",
    ]
