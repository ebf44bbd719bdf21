"""`plan show --json -` of SG and CG, thirty settings, against the page's formulas on the authors' arrays."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from hummingbird.__main__ import main
from scripts.train.data import read_text

NETS = [f"{data}/{net}" for data in ("cifar10", "tinyimagenet") for net in ("resnet18", "resnet32", "vgg16")]
LINKS = [(500, 500), (835, 165), (198, 802), (90.5, 10), (2000, 7)]  # Mb/s up, down
THREADS = [(4, 1, 32), (1, 2, 1), (2, 13, 4), (8, 5, 64), (3, 12, 7), (4, 11, 32), (1, 1, 1)]
STORES = [16, 0.05, 8, 140, 41, 1000, 3, 0.7, 300, 64, 5.5]  # GB
Setting = tuple[str, str, tuple[float, float], tuple[int, int, int], float]
SETTINGS: list[Setting] = [
    (("sg", "cg")[i % 2], NETS[i // 2 % 6], LINKS[i % 5], THREADS[i % 7], STORES[i % 11]) for i in range(30)
]


def expected(constants: dict[str, Any], setting: Setting) -> tuple[float, float, int, int]:
    """T_off, T_on, bytes of a token and K: sums of the arrays by the names that the page gives them."""
    kind, name, (up, down), (client, he, server), store = setting
    u, d = up * 1e6 / 8, down * 1e6 / 8
    data, net = name.split("/")
    of = constants["networks"][f"{name}/{'server' if kind == 'sg' else 'client'}-garbler"]
    relus = of["NUM_RELU"]

    def all_of(end: str, first: int | None = None) -> float:
        (values,) = (value for key, value in of.items() if key.endswith(end))
        return sum(values[:first]) if isinstance(values, list) else values

    def gc(verb: str, threads: int) -> float:
        fits = constants["gc"]
        return (fits["fit_slope_s_per_relu"][verb] * relus + fits["fit_intercept_s"][verb]) / threads

    t_off = all_of("off_client_compute_keygen") + all_of("off_client_write_key") / u
    t_off += all_of("compute_he_encrypt") + all_of("off_client_write_linear") / u
    t_off += constants["he_lphe_s_by_threads"][data][net][he - 1]
    t_off += all_of("off_server_write_linear") / d + all_of("compute_he_decrypt")
    if kind == "sg":
        t_off += gc("garble_server", server) + all_of("off_server_compute_encode") + all_of("garbled_c") / d
        t_off += (all_of("base_ot") + all_of("ot_setup")) / u + all_of("ot_send") / d
        t_on = all_of("on_client_write_linear") / u + all_of("on_server_compute_encode")
        t_on += all_of("on_server_write_relu") / d + all_of("on_server_compute_linear")
        t_on += gc("eval_client", client) + all_of("write_pred") / d
    else:
        t_off += gc("garble_client", client) + all_of("off_client_compute_encode") + all_of("garbled_c") / u
        t_off += all_of("base_ot") / d
        n = len(of["on_client_write_ext_ot_send"])
        t_on = of["on_client_write_linear"][0] / u + all_of("on_server_compute_linear", n)
        t_on += all_of("on_client_compute_encode", n) + all_of("ot_setup", n) / d + all_of("ot_send") / u
        t_on += gc("eval_server", server) + of["on_server_compute_linear"][-1] + all_of("write_pred") / d
    size = 8 * of["CLIENT_LINEAR_STORAGE"] + (18248 if kind == "sg" else 3590) * relus
    return t_off, t_on, size, round(store * 10**9) // size


@pytest.mark.skipif(not os.environ.get("HUMMINGBIRD_DATA"), reason="HUMMINGBIRD_DATA has the published arrays")
def test_thirty_settings_through_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    constants = json.loads(read_text("characterization/constants.json"))
    stored = 0
    for setting in SETTINGS:
        kind, name, (up, down), threads, store = setting
        words = ["--service", f"asplos23/{kind}", "--net", name, "--up", f"{up}mbit", "--down", f"{down}mbit"]
        words += ["--threads", *map(str, threads), "--store", f"{store}GB", "--json", "-"]
        assert main(["plan", "show", *words]) == 0
        found = json.loads(capsys.readouterr().out)
        t_off, t_on, size, tokens = expected(constants, setting)
        assert found["offline_seconds"] == pytest.approx(t_off, rel=0, abs=1e-5), setting
        assert found["online_seconds"] == pytest.approx(t_on, rel=0, abs=1e-5), setting
        assert abs(found["client_bytes_per_token"] - size) <= 1000, setting
        assert found["tokens"] == tokens, setting
        stored += tokens > 0
    assert 15 <= stored < 30
    assert len(set(SETTINGS)) == 30
