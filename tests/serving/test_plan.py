"""The facts of a service: bits that count, in and out, and nets and shapes that are refused at the start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hummingbird.bits import BitWindow
from hummingbird.convert import build
from hummingbird.errors import ConfigError, InputError
from hummingbird.mpc.session import Session
from hummingbird.serving.description import Described
from hummingbird.serving.plan import describe
from models import get_model
from tests.support.parties import sessions
from tests.support.serving_nets import centred, doubled, greatest

NAME = "ab" * 16


@pytest.fixture
def session() -> Iterator[Session]:
    opened = sessions(2)
    yield opened[0]
    for each in opened:
        each.channel.close()


def test_bits_are_those_that_the_net_reads_and_gives(session: Session) -> None:
    net = get_model("digits", 10).eval()
    service = describe(build(net, BitWindow(20, 8)), (1, 8, 8), 64, session, NAME)
    assert service.bits < 64 and service.values == 64 and service.result == (10,) and service.rowwise
    # A first layer adds 20 bits of fraction, of which its ReLU cuts off all: 20 + 20 bits, and its bias needs no more.
    assert service.bits == 40 + 20 - 20
    # A linear layer is right below 2^26, which is 16 bits of fraction more, a sign and one for rounding.
    assert (service.result_scale, service.result_bits) == (16, 44)
    exact = describe(build(net), (1, 8, 8), 64, session, NAME)
    assert exact.bits == 64 and exact.digest != service.digest
    assert Described.read(service.answer(1, 0.0), "here").service == service


def test_the_bits_below_are_all_that_count(session: Session) -> None:
    """The plan's word on a product of the input: other bits above change no bit that is read of the result."""
    private = build(nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), BitWindow(20, 8))
    service = describe(private, (4,), 2, session, NAME)
    layer: Any = private.plan[1].layer
    x = torch.randint(-(1 << 40), 1 << 40, (5, 4))
    noise = torch.randint(-(1 << 62), 1 << 62, x.shape) << service.bits
    weight = torch.randint(-(1 << 20), 1 << 20, (4, 3))
    differ = (x @ weight) ^ ((x + noise) @ weight)
    assert service.bits >= layer.read and not (differ & ((1 << layer.read) - 1)).any()


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.relu(), x + 1


class Products(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ x.transpose(0, 1)


class Whole(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


@pytest.mark.parametrize(
    "net, shape, most, error, words",
    [
        (lambda: get_model("digits", 10), (3, 8, 8), 64, InputError, "cannot take an input of shape"),
        (Pair, (4,), 8, InputError, "several results"),
        (Products, (4,), 8, ConfigError, r"result of 8 images has shape \(8, 8\)"),
        (Whole, (4,), 8, ConfigError, r"result of 8 images has shape \(\)"),
        (nn.ReLU, (3, 224, 224), 64, InputError, "64 images take 77070400 bytes, a message holds 4193280"),
        (nn.ReLU, (3, 1024, 1024), 64, InputError, "a message holds"),
    ],
    ids=["shape", "pair", "products", "whole", "many", "large"],
)
def test_what_cannot_be_served_is_refused_in_words(
    session: Session,
    net: Callable[[], nn.Module],
    shape: tuple[int, ...],
    most: int,
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        describe(build(net().eval()), shape, most, session, NAME)


def test_one_party_is_refused() -> None:
    (alone,) = sessions(1)
    with pytest.raises(ConfigError, match="one party hides nothing"):
        describe(build(doubled()), (4,), 8, alone, NAME)


def test_nets_that_mix_images_are_known_and_take_no_store(session: Session) -> None:
    service = describe(build(centred()), (4,), 8, session, NAME)
    assert not service.rowwise and describe(build(doubled()), (4,), 8, session, NAME).rowwise
    session.dealer.slice_shape = (8, 4)  # type: ignore[misc]
    with pytest.raises(ConfigError, match="computes images together"):
        describe(build(centred()), (4,), 8, session, NAME)


def test_a_class_alone_is_one_number(session: Session) -> None:
    service = describe(build(greatest()), (4,), 8, session, NAME)
    assert service.result == () and service.results == 1 and service.result_bits == 64
