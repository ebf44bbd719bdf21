"""Rows that softmaxes and norms are assumed to have: which are accepted, which are refused, how files hold them."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from hummingbird.bits import EXACT, BitConfig, BitWindow, Rows
from hummingbird.errors import ConfigError

SOFTMAX, NORM = Rows(-3.5, 4, 2.25), Rows(0.25, 9.0)
CONFIG = BitConfig(BitWindow(20, 12), {"relu": BitWindow(18, 0)}, {"seed": 1}, 2.5, {"a.softmax": SOFTMAX, "n": NORM})


def test_rows_are_values() -> None:
    assert SOFTMAX == Rows(-3.5, 4.0, 2.25) and hash(SOFTMAX) == hash(Rows(-3.5, 4.0, 2.25)) and SOFTMAX != NORM
    assert str(SOFTMAX) == "[-3.5, 4] sum=2.25" and str(NORM) == "[0.25, 9]"
    with pytest.raises(AttributeError):
        SOFTMAX.most = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("numbers", "what"),
    [
        ((float("nan"), 1), "least = nan of rows"),
        ((0, float("inf")), "most = inf"),
        ((0, 10**400), "most = 1000"),
        ((True, 2), "least = True"),
        (("0", 2), "least = '0'"),
        ((None, 2), "least = None"),
        ((2, 2), "rows between 2 and 2"),
        ((3, 2), "rows between 3 and 2"),
        ((-1, 1, float("nan")), "sum = nan"),
        ((-1, 1, 0.99), "rows whose exponentials are 0.99 on average"),
    ],
)
def test_wrong_rows_are_named(numbers: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Rows(*numbers)


def test_files_hold_rows_from_the_third_version_on() -> None:
    text = CONFIG.to_json()
    assert BitConfig.from_json(text) == CONFIG and json.loads(text)["version"] == 3
    assert json.loads(text)["rows"] == {
        "a.softmax": {"least": -3.5, "most": 4.0, "sum": 2.25},
        "n": {"least": 0.25, "most": 9.0},
    }
    assert "rows" not in BitConfig().to_json()
    for version in (1, 2):
        with pytest.raises(ConfigError, match="rows is a field of version 3"):
            BitConfig.from_json(json.dumps({"format": "hummingbird-bits", "version": version, "rows": {}}))


@pytest.mark.parametrize(
    ("rows", "where", "what"),
    [
        ([], "bits.json", "rows is a list of 0 items, not an object"),
        ({"a": None}, "bits.json", "rows.a is null, not an object"),
        ({"a": {"least": 1}}, "bits.json", "rows.a has no field 'most'"),
        ({"a": {"least": 1, "most": 2, "mean": 3}}, "bits.json", "rows.a has an unknown field 'mean'"),
        ({"a": {"least": 2, "most": 1}}, "bits.json: rows.a", "rows between 2 and 1"),
        ({"a": {"least": "1", "most": 2}}, "bits.json: rows.a", "least = '1'"),
    ],
)
def test_wrong_rows_of_a_file_are_refused_by_name(rows: Any, where: str, what: str) -> None:
    text = json.dumps({"format": "hummingbird-bits", "version": 3, "rows": rows})
    with pytest.raises(ConfigError, match=what) as caught:
        BitConfig.from_json(text, where="bits.json")
    assert caught.value.where == where


def test_a_config_with_rows_is_a_value() -> None:
    other = CONFIG.with_rows({"n": Rows(0.25, 8)})
    assert other != CONFIG and hash(other) != hash(CONFIG) and other.rows["a.softmax"] == SOFTMAX
    assert other.layers == CONFIG.layers and other.provenance == CONFIG.provenance and other.input_range == 2.5
    assert CONFIG.windows == BitConfig(CONFIG.default, CONFIG.layers, rows=CONFIG.rows)  # parties compare them
    for copied in (copy.copy(CONFIG), copy.deepcopy(CONFIG), pickle.loads(pickle.dumps(CONFIG))):
        assert copied == CONFIG and hash(copied) == hash(CONFIG)
    with pytest.raises(TypeError):
        CONFIG.rows["n"] = SOFTMAX  # type: ignore[index]
    with pytest.raises(ConfigError, match=r"expected Rows, got \(0, 1\)") as caught:
        BitConfig(rows={"n": (0, 1)})  # type: ignore[dict-item]
    assert caught.value.where == "n"
    with pytest.raises(ConfigError, match="a layer's name is a string, got 1"):
        BitConfig(rows={1: NORM})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="expected a mapping"):
        BitConfig(rows=[NORM])  # type: ignore[arg-type]


def test_the_printed_form_shows_rows_and_counts_those_left_out() -> None:
    assert "rows of a.softmax: [-3.5, 4] sum=2.25" in repr(CONFIG)
    many = BitConfig(rows={f"n{number}": NORM for number in range(40)})
    assert "... rows of 29 more of 40 layers" in repr(many) and repr(many).count("\n") < 20


def test_a_reused_module_falls_back_to_its_own_name() -> None:
    config = BitConfig(rows={"n": NORM, "n#2": Rows(1, 2)})
    assert config.rows_of("n") == config.rows_of("n#1") == NORM and config.rows_of("n#2") == Rows(1, 2)
    assert config.rows_of("m") is None
    config.check_rows(dict.fromkeys(("n", "n#1", "n#2"), "norm"))


def test_rows_belong_to_softmaxes_and_norms_of_the_net() -> None:
    CONFIG.check_rows({"a.softmax": "softmax", "n": "norm", "m": "norm"})
    with pytest.raises(ConfigError, match=r"rows of \['n'\]") as caught:
        CONFIG.check_rows({"a.softmax": "softmax"})
    assert caught.value.hint == "softmaxes, norms and functions of this net: a.softmax"
    kinds = {"s": "softmax", "n": "norm", "f": "function"}
    wrong: list[tuple[Rows, str]] = [(Rows(0, 1), "s"), (Rows(-1, 0), "s"), (Rows(0, 1), "n"), (Rows(1, 2, 3), "n")]
    wrong += [(Rows(-1, 1, error=2**-8), "s"), (Rows(1, 2, error=2**-8), "n"), (Rows(1, 2, 3), "f")]
    for rows, name in wrong:
        with pytest.raises(ConfigError, match=f"of a {kinds[name]}") as caught:
            BitConfig(EXACT, rows={name: rows}).check_rows(kinds)
        assert caught.value.where == name
    BitConfig(EXACT, rows={"f": Rows(-1, 1, error=2**-8)}).check_rows(kinds)
