"""Nets that begin with a private lookup: in clear, their keys and bytes, and at two parties of a service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hummingbird import cost, ring
from hummingbird.__main__ import main
from hummingbird.bits import BitWindow
from hummingbird.convert import build
from hummingbird.errors import ConfigError, InputError
from hummingbird.lookup import LookedUp
from hummingbird.mpc.session.session import Session
from hummingbird.pir import dpf
from hummingbird.prg import new_seed
from hummingbird.serving.description import TensorSpec
from hummingbird.serving.message import Question, Request
from hummingbird.serving.plan import ServedTable, describe
from models.recommender import Recommender
from scripts import recommend
from tests.serving.test_message import SERVICE as OTHER
from tests.support.parties import sessions
from tests.support.patience import HANG
from tests.support.serving import Foreign, Service, biases, served

ROWS, DIM, BAGS = 1100, 4, (1, 3)
NAME = "ab" * 16


def looked_up() -> LookedUp:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(2 * DIM, 16), nn.ReLU(), nn.Linear(16, 3))
    return LookedUp(nn.Embedding(ROWS, DIM), layers, BAGS).eval()


def questions(count: int, seed: int = 1, rows: int = ROWS, positions: int = 4) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    weights = torch.randn(count, positions, generator=drawn)
    return torch.randint(0, rows, (count, positions), generator=drawn), weights


@pytest.fixture
def opened() -> Iterator[list[Session]]:
    made = sessions(2)
    yield made
    for each in made:
        each.channel.close()


# Messages -------------------------------------------------------------------------------------------------------------


def test_the_net_in_clear_is_the_recommender() -> None:
    torch.manual_seed(0)
    plain = Recommender(500).eval()
    net, asked = recommend.synthetic(), questions(5, rows=501, positions=64)
    asked[1][:, 0] = 1.0  # the candidate counts once
    with torch.no_grad():
        assert torch.equal(net(*asked), plain(asked[0], asked[1][:, 1:]))


def test_two_parties_hold_shares_of_rows_and_weights_up_to_one_sign(opened: list[Session]) -> None:
    """Products of integers, so there is no error to allow for: (s * weight) * (s * row) = weight * row."""
    net = looked_up()
    rows = [ServedTable(net.table.weight, session) for session in opened]
    private = build(net.after, BitWindow(30, 0), example=net.example())
    service = describe(private, net.shapes, 8, opened[0], NAME, rows[0])
    assert [(part.name, part.shape, part.rows) for part in service.inputs] == [
        ("indices", (4,), ROWS),
        ("weights", (4,), 0),
    ]
    assert service.lookups == service.values == 4 and service.key_bytes == 4 * 193
    both = []
    for count in (3, 5):
        indices, weights = questions(count, seed=count)
        both.append((indices, weights, Question(ring.encode(weights), indices).bodies(service)))
    shares = []
    for rank in range(2):
        sent = [
            Request(new_seed(), new_seed(), 0, len(asked), bodies[rank]).to_bytes(service, rank)
            for asked, _, bodies in both
        ]
        shares.append(rows[rank].inputs([Request.read(message, service, rank) for message in sent], service))
    for place, (indices, weights, _) in enumerate(both):  # each request has its own rows, of keys that went together
        total = (shares[0][place] + shares[1][place])[:, : 4 * DIM].view(-1, 4, DIM)
        low = 64 - service.bits
        signed = (shares[0][place] + shares[1][place])[:, 4 * DIM :] << low >> low
        expected = ring.encode(weights)[..., None] * ring.encode(net.table.weight.detach())[indices]
        assert torch.equal(signed[..., None] * total, expected)
        assert not torch.equal(signed, ring.encode(weights)) and torch.equal(signed.abs(), ring.encode(weights).abs())
    for each in rows:
        each.close()


LOOKS = replace(OTHER, inputs=(TensorSpec("indices", (4,), ROWS), TensorSpec("weights", (4,))), parties=2, most=20_000)


def test_what_a_party_gets_has_one_size_and_is_uniform_whatever_is_asked() -> None:
    sizes = set()
    for indices, weights in (
        (torch.zeros(5000, 4, dtype=torch.int64), torch.zeros(5000, 4)),
        (torch.full((5000, 4), ROWS - 1), torch.full((5000, 4), -7.25)),
    ):
        bodies = Question(ring.encode(weights), indices).bodies(LOOKS)
        sizes.add(tuple(map(len, bodies)))
        again = Question(ring.encode(weights), indices).bodies(LOOKS)
        for rank, (body, other) in enumerate(zip(bodies, again, strict=True)):
            request = Request(bytes(16), bytes(16), 0, 5000, body)
            assert biases(request.words(LOOKS, rank).reshape(-1), LOOKS.bits) < 6
            correction = request.keys(LOOKS)[:, -128:].contiguous().view(torch.int64)  # of the leaves, by the index
            assert biases(correction[:, 0], 64) < 6 and body != other
    assert len(sizes) == 1
    up, _ = cost.asking(2, 5000 * 4, LOOKS.bits, 5000 * 4, LOOKS.result_bits, 5000 * LOOKS.key_bytes)
    assert sum(sizes.pop()) + 2 * cost.REQUEST_HEADER_BYTES == up


def request(rank: int) -> bytes:
    body = Question(torch.zeros(2, 4, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64)).bodies(LOOKS)[rank]
    return Request(bytes(16), bytes(16), 0, 2, body).to_bytes(LOOKS, rank)


def test_keys_that_are_not_for_this_party_or_table_are_refused_where_they_arrive() -> None:
    good, size = request(0), 2 * LOOKS.key_bytes
    Request.read(good, LOOKS, 0)
    other = dpf.generate(torch.zeros(8, dtype=torch.int64), ROWS + 1)[0].numpy().tobytes()
    assert len(other) == size  # a key's size tells no more than the depth of its tree
    for keys in (request(1)[-size:], bytes(size), other):
        with pytest.raises(InputError, match="a key is not for party 0 and 1,100 rows, or damaged"):
            Request.read(good[:-size] + keys, LOOKS, 0)
    with pytest.raises(InputError, match=f"has {size + 15} bytes, expected {size + 16}"):
        Request.read(good[:-1], LOOKS, 0)


# What cannot be served ------------------------------------------------------------------------------------------------


def test_tables_and_bags_that_cannot_be_looked_up() -> None:
    for table in (nn.EmbeddingBag(5, 2), torch.zeros(5, 2), nn.Embedding(5, 2, max_norm=1.0)):
        with pytest.raises(ConfigError, match="expected a table"):
            LookedUp(table, nn.Linear(2, 1), (1,))  # type: ignore[arg-type]
    for bags in ((), (0,), (2, -1), (1.0,), 3):
        with pytest.raises(ConfigError, match="bags of"):
            LookedUp(nn.Embedding(5, 2), nn.Linear(2, 1), bags)  # type: ignore[arg-type]


def test_sessions_and_nets_that_cannot_serve_lookups(opened: list[Session]) -> None:
    net = looked_up()
    rows = ServedTable(net.table.weight, opened[0])
    with pytest.raises(InputError, match=r"a table of 1,100 rows of 4"):
        describe(build(nn.ReLU()), (4,), 8, opened[0], NAME, rows)
    rows.close()
    opened[0].dealer.slice_shape = (8, 20)  # type: ignore[misc]
    with pytest.raises(ConfigError, match="a net of lookups cannot use a store"):
        ServedTable(net.table.weight, opened[0])
    three = sessions(3)
    with pytest.raises(ConfigError, match="need two parties, this session has 3"):
        ServedTable(net.table.weight, three[0])
    for each in three:
        each.channel.close()
    with pytest.raises(InputError, match="NaN"):
        ServedTable(torch.tensor([[torch.nan]]), opened[1])


def test_the_table_is_part_of_what_parties_and_clients_agree_on(opened: list[Session]) -> None:
    net = looked_up()
    private = build(net.after, example=net.example())
    found = []
    for table in (net.table.weight, net.table.weight + 1):
        rows = ServedTable(table, opened[0])
        found.append(describe(private, net.shapes, 8, opened[0], NAME, rows).net)
        rows.close()
    assert found[0] != found[1]


# At two parties -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service("--model", "scripts.recommend:synthetic", "--max-batch", "6") as opened:
        yield opened
        images, batches = served(opened.stop())
        assert images > batches > 0  # some were computed together


def fixed(x: Tensor) -> Tensor:
    """Real numbers as fixed point holds them."""
    return ring.encode(x).double() / 2**ring.SCALE


def private_result(net: LookedUp, indices: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The result on fixed-point rows and weights, and how far the private one may be from it.

    Products and sums are exact; errors come from the cuts to 16 bits alone, one unit of each sum, and at most two of a
    layer's result (one, and one of shares that are cut each on its own). A layer passes them on times |W|.
    """
    unit = 2.0**-ring.SCALE
    looked = fixed(net.table.weight.detach())[indices] * fixed(weights)[..., None]
    x = torch.cat([part.sum(1) for part in looked.split(net.after.bags, 1)], 1)
    error = torch.full_like(x, unit)
    for layer in net.after.net:  # type: ignore[union-attr]
        if isinstance(layer, nn.Linear):
            weight = fixed(layer.weight.detach())
            x, error = x @ weight.T + fixed(layer.bias.detach()), error @ weight.abs().T + 2 * unit
        else:
            x = layer(x)
    return x, error


def test_answers_are_those_of_the_net_and_bytes_as_predicted(service: Service) -> None:
    net, asked = recommend.synthetic(), questions(8, rows=501, positions=64)  # two requests
    expected, allowed = private_result(net, *asked)
    with service.client() as client:
        for logits in (client(*asked), client(weights=asked[1], indices=asked[0].int())):
            assert bool(((logits - expected).abs() <= allowed).all())
        assert float(allowed.max()) < 0.1 * float(expected.abs().max())  # it can fail
        known = client.service
        prices = [cost.asking(2, n * 64, known.bits, n * 2, known.result_bits, n * known.key_bytes) for n in (6, 2)]
        totals = tuple(2 * sum(column) for column in zip(*prices, strict=True))
        assert (client.sent_bytes, client.received_bytes) == totals


def test_several_clients_at_once_each_get_their_own_answers(service: Service) -> None:
    """Their keys go through the table together (the fixture counts batches at the end)."""
    asked = questions(12, seed=2, rows=501, positions=64)
    expected, allowed = private_result(recommend.synthetic(), *asked)

    def ask(start: int) -> bool:
        part = slice(start, start + 2)
        with service.client() as client:
            found = [client(asked[0][part], asked[1][part]) for _ in range(3)]
        return all(bool(((one - expected[part]).abs() <= allowed[part]).all()) for one in found)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(ask, range(0, 12, 2)))


def test_what_is_no_row_number_is_refused_without_naming_it(service: Service) -> None:
    indices, weights = questions(2, rows=501, positions=64)
    indices[0, 0] = 333
    with service.client() as client:
        for bad, words in (
            (indices + 500, r"a row number is outside of the table \(at Client\(indices\)\)"),
            (indices - 501, "outside of the table"),
            (indices.float(), "row numbers, got torch.float32"),
            (indices[:, :5], r"expected 'indices' \(n, 64\), got \(2, 5\)"),
        ):
            with pytest.raises(InputError, match=words) as caught:
                client(bad, weights)
            assert str(int(bad[0, 0])) not in str(caught.value)
        with pytest.raises(InputError, match="'weights' is a batch of 1, and 'indices' one of 2"):
            client(indices, weights[:1])
        assert client.sent_bytes == 0


def test_a_request_of_keys_is_answered_once_and_half_a_one_delays_nobody(service: Service) -> None:
    foreign = Foreign(service)
    indices, weights = questions(1, rows=501, positions=64)
    question = Question(ring.encode(weights), indices)
    fields = {"id": new_seed(), "claim": foreign.claim, "images": 1}
    good = foreign.of(question.bodies(foreign.service), **fields)
    answers = [call.result() for call in foreign.begin(good)]
    assert [call.result() for call in foreign.begin(good)] == answers  # kept, not computed again
    fresh = foreign.of(question.bodies(foreign.service), **fields)
    assert "known with other shares" in foreign.refusal(0, fresh[0])
    half = foreign.of(question.bodies(foreign.service), seconds=2.0, **fields | {"id": new_seed()})
    assert "party 1 never got its part" in foreign.refusal(0, half[0])
    swapped = foreign.of([body[:16] + bytes(len(body) - 16) for body in question.bodies(foreign.service)], **fields)
    assert "a key is not for party 0" in foreign.refusal(0, swapped[0])
    foreign.close()


def test_ask_takes_a_file_of_row_numbers_and_one_of_weights(service: Service, tmp_path: Path) -> None:
    asked = questions(2, seed=4, rows=501, positions=64)
    files = [str(tmp_path / name) for name in ("indices.npy", "weights.npy", "out.npy")]
    for file, x in zip(files, asked, strict=False):
        np.save(file, x.numpy())
    words = ["ask", "--parties", *service.addresses, "--images", *files[:2], "--out", files[2]]
    assert main(words) == 0
    expected, allowed = private_result(recommend.synthetic(), *asked)
    assert bool(((torch.from_numpy(np.load(files[2])) - expected).abs() <= allowed).all())


def test_the_users_program_prints_private_scores_beside_plain_ones(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--synthetic", "--parties", *service.addresses, "--question", "3", "--count", "2"]
    words += ["--timeout", f"{HANG:g}"]
    assert recommend.main(words) == 0
    told = capsys.readouterr().out
    assert told.count("made up") == 2 and "128 lookups and the net: " in told
    found = re.search("largest difference of a logit: (.*)", told)
    assert found and float(found[1]) < 1e-3
    assert recommend.main([*words, "--question", "-1"]) == 1
