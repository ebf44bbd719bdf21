"""The twin against the protocols: laws exhaustively, real runs bit for bit, distributions with a stated false alarm."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import hummingbird
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError, ModelError
from hummingbird.kernels.cpu import library
from hummingbird.mpc.protocols.gmw import GmwLaw
from hummingbird.mpc.protocols.law import UNIT
from hummingbird.mpc.protocols.masked import MaskedLaw
from hummingbird.mpc.session import session as sessions
from hummingbird.mpc.session.sharing import Shared
from hummingbird.simulation import simulate
from models import get_model
from models.resnet import BasicBlock, ResNet
from tests.jobs import real_run
from tests.simulation.test_compare import FALSE_ALARM, allowed, every_u
from tests.support.operations import Function, cases
from tests.support.parties import succeed

WAYS = list(itertools.product(("masked", "gmw"), ("fast", "exact")))


@pytest.mark.parametrize(
    ("ways", "step"),
    [(WAYS, 3), *(pytest.param(ways, 1, marks=pytest.mark.slow) for ways in (WAYS, *([way] for way in WAYS)))],
)
def test_every_operation(ways: list[tuple[str, str]], step: int) -> None:
    """Each in one way, the next one in the next; or all in the same. step: one of so many operations."""
    for (name, case), (protocol, mode) in zip([*cases().items()][::step], itertools.cycle(ways), strict=False):
        net = case.net.eval()
        twin = hummingbird.simulate(net, BitWindow(30, 0), protocol, mode=mode, seed=1)
        with torch.no_grad():
            expected, got = net(case.x), twin(case.x)
        assert got.shape == expected.shape, name
        assert float((got - expected).abs().max()) <= case.bound, name


NARROW = ("relu6", "hardtanh", "leaky_relu", "prelu", "hardswish", "hardsigmoid", "silu", "max_pool", "max_pool padded",
          "adaptive_max_pool", "softmax", "reused modules, shared weights")  # fmt: skip


@pytest.mark.parametrize(
    ("protocol", "names"),
    [
        *(("masked", NARROW[::6]), ("gmw", NARROW[1::6])),
        *(pytest.param(protocol, NARROW, marks=pytest.mark.slow) for protocol in ("masked", "gmw")),
    ],
    ids=["masked, a sixth", "gmw, a sixth", "masked", "gmw"],
)
def test_fast_and_exact_agree_on_narrow_windows_on_average(protocol: str, names: tuple[str, ...]) -> None:
    """Means of bounded results over many equal images, in every layer built from comparisons."""
    for name in names:
        case = cases()[name]
        x, copies = case.x[:1], 400
        runs = {}
        for mode in ("fast", "exact"):
            twin = hummingbird.simulate(case.net.eval(), BitWindow(21, 15), protocol, mode=mode, seed=5)
            batch = x.repeat(copies, *[1] * (x.dim() - 1))
            with torch.no_grad():
                runs[mode] = twin(batch).double()
        both = torch.cat(list(runs.values()))
        spread = both.amax(0) - both.amin(0)
        # Hoeffding for the difference of two means, for all results of an image at once, and the rounding.
        reach = spread * 2 * math.sqrt(math.log(2 * spread.numel() / FALSE_ALARM) / (2 * copies)) + case.bound
        if (name, protocol) == ("silu", "masked"):
            reach += 2.0**-8  # pieces of a table with 22 - 15 bits of fraction, of which "fast" takes the nearest
        gap = (runs["fast"].mean(0) - runs["exact"].mean(0)).abs()
        assert bool((gap <= reach).all()), f"{name}: {float((gap - reach).max())}"
        # A softmax divides by the sum of what it has: a maximum that is missed moves no result by much. Its functions
        # by splines (gmw) decide on fine bits, whatever the window.
        least = 0.0 if name == "softmax" else case.bound
        assert float(spread.max()) > least, f"{name}: nothing random has been compared"


@pytest.mark.parametrize(
    ("protocol", "parties"),
    [
        *(("masked", 2), ("gmw", 3)),
        *(pytest.param(protocol, parties, marks=pytest.mark.slow) for protocol, parties in (("masked", 3), ("gmw", 2))),
    ],
)
def test_fast_and_exact_drop_small_values_as_often_as_the_law_says(protocol: str, parties: int) -> None:
    n, window = 8192, BitWindow(20, 12)
    law = {"masked": MaskedLaw, "gmw": GmwLaw}[protocol](20, 12, parties)
    u = every_u(law, 8)
    for r in (7, 1000, 2048, 4000, 5000, -(1 << 19) + 1500, (1 << 19) - 1500, (1 << 19) + 900):
        x = torch.full((1, n), r * UNIT)
        bit, z = (part.double() for part in law.decide(torch.full_like(u, r), u))
        # A ReLU alone: outside the window a fair coin adds a turn to what is 0 (law.py).
        likely = float((bit + (1 - bit) * (z != r) / 2).mean())
        for mode in ("fast", "exact"):
            y = hummingbird.simulate(nn.ReLU(), window, protocol, parties, mode, seed=r % 1000)(x)
            # u on a grid of 8 of 4096: a probability within 8 / 4096.
            assert abs(int((y != 0).sum()) - n * likely) < allowed(n) + n * 8 / 4096, (r, mode)


@pytest.mark.parametrize("protocol", ["masked", "gmw"])
def test_behind_a_convolution_small_values_are_dropped_in_proportion(protocol: str) -> None:
    """Shares of 32 bits of fraction: P(kept) = 2^16 v / 2^m for small v, to within 1 / 2^m for the rounding."""
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU()).eval()
    x = torch.randn(40, 2, 12, 12)
    with torch.no_grad():
        v = net[0](x)
        small = (v > 0) & (v < 2.0**-3)
        n, expected = int(small.sum()), float((v[small].double() * 8).sum())
        assert n > 500
        for mode in ("fast", "exact"):
            y = hummingbird.simulate(net, BitWindow(21, 13), protocol, mode=mode, seed=4)(x)
            # Rounded inputs and weights move v by less than 18 * 3 units of 2^13.
            assert abs(int((y[small] != 0).sum()) - expected) < allowed(n) + n * 54 / 2**13, mode
            assert not bool(y[v < -54 * UNIT].any())


class Awkward(nn.Module):
    """In-place calls on aliases, a ReLU called twice, dropout and a clamp as functions, weights used by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.mix, self.head = nn.Parameter(torch.randn(4, 5)), nn.PReLU(5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        z = y
        self.relu(y)
        z = self.relu(z - 0.1) + y
        z += y
        z = F.dropout(z.clamp(-1, 2).mean((2, 3)), 0.5, self.training)
        return self.head(z @ self.mix)


def test_the_net_itself_runs_and_trains() -> None:
    torch.manual_seed(0)
    net, x = Awkward(), torch.randn(6, 3, 8, 8)
    other = copy.deepcopy(net)
    with pytest.warns(UserWarning, match="norm in training mode"):
        twin = hummingbird.simulate(net)
    assert not twin.training and net.training
    assert [id(p) for p in twin.parameters()] == [id(p) for p in net.parameters()]
    for training in (True, False, True):
        for module in (twin, other):
            module.train(training)
            torch.manual_seed(9)  # dropout
            module.zero_grad()
            module(x).square().sum().backward()
        for (name, a), (_, b) in zip(net.named_parameters(), other.named_parameters(), strict=True):
            # The same arithmetic but for the order of the terms of a clamp: float32, values and sums below 100.
            assert a.grad is not None and b.grad is not None
            assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-4), name
    assert torch.equal(net.norm.running_mean, other.norm.running_mean) and int(net.norm.num_batches_tracked) == 2
    with torch.no_grad():
        net.mix.zero_()  # parameters are shared, not copied
    assert not bool(twin.eval()(x).any())


def test_a_net_in_training_mode_is_used_as_in_eval_mode_and_left_as_it_is() -> None:
    """By every twin, with gradients and without; one layer's own mode is what it was."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten()
    net, x = nn.Sequential(*layers, nn.Linear(144, 2)), torch.rand(6, 3, 8, 8)
    net[3].eval()
    state, modes = copy.deepcopy(net.state_dict()), [layer.training for layer in net.modules()]
    frozen, options = copy.deepcopy(net).eval(), dict[str, Any]()
    for options in ({}, {"mode": "exact"}, {"cut": True}):
        with pytest.warns(UserWarning, match="1 and 1 more in training mode: the twin begins in eval mode"):
            twin = hummingbird.simulate(net, BitWindow(20, 12), seed=1, **options)
        other = hummingbird.simulate(frozen, BitWindow(20, 12), seed=1, **options)
        assert not twin.training
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                assert torch.equal(twin(x), other(x)), options
    assert [layer.training for layer in net.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    twin = hummingbird.simulate(net.eval()).train()  # of a net in eval mode nothing is told
    twin(x).sum().backward()
    assert net.training and int(net[1].num_batches_tracked) == 1
    net[1].eval()  # a layer that is frozen while the others train
    twin(x).sum().backward()
    assert int(net[1].num_batches_tracked) == 1 and int(net[3].num_batches_tracked) == 2


def test_names_are_those_of_the_private_net() -> None:
    net = Awkward().eval()
    names = hummingbird.convert_model(net).comparing_layers
    twin: Any = hummingbird.simulate(net)
    assert twin.comparing_layers == names == ["relu", "relu#1", "clamp", "head"]
    x = torch.randn(4, 3, 8, 8)
    for name in names:  # a window of one layer changes the result
        changed = hummingbird.simulate(net, BitConfig(layers={name: BitWindow(18, 16)}), seed=1)
        assert not torch.allclose(changed(x), net(x), atol=1e-4), name
    assert hummingbird.simulate(nn.PReLU(3), BitConfig(layers={"0": BitWindow(0, 0)}))(x[:, :3]).equal(x[:, :3])


def test_a_net_that_trains_otherwise_is_refused_in_training_only() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x) * 2 if self.training else F.relu(x)

    twin, x = hummingbird.simulate(Branching()), torch.randn(3)
    with pytest.raises(InputError, match="training mode"):
        twin.train()(x)
    assert torch.equal(twin.eval()(x), F.relu(x))


def test_autocast_and_channels_last_go_through() -> None:
    net = ResNet(BasicBlock, (1, 1), 10, width=8).eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    seen = []
    net.layer2[0].conv2.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    with pytest.raises(ModelError, match="hook"):
        hummingbird.simulate(net)
    net.layer2[0].conv2._forward_pre_hooks.clear()
    twin = hummingbird.simulate(net, BitWindow(20, 12), seed=1)
    net.layer2[0].conv2.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        out = twin(x)
    assert seen[0].dtype == torch.bfloat16 and seen[0].is_contiguous(memory_format=torch.channels_last)
    assert out.shape == (2, 10)


def test_seeds_repeat_and_differ() -> None:
    net, x, window = nn.Sequential(nn.Linear(8, 200), nn.ReLU()), torch.randn(30, 8), BitWindow(20, 15)
    for mode in ("fast", "exact"):
        a, b, c = (hummingbird.simulate(net, window, mode=mode, seed=seed) for seed in (1, 1, 2))
        first = a(x)
        assert torch.equal(first, b(x)) and not torch.equal(first, c(x)) and not torch.equal(first, a(x))
    free = hummingbird.simulate(net, window)
    torch.manual_seed(0)
    first = free(x)
    assert not torch.equal(first, free(x))
    torch.manual_seed(0)
    assert torch.equal(first, free(x))


@torch.no_grad()
def test_exact_follows_the_weights_and_leaves_no_session() -> None:
    net, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(2, 4)
    twin = hummingbird.simulate(net, mode="exact")
    before = twin(x)
    net[0].bias.add_(5.0)
    assert float((twin(x) - net(x)).abs().max()) < 8 * UNIT * 4 and not torch.equal(twin(x), before)
    assert not sessions.is_initialized()
    for bad in (torch.tensor([[float("nan")] * 4]), torch.randn(2, 5), torch.ones(2, 4, dtype=torch.int64)):
        with pytest.raises(InputError):
            twin(bad)
    assert not sessions.is_initialized()
    assert float((twin(x) - net(x)).abs().max()) < 8 * UNIT * 4


@pytest.mark.parametrize(
    ("bits", "protocol"),
    [
        (BitConfig(layers={"nonsense": BitWindow(8, 0)}), "masked"),
        (BitWindow(60, 47), "masked"),
        (BitWindow(20, 19), "masked"),
        (BitWindow(64, 50), "gmw"),
        (8, "gmw"),
        ("no such file", "gmw"),
        (None, "bgw"),
    ],
)
def test_bits_are_refused_as_by_convert_model(bits: Any, protocol: str) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    said = []
    for convert in (hummingbird.convert_model, hummingbird.simulate):
        with pytest.raises(ConfigError) as error:
            convert(net, bits, protocol=protocol)
        said.append(str(error.value))
    assert said[0] == said[1]


class Powers(nn.Module):
    """No layer of the vocabulary."""

    def forward(self, x: Tensor) -> Tensor:
        return x**3


class PrivatePowers(nn.Module):
    """On CrypTen tensors, by CrypTen's own functions."""

    def forward(self, x: Any) -> Any:
        return x.square() * x


def test_layers_of_register_converter_run(nothing_is_left: None) -> None:
    hummingbird.register_converter(Powers, lambda module: PrivatePowers())
    net, x = nn.Sequential(nn.ReLU(), Powers(), nn.ReLU()), torch.randn(3, 40).clamp(-1.9, 1.9)
    for protocol, mode in itertools.product(("masked", "gmw"), ("fast", "exact")):
        out = hummingbird.simulate(net, BitWindow(30, 0), protocol, mode=mode)(x)
        # |x| < 2: the input's rounding times 3 x^2, two truncations, one of them times x.
        assert float((out - net(x)).abs().max()) <= (6 + 2 * 2 + 2) * UNIT


def test_a_copy_of_a_twin_has_its_own_net_and_mode() -> None:
    twin = hummingbird.simulate(nn.Sequential(nn.PReLU()), BitWindow(17, 8), "gmw", seed=1, clamp=True)
    other, x = copy.deepcopy(twin).train(), torch.tensor([40.5])
    twin.eval()
    with torch.no_grad():
        other.net[0].weight.zero_()
        # 40.5 is 0.5 in a window of +-1 and passes; 41.5 is taken for negative; in training both are moved to 1.
        assert other(x) <= 1 and twin(x) == 40.5 and other(x + 1) <= 1 and twin(x + 1) == 41.5 / 4


def test_windows_can_be_changed_and_a_refusal_changes_nothing() -> None:
    net = Awkward().eval()
    x, twin = torch.randn(4, 3, 8, 8), hummingbird.simulate(net, seed=1)
    for config in (BitConfig(BitWindow(20, 14)), BitConfig(layers={"relu": BitWindow(0, 0), "head": BitWindow(18, 9)})):
        twin.set_bits(config)
        fresh = hummingbird.simulate(net, config, seed=1)
        for other in (twin, fresh):
            other._compare.restart(1)
        expected = fresh(x)
        assert torch.equal(twin(x), expected)
    for wrong in (BitConfig(layers={"nonsense": BitWindow(8, 0)}), BitWindow(60, 47)):
        with pytest.raises(ConfigError) as error:
            twin.set_bits(wrong)
        with pytest.raises(ConfigError) as said:
            hummingbird.simulate(net, wrong)
        assert str(error.value) == str(said.value)
    twin._compare.restart(1)
    assert torch.equal(twin(x), expected)


@pytest.mark.parametrize("mode", ["fast", "exact"])
@pytest.mark.parametrize("protocol", ["masked", "gmw"])
def test_comparisons_of_a_value_with_several_numbers_have_one_u(protocol: str, mode: str) -> None:
    """clamp(x, 0, 2^-6) of 2^-5 is y_0 - y_1: all comparisons have one u, so where y_1 passes, y_0 does."""
    net, x = nn.Hardtanh(0.0, 2.0**-6), torch.full((2000, 1), 2.0**-5)
    out = hummingbird.simulate(net, BitWindow(20, 12), protocol, mode=mode, seed=1)(x)
    # Probabilities 1/2 and 1/4: all of three cases, which leaves none out but for 2 (3/4)^2000.
    assert not bool((out < 0).any()) and len(out.unique()) == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_a_net_on_cuda(mode: str) -> None:
    net, x = get_model("resnet18", 10).eval().cuda(), torch.randn(2, 3, 32, 32).cuda()
    twin = hummingbird.simulate(net, BitWindow(30, 0), mode=mode, seed=1)
    assert float((twin(x) - net(x)).abs().max()) < 0.05  # fixed point, through 20 layers
    pruned = hummingbird.simulate(net, BitWindow(21, 13), mode=mode, seed=1)(x)
    assert pruned.is_cuda and bool(pruned.isfinite().all())


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"parties": 1}, "parties"),
        ({"mode": "slow"}, "mode"),
        ({"seed": -1}, "seed"),
        ({"mode": "exact", "clamp": True}, "clamp"),
    ],
)
def test_other_arguments_are_checked(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        hummingbird.simulate(nn.ReLU(), **options)


def test_nets_are_refused_as_by_convert_model() -> None:
    with pytest.raises(ModelError, match="LSTM"):
        hummingbird.simulate(nn.Sequential(nn.LSTM(3, 3)))
    with pytest.raises(ConfigError, match="argmax"):
        hummingbird.simulate(Function(lambda x: x.argmax(1)), BitWindow(0, 0))


def test_exact_is_a_real_run_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes over sockets with the same seeds: every message each sends, and its shares of the results."""
    ended = succeed(["-m", "tests.jobs.real_run"], 2)
    net, x = real_run.make()
    shares: list[list[Any]] = [[], []]
    forward = simulate.ExactNet.forward

    def noted(net: simulate.ExactNet, session: sessions.Session, x: Shared) -> Shared:
        out = forward(net, session, x)
        shares[session.rank].append(out.share.tolist())
        return out

    monkeypatch.setattr(simulate.ExactNet, "forward", noted)
    for protocol in ("masked", "gmw"):
        states, exchange = [hashlib.blake2b() for _ in ended], simulate._Seat.exchange

        def hashed(seat: Any, *tensors: Tensor, states: Any = states, exchange: Any = exchange) -> Any:
            return real_run.watched(lambda *sent: exchange(seat, *sent), states[seat.rank])(*tensors)

        shares[:] = [[], []]
        with monkeypatch.context() as patched:
            patched.setattr(simulate._Seat, "exchange", hashed)
            twin = hummingbird.simulate(net, real_run.BITS, protocol, mode="exact", seed=real_run.SEED)
            for _ in range(real_run.CALLS):
                twin(x)
        for rank, party in enumerate(ended):
            theirs = json.loads(party.out)[protocol]
            assert theirs["shares"] == shares[rank]
            assert theirs["sent"] == states[rank].hexdigest()


class Written(TorchDispatchMode):
    """Counts the numbers that torch's operations write to memory."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        self.numbers += out.numel() if isinstance(out, Tensor) and not function.is_view else 0
        return out


def test_a_twin_does_the_nets_work_and_little_more() -> None:
    """The same multiplications, and a comparison writes what a ReLU does, once. Seconds: scripts.bench.simulate."""
    net, x = ResNet(BasicBlock, (1, 1), 10).eval(), torch.randn(1, 3, 32, 32)
    twin, work = hummingbird.simulate(net, BitWindow(21, 13)), {}
    with torch.no_grad():
        twin(x)  # folds constants, once
        for name, module in (("net", net), ("twin", twin)):
            with FlopCounterMode(display=False) as flops:
                module(x)
            with Written() as written:
                module(x)
            work[name] = flops.get_total_flops(), written.numbers
    assert work["twin"][0] == work["net"][0] > 10**7
    most = 1.001 if library.available() else 20.0  # the reference of the kernel takes many steps
    rounding = 3 * x.numel()  # of the input, as it is shared
    assert work["twin"][1] < most * work["net"][1] + rounding
