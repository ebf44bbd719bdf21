"""Images for nets without trained weights: photographs where there are some, and batch norm statistics from them.

A net of random weights has dead or exploding activations until its batch norms know the statistics of their inputs:
one pass in which they normalise by the batch sets them, layer after layer.
"""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image  # which torchvision needs
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hummingbird.errors import InputError

ARCHIVE = "tiny-imagenet-val/tiny-imagenet-val.zip"  # 10,000 photographs, 64 x 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # torchvision's normalisation


def photographs(count: int, side: int, data: str | Path | None = None) -> Tensor | None:
    """The first images of Tiny-ImageNet's validation set, float32 (count, 3, side, side), normalised.

    data: folder that holds ARCHIVE; by default HUMMINGBIRD_DATA. None where neither names it; InputError if damaged.
    """
    folder = data if data is not None else os.environ.get("HUMMINGBIRD_DATA")
    if not folder or not (Path(folder) / ARCHIVE).is_file():
        if data is not None:
            raise InputError(f"there is no file {ARCHIVE}", where="--data", hint="give the folder that holds it")
        return None
    try:
        with zipfile.ZipFile(Path(folder) / ARCHIVE) as archive:
            files = [io.BytesIO(archive.read(f"images/val_{number}.JPEG")) for number in range(count)]
        pixels = torch.stack([torch.from_numpy(np.array(Image.open(file).convert("RGB"))) for file in files])
    except (zipfile.BadZipFile, KeyError, OSError) as problem:
        raise InputError(f"{ARCHIVE} is damaged: {problem}", where=str(folder)) from problem
    return normalised(pixels.permute(0, 3, 1, 2).float() / 255, side)


def random_images(count: int, side: int, seed: int = 0) -> Tensor:
    """Random images with structure at all sizes: sums of noise enlarged from 2 x 2 to 64 x 64; shape as above."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.zeros(count, 3, 64, 64)
    for width in (2, 4, 8, 16, 32, 64):
        noise = torch.randn(count, 3, width, width, generator=generator)
        image += F.interpolate(noise, size=(64, 64), mode="bilinear", align_corners=False)
    return normalised((0.5 + 0.15 * image).clamp(0, 1), side)


def normalised(images: Tensor, side: int) -> Tensor:
    """Images in [0, 1] in another size, by torchvision's mean and deviation."""
    sized = F.interpolate(images, size=(side, side), mode="bilinear", align_corners=False)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (sized - mean) / std


def calibrate(net: nn.Module, images: Tensor) -> None:
    """Give every batch norm the mean and variance of its inputs on these images, in place; the net is in eval mode."""
    net.eval()
    norms = [layer for layer in net.modules() if isinstance(layer, _BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain average, here of one batch
        norm.train()
    with torch.no_grad():
        net(images)
    net.eval()
