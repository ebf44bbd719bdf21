"""Windows and what they were found for: another net is refused, another protocol or number of parties is told."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird import convert, graph
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError
from hummingbird.hybrid.convert import make_plan
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session import session as sessions
from hummingbird.simulation.layers import traced
from hummingbird.simulation.observe import magnitudes
from hummingbird.simulation.simulate import InputRange
from models import get_model, load_checkpoint
from tests.support import parties
from tests.support.covering import every
from tests.support.paths import ROOT

IMAGES = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def small(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).eval()


NET, OTHER = small(0), small(1)  # the same names of layers


@functools.cache
def found_for(net: nn.Module, **more: Any) -> BitConfig:
    return hummingbird.Study(net, IMAGES, **more).search("10/64", margin=1.0)


def fingerprint(net: nn.Module) -> str:
    return graph.fingerprint(traced(net))


@pytest.fixture(autouse=True)
def _no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


class Read(nn.Module):
    """A layer's results times a number that forward() reads from a buffer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.net = small(seed)
        self.register_buffer("t", torch.tensor([0.3]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.net(x) * self.t.item())


@pytest.mark.slow
def test_windows_fit_a_net_whose_server_reads_its_weights() -> None:
    config = found_for(Read(0).eval(), cut=True)
    make_plan(Read(0).eval(), (4,), config)
    with pytest.raises(ConfigError, match="windows that were found for net"):
        make_plan(Read(1).eval(), (4,), config)


@pytest.mark.usefixtures("alone")
def test_windows_fit_a_net_whose_weights_are_private_and_read() -> None:
    """A search sees the number, and private weights hide it: it is one net all the same, and another is refused."""
    config = found_for(Read(0).eval())
    hummingbird.convert_model(Read(0).eval(), config, weights=0)
    with pytest.raises(ConfigError, match="windows that were found for net"):
        hummingbird.convert_model(Read(1).eval(), config, weights=0)


def test_windows_of_another_net_are_refused_by_both_names() -> None:
    config = found_for(NET)
    assert config.provenance["net"] == fingerprint(NET)
    hummingbird.convert_model(NET, config)
    hummingbird.simulate(NET, config)
    twin: Any = hummingbird.simulate(OTHER)
    for use in (
        lambda: hummingbird.convert_model(OTHER, config),
        lambda: hummingbird.simulate(OTHER, config),
        lambda: hummingbird.simulate(OTHER, config, mode="exact"),
        lambda: magnitudes(OTHER, IMAGES, config),
        lambda: twin.set_bits(config),
    ):
        with pytest.raises(ConfigError) as caught:
            use()
        assert fingerprint(NET)[:16] in caught.value.what and fingerprint(OTHER)[:16] in caught.value.what
        assert "load the weights that they were found for" in caught.value.hint


def test_a_config_without_provenance_is_taken_as_it_is() -> None:
    for config in (found_for(NET).windows, BitConfig(BitWindow(20, 12)), BitConfig(provenance={"how": "by hand"})):
        hummingbird.convert_model(OTHER, config, protocol="gmw")
        hummingbird.simulate(OTHER, config, "gmw", 3)


def test_another_protocol_or_number_of_parties_is_told_with_a_command() -> None:
    config = found_for(NET)
    for use, told in (
        (lambda: hummingbird.simulate(NET, config, "gmw"), "--protocol gmw --parties 2"),
        (lambda: hummingbird.simulate(NET, config, parties=3), "--protocol masked --parties 3"),
        (lambda: hummingbird.convert_model(NET, config, protocol="gmw"), "--protocol gmw "),
    ):
        with pytest.warns(UserWarning, match="found for protocol masked with 2 parties") as caught:
            use()
        assert "python -m hummingbird validate --bits FILE" in str(caught[0].message) and told in str(caught[0].message)
    own = found_for(NET, protocol="gmw", parties=3)
    hummingbird.simulate(NET, own, "gmw", 3)
    hummingbird.convert_model(NET, own, protocol="gmw")  # without parties nobody knows how many there will be


def as_party(count: int, rank: int, do: Callable[[], Any]) -> Any:
    """Run `do` as one party of `count` that never hears of the others."""
    opened = parties.sessions(count)
    try:
        with sessions.entered(opened[rank]):
            return do()
    finally:
        for session in opened:
            session.channel.close()


def test_the_parties_of_a_session_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    config = found_for(NET, parties=3)
    monkeypatch.setattr(PrivateNet, "set_up", lambda self: None)  # it would talk to the others
    as_party(3, 0, lambda: hummingbird.convert_model(NET, config))
    with pytest.warns(UserWarning, match="with 3 parties are used for masked with 2 parties"):
        as_party(2, 0, lambda: hummingbird.convert_model(NET, config))
    as_party(1, 0, lambda: hummingbird.convert_model(NET, config))  # who computes for themselves


def test_of_private_weights_their_owner_tells() -> None:
    """The others hold a net of the same architecture with any values."""
    config = found_for(NET)
    convert.build(OTHER, config, weights=1)  # before a session nobody knows who this is
    as_party(2, 0, lambda: convert.build(OTHER, config, weights=1))
    as_party(2, 1, lambda: convert.build(NET, config, weights=1))
    with pytest.raises(ConfigError, match="were found for net"):
        as_party(2, 1, lambda: convert.build(OTHER, config, weights=1))


def test_a_twin_may_be_trained_away_from_its_windows() -> None:
    net = copy.deepcopy(NET)
    config = found_for(net)
    twins = [hummingbird.simulate(net, config), hummingbird.simulate(net, config, mode="exact")]
    with torch.no_grad():
        net[0].weight.mul_(1.01)
    for twin in twins:
        assert twin(IMAGES).shape == (6, 3)


def test_inputs_beyond_the_range_are_told_once() -> None:
    config = BitConfig(BitWindow(24, 0), input_range=float(IMAGES.abs().max()))
    for mode in ("fast", "exact"):
        twin = hummingbird.simulate(NET, config, mode=mode)
        twin(IMAGES)
        twin(-IMAGES)
        with pytest.warns(UserWarning, match="beyond .* the range that the windows were made for"):
            twin(IMAGES * 1.01)
        twin(IMAGES * 2)
        with pytest.warns(UserWarning, match=r"inputs reach \|x\| = nan"):
            hummingbird.simulate(NET, config)(IMAGES.clone().fill_(float("nan")))
    seen = InputRange(1.001)  # 1 in bfloat16, as are inputs of 1.001
    seen.see(torch.full((2,), 1.001, dtype=torch.bfloat16))
    seen = InputRange(0.999)
    seen.see(torch.full((2,), -0.999, dtype=torch.bfloat16))


@pytest.mark.parametrize("windows", every(12, sorted(path.name for path in (ROOT / "checkpoints").glob("*.bits.json"))))
def test_shipped_windows_are_those_of_the_shipped_net(windows: str) -> None:
    """A change of `graph.trace` that changes fingerprints makes windows that people have found unusable."""
    config, stem = BitConfig.load(ROOT / "checkpoints" / windows), windows.removesuffix(".bits.json")
    weights = ROOT / "checkpoints" / f"{stem}.pt"
    if not weights.exists():
        weights = ROOT / "checkpoints" / f"{'-'.join(stem.split('-')[:2])}.pt"
    net = load_checkpoint(weights, get_model(config.provenance.get("model", stem), 10)).eval()
    assert config.provenance["net"] == fingerprint(net)
    assert config.input_range is not None
    if config.provenance.get("protocol") == "cut":
        make_plan(net, (1, 28, 28) if config.provenance["dataset"] == "mnist" else (3, 32, 32), config)
    else:
        hummingbird.convert_model(net, config)
