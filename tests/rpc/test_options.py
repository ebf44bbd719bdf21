"""Options that programs share: what they read, and what they refuse."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
import torch

from hummingbird.errors import InputError, TrustError
from hummingbird.rpc import options
from hummingbird.rpc.admission import Limits
from hummingbird.rpc.server import ServiceConfig
from hummingbird.rpc.service import Tls


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (options.positive, {"0.5": 0.5, "1e9": 1e9}, ["0", "-1", "inf", "nan", "x", ""]),
        (
            options.share,
            {"5": (None, 5), "a=5": ("a", 5), "a=b=5": ("a=b", 5)},
            ["=5", "a=", "a=x", "a", "0", "a=0", ""],
        ),
        (options.count, {"1": 1, "16": 16}, ["0", "-1", "1.5", "x", "", "1e3"]),
        (options.shape, {"3x32x32": (3, 32, 32), "3,4": (3, 4), "7": (7,)}, ["3x0x1", "-3x4", "3xx4", "x", ""]),
    ],
)
def test_numbers(kind: object, good: dict[str, object], bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--it", type=kind)  # type: ignore[arg-type]
    for text, value in good.items():
        assert parser.parse_args([f"--it={text}"]).it == value
    for text in bad:
        with pytest.raises(SystemExit):
            parser.parse_args([f"--it={text}"])
        assert repr(text) in capsys.readouterr().err


def test_certificates_are_three_or_none() -> None:
    parser = argparse.ArgumentParser()
    options.add_tls(parser, ca="the authority's")
    assert "the authority's" in parser.format_help()

    def read(*given: str) -> Tls | None:
        return options.tls_of(parser.parse_args([f"--tls-{name}={name}.pem" for name in given]))

    assert read() is None
    assert read("cert", "key", "ca") == Tls(Path("cert.pem"), Path("key.pem"), Path("ca.pem"))
    for given, missing in ((["cert"], "no --tls-key and no --tls-ca"), (["ca", "key"], "there is no --tls-cert")):
        with pytest.raises(InputError, match=missing):
            read(*given)


def service(*words: str, caller: bool = False) -> tuple[ServiceConfig, argparse.Namespace]:
    """The configuration of a service, of one that calls too where `caller`."""
    parser = argparse.ArgumentParser()
    options.add_service(parser)
    if caller:
        options.add_token(parser)
    args = parser.parse_args(["--listen", "unix:s", *words])
    return options.service_of(args), args


CERT, KEY, CA = (f"--tls-{name}={name}.pem" for name in ("cert", "key", "ca"))


def test_the_options_of_a_service() -> None:
    assert service()[0] == ServiceConfig(("unix:s",))
    assert service(CERT, KEY, CA)[0].tls == Tls(Path("cert.pem"), Path("key.pem"), Path("ca.pem"))
    assert service(CERT, KEY, "--tokens=t")[0].tls == Tls(Path("cert.pem"), Path("key.pem"))
    full = service(
        "--metrics=9100", "--log=-", "--max-requests=5", "--max-per-client=2", "--max-connections=9", "--grace=3"
    )
    limits = Limits(requests=5, per_client=2, connections=9)
    assert full[0] == ServiceConfig(("unix:s",), metrics="9100", log="-", limits=limits, grace=3.0)
    named = service("--max-per-client", "gateway=200", "8", "trial=2")[0].limits
    assert named == Limits(per_client=8, named={"gateway": 200, "trial": 2})
    for twice in (("8", "9"), ("a=8", "a=9")):
        with pytest.raises(InputError, match="two limits"):
            service("--max-per-client", *twice)
    for words, error in (
        ((CERT, KEY), InputError),  # nobody would have to show anything
        ((CERT, KEY, CA, "--tokens=t"), TrustError),
        ((CA, "--tokens=t"), InputError),
        ((CERT, "--tokens=t"), InputError),
    ):
        with pytest.raises(error):
            service(*words)


def test_the_options_of_a_caller(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("ab" * 32)
    token.chmod(0o600)
    parser = argparse.ArgumentParser()
    options.add_caller(parser)

    def read(*words: str) -> dict[str, object]:
        return options.caller_of(parser.parse_args(words))

    mutual = Tls(Path("cert.pem"), Path("key.pem"), Path("ca.pem"))
    mine = f"--token-file={token}"
    assert read() == {"tls": None, "token": None}
    assert read(CERT, KEY, CA) == {"tls": mutual, "token": None}
    assert read(CA, mine) == {"tls": Tls(ca=Path("ca.pem")), "token": "ab" * 32}
    assert read(mine) == {"tls": None, "token": "ab" * 32}
    with pytest.raises(InputError, match="no --tls-cert and no --tls-key"):
        read(CA)
    # A proxy: its certificate for users, a token for the server behind it.
    config, args = service(CERT, KEY, CA, "--tokens=t", mine, caller=True)
    assert config.tls == Tls(Path("cert.pem"), Path("key.pem"))
    assert options.caller_of(args) == {"tls": Tls(ca=Path("ca.pem")), "token": "ab" * 32}
    config, args = service(CERT, KEY, CA, mine, caller=True)
    assert config.tls == mutual and options.caller_of(args)["tls"] == Tls(ca=Path("ca.pem"))


def test_one_value_is_decided_by_its_threshold_and_several_by_the_largest() -> None:
    assert options.decided(torch.tensor([[0.2], [0.7]])).tolist() == [0, 1]
    assert options.decided(torch.tensor([-0.2, 0.1, 3.0])).tolist() == [0, 1, 1]
    assert options.decided(torch.tensor([[0.2, 0.1], [0.3, 0.7]])).tolist() == [0, 1]
    assert options.accuracy(torch.tensor([[0.2], [0.7]]), torch.tensor([1, 1])) == "accuracy 50.00 %, 1 of 2"


def images_of(folder: Path, *words: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    parser = argparse.ArgumentParser()
    options.add_images(parser, "logits")
    return options.images_of(parser.parse_args(["--images", str(folder / "x.npy"), *words]))


def test_images_and_labels(tmp_path: Path) -> None:
    x, y = np.arange(6, dtype=np.uint8).reshape(2, 3), np.array([2, 0])
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    images, labels = images_of(tmp_path)
    assert images.dtype == torch.float32 and images.tolist() == x.tolist() and labels is None
    _, labels = images_of(tmp_path, "--labels", str(tmp_path / "y.npy"), "--out", str(tmp_path / "new.npy"))
    assert labels is not None and labels.tolist() == [2, 0]
    assert options.accuracy(images, labels) == "accuracy 50.00 %, 1 of 2"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--images", "none.npy"], "cannot read .*none.npy: .*at --images"),
        (["--images", "text.npy"], "cannot read .*text.npy"),
        (["--images", "words.npy"], "holds no array of numbers"),
        (["--images", "empty.npy"], "holds no array of numbers"),
        (["--images", "number.npy"], "holds no array of numbers"),
        (["--labels", "x.npy"], r"labels are \(2, 3\), expected \(2,\)"),
        (["--labels", "none.npy"], "at --labels"),
        (["--out", "none/y.npy"], "there is no folder .*none"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, words: list[str], what: str) -> None:
    (tmp_path / "text.npy").write_text("1 2 3")
    for name, array in {"x": np.zeros((2, 3)), "words": np.array(["a"]), "empty": np.zeros(0), "number": 1.0}.items():
        np.save(tmp_path / f"{name}.npy", array)
    option, file = words
    with pytest.raises(InputError, match=what):
        images_of(tmp_path, option, str(tmp_path / file))
