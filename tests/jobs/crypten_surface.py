"""Programs that tests run as parties, on CrypTen's public surface: `python -m tests.jobs.crypten_surface NAME`."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hummingbird
from hummingbird.commands.party import run_party
from hummingbird.crypten import adapter
from hummingbird.crypten.adapter import BinarySharedTensor, MPCTensor, cfg, crypten, ptype
from hummingbird.errors import ConfigError, EnvironmentProblem, HummingbirdError, InputError, TrustError
from hummingbird.mpc.session import launch
from hummingbird.mpc.session import session as sessions
from tests.support import crypten_nets
from tests.support.chance import DEVIATIONS
from tests.support.crypten_cases import UNIT, X, Y
from tests.support.crypten_curves import cases
from tests.support.patience import HANG

# The reference itself is float32: 2^-24 of rounding, and a few of those in a sum.
FLOAT = 2.0**-21


def table() -> dict[str, tuple[float, float]]:
    """Every function of tests/support/crypten_cases.py: its error beside its bound."""
    session, results = launch.init(timeout=HANG), {}
    for name, case in cases().items():
        shared = [
            hummingbird.cryptensor(x if session.rank == i % session.parties else None, i % session.parties, 2.0**30)
            for i, x in enumerate(case.inputs)
        ]
        try:
            out, expected = case.private(*shared).get_plain_text(), case.plain(*(x.clone() for x in case.inputs))
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        assert out.shape == expected.shape, f"{name}: {tuple(out.shape)}, expected {tuple(expected.shape)}"
        results[name] = (float((out - expected).abs().max()), case.bound + FLOAT * float(expected.abs().max()))
    return results


def nets() -> dict[str, tuple[float, float]]:
    """Every module and loss of tests/support/crypten_nets.py, and training."""
    session = launch.init(timeout=HANG)
    parts = (crypten_nets.modules, crypten_nets.losses, crypten_nets.training)
    found = {}
    for name, error, bound in (item for part in parts for item in part(session.rank, session.parties)):
        found[name] = max(found.get(name, (0.0, bound)), (error, bound))
    return found


def binary() -> list[str]:
    """Xor-shared words against Python's integers; the names of what differs."""
    session = launch.init(timeout=HANG)
    words = torch.tensor([[0, 1, -1, 2**63 - 1], [-(2**63), 12345678901, -77, 2**40]])
    others = torch.tensor([[5, -1, -1, -(2**63)], [2**63 - 1, 12345678901, 77, -3]])
    row = torch.tensor([3, -4, 0, 2**62])

    def shared(x: Tensor, src: int) -> Any:
        return BinarySharedTensor(x if session.rank == src else torch.zeros_like(x), src=src)

    a, b, c = shared(words, 0), shared(others, session.parties - 1), shared(row, 0)
    choice = shared(torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0]]), 0)
    changed = a.clone()
    changed[1] = c
    checks: dict[str, tuple[Any, Tensor]] = {
        "xor": (a ^ b, words ^ others),
        "and": (a & b, words & others),
        "or": (a | b, words | others),
        "not": (~a, ~words),
        "xor public": (a ^ others, words ^ others),
        "and public": (a & others, words & others),
        "or public": (a | others, words | others),
        "xor row": (a ^ c, words ^ row),
        "and row": (a & c, words & row),
        "and one": (a & c[:1], words & row[:1]),
        "and expanded": (c[:1].clone() & c, row[:1] & row),
        "left": (a << 3, words << 3),
        "right": (a >> 3, words >> 3),
        "add": (a + b, words + others),
        "sum": (a.sum(0), words.sum(0)),
        "sum of three": (BinarySharedTensor.stack([a, b, a]).sum(0), words + others + words),
        "eq": (a.eq(b), (words == others).long()),
        "ne": (a.ne(b), (words != others).long()),
        "lt": (a < b, (words < others).long()),
        "le": (a <= b, (words <= others).long()),
        "gt": (a > b, (words > others).long()),
        "ge": (a >= b, (words >= others).long()),
        "where": (a.where(choice, b), torch.where(torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0]]) == 1, words, others)),
        "where public": (a.where(words > 0, b), torch.where(words > 0, words, others)),
        "cat": (BinarySharedTensor.cat([a, b]), torch.cat([words, others])),
        "setitem": (changed, torch.stack([words[0], row])),
        "t": (a.t(), words.t()),
        "unbind": (a.unbind(1)[1], words[:, 1]),
        "index": (a[:, 2], words[:, 2]),
    }
    wrong = [name for name, (out, expected) in checks.items() if not torch.equal(out.reveal(), expected)]
    # To xor shares and back; then with as many bits of fraction as asked for.
    x = hummingbird.cryptensor(X if session.rank == 0 else None)
    for name, back in {
        "conversion": x.to(ptype.binary).to(ptype.arithmetic),
        "conversion at 20 bits": x.to(ptype.binary).to(ptype.arithmetic, precision=20),
        "fine": adapter.from_share(x.share << 16, 32).to(ptype.binary).to(ptype.arithmetic),
        "shared bits": MPCTensor(X.round() * (session.rank == 0), ptype=ptype.binary).to(ptype.arithmetic),
    }.items():
        if not torch.equal(back.get_plain_text(), X.round() if name == "shared bits" else X):
            wrong.append(name)
    # Comparisons and products of tensors whose fraction has another length.
    y = hummingbird.cryptensor(Y if session.rank == 0 else None)
    for scale in (17, 20, 24, 32):
        fine = adapter.from_share(x.share << (scale - 16), scale)
        for name, out, expected in (
            ("gt", fine > y, (X > Y).float()),
            ("lt", y < fine, (Y < X).float()),
            ("eq", fine == x, torch.ones_like(X)),
            ("sum", fine + y, X + Y),
            ("product", fine * y if scale < 30 else fine, X * Y if scale < 30 else X),
            ("relu", fine.relu(), X.relu()),
        ):
            if float((out.get_plain_text() - expected).abs().max()) > 2 * UNIT:
                wrong.append(f"{name} at scale {scale}")
    return wrong


def _expect(kind: type[Exception], text: str, call: Callable[[], Any]) -> str | None:
    """A description of the fault in this refusal, or None."""
    try:
        call()
    except kind as error:
        return None if text in str(error) else f"says {error}"
    except Exception as error:  # noqa: BLE001 - reported
        return f"{type(error).__name__}: {error}"
    return "not refused"


def _refused(
    x: Any, words: Any, rank: int, parties: int, folder: Path
) -> Iterator[tuple[str, type[HummingbirdError], str, Any]]:
    """name, error, a part of its text, call; every party calls, and nothing is sent."""
    communicator = adapter.PartyCommunicator.get()
    assert communicator is not None
    statistics, hint = "statistics are not kept", "hummingbird.convert_model"
    yield "print stats", EnvironmentProblem, statistics, crypten.print_communication_stats
    yield "reset stats", EnvironmentProblem, statistics, crypten.reset_communication_stats
    yield "stats", EnvironmentProblem, "hummingbird.meter()", communicator.get_communication_stats
    yield "manual_seed", TrustError, "predictable", lambda: crypten.manual_seed(1, 2, 3)
    yield "save", EnvironmentProblem, "pickle", lambda: crypten.save(x, folder / "x")
    yield "load", EnvironmentProblem, "pickle", lambda: crypten.load(folder / "x")
    yield "load a net", EnvironmentProblem, hint, lambda: crypten.load_from_party("f", model_class=torch.nn.Linear)
    yield "load a file", EnvironmentProblem, "weights_only", lambda: crypten.load_from_party(str(folder / "x"))
    if adapter.SHIMMED:
        yield "from_pytorch", EnvironmentProblem, hint, lambda: crypten.nn.from_pytorch(torch.nn.ReLU(), X)
        yield "from_onnx", EnvironmentProblem, hint, lambda: crypten.nn.from_onnx("net.onnx")
    yield "init_thread", EnvironmentProblem, "hummingbird.init()", lambda: crypten.init_thread(0, 2)
    yield "uninit", EnvironmentProblem, "hummingbird.uninit()", crypten.uninit
    yield "trace", EnvironmentProblem, "deal", crypten.trace
    yield "trace_once", EnvironmentProblem, "deal", crypten.trace_once
    yield "fill_cache", EnvironmentProblem, "deal", crypten.fill_cache
    yield "third party", EnvironmentProblem, "dealer", communicator.get_ttp_rank
    yield "object", InputError, "pickle", lambda: communicator.broadcast_obj(X, rank)
    yield "object's keys", InputError, "keys", lambda: communicator.broadcast_obj({1: "a"}, rank)
    yield "object's length", InputError, "too long", lambda: communicator.broadcast_obj("x" * 2**20, rank)
    yield "object sent", InputError, "pickle", lambda: communicator.send_obj(b"x", (rank + 1) % parties)
    yield "maximum", EnvironmentProblem, "SUM", lambda: communicator.all_reduce(X, op=torch.distributed.ReduceOp.MAX)
    for wrong in (parties, -1, None, "0"):
        yield f"dst={wrong}", InputError, "names no", lambda w=wrong: communicator.reduce(X, w)
        yield f"gather to {wrong}", InputError, "names no", lambda w=wrong: communicator.gather(X, w)
        yield f"broadcast of {wrong}", InputError, "names no", lambda w=wrong: communicator.broadcast(X, w)
        yield f"object of {wrong}", InputError, "names no", lambda w=wrong: communicator.broadcast_obj(1, w)
        yield f"scatter of {wrong}", InputError, "names no", lambda w=wrong: communicator.scatter([X] * parties, w)
        yield f"send to {wrong}", InputError, "names no", lambda w=wrong: communicator.send(X, w)
        yield f"recv of {wrong}", InputError, "names no", lambda w=wrong: communicator.recv(X, w)
    yield "opening", InputError, f"dst={parties}", lambda: x.get_plain_text(dst=parties)
    yield "send to itself", InputError, "names no other", lambda: communicator.send(X, rank)
    yield "scatter of nothing", InputError, "one tensor for each", lambda: communicator.scatter(None, rank)
    for name, value in (("NaN", float("nan")), ("infinity", float("inf")), ("2^31", 2.0**31)):
        for kind, y in (("number", value), ("tensor", torch.full((5,), value))):
            yield f"add {kind} {name}", InputError, "", lambda y=y: x + y
            if name != "2^31":
                yield f"mul {kind} {name}", InputError, "", lambda y=y: x * y
                yield f"div {kind} {name}", InputError, "", lambda y=y: x / y
        yield f"share {name}", InputError, "", lambda v=value: crypten.cryptensor(torch.tensor([v]))
    yield "half a bit", InputError, "whole numbers", lambda: MPCTensor(torch.tensor([0.5]), ptype=ptype.binary)
    yield "divide by 0", InputError, "zero", lambda: x / 0
    yield "divide by zeros", InputError, "zero", lambda: x / torch.tensor([1.0, 0, 1, 1, 1])
    yield "root", InputError, "whole exponent", lambda: x.pow(0.5)
    yield "variance of one", InputError, "not defined", lambda: x[:1].var(0)
    yield "reflection", InputError, "not supported", lambda: x.pad((1, 1), mode="reflect")
    yield "torch's", InputError, "own methods", lambda: torch.relu(x)
    yield "torch's matmul", InputError, "own methods", lambda: X.t() @ x
    yield "add text", InputError, "number", lambda: x + "1"
    yield "fewer bits", InputError, "do not fit", lambda: words.to(ptype.arithmetic, precision=8)


_SETTINGS = {
    "mpc.provider": "TTP",
    "mpc.protocol": "replicated",
    "mpc.active_security": True,
    "debug.debug_mode": True,
    "encoder.precision_bits": 12,
}


def refusals() -> dict[str, str]:
    """Calls that are not refused as they should be; the session goes on after each."""
    session, wrong = launch.init(timeout=HANG), {}
    x = hummingbird.cryptensor(X if session.rank == 0 else None)
    words = x.to(ptype.binary)
    with tempfile.TemporaryDirectory() as folder, hummingbird.meter() as m:
        for name, kind, text, call in _refused(x, words, session.rank, session.parties, Path(folder)):
            if complaint := _expect(kind, text, call):
                wrong[name] = complaint
            if m.total.bits_sent:
                wrong.setdefault(name, "something was sent before")
                break
    assert "MPCTensor(shape=(4, 5), scale=65536" in repr(x)
    for name, value in _SETTINGS.items():
        with cfg.temp_override({name: value}):
            for operation, call in {
                "mul": lambda: x * x,
                "square": lambda: x.square(),
                "clone": lambda: x.clone(),
            }.items():
                if (operation == "clone") == (name == "encoder.precision_bits"):
                    if complaint := _expect(ConfigError, name, call):
                        wrong[f"{name}, {operation}"] = complaint
    assert torch.equal(x.get_plain_text(), X), "the session is out of step"
    return wrong


def communication(normal: str) -> list[str]:
    """CrypTen's communicator, its files, and what is made of random numbers.

    normal: "normal" for normal ones too, which take more than half of all time, "" without.
    """
    session, wrong = launch.init(timeout=HANG), []
    rank, parties = session.rank, session.parties
    communicator = adapter.PartyCommunicator.get()
    assert communicator is not None

    def check(name: str, right: bool) -> None:
        if not right:
            wrong.append(f"{name} at party {rank}")

    for dtype in (torch.int64, torch.float32, torch.uint8):
        mine = torch.arange(6).view(2, 3).to(dtype) + rank
        each = [torch.arange(6).view(2, 3).to(dtype) + r for r in range(parties)]
        total = sum(each[1:], each[0].clone())
        for shape in ("whole", "transposed", "expanded", "one", "0-d"):
            view = {
                "whole": lambda t: t,
                "transposed": lambda t: t.t(),
                "expanded": lambda t: t[:1, :1].expand(3, 4),
                "one": lambda t: t[:, 1:2][:1],
                "0-d": lambda t: t[0, 1],
            }[shape]
            name = f"{dtype} {shape}"
            check(f"all_reduce {name}", torch.equal(communicator.all_reduce(view(mine)), view(total)))
            check(f"all_gather {name}", all(map(torch.equal, communicator.all_gather(view(mine)), map(view, each))))
            for peer in range(parties):
                at = rank == peer
                reduced, gathered = communicator.reduce(view(mine), peer), communicator.gather(view(mine), peer)
                check(f"reduce {name}", torch.equal(reduced, view(total)) if at else reduced is None)
                check(f"gather {name}", all(map(torch.equal, gathered, map(view, each))) if at else gathered == [None])
                given = view(mine).clone()
                same = communicator.broadcast(given, peer)
                check(f"broadcast {name}", torch.equal(given, view(each[peer])) and same is given)
                parts = [view(each[0]) + r for r in range(parties)]
                part = communicator.scatter(parts if at else [torch.zeros_like(parts[0])] * parties, peer)
                check(f"scatter {name}", torch.equal(part, parts[rank]))
                if dtype == torch.int64:
                    part = communicator.scatter(parts if at else None, peer, size=parts[0].shape)
                    check(f"scatter by size {name}", torch.equal(part, parts[rank]))
            if parties > 1:
                following, before = (rank + 1) % parties, (rank - 1) % parties
                waiting = torch.empty_like(view(mine).contiguous())
                request = communicator.irecv(waiting, before)  # both may ask before either sends
                communicator.isend(view(mine), following).wait()
                request.wait()
                check(f"isend {name}", torch.equal(waiting, view(each[before])))
                communicator.send(view(mine), following)
                check(
                    f"recv {name}",
                    torch.equal(communicator.recv(torch.empty_like(view(mine)), before), view(each[before])),
                )
    for thing in (0, 1.5, None, "text", [1, [2, "x"]], {"a": {"b": [None, True]}}, []):
        for src in range(parties):
            check(f"object {thing}", communicator.broadcast_obj(thing if rank == src else None, src) == thing)
        if parties > 1:
            communicator.send_obj(thing, (rank + 1) % parties)
            check(f"object sent {thing}", communicator.recv_obj((rank - 1) % parties) == thing)
    communicator.barrier()
    communicator.set_name("somebody")
    check("name", communicator.get_name() == "somebody" and communicator.get_distributed_backend() == "hummingbird")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        crypten.print("one line", dst=0)
        crypten.print("every party's", in_order=True)
        crypten.log("nothing", dst=0)
    check("print", said.getvalue() == ("one line\n" if rank == 0 else "") + "every party's\n")
    last = parties - 1
    held = crypten.load_from_party(preloaded=Y if rank == 0 else None, src=0)
    check("preloaded", torch.equal(held.get_plain_text(), Y))
    check("cryptensor", torch.equal(crypten.cryptensor(X * (rank == last), src=last).get_plain_text(), X))
    sized = crypten.cryptensor(X if rank == 0 else torch.zeros(0), src=0, broadcast_size=True)
    check("broadcast_size", torch.equal(sized.get_plain_text(), X))
    _random(check)
    if normal:
        drawn = crypten.randn(4000).get_plain_text()
        check("randn", abs(float(drawn.mean())) < DEVIATIONS / 4000**0.5 and abs(float(drawn.std()) - 1) < 0.1)
    return wrong


def _random(check: Callable[[str, bool], None]) -> None:
    """Moments within what chance allows, and masks that all parties share."""
    count = 4000
    uniform = crypten.rand(count).get_plain_text()
    check("rand", bool((uniform >= 0).all() and (uniform < 1).all()))
    check("rand's mean", abs(float(uniform.mean()) - 0.5) < DEVIATIONS * (1 / 12 / count) ** 0.5)
    chances = crypten.cryptensor(torch.full((count,), 0.25))
    for name, drawn in (("bernoulli", chances.bernoulli()), ("crypten.bernoulli", crypten.bernoulli(chances))):
        values = drawn.get_plain_text()
        check(name, set(values.unique().tolist()) == {0, 1})
        check(f"{name}'s mean", abs(float(values.float().mean()) - 0.25) < DEVIATIONS * (3 / 16 / count) ** 0.5)
    ones = crypten.cryptensor(torch.ones(100, 40))
    for name, dropped in (("dropout", ones.dropout(0.25)), ("Dropout", crypten.nn.Dropout(0.25).encrypt()(ones))):
        values = dropped.get_plain_text()
        kept = values > 0.5
        check(name, float((values[kept] - 4 / 3).abs().max()) < 2 * UNIT and not bool(values[~kept].any()))
        check(f"{name}'s share", abs(float(kept.float().mean()) - 0.75) < DEVIATIONS * (3 / 16 / count) ** 0.5)
    channels = crypten.nn.Dropout2d(0.5).encrypt()(crypten.cryptensor(torch.ones(20, 10, 3, 3))).get_plain_text()
    check("Dropout2d", bool((channels == channels[:, :, :1, :1]).all()) and len(channels.unique()) == 2)
    drawn = crypten.cryptensor(torch.tensor([[0.0, 1, 0], [2, 0, 0]])).weighted_index(1).get_plain_text()
    check("weighted_index", drawn.tolist() == [[0, 1, 0], [1, 0, 0]])
    ties = crypten.cryptensor(torch.ones(200, 2)).argmax(1).get_plain_text()
    check("ties", bool((ties.sum(1) == 1).all()) and 40 < int(ties[:, 0].sum()) < 160)
    check("a seed of torch's changes nothing", not torch.equal(*(_seeded() for _ in range(2))))


def _seeded() -> Tensor:
    torch.manual_seed(5)
    return crypten.rand(50).get_plain_text()


def unequal() -> str:
    """The parties share tensors of different shapes by CrypTen's own function."""
    session = launch.init(timeout=HANG)
    try:
        crypten.cryptensor(torch.zeros(3 + session.rank), src=0)
    except HummingbirdError as error:
        return str(error)
    return ""


JOBS: dict[str, Callable[..., Any]] = {
    "table": table,
    "nets": nets,
    "binary": binary,
    "refusals": refusals,
    "communication": communication,
    "unequal": unequal,
}


def main() -> None:
    torch.set_num_threads(1)
    result = JOBS[sys.argv[1]](*sys.argv[2:])
    if sessions.current().rank == 0:
        print(json.dumps(result))
    elif sys.argv[1] in ("binary", "refusals", "communication"):
        assert not result, result


if __name__ == "__main__":
    run_party(main)
