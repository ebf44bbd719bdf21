"""MobileNetV2, torchvision's own, at a narrow width: the net of nGraph-HE2's largest experiment.

Sandler et al., "MobileNetV2" (CVPR 2018), table 2: a strided convolution, seventeen inverted residual blocks (1x1
expansion, depthwise 3x3, 1x1 projection, and a sum where the shapes agree), a 1x1 convolution, the mean over all
pixels, and a linear layer. `width` multiplies the channels, rounded to multiples of 8; the last 1x1 convolution keeps
its 1280. Boemer et al., "nGraph-HE2" (WAHC 2019), section 4.3, run it at width 0.35 with 96x96 to 224x224 images.
"""

from __future__ import annotations

from torch import nn


def mobilenetv2(num_classes: int, *, width: float | str = 0.35) -> nn.Module:
    """MobileNetV2 for (B, 3, S, S) images of any S from 32 up, giving (B, num_classes) logits; 0.40 M parameters
    before the linear layer at width 0.35.

    Raises ValueError for a width that is no number above 0.
    """
    from torchvision.models import MobileNetV2  # half a second, which the other nets do not need

    try:
        multiplier = float(width)
    except ValueError:
        multiplier = 0.0
    if not 0 < multiplier < 16:
        raise ValueError(f"width is {width!r}; mobilenetv2 takes a number above 0, such as 0.35")
    return MobileNetV2(num_classes, width_mult=multiplier)
