"""Programs that tests run as parties: `python -m tests.jobs.programs NAME [ARGUMENT ...]`.

Party 0 prints one line of JSON.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import hummingbird
from hummingbird import cost, ring
from hummingbird.bits import BitWindow
from hummingbird.channel.meter import Meter
from hummingbird.commands.party import run_party
from hummingbird.crypten import adapter
from hummingbird.crypten.run import DealerProvider
from hummingbird.errors import HummingbirdError, TrustError
from hummingbird.mpc.plan import microbatch as cutting
from hummingbird.mpc.session import launch
from hummingbird.mpc.session import session as sessions
from hummingbird.prg import Stream
from models import get_model
from scripts.tools.net_catalogue import NETS
from tests.support.operations import cases
from tests.support.patience import HANG


def unequal(m: Meter) -> list[str]:
    """Rows in which what was sent is not what was predicted, at this party."""
    return [
        f"{row.layer}: sent {row.bits_sent} in {row.rounds}, predicted {row.bits_predicted} in {row.rounds_predicted}"
        for row in m.rows.values()
        if (row.bits_sent, row.rounds) != (row.bits_predicted, row.rounds_predicted)
        or row.offline_bits != row.offline_bits_predicted
    ]


def answered(private: Any, x: torch.Tensor) -> torch.Tensor:
    """Share party 0's x, and open the result to it; every bit must be as predicted."""
    rank = sessions.current().rank
    with hummingbird.meter() as m:
        out = private(hummingbird.cryptensor(x if rank == 0 else None, src=0)).get_plain_text(dst=0)
    assert not (bad := unequal(m)), bad
    return out  # type: ignore[no-any-return]


def operations(weights: str, protocol: str, first: str, step: str) -> dict[str, Any]:
    """Operations, from the first one in steps, privately, against torch."""
    session = launch.init(timeout=HANG)
    owner: str | int = weights if weights == "public" else int(weights)
    results = {}
    for name, case in list(cases().items())[int(first) :: int(step)]:
        net = case.net.eval()
        private = hummingbird.convert_model(net, BitWindow(30, 0), owner, protocol)
        with hummingbird.meter() as m:
            shared = hummingbird.cryptensor(case.x if session.rank == 0 else None, src=0)
            out = private(shared).get_plain_text()
        bad = unequal(m)
        assert not bad, f"{name} at party {session.rank}: {bad}"
        if session.rank == 0:
            with torch.no_grad():
                expected = net(case.x)
            assert out.shape == expected.shape, f"{name}: shape {tuple(out.shape)}, expected {tuple(expected.shape)}"
            results[name] = (float((out - expected).abs().max()), case.bound)
    return results


def smooth(count: str, step: str) -> dict[str, Any]:
    """Smooth activations between linear layers under windows, against torch: a table's error times the last weights.

    count: of the windows. step: of the four activations, from the first one on.
    """
    session = launch.init(timeout=HANG)
    results = {}
    torch.manual_seed(2)
    x = torch.randn(300, 6)
    activations = torch.nn.Sigmoid(), torch.nn.Tanh(), torch.nn.SiLU(), torch.nn.GELU()
    windows = BitWindow(20, 12), BitWindow(24, 0), BitWindow(20, 10), BitWindow(18, 0), BitWindow(64, 0)
    for window in windows[: int(count)]:
        for activation in activations[:: int(step)]:
            net = torch.nn.Sequential(torch.nn.Linear(6, 5), activation, torch.nn.Linear(5, 3)).eval()
            with torch.no_grad():  # where a table ends with its window, values beyond it are noise
                images = x * min(1.0, 2.0 ** (window.k - 18) / float(net[0](x).abs().max()))
            private = hummingbird.convert_model(net, window, aim="latency")  # tables
            found = private.get_submodule("1").look_up(36)
            with hummingbird.meter() as m:
                shared = hummingbird.cryptensor(images if session.rank == 0 else None, src=0)
                out = private(shared).get_plain_text()
            name = f"{type(activation).__name__} {window}"
            assert not (bad := unequal(m)), f"{name} at party {session.rank}: {bad}"
            assert found.clamped == (window.k > 20) and (found.clamped or m.rows["1"].rounds == 1)
            with torch.no_grad():
                error = float((out - net(images)).abs().max())
                growth = float(net[2].weight.abs().sum(1).max())
            results[name] = (error, growth * found.table.error(session.parties) + 40 * 2.0**-16)
    return results


def _remains(shapes: set[tuple[int, ...]], known: list[torch.Tensor]) -> list[str]:
    """Real tensors of these shapes anywhere in this process's memory, except the known ones."""
    gc.collect()
    return [
        f"{type(thing).__name__} {tuple(thing.shape)}"
        for thing in gc.get_objects()
        if isinstance(thing, torch.Tensor) and thing.is_floating_point() and not thing.is_meta
        if tuple(thing.shape) in shapes and not any(thing is tensor for tensor in known)
    ]


def private_weights() -> list[dict[str, float]]:
    """One party's weights: the other's are ignored, both hold shares that look random, and no real weight remains."""
    launch.init(timeout=HANG)
    return [_weights_of(owner) for owner in range(2)]


def _weights_of(owner: int) -> dict[str, float]:
    session = sessions.current()

    def build(rank: int) -> torch.nn.Module:
        torch.manual_seed(100 + rank)
        conv, norm, linear = torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.Linear(20, 7)
        norm.running_var.uniform_(0.5, 2.0)
        return torch.nn.Sequential(conv, norm, torch.nn.PReLU(5, 0.3), torch.nn.Flatten(), linear).eval()

    net = build(session.rank)
    shapes = {(5, 3, 3, 3), (7, 20), (20, 7)}
    assert len(_remains(shapes, [])) == 2, "the search itself must find the caller's net"
    private = hummingbird.convert_model(net, BitWindow(30, 0), owner)
    mine = ring.encode(net[4].weight.t(), ring.WEIGHT_SCALE)
    del net
    assert not (found := _remains(shapes, [])), f"party {session.rank} still holds {found}"
    for name, buffer in private.named_buffers():
        share, (theirs,) = buffer, next(iter(session.channel.exchange(buffer).values()))
        # Uniform words: half of them are at least 2^62 in magnitude, a weight's code is below 2^24.
        large = int((share.abs() >= 2**40).sum())
        assert large == share.numel(), f"{name} at party {session.rank} is no share: {share.view(-1)[:3]}"
        if name == "4.weight.mask" and session.rank == owner:
            assert torch.equal(share + theirs + private.get_buffer("4.weight.difference"), mine)
            assert not torch.equal(share, mine)
        if name.endswith("difference"):
            assert torch.equal(share, theirs)
    torch.manual_seed(5)
    x = torch.randn(2, 3, 4, 4)
    with hummingbird.meter() as m:
        out = private(hummingbird.cryptensor(x if session.rank == 0 else None, src=0)).get_plain_text(dst=0)
    assert not (bad := unequal(m)), bad
    if session.rank:
        assert out is None or not out.numel() or not bool((out != 0).any()), "party 1 has learned the result"
        return {}
    with torch.no_grad():
        expected = build(owner)(x)
    # Two layers of at most 27 products, rounded factors below 4, the first one's error amplified by 20 weights of 1/4.
    return {"error": float((out - expected).abs().max()), "bound": (27 * 4 * 2.2 * 5 + 20 * 4) * 2.0**-16}


def fixed_weights() -> dict[str, Any]:
    """Weights of the last party over several batches, and a second net with the same weights in the same session."""
    session = launch.init(timeout=HANG)
    owner, exchanged = session.parties - 1, []
    exchange = session.channel.exchange

    def watched(*tensors: torch.Tensor) -> dict[int, list[torch.Tensor]]:
        exchanged.append([tuple(t.shape) for t in tensors])
        return exchange(*tensors)

    session.channel.exchange = watched  # type: ignore[method-assign]
    torch.manual_seed(7)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, padding=1),
        torch.nn.PReLU(6, 0.25),
        torch.nn.Conv2d(6, 6, 3, stride=2, groups=6),
        torch.nn.Hardtanh(-4.0, 4.0),
        torch.nn.BatchNorm2d(6),
        torch.nn.Flatten(),
        torch.nn.Linear(24, 5),
    ).eval()
    batches = [torch.randn(n, 3, 6, 6) for n in (2, 3, 2)]
    opened, errors, rows = [], [], []
    for _ in range(2):
        first = len(exchanged)
        with hummingbird.meter() as setup:
            private = hummingbird.convert_model(net, BitWindow(30, 0), owner)
        weights = [(6, 3, 3, 3), (6,), (6, 1, 3, 3), (6,), (24, 5)]
        assert exchanged[first:].count(weights) == 1 and len(exchanged) == first + 1
        planned = private.setup_cost(session.parties)
        rows.append([setup.rows["weights"].bits_sent, planned.bits, setup.rows["weights"].rounds, planned.rounds])
        for x in batches:
            shared = hummingbird.cryptensor(x if session.rank == 0 else None, src=0)
            with hummingbird.meter() as m:
                out = private(shared).get_plain_text()
            assert not (bad := unequal(m)), bad
            assert "weights" not in m.rows
            with torch.no_grad():
                errors.append(float((out - net(x)).abs().max()))
        # Only what has an activation's shape has crossed the wire since; a weight's shape occurs nowhere.
        assert not any(shape in weights for shapes in exchanged[first + 1 :] for shape in shapes)
        opened.append(torch.cat([module.difference.flatten() for module in private.fixed_weights]))
        keys = [module.key for module in private.fixed_weights]
        assert keys == list(range(5 * (len(opened) - 1), 5 * len(opened))), keys
    same = int((opened[0] == opened[1]).sum())
    words = torch.cat(opened)
    ones = [int((words >> bit & 1).sum()) for bit in range(64)]
    return {"errors": errors, "rows": rows, "same": same, "ones": ones, "words": words.numel()}


def crypten_functions(smooth: str) -> dict[str, Any]:
    """CrypTen's own functions on our tensors, communicator and provider: name -> (largest error, bound).

    smooth: "smooth" for its approximations too, "" without.
    """
    session = launch.init(timeout=HANG)
    parties, unit, results = session.parties, 2.0**-16, {}
    torch.manual_seed(3)
    x, y, image, kernel = torch.randn(6, 5) * 1.5, torch.randn(5, 4), torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    owner = parties - 1

    def shared(value: torch.Tensor, src: int = 0) -> Any:
        return hummingbird.cryptensor(value if session.rank == src else None, src=src)

    def check(name: str, got: Any, expected: torch.Tensor, bound: float) -> None:
        out = got.get_plain_text()
        assert out.shape == expected.shape, f"{name}: {tuple(out.shape)}"
        results[name] = (float((out - expected).abs().max()), bound)

    a, b, i, k = shared(x), shared(y, owner), shared(image), shared(kernel, owner)
    # A product: half a unit times each factor (below 5) per term, and a truncation to `parties` units.
    product = (5 + parties) * unit
    check("matmul, private weights", a @ b, x @ y, 5 * 5 * unit + parties * unit)
    check("matmul, public weights", a @ y, x @ y, 5 * 5 * unit + parties * unit)
    check("conv2d", i.conv2d(k, padding=1), F.conv2d(image, kernel, padding=1), 27 * 5 * unit + parties * unit)
    check("mul", a * shared(x, owner), x * x, product)
    check("square", a.square(), x.square(), product)
    check("relu", a.relu(), x.relu(), unit)  # a choice: the error is the input's rounding
    check("comparison", a > shared(x.flip(0), owner), (x > x.flip(0)).float(), 0.0)
    check("equality", a == shared(x.round(), owner), (x == x.round()).float(), 0.0)
    check("max_pool2d", i.max_pool2d(2), F.max_pool2d(image, 2), unit)
    check("argmax", a.argmax(1), F.one_hot(x.argmax(1), 5).float(), 0.0)
    check("max", a.max(dim=1)[0], x.max(1)[0], unit)
    # 1/9 is a division by an integer: a truncation.
    check("avg_pool2d", i.avg_pool2d(3), F.avg_pool2d(image, 3), (1 + parties) * unit)
    check("div by 3", a / 3, x / 3, (1 + parties) * unit)
    check("div by 2", a / 2, x / 2, (1 + parties) * unit)
    check(
        "div by integers", a.div(torch.tensor([2, 3, 4, 5, 7])), x / torch.tensor([2, 3, 4, 5, 7]), (1 + parties) * unit
    )
    check("sum, mean", a.sum(0).mean(), x.sum(0).mean(), (6 / 2 + 1 + parties) * unit)
    if smooth:
        # (1 + x/2^8)^(2^8): x^2/2^9 of the method; every squaring doubles a relative error that begins at `parties` + 1
        # units: 2^8 of them, and as many again from the squarings themselves.
        rounding = 2 * (1 + parties) * 2**8 * unit
        near = x.clamp(-3, 1.5)
        error = near.exp() * (near**2 / 2**9 * 1.1 + rounding)
        check("exp", shared(near).exp(), near.exp(), float(error.max()))
        # Newton's 3 steps from 3/4 on [1, 2] leave (1/2)^8 of 1/d; exp's error comes in with a slope of at most 1,
        # at |x|.
        bound = 2.0**-8 + float((torch.exp(-x.abs()) * (x**2 / 2**9 * 1.1 + rounding)).max()) + 20 * unit
        check("sigmoid", a.sigmoid(), x.sigmoid(), bound)
        half = shared(x / 2)
        check("tanh", half.tanh(), (x / 2).tanh(), 2 * bound)
        # exp errs relatively by 1.1 d^2/2^9 + rounding at distance d below the maximum: numerator and sum. Newton's ten
        # steps for 1/sum leave rounding only: one truncation each, well below 2^-9.
        d = x.max(1, keepdim=True)[0] - x
        weighted = x.softmax(1) * (d**2 / 2**9 * 1.1 + rounding)
        check(
            "softmax",
            a.softmax(1),
            x.softmax(1),
            float((weighted + x.softmax(1) * weighted.sum(1, keepdim=True)).max()) + 2.0**-9,
        )

    # Prices.
    for name, function, price in (
        ("relu", lambda: a.relu(), cost.crypten_relu(30, parties)),
        ("ltz", lambda: a._ltz(), cost.crypten_ltz(30, parties)),
        ("mul", lambda: a * a.clone(), cost.crypten_mul(30, parties)),
        ("square", lambda: a.square(), cost.crypten_square(30, parties)),
        ("open", lambda: a.get_plain_text(), cost.opening(parties, 240)),
    ):
        with hummingbird.meter() as m:
            function()
        sent = (m.total.rounds, m.total.bits_sent)
        assert sent == (price.rounds, price.bits), f"{name}: {sent}, predicted {price}"
        offline = m.total.offline_bits
        assert offline == price.offline_bits, f"{name}: {offline}, predicted {price}"

    # Opening to one party: the others get nothing and send what it costs.
    for dst in range(parties):
        with hummingbird.meter() as m:
            opened = a.get_plain_text(dst=dst)
        if session.rank == dst:
            assert float((opened - x).abs().max()) <= unit
        else:
            assert opened is None or not bool((opened != 0).any()), "a value opened to another party is known here"
        price = cost.to_one(parties, 240, session.rank != dst)
        assert (m.total.rounds, m.total.bits_sent) == (price.rounds, price.bits)
        assert not unequal(m)

    # Randomness: sums of zero, from our streams, different at every call and every party.
    crypten, arithmetic, binary = adapter.crypten, adapter.ArithmeticSharedTensor, adapter.BinarySharedTensor
    zero, again = arithmetic.PRZS((100,)).share, arithmetic.PRZS((100,)).share
    parts = [part[0] for part in session.channel.exchange(zero).values()]
    assert not bool(sum(parts, zero.clone()).any()) and bool(zero.all()) and not torch.equal(zero, again)
    assert parties < 3 or not torch.equal(parts[0], parts[1])
    bits = binary.PRZS((100,)).share
    total = bits.clone()
    for part in session.channel.exchange(bits).values():
        total ^= part[0]
    assert not bool(total.any()) and bool(bits.any())
    assert all(isinstance(crypten.generators[name]["cpu"], Stream) for name in ("prev", "next", "local"))
    before = torch.random.get_rng_state()
    arithmetic.PRSS((10,), device=None), adapter.MPCTensor.rand(4), crypten.cryptensor(x, src=0), a.relu()
    assert torch.equal(before, torch.random.get_rng_state()), "torch's generator was used"
    local = [part[0] for part in session.channel.exchange(arithmetic.PRSS((50,)).share).values()]
    assert all(int((part == other).sum()) == 0 for part in local for other in [arithmetic.PRSS((50,)).share])

    # Objects travel as JSON; what would need pickle is refused before anything is sent.
    communicator = adapter.PartyCommunicator.get()
    said = [3, [1.5, "x"], {"a": None}]
    assert communicator.broadcast_obj(said if session.rank == owner else None, owner) == said
    assert list(communicator.broadcast_obj(torch.Size([2, 3]) if session.rank == 0 else None, 0)) == [2, 3]
    for refused in (x, b"bytes", object()):
        try:
            communicator.broadcast_obj(refused, session.rank)
        except (TypeError, HummingbirdError):
            continue
        raise AssertionError(f"{type(refused)} was sent")
    assert communicator.get_world_size() == parties and communicator.get_rank() == session.rank
    gathered = communicator.all_gather(torch.tensor([session.rank]))
    assert [int(t) for t in gathered] == list(range(parties))
    some = communicator.gather(torch.tensor([session.rank]), dst=owner)
    assert session.rank != owner or [int(t) for t in some] == list(range(parties))
    communicator.barrier()

    # The provider in which party 0 knows everything cannot be reached.
    first_party = sys.modules["crypten.mpc.provider"].TrustedFirstParty()
    for call in (lambda: first_party.square((3,)), lambda: first_party.generate_additive_triple((3,), (3,), "mul")):
        try:
            call()
        except TrustError:
            continue
        raise AssertionError("the trusted first party answered")
    assert isinstance(crypten.mpc.get_default_provider(), DealerProvider)
    for start in (crypten.init, lambda: crypten.communicator.DistributedCommunicator.initialize(0, 1)):
        try:
            start()
        except HummingbirdError:
            continue
        assert adapter.PartyCommunicator.get() is communicator, "crypten.init() has replaced the communicator"
    check("after all that", a.relu(), x.relu(), (1 + parties) * unit)
    return results


def resnet(weights: str) -> dict[str, float]:
    """The paper's ResNet-18 on two random images: the largest error of a logit, and the largest logit."""
    session = launch.init(timeout=HANG)
    torch.manual_seed(0)
    net = get_model("resnet18", 10)
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        net.train()(x)  # batch-norm statistics
    private = hummingbird.convert_model(net.eval(), BitWindow(26, 0), weights if weights == "public" else int(weights))
    with hummingbird.meter() as m:
        shared = hummingbird.cryptensor(x if session.rank == 0 else None, src=0)
        logits = private(shared).get_plain_text(dst=0)
    assert not (bad := unequal(m)), bad
    if session.rank:
        return {}
    with torch.no_grad():
        plain = net(x)
    return {"error": float((logits - plain).abs().max()), "largest": float(plain.abs().max())}


def unet3d(weights: str, k: str, m: str) -> dict[str, float]:
    """A U-Net on a volume of 32 x 32 x 32: the largest error, the largest result, and the part of the classes kept."""
    session = launch.init(timeout=HANG)
    torch.manual_seed(0)
    net, x = NETS["unet3d"].make(), torch.randn(1, 1, 32, 32, 32)
    for norm in net.modules():
        norm.momentum = 1.0  # of a batch norm
    with torch.no_grad():
        net.train()(x)  # batch-norm statistics
        plain = net.eval()(x)
    owner = weights if weights == "public" else int(weights)
    logits = answered(hummingbird.convert_model(net, BitWindow(int(k), int(m)), owner), x)
    if session.rank:
        return {}
    kept = (logits.argmax(1) == plain.argmax(1)).float().mean()
    return {"error": float((logits - plain).abs().max()), "largest": float(plain.abs().max()), "kept": float(kept)}


def slices(weights: str) -> dict[str, float]:
    """Batches in slices of two images, twice: the second one is supplied ahead."""
    session = launch.init(timeout=HANG)
    torch.manual_seed(4)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 5),
    ).eval()
    private = hummingbird.convert_model(net, BitWindow(24, 0), weights if weights == "public" else int(weights))
    largest = max(step.elements for step in private.costs((2, 3, 6, 6), session.parties))
    cutting.SLICE_BYTES = largest * cutting.ELEMENT_BYTES
    x = torch.randn(7, 3, 6, 6)
    error, calls = 0.0, 0
    for _ in range(2):
        with hummingbird.meter() as m:
            shared = hummingbird.cryptensor(x if session.rank == 0 else None, src=0)
            out = private(shared).get_plain_text()
        assert not (bad := unequal(m)), bad
        with torch.no_grad():
            error, calls = max(error, float((out - net(x)).abs().max())), m.rows["1"].calls
    return {"error": error, "slices": calls}


JOBS: dict[str, Callable[..., Any]] = {
    "slices": slices,
    "resnet": resnet,
    "unet3d": unet3d,
    "operations": operations,
    "smooth": smooth,
    "private_weights": private_weights,
    "fixed_weights": fixed_weights,
    "crypten_functions": crypten_functions,
}


def main() -> None:
    torch.set_num_threads(1)
    result = JOBS[sys.argv[1]](*sys.argv[2:])
    if result is not None and sessions.current().rank == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    run_party(main)
