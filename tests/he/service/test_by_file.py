"""he-convert, he-keygen, he-encrypt, he-evaluate and he-decrypt: the whole way in processes, and what is refused."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hummingbird import he, records
from hummingbird.__main__ import main
from hummingbird.he.runtime import messages
from models import trained
from scripts.papers.fhe_suite.install import WEIGHTS, plan
from scripts.train.data import load
from tests.support import python
from tests.support.data import data_folder
from tests.support.he_service import SHAPE, close, images, small_net, square_net
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM

COMMAND = [sys.executable, "-m", "hummingbird"]
HEAD = messages.HEAD_BYTES
MANY = 2049  # two batches: a full one, and one of a single image


def program(folder: Path, *words: str) -> str:
    """Run a program in a folder; return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    how = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "timeout": PROGRAM}
    ended = python.run([*COMMAND, *words], **how)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_whole_way_in_processes(tmp_path: Path) -> None:
    """Each party has a folder, and only what it may have is moved to the other's."""
    owner, client, x = tmp_path / "owner", tmp_path / "client", images(MANY)
    owner.mkdir()
    client.mkdir()
    np.save(client / "x.npy", x.numpy())
    net = ["--model", "tests.support.he_service:square_net", "--input", "1x6x6", "--range", "1"]
    said = program(owner, "he-convert", *net, "--out", "net.server", "--public", "client.json")
    assert "polynomial inference" in said and "net.server is for the server" in said
    (owner / "client.json").rename(client / "client.json")
    public = he.Public.from_json((client / "client.json").read_bytes())
    program(client, "he-keygen", "--public", "client.json", "--out", "my.client")
    files = ["--client", "my.client", "--batches", "my.batches"]
    program(client, "he-encrypt", *files, "--images", "x.npy", "--request", "request")
    (client / "request").rename(owner / "request")
    said = program(owner, "he-evaluate", "--net", "net.server", "--request", "request", "--out", "answer")
    assert said.startswith(f"done: {-(-MANY // public.slots)} requests in ")
    (owner / "answer").rename(client / "answer")
    with torch.inference_mode():
        np.save(client / "y.npy", square_net()(x).argmax(1).numpy())
    said = program(client, "he-decrypt", *files, "--answer", "answer", "--labels", "y.npy", "--out", "out.npy")
    assert f"{MANY} images in " in said and "accuracy " in said
    assert close(torch.from_numpy(np.load(client / "out.npy")), square_net(), x)

    (turn,), batches = public.turns, sorted((client / "my.batches").iterdir())
    sizes = [(owner / "request").stat().st_size, (client / "answer").stat().st_size]
    assert len(batches) == -(-MANY // public.slots) == 2
    assert sizes == [len(batches) * (HEAD + size) for size in public.turn_bytes(turn)]  # as the plan predicts
    assert {mode(path) for path in (client / "my.client", owner / "net.server", *batches)} == {0o600}
    assert mode(client / "my.batches") == 0o700
    key = he.Client.load(client / "my.client")._key.seed
    assert not any(key in path.read_bytes() for path in owner.iterdir())  # nothing of the key is at the server


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients of one net, with requests, batches and answers, and the files of another net."""
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(1)
    for name, net in (("net", square_net()), ("other", square_net())):
        if name == "other":
            net.linear = torch.nn.Linear(16, 4)
        model = he.convert_model(net, SHAPE, "polynomial", input_range=1.0)
        model.server.save(folder / f"{name}.server")
        (folder / f"{name}.json").write_text(model.public.to_json())
    np.save(folder / "x.npy", images(3).numpy())
    for client, net in (("a", "net"), ("b", "net"), ("c", "other")):
        run = Runner(folder)
        run("he-keygen", f"--public={net}.json", f"--out={client}.client")
        run(
            "he-encrypt",
            f"--client={client}.client",
            "--images=x.npy",
            f"--request={client}.request",
            f"--batches={client}",
        )
        run("he-evaluate", f"--net={net}.server", f"--request={client}.request", f"--out={client}.answer")
    return folder


class Runner:
    """Programs in this process; options of the form --NAME=FILE name files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str, fails: bool = False) -> None:
        full = [word.replace("=", f"={self.folder}/", 1) if "=" in word else word for word in words]
        assert main(full) == (1 if fails else 0)


def doubled(data: bytes) -> bytes:
    """Two whole messages: a server answers each, and a client has one batch only."""
    return data * 2


def nothing(data: bytes) -> bytes:
    return b""


def cut(data: bytes) -> bytes:
    return data[:-1]


def longer(data: bytes) -> bytes:
    return data + b"x"


def flipped(data: bytes) -> bytes:
    """One bit of the last ciphertext's lowest bits: its residue stays below its prime, and it decrypts to noise."""
    at = len(data) - 1000
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def resealed(data: bytes) -> bytes:
    """The same bit, with the digest of the changed bytes: what a dishonest server could send."""
    return records.read(data[:HEAD], messages.MessageHead, name="head").pack([flipped(data)[HEAD:]])


def noise(data: bytes) -> bytes:
    return os.urandom(len(data))


def noise_behind_the_head(data: bytes) -> bytes:
    return data[:HEAD] + os.urandom(len(data) - HEAD)


EVALUATE = ("he-evaluate", "--out=out")
DECRYPT = ("he-decrypt", "--out=out.npy")
A, B = "--client=a.client --batches=a --answer=", "--client=b.client --batches=a --answer=a.answer"
CASES: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "another net's requests": ((*EVALUATE, "--net=net.server", "--request=c.request"), ["digest", "this is the net"]),
    "an answer for a request": ((*EVALUATE, "--net=net.server", "--request=a.answer"), ["he-answer", "he-request"]),
    "a client's file for a net": ((*EVALUATE, "--net=a.client", "--request=a.request"), ["he-client", "he-server"]),
    "a net for a client's file": ((*DECRYPT, "--client=net.server", "--batches=a", "--answer=a.answer"), ["he-server"]),
    "another client's key": ((*DECRYPT, *B.split()), ["the batch is of client", "this is client"]),
    "another client's answer": ((*DECRYPT, *(A + "b.answer").split()), ["an answer for batch", "this is batch"]),
    "another net's answer": ((*DECRYPT, *(A + "c.answer").split()), ["digest", "this is the net"]),
    "no batches": ((*DECRYPT, "--client=a.client", "--batches=none", "--answer=a.answer"), ["no batches"]),
    "no request": ((*EVALUATE, "--net=net.server", "--request=none"), ["cannot read", "none"]),
    "no description": (("he-keygen", "--public=none", "--out=d.client"), ["cannot read", "he-convert"]),
    "a net for a description": (("he-keygen", "--public=net.server", "--out=d.client"), ["net.server", "--public"]),
    "no folder for the outputs": (
        ("he-decrypt", "--out=none/x.npy", "--client=a.client", "--batches=a", "--answer=a.answer"),
        ["no folder"],
    ),
    "no folder for the answers": (
        ("he-evaluate", "--out=none/x", "--net=net.server", "--request=a.request"),
        ["cannot write"],
    ),
    "a key that is there": (("he-keygen", "--public=net.json", "--out=a.client"), ["there already"]),
    "batches that wait": (
        ("he-encrypt", "--client=a.client", "--images=x.npy", "--request=out", "--batches=a"),
        ["has 1 batches already"],
    ),
    "a request in place of the key": (
        ("he-encrypt", "--client=a.client", "--images=x.npy", "--request=a.client", "--batches=new"),
        ["one file for both"],
    ),
    "neither way": (("he-evaluate", "--net=net.server", "--request=a.request"), ["--follow"]),
}


@pytest.mark.parametrize("name", CASES)
def test_files_that_do_not_fit_each_other(made: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, expected = CASES[name]
    before = {path.name: path.stat().st_mtime_ns for path in made.rglob("*")}
    Runner(made)(*words, fails=True)
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "\nhint: " in said and all(text in said for text in expected), said
    assert {path.name: path.stat().st_mtime_ns for path in made.rglob("*")} == before  # nothing was written


@pytest.mark.parametrize("change", [cut, longer, flipped, resealed, noise, noise_behind_the_head, nothing, doubled])
@pytest.mark.parametrize("kind", ["request", "answer"])
def test_damaged_files(
    made: Path, tmp_path: Path, kind: str, change: Callable[[bytes], bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "made"
    shutil.copytree(made, copy)
    (copy / f"a.{kind}").write_bytes(change((made / f"a.{kind}").read_bytes()))
    if kind == "request":
        words = (*EVALUATE, "--net=net.server", "--request=a.request")
    else:
        words = (*DECRYPT, *(A + "a.answer").split())
    if kind == "request" and change in (doubled, resealed):  # the server cannot tell, and the client can
        Runner(copy)(*words)
        words = (*DECRYPT, *(A + "out").split())
        kind = "out"
        capsys.readouterr()
    Runner(copy)(*words, fails=True)
    said = capsys.readouterr().err
    assert f"{copy}/" in said and "\nhint: " in said and ("to noise" in said) == (change is resealed), said
    assert ("have the digest" in said) == (change in (flipped, noise_behind_the_head)), said
    assert not (copy / "out.npy").exists() and (kind == "out" or not (copy / "out").exists())


def test_a_net_of_several_turns_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.json").write_text(he.make_plan(small_net(), SHAPE).public.to_json())
    Runner(tmp_path)("he-keygen", "--public=net.json", "--out=my.client", fails=True)
    said = capsys.readouterr().err
    assert "2 turns, and files carry one" in said and "he-client" in said and not (tmp_path / "my.client").exists()


def test_a_server_that_follows(made: Path, tmp_path: Path) -> None:
    """One load of the net, several files, and an error does not end it; an empty line does."""
    lines = [
        f"{made}/a.request\t{tmp_path}/first",
        "no tab",
        f"{made}/c.request\t{tmp_path}/second",
        f"{made}/b.request\t{tmp_path}/third",
        "",
        f"{made}/b.request\t{tmp_path}/fourth",
    ]
    words = [*COMMAND, "he-evaluate", "--net", str(made / "net.server"), "--follow"]
    how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    with python.Popen(words, **how) as child:
        said, _ = child.communicate("\n".join(lines), timeout=PROGRAM)
    starts = [
        "ready: net ",
        "done: 1 requests",
        "error: a line without a tab",
        "error: made for the net",
        "done: 1 req",
    ]
    assert child.returncode == 0 and len(said.splitlines()) == len(starts)
    assert all(line.startswith(start) for line, start in zip(said.splitlines(), starts, strict=True)), said
    assert {path.name for path in tmp_path.iterdir()} == {"first", "third"}
    shutil.copy(tmp_path / "third", made / "again.answer")
    Runner(made)(
        "he-decrypt", "--client=b.client", "--batches=b", "--answer=again.answer", f"--out=../{tmp_path.name}.npy"
    )
    assert close(torch.from_numpy(np.load(made.parent / f"{tmp_path.name}.npy")), square_net(), images(3))


def test_accuracy_on_mnist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """300 test images through the shipped net: the answers are those in the clear, and at least 97 % are right."""
    folder = data_folder("mnist")
    samples, (x, y) = load("mnist", "train", folder)[0][:500], load("mnist", "test", folder)
    made = plan(WEIGHTS, samples)
    assert made.public.parameters.degree == 4096 and len(made.public.parameters.primes) == 4
    he.Server(made).save(tmp_path / "net.server")
    (tmp_path / "net.json").write_text(made.public.to_json())
    np.save(tmp_path / "x.npy", x[:300].numpy())
    np.save(tmp_path / "y.npy", y[:300].numpy())
    run = Runner(tmp_path)
    run("he-keygen", "--public=net.json", "--out=my.client")
    run("he-encrypt", "--client=my.client", "--images=x.npy", "--request=request", "--batches=b")
    run("he-evaluate", "--net=net.server", "--request=request", "--out=answer")
    run("he-decrypt", "--client=my.client", "--batches=b", "--answer=answer", "--labels=y.npy", "--out=out.npy")
    got = torch.from_numpy(np.load(tmp_path / "out.npy")).argmax(1)
    with torch.inference_mode():
        wanted = trained("one-square", 10, str(WEIGHTS))(x[:300]).argmax(1)
    assert torch.equal(got, wanted)
    assert int((got == y[:300]).sum()) >= 291 and "accuracy 9" in capsys.readouterr().out
