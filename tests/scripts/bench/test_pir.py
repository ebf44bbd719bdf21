"""The benchmark of private lookups: a row for every setting, marks where they belong, errors before measuring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hummingbird.errors import EnvironmentProblem, HummingbirdError
from hummingbird.kernels.cpu import library
from hummingbird.kernels.lookups import key_bytes
from hummingbird.pir.dpf import generate
from scripts.bench import pir
from scripts.bench.pir import EXPANSION_MARKS, LONE_QUERY, MARKS, MILLION, PLAN, Setting, build, check, main, on_path

SMALL = ["--rows", "3000", "--row-bytes", "8", "--repeats", "1"]


def test_a_row_for_every_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads, file, before = torch.get_num_threads(), tmp_path / "rows.json", library.xor_path()
    words = ["--batch", "1", "9", "--prf", "aes", "chacha12", "--decoders", "xor", "sum64", "--paths", "portable"]
    try:
        assert main([*SMALL, *words, "--json", str(file)]) == 0
    finally:
        torch.set_num_threads(threads)
    assert library.xor_path() == before
    result = json.loads(file.read_text())
    table, *answers = result
    assert table["kind"] == "table" and table["rows"] == 3000 and table["read_gigabytes_per_second"] > 0
    settings = {(r["batch"], r["prf"], r["decoder"]) for r in answers}
    assert len(answers) == len(settings) == 8
    for r in answers:
        assert r["path"] == "portable" and r["met"] is None and not r["mark"]
        assert r["queries_per_second"] == pytest.approx(1e3 * r["batch"] / r["milliseconds"])
        assert r["times_of_reading"] == pytest.approx(r["milliseconds"] / r["read_milliseconds"])
    said = capsys.readouterr().out
    assert said.count("3,000 x 8 B") == 9 and "965 to 1,358" in said


def test_threads_keys_and_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads, file = torch.get_num_threads(), tmp_path / "rows.json"
    try:
        assert main([*SMALL, "--batch", "3", "--threads", "1", "2", "--json", str(file)]) == 0
    finally:
        torch.set_num_threads(threads)
    assert [r["threads"] for r in json.loads(file.read_text())[1:]] == [1, 2]
    made, functions = pir.key_generation("aes", 3000, 1), pir.other_functions(1)
    assert made["microseconds"] > 0 and made["key_bytes"] == key_bytes(3000)
    assert [r["prf"] for r in functions] == ["AES-128", "ChaCha20", "SHA-256"]
    for r in functions:  # 8 blocks for each of 1024 leaves, 2 for each of 1023 nodes
        assert r["microseconds"] == pytest.approx(r["nanoseconds_per_block"] * 10_238 / 1e3)
    pir.show([*json.loads(file.read_text()), made, *functions])
    said = capsys.readouterr().out
    assert "SHA-256 of cryptography" in said and "making two keys for 3,000 rows by aes" in said


def test_the_plan_has_every_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(PLAN) == len(set(PLAN)) and {*MARKS, LONE_QUERY} < set(PLAN)
    table, piece, _ = build(3000, 8)
    setting = Setting(3000, 8, 5)
    monkeypatch.setattr(pir, "MARKS", {setting: 1})
    row = pir.measure(setting, table, piece, 1.0, 1)
    assert row["mark"] == ">= 1/s" and row["met"] is True
    monkeypatch.setattr(pir, "MARKS", {setting: 10**12})
    assert pir.measure(setting, table, piece, 1.0, 1)["met"] is False
    monkeypatch.setattr(pir, "LONE_QUERY", setting)
    assert pir.measure(setting, table, piece, 1e3, 1)["met"] is True
    assert pir.measure(setting, table, piece, 1e-9, 1)["met"] is False


@pytest.mark.parametrize("prf", EXPANSION_MARKS)
def test_expansion_has_its_marks_at_full_size_only(prf: str) -> None:
    row = pir.expansion(prf, "", 1, 2000)
    assert row["microseconds"] > 0 and row["met"] is None
    row = pir.expansion(prf, "", 1)
    assert row["rows"] == MILLION and row["met"] is (row["microseconds"] <= EXPANSION_MARKS[prf])


def test_a_wrong_answer_ends_the_run() -> None:
    setting, alphas = Setting(3000, 8, 5), torch.arange(5)
    table, piece, _ = build(3000, 8)
    keys = generate(alphas, 3000)
    check(setting, table, piece, keys, alphas)
    check(setting._replace(decoder="sum16"), table, piece, keys, alphas)
    table.update(torch.tensor([4]), piece[4:5] ^ 1)
    for decoder in ("xor", "sum16"):
        with pytest.raises(HummingbirdError, match="wrong row"):
            check(setting._replace(decoder=decoder), table, piece, keys, alphas)


def test_a_path_that_is_not_there_is_said_and_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, threads, isa = library.set_isa, torch.get_num_threads(), library.isa()
    monkeypatch.setattr(library, "set_isa", lambda name: name != "avx2" and before(name))
    with pytest.raises(EnvironmentProblem, match="no avx2"), on_path("avx2"):
        pass
    assert main([*SMALL, "--paths", "avx2"]) == 1 and "this machine has no avx2" in capsys.readouterr().err
    monkeypatch.setattr(pir, "PLAN", [Setting(3000, 8, 2, path="avx2"), Setting(3000, 8, 2)])
    try:
        assert main(["--repeats", "1"]) == 0
    finally:
        torch.set_num_threads(threads)
        before(isa)  # the benchmark could not go back to it
    said = capsys.readouterr()
    assert "left out: this machine has no avx2" in said.err and said.out.count("3,000 x 8 B") == 2


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["--batch", "0"], "--batch"),
        (["--rows", "0"], "--rows"),
        (["--row-bytes", "-1"], "--row-bytes"),
        (["--repeats", "0"], "--repeats"),
        (["--json", "absent/rows.json"], "--json"),
        (["--paths", "cuda"], "--paths cuda"),
    ],
)
def test_wrong_options_are_one_error(words: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *words]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and where in said.err and not said.out
