"""The report of a plan: layers, cost and predicted precision before a run, measurements after it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hummingbird import graph
from hummingbird.graph.steps import refs
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.memory import predicted
from hummingbird.he.runtime.precision import Precision, summary
from hummingbird.he.runtime.program import Plan, ReportLine
from hummingbird.he.runtime.spec_json import REMOTE
from hummingbird.structure import places
from hummingbird.table import Report, text_table


@dataclass(frozen=True)
class CallFigures:
    """Measurements of one call of a model, for its report.

    images_done, batches: how many. count: seconds of "client" and "server", bytes "up" and "down".
    before, peak: the process's resident memory at the start, and its maximum so far, in bytes. precision: of each
    batch.
    images, outputs: the first few images and their outputs, to compare with the net in the clear.
    """

    images_done: int
    batches: int
    count: dict[str, float]
    before: int
    peak: int
    precision: list[Precision]
    images: Tensor
    outputs: list[Tensor]


_HEAD = (
    "layer",
    "kind",
    "computed",
    "turn",
    "primes",
    "scale",
    "exact",
    "ciphertexts",
    "up MB",
    "down MB",
    "memory MB",
    "precision",
)
_NOTES = (
    "primes: left of the modulus; scale: log2 of the integers' scale; exact: bits below the bound up to which float64 "
    "adds exactly; precision: bits of a typical value above the predicted error"
)


def before(plan: Plan) -> Report:
    """Return the report before a run as text: a line for each step and encryption, totals of a batch, assumptions."""
    public, rows, seen = plan.public, [], set[int]()
    for line in plan.lines:
        if line.side == "encrypted" and line.turn not in seen:
            seen.add(line.turn)
            rows += _encryptions(public, line.turn)
        rows.append(_row(plan, line))
    up, down = public.batch_bytes()
    sent, returned = sum(turn.sent for turn in public.turns), sum(turn.returned for turn in public.turns)
    rows.append(
        ("total", "", "", str(len(public.turns)), "", "", "", f"{sent:,} + {returned:,}", _mb(up), _mb(down), "", "")
    )
    return Report.of(_heading(plan), text_table(_HEAD, rows, left=3, total=True), _NOTES, _notes(plan, up + down))


def _heading(plan: Plan) -> str:
    public = plan.public
    parameters = public.parameters
    limits = ", ".join(f"{limit} ({year})" for year, limit in parameters.limits.items())
    return (
        f"{public.mode} inference of {public.slots:,} images of {public.input_shape} at a time, "
        f"packing {public.packing}\n"
        f"degree {parameters.degree}, {len(parameters.primes)} primes, log2 Q = {parameters.bits:.2f}; "
        f"128 bits of security allow {limits}"
    )


def _encryptions(public: Public, number: int) -> list[tuple[str, ...]]:
    """Return rows for the report's table: one for each value that the client encrypts in a turn, a tuple of texts.

    public: the net's description for clients. number: of the turn.
    """
    rows: list[tuple[str, ...]] = []
    turn, level = public.turns[number], len(public.parameters.primes)
    last = len(turn.sends) - 1
    for position, send in enumerate(turn.sends):
        step, scale = public.steps[send.value], "by batch" if turn.scale is None else str(turn.scale)
        count = send.count + (turn.one and position == last)
        up = public.up_bytes(count)
        kind = "refresh" if step.op == REMOTE else "encrypt"
        memory = 4 * count * 2 * level * public.parameters.degree
        rows.append(
            (
                step.name,
                kind,
                "client",
                str(number),
                str(level),
                scale,
                "",
                f"{count:,}",
                _mb(up),
                "",
                _mb(memory),
                "",
            )
        )
    return rows


def _row(plan: Plan, line: ReportLine) -> tuple[str, ...]:
    precision = f"{math.log2(line.rms / line.error):.1f}" if line.rms > 0 and line.error > 0 else ""
    if line.side != "encrypted":
        return (line.name, line.op, line.side, str(line.turn), *[""] * 7, precision)
    program, degree = plan.programs[line.turn], plan.public.parameters.degree
    form = program.forms()[line.register]
    return (
        line.name,
        line.op,
        line.side,
        str(line.turn),
        str(line.level),
        f"{line.scale:.1f}",
        "" if line.margin is None or math.isinf(line.margin) else f"{line.margin:.1f}",
        f"{form.count:,}",
        "",
        _mb(line.down) if line.down else "",
        _mb(program.held(line.register, degree)),
        precision,
    )


def _mb(count: int) -> str:
    return f"{count / 1e6:,.2f}"


def _notes(plan: Plan, crossing: int) -> str:
    public, memory = plan.public, predicted(plan)
    known = {line.name: line for line in plan.lines}
    made = [known.get(plan.steps[ref.index].name) for ref in refs(plan.steps[-1].inputs)]
    lines = [
        f"per image {crossing / public.slots / 1e3:,.2f} kB cross, in {len(public.turns)} exchange(s); a batch takes "
        f"the same bytes, memory and time for 1 image as for {public.slots:,}: an image alone {crossing / 1e6:,.2f} MB",
        f"memory predicted: server {memory.server / 1e9:.3f} GB, client {memory.client / 1e9:.3f} GB, "
        f"both in one process {memory.process / 1e9:.3f} GB",
        *(
            f"{title}: error {line.error:.2g} predicted (root mean square), typical value {line.rms:.2g}; "
            f"from {plan.basis}"
            for title, line in zip(_titles(plan), made, strict=True)
            if line is not None  # an output that is an input has no line
        ),
        "the server learns nothing about the images; it never has the key",
    ]
    if public.mode == "client-aided":
        lines.append(
            "the client learns the results of all encrypted layers, and from enough of them their weights; "
            "'client' rows run on its plain values"
        )
    else:
        hidden = plan.distance_bits()
        lines.append(
            f"the client learns the outputs alone: answers are masked, within 2^-{math.floor(hidden)} of ones made "
            "from the outputs (statistical distance, a batch); decrypted values must not be passed on: their noise "
            "reveals the key"
        )
    return "\n".join(lines)


def after(plan: Plan, run: CallFigures) -> str:
    """Return the report of a call as text: time, bytes, memory, and how far outputs are from the plain net's."""
    expected = graph.run(plan.steps, run.images.double())
    seconds = run.count["client"] + run.count["server"]
    lines = [
        f"measured: {run.images_done:,} images in {run.batches} batch(es), {seconds:.3f} s "
        f"(client {run.count['client']:.3f}, server {run.count['server']:.3f}), {1e3 * seconds / run.images_done:.4f} "
        "ms per image",
        f"bytes: {run.count['up']:,} up, {run.count['down']:,} down",
        summary(run.precision),
        f"memory: {run.peak / 1e9:.3f} GB at most in this process, "
        f"{(run.peak - run.before) / 1e9:.3f} GB more than before",
    ]
    compared = f"of {len(run.images)} images compared with the net in the clear"
    for title, wanted, got in zip(_titles(plan), _each(expected), run.outputs, strict=True):
        if wanted.is_floating_point():
            wrong = got.double() - wanted
            most, typical = float(wrong.abs().max()), float(wrong.square().mean().sqrt())
            lines.append(f"{title}: error {typical:.2g} measured (root mean square), {most:.2g} at most, {compared}")
        else:
            lines.append(f"{title}: {int((got != wanted).sum())} differ, {compared}")
    return "\n".join(lines)


def _titles(plan: Plan) -> list[str]:
    return [f"output {place}".rstrip() for place in places(plan.public.structure)]


def _each(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)
