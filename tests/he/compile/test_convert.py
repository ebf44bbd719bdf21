"""Encrypted inference in process: every operation against torch, ranges and shapes, the report, what a server sees."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hummingbird import he, prg
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.he.runtime.client import Client
from hummingbird.he.runtime.rounds import Download, Upload
from hummingbird.he.runtime.server import Server
from hummingbird.he.scheme import ckks
from hummingbird.he.scheme.ckks import SecretKey
from tests.support.covering import every
from tests.support.he_cases import AIDED, LINEAR, PRODUCTS, TOO_LARGE, TOO_SMALL, Fn, conv, errors, images, made
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def check(case: Any, mode: str, **options: Any) -> he.HEModel:
    """As precise as predicted, and the prediction no idle one."""
    net, shape = made(case)
    model = he.convert_model(net, shape, mode, **options)
    measured, predicted = errors(model, net, images(100, shape))
    assert predicted * TOO_SMALL < measured < predicted * TOO_LARGE, (measured, predicted)
    return model


# The quick tier has each net of linear layers in one of the two modes.
@pytest.mark.parametrize("name", [*every(2, list(LINEAR)), *AIDED])
def test_client_aided_nets(name: str) -> None:
    check({**LINEAR, **AIDED}[name], "client-aided")


@pytest.mark.parametrize("name", [*every(2, ["", *LINEAR])[1:], *PRODUCTS])
def test_polynomial_nets(name: str) -> None:
    model = check({**LINEAR, **PRODUCTS}[name], "polynomial")
    assert len(model.public.turns) == 1 and model.public.packing == ("real" if name in PRODUCTS else "coefficients")


@pytest.mark.parametrize(
    ("mode", "packing"), [("client-aided", "complex"), ("polynomial", "complex"), ("polynomial", "real")]
)
def test_other_packings(mode: str, packing: str) -> None:
    for name in ("sum of two layers, mean, difference that broadcasts", "parameters added and multiplied"):
        assert check(LINEAR[name], mode, packing=packing).public.packing == packing


def test_other_degrees() -> None:
    model = check(LINEAR["linear over the last dimension"], "client-aided", degree=4096)
    assert model.public.slots == 4096


def random_net(seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    """A net of random layers that fit each other."""
    draw = torch.Generator().manual_seed(seed)

    def pick(*options: Any) -> Any:
        return options[int(torch.randint(len(options), (), generator=draw))]

    channels, size = pick(1, 2), pick(12, 13)
    shape, layers = (channels, size, size), []
    for _ in range(pick(1, 2)):
        out, groups = pick(2, 4), pick(1, channels)
        layers += [conv(channels, out * groups, pick(1, 2, 3), padding=pick(0, 1), groups=groups)]
        layers += [pick(nn.BatchNorm2d(out * groups), nn.Identity())]
        layers += [pick(nn.ReLU(), nn.Hardswish(), nn.Sequential(), nn.Tanh(), nn.PReLU())]
        layers += [pick(nn.AvgPool2d(2, ceil_mode=True), nn.MaxPool2d(2), nn.Dropout())]
        channels = out * groups
    layers += [nn.AdaptiveAvgPool2d(pick(1, 2)), nn.Flatten(), nn.LazyLinear(pick(2, 3))]
    net = nn.Sequential(*layers).eval()
    torch.manual_seed(seed)
    net(torch.zeros(1, *shape))
    return net, shape


@pytest.mark.parametrize("seed", every(3, range(6)))
def test_random_nets(seed: int) -> None:
    net, shape = random_net(seed)
    model = he.convert_model(net, shape, samples=images(20, shape))
    measured, predicted = errors(model, net, images(50, shape))
    assert predicted * TOO_SMALL < measured < predicted * TOO_LARGE


def test_any_number_of_images() -> None:
    """More than a batch holds, one, and the same answers whatever they are batched with."""
    net = nn.Linear(3, 2).eval()
    model = he.convert_model(net, (3,))
    x = images(2 * 2048 + 3, (3,))
    y = model(x)
    assert torch.allclose(y, net(x), atol=1e-4) and model.last is not None and model.last.batches == 3
    assert torch.allclose(model(x[5:6]), y[5:6], atol=1e-4)


def test_indices_are_given_as_such() -> None:
    net = Fn(lambda s, x: s.l(x).argmax(1), l=nn.Linear(4, 3)).eval()
    model = he.convert_model(net, (4,))
    x = images(50, (4,))
    assert torch.equal(model(x), net(x)) and "0 differ" in model.report()


def test_values_of_any_size_fit() -> None:
    """The client fits its scale to every batch: tiny and huge inputs keep their relative precision."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 2, bias=False)).eval()
    model = he.convert_model(net, (8,))
    for size in (1e-4, 1.0, 1e5):
        x = size * images(20, (8,))
        assert float((model(x) - net(x)).detach().abs().max()) < 2.0**-10 * size
    assert not model(torch.zeros(2, 8)).abs().max() > 1e-4


def test_the_largest_sums_do_not_wrap() -> None:
    """All inputs at the ends of the range, signs with the weights: what the scales were proven for."""
    net = nn.Linear(200, 2).eval()
    with torch.no_grad():
        net.bias.copy_(10 * net.bias.sign())
    worst = 4.0 * torch.sign(net.weight.detach() * net.bias.detach()[:, None])
    for mode in ("client-aided", "polynomial"):
        got, wanted = he.convert_model(net, (200,), mode)(worst), net(worst)
        assert float((got - wanted).detach().abs().max()) < 2.0**-9 * float(wanted.detach().abs().max())


# ---- what is refused, before anything is encrypted


@pytest.fixture(scope="module")
def polynomial() -> he.HEModel:
    torch.manual_seed(0)
    return he.convert_model(nn.Linear(4, 2), (4,), "polynomial")


@pytest.mark.parametrize(
    ("x", "what"),
    [
        (torch.zeros(3, 5), "images are"),
        (torch.zeros(4), "images are"),
        (torch.zeros(0, 4), "images are"),
        ([1.0], "images are list"),
        (torch.zeros(3, 4, dtype=torch.int64), "torch.int64"),
        (torch.full((3, 4), float("nan")), "NaN or infinity"),
        (torch.full((3, 4), 4.5), "images reach 4.5, the plan was made for .input. <= 4"),
    ],
)
def test_wrong_images(polynomial: he.HEModel, monkeypatch: pytest.MonkeyPatch, x: Any, what: str) -> None:
    monkeypatch.setattr(SecretKey, "encrypt", None)
    with pytest.raises(InputError, match=what):
        polynomial(x)


def test_all_batches_are_checked_before_the_first_is_encrypted(
    polynomial: he.HEModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SecretKey, "encrypt", None)
    x = torch.zeros(3000, 4)
    x[-1] = 100
    with pytest.raises(InputError, match="images reach 100"):
        polynomial(x)


def test_a_declared_range_is_checked_in_client_aided_mode_too() -> None:
    model = he.convert_model(nn.Linear(4, 2), (4,), input_range=1.0)
    with pytest.raises(InputError, match="images reach 2"):
        model(torch.full((1, 4), 2.0))


def test_scales_out_of_bounds_are_explained_in_words() -> None:
    model = he.convert_model(nn.Linear(4, 2), (4,))
    with pytest.raises(InputError, match="scale out of bounds: values up to 1e.30 times weights") as caught:
        model(torch.full((1, 4), 1e30))
    assert "normalize" in caught.value.hint


# ---- roles


def turns(model: he.HEModel, x: Tensor) -> Iterator[tuple[int, list[Upload], list[Download]]]:
    """All that crosses, turn by turn; the outputs are compared."""
    server, client = Server(model.plan), Client(he.Public.from_json(model.public.to_json()))
    batch = client.begin(x)
    for number in range(len(model.public.turns)):
        turn = server.turn(number)
        up = list(batch.uploads(number))
        for sent in up:
            turn.receive(sent)
        down = list(turn.downloads())
        for back in down:
            batch.receive(back)
        yield number, up, down
    assert torch.allclose(batch.result(), model(x), atol=1e-3)


@pytest.mark.parametrize("name", ["relu, max pool, softmax", "residual with a layer in the branch", "prelu"])
def test_a_client_works_by_the_description_alone(name: str) -> None:
    net, shape = made(AIDED[name])
    model = he.convert_model(net, shape)
    for number, up, down in turns(model, images(5, shape)):
        turn = model.public.turns[number]
        assert sum(len(sent.body) for sent in up) == turn.sent
        assert sum(len(back.body) for back in down) == turn.returned


def test_seeds_are_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed for every slice, another one for its noise; none twice, in no turn, batch or call; none is the key's."""
    drawn: list[bytes] = []
    real = prg.new_seed

    def counted(size: int = prg.SEED_BYTES) -> bytes:
        drawn.append(real(size))
        return drawn[-1]

    monkeypatch.setattr(ckks.prg, "new_seed", counted)
    net = nn.Sequential(nn.Linear(600, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    model = he.convert_model(net, (600,))
    x = images(3, (600,))
    sent = [upload.seed for _ in range(2) for _, up, _ in turns(model, x) for upload in up]
    slices = 3 + 1
    assert len(sent) == 2 * slices and len(set(sent)) == len(sent)
    # turns() encrypts, and so does the model it is compared with; each Client draws a key, each batch its name.
    assert len(drawn) == len(set(drawn)) == 3 + 4 + 4 * slices * 2


def test_the_servers_view_is_uniform_whatever_the_images() -> None:
    """All that crosses towards the server: as many slices as the plan says, fresh seeds, uniform residues."""
    net = nn.Sequential(nn.Linear(30, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    model = he.convert_model(net, (30,))
    shapes = []
    for x in (torch.zeros(5, 30), 100 * torch.ones(9, 30)):
        view = [sent for _, up, _ in turns(model, x) for sent in up]
        assert {field for sent in view for field in vars(sent)} == {"turn", "first", "seed", "body"}
        shapes.append([(sent.turn, sent.first, sent.body.shape) for sent in view])
        residues = torch.cat([sent.body for sent in view]).transpose(0, 1).flatten(1)
        for prime, values in zip(model.public.parameters.primes, residues, strict=True):
            bins = torch.bincount((values.long() % prime) * 16 // prime, minlength=16).double()
            expected = values.numel() / 16
            assert float(((bins - expected) ** 2 / expected).sum()) < 60  # 15 degrees of freedom: once in 10^6
    assert shapes[0] == shapes[1]


def reachable(value: Any, seen: set[int]) -> Iterator[Any]:
    """Every object that an object holds."""
    if id(value) in seen or isinstance(value, (str, bytes, int, float, type)):
        return
    seen.add(id(value))
    yield value
    if isinstance(value, dict):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, (tuple, list, set, frozenset)):
        inner = list(value)
    else:
        inner = list(vars(value).values()) if hasattr(value, "__dict__") else []
    for item in inner:
        yield from reachable(item, seen)


def test_a_server_holds_no_key_and_a_client_no_weights() -> None:
    net, shape = made(AIDED["relu, max pool, softmax"])
    model = he.convert_model(net, shape)
    server = Server(model.plan)
    turn, batch = server.turn(0), model.client.begin(images(2, shape))
    for sent in batch.uploads(0):
        turn.receive(sent)
    for role in (server, turn):
        assert not any(isinstance(item, (SecretKey, Client)) for item in reachable(role, set()))
    held = list(reachable(Client(he.Public.from_json(model.public.to_json())), set()))
    assert any(isinstance(item, SecretKey) for item in held)
    assert not any(isinstance(item, (nn.Module, Server)) for item in held)
    assert sum(isinstance(item, Tensor) for item in held) == 1  # the secret


def test_slices_out_of_order_are_refused() -> None:
    net = nn.Sequential(nn.Linear(300, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    model = he.convert_model(net, (300,))
    batch = model.client.begin(images(2, (300,)))
    with pytest.raises(InputError, match="turn 1 was asked for"):
        next(batch.uploads(1))
    up, turn = list(batch.uploads(0)), model.server.turn(0)
    for bad, what in [
        (up[1], "slice 256 of turn 0"),
        (Upload(1, 0, up[0].seed, up[0].body), "slice 0 of turn 1"),
        (Upload(0, 0, up[0].seed, up[0].body[:5]), "expected torch.int32"),
        (Upload(0, 0, up[0].seed, up[0].body.long()), "expected torch.int32"),
        (Upload(0, 0, b"short", up[0].body), "16 bytes"),
    ]:
        with pytest.raises(InputError, match=what):
            turn.receive(bad)
    turn.receive(up[0])
    with pytest.raises(InputError, match="slices are missing"):
        next(turn.downloads())
    turn.receive(up[1])
    with pytest.raises(InputError, match="was not expected"):
        turn.receive(up[1])
    with pytest.raises(InputError, match="slices of the turn before are missing"):
        next(batch.uploads(1))
    with pytest.raises(InputError, match="slices of the turn before are missing"):
        batch.result()


def test_downloads_out_of_order_are_refused() -> None:
    model = he.convert_model(nn.Linear(4, 3), (4,))
    batch, turn = model.client.begin(images(2, (4,))), model.server.turn(0)
    for sent in batch.uploads(0):
        turn.receive(sent)
    (back,) = turn.downloads()
    for bad in (Download(0, 1, back.body), Download(1, 0, back.body), Download(0, 0, back.body[:2])):
        with pytest.raises(InputError):
            batch.receive(bad)
        batch = model.client.begin(images(2, (4,)))
        list(batch.uploads(0))
    with pytest.raises(InputError):
        next(turn.downloads())  # a turn answers once


# ---- the report


def test_the_report_names_every_layer() -> None:
    net = nn.Sequential(conv(1, 2, 3), nn.ReLU(), conv(2, 2, 1), conv(2, 2, 3), nn.Flatten()).eval()
    model = he.convert_model(net, (1, 6, 6))
    text = model.report()
    rows = {line.split()[0] + " " + line.split()[1]: line for line in text.splitlines() if len(line.split()) > 3}
    assert "log2 Q = 52.00; 128 bits of security allow 54 (2018), 53 (2024)" in text
    for name, side in (("0 conv", "encrypted"), ("1 relu", "client"), ("2 conv", "encrypted"), ("2 refresh", "client")):
        assert side in rows[name], name
    assert "by batch" in rows["input encrypt"] and "4 flatten" in rows
    assert "memory predicted: server" in text and "client learns the results of all encrypted layers" in text
    assert "measured" not in text
    x = images(3, (1, 6, 6))
    model(x)
    text = model.report()
    assert "measured: 3 images in 1 batch(es)" in text and "of 3 images compared with the net in the clear" in text
    assert model.last is not None
    assert (model.last.count["up"], model.last.count["down"]) == model.public.batch_bytes()
    assert f"{model.last.count['up']:,} up" in text


def test_the_report_of_a_polynomial_net() -> None:
    net, shape = made(PRODUCTS["square"])
    text = he.convert_model(net, shape, "polynomial").report()
    assert "proven for |input| <= 4" in text and "square" in text and "must not be passed on" in text
    text = he.convert_model(net, shape, "polynomial", samples=images(9, shape)).report()
    assert "largest values seen, 2 bits of margin, no proof" in text


def test_the_net_is_left_alone_and_errors_are_the_houses() -> None:
    net, shape = made(AIDED["relu, max pool, softmax"])
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.train()
    he.convert_model(net, shape)(images(2, shape))
    assert net.training and all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    with pytest.raises(HummingbirdError):
        he.convert_model("net", (4,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "more", ["", pytest.param("from hummingbird import he; he.convert_model", marks=pytest.mark.slow)]
)
def test_the_package_loads_on_first_use(more: str) -> None:
    code = f"import sys, hummingbird; assert 'torch' not in sys.modules; {more}"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM)
    assert ended.returncode == 0, ended.stderr
