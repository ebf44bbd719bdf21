"""Both sides of a net as processes that a test kills: what they deal and answer is written down, byte by byte sent.

They are forked from a process that has loaded everything, so that two hundred of them take a minute.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

from hummingbird.errors import HummingbirdError
from hummingbird.hybrid.client import RemoteNet
from hummingbird.hybrid.data_side import DataSide, Slot
from hummingbird.hybrid.message_stream import MessageStream
from hummingbird.hybrid.model_side import ModelSide, Online
from hummingbird.hybrid.service import Service
from hummingbird.hybrid.store import Store
from hummingbird.rpc import service
from tests.hybrid.test_arithmetic import images
from tests.support.hybrid import close, model
from tests.support.patience import HANG

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])


def write(place: Path, line: str) -> None:
    """Append a line, also if this process is killed right after it."""
    file = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def recorded(place: Path) -> None:
    """Have both sides write down every slot, before its first byte is sent."""
    data_deal, model_deal = DataSide._deal, ModelSide._products
    answer, begin = DataSide.answer, ModelSide.begin

    def deal_at_data(self: DataSide, link: MessageStream, secret: Any, slots: Any, progress: Any) -> Any:
        for slot in slots:
            write(place, f"dealt data {slot}")
        return data_deal(self, link, secret, slots, progress)

    def deal_at_model(self: ModelSide, link: MessageStream, store: Store, public: Any, slots: Any) -> Any:
        for slot in slots:
            write(place, f"dealt model {slot}")
        return model_deal(self, link, store, public, slots)

    def answer_at_data(self: DataSide, link: MessageStream, slot: Slot) -> None:
        write(place, f"used data {slot.number}")
        answer(self, link, slot)

    def begin_at_model(self: ModelSide, link: MessageStream, store: Store, slot: int) -> Online:
        online = begin(self, link, store, slot)
        write(place, f"used model {slot}")
        return online

    DataSide._deal, ModelSide._products = deal_at_data, deal_at_model  # type: ignore[method-assign]
    DataSide.answer, ModelSide.begin = answer_at_data, begin_at_model  # type: ignore[method-assign]


def server(address: str, folder: Path, garbler: str) -> None:
    """Serve until killed."""
    recorded(folder / "events")
    offered = Service(model(garbler), folder / "m")
    _kept = service.serve(offered.handlers(), address)
    time.sleep(HANG * 10)


def client(address: str, folder: Path, garbler: str) -> None:
    """Deal slots and use them until killed; a server that is gone is tried again."""
    recorded(folder / "events")
    made, x = model(garbler), images(3).float()
    while True:
        try:
            with RemoteNet(address, folder / "d", timeout=HANG) as net:
                while True:
                    net.prepare(2)
                    write(folder / "events", "right" if close(net(x), made, x) else "wrong")
        except HummingbirdError as error:
            write(folder / "events", f"told {type(error).__name__} {error.what}")


def started(role: Any, *arguments: Any) -> Any:
    """A process that runs a role."""
    process = FORKS.Process(target=role, args=arguments, daemon=True)
    process.start()
    return process
