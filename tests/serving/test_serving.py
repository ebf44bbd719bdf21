"""Services of real processes: answers, batches of several clients, refusals at the place where they arise, and ends."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import torch
from torch import Tensor

from hummingbird import cost
from hummingbird.errors import AgreementError, ConfigError, InputError, PeerError
from hummingbird.prg import new_seed
from hummingbird.serving.client import Client
from hummingbird.serving.message import Request, joined, split
from models import get_model
from tests.support.patience import NEVER, PROGRAM, until
from tests.support.serving import DIGITS, Foreign, Service, served


def digits(count: int) -> tuple[Tensor, Tensor]:
    """Inputs of the digits net, and its own results."""
    net = get_model("digits", 10)
    net.load_state_dict(torch.load("checkpoints/digits.pt", weights_only=True))
    torch.manual_seed(count)
    images = torch.rand(count, 1, 8, 8)
    with torch.no_grad():
        return images, net.eval()(images)


def waiting(service: Service) -> bool:
    """Whether a request waits at party 0."""
    return service.figures(0)["hummingbird_serving_waiting_requests"] > 0


def counted(service: Service) -> tuple[float, float]:
    """The images and the batches that party 0 has computed, in all lanes."""
    figures, names = service.figures(0), [f"hummingbird_serving_{name}_total" for name in ("images", "batches")]
    images, batches = (sum(value for key, value in figures.items() if key.startswith(name)) for name in names)
    return images, batches


CLOSE = 0.01  # exact comparisons: what is left is rounding to 2^-16, a few hundred units in a net of this depth


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=["one lane", "two lanes"])
def service(request: pytest.FixtureRequest, logs: Path) -> Iterator[Service]:
    options = ["--max-batch", "6", "--window", "28:0", "--log", f"{logs}/{{rank}}.log"]
    with Service(*DIGITS, *options, lanes=request.param, metrics=True) as opened:
        yield opened
        images, batches = served(opened.stop())
        assert images >= batches > 0


@pytest.fixture(scope="module")
def foreign(service: Service) -> Iterator[Foreign]:
    opened = Foreign(service)
    yield opened
    opened.close()


def test_answers_are_those_of_the_net(service: Service) -> None:
    images, expected = digits(15)  # three requests
    before = counted(service)
    done: list[int] = []
    with Client(service.addresses[::-1]) as client:
        found = client(images, progress=done.append)
        assert found.dtype == torch.float32 and found.shape == expected.shape
        assert (found - expected).abs().max() < CLOSE and done == [6, 6, 3]
        ran, batches = (now - then for now, then in zip(counted(service), before, strict=True))
        assert ran == 15 and 1 <= batches < 15, "images of a request run together"
        known = client.service
        prices = [cost.asking(2, n * 64, known.bits, n * 10, known.result_bits) for n in done]
        assert (client.sent_bytes, client.received_bytes) == (
            sum(up for up, _ in prices),
            sum(down for _, down in prices),
        )
        assert known.bits < 64 and client.sent_bytes == 3 * 2 * 64 + 3 * 16 + 15 * 64 * known.bits // 8
        assert (asyncio.run(client.ask(images[:1])) - expected[:1]).abs().max() < CLOSE


def test_the_parties_logs_can_be_joined_by_request(service: Service, logs: Path, foreign: Foreign) -> None:
    """And tell the time until a request's batch from the time in it; of a repeat, which waits for none, they do not."""
    images, _ = digits(2)
    good, id = foreign.messages(images), new_seed()
    messages = [replace(Request.read(part, foreign.service, rank), id=id) for rank, part in enumerate(good)]
    parts = [message.to_bytes(foreign.service, rank) for rank, message in enumerate(messages)]
    half = foreign.begin([parts[0]])  # party 1's part comes later
    until(lambda: waiting(service), "a half request")
    time.sleep(0.2)
    for call in [*half, *foreign.begin([None, parts[1]])]:
        call.result()
    for call in foreign.begin(parts):
        call.result()

    def lines(rank: int) -> list[dict[str, object]]:
        read = map(json.loads, (logs / f"{rank}.log").read_text().splitlines())
        return [line for line in read if line.get("request") == id.hex()]

    until(lambda: all(len(lines(rank)) == 2 for rank in range(2)), "the lines of a request")
    for rank, least in enumerate((200.0, 0.0)):
        first, again = lines(rank)
        queued, computed = float(first["queued_ms"]), float(first["computed_ms"])  # type: ignore[arg-type]
        assert first["outcome"] == "OK" and queued >= least and computed > 0
        assert queued + computed <= float(first["ms"])  # type: ignore[arg-type]
        assert again["outcome"] == "OK" and "queued_ms" not in again


def test_a_patient_client_is_answered_too(service: Service) -> None:
    """Parties allow ten minutes to a deadline, and clocks differ."""
    images, expected = digits(1)
    with service.client(NEVER) as client:
        assert (client(images) - expected).abs().max() < CLOSE


def test_several_clients_at_once_each_get_their_own_answers(service: Service) -> None:
    """Batches are shared (the fixture counts them at the end); what one client sends changes nothing for another."""
    images, expected = digits(24)

    def ask(start: int) -> float:
        with service.client() as client:
            rows = slice(start, start + 3)
            return max(float((client(images[rows]) - expected[rows]).abs().max()) for _ in range(4))

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(ask, range(0, 24, 3))) < CLOSE


def test_a_client_whose_shares_are_out_of_range_spoils_its_own_answers_only(service: Service, foreign: Foreign) -> None:
    images, expected = digits(2)
    with service.client() as client, ThreadPoolExecutor(1) as pool:
        for _ in range(4):
            wild = torch.randint(-(1 << 62), 1 << 62, (2, 1, 8, 8))
            bodies = split(wild, 64, 2)[:1] + split(wild, foreign.service.bits, 2)[1:]
            good = foreign.messages(images)
            asked = pool.submit(client, images)
            calls = foreign.begin([good[0][:64] + bodies[0], good[1][:64] + bodies[1]])
            assert (asked.result() - expected).abs().max() < CLOSE
            assert len(joined([call.result() for call in calls], 2, foreign.service)) == 2


def test_bad_images_leave_no_client(service: Service) -> None:
    images, _ = digits(2)
    with service.client() as client:
        for bad, words in (
            (images[0], r"expected images \(n, 1, 8, 8\), got \(1, 8, 8\)"),
            (images.view(2, 64), "expected images"),
            (images[:0], "expected images"),
            (images.long(), "floating-point"),
            (images * torch.nan, "NaN"),
            (images.tolist(), "expected a tensor"),
            (images * 2**31, "range"),
        ):
            with pytest.raises(InputError, match=words):
                client(bad)  # type: ignore[arg-type]
        assert client.sent_bytes == 0


def test_bad_messages_are_refused_where_they_arrive(foreign: Foreign) -> None:
    images, expected = digits(2)
    known = foreign.service
    good = foreign.messages(images)
    request = Request.read(good[0], known, 0)
    late = foreign.messages(images, seconds=-5.0)
    far = foreign.messages(images, seconds=3600.0)
    other = replace(request, body=new_seed()).to_bytes(replace(known, scale=17), 0)
    for rank, message, words in (
        (0, good[0][:-1], "has 15 bytes, expected 16"),
        (1, good[1] + b"\0", f"expected {2 * 64 * known.bits // 8}"),
        (0, good[1], "party 0 takes a seed"),
        (0, other, "another net, shape, range or scale"),
        (0, b"", "shorter than a header"),
        (1, late[1], "deadline passed"),
        (1, far[1], "600 s are allowed"),
    ):
        assert words in foreign.refusal(rank, message), words
    answers = [call.result() for call in foreign.begin(good)]  # none of these has harmed it
    assert (joined(answers, 2, known) / 2**known.result_scale - expected).abs().max() < CLOSE


def test_an_id_is_answered_once_and_belongs_to_its_client(foreign: Foreign) -> None:
    images, _ = digits(2)
    good = foreign.messages(images)
    answers = [call.result() for call in foreign.begin(good)]
    assert [call.result() for call in foreign.begin(good)] == answers  # a repeat, by another connection or not
    request = Request.read(good[0], foreign.service, 0)
    again = replace(request, body=new_seed()).to_bytes(foreign.service, 0)
    assert "known with other shares" in foreign.refusal(0, again)
    thief = replace(request, claim=new_seed()).to_bytes(foreign.service, 0)
    assert "belongs to another client" in foreign.refusal(0, thief)


def test_a_request_that_one_party_never_got_is_refused_and_delays_nobody(service: Service, foreign: Foreign) -> None:
    images, expected = digits(2)
    for missing in (0, 1):
        half: list[bytes | None] = list(foreign.messages(images, seconds=2.0))
        half[missing] = None
        (call,) = foreign.begin(half)
        with service.client() as client:
            assert (client(images) - expected).abs().max() < CLOSE
        with pytest.raises(grpc.RpcError) as caught:
            call.result()
        assert f"party {missing} never got its part" in str(caught.value.details())


def test_parties_that_were_told_different_things_drop_the_request(foreign: Foreign) -> None:
    images, _ = digits(2)
    good = foreign.messages(images)
    one = Request.read(good[0], foreign.service, 0)
    for changed in (replace(one, images=1), replace(one, claim=new_seed())):
        id = new_seed()
        first = replace(changed, id=id).to_bytes(foreign.service, 0)
        second = replace(Request.read(good[1], foreign.service, 1), id=id).to_bytes(foreign.service, 1)
        for call in foreign.begin([first, second]):
            with pytest.raises(grpc.RpcError) as caught:
                call.result()
            assert "another number of images under this id, or from another client" in str(caught.value.details())


def test_a_client_that_leaves_is_forgotten(service: Service, foreign: Foreign) -> None:
    images, _ = digits(1)
    first, second = foreign.messages(images)
    (call,) = foreign.begin([first])
    until(lambda: waiting(service), "a half request")
    call.cancel()
    until(lambda: "left one of the parties" in foreign.refusal(0, first), "party 0 to drop it")


def test_addresses_must_be_those_of_all_parties(service: Service, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.symlink_to(service.addresses[0].removeprefix("unix:"))
    with pytest.raises(AgreementError, match=r"parties \[0, 0\]"):
        Client([service.addresses[0], f"unix:{again}"])
    with pytest.raises(ConfigError, match="stands twice"):
        Client([service.addresses[0]] * 2)
    for wrong in (service.addresses[:1], service.addresses[0], []):
        with pytest.raises(ConfigError, match="parties=|address"):
            Client(wrong)
    with pytest.raises(PeerError, match="nothing answers"):
        Client([service.addresses[0], "unix:/nowhere.sock"], timeout=0.5)


def test_a_client_loads_neither_crypten_nor_a_party_and_ends_in_silence(service: Service) -> None:
    """Though nobody closes it."""
    code = (
        "import asyncio, sys, torch, hummingbird\n"
        f"client = hummingbird.Client({service.addresses!r})\n"
        "client(torch.rand(1, 1, 8, 8))\n"
        "asyncio.run(client.ask(torch.rand(1, 1, 8, 8)))\n"
        "parts = {name.split('.')[1] for name in sys.modules if name.startswith('hummingbird.')}\n"
        "print('crypten' in sys.modules, sorted(parts))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PROGRAM)
    assert (ended.returncode, ended.stderr) == (0, "")
    parts = ["cost", "errors", "inputs", "kernels", "pir", "prg", "records", "ring", "rpc", "serving", "structure"]
    parts.append("version")
    assert ended.stdout.strip() == f"False {parts}"
