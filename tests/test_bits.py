"""Windows and their files: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import copy
import itertools
import json
import operator
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError, HummingbirdError
from tests.support.paths import ROOT


def test_every_window_of_the_ring_is_accepted_or_refused_by_the_rule() -> None:
    for k, m in itertools.product(range(-2, 67), repeat=2):
        if 0 <= m < k <= 64 or (k, m) == (0, 0):
            assert BitWindow(k, m).w == k - m
        else:
            with pytest.raises(ConfigError):
                BitWindow(k, m)


@pytest.mark.parametrize(
    ("k", "m", "what"),
    [
        (12, 20, r"window \[12:20\) has k < m"),
        (12, 12, r"window \[12:12\) keeps no bit"),
        (65, 0, r"window \[65:0\) leaves the 64-bit ring"),
        (8, -1, r"window \[8:-1\) leaves the 64-bit ring"),
        (-1, -1, "leaves the 64-bit ring"),
        (True, 0, "two integers, got k=True, m=0"),
        (8, False, "two integers"),
        (8.0, 0, "two integers, got k=8.0"),
        ("8", 0, "two integers, got k='8'"),
        (None, 0, "two integers"),
    ],
)
def test_wrong_windows_are_named(k: object, m: object, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        BitWindow(k, m)  # type: ignore[arg-type]


def test_every_q_is_accepted_or_refused_by_the_rule() -> None:
    for k, m, q in itertools.product((0, 1, 2, 5, 16, 17, 20, 64), (0, 1, 4, 16, 19), range(-2, 20)):
        if 0 <= m < k and (q == 0 or 0 < q < k and q <= 16):
            window = BitWindow(k, m, q)
            assert window.w == k - window.low >= 1 and window.low == max(m, q)
        elif (k, m, q) != (0, 0, 0):
            with pytest.raises(ConfigError):
                BitWindow(k, m, q)


@pytest.mark.parametrize(
    ("window", "what"),
    [
        ((20, 12, 17), r"\[20:12\) q=17 rounds away 17 of 16 fraction bits"),
        ((20, 12, -1), "rounds away -1 of 16"),
        ((6, 2, 6), r"\[6:2\) q=6 keeps no bit"),
        ((0, 0, 3), "keeps no bit"),
        ((20, 12, 6.0), "three integers, got k=20, m=12, q=6.0"),
        ((20, 12, False), "three integers"),
    ],
)
def test_a_wrong_q_is_named(window: tuple[int, int, int], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        BitWindow(*window)


def test_q_has_a_place_in_text_and_file() -> None:
    window = BitWindow(20, 12, 6)
    assert str(window) == "[20:12) q=6" and window != BitWindow(20, 12) and window.w == 8
    config = BitConfig(window, {"relu": BitWindow(18, 0, 7), "pool": BitWindow(0, 0)})
    assert BitConfig.from_json(config.to_json()) == config
    assert json.loads(config.to_json())["default"] == {"k": 20, "m": 12, "q": 6}
    with pytest.raises(ConfigError, match="expected a BitWindow") as caught:
        BitConfig((20, 12, 6))  # type: ignore[arg-type]
    assert caught.value.hint == "BitWindow(20, 12, 6)"


def test_files_of_the_first_version_have_no_q() -> None:
    first = {"format": "hummingbird-bits", "version": 1, "default": {"k": 20, "m": 4}}
    assert BitConfig.from_json(json.dumps(first)) == BitConfig(BitWindow(20, 4, 0))
    with pytest.raises(ConfigError, match="default has an unknown field 'q'"):
        BitConfig.from_json(json.dumps(first | {"default": {"k": 20, "m": 4, "q": 0}}))
    second = first | {"version": 2, "default": {"k": 20, "m": 4, "q": 3}, "layers": {"relu": {"k": 20, "m": 4}}}
    assert BitConfig.from_json(json.dumps(second)) == BitConfig(BitWindow(20, 4, 3), {"relu": BitWindow(20, 4)})


def test_windows_are_values() -> None:
    window = BitWindow(20, 12)
    assert window == BitWindow(20, 12) and hash(window) == hash(BitWindow(20, 12)) and window != BitWindow(20, 11)
    assert str(window) == "[20:12)" and window.w == 8
    assert EXACT == BitWindow(64, 0)
    with pytest.raises(AttributeError):
        window.k = 3  # type: ignore[misc]


def test_a_reused_module_falls_back_to_its_own_name() -> None:
    a, b, c = BitWindow(20, 12), BitWindow(18, 10), BitWindow(8, 0)
    config = BitConfig(a, {"relu": b, "layer1.relu#1": c})
    assert config.window("relu") == b
    assert config.window("relu#1") == b and config.window("relu#2") == b
    assert config.window("layer1.relu#1") == c
    assert config.window("layer1.relu") == a and config.window("layer1.relu#2") == a
    assert config.window("elsewhere") == a
    assert BitConfig().window("anything") == EXACT


def test_round_trip_through_text_and_file(tmp_path: Path) -> None:
    config = BitConfig(
        BitWindow(24, 4),
        {"layer1.0.relu": BitWindow(20, 12), "relu#1": BitWindow(0, 0), "größe": BitWindow(64, 63)},
        {"accuracy": 0.93, "seed": 1, "command": 'find_bits "x"'},
    )
    assert BitConfig.from_json(config.to_json()) == config
    path = tmp_path / "bits.json"
    config.save(path)
    assert BitConfig.load(path) == config == BitConfig.load(str(path))
    assert path.read_text(encoding="utf-8") == config.to_json() and config.to_json().endswith("}\n")
    assert BitConfig.from_json('{"format": "hummingbird-bits", "version": 2}') == BitConfig()


def test_the_text_does_not_depend_on_the_order_of_layers() -> None:
    one = BitConfig(layers={"b": BitWindow(8, 0), "a": BitWindow(9, 0)})
    other = BitConfig(layers={"a": BitWindow(9, 0), "b": BitWindow(8, 0)})
    assert one.to_json() == other.to_json()


GOOD = {"format": "hummingbird-bits", "version": 2, "default": {"k": 20, "m": 4}, "layers": {"relu": {"k": 8, "m": 0}}}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"version": 0}, "version 0, this release reads versions 1 to 3"),
        ({"version": 4}, "version 4"),
        ({"version": True}, "version True"),
        ({"version": None}, "version None"),
        ({"version": "1"}, "version '1'"),
        ({"format": "other"}, "not a hummingbird-bits file"),
        ({"format": None}, "not a hummingbird-bits file"),
        ({"colour": 1, "size": 2}, r"it has an unknown field 'colour' \(known: format, version, default, layers"),
        ({"layers": [1]}, "layers is a list of 1 items, not an object"),
        ({"provenance": "me"}, "provenance is 'me', not an object"),
        ({"default": None}, "default is null, not an object"),
        ({"default": {"k": 20}}, "default has no field 'm'"),
        ({"default": {"k": 20, "m": 0, "w": 20}}, r"unknown field 'w' \(known: k, m, q\)"),
        ({"default": [20, 0]}, "default is a list of 2 items, not an object"),
        ({"layers": {"relu": {"k": 4, "m": 8}}}, "k < m"),
        ({"layers": {"relu": {"k": 8.0, "m": 0}}}, "two integers"),
        ({"layers": {"relu": {"k": True, "m": 0}}}, "two integers"),
        ({"layers": {"relu": {"k": 70, "m": 0}}}, "leaves the 64-bit ring"),
        ({"layers": {"relu": {"k": "8", "m": 0}}}, "two integers"),
    ],
)
def test_wrong_files_are_refused_by_name(tmp_path: Path, change: dict[str, object], what: str) -> None:
    path = tmp_path / "bits.json"
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(ConfigError, match=what) as caught:
        BitConfig.load(path)
    assert str(path) in str(caught.value)
    if "layers" in change and isinstance(change["layers"], dict):
        assert "relu" in caught.value.where


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"3", b"null", b'"x"', b"\x80\x02}q", b"\xff\xfe{\x00}\x00", b"{'k': 1}"]
)
def test_what_is_no_json_object_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bits.json"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        BitConfig.load(path)
    assert str(path) in str(caught.value)


def test_a_checkpoint_given_by_mistake_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"digits\.pt"):
        BitConfig.load(ROOT / "checkpoints" / "digits.pt")


def test_every_truncation_of_a_file_is_an_error_of_ours() -> None:
    text = json.dumps(GOOD)
    for end in range(len(text)):
        with pytest.raises(HummingbirdError):
            BitConfig.from_json(text[:end])


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path, what in ((tmp_path / "none.json", "No such file"), (tmp_path, "directory")):
        with pytest.raises(ConfigError, match=what) as caught:
            BitConfig.load(path)
        assert str(path) in caught.value.where


def test_names_that_the_net_lacks_are_listed_beside_those_it_has() -> None:
    config = BitConfig(layers={"relu": EXACT, "relu#1": EXACT, "conv": EXACT, "typo": EXACT})
    with pytest.raises(ConfigError) as caught:
        config.check_names(["relu", "relu#1", "pool"])
    assert "['conv', 'typo']" in caught.value.what
    assert caught.value.hint.endswith("relu, relu#1, pool")
    BitConfig(layers={"relu": EXACT, "relu#1": EXACT}).check_names(["relu", "relu#1"])
    BitConfig(layers={"relu": EXACT}).check_names(["relu#1"])  # the name of the module covers its second call
    with pytest.raises(ConfigError, match="relu#2"):
        BitConfig(layers={"relu#2": EXACT}).check_names(["relu", "relu#1"])
    with pytest.raises(ConfigError, match="none"):
        BitConfig(layers={"relu": EXACT}).check_names([])


# Values, not containers ---------------------------------------------------------------------------------------------


def test_a_config_is_a_value() -> None:
    layers, told = {"relu": BitWindow(20, 12)}, {"seed": 1, "groups": {"all": ["relu"]}}
    config = BitConfig(EXACT, layers, told, 2.5)
    layers["relu"], told["seed"] = EXACT, 2
    assert config.window("relu") == BitWindow(20, 12) and config.provenance["seed"] == 1
    same = BitConfig(EXACT, {"relu": BitWindow(20, 12)}, {"seed": 1, "groups": {"all": ["relu"]}}, 2.5)
    assert config == same and hash(config) == hash(same) and len({config, same, config.windows}) == 2
    changes: list[Callable[[], object]] = [
        lambda: setattr(config, "default", EXACT),
        lambda: operator.setitem(config.layers, "relu", EXACT),  # type: ignore[call-overload]
        lambda: operator.delitem(config.layers, "relu"),  # type: ignore[call-overload]
        lambda: config.layers.update(relu=EXACT),  # type: ignore[attr-defined]
        lambda: config.layers.clear(),  # type: ignore[attr-defined]
        lambda: operator.setitem(config.provenance["groups"], "all", ()),
        lambda: config.provenance["groups"]["all"].append("other"),
        lambda: operator.ior(config.provenance, {"seed": 3}),
    ]
    for change in changes:
        with pytest.raises((AttributeError, TypeError)):
            change()
    assert config == same
    for copied in (copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert copied == config and hash(copied) == hash(config)
    assert BitConfig.from_json(config.to_json()) == config and json.loads(config.to_json())["input_range"] == 2.5
    assert config.windows == BitConfig(EXACT, {"relu": BitWindow(20, 12)})
    assert "input_range" not in BitConfig().to_json() and "weight_bits" not in BitConfig().to_json()


def test_bits_of_weights_are_part_of_what_parties_compare() -> None:
    config = BitConfig(EXACT, provenance={"seed": 1}, weight_bits=8)
    assert BitConfig.from_json(config.to_json()) == config and config.windows == BitConfig(weight_bits=8)
    assert hash(config.windows) != hash(BitConfig()) and config != replace(config, weight_bits=9)
    assert "weights: 8 bits of fraction" in repr(config)
    with pytest.raises(ConfigError, match="weight_bits"):
        BitConfig.from_json('{"format": "hummingbird-bits", "version": 2, "weight_bits": 8}')


@pytest.mark.parametrize(
    ("arguments", "where", "what"),
    [
        ({"layers": {"1": (20, 12)}}, "1", r"expected a BitWindow, got \(20, 12\)"),
        ({"layers": {"1": None}}, "1", "expected a BitWindow, got None"),
        ({"layers": {1: EXACT}}, "layers", "a layer's name is a string, got 1"),
        ({"layers": [("1", EXACT)]}, "layers", "expected a mapping, got list"),
        ({"default": 20}, "default", "expected a BitWindow, got 20"),
        ({"provenance": {"net": object()}}, "provenance.net", "JSON has no object"),
        ({"provenance": {"a": {1: 2}}}, "provenance.a", "JSON has no dict"),
        ({"provenance": "by hand"}, "provenance", "expected a mapping, got str"),
        ({"input_range": -1.0}, "input_range", "an input range of -1.0"),
        ({"input_range": float("nan")}, "input_range", "an input range of nan"),
        ({"input_range": True}, "input_range", "an input range of True"),
        ({"input_range": "2"}, "input_range", "an input range of '2'"),
        ({"input_range": 10**400}, "input_range", "an input range of 1000"),
        ({"weight_bits": 0}, "weight_bits", "weights with 0 bits of fraction"),
        ({"weight_bits": 21}, "weight_bits", "weights with 21 bits"),
        ({"weight_bits": True}, "weight_bits", "weights with True bits"),
    ],
)
def test_what_is_no_config_is_refused_where_it_is_made(arguments: Any, where: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        BitConfig(**arguments)
    assert caught.value.where == where
    if "1" in arguments.get("layers", {}) and arguments["layers"]["1"]:
        assert caught.value.hint == "BitWindow(20, 12)"


@pytest.mark.parametrize(
    "text",
    [
        '{"format": "hummingbird-bits", "version": 1, "input_range": "2"}',
        '{"format": "hummingbird-bits", "version": 1, "input_range": -2}',
        '{"format": "hummingbird-bits", "version": 1, "input_range": Infinity}',
        '{"format": "hummingbird-bits", "version": 1, "input_range": 1e999}',
        '{"format": "hummingbird-bits", "version": 1, "provenance": {"a": ' + "[" * 40 + "]" * 40 + "}}",
        '{"format": "hummingbird-bits", "version": 1, "provenance": ' + '{"a": ' * 40 + "1" + "}" * 41,
        "[" * 100_000,
        '{"a": ' * 100_000,
    ],
)
def test_files_that_no_config_can_be_of_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BitConfig.from_json(text, where="bits.json")
    assert "bits.json" in caught.value.where
