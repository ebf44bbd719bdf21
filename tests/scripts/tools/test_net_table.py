"""The page of nets: images, calibrated norms, rows from private runs, going on where it stopped."""

from __future__ import annotations

import io
import itertools
import json
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.support.covering import every

pytest.importorskip("torchvision")

from PIL import Image

from hummingbird.errors import InputError
from scripts.tools import net_table as table
from scripts.tools.net_catalogue import NETS, Entry, prepared
from scripts.tools.net_table import ARCHIVE, calibrate, photographs, random_images


def test_norms_are_calibrated_layer_after_layer() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)).eval()
    nn.init.normal_(net[3].weight, 7.0, 20.0)
    images = random_images(32, 12)
    calibrate(net, images)
    assert not net.training and not net[1].training
    out = net(images).transpose(0, 1).flatten(1)
    # Mean 0 and variance 1, but that the running variance divides by n - 1 = 32 * 10 * 10 - 1: 1.6e-4 of a deviation,
    # and of the second layer's mean, which is a few deviations.
    assert torch.allclose(out.mean(1), torch.zeros(5), atol=1e-3)
    assert torch.allclose(out.var(1), torch.ones(5), atol=2e-3)


def test_random_images_are_as_photographs_are_normalised() -> None:
    images = random_images(4, 75)
    assert images.shape == (4, 3, 75, 75) and 0.3 < float(images.std()) < 3
    assert torch.equal(images, random_images(4, 75)) and not torch.equal(images, random_images(4, 75, seed=1))


def test_photographs_come_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUMMINGBIRD_DATA", raising=False)
    assert photographs(2, 64) is None
    with pytest.raises(InputError, match="there is no file"):
        photographs(2, 64, tmp_path)
    (tmp_path / ARCHIVE).parent.mkdir()
    with zipfile.ZipFile(tmp_path / ARCHIVE, "w") as archive:
        for number, mode in enumerate(("RGB", "L")):  # some are grey
            file = io.BytesIO()
            Image.new(mode, (64, 64), 255 if mode == "L" else (255, 0, 0)).save(file, "JPEG")
            archive.writestr(f"images/val_{number}.JPEG", file.getvalue())
    images = photographs(2, 32, tmp_path)
    assert images is not None and images.shape == (2, 3, 32, 32)
    # JPEG is off by a few levels of 255: 0.03 at most, over a deviation of 0.22
    white = torch.tensor([(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225])
    assert torch.allclose(images[1].mean((1, 2)), white, atol=0.03 / 0.22)
    with pytest.raises(InputError, match="damaged"):
        photographs(3, 32, tmp_path)


class Words(nn.Module):
    """A transformer's layer on four words, as a library returns its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        nn.init.zeros_(self.head.weight)

    def forward(self, inputs_embeds: Tensor) -> dict[str, Tensor]:
        x = self.norm(inputs_embeds)
        return {"logits": self.head(self.attention(x, x, x)[0].mean(1))}


TINY = {
    "words": Entry("torch", Words, shape=(4, 8), keyword="inputs_embeds"),
    "images": Entry("torch", lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), 8),
}


@pytest.mark.parametrize(("name", "source"), every(6, [*itertools.product(TINY, table.SOURCES)]))
def test_a_row_comes_from_a_private_run(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUMMINGBIRD_DATA", raising=False)
    row = table.measured(name, TINY[name], source, 2, None, 8.0)
    assert not row.reason and not row.note and 0 < row.error < 1 and row.kept > 0.99
    assert row.rounds > 1 and 0 < row.online < row.offline
    shape = "4 x 8" if name == "words" else "3 x 8 x 8"
    place = f"torch | {shape}" if source == "module" else source
    assert str(row).startswith(f"| {name} | {place} | {row.error:.2g} | ")
    assert "not run" in str(table.measured(name, TINY[name], source, 1, None, 0.0))


def test_a_net_that_does_not_convert_has_a_reason() -> None:
    entry = Entry("torch", lambda: nn.Sequential(nn.LocalResponseNorm(2)), 8)
    row = table.measured("local norm", entry, "module", 1, None, 8.0)
    assert "LocalResponseNorm" in row.reason and "`0`" in str(row)


def test_the_catalogue_has_forty_nets_and_no_head_of_zeros() -> None:
    assert len(NETS) >= 40
    net = prepared(Words())
    assert bool(net.head.weight.any()) and not net.training


@pytest.mark.slow
def test_an_interrupted_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HUMMINGBIRD_DATA", raising=False)
    done: list[str] = []

    def apart(name: str, source: str, *_: object) -> table.Row:
        if name == "resnet50" and len(done) == 1:
            done.append("interrupted")
            raise KeyboardInterrupt
        done.append(name)
        reason = "no" if name == "vit_b_16" else ""
        return table.Row(name, "torchvision", source, "3", reason=reason, error=0.5, kept=1.0)

    monkeypatch.setattr(table, "apart", apart)
    rows, out = tmp_path / "rows.json", tmp_path / "page.md"
    command = [
        "--sources",
        "module",
        "--nets",
        "resnet18",
        "resnet50",
        "vit_b_16",
        "--json",
        str(rows),
        "--out",
        str(out),
    ]
    assert table.main(command) == 130 and not out.exists()
    assert table.main([*command, "--resume"]) == 0
    assert done == ["resnet18", "interrupted", "resnet50", "vit_b_16"]
    text = out.read_text()
    told = " ".join(text.split())
    assert f"3 of the {len(NETS)} nets of `scripts/tools/net_catalogue.py`. Of these, 2 convert. They ran" in told
    assert max(len(line) for line in text.splitlines()) <= 120
    assert "| resnet50 | torchvision | 3 | 0.5 | 100 % | 0 | 0 | 0 |" in text
    assert "| vit_b_16 | module | no |" in text
    assert [row["name"] for row in json.loads(rows.read_text())["rows"]] == ["resnet18", "resnet50", "vit_b_16"]
    assert table.main([*command, "--resume", "--images", "5"]) == 1
    assert "leave --resume out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--nets", "resnet19"], ["--images", "0"], ["--resume"], ["--out", "none/page.md"], ["--data", "none"]]
)
def test_bad_options_are_refused_before_anything_runs(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "apart", lambda *_: pytest.fail("it ran"))
    assert table.main(words) == 1
