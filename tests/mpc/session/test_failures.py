"""Every failure is one clear error at every living party, with a code that is not 0; none hangs.

Here parties that all live: they differ, give bad input, raise exceptions, or are started with wrong arguments. Those
that die are in test_deaths.py. Real processes over real sockets, with a real dealer.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from models import get_model
from tests.jobs.failures import BAD_INPUTS, DIGITS, FAILURES, SECRET, net, rows
from tests.support import python
from tests.support.covering import every
from tests.support.nursery import Nursery
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM

# Living parties ------------------------------------------------------------------------------------------------------

Seen = list[dict[str, tuple[str, str, float]]]


@pytest.fixture(scope="module", params=every(2, [2, 3]))
def seen(request: pytest.FixtureRequest, nursery: Nursery, dealer: str) -> Seen:
    """Every failure of `FAILURES`, one after the other, as each party sees it: class, text, seconds."""
    parties = nursery.start(["failures", *FAILURES], request.param, DEALER=dealer)
    for party in parties:
        code = party.wait()
        assert code == 0, party.err.read_text()
    out = [json.loads(party.out.read_text()) for party in parties]
    for name in FAILURES:
        print(f"MEASURED {name}, {len(out)} parties: {', '.join(f'{one[name][2]:.3f}' for one in out)} s")
    return out


DIFFERENCES = {
    "weights": "disagree on net: ",
    "architecture": "disagree on architecture: ",
    "bits": "disagree on bits: ",
    "bits of a layer": "disagree on bits: ",
    "aim": "disagree on aim: ",
    "owner": "disagree on weights: ",
    "owner or public": "on weights: ",
    "version": "disagree on hummingbird version: ",
    "other operation": "at different places: ",
    "layer skipped": "at different places: ",
    "large messages": "at different places: ",
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_parties_that_differ_are_told_how(seen: Seen, name: str):
    told_by_0 = 0
    for me, party in enumerate(seen):
        kind, text, _ = party[name]
        assert DIFFERENCES[name] in text, (kind, text)
        assert "party 0 " in text and "party 1 " in text or me == 2, text
        assert re.search(r"party \d (has|expects) .* party \d (has|expects) ", text), text
        assert "\nhint: all parties must run the same program" in text and text.count("hint: ") == 1, text
        # A third party may hear of it from another one.
        assert kind == "AgreementError" or (me == 2 and text.startswith("party 0 stopped: ")), (kind, text)
        told_by_0 += f"(at party {me})" in text
    assert told_by_0 in (0, len(seen))


def test_both_values_are_shown(seen: Seen):
    assert "party 0 has 0.1.0, party 1 has 9.9.9" in seen[0]["version"][1]
    assert "party 1 has 9.9.9, party 0 has 0.1.0" in seen[1]["version"][1]
    assert '"k": 20' in seen[0]["bits"][1] and '"k": 21' in seen[0]["bits"][1]
    assert '"3": { "k": 18' in seen[0]["bits of a layer"][1]
    assert "party 0 has private to party 0, party 1 has private to party 1" in seen[0]["owner"][1]
    assert "has public, party 1 has private to party 0" in seen[0]["owner or public"][1]
    place = re.escape("party 0 expects int64[5, 6] at layer 'opening'")
    assert re.search(place, seen[0]["other operation"][1]) and re.search(place, seen[1]["other operation"][1])
    assert "at layer '0'; party 1 expects int64[5, 6] at layer 'opening'" in seen[0]["layer skipped"][1]


def test_different_batch_sizes(seen: Seen):
    what = "expects shape (4, 6), party 0 shares shape (5, 6) (at cryptensor)"
    kind, text, _ = seen[0]["batch"]
    assert kind == "PeerError" and f"party 1 stopped: party 1 {what}" in text
    kind, text, _ = seen[1]["batch"]
    assert kind == "AgreementError" and text.startswith(f"party 1 {what}\nhint: use the same batch size")


INPUT_ERRORS = {
    "NaN": "holds NaN or infinity",
    "range": "leaves the fixed-point range",
    "dtype": "expected a floating-point tensor, got torch.int64",
    "nine dimensions": "at most 8 dimensions, got 9",
    "no tensor": "party 0 must give a tensor, got ndarray",
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_input_errors_reach_the_other_parties(seen: Seen, name: str):
    kind, text, _ = seen[0][name]
    assert kind == "InputError" and INPUT_ERRORS[name] in text and "(at cryptensor)" in text
    for party in seen[1:]:
        kind, text, _ = party[name]
        assert kind == "PeerError"
        assert text.startswith("party 0 stopped: ") and INPUT_ERRORS[name] in text, text
        assert "e+" not in text, "a value of party 0's input"


def test_a_shape_the_net_cannot_take_is_an_error_everywhere(seen: Seen):
    for party in seen:
        kind, text, _ = party["net's input"]
        assert kind == "InputError" and "cannot take an input of shape (5, 7)" in text and "(at input)" in text


def test_an_exception_s_text_stays_at_its_party(seen: Seen):
    assert seen[0]["exception"][:2] == ["ZeroDivisionError", f"{SECRET} / 0"]
    for party in seen[1:]:
        kind, text, _ = party["exception"]
        assert kind == "PeerError" and text.startswith("party 0 stopped: ZeroDivisionError (at party ")
        assert SECRET not in text


def test_the_reason_is_read_though_a_write_fails_first(seen: Seen):
    for me in (0, *range(2, len(seen))):
        kind, text, _ = seen[me]["large message"]
        assert kind == "PeerError"
        assert text == f"party 1 stopped: party 1 is out of paper (at the printer) (at party {me})\nhint: buy some"


def test_a_party_that_ends_early(seen: Seen):
    for me in (0, *range(2, len(seen))):
        kind, text, _ = seen[me]["ended"]
        assert kind == "PeerError" and "it ended or was killed" in text


def test_second_init_is_refused(seen: Seen):
    for party in seen:
        kind, text, _ = party["twice"]
        assert kind == "EnvironmentProblem" and "initialized already: Session(" in text


def test_init_again(nursery: Nursery, dealer: str):
    """No use before init; three sessions in one process, two with a dealer of their own, give the same result."""
    parties = nursery.start(["again"], 2, DEALER=dealer)
    for party in parties:
        assert party.wait() == 0, party.err.read_text()
        before, convert, *results = json.loads(party.out.read_text())
        for text in (before, convert):
            assert "hint: " in text
        assert before.startswith("no session")
        first = torch.tensor(results[0])
        with torch.no_grad():
            assert first.allclose(net()(rows()), atol=2**-10)  # 13 products of at most 2^-16 each
        for other in results[1:]:
            assert torch.tensor(other).allclose(first, atol=2**-10)
    assert not list(nursery.folder.glob("hummingbird-*"))


# `infer` -----------------------------------------------------------------------------------------------------------


def bits_file(folder: Path, name: str, **changes: object) -> str:
    content = {"format": "hummingbird-bits", "version": 1, "layers": {}, **changes}
    (folder / name).write_text(json.dumps(content))
    return f"--bits {folder / name}"


@pytest.mark.parametrize("step", every(2, [5, 1]))
def test_wrong_arguments(nursery: Nursery, dealer: str, tmp_path: Path, step: int):
    """Each is an error in words at both parties; where only one can see it, the other is told."""
    torch.save({"fc.weight": torch.zeros(10, 10)}, tmp_path / "other.pt")
    (tmp_path / "text.pt").write_text("no checkpoint")
    unknown = bits_file(tmp_path, "unknown", layers={"relu9": {"k": 20, "m": 4}})
    mnist = f"--model models:get_model cryptonets 10 --data scripts.train.data:load mnist test data={tmp_path}"
    wrong = {
        f"--weights {tmp_path / 'other.pt'}": "does not fit Digits",
        f"--weights {tmp_path / 'text.pt'}": "is no weights-only checkpoint",
        "--weights /nowhere/x.pt": "No such file or directory",
        "--bits /nowhere/x.json": "cannot read the bit configuration: No such file",
        unknown: "the bit configuration names ['relu9'], which the net lacks",
        bits_file(tmp_path, "foreign", version=7): "bit configuration version 7, this release reads versions 1 to 3",
        bits_file(tmp_path, "order", default={"k": 4, "m": 20}): "window [4:20) has k < m",
        "--window nonsense": "'nonsense' is not a window (at --window)",
        "--window 80:2": "window [80:2) leaves the 64-bit ring",
        "--owner 7": "weights=7 (at weights)",
        "--owner -1": "weights=-1 (at weights)",
        "--protocol magic": "unknown protocol 'magic' (at protocol)",
        "--model models:get_model resnet18 10": "the net cannot take an input of shape (100, 1, 8, 8)",
    }
    wrong = dict([*wrong.items()][::step]) | {mnist: "there is no file"}
    parties = nursery.start(["arguments", *wrong], 2, DEALER=dealer)
    assert [party.wait() for party in parties] == [0, 0], [party.err.read_text() for party in parties]
    first, second = (json.loads(party.out.read_text()) for party in parties)
    for (line, expected), here, there in zip(wrong.items(), first, second, strict=True):
        print(f"MEASURED {line}: {here[2]:.2f}, {there[2]:.2f} s")
        assert expected in here[1], (line, here)
        # Party 1 hears of it from party 0 if that was faster: all of our own errors, of others the type.
        assert expected in there[1] or re.match(r"party 0 stopped: (File|Value)", there[1]), (line, there)
    assert there[0] == "PeerError" and there[1].startswith("party 0 stopped: there is no file"), there


@pytest.mark.slow
def test_under_torchrun(dealer: str, tmp_path: Path):
    """The launcher sees the failure and ends; each party has said what it knows."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    script = ["-m", "hummingbird", "infer", *DIGITS, "--timeout", f"{HANG:g}"]
    wrong = {
        "cannot read /nowhere/x.pt: No such file or directory": ["--weights", "/nowhere/x.pt", "--dealer", dealer],
        "there is no file": [
            *["--model", "models:get_model", "cryptonets", "10", "--weights", str(tmp_path / "c.pt")],
            *["--data", "scripts.train.data:load", "mnist", "test", f"data={tmp_path}"],
        ],
    }
    torch.save(get_model("cryptonets", 10).state_dict(), tmp_path / "c.pt")
    started = time.monotonic()
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    runs = [
        python.Popen([*launcher, *script, *arguments], cwd=ROOT, env=variables, text=True, stderr=subprocess.PIPE)
        for arguments in wrong.values()
    ]
    for run, expected in zip(runs, wrong, strict=True):
        _, text = run.communicate(timeout=PROGRAM)
        print(f"MEASURED torchrun, {expected}: {time.monotonic() - started:.1f} s from the start of two launchers")
        assert run.returncode == 1
        said = re.findall(r"^\[party (\d)\] error: (.*)\nhint: ", text, re.MULTILINE)
        assert sorted(rank for rank, _ in said) == ["0", "1"], text
        assert expected in dict(said)["0"], text
        reasons = (expected, "told to stop (SIGTERM)")
        assert any(reason in dict(said)["1"] for reason in reasons), text
    assert not list(tmp_path.glob("hummingbird-*"))
