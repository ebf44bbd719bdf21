"""Every Triton kernel compiles down to machine code for the GPUs it is meant for, without one: as nets launch it.

The interpreter takes what the compiler does not: types that do not fit, constants that are none, wrong shapes. And a
thread's registers, or what it keeps in memory for want of them, decide a kernel's speed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

from tests.support.triton import Launch, Usage, compiled, launches

# Every kernel at some sizes.
SIZES = """
import sys
from scripts.bench.kernels import on
from scripts.bench.kernel_cases import cases

for n in map(int, sys.argv[1:]):
    for case in cases(n, META):
        if case.triton:
            case.run(*on(META, case.arguments))
"""
# A ReLU's kernels with operands of every form, and windows up to 64 bits.
FORMS = """
from hummingbird.kernels.streams import chacha20_key
from hummingbird.kernels.streams import Drawn
from hummingbird.kernels.gpu import shares
from hummingbird.kernels.shares.packing import Packed
from hummingbird.mpc.protocols.masked import MaskedOpening

n, key = 1000, chacha20_key(bytes(32), META)

def stored(size, dtype=torch.int64):
    return torch.empty(size, dtype=dtype, device=META)

def drawn(size, dtype):
    return Drawn(key, 1, (size,), dtype)

def packed(width):
    return Packed(stored((n * width + 7) // 8, torch.uint8), (n,), width)

for k, m, shift, ring in [(20, 12, 16, 36), (64, 58, 0, 64), (33, 25, 3, 60), (12, 10, 1, 40)]:
    narrow, plane, octets = torch.int32 if k <= 32 else torch.int64, (n + 7) // 8, torch.uint8
    for mask in (drawn(n, narrow), stored(n, narrow)):
        frame = shares.mask_words(stored(n), mask, shift, k)
    table = ((n << k - m) + 7) // 8
    for first in (False, True):
        for make in (drawn, stored):
            planes = make(plane, octets), make(plane, octets)
            opened, both = shares.compare_opened([frame] * 2, make(table, octets), *planes, n, k, m, first)
        for rest in ([packed(ring - k), packed(ring)] * 2, [drawn(n, narrow)] * 4, [stored(n)] * 4):
            shares.lift(opened, both, drawn(n, narrow), *rest, k, first)
            shares.lift(opened, both, stored(n), None, *rest[1:], k, first)
    for whole in (0, 1):
        request = MaskedOpening(n, k, m, 1 if k - m < 9 else 2, ring, whole)
        fields = [*request.free.values(), *request.derived.values()]
        left = [[drawn(*item.shape, item.dtype)] * (2 if place < 3 else 1) for place, item in enumerate(fields)]
        shares.deal_masks(left, n, k, m, ring, request.sizes, bool(whole))
"""
# A net at either of two parties, with the dealer that is the other end of its requests, by either aim.
NET = """
import sys, torchvision
import hummingbird, models
from hummingbird.mpc.dealer.client import LocalDealer
from hummingbird.mpc.plan.dry_run import _Silence
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared

NETS = {
    "resnet18": (lambda: models.get_model("resnet18", 10), (8, 3, 32, 32)),
    "resnet50": (torchvision.models.resnet50, (4, 3, 224, 224)),
    "vit": (lambda: torchvision.models.VisionTransformer(32, 4, 1, 3, 48, 96, num_classes=10), (8, 3, 32, 32)),
}
make, shape = NETS[sys.argv[1]]
for aim in ("latency", "throughput"):
    private = hummingbird.convert_model(make().eval(), hummingbird.BitWindow(20, 12), aim=aim)
    for party in (0, 1):
        dealer = LocalDealer(party, 2, [bytes([seed] * 32) for seed in (1, 2)], META)
        session = Session(party, 2, _Silence(party, 2), dealer, device=META)
        private.set_up(session)
        private.forward(session, Shared(torch.zeros(shape, dtype=torch.int64, device=META)))
"""
NETS = ("resnet18", "resnet50", "vit")
EVERY = {"streams:_blocks", "lookups:_children", "lookups:_leaves", "lookups:_sums", "shares:_deal_masks"}
EVERY |= {f"shares:_{name}" for name in ("mask_words", "open_words", "compare_opened", "lift")}
EVERY |= {"products:_cut", "products:_multiply", "polynomials:_evaluate_opened", "polynomials:_deal_polynomials"}
FAST = ("streams:_blocks", "shares:_open_words")
COUNTS = ("1", "1003", "4096")  # of elements


# Registers of a thread at most, to the next 8, by which they are given out, and bytes that it keeps in memory for want
# of them: for capability 8.0 and for 9.0, with Triton 3.9. The assembler for 9.0 keeps some in memory at 80 and at 168
# registers too, where one program more then fits a multiprocessor.
USAGE = {
    "streams:_blocks": {80: (32, 0), 90: (32, 0)},
    "lookups:_children": {80: (40, 0), 90: (32, 0)},
    "lookups:_leaves": {80: (40, 0), 90: (32, 0)},
    "lookups:_sums": {80: (232, 0), 90: (200, 0)},
    "shares:_deal_masks": {80: (232, 0), 90: (232, 24)},
    "shares:_mask_words": {80: (96, 0), 90: (112, 32)},
    "shares:_open_words": {80: (80, 0), 90: (80, 0)},
    "shares:_compare_opened": {80: (232, 0), 90: (192, 0)},
    "shares:_lift": {80: (255, 0), 90: (255, 0)},
    "polynomials:_evaluate_opened": {80: (120, 0), 90: (120, 0)},
    "polynomials:_deal_polynomials": {80: (224, 0), 90: (216, 0)},
    "products:_cut": {80: (40, 0), 90: (40, 0)},
    "products:_multiply": {80: (248, 0), 90: (248, 0)},
    "products:_multiply UNIT=8": {80: (255, 24), 90: (232, 0)},
}
SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes that a program may have, of which a multiprocessor has as many


def check(launched: Iterable[Launch], capability: int) -> None:
    """Compile, and compare with the table. A kernel that lacks the form of an operand is an error, and found."""
    launched = [launch for launch in launched if launch.capability in (None, capability)]
    wrong = next(launch for launch in launches(SIZES, *COUNTS) if launch.function == "shares:_lift")
    forms = list(wrong.types).index("FORMS")
    wrong = wrong._replace(constants=wrong.constants | {(forms,): wrong.constants[(forms,)][:4]})
    *usages, error = compiled([*launched, wrong], capability)
    assert isinstance(error, str) and ("IndexError" in error or "CompilationError" in error)
    beyond = []
    for launch, usage in zip(launched, usages, strict=True):
        assert isinstance(usage, Usage), f"{launch}: {usage}"
        print(f"{capability} {usage.registers} {usage.stack} {usage.shared} {launch}")
        rows = [row for row in USAGE if set(row.split()) <= set(str(launch).split())]
        registers, stack = USAGE[max(rows, key=len)][capability]
        if usage.registers > registers or usage.stack > stack or usage.shared > SHARED[capability]:
            beyond.append(f"{launch}: {usage}, and the table has {registers} registers and {stack} bytes")
    assert not beyond


def last(capability: int) -> dict[str, Launch]:
    """Every kernel's last launch, by its name."""
    found = {one.function: one for one in launches(SIZES, *COUNTS) if one.capability in (None, capability)}
    assert set(found) == EVERY == {row.split()[0] for row in USAGE}
    return found


def test_kernels_that_compile_fast_do() -> None:
    """And a kernel that lacks the form of an operand does not."""
    found = last(90)
    check([found[name] for name in FAST], 90)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_every_kernel_compiles(capability: int) -> None:
    check(last(capability).values(), capability)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_every_form_compiles(capability: int) -> None:
    check(launches(FORMS), capability)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("net", NETS)
def test_all_that_a_net_launches_compiles(net: str, capability: int) -> None:
    check(launches(NET, net), capability)


def test_dealt_polynomials_are_rounded_as_on_a_cpu() -> None:
    """Their products are not fused with sums, which would give other integers at some masks."""
    assert {name: launch.fused for name, launch in last(90).items() if "polynomials" in name} == {
        "polynomials:_deal_polynomials": False,
        "polynomials:_evaluate_opened": True,
    }


# What is compiled anew ------------------------------------------------------------------------------------------------


def test_no_size_has_a_kernel_compiled_anew() -> None:
    """Numbers of elements, here 1, 1003 and 4096, and of blocks are no part of what is compiled.

    Triton would keep apart 1, multiples of 16, and other numbers.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for launch in launches(SIZES, *COUNTS):
        if launch.function != "products:_cut":  # a layer's shape decides how wide its loads are
            found[str(launch)].add(f"{launch.types} {launch.attributes}")
    assert {name.split()[0] for name in found} == EVERY - {"products:_cut"}
    assert {name: len(several) for name, several in found.items() if len(several) > 1} == {}
