"""`hummingbird.serve`: a service from Python (the fifth tutorial runs it), and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

import hummingbird
from hummingbird.__main__ import main
from hummingbird.convert import build
from hummingbird.errors import ConfigError, EnvironmentProblem, TrustError
from hummingbird.mpc.session.session import entered
from tests.support.parties import sessions


def test_serve_needs_a_session() -> None:
    with pytest.raises(EnvironmentProblem, match="no session"):
        hummingbird.serve(build(nn.Sequential(nn.Linear(4, 2))), (4,), "127.0.0.1:9100")


def test_serve_refuses_one_party_and_other_hosts_without_certificates(tmp_path: Path) -> None:
    private = build(nn.Sequential(nn.Linear(4, 2)))
    with entered(sessions(1)[0]):
        with pytest.raises(ConfigError, match="one party hides nothing"):
            hummingbird.serve(private, (4,), f"unix:{tmp_path}/party")
        with pytest.raises(TrustError, match="plain text"):
            hummingbird.serve(private, (4,), "192.0.2.1:9100")


@pytest.mark.parametrize("option", ["--idle", "--conversations"])
def test_limits_on_conversations_are_refused_without_a_prompt(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "--model", "models:get_model", "digits", "10", "--input", "1x8x8", "--listen", "unix:x"]
    with pytest.raises(SystemExit) as ended:
        main([*words, option, "5"])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert f"only a service that generates text has conversations (at {option})\nhint: add --prompt" in said
