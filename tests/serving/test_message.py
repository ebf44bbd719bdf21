"""Requests and answers: shares that add up, uniform whatever the images are, of the predicted length and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hummingbird import cost
from hummingbird.errors import AgreementError, HummingbirdError, InputError, PeerError, UnavailableError
from hummingbird.prg import new_seed
from hummingbird.serving.description import Described, ServiceDescription, TensorSpec
from hummingbird.serving.message import Request, body_bytes, joined, pack_answer, split
from hummingbird.structure import TENSOR
from hummingbird.version import VERSION
from tests.support.chance import DEVIATIONS
from tests.support.serving import biases

SERVICE = ServiceDescription(
    release=VERSION,
    net="ab" * 32,
    group=3,
    session="cd" * 16,
    inputs=(TensorSpec("x", (2, 3)),),
    outputs=(TensorSpec("result", (4,)),),
    form=TENSOR,
    limit=1.5,
    scale=16,
    bits=21,
    result_scale=16,
    result_bits=43,
    parties=3,
    most=8,
    rowwise=True,
)
SEVERAL = replace(
    SERVICE,
    inputs=(TensorSpec("left", (2, 3)), TensorSpec("right", ())),
    outputs=(TensorSpec("scores", (4,)), TensorSpec("boxes.0", (2, 2)), TensorSpec("boxes.1", ())),
    form=("object", ("scores", "boxes", "note"), (TENSOR, ("tuple", (), (TENSOR, TENSOR)), ("constant", None))),
)


def received(x: Tensor, service: ServiceDescription = SERVICE) -> list[Tensor]:
    """The words that each party reads of a request."""
    shares = []
    for rank, body in enumerate(split(x, service.bits, service.parties)):
        request = Request(new_seed(), new_seed(), 0, len(x), body)
        read = Request.read(request.to_bytes(service, rank), service, rank)
        shares.append(read.words(service, rank))
    return shares


@pytest.mark.parametrize("parties, bits", [(2, 21), (3, 21), (3, 1), (2, 64), (5, 39)])
def test_shares_add_up_to_the_images_mod_2_to_the_bits(parties: int, bits: int) -> None:
    service = replace(SERVICE, parties=parties, bits=bits)
    x = torch.randint(-(1 << 62), 1 << 62, (5, *service.shape))
    total = torch.stack(received(x, service)).sum(0) - x
    assert not total.bitwise_and((1 << bits) - 1 if bits < 64 else -1).any()


def test_what_each_party_gets_is_uniform_whatever_the_images_are() -> None:
    """Every bit of every party's words is a coin for a constant image, within what chance allows; so for any other."""
    for value in (0, 1, -98765):
        x = torch.full((20_000, *SERVICE.shape), value)
        shares = received(x, replace(SERVICE, most=20_000))
        for share in shares:
            assert biases(share.reshape(-1), SERVICE.bits) < DEVIATIONS
        assert biases(x.reshape(-1), SERVICE.bits) > DEVIATIONS  # of the images themselves, so the test can fail
        again = received(x, replace(SERVICE, most=20_000))
        assert not any(torch.equal(a, b) for a, b in zip(shares, again, strict=True))


@pytest.mark.parametrize("parties", [2, 3])
def test_bytes_are_as_predicted_and_no_more_than_a_copy_of_the_low_bits_and_seeds(parties: int) -> None:
    service, images = replace(SERVICE, parties=parties), 7
    bodies = split(torch.zeros(images, *service.shape, dtype=torch.int64), service.bits, parties)
    messages = [
        Request(new_seed(), new_seed(), 0, images, body).to_bytes(service, rank) for rank, body in enumerate(bodies)
    ]
    answer = pack_answer(torch.zeros(images, *service.result, dtype=torch.int64), service.result_bits)
    values, results = images * service.values, images * service.results
    up, down = cost.asking(parties, values, service.bits, results, service.result_bits)
    assert (sum(map(len, messages)), parties * len(answer)) == (up, down)
    assert sum(map(len, bodies)) == (parties - 1) * 16 + -(-values * service.bits // 8)


def test_answers_add_up_with_their_sign() -> None:
    results = torch.tensor([[0, 1, -1, (1 << 42) - 1], [-(1 << 42), 5, -6, 7]])
    parts = [torch.randint(-(1 << 62), 1 << 62, results.shape) for _ in range(2)]
    answers = [pack_answer(part, 43) for part in (*parts, results - parts[0] - parts[1])]
    assert torch.equal(joined(answers, 2, SERVICE), results)
    for wrong in (answers[0][:-1], answers[0] + b"\0", b"", b"xx" + answers[0][2:], pack_answer(parts[0][:1], 43)):
        with pytest.raises(InputError, match="malformed answer"):
            joined([wrong, *answers[1:]], 2, SERVICE)


def good(rank: int = 0, images: int = 2) -> bytes:
    body = bytes(body_bytes(SERVICE, rank, images))
    return Request(new_seed(), new_seed(), 0, images, body).to_bytes(SERVICE, rank)


@pytest.mark.parametrize(
    "rank, message, words",
    [
        (0, b"", "shorter than a header"),
        (0, good()[:63], "shorter than a header"),
        (0, b"xx" + good()[2:], "no request of this version"),
        (0, good()[:2] + b"\x07" + good()[3:], "no request of this version"),
        (0, good()[:4] + bytes(16) + good()[20:], "another net, shape, range or scale, or for an earlier run"),
        (0, good(rank=2), "party 0 takes a seed"),
        (2, good(rank=0), "party 2 takes words"),
        (0, good()[:-1], "has 15 bytes, expected 16"),
        (2, good(2)[:-1], "has 31 bytes, expected 32"),
        (2, good(2) + b"\0", "has 33 bytes, expected 32"),
        (0, good(images=0), "0 images"),
        (0, good(images=9), "9 images"),
        (2, good(2, images=3)[:64] + good(2)[64:], "has 32 bytes, expected 48"),
    ],
    ids=range(13),
)
def test_a_malformed_request_is_refused_in_words(rank: int, message: bytes, words: str) -> None:
    with pytest.raises(UnavailableError if "earlier run" in words else InputError, match=words):
        Request.read(message, SERVICE, rank)
    Request.read(good(rank), SERVICE, rank)


def test_a_description_arrives_as_it_is() -> None:
    for service in (SERVICE, replace(SERVICE, limit=None, outputs=(TensorSpec("class", ()),), rowwise=False), SEVERAL):
        found = Described.read(service.answer(2, 12.5, 7), "here")
        assert (found.rank, found.clock, found.load, found.service) == (2, 12.5, 7, service)
        assert found.service.digest == service.digest
    changes = {"scale": 17, "limit": 2.0, "session": "ef", "group": 4}
    others = [replace(SERVICE, **{name: value}) for name, value in changes.items()]
    assert len({each.digest for each in (SERVICE, *others)}) == 5


@pytest.mark.parametrize(
    "change",
    [
        (b'"rank": 0', b'"rank": 64'),
        (b'"clock": 1.0, ', b""),
        (b'"clock": 1.0', b'"clock": NaN'),
        (b'"clock": 1.0', b'"clock": -1.0'),
        (b'"clock": 1.0', b'"clock": 1e11'),
        (b'"load": 0', b'"load": -1'),
        (b'"group": 3', b'"group": 2147483648'),
        (b'"bits": 21', b'"bits": 65'),
        (b'"bits": 21', b'"bits": true'),
        (b'"shape": [2, 3]', b'"shape": [2, 0]'),
        (b'"shape": [2, 3]', b'"shape": [67108864, 3]'),
        (b'"limit": 1.5', b'"limit": NaN'),
        (b'"rowwise": true', b'"rowwise": 1'),
        (b'"form": ["tensor"]', b'"form": ["tuple", [], []]'),
        (b'"form": ["tensor"]', b'"form": ["tuple", [], [["tensor"], ["tensor"]]]'),
        (b'"form": ["tensor"]', b'"form": ["dict", [], [["tensor"]]]'),
        (b'"form": ["tensor"]', b'"form": ["dict", [[1]], [["tensor"]]]'),
        (b'"form": ["tensor"]', b'"form": ' + b'["list", [], [' * 20 + b'["tensor"]' + b"]]" * 20),
        (b'"form": ["tensor"]', b'"form": ["constant", [3]]'),
        (b'"inputs": [{', b'"inputs": [{"name": "x", "shape": [1]}, {'),
        (b'"inputs": [{', b'"inputs": [], "other": [{'),
        (b'"most": 8', b'"least": 8'),
        (b'"net": "ab', b'"net": "xy'),
        (b"{", b"["),
    ],
    ids=range(24),
)
def test_a_malformed_description_is_refused(change: tuple[bytes, bytes]) -> None:
    answer = SERVICE.answer(0, 1.0, 0)
    assert change[0] in answer
    with pytest.raises(PeerError, match="malformed description"):
        Described.read(answer.replace(*change), "here")


def test_rows_are_looked_up_at_two_parties_with_a_weight_for_each() -> None:
    rows, weights = TensorSpec("rows", (2,), 600), TensorSpec("weights", (2,))
    looked = replace(SERVICE, inputs=(rows, weights), parties=2)
    assert Described.read(looked.answer(0, 1.0, 0), "here").service == looked
    for wrong in (
        replace(looked, parties=3),
        replace(looked, inputs=(rows,)),
        replace(looked, inputs=(rows, replace(weights, shape=(3,)))),
        replace(looked, inputs=(weights, rows)),
        replace(looked, outputs=(replace(rows, name="result"),)),
    ):
        with pytest.raises(PeerError, match="malformed description: its lookups do not fit its inputs"):
            Described.read(wrong.answer(0, 1.0, 0), "here")


def test_results_come_in_the_form_that_the_net_gives() -> None:
    assert SEVERAL.shape == (7,) and SEVERAL.result == (9,) and (SEVERAL.values, SEVERAL.results) == (7, 9)
    out = torch.arange(18).view(2, 9)
    found = SEVERAL.parted(out)
    assert torch.equal(found.scores, out[:, :4]) and found.note is None
    assert torch.equal(found.boxes[0], out[:, 4:8].view(2, 2, 2)) and torch.equal(found.boxes[1], out[:, 8])
    assert torch.equal(SERVICE.parted(out[:, :4]), out[:, :4])


def test_another_release_is_refused() -> None:
    with pytest.raises(AgreementError, match="runs hummingbird 0.0.7, this client"):
        Described.read(replace(SERVICE, release="0.0.7").answer(0, 1.0, 0), "here")
    assert issubclass(AgreementError, HummingbirdError)
