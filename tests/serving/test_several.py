"""A service of a net with several inputs and several results, what its client refuses to send, and large requests."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hummingbird import cost
from hummingbird.errors import InputError
from tests.support import python
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM
from tests.support.serving import Service
from tests.support.serving_nets import pair

NET = ("--model", "tests.support.serving_nets:pair", "--input", "4", "2x3", "--window", "30:0", "--max-batch", "6")
CLOSE = 1e-3


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(*NET) as opened:
        yield opened


def inputs(count: int) -> tuple[Tensor, Tensor]:
    return torch.rand(count, 4), torch.randn(count, 2, 3)


def test_results_are_those_of_the_net_in_its_own_form_and_bytes_are_as_predicted(service: Service) -> None:
    left, right = inputs(10)  # two requests
    with torch.no_grad():
        expected = pair()(left, right)
    with service.client() as client:
        for found in (client(left, right), client(left, right=right), client(right=right, left=left)):
            assert set(found) == {"hidden", "rest", "note"} and type(found["rest"]) is tuple and found["note"] is None
            pairs = [(found["hidden"], expected["hidden"]), *zip(found["rest"], expected["rest"], strict=True)]
            for mine, plain in pairs:
                assert mine.shape == plain.shape and (mine - plain).abs().max() < CLOSE
        known = client.service
        prices = [cost.asking(2, n * 10, known.bits, n * 6, known.result_bits) for n in (6, 4)]
        totals = tuple(3 * sum(column) for column in zip(*prices, strict=True))
        assert (client.sent_bytes, client.received_bytes) == totals


def test_what_does_not_fit_is_refused_before_anything_is_sent(service: Service) -> None:
    left, right = inputs(3)
    with service.client() as client:
        for args, kwargs, words in (
            ((left,), {}, "takes 2 inputs, 'left', 'right'; got 1 by place"),
            ((left, right, right), {}, "got 3 by place"),
            ((left,), {"left": left}, "got 1 by place, 'left'"),
            ((left,), {"wrong": right}, "got 1 by place, 'wrong'"),
            ((left, right.view(3, 6)), {}, r"expected 'right' \(n, 2, 3\), got \(3, 6\)"),
            ((left, right[:2]), {}, "'right' is a batch of 2, and 'left' one of 3"),
            ((left, right.long()), {}, "floating-point tensor, got torch.int64"),
        ):
            with pytest.raises(InputError, match=words):
                client(*args, **kwargs)
        assert client.sent_bytes == 0


def test_ask_takes_a_file_for_each_input_and_writes_the_results_by_name(service: Service, tmp_path: Path) -> None:
    left, right = inputs(3)
    np.save(tmp_path / "left.npy", left.numpy())
    np.save(tmp_path / "right.npy", right.numpy())
    files = [str(tmp_path / name) for name in ("left.npy", "right.npy", "out.npz", "out.json")]
    groups = tmp_path / "groups"
    groups.write_text(" ".join(service.addresses))
    command = [sys.executable, "-m", "hummingbird", "ask", "--groups", str(groups), "--images", *files[:2]]
    outputs = ["--out", files[2], "--json", files[3]]
    ended = python.run([*command, *outputs], cwd=ROOT, text=True, capture_output=True, timeout=PROGRAM)
    assert ended.returncode == 0, ended.stderr
    with torch.no_grad():
        expected = pair()(left, right)
    with np.load(files[2]) as found:
        assert sorted(found) == ["hidden", "rest.0", "rest.1"]
        assert np.abs(found["rest.0"] - expected["rest"][0].numpy()).max() < CLOSE
    assert json.loads(Path(files[3]).read_text())["images"] == 3
    np.save(tmp_path / "labels.npy", np.zeros(3))
    command += ["--labels", str(tmp_path / "labels.npy")]
    ended = python.run(command, cwd=ROOT, text=True, capture_output=True, timeout=PROGRAM)
    assert ended.returncode == 1 and "the net has 3 results, hidden, rest.0, rest.1" in ended.stderr


LARGE = ("--model", "tests.support.serving_nets:twice", "--input", "1x512x512")


@pytest.mark.slow
def test_a_request_may_take_megabytes_and_more_than_one_goes_in_several() -> None:
    with Service(*LARGE) as service, service.client() as client:
        known = client.service
        assert (known.bits, known.result_bits, known.most) == (64, 64, 15)  # images of 2 MiB, and results: 32 MiB
        x, done = torch.randn(17, 1, 512, 512), list[int]()
        assert (client(x, progress=done.append) - 2 * x).abs().max() < CLOSE and done == [15, 2]
        prices = [cost.asking(2, n << 18, 64, n << 18, 64) for n in done]
        assert [client.sent_bytes, client.received_bytes] == [sum(column) for column in zip(*prices, strict=True)]
