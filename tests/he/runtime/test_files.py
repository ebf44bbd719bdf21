"""Clients, servers, batches and messages as files and bytes: the whole way, sizes, and what is refused."""

from __future__ import annotations

import json
import os
import random
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird import he, prg, records
from hummingbird.errors import AgreementError, HummingbirdError, InputError
from hummingbird.he.runtime import files, messages
from hummingbird.he.service.client import RemoteModel
from hummingbird.he.service.server import Service
from hummingbird.prg import SEED_BYTES
from tests.support import python
from tests.support.covering import every
from tests.support.he_service import FILE_NETS, SHAPE, close, images, served
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM

MODES = tuple(FILE_NETS)
HEAD = messages.HEAD_BYTES


@pytest.fixture(scope="module")
def models() -> dict[str, he.HEModel]:
    return {mode: he.convert_model(net(), SHAPE, mode) for mode, net in FILE_NETS.items()}


@pytest.fixture(scope="module")
def model(models: dict[str, he.HEModel]) -> he.HEModel:
    """The one whose turns are smaller, and several."""
    return models["client-aided"]


def process(step: str, folder: Path, *more: str) -> None:
    words = [sys.executable, "-m", "tests.jobs.he_files", step, str(folder), *more]
    ended = python.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM)
    assert ended.returncode == 0, ended.stderr


def answered(server: he.Server, batch: he.ClientBatch) -> Any:
    while not batch.complete:
        batch.accept(server.answer(batch.request()))
    return batch.result()


@pytest.mark.parametrize("mode", every(2, MODES))
def test_the_whole_way_in_separate_processes(tmp_path: Path, models: dict[str, he.HEModel], mode: str) -> None:
    client, server, x = tmp_path / "client", tmp_path / "server", images(5)
    client.mkdir()
    server.mkdir()
    process("convert", server, mode)
    (server / "client.json").rename(client / "client.json")
    torch.save(x, client / "images.pt")
    process("keys", client)
    process("encrypt", client)
    public = models[mode].public
    for turn in public.turns:  # the files have the sizes that the plan predicts
        assert not (client / "outputs.pt").exists()
        (client / "request").replace(server / "request")
        process("answer", server)
        sizes = [(server / name).stat().st_size - HEAD for name in ("request", "answer")]
        assert tuple(sizes) == public.turn_bytes(turn)
        (server / "answer").replace(client / "answer")
        process("decrypt", client)
    assert {path.name for path in server.iterdir()} == {"net.server", "request"}
    outputs, net = torch.load(client / "outputs.pt", weights_only=True), FILE_NETS[mode]()
    with served(Service(models[mode].server)) as address, RemoteModel(address, timeout=HANG) as remote:
        over_a_connection = remote(x)
    assert close(outputs, net, x) and close(over_a_connection, net, x)
    for path in (client / "my.client", client / "my.batch", server / "net.server"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", MODES)
def test_a_server_from_a_file_computes_the_same(tmp_path: Path, models: dict[str, he.HEModel], mode: str) -> None:
    server, x = models[mode].server, images(3)
    server.save(tmp_path / "net.server")
    loaded = he.Server.load(tmp_path / "net.server")
    assert loaded.public.to_json() == server.public.to_json() and loaded.memory == server.memory
    assert close(answered(loaded, he.Client(server.public).begin(x)), FILE_NETS[mode](), x)
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "net.server").read_bytes()
    request = he.Client(server.public).begin(x).request()
    same = server.answer(request) == loaded.answer(request)
    assert same == (mode == "client-aided")  # the answers of polynomial mode have new masks every time


def masks(request: bytes) -> list[bytes]:
    """The seed of the first slice and the ciphertexts behind it."""
    return [request[HEAD : HEAD + SEED_BYTES], request[HEAD + SEED_BYTES :]]


@pytest.mark.parametrize("mode", MODES)
def test_copies_of_a_saved_batch_encrypt_under_other_masks(
    tmp_path: Path, models: dict[str, he.HEModel], mode: str
) -> None:
    """As after a crash, or where two processes have the same files."""
    server, x = models[mode].server, images(2)
    client = he.Client(server.public)
    client.save(tmp_path / "my.client")
    batch = client.begin(x)
    requests = [batch.request(), batch.request()]
    batch.save(tmp_path / "my.batch")
    copies = [he.Client.load(tmp_path / "my.client").resume(tmp_path / "my.batch") for _ in range(2)]
    requests += [copy.request() for copy in copies]
    for part in (0, 1):
        assert len({masks(request)[part] for request in requests}) == len(requests)
    for copy, request in zip([batch, *copies], requests[1:], strict=True):  # and each goes on by itself
        copy.accept(server.answer(request))
        assert close(answered(server, copy), FILE_NETS[mode](), x)


def test_a_fork_draws_other_seeds() -> None:
    """The seeds of `Coins` come from the system at each draw, so a fork does not repeat them."""
    reading, writing = os.pipe()
    child = os.fork()  # it draws seeds only: it has none of the parent's threads for arithmetic
    if not child:
        os.write(writing, prg.new_seed())
        os._exit(0)
    mine, theirs = prg.new_seed(), os.read(reading, SEED_BYTES)
    assert os.waitpid(child, 0)[1] == 0 and len(theirs) == SEED_BYTES and theirs != mine
    os.close(reading)
    os.close(writing)


def test_no_file_has_a_mask(tmp_path: Path, model: he.HEModel) -> None:
    batch = he.Client(model.public).begin(images(1))
    seed = masks(batch.request())[0]
    batch.save(tmp_path / "my.batch")
    assert seed not in (tmp_path / "my.batch").read_bytes()


def test_a_batch_of_another_client_is_refused(tmp_path: Path, model: he.HEModel) -> None:
    one, other = he.Client(model.public), he.Client(model.public)
    batch = one.begin(images(1))
    request = batch.request()
    batch.save(tmp_path / "my.batch")
    names = [files.client_name(client._key.seed) for client in (one, other)]
    with pytest.raises(AgreementError, match=f"of client {names[0]}, this is client {names[1]}"):
        other.resume(tmp_path / "my.batch")
    theirs = other.begin(images(1))
    heads = [records.read(text[:HEAD], messages.MessageHead, name="head") for text in (request, theirs.request())]
    with pytest.raises(AgreementError, match=f"for batch {heads[0].batch}, this is batch {heads[1].batch}"):
        theirs.accept(model.server.answer(request))
    assert close(answered(model.server, theirs), FILE_NETS["client-aided"](), images(1))  # nothing was changed


def test_another_net_is_refused_by_both_digests(models: dict[str, he.HEModel]) -> None:
    aided, polynomial = models["client-aided"], models["polynomial"]
    digests = [messages.digest(model.public.to_json().encode())[:16] for model in (aided, polynomial)]
    batch = he.Client(aided.public).begin(images(1))
    request = batch.request()
    with pytest.raises(AgreementError, match=f"digest {digests[0]}, this is the net {digests[1]}"):
        polynomial.server.answer(request)
    strange = polynomial.server.answer(he.Client(polynomial.public).begin(images(1)).request())
    with pytest.raises(AgreementError, match=f"digest {digests[1]}, this is the net {digests[0]}"):
        batch.accept(strange)


def with_body(message: bytes, body: bytes) -> bytes:
    return records.read(message[:HEAD], messages.MessageHead, name="head").pack([body])


def with_head(message: bytes, **changed: Any) -> bytes:
    head = records.read(message[:HEAD], messages.MessageHead, name="head")
    return json.dumps({**records.plain(head), **changed}).encode().ljust(HEAD) + message[HEAD:]


@pytest.mark.parametrize(
    ("change", "error", "what"),
    [
        (lambda m: with_head(m, release="0.0.9"), AgreementError, r"release 0.0.9 in format 2, this is 0\.1\.0 with 2"),
        (lambda m: with_head(m, format=1), AgreementError, r"release 0.1.0 in format 1, this is 0\.1\.0 with 2"),
        (lambda m: with_head(m, kind="he-answer"), AgreementError, "this is 'he-answer', and 'he-request' is needed"),
        (lambda m: with_head(m, turn=2), InputError, "turn 2 of 2"),
        (lambda m: with_head(m, turn=1), InputError, r"\d+ bytes, and turn 1 has \d+"),
        (lambda m: m[:-1], InputError, r"\d+ bytes, and turn 0 has \d+"),
        (lambda m: m + b"\0", InputError, r"\d+ bytes, and turn 0 has \d+"),
        (lambda m: m[:100], InputError, "malformed head"),
        (lambda m: b"", InputError, "malformed head"),
        (lambda m: random.Random(0).randbytes(len(m)), InputError, "malformed head"),
        (lambda m: m[: HEAD + SEED_BYTES] + b"\xff" * (len(m) - HEAD - SEED_BYTES), InputError, "have the digest"),
        (lambda m: m[:-1] + bytes([m[-1] ^ 1]), InputError, "have the digest"),
        (
            lambda m: with_body(m, m[HEAD : HEAD + SEED_BYTES] + b"\xff" * (len(m) - HEAD - SEED_BYTES)),
            InputError,
            "its prime",
        ),
        (lambda m: m.decode("latin1"), InputError, "expected bytes, got str"),
    ],
)
def test_damaged_requests_are_refused(
    model: he.HEModel, change: Callable[[bytes], Any], error: type[HummingbirdError], what: str
) -> None:
    request = he.Client(model.public).begin(images(1)).request()
    with pytest.raises(error, match=what) as caught:
        model.server.answer(change(request))
    assert caught.value.hint


def test_a_refused_answer_changes_nothing(models: dict[str, he.HEModel]) -> None:
    for mode, model in models.items():
        batch, x = he.Client(model.public).begin(images(2)), images(2)
        answer = model.server.answer(batch.request())
        for wrong in (
            answer[:-1],
            with_body(answer, b"\xff" * (len(answer) - HEAD)),
            b"",
            with_head(answer, kind="he-request"),
        ):
            with pytest.raises(HummingbirdError):
                batch.accept(wrong)
        batch.accept(answer)
        assert close(answered(model.server, batch), FILE_NETS[mode](), x)
        for use in (batch.request, lambda batch=batch, answer=answer: batch.accept(answer)):
            with pytest.raises(InputError, match="the batch is complete|no answer is due"):
                use()


def test_an_answer_that_is_wrong_in_its_last_slice_is_forgotten(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = torch.nn.Conv2d(1, 4, 2), torch.nn.Conv2d(1, 2, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(x)

    net, x = Net().eval(), images(3)
    model = he.convert_model(net, SHAPE)
    client = he.Client(model.public)
    batch = client.begin(x)
    answer = model.server.answer(batch.request())
    last = model.public.down_bytes(model.public.turns[0].returns[1], 32)
    with pytest.raises(InputError, match="not below its prime"):
        batch.accept(with_body(answer, answer[HEAD:-last] + b"\xff" * last))
    batch.save(tmp_path / "my.batch")  # without what was refused
    assert not batch.complete
    resumed = client.resume(tmp_path / "my.batch")
    for each in (batch, resumed):
        each.accept(answer)
    assert torch.equal(batch.precision.predicted, resumed.precision.predicted)
    for got, wanted in zip(batch.result(), net(x), strict=True):
        assert bool((got - wanted).abs().max() < 2**-9 * wanted.abs().max())
    other = client.begin(x)  # the precision is counted once
    answered(model.server, other)
    assert torch.allclose(batch.precision.predicted, other.precision.predicted, atol=0.1)


def test_steps_out_of_order_are_refused(tmp_path: Path, model: he.HEModel) -> None:
    batch = he.Client(model.public).begin(images(1))
    with pytest.raises(InputError, match="saved while an answer is due"):
        batch.save(tmp_path / "my.batch")
    with pytest.raises(InputError, match="no answer is due"):
        batch.accept(b"")
    first = model.server.answer(batch.request())
    batch.accept(first)
    batch.request()
    with pytest.raises(InputError, match="an answer for turn 0, turn 1 is due"):
        batch.accept(first)
    for _ in range(2):
        with pytest.raises(InputError, match="slices of the turn before are missing"):
            batch.result()
    batch.accept(model.server.answer(batch.request()))
    assert batch.complete


def test_a_turn_that_cannot_be_encrypted_is_not_complete(tmp_path: Path, model: he.HEModel) -> None:
    """An image's values beyond any scale are found when the turn begins, each time."""
    client = he.Client(model.public)
    batch = client.begin(images(1) * 1e30)
    for _ in range(2):
        with pytest.raises(InputError, match="scale out of bounds"):
            batch.request()
        assert not batch.complete
    batch.save(tmp_path / "my.batch")
    with pytest.raises(InputError, match="scale out of bounds"):
        client.resume(tmp_path / "my.batch").request()


def test_a_client_s_file_is_not_written_over(tmp_path: Path, model: he.HEModel) -> None:
    client = he.Client(model.public)
    client.save(tmp_path / "my.client")
    with pytest.raises(InputError, match="the file is there already"):
        client.save(tmp_path / "my.client")
    with pytest.raises(InputError, match="cannot write"):
        client.save(tmp_path / "none" / "my.client")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, model: he.HEModel) -> tuple[Path, dict[str, Callable[[Path], Any]]]:
    """A folder with a file of each kind, and how each is loaded."""
    folder = tmp_path_factory.mktemp("saved")
    client = he.Client(model.public)
    client.save(folder / "client")
    model.server.save(folder / "server")
    batch = client.begin(images(1))
    batch.request()
    batch.save(folder / "batch")
    return folder, {"client": he.Client.load, "server": he.Server.load, "batch": client.resume}


@pytest.mark.parametrize("kind", ["client", "server", "batch"])
def test_damaged_files_are_refused(
    tmp_path: Path, saved: tuple[Path, dict[str, Callable[[Path], Any]]], kind: str
) -> None:
    """Every change of a file is found: a seal covers the record and the tensors."""
    folder, loads = saved
    load, whole, path = loads[kind], (folder / kind).read_bytes(), tmp_path / "damaged"
    load(folder / kind)
    rng = random.Random(kind)
    damaged = [whole[:-1], whole + b"\0", b"", rng.randbytes(200), rng.randbytes(len(whole)), whole[:8] * 9]
    for _ in range(150):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        damaged += [bytes(data), whole[: rng.randrange(len(whole))]]
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(HummingbirdError) as caught:
            load(path)
        assert str(path) in str(caught.value) and caught.value.hint
    for other in {"client", "server", "batch"} - {kind}:
        with pytest.raises(AgreementError, match=f"this is 'he-{other}', and 'he-{kind}' is needed"):
            load(folder / other)
    path.write_bytes(whole.replace(b"0.1.0", b"0.0.9"))
    with pytest.raises(AgreementError, match=r"made by release 0\.0\.9 in format 2, this is 0\.1\.0 with 2"):
        load(path)
    with pytest.raises(InputError, match="cannot read"):
        load(tmp_path / "none")
    with pytest.raises(InputError, match="cannot read"):
        load(tmp_path)


def test_a_sealed_file_with_other_programs_is_refused(tmp_path: Path, models: dict[str, he.HEModel]) -> None:
    """A file whose seal is right, and whose programs do not fit the description."""
    public, (program,) = models["polynomial"].public, models["polynomial"].plan.programs
    for wrong in (
        replace(program, masks=()),  # the weights would not be hidden
        replace(program, returns=(99,)),
        replace(program, operations=(replace(program.operations[0], source=5), *program.operations[1:])),
        replace(program, received=replace(program.received, count=3)),
    ):
        files.write_server(tmp_path / "net.server", public, (wrong,))
        with pytest.raises(InputError, match="no programs of a server"):
            he.Server.load(tmp_path / "net.server")


def test_a_full_batch_and_one_too_large(model: he.HEModel) -> None:
    client, x = he.Client(model.public), images(model.public.slots)
    assert close(answered(model.server, client.begin(x)), FILE_NETS["client-aided"](), x)
    with pytest.raises(InputError, match=f"1 to {model.public.slots}"):
        client.begin(images(model.public.slots + 1))


def test_a_tuple_of_values_survives_its_file(tmp_path: Path) -> None:
    """A batch keeps the parts of a split for later turns, one by one."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = torch.nn.Conv2d(1, 4, 2), torch.nn.Conv2d(2, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            one, two = self.a(x).relu().split(2, 1)
            return self.b(one).relu() + two

    net, x = Net().eval(), images(3)
    model = he.convert_model(net, SHAPE)
    client = he.Client(model.public)
    batch = client.begin(x)
    while not batch.complete:
        request = batch.request()
        batch.save(tmp_path / "my.batch")
        batch = client.resume(tmp_path / "my.batch")
        batch.accept(model.server.answer(request))
    assert close(batch.result(), net, x)
