"""CrypTen's own functions on our communicator, randomness and dealer, between real parties and with one alone."""

from __future__ import annotations

import json
import sys

import pytest
import torch

import hummingbird
from hummingbird.crypten import adapter
from hummingbird.crypten.adapter import CrypTensor, communicator, crypten
from hummingbird.errors import EnvironmentProblem, TrustError
from hummingbird.mpc.session import session as sessions
from hummingbird.prg import Stream, derive
from tests.support.parties import init_alone, succeed

SEED = bytes(range(16))


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(("parties", "smooth"), [(2, ""), *(pytest.param(n, "smooth", marks=SLOW) for n in (2, 3))])
def test_functions_prices_randomness_and_trust(parties: int, smooth: str) -> None:
    """The program, with the bounds and where they come from, is in tests/jobs/programs.py."""
    ended = succeed(["-m", "tests.jobs.programs", "crypten_functions", smooth], parties)
    results = json.loads(ended[0].out.strip().splitlines()[-1])
    assert len(results) > (20 if smooth else 15)
    wrong = {name: pair for name, pair in results.items() if not pair[0] <= pair[1]}
    assert not wrong, f"error above bound: {wrong}"


def test_crypten_draws_from_our_streams(alone: sessions.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = {name: derive(SEED, name) for name in ("prev", "next", "local")}
    for name, seed in seeds.items():
        monkeypatch.setitem(adapter.crypten.generators, name, adapter._EveryDevice(Stream(seed)))
    share = adapter.ArithmeticSharedTensor.PRZS((3, 4)).share
    assert torch.equal(share, Stream(seeds["prev"]).words(3, 4) - Stream(seeds["next"]).words(3, 4))
    local = adapter.ArithmeticSharedTensor.PRSS((5,)).share
    stream = Stream(seeds["local"])
    assert torch.equal(local, stream.words(5))
    rng = sys.modules["crypten.common.rng"]
    assert torch.equal(rng.generate_kbit_random_tensor((7,), bitlength=5), stream.words(7) & 31)
    assert torch.equal(rng.generate_random_ring_element((7,), ring_size=2**10), stream.words(7) & 1023)
    assert torch.equal(rng.generate_random_ring_element(4, generator=Stream(SEED)), Stream(SEED).words(4))


def test_no_module_of_crypten_keeps_its_own_generators(alone: sessions.Session) -> None:
    ours = {adapter._ring_element, adapter._kbit}
    kept = {
        f"{name}.{attribute}"
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "crypten"
        for attribute in ("generate_random_ring_element", "generate_kbit_random_tensor")
        if getattr(module, attribute, None) not in {None, *ours}
    }
    assert not kept


def test_torchs_seed_changes_nothing(alone: sessions.Session) -> None:
    torch.manual_seed(0)
    first = adapter.ArithmeticSharedTensor.PRSS((20,)).share
    torch.manual_seed(0)
    second = adapter.ArithmeticSharedTensor.PRSS((20,)).share
    assert int((first == second).sum()) == 0


def test_zero_sharings_of_a_party_alone_are_zero(alone: sessions.Session) -> None:
    assert not bool(adapter.ArithmeticSharedTensor.PRZS((50,)).share.any())
    assert not bool(adapter.BinarySharedTensor.PRZS((50,)).share.any())


def test_functions_of_a_party_alone(alone: sessions.Session) -> None:
    x = torch.randn(40)
    shared = hummingbird.cryptensor(x)
    with hummingbird.meter() as m:
        assert float((shared.relu().get_plain_text() - x.relu()).abs().max()) < 3 * 2.0**-16
        assert torch.equal((shared > 0).get_plain_text(), (x > 0).float())
        assert shared.get_plain_text(dst=0).shape == (40,)
    assert (m.total.rounds, m.total.bits_sent) == (0, 0)


def test_scales_of_tensors(alone: sessions.Session) -> None:
    for scale in (0, 1, 16, 32, 48):
        tensor = adapter.from_share(torch.tensor([1 << scale, -(1 << scale)]), scale)
        assert adapter.scale_of(tensor) == scale
        assert tensor.get_plain_text().tolist() == [1.0, -1.0]


def test_the_first_party_is_not_trusted(alone: sessions.Session) -> None:
    provider = sys.modules["crypten.mpc.provider"].TrustedFirstParty()
    for name, arguments in {
        "generate_additive_triple": ((2,), (2,), "mul"),
        "square": ((2,),),
        "generate_binary_triple": ((2,), (2,)),
        "wrap_rng": ((2,),),
        "B2A_rng": ((2,),),
    }.items():
        with pytest.raises(TrustError, match="party 0 know every secret"):
            getattr(provider, name)(*arguments)


def test_crypten_cannot_be_started_behind_our_back(alone: sessions.Session) -> None:
    communicator = adapter.PartyCommunicator.get()
    with pytest.raises(EnvironmentProblem, match=r"hummingbird\.init\(\)"):
        adapter.PartyCommunicator.initialize()
    assert adapter.PartyCommunicator.get() is communicator


def test_validation_mode_which_opens_every_value_is_refused(
    alone: sessions.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = hummingbird.cryptensor(torch.tensor([3.0, 4.0]))
    opened: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(adapter.PartyCommunicator, "all_reduce", lambda *args, **kwargs: opened.append(args))
        patch.setattr(adapter.PartyCommunicator, "reduce", lambda *args, **kwargs: opened.append(args))
        with adapter.crypten.cfg.temp_override({"debug.validation_mode": True}):
            for use in (lambda: x + x, lambda: x.mul(x), lambda: x / 3, lambda: x.share, lambda: x.matmul(x)):
                with pytest.raises(TrustError, match="validation mode opens every value") as caught:
                    use()
                assert "set it to False" in caught.value.hint
            with pytest.raises(TrustError, match="validation mode"):
                x._tensor.div_(2)
            hummingbird.uninit()
            with pytest.raises(TrustError, match="validation mode"):
                hummingbird.init()
        assert not opened
    assert not sessions.is_initialized()


def test_reductions_that_are_no_sums_are_refused(alone: sessions.Session) -> None:
    communicator = adapter.PartyCommunicator.get()
    assert communicator is not None
    mine = torch.tensor([1, 2])
    with pytest.raises(EnvironmentProblem, match="not supported"):
        communicator.all_reduce(mine, op=torch.distributed.ReduceOp.MAX)


def test_the_seam_forgets_the_session() -> None:
    init_alone()
    hummingbird.uninit()
    assert adapter.PartyCommunicator.get() is None and not adapter.PartyCommunicator.is_initialized()


def test_a_type_of_the_callers_own_is_made_as_crypten_makes_it(alone: sessions.Session) -> None:
    @crypten.register_cryptensor("plain")
    class Plain(CrypTensor):
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

    try:
        made = crypten.cryptensor(torch.ones(2), cryptensor_type="plain")
        assert type(made) is Plain and crypten.get_cryptensor_type(made) == "plain"
    finally:
        del CrypTensor.__CRYPTENSOR_TYPES__["plain"]


def test_what_is_gathered_is_not_the_callers_tensor(alone: sessions.Session) -> None:
    """Writing into a result changes nothing that was sent."""
    x = torch.zeros(2, dtype=torch.int64)
    messages = communicator.get()
    for result in (messages.all_gather(x)[0], messages.gather(x, 0)[0], messages.scatter([x], 0)):
        result += 1
    assert not x.any()
