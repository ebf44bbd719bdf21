"""Snippets of docs/programs.md run: exported programs, and nets of transformers by name."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hummingbird.__main__ import main
from hummingbird.commands.sources import pretrained
from hummingbird.errors import InputError
from tests.support.pages import blocks
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "programs.md"
EXPORTED, WORDS = blocks(PAGE, "python")
LINES = [line for block in blocks(PAGE, "sh") for line in block.strip().splitlines()]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns of its own code
        yield tmp_path


def estimated(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(shlex.split(line)[3:]) == 0
    return capsys.readouterr().out


def test_an_exported_program(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(EXPORTED, str(PAGE), "exec"), {})
    assert "1 layers with a window" in capsys.readouterr().out
    assert "bits" in estimated(LINES[0], capsys)


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.mark.slow
def test_pictures_by_a_net_of_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers are not installed")
    vit = transformers.ViTConfig(image_size=64, patch_size=16, num_labels=3, **SMALL)
    transformers.ViTForImageClassification(vit).save_pretrained("vit")
    assert "bits" in estimated(LINES[1], capsys)


@pytest.mark.slow
def test_words_by_a_net_of_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers are not installed")
    bert = transformers.BertConfig(vocab_size=64, max_position_embeddings=32, **SMALL)
    transformers.BertForSequenceClassification(bert).half().save_pretrained("bert")
    Path("my_words.py").write_text(WORDS)
    assert {weight.dtype for weight in pretrained("bert").parameters()} == {torch.float32}
    assert "bits" in estimated(LINES[2], capsys) and len(LINES) == 3


def test_a_name_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="Hugging Face's transformers are not installed")
    monkeypatch.setenv("HF_HOME", os.getcwd())
    with pytest.raises(InputError, match="neither a folder nor in the cache.*\n.*save_pretrained"):
        pretrained("nobody/nothing")
    assert main(["estimate", "--model", "hf:nobody/nothing", "--input", "1x3x8x8"]) != 0
    assert "hf:nobody/nothing" in capsys.readouterr().err
    assert main(["estimate", "--model", "net.pt2", "more", "--input", "1x3x8x8"]) != 0
    assert "takes no arguments" in capsys.readouterr().err
    Path("config.json").write_text('{"model_type": "bert", "architectures": ["Own"]}')
    with pytest.raises(InputError, match="no class of transformers"):
        pretrained(os.getcwd())
