"""Encrypted inference through files: every step is a process, and reads what the steps before have written.

python -m tests.jobs.he_files STEP FOLDER
"""

import sys
from pathlib import Path

import torch

from hummingbird import he
from tests.support.he_service import FILE_NETS, SHAPE


def convert(folder: Path, mode: str) -> None:
    model = he.convert_model(FILE_NETS[mode](), SHAPE, mode)
    model.server.save(folder / "net.server")
    (folder / "client.json").write_text(model.public.to_json())


def keys(folder: Path) -> None:
    he.Client(he.Public.from_json((folder / "client.json").read_bytes())).save(folder / "my.client")


def encrypt(folder: Path) -> None:
    batch = he.Client.load(folder / "my.client").begin(torch.load(folder / "images.pt", weights_only=True))
    send(folder, batch)


def send(folder: Path, batch: he.ClientBatch) -> None:
    request = batch.request()
    batch.save(folder / "my.batch")
    (folder / "request").write_bytes(request)


def answer(folder: Path) -> None:
    """The server's folder has its own file and the request only."""
    server = he.Server.load(folder / "net.server")
    (folder / "answer").write_bytes(server.answer((folder / "request").read_bytes()))


def decrypt(folder: Path) -> None:
    batch = he.Client.load(folder / "my.client").resume(folder / "my.batch")
    batch.accept((folder / "answer").read_bytes())
    if batch.complete:
        torch.save(batch.result(), folder / "outputs.pt")
    else:
        send(folder, batch)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
