"""CrypTen's modules beside torch's of the same parameters: outputs, gradients, statistics, losses and training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.crypten.adapter import crypten
from tests.support.crypten_cases import IMAGE, LINE, UNIT, X, grid

cnn = crypten.nn
_SMOOTH = 2.0**-6  # sigmoid, softmax and their derivatives: twice the bounds of tests/support/crypten_cases.py

# Module, torch's, input, bound. Parameters and gradients are rounded: half a unit times each factor that meets them, 72
# factors of at most 2 where a kernel moves over an image, and a unit for every truncation on the way.
MODULES: dict[str, tuple[Callable[[], Any], Callable[[], nn.Module], Tensor, float]] = {
    "linear": (lambda: cnn.Linear(5, 3), lambda: nn.Linear(5, 3), X, 2.0**-11),
    "conv1d": (lambda: cnn.Conv1d(3, 4, 3, padding=1), lambda: nn.Conv1d(3, 4, 3, padding=1), LINE, 2.0**-10),
    "conv2d": (
        lambda: cnn.Conv2d(3, 4, 3, stride=2, padding=1),
        lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1),
        IMAGE,
        2.0**-10,
    ),
    "grouped": (lambda: cnn.Conv2d(3, 6, 3, groups=3), lambda: nn.Conv2d(3, 6, 3, groups=3), IMAGE, 2.0**-10),
    "relu": (cnn.ReLU, nn.ReLU, X, UNIT),
    "relu6": (cnn.ReLU6, nn.ReLU6, X * 4, UNIT),
    "hardtanh": (cnn.Hardtanh, nn.Hardtanh, X, UNIT),
    "sigmoid": (cnn.Sigmoid, nn.Sigmoid, X, _SMOOTH),
    "softmax": (lambda: cnn.Softmax(1), lambda: nn.Softmax(1), X, _SMOOTH),
    "log softmax": (lambda: cnn.LogSoftmax(1), lambda: nn.LogSoftmax(1), X, 0.06),
    "average pool": (lambda: cnn.AvgPool2d(3, 2, 1), lambda: nn.AvgPool2d(3, 2, 1), IMAGE, 4 * UNIT),
    "max pool": (lambda: cnn.MaxPool2d(3, 2, 1), lambda: nn.MaxPool2d(3, 2, 1), IMAGE, UNIT),
    "adaptive average": (lambda: cnn.AdaptiveAvgPool2d(2), lambda: nn.AdaptiveAvgPool2d(2), IMAGE, 4 * UNIT),
    "adaptive maximum": (lambda: cnn.AdaptiveMaxPool2d((3, 3)), lambda: nn.AdaptiveMaxPool2d(3), IMAGE, UNIT),
    # 1 / sqrt(variance) by three steps of Newton's: within 1 % of it, and of what is divided by it (docs/limits.md).
    "batch norm 1d": (lambda: cnn.BatchNorm1d(5), lambda: nn.BatchNorm1d(5), grid(8, 5), 0.02),
    "batch norm 2d": (lambda: cnn.BatchNorm2d(3), lambda: nn.BatchNorm2d(3), IMAGE, 0.03),
    "flatten": (cnn.Flatten, nn.Flatten, IMAGE, UNIT),
    "dropout at rest": (lambda: cnn.Dropout(0.0), lambda: nn.Dropout(0.0), X, UNIT),
    "padding": (
        lambda: cnn.ConstantPad2d((1, 2, 0, 1), 0.5),
        lambda: nn.ConstantPad2d((1, 2, 0, 1), 0.5),
        IMAGE,
        UNIT,
    ),
    "sequence": (
        lambda: cnn.Sequential(cnn.Conv2d(3, 4, 3), cnn.ReLU(), cnn.MaxPool2d(2), cnn.Flatten(), cnn.Linear(36, 5)),
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)),
        IMAGE,
        2.0**-9,
    ),
}

PROBABILITIES, LOGITS = grid(8, 3, low=0.1, high=0.9, seed=50), grid(8, 3, low=-2, high=2, seed=51)
CLASSES = torch.eye(3)[torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])]
# CrypTen's logarithm of numbers in [0, 1] errs by 0.041 at most (measured), and a gradient by 1 / 100 of it.
LOSSES: dict[str, tuple[Any, nn.Module, Tensor, Tensor, float]] = {
    "squares": (cnn.MSELoss(), nn.MSELoss(), PROBABILITIES, LOGITS, 2.0**-12),
    "distances": (cnn.L1Loss(), nn.L1Loss(), PROBABILITIES, LOGITS, 2.0**-12),
    "cross entropy": (cnn.CrossEntropyLoss(), nn.CrossEntropyLoss(), LOGITS, CLASSES, 0.045),
    "binary": (cnn.BCELoss(), nn.BCELoss(), PROBABILITIES, CLASSES, 0.045),
    "binary of logits": (cnn.BCEWithLogitsLoss(), nn.BCEWithLogitsLoss(), LOGITS, CLASSES, 0.045),
}


def same_parameters(ours: Any, plain: nn.Module) -> None:
    """Copy torch's parameters and statistics into CrypTen's module, which is not encrypted yet."""
    theirs = dict(plain.named_parameters()) | dict(plain.named_buffers())
    for name, tensor in [*ours.named_parameters(), *ours.named_buffers()]:
        tensor.data.copy_(theirs[name].data)


def shared(x: Tensor, rank: int, src: int = 0) -> Any:
    return hummingbird.cryptensor(x if rank == src else None, src=src)


def largest(ours: Any, plain: Tensor) -> float:
    out = ours.get_plain_text()
    assert out.shape == plain.shape, f"{tuple(out.shape)}, expected {tuple(plain.shape)}"
    return float((out - plain.detach()).abs().max())


def modules(rank: int, parties: int) -> Iterator[tuple[str, float, float]]:
    """name, largest error, bound: of the output, every gradient and every statistic."""
    for name, (make, make_plain, x, bound) in MODULES.items():
        for training in (False, True):
            torch.manual_seed(1)
            plain, ours = make_plain(), make()
            same_parameters(ours, plain)
            plain.train(training)
            ours.train(training)
            ours.encrypt(src=parties - 1)
            private, leaf = shared(x, rank), x.clone().requires_grad_()
            private.requires_grad = True
            out, expected = ours(private), plain(leaf)
            yield f"{name}: output", largest(out, expected), bound
            weights = grid(*expected.shape, low=0, high=1, seed=3)
            (out * weights).sum().backward()
            (expected * weights).sum().backward()
            assert leaf.grad is not None
            yield f"{name}: gradient", largest(private.grad, leaf.grad), bound
            if training:
                gradients = {key: p.grad for key, p in plain.named_parameters()}
                for key, parameter in ours.named_parameters():
                    yield f"{name}: gradient of {key}", largest(parameter.grad, gradients[key]), 4 * bound
                statistics = dict(plain.named_buffers())
                for key, buffer in ours.named_buffers():
                    yield f"{name}: {key}", largest(buffer, statistics[key]), 4 * UNIT


def losses(rank: int, parties: int) -> Iterator[tuple[str, float, float]]:
    for name, (ours, plain, x, y, bound) in LOSSES.items():
        private, leaf = shared(x, rank), x.clone().requires_grad_()
        private.requires_grad = True
        loss, expected = ours(private, shared(y, rank, parties - 1)), plain(leaf, y)
        yield f"loss of {name}", largest(loss, expected), bound
        loss.backward()
        expected.backward()
        assert leaf.grad is not None
        yield f"gradient of {name}", largest(private.grad, leaf.grad), 2.0**-8


def training(rank: int, parties: int) -> Iterator[tuple[str, float, float]]:
    """Five steps of SGD with momentum, and the weights that come out."""
    torch.manual_seed(2)
    plain = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    ours = cnn.Sequential(cnn.Linear(5, 8), cnn.ReLU(), cnn.Linear(8, 3))
    same_parameters(ours, plain)
    ours.encrypt()
    ours.train()
    steps = crypten.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    x = grid(8, 5, seed=60)
    for _ in range(5):
        steps.zero_grad()
        reference.zero_grad()
        cnn.MSELoss()(ours(shared(x, rank)), shared(CLASSES, rank)).backward()
        nn.MSELoss()(plain(x), CLASSES).backward()
        steps.step()
        reference.step()
    trained = {key: p.detach() for key, p in plain.named_parameters()}
    for key, parameter in ours.named_parameters():
        yield f"trained {key}", largest(parameter, trained[key]), 2.0**-9
    before = {key: p.get_plain_text() for key, p in ours.named_parameters()}
    ours.decrypt()
    for key, parameter in ours.named_parameters():
        yield f"decrypted {key}", float((parameter - before[key]).abs().max()), 0.0
