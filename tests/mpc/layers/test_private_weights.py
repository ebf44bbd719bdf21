"""Weights of one party: opened masked once, used by every batch, never behind a mask that hides something else."""

from __future__ import annotations

import json
import math
import os
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird import cost, ring
from hummingbird.bits import BitWindow
from hummingbird.convert import build, convert_model
from hummingbird.errors import DealerError, ModelError
from hummingbird.mpc.correlations.request import ReceiverTurn, corrections, expand
from hummingbird.mpc.dealer.client import DealerClient, LocalDealer
from hummingbird.mpc.protocols.registry import from_json
from hummingbird.mpc.protocols.weight_mask import FixedMask, FixedTriple, FixedWeight, open_weights
from hummingbird.mpc.session import session as sessions
from tests.support.chance import DEVIATIONS
from tests.support.correlation_checks import take_and_check
from tests.support.covering import every
from tests.support.parties import succeed

CONV = {"size0": (2, 2, 4, 3), "size1": (3, 2, 3, 3), "op": "conv2d", "kwargs": {"stride": 2, "padding": 1}}
CONV |= {"key": 3, "bits": 64}
MUL = {"size0": (2, 5, 3, 3), "size1": (5, 1, 1), "op": "mul", "kwargs": {}, "key": 8, "bits": 64}


def dealers(parties: int) -> list[LocalDealer]:
    seeds = [os.urandom(16) for _ in range(parties)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [LocalDealer(rank, parties, seeds) for rank in range(parties)]


# Correlations ---------------------------------------------------------------------------------------------------------


def verify(dealers: list[Any], params: dict[str, Any]) -> list[int]:
    """c = op(a, b) with the b of `FixedMask`, twice, with fresh a and fresh shares of c; each party's bits."""
    fixed = FixedMask(params["size1"], params["key"])
    masks = [dealer.correlation(fixed) for dealer in dealers]
    assert all(list(material.shares) == ["mask"] for material in masks)
    b = sum(material.shares["mask"] for material in masks)
    seen, bits = [], [material.received_bits for material in masks]
    for _ in range(2):
        parts = [dealer.correlation(FixedTriple(**params)) for dealer in dealers]
        assert all(list(part.shares) == ["a", "c"] for part in parts), "b is not handed out again"
        a, c = (sum(part.shares[name] for part in parts) for name in ("a", "c"))
        assert torch.equal(c, ring.bilinear(params["op"], a, b, **params["kwargs"]))
        seen += [a, *(part.shares["c"] for part in parts)]
        bits = [before + part.received_bits for before, part in zip(bits, parts, strict=True)]
    half = len(seen) // 2
    assert not any(bool((x == y).any()) for x, y in zip(seen[:half], seen[half:], strict=True))
    again = [dealer.correlation(fixed) for dealer in dealers]
    assert all(torch.equal(x.shares["mask"], y.shares["mask"]) for x, y in zip(masks, again, strict=True))
    return bits


@pytest.mark.parametrize("parties", [1, 2, 3])
@pytest.mark.parametrize("params", [CONV, MUL], ids=["conv", "mul"])
def test_products_with_a_fixed_mask(parties: int, params: dict[str, Any]) -> None:
    verify(dealers(parties), params)


@pytest.mark.parametrize("parties", [2, 3])
def test_products_with_a_fixed_mask_from_a_dealer_process(process: str, parties: int) -> None:
    session = os.urandom(16)
    clients = [DealerClient(process, session=session, rank=rank, parties=parties) for rank in range(parties)]
    bits, out = verify(clients, CONV), 2 * 3 * 2 * 2
    assert sum(bits) == 2 * 64 * out, "64 bits for every element of the result, nothing for the mask"
    assert sorted(bits)[-2:] == [64 * out] * 2, "once to each of two parties"
    for client in clients:
        client.close()


def test_parties_on_gpus_share_what_chacha20_expands(process: str) -> None:
    """The dealer expands as they do: the corrections fit. A party with another cipher is refused."""
    session, chacha = os.urandom(16), {"cipher": "chacha20"}
    clients = [DealerClient(process, session=session, rank=rank, parties=3, **chacha) for rank in range(2)]
    with pytest.raises(DealerError, match="party 2 expands its seed with aes-128-ctr"):
        DealerClient(process, session=session, rank=2, parties=3)
    clients.append(DealerClient(process, session=session, rank=2, parties=3, **chacha))
    assert all(len(client.seed) == 32 for client in clients)
    verify(clients, CONV)
    take_and_check(clients)
    for client in clients:
        client.close()


def test_masks_of_different_keys_and_seeds_are_unrelated() -> None:
    seeds = [os.urandom(16) for _ in range(2)]
    masks = [expand(FixedMask((500,), key), ReceiverTurn(0, 0), seed, 0)["mask"] for seed in seeds for key in (0, 1)]
    fresh = expand(FixedTriple((500,), (500,), "mul", {}, 0), ReceiverTurn(0, 0), seeds[0], 0)["a"]
    for number, mask in enumerate([*masks, fresh]):
        assert not any(bool((mask == other).any()) for other in [*masks, fresh][number + 1 :])


def test_the_turn_of_a_request_does_not_matter_for_the_mask() -> None:
    request, seed = FixedMask((9,), 4), os.urandom(16)
    masks = [
        expand(request, turn, seed, 1)["mask"] for turn in (ReceiverTurn(0, 0), ReceiverTurn(0, 77), ReceiverTurn(1, 5))
    ]
    assert all(torch.equal(masks[0], mask) for mask in masks)
    assert corrections(request, ReceiverTurn(0, 0), [seed, seed]) == []


@pytest.mark.parametrize(
    "kind, params",
    [
        ("fixed", {"shape": [3]}),
        ("fixed", {"shape": [3], "key": -1}),
        ("fixed", {"shape": [3], "key": "0"}),
        ("fixed", {"shape": [3], "key": [0]}),
        ("fixed", {"shape": [3], "key": True}),
        ("fixed", {"shape": [3], "key": None}),
        ("fixed", {"shape": [1 << 15, 1 << 15], "key": 0}),
        ("linear", {**CONV, "key": [1]}),
        ("linear", {**CONV, "op": "__class__"}),
        ("linear", {**CONV, "op": ["mul"]}),
        ("linear", {**CONV, "kwargs": {"out": 1}}),
        ("linear", {**CONV, "size1": [3, 5, 3, 3]}),
        ("linear", {key: value for key, value in CONV.items() if key != "key"}),
        ("linear", {**CONV, "more": 1}),
    ],
    ids=str,
)
def test_malformed_requests_are_refused(kind: str, params: dict[str, Any]) -> None:
    with pytest.raises(DealerError):
        from_json(json.loads(json.dumps({"kind": kind, "params": params})))


def test_good_requests_pass_the_check() -> None:
    assert from_json({"kind": "fixed", "params": {"shape": [3], "key": 0}}) == FixedMask((3,), 0)
    assert from_json(json.loads(json.dumps({"kind": "linear", "params": CONV}))) == FixedTriple(**CONV)


# A net ----------------------------------------------------------------------------------------------------------------


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.PReLU(3), nn.Flatten(), nn.Linear(12, 4)).eval()


def test_what_a_product_and_the_opening_cost(alone: sessions.Session) -> None:
    private = convert_model(small(), BitWindow(30, 0), 0)
    count = 3 * 2 * 9 + 3 + 12 * 4
    for parties in (1, 2, 3):
        assert private.setup_cost(parties) == cost.opening(parties, 8 * count)
        rows = {row.name: row.cost for row in private.costs((5, 2, 4, 4), parties)}
        # Of the convolution's result the window's 30 bits are read, and its 20 bits of fraction beside 16.
        assert rows["0"] == cost.opening(parties, 50 * 5 * 2 * 16 // 8, 50 * 5 * 3 * 4)
        # The net's result is lifted: it may reach 2^20, and has 36 bits of fraction before.
        assert rows["3"] == cost.opening(parties, 58 * 5 * 12 // 8, 8 * cost.packed(58 * 5 * 4))
    assert convert_model(small(), BitWindow(30, 0)).setup_cost(2) == cost.FREE


def test_a_net_with_public_weights_opens_none(alone: sessions.Session) -> None:
    with hummingbird.meter() as m:
        convert_model(small(), BitWindow(30, 0))
    assert "weights" not in m.rows


class Binding(LocalDealer):
    """A dealer that keeps what it is told of the weights."""

    def __init__(self) -> None:
        super().__init__(0, 1, [bytes(16)])
        self.bound: list[tuple[str, bytes]] = []

    def bind(self, name: str, digest: bytes) -> None:
        self.bound.append((name, digest))
        if any(other != digest for known, other in self.bound if known == name):
            raise DealerError("other weights", where="store")


def test_the_owner_binds_its_weights_before_anything_is_opened(
    alone: sessions.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    dealer, sent = Binding(), []
    alone.dealer = dealer
    monkeypatch.setattr(alone.channel, "exchange", lambda *tensors: sent.append(len(tensors)) or {})
    codes = [torch.randint(-100, 100, (3, 4)), torch.randint(-100, 100, (5,))]

    def opened(*changed: torch.Tensor, owner: int = 0) -> None:
        alone.fixed_keys = iter(range(10))  # as another run with the same store would count
        open_weights(alone, [FixedWeight(code.clone(), owner) for code in changed])

    opened(*codes)
    opened(*codes)
    assert len(dealer.bound) == 2 and dealer.bound[0] == dealer.bound[1] and sent == [2, 2]
    for wrong in ([codes[0] + 1, codes[1]], [codes[0].view(4, 3), codes[1]], codes[:1]):
        with pytest.raises(DealerError, match="other weights"):
            opened(*wrong)
    assert sent == [2, 2], "nothing was opened with other weights"
    before = len(dealer.bound)
    opened(codes[0] + 1, owner=1)  # another party's: it binds them
    assert len(dealer.bound) == before


def test_a_product_of_every_kind(alone: sessions.Session) -> None:
    torch.manual_seed(1)
    cases = [
        ("matmul", (3, 4), (4, 5), {}, None),
        ("mul", (2, 5, 3, 3), (5,), {}, (-1, 1, 1)),
        ("conv2d", (2, 4, 5, 5), (6, 2, 3, 3), {"stride": [2, 1], "padding": [1, 1], "groups": 2}, None),
        ("conv3d", (2, 4, 4, 5, 3), (6, 2, 3, 2, 3), {"stride": [2, 1, 1], "padding": [1, 0, 1], "groups": 2}, None),
        ("conv_transpose2d", (2, 4, 5, 5), (4, 3, 3, 3), {"stride": [2, 2], "output_padding": [1, 0]}, None),
    ]
    for op, left, right, options, view in cases:
        x = torch.randint(-(2**63), 2**63 - 1, left)
        code = torch.randint(-(2**63), 2**63 - 1, right)
        weight = FixedWeight(code, 0)
        open_weights(alone, [weight])
        expected = ring.bilinear(op, x, code.view(view or right), **options)
        for _ in range(2):
            before = x.clone()
            assert torch.equal(weight.product(alone, op, x, options, view), expected), op
            assert torch.equal(x, before)


# Real parties ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parties", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_weights_are_opened_once_for_all_batches(parties: int) -> None:
    ended = succeed(["-m", "tests.jobs.programs", "fixed_weights"], parties)  # all parties check what they exchange
    result = json.loads(ended[0].out.strip().splitlines()[-1])
    # Each layer: at most 27 products with factors below 8, half a unit each, carried on by gains below 8.
    assert max(result["errors"]) < 4 * 27 * 8 * 8 * 2.0**-16
    for sent, planned, rounds, planned_rounds in result["rows"]:
        assert sent == planned > 0 and rounds == planned_rounds == 1
    assert result["same"] == 0, "two nets with the same weights: unrelated openings"
    # Of n uniform bits n/2 are ones, within what chance allows.
    n = result["words"]
    assert max(abs(ones - n / 2) for ones in result["ones"]) < DEVIATIONS * math.sqrt(n) / 2


class OnTheLeft(nn.Module):
    """W x, which becomes three steps: the linear one is a part of the last."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight @ x


def test_weights_of_a_layer_that_was_cut_into_parts_are_opened_once(alone: sessions.Session) -> None:
    net, x = OnTheLeft().eval(), torch.randn(2, 5, 4)
    private = convert_model(net, weights=0)
    assert private.setup_cost(2) == cost.opening(2, 8 * 3 * 5)
    got = private(hummingbird.cryptensor(x)).get_plain_text()
    assert float((got - net(x)).detach().abs().max()) < 2.0**-12


@pytest.mark.slow
@pytest.mark.parametrize("owners", every(2, ["1", "0 1"]))
def test_constants_outside_of_layers_are_their_owners(owners: str) -> None:
    """Tokens, places, scales, means: shared once, held in shares alone, and the other party's own are ignored."""
    for found in json.loads(
        succeed(["-m", "tests.jobs.private_constants", *owners.split()], 2)[0].out.strip().splitlines()[-1]
    ):
        assert found["error"] < found["bound"]


def test_a_private_constant_that_is_too_large_is_told_at_its_owner() -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.tensor([2.0**20]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.shift

    with pytest.raises(ModelError, match=r"add: a private constant leaves the range of \+-2\^20"):
        build(Large().eval(), weights=0)
    build(Large().eval())


class Read(nn.Module):
    """Inputs times a number that forward() reads from a buffer."""

    def __init__(self, t: float) -> None:
        super().__init__()
        self.register_buffer("t", torch.tensor([t, 1.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.t[0].item() + self.t.tolist()[1]


def test_a_number_that_is_read_from_private_weights_stays_a_weight() -> None:
    """Parties without the weights have other numbers: nothing of them is in the plan, which is the same."""
    owners, others = (build(Read(t).eval(), weights=0) for t in (0.25, 3.0))
    assert owners.facts == others.facts
    assert build(Read(0.25).eval()).facts != build(Read(3.0).eval()).facts
