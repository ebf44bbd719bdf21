"""The facts of a service: bits that count, in and out, and nets and shapes that are refused at the start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hummingbird import cost
from hummingbird.bits import BitWindow
from hummingbird.convert import build
from hummingbird.errors import ConfigError, InputError
from hummingbird.mpc.session.session import Session
from hummingbird.serving.description import Described
from hummingbird.serving.message import MAX_BYTES
from hummingbird.serving.plan import describe
from models import get_model
from tests.support.parties import sessions
from tests.support.serving_nets import centred, doubled, greatest, pair

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
    # ReLUs of [20:8) leave values below 2^3, hence logits below 2^9: 11 bits of fraction more, a sign, and two more.
    assert (service.result_scale, service.result_bits) == (27, 39)
    exact = describe(build(net), (1, 8, 8), 64, session, NAME)
    assert exact.bits == 64 and exact.digest != service.digest
    assert Described.read(service.answer(1, 0.0, 0), "here").service == service


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


class Repeated(nn.Module):
    """An image as often as it is told."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x] * self.times, 1)


class Sizes(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        return x.relu(), torch.float32


class Row(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.relu(), x.sum(0)


class Numbered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 4)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return self.table(ids).sum(1) + x


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
        (Sizes, (4,), 8, ConfigError, "beside tensors, a dtype"),
        (Row, (4,), 8, InputError, r"returns tensors of shapes \(8, 4\), \(4,\)"),
        (nn.ReLU, ((4,), (4,)), 8, InputError, r"2 shape\(s\) for a net with 1 input\(s\): 'input'"),
        (Products, (4,), 8, ConfigError, r"result of 8 images has shape \(8, 8\)"),
        (Whole, (4,), 8, ConfigError, r"result of 8 images has shape \(\)"),
        (nn.ReLU, (3, 2048, 2048), 64, InputError, "one image takes 100663296 bytes, and a message holds 33554432"),
        (lambda: Repeated(9), (1 << 20,), 1, InputError, "one image has a result of 75497472 bytes"),
    ],
    ids=["shape", "sizes", "row", "inputs", "products", "whole", "large", "result"],
)
def test_what_cannot_be_served_is_refused_in_words(
    session: Session,
    net: Callable[[], nn.Module],
    shape: Any,
    most: int,
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        describe(build(net().eval()), shape, most, session, NAME)


def test_several_inputs_and_results_have_names_and_shapes(session: Session) -> None:
    net = pair()
    example = torch.rand(2, 4), torch.rand(2, 2, 3)
    service = describe(build(net, BitWindow(30, 0), example=example), ((4,), (2, 3)), 8, session, NAME)
    assert [(part.name, part.shape) for part in service.inputs] == [("left", (4,)), ("right", (2, 3))]
    outputs = [("hidden", (3,)), ("rest.0", (1, 2)), ("rest.1", ())]
    assert [(part.name, part.shape) for part in service.outputs] == outputs
    assert (service.shape, service.result, service.rowwise) == ((10,), (6,), True)
    assert Described.read(service.answer(1, 0.0, 0), "here").service == service
    for shapes, words in (
        ((4,), r"1 shape\(s\) for a net with 2 input\(s\): 'left', 'right'"),
        (((4,), (6,)), r"'right' has shape \(6,\), but the net was converted for \(2, 3\)"),
    ):
        with pytest.raises(InputError, match=words):
            describe(build(net, BitWindow(30, 0), example=example), shapes, 8, session, NAME)


def test_public_inputs_are_refused_with_a_way_out(session: Session) -> None:
    private = build(Numbered().eval(), example=(torch.zeros(2, 3, dtype=torch.int64), torch.rand(2, 4)))
    with pytest.raises(ConfigError, match="public inputs, ids, which all parties would see") as caught:
        describe(private, (4,), 8, session, NAME)
    assert "looks its numbers up privately" in str(caught.value)


def test_a_request_holds_what_fits_into_a_message(session: Session) -> None:
    """Both ways: images of 64 KiB, and results of three times that."""
    for net, fitting in ((Repeated(1), 511), (Repeated(3), 170)):
        service = describe(build(net), (1 << 13,), 600, session, NAME)
        assert service.most == fitting
        for images, fits in ((fitting, True), (fitting + 1, False)):
            up, down = cost.asking(2, images * service.values, 64, images * service.results, 64)
            largest = max(up - cost.REQUEST_HEADER_BYTES - 16, down // 2)
            assert (largest <= MAX_BYTES) is fits
    assert describe(build(Repeated(3)), (1 << 13,), 64, session, NAME).most == 64


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
