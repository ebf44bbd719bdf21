"""The laws of the twin: exhaustively against the protocols, on tensors of every layout and type."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird import kernels, ranks
from hummingbird.bits import BitWindow
from hummingbird.kernels.reference.simulation import drawn
from hummingbird.mpc.protocols import masked
from hummingbird.mpc.protocols.gmw import GmwLaw
from hummingbird.mpc.protocols.law import UNIT, Law
from hummingbird.mpc.protocols.masked import Masked, MaskedLaw
from hummingbird.ring import SCALE
from hummingbird.simulation.compare import Compare, _disturbed, _inner
from tests.mpc.protocols.test_gmw import every_sharing, published_sign, signs
from tests.mpc.protocols.test_masked import masks, opened_sum
from tests.support.covering import every
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together

FALSE_ALARM = 1e-9  # of one statistical check; there are below 100 in this file


def allowed(n: int) -> float:
    """Hoeffding 1963: a sum of n independent numbers in [0, 1] leaves its mean by this with that probability."""
    return math.sqrt(n * math.log(2 / FALSE_ALARM) / 2)


def every_u(law: Law, step: int = 1) -> Tensor:
    """All values of u, each as often as it is likely; `step`: of a grid only."""
    u = torch.zeros(1, dtype=torch.int64)
    for _ in range(law.draws):
        u = (u[:, None] + torch.arange(0, 1 << law.m, step)).view(-1)
    return u


# Laws ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 3, 5, 6])
def test_masked_is_the_definition_for_every_value_and_mask(k: int) -> None:
    """The formulas at the top of protocols/masked.py, also far outside the window."""
    size = 1 << k
    x, mask = (
        t.reshape(-1) for t in torch.meshgrid(torch.arange(-3 * size, 3 * size), torch.arange(size), indexing="ij")
    )
    for m in range(k - 1):
        h = 1 << (k - m - 1)
        opened = (x + mask) % size
        upper, hidden = opened >> m, mask >> m
        s = (hidden <= (upper ^ h)).long()
        b = (hidden < upper).long() ^ s ^ (upper < h).long()
        value = opened - mask + size * ((upper < h).long() - s)
        relu = b * opened - b * mask + size * (upper < h).long() * (1 - s)
        bit, z = MaskedLaw(k, m, 2).decide(x, mask % (1 << m))
        assert torch.equal(bit.long(), b) and torch.equal(z, value) and torch.equal(bit * z, relu), f"[{k}:{m})"


@pytest.mark.parametrize(("k", "m"), [(8, 3), (8, 0), (20, 12)])
@pytest.mark.parametrize("parties", [2, 3])
def test_masked_is_what_the_parties_compute(k: int, m: int, parties: int) -> None:
    opened, count = make_sessions(parties), 3000
    mask = masks(opened[0], count, k, m)
    x = torch.randint(-(3 << k), 3 << k, (count,))
    shares = share(x, parties)
    y, z = opened_sum(
        together([lambda s=s, v=v: masked.relu(s, v, 0, k, m) for s, v in zip(opened, shares, strict=True)])
    )
    bit, value = MaskedLaw(k, m, parties).decide(x, mask & ((1 << m) - 1))
    assert torch.equal(z, value) and torch.equal(y, bit * value)


@pytest.mark.parametrize("window", [BitWindow(8, 3), BitWindow(20, 12), BitWindow(20, 12, 7)], ids=str)
@pytest.mark.parametrize("parties", [2, 3])
def test_whole_shares_of_values_outside_the_window(
    window: BitWindow, parties: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bit z + c (z' - z), z' = x rounded, with the very c that is opened; and c is a fair coin."""
    choices: list[Tensor] = []
    lift = kernels.lift

    def listen(opened: Tensor, choice: Tensor, *rest: Any) -> Any:
        choices.append(choice)
        return lift(opened, choice, *rest)

    monkeypatch.setattr(kernels, "lift", listen)
    opened, (k, m, q), count = make_sessions(parties), (window.k, window.m, window.q), 4000
    one = Masked(window, ring=64, whole=True)
    mask = masks(opened[0], count, k - q, m - q) << q
    x = torch.randint(-(3 << k), 3 << k, (count,)) >> q << q
    shares = [part << q for part in share(x >> q, parties)]  # nothing is rounded
    y, z = opened_sum(together([lambda s=s, v=v: one.relu(s, v, SCALE) for s, v in zip(opened, shares, strict=True)]))
    law = one.law(SCALE, parties)
    assert isinstance(law, MaskedLaw) and law.whole
    bit, reduced = MaskedLaw(k, m, parties, q=q).decide(x, mask & ((1 << m) - 1))
    coin = kernels.from_bits(choices[0][0], count)
    assert torch.equal(z, x) and torch.equal(y, bit * reduced + coin * (x - reduced))
    assert abs(int(coin.sum()) - count / 2) < 6 * count**0.5 / 2
    if m > 3:
        return
    # The twin, of each value 800 times: what the law gives for some u and some coin, and nothing else.
    some, u = x[:40, None], torch.arange(1 << m)
    bit, reduced = MaskedLaw(k, m, parties).decide(*torch.broadcast_tensors(some, u))
    expected = torch.cat([bit * reduced, bit * reduced + some - reduced], 1)
    real = (some * UNIT).expand(40, 800).double()
    passed, value = Compare(1, False).both(real, law)
    assert torch.equal(value, real)
    for found, wanted in zip((passed / UNIT).long().tolist(), expected.tolist(), strict=True):
        assert set(found) == set(wanted)


@pytest.mark.parametrize(("bits", "parties"), every(2, [(6, 2), (7, 2), (4, 3), (5, 3)]))
def test_gmw_is_the_definition_for_every_sharing(bits: int, parties: int) -> None:
    """For every value, the same number of sharings as of u decide for each bit; and sharing by sharing."""
    x, shares = every_sharing(bits, parties)
    for k, m in itertools.combinations(range(bits, -1, -1), 2):
        low = sum(((s % (1 << m)) for s in shares[1:]), torch.zeros_like(x))
        law = GmwLaw(k, m, parties)
        published = published_sign(shares, k, m)
        assert torch.equal(law.decide(x, low)[0].long(), published), f"[{k}:{m})"
        assert torch.equal(law.decide(x, low)[1], x)
        for value in x.unique().tolist():
            u = every_u(law)
            likely = law.decide(torch.full_like(u, value), u)[0].double().mean()
            assert float(published[x == value].double().mean()) == pytest.approx(float(likely), abs=1e-12)


@pytest.mark.parametrize("parties", [2, 3])
def test_gmw_is_what_the_parties_compute(parties: int) -> None:
    x = torch.randint(-(3 << 12), 3 << 12, (3000,))
    shares = share(x, parties)
    low = sum(((s & 127) for s in shares[1:]), torch.zeros_like(x))
    assert torch.equal(signs(parties, shares, 7, 5), GmwLaw(12, 7, parties).decide(x, low)[0].long())


LAWS = [
    law(k, m, parties, *between)
    for law, parties, between in (
        (MaskedLaw, 2, ()), (GmwLaw, 2, ()), (GmwLaw, 3, ()), (GmwLaw, 2, (True,)), (GmwLaw, 4, (True,))
    )
    for k, m in ((7, 3), (7, 0), (6, 4), (20, 12), (22, 0))
]  # fmt: skip


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_range_is_where_nothing_wraps_whatever_is_drawn(law: Law) -> None:
    top = law.draws * ((1 << law.m) - 1)
    low, high = (round(end / UNIT) for end in law.range)
    r = torch.tensor([low, low + 1, (low + high) // 2, high - 1, high]) - law.lower
    for u in (0, top):
        bit, z = law.decide(r, torch.full_like(r, u))
        assert torch.equal(z, r)
        d = r + u if isinstance(law, MaskedLaw) else r - u
        assert torch.equal(bit, d >= (1 << law.m if isinstance(law, MaskedLaw) else 0))
    first, last = law.range
    assert law.holds(first, last) and not law.holds(first - UNIT, last) and not law.holds(first, last + UNIT)
    # One step beyond, some u takes the sum out of [-2^(k-1), 2^(k-1)).
    half, masked_sum = 1 << law.k - 1, isinstance(law, MaskedLaw)
    below, above = low - 1 - law.lower, high + 1 - law.lower
    assert (below if masked_sum else below - top) < -half and (above + top if masked_sum else above) >= half


def test_cutting_between_the_integers_is_right_on_average() -> None:
    """gmw on shares with 4 more bits of fraction: P(bit) for every fine value, against the law on rounded ones."""
    m, extra = 3, 4
    fine = torch.arange(-16, 1 << (m + extra))
    real = (fine[:, None] >= torch.arange(1 << (m + extra))).double().mean(1)
    law = GmwLaw(8, m, 2, between=True)
    r = law.ring(fine.float() * 2.0**-extra * UNIT)
    u = every_u(law)
    likely = law.decide(*torch.broadcast_tensors(r[:, None], u))[0].double().mean(1)
    unit = 2.0**-m
    assert float((likely - real).abs().max()) <= unit / 2 + unit * 2.0**-extra
    # Half a fine step, as [fine >= u] counts u = fine; and of the ties, one value in 2^extra, 4 of 9 are rounded down.
    assert abs(float((likely - real).mean())) <= unit * 2.0**-extra * (1 / 2 + 4 / 9)


@pytest.mark.parametrize("law", [MaskedLaw(20, 3, 2), GmwLaw(20, 3, 2), GmwLaw(20, 2, 3)], ids=str)
def test_the_numbers_drawn_are_uniform_and_their_sums(law: Law) -> None:
    n = 40_000
    u = drawn(n, 1, law.m, law.draws, torch.device("cpu"))
    all_sums = every_u(law)
    for value in range(int(all_sums.max()) + 1):
        expected = n * float((all_sums == value).double().mean())
        assert abs(int((u == value).sum()) - expected) < allowed(n)
    assert int(u.min()) == 0 and int(u.max()) == int(all_sums.max())


# Tensors ------------------------------------------------------------------------------------------------------------


def dense(memory_format: torch.memory_format, dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(0)
    return (3 * torch.randn(5, 6, 40, 40)).to(dtype).contiguous(memory_format=memory_format)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("law", [MaskedLaw(21, 14, 2), GmwLaw(21, 14, 3), MaskedLaw(17, 10, 2)], ids=str)
def test_a_relu_keeps_type_and_memory_format(law: Law, memory_format: torch.memory_format, dtype: torch.dtype) -> None:
    x = dense(memory_format, dtype)
    y = Compare(1, False).relu(x, law)
    assert y.dtype == dtype and y.stride() == x.stride()
    low, high = law.range
    inside = (x >= low) & (x < high)
    surely = law.draws * 2.0 ** (law.m - 16)
    assert torch.equal(y[inside & (x >= surely)], x[inside & (x >= surely)])
    assert not bool(y[inside & (x < 0)].any())
    small = inside & (x > 0) & (x < surely)
    assert bool((y[small] == 0).any()) and bool((y[small] == x[small]).any())
    if law.k == 17:  # the window is +-1: values beyond it are wrapped, and some negative ones pass
        assert bool((y[x < -1.2] > 0).any())
        assert bool((y.abs() <= 1 + 2.0**-5).all())


def test_both_draw_as_relu_does_and_empty_and_odd_tensors_pass() -> None:
    law, x = MaskedLaw(19, 12, 2), dense(torch.contiguous_format)
    y = Compare(7, False).relu(x, law)
    both, z = Compare(7, False).both(x, law)
    assert torch.equal(y, both) and torch.equal(y[y != 0], z[y != 0]) and not torch.equal(z, x)
    for odd in (torch.empty(0, 3), torch.randn(7).view(7, 1)[:, 0], torch.randn(6, 5).t(), torch.tensor(0.5)):
        assert Compare(1, False).relu(odd, law).shape == odd.shape
    bad = torch.tensor([float("nan"), 1.0])
    assert bool(Compare(1, False).relu(bad, law)[0].isnan())


def test_keys_depend_on_the_seed_and_the_number_of_the_call() -> None:
    law, x = MaskedLaw(20, 15, 2), torch.randn(4000)
    compare = Compare(3, False)
    calls = [compare.relu(x, law) for _ in range(3)]
    assert not torch.equal(calls[0], calls[1]) and not torch.equal(calls[1], calls[2])
    for seed in (3, 4):
        compare.restart(seed)
        again = [compare.relu(x, law) for _ in range(3)]
        fresh = Compare(seed, False)
        assert all(torch.equal(a, fresh.relu(x, law)) for a in again)
        assert all(torch.equal(a, b) for a, b in zip(again, calls, strict=True)) == (seed == 3)
    keys = [compare.draw() for compare in (Compare(seed, False) for seed in range(50)) for _ in range(50)]
    assert len(set(keys)) == 50 * 50 and max(keys) < 2**64
    free = Compare(None, False)
    torch.manual_seed(0)
    drawn_free = [free.draw(), free.draw()]
    torch.manual_seed(0)
    assert drawn_free == [Compare(None, False).draw(), free.draw()] and len(set(drawn_free)) == 2


def test_gradients_pass_where_values_passed() -> None:
    law = MaskedLaw(21, 16, 2)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = dense(memory_format).requires_grad_()
        y = Compare(1, False).relu(x, law)
        y.backward(torch.full_like(y, 2.0))
        assert torch.equal(x.grad, 2.0 * (y != 0))
        assert bool(((x > 0) & (y == 0)).any())


@pytest.mark.parametrize(
    "law", [MaskedLaw(21, 16, 2, q=14), MaskedLaw(21, 16, 3, q=14), GmwLaw(21, 15, 2, q=15)], ids=str
)
def test_gradients_pass_through_rounded_values(law: Law) -> None:
    """As if nothing were rounded: gmw gives 0 for some values that have passed, and for others a whole unit."""
    x = dense(torch.contiguous_format).requires_grad_()
    y, z = Compare(1, False).both(x, law)
    unit = 2.0 ** (law.q - 16)
    assert torch.equal(y, (y / unit).round() * unit) and torch.equal(z, (z / unit).round() * unit)
    if isinstance(law, GmwLaw):
        bare = Compare(1, False).relu(x, GmwLaw(law.k, law.m, law.parties))  # the same signs
        passed = (bare != 0).float()
        assert bool(((passed == 1) & (y == 0)).any())
    else:
        passed = (y != 0).float()
    for result, gradient in ((y + 3 * z, 3 + passed), (y, passed), (z, torch.ones_like(x))):
        assert torch.equal(torch.autograd.grad(result.sum(), x, retain_graph=True)[0], gradient)
    assert bool((passed == 1).any()) and bool((passed == 0).any())


@pytest.mark.parametrize("law", [MaskedLaw(21, 16, 2), MaskedLaw(17, 10, 2), GmwLaw(17, 10, 2)], ids=str)
def test_gradients_of_both_results(law: Law) -> None:
    """The window of the last two is +-1: gmw passes negative values from beyond it as they are."""
    x = dense(torch.contiguous_format).requires_grad_()
    y, z = Compare(1, False).both(x, law)
    passed = (y != 0).float()
    for result, gradient in ((y + 3 * z, 3 + passed), (y, passed), (z, torch.ones_like(x))):
        assert torch.equal(torch.autograd.grad(result.sum(), x, retain_graph=True)[0], gradient)
    assert bool((y < 0).any()) == (isinstance(law, GmwLaw))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("protocol", ["masked", "gmw"])
def test_clamping_keeps_training_inside_the_window(protocol: str, dtype: torch.dtype) -> None:
    net = nn.Sequential(nn.ReLU())
    twin = hummingbird.simulate(net, BitWindow(17, 8), protocol, seed=1, clamp=True)
    x = torch.tensor([-40.0, -1.5, -0.5, 0.5, 1.5, 40.0], dtype=dtype, requires_grad=True)
    y = twin.train()(x)
    y.sum().backward()
    y = y.detach()
    assert torch.equal(y[:3], torch.zeros(3, dtype=dtype)) and float(y[3]) == 0.5
    assert bool(((y[4:] > 0.98) & (y[4:] <= 1)).all())
    assert x.grad is not None and x.grad.tolist() == [0, 0, 0, 1, 0, 0]
    # 1.5 is -0.5 in a window of +-1: dropped; -1.5 is 0.5: it passes, lifted by "masked" and as it is by "gmw".
    out = twin.eval()(x).tolist()
    assert out[4] == 0 and out[1] == (0.5 if protocol == "masked" else -1.5)


def test_ranks_draw_the_keys_of_their_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes 0 to 3 of three keys each, one after the other; then pass 3 by a rank that has run pass 1 alone."""
    alone = Compare(5, False)
    keys = [[alone.draw() for _ in range(3)] for _ in range(4)]
    monkeypatch.setattr(ranks, "size", lambda: 2)
    one = Compare(5, False)
    go_to = one.passes(lambda: [one.draw() for _ in range(3)])
    for number in (1, 3):
        go_to(number)
        assert [one.draw() for _ in range(3)] == keys[number]


def test_what_shares_beyond_two_disturb_has_no_bias() -> None:
    """Two roundings of four parties with q = 2 add 0 to 6 units, less the 3 in the middle."""
    moved = _disturbed(torch.zeros(4096, dtype=torch.float64), MaskedLaw(8, 4, 4, q=2), 7) / UNIT
    assert sorted(set(moved.tolist())) == [-3, -2, -1, 0, 1, 2, 3]


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 24), (torch.float16, 11), (torch.float64, 53)])
def test_a_clamp_ends_at_the_number_inside(dtype: torch.dtype, bits: int) -> None:
    """The number next to 1 - 2^-53 in a narrow type is 1, which is beyond."""
    assert _inner(math.nextafter(1, 0), dtype) == 1 - 2.0**-bits == -_inner(-math.nextafter(1, 0), dtype)
