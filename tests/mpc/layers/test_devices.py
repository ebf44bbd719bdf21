"""The same layers on another device: everything they make must be where the shares are.

Torch's meta device stands in for a GPU: a tensor of another device that meets one there is an error, and so is every
look at a value. On a GPU the results are compared too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import hummingbird
from hummingbird import kernels, ring
from hummingbird.bits import BitWindow
from hummingbird.channel.interleave import Interleave
from hummingbird.channel.prefetch import Prefetch
from hummingbird.convert import convert_model
from hummingbird.crypten import adapter
from hummingbird.crypten.adapter import share_of
from hummingbird.errors import EnvironmentProblem
from hummingbird.kernels import devices, registry, streams
from hummingbird.kernels.reference import shares
from hummingbird.kernels.reference import streams as plain_streams
from hummingbird.kernels.shares import opening, packing
from hummingbird.mpc.correlations.request import Material, ReceiverTurn
from hummingbird.mpc.dealer.supplies import Supplies
from hummingbird.mpc.layers.averaging import sums_by_halves
from hummingbird.mpc.protocols import weight_mask
from hummingbird.mpc.protocols.beaver import SquarePair
from hummingbird.mpc.protocols.registry import PROTOCOLS
from hummingbird.mpc.session import launch
from hummingbird.mpc.session import session as sessions
from tests.support import far
from tests.support.covering import covering, every
from tests.support.operations import cases
from tests.support.parties import init_alone
from tests.support.patience import HANG

CASES = cases()
WINDOW = BitWindow(32, 0)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[sessions.Session]:
    """A session of one party whose shares are on the meta device."""
    monkeypatch.delenv("RANK", raising=False)
    words = adapter._kbit

    def drawn(size: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        """CrypTen asks for empty tensors on the CPU, to which nothing can be copied from the meta device."""
        out = words(size, *args, **kwargs)
        return out if device == out.device else torch.empty(out.shape, dtype=out.dtype, device=device)

    monkeypatch.setattr(adapter, "_kbit", drawn)
    # Thousands of operations for each draw, and hundreds for each packing and each reading of tables, tested below.
    octets = partial(torch.empty, dtype=torch.uint8)
    monkeypatch.setattr(streams, "chacha20", lambda key, _, blocks: octets(64 * blocks, device=key.device))
    stand_ins = {
        packing.pack_words: lambda x, width: octets((x.numel() * width + 7) // 8, device=x.device),
        packing.unpack_words: lambda data, n, width: torch.empty(n, dtype=torch.int64, device=data.device),
        opening.lookup: lambda opened, table, low, bits, rows=(0, 1): octets(
            len(rows), (opened.numel() + 7) // 8, device=opened.device
        ),
    }
    for operation, stand_in in stand_ins.items():
        monkeypatch.setitem(registry._KERNELS, (operation, "reference"), registry._Kernel(stand_in, None))
    monkeypatch.setattr(weight_mask, "weights_digest", lambda codes: b"")  # the one place that reads weights
    yield init_alone(device="meta")
    hummingbird.uninit()


# Operations that make tensors of their own, or read constants, beside shares: one of each kind.
QUICK = ["conv2d", "max_pool padded", "rms_norm", "attention, causal", "gelu", "argmax", "bicubic", "masked_fill"]


@covering("name, weights, protocol", CASES, ["public", 0], PROTOCOLS, quick=QUICK)
def test_everything_is_where_the_shares_are(
    elsewhere: sessions.Session, name: str, weights: str | int, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing there makes the thread that computes wait for the device."""
    net, x = CASES[name].net.eval(), CASES[name].x
    try:
        private = convert_model(net, WINDOW, weights, protocol)
    except hummingbird.errors.HummingbirdError as error:
        pytest.skip(str(error).splitlines()[0])
    with far.waits(monkeypatch) as waits:
        out = private(hummingbird.cryptensor(x))
    assert not waits
    assert share_of(out).is_meta and tuple(out.size()) == tuple(net(x).shape)
    assert all(buffer.is_meta for buffer in private.buffers())


@pytest.mark.parametrize("width", [1, 3, 16, 64])
def test_packing_is_where_the_words_are(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    with far.waits(monkeypatch) as waits:
        packed = kernels.pack_words(torch.ones(9, dtype=torch.int64, device="meta"), width)
        words = kernels.unpack_words(packed, 9, width)
    assert not waits and packed.is_meta and words.is_meta
    assert packed.shape == ((9 * width + 7) // 8,) and words.shape == (9,)


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_tables_are_read_where_the_words_are(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    opened = torch.ones(9, dtype=torch.int64, device="meta")
    table = torch.ones(((9 << bits) + 7) // 8, dtype=torch.uint8, device="meta")
    with far.waits(monkeypatch) as waits:
        found = kernels.lookup(opened, table, 3, bits, (0, 1, 3))
    assert not waits and found.is_meta and found.shape == (3, 2)


@pytest.mark.parametrize("name", every(3, ["relu", "conv2d", "avg_pool 3"]))
def test_what_a_card_would_compute(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A far device that says it is CUDA's: CrypTen wraps its shares, and branches for CUDA are taken; plain torch
    stands in for Triton.
    """
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(far._Far, "is_cuda", property(lambda self: True), raising=False)
    near_draws(monkeypatch)
    find = registry._find
    monkeypatch.setattr(registry, "_find", lambda operation, _, tensors: find(operation, "reference", tensors))
    case = CASES[name]
    with far.far():
        init_alone(device=far.DEVICE)
        try:
            out = convert_model(case.net.eval(), WINDOW)(hummingbird.cryptensor(case.x))
            assert share_of(out).is_cuda and type(out.share).__name__ == "CUDALongTensor"
            error = float((out.get_plain_text().cpu() - case.net(case.x)).abs().max())
        finally:
            hummingbird.uninit()
    assert error <= case.bound


def near_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have streams be computed here: thousands of operations for each draw, tested below."""
    monkeypatch.setattr(streams, "chacha20", far.near(plain_streams.chacha20))


def test_a_stream_is_where_its_key_is() -> None:
    key = streams.chacha20_key(bytes(range(32)), torch.device("cpu"))
    with far.far():
        there = streams.chacha20(key.to(far.DEVICE), 7, 2)
    assert there.is_meta and torch.equal(there.near, streams.chacha20(key, 7, 2))


HERE = torch.tensor([[0.5, -1.25, 2.0, 3.0]])  # a public tensor of the CPU
OPERATORS: dict[str, Any] = {
    "whole product": lambda x: x * 3,
    "product": lambda x: 0.3 * x,
    "small product": lambda x: x * 1e-5,
    "sum": lambda x: x + 1.5,
    "difference": lambda x: 2 - x,
    "quotient": lambda x: x / 3,
    "quotient by a fraction": lambda x: x / -0.7,
    "product with a tensor": lambda x: x * HERE,
    "sum with a tensor": lambda x: HERE - x,
    "quotient by a tensor": lambda x: x / HERE,
    "matmul": lambda x: x @ HERE.t(),
    "item": lambda x: _with_item(x, 2.5),
    "item of a tensor": lambda x: _with_item(x, HERE[0]),
    "pad": lambda x: x.pad((1, 2), value=0.25),
    "pad with a shared number": lambda x: x.pad((1, 2), value=x[0, 0]),
    "mean": lambda x: x.mean(1),
    "greater": lambda x: x > 0.5,
    "polynomial": lambda x: (x * x - 0.5).relu() * 0.125 + 1,
}


def _with_item(x: Any, value: Any) -> Any:
    x = x.clone()
    x[1] = value
    return x


@pytest.mark.parametrize("name", OPERATORS)
def test_no_operator_waits_for_the_device(
    elsewhere: sessions.Session, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = hummingbird.cryptensor(torch.rand(3, 4))
    with far.waits(monkeypatch) as waits:
        out = OPERATORS[name](x)
    assert not waits and share_of(out).is_meta


@pytest.mark.parametrize("name", every(6, [*OPERATORS]))
def test_operators_give_the_same_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("RANK", raising=False)
    near_draws(monkeypatch)
    given = torch.arange(-6.0, 6).view(3, 4) / 4
    results = []
    for device, place in (("cpu", contextlib.nullcontext()), (far.DEVICE, far.far())):
        with place:
            init_alone(device=device)
            try:
                results.append(OPERATORS[name](hummingbird.cryptensor(given)).get_plain_text().cpu())
            finally:
                hummingbird.uninit()
    here, there = results
    assert (here - torch.tensor(there.tolist())).abs().max() <= 2.0**-16  # either is exact to a unit


def test_the_check_can_fail() -> None:
    with pytest.raises(Exception, match="device|meta"):
        kernels.pack_words(torch.ones(3, dtype=torch.int64), 3) + kernels.pack_words(
            torch.ones(3, dtype=torch.int64, device="meta"), 3
        )


def test_a_session_on_cuda_needs_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EnvironmentProblem, match="no CUDA device"):
        hummingbird.init(device="cuda")
    assert not sessions.is_initialized()


@pytest.mark.parametrize(
    "asked, local_rank, card",
    [("cuda", "0", 0), ("cuda", "1", 1), ("cuda", "5", 1), ("cuda", None, 0), ("cuda:1", "0", 1)],
)
def test_a_lane_has_a_card_of_its_own(
    monkeypatch: pytest.MonkeyPatch, asked: str, local_rank: str | None, card: int
) -> None:
    """Processes of a host take its two cards in turn; a card that is named stays."""
    chosen: list[int] = []
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert launch._on_card(torch.device(asked)) == torch.device("cuda", card) and chosen == [card]
    with pytest.raises(EnvironmentProblem, match="this host has 2 CUDA devices, and no cuda:2"):
        launch._on_card(torch.device("cuda:2"))
    assert launch._on_card(torch.device("cpu")) == torch.device("cpu")


def test_what_waits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy to the device, a tensor made there of numbers here, a look at values; but no copy by `put`."""
    x, far_away = torch.ones(3), torch.device("meta")
    with far.waits(monkeypatch) as waits:
        devices.put(x, far_away)
        assert not waits
        x.to(far_away)
        torch.empty(3, device="meta").copy_(x)
        torch.tensor([1.0], device=far_away)
        ring.encode(torch.empty(3, device="meta"))
    assert len(waits) == 4


def test_small_tensors_go_to_a_card_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory that is not pinned a copy would wait for all that the card was given before."""
    noted: list[Any] = []

    class Here(Tensor):
        def pin_memory(self, device: Any = None) -> Any:
            noted.append("pinned")
            return self

        def to(self, *args: Any, **kwargs: Any) -> Any:
            noted.append((*args, *kwargs.items()))
            return self

    @contextlib.contextmanager
    def on(device: torch.device) -> Iterator[None]:
        noted.append(device)
        yield

    monkeypatch.setattr(torch.cuda, "device", on)
    card = torch.device("cuda", 1)
    devices.put(torch.ones(2).as_subclass(Here), card)
    assert noted == [card, "pinned", (card, ("non_blocking", True))]


def test_threads_use_the_card_of_the_one_that_starts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a session on the second card: slices in turns, material that is made ahead, and what is read ahead."""
    chosen: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda card: chosen.append(f"{card} in {threading.current_thread().name}")
    )

    def name() -> str:
        return threading.current_thread().name

    first, *others = Interleave().run([name, name, name])
    assert first == name() and chosen == [f"1 in {other}" for other in others]
    with Prefetch(iter([1, 2]), 1) as items:
        assert list(items) == [1, 2]
    material = Material({})
    supplies = Supplies(lambda turns, requests: iter([material]), "here", lambda size: HANG)
    assert supplies.reserve([ReceiverTurn(0, 0)], [SquarePair((1,))]).correlation(SquarePair((1,))).shares == {}
    supplies.close()
    assert chosen[-2:] == ["1 in hummingbird-prefetch", "1 in hummingbird-supplies"]


@pytest.mark.parametrize("ceil", [False, True])
def test_sums_by_halves_are_exact(ceil: bool) -> None:
    """Pooling on devices where torch pools no integers: full words, sums that wrap."""
    x = torch.randint(-(2**63), 2**63 - 1, (2, 3, 9, 9), generator=torch.Generator().manual_seed(0))
    x[0] = -1
    x[1, 0] = -(2**63)

    def pool(part: Tensor) -> Tensor:
        return F.avg_pool2d(part, 4, 3, 1, ceil, divisor_override=1)

    padded = F.pad(x, (1, 5, 1, 5))
    size = pool(x.double()).shape[-1]
    rows = padded.unfold(2, 4, 3).unfold(3, 4, 3)[:, :, :size, :size]
    assert torch.equal(sums_by_halves(x, pool), rows.sum((-1, -2)))


# On a GPU -------------------------------------------------------------------------------------------------------------

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("weights", ["public", 0])
@pytest.mark.parametrize("name", CASES)
def test_results_on_a_gpu(monkeypatch: pytest.MonkeyPatch, name: str, weights: str | int, protocol: str) -> None:
    monkeypatch.delenv("RANK", raising=False)
    init_alone(device="cuda")
    try:
        case = CASES[name]
        net = case.net.eval()
        try:
            private = convert_model(net, WINDOW, weights, protocol)
        except hummingbird.errors.HummingbirdError as error:
            pytest.skip(str(error).splitlines()[0])
        out = private(hummingbird.cryptensor(case.x))
        assert share_of(out).is_cuda
        with torch.no_grad():
            error = float((out.get_plain_text().cpu() - net(case.x)).abs().max())
        assert error <= case.bound
    finally:
        hummingbird.uninit()


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", CASES)
def test_no_step_waits_for_a_gpu(monkeypatch: pytest.MonkeyPatch, name: str, protocol: str) -> None:
    """torch counts what does: an error in its mode for that."""
    monkeypatch.delenv("RANK", raising=False)
    init_alone(device="cuda")
    try:
        case = CASES[name]
        try:
            private = convert_model(case.net.eval(), WINDOW, "public", protocol)
        except hummingbird.errors.HummingbirdError as error:
            pytest.skip(str(error).splitlines()[0])
        private(hummingbird.cryptensor(case.x))  # kernels are compiled, and parts of weights are made
        torch.cuda.set_sync_debug_mode("error")
        try:
            private(hummingbird.cryptensor(case.x))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    finally:
        hummingbird.uninit()


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("groups", [1, 2, 512])
def test_convolutions_over_4608_terms_on_a_gpu(groups: int) -> None:
    torch.manual_seed(0)
    x = torch.randint(-(2**63), 2**63 - 1, (2, 512, 6, 6))
    w = torch.randint(-(2**63), 2**63 - 1, (512, 512 // groups, 3, 3))
    got = kernels.conv2d(x.cuda(), w.cuda(), (1, 1), (1, 1), groups)
    assert torch.equal(got.cpu(), F.conv2d(x, w, groups=groups))
    k = shares.LIMB_TERMS
    assert kernels.matmul(torch.full((1, k), -1).cuda(), torch.full((k, 1), -1).cuda()).item() == k
