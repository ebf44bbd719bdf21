"""A party's options on the command line: where lanes, certificates and names come from."""

from __future__ import annotations

import argparse

import pytest

from hummingbird.commands.party import add_session_arguments, run_party, session_options
from hummingbird.errors import ConfigError, InputError
from hummingbird.mpc.session import launch


@pytest.fixture
def rank_3(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """torchrun's variables for rank 3 of 4, in a process that has not called `init`."""
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HUMMINGBIRD_LANES", raising=False)
    monkeypatch.setattr(launch._run, "here", None)
    return monkeypatch


def options(*words: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_session_arguments(parser)
    return session_options(parser.parse_args(words))


def test_certificates_are_the_party_s_in_every_lane(rank_3: pytest.MonkeyPatch) -> None:
    files = [word for kind in ("cert", "key", "ca") for word in (f"--tls-{kind}", f"{{rank}}.{kind}")]
    for lanes, party in ((1, 3), (2, 1), (4, 0)):
        found = options(*files, "--lanes", f"{lanes}")
        tls = found["tls"]
        assert found["lanes"] == lanes and str(tls.cert) == f"{party}.cert" and str(tls.key) == f"{party}.key"  # type: ignore[attr-defined]
    assert options()["lanes"] is None
    with pytest.raises(ConfigError, match="lanes=0"):
        options("--lanes", "0")


@pytest.mark.parametrize("lanes, name", [("1", "party 3"), ("2", "party 1, lane 1"), ("x", "rank 3")])
def test_an_error_names_party_and_lane(
    rank_3: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lanes: str, name: str
) -> None:
    """Before `init`, too."""
    rank_3.setenv("HUMMINGBIRD_LANES", lanes)

    def main() -> None:
        raise InputError("no paper", hint="buy some")

    with pytest.raises(SystemExit):
        run_party(main)
    assert capsys.readouterr().err == f"[{name}] error: no paper\nhint: buy some\n"
