"""The figures of a run of `infer`, which party 0 shows and --json keeps: flat, units in the key names."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from torch import Tensor

from hummingbird.channel.meter import Meter
from hummingbird.commands.program import without_folders
from hummingbird.window_search.answers import Answers


class RunFigures(NamedTuple):
    """Results and costs of a run: outputs (N, ...) of all lanes, those of the plain net, labels; None where unknown.

    meter: of all lanes of party 0. seconds: until the last lane was done. lanes: by lane its seconds and those of the
    processors, float64 (lanes, 2), summed over the parties. batches: of all lanes.
    """

    outputs: Tensor
    plain: Tensor | None
    labels: Tensor | None
    meter: Meter
    seconds: float
    lanes: Tensor
    batches: int
    parties: int


def figures(args: argparse.Namespace, run: RunFigures) -> dict[str, object]:
    """Flat figures of a run with the options of `infer`."""
    count, total = len(run.outputs), run.meter.total
    out: dict[str, object] = {
        "model": " ".join(without_folders(args.model)),
        "dataset": " ".join(without_folders(args.data)),
        "protocol": args.protocol,
        "parties": run.parties,
        "lanes": len(run.lanes),
        "images": count,
        "batch": args.batch,
        **_accuracy("private", run.outputs, run.labels),
        "seconds": run.seconds,
        "seconds_by_lane": run.lanes[:, 0].tolist(),
        "processor_seconds": float(run.lanes[:, 1].sum()),
        "milliseconds_per_image": 1e3 * run.seconds / count,
        "online_seconds": run.seconds - total.offline_seconds,
        "offline_seconds": total.offline_seconds,
        "online_kilobytes_per_image": total.bits_sent / 8e3 / count,
        "offline_kilobytes_per_image": total.offline_bits / 8e3 / count,
        "rounds_per_batch": total.rounds / run.batches,
        "bits_predicted_equal_bits_sent": total.bits_predicted == total.bits_sent,
    }
    if run.plain is not None:
        out |= {
            **_accuracy("plain", run.plain, run.labels),
            "agreement_percent": 100 * _answers(run.plain, run.labels).kept(run.outputs),
            "largest_logit_error": float((run.plain - run.outputs).abs().max()),
            "largest_logit": float(run.plain.abs().max()),
        }
    return out


def show(found: dict[str, object], meter: Meter, layers: bool) -> None:
    """Print the figures, and the meter's table, of every layer or of their sum."""
    for key, value in found.items():
        print(f"{key.replace('_', ' '):32} {_text(value)}")
    print("\n" + meter.table(every_layer=layers))


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _accuracy(which: str, outputs: Tensor, labels: Tensor | None) -> dict[str, float]:
    found = _answers(outputs, labels).accuracy(outputs)
    return {} if found is None else {f"accuracy_{which}_percent": 100 * found}


def _answers(outputs: Tensor, labels: Tensor | None) -> Answers:
    """How these outputs of all images are judged."""
    return Answers(outputs, [("result", tuple(outputs.shape[1:]))], labels)
