"""The submission for the FHE Benchmarking Suite: its layout, and its stages as the suite's harness calls them."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hummingbird import he
from models import trained
from scripts.papers.fhe_suite import install, pixels
from tests.support.patience import PROGRAM, until

STAGES = (  # in the order of harness/run_submission.py, with the folder whose size it reports after each
    ("client_key_generation", "public_keys"),
    ("server_preprocess_model", None),
    ("client_preprocess_input", None),
    ("client_encode_encrypt_input", "ciphertexts_upload"),
    ("server_encrypted_compute", "ciphertexts_download"),
    ("client_decrypt_decode", None),
    ("client_postprocess", None),
)
COUNT = 15  # images of the size "small"


def drawn(count: int) -> torch.Tensor:
    """Strokes of pixels in [0, 1], (count, 1, 28, 28), in steps of 1/255."""
    torch.manual_seed(3)
    smooth = torch.nn.functional.avg_pool2d(torch.rand(count, 1, 28, 28), 3, stride=1, padding=1)
    return ((smooth - 0.5).clamp(0, 0.1) * 10 * 255).round() / 255


def normalised(x: torch.Tensor) -> torch.Tensor:
    return (x - pixels.MEAN) / pixels.DEVIATION


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """A folder with the layout of the suite's repository; its server is told to end at the end."""
    for name in ("harness", "scripts", "submission/src", "datasets/small/intermediate", "io/small"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "harness/run_submission.py").touch()
    (tmp_path / "submission/src/server_encrypted_compute.cpp").touch()
    yield tmp_path
    install.end_server(tmp_path / "submission/build/server.in")


def text_of(x: torch.Tensor) -> str:
    """The pixels as the harness writes them."""
    return "".join(" ".join(f"{pixel:.6f}" for pixel in image.flatten().tolist()) + "\n" for image in x)


@pytest.mark.slow
def test_the_stages_as_the_harness_calls_them(clone: Path) -> None:
    x = drawn(COUNT)
    public = install.install(clone, install.WEIGHTS, normalised(drawn(64)))
    (clone / "datasets/small/intermediate/test_pixels.txt").write_text(text_of(x))
    how = {"cwd": clone, "check": True, "timeout": PROGRAM}
    subprocess.run([clone / "scripts/get_openfhe.sh"], **how)
    subprocess.run([clone / "scripts/build_task.sh", "./submission"], **how)
    programs, io = clone / "submission/build", clone / "io/small"
    for name, folder in STAGES:
        subprocess.run([programs / name] if name == "server_preprocess_model" else [programs / name, "1"], **how)
        assert folder is None or (io / folder).is_dir()
    got = [int(line) for line in (io / "encrypted_model_predictions.txt").read_text().split()]
    with torch.inference_mode():
        wanted = trained("one-square", 10, str(install.WEIGHTS))(normalised(x)).argmax(1).tolist()
    assert got == wanted and len(set(wanted)) > 1
    sizes = [os.path.getsize(io / name) for name in ("ciphertexts_upload/request", "ciphertexts_download/answer")]
    assert sizes == [256 + size for size in public.batch_bytes()]
    assert not [*(io / "public_keys").iterdir()]
    assert stat.S_IMODE((io / "secret_key").stat().st_mode) == 0o700
    assert stat.S_IMODE((io / "secret_key/client").stat().st_mode) == 0o600
    assert {path.name for path in (clone / "submission").iterdir()} >= {"README.md", "build"}
    assert not (clone / "submission/src").exists()

    # A damaged request is an error of the stage, and the server stays up for the right one.
    request = io / "ciphertexts_upload/request"
    whole = request.read_bytes()
    for content, code in ((whole[:-1], 1), (whole, 0)):
        request.write_bytes(content)
        ended = subprocess.run([programs / "server_encrypted_compute", "1"], cwd=clone, timeout=PROGRAM)
        assert ended.returncode == code and (io / "ciphertexts_download/answer").exists() == (not code)

    install.end_server(programs / "server.in")
    until(lambda: not serving(programs), "the server to end")


def serving(programs: Path) -> bool:
    """Whether a process has the server's pipe open."""
    pipe = str(programs / "server.in")
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == pipe and int(link.parts[2]) != os.getpid():
                return True
        except OSError:  # it has ended, or is of another user
            continue
    return False


def test_a_folder_that_is_no_clone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "submission").mkdir()
    with pytest.raises(Exception, match="no clone of the workload: there is no harness"):
        install.install(tmp_path, install.WEIGHTS, normalised(drawn(4)))
    assert (tmp_path / "submission").is_dir()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty"),
        ("0.5 0.5\n", "2 numbers"),
        ("x " * 784, "could not conv"),
        ("nan " * 784, "from 0 to 1"),
    ],
)
def test_pixels_that_are_none(tmp_path: Path, text: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").write_text(text)
    assert pixels.main(["images", str(tmp_path / "in"), str(tmp_path / "out.npy")]) == 1
    assert what in capsys.readouterr().err and not (tmp_path / "out.npy").exists()


def test_pixels_and_labels(tmp_path: Path) -> None:
    x = drawn(3)
    (tmp_path / "in").write_text(text_of(x))
    assert pixels.main(["images", str(tmp_path / "in"), str(tmp_path / "out.npy")]) == 0
    assert torch.allclose(torch.from_numpy(np.load(tmp_path / "out.npy")), normalised(x), atol=1e-5)
    np.save(tmp_path / "logits.npy", np.eye(10, dtype=np.float32)[[3, 1, 4]])
    assert pixels.main(["labels", str(tmp_path / "logits.npy"), str(tmp_path / "labels")]) == 0
    assert (tmp_path / "labels").read_text() == "3\n1\n4\n"


def test_the_client_needs_no_more_pixels_than_the_net_reads() -> None:
    plan = install.plan(install.WEIGHTS, normalised(drawn(64)))
    assert isinstance(plan, he.Plan) and plan.public.turns[0].sent == 20 * 20 + 1
