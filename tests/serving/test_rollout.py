"""New versions of a model under load: in one service, and in one group of parties after another. No request fails."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitWindow
from hummingbird.errors import HummingbirdError, NotFoundError
from hummingbird.rpc import telemetry
from hummingbird.serving.client import Client
from tests.serving.test_serving import CLOSE
from tests.support.patience import HANG, until
from tests.support.rebirth import Hosts
from tests.support.serving import Service, served

_MOST = 4  # images of a batch; a call has several requests


class Versions:
    """Saved nets of one shape, with other weights each, and each party's file that lists some of them.

    The weights of the third version are party 1's secret; party 0 has net.json alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.file, self._nets = folder, folder / "models-{rank}", dict[int, nn.Module]()
        for rank in range(2):
            (folder / str(rank)).mkdir()
        for number in (1, 2, 3):
            torch.manual_seed(number)
            net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)).eval()
            owned = folder / "1" / str(number)
            hummingbird.save(net, owned, bits=BitWindow(30, 0), weights=1 if number == 3 else "public")
            secret = shutil.ignore_patterns("party-*")
            shutil.copytree(owned, folder / "0" / str(number), ignore=secret)
            self._nets[number] = net

    def list(self, *numbers: int, to: Path | None = None) -> None:
        """The files list these versions from now on. to: the folder of the files, another one than that of the nets."""
        for rank in range(2):
            folder = self._folder / str(rank)
            draft = (to or self._folder) / "draft"
            draft.write_text("".join(f"digits@{number} {folder / str(number)} 1x8x8\n" for number in numbers))
            draft.rename(draft.with_name(f"models-{rank}"))

    def of(self, images: Tensor, answers: Tensor) -> str:
        """The version that has given these answers, all of them."""
        with torch.no_grad():
            fitting = [n for n, net in self._nets.items() if (net(images) - answers).abs().max() < CLOSE]
        return f"digits@{fitting[0]}" if fitting else "wrong"


class Asking:
    """Clients of the newest version, each on a thread, that ask without a pause; `outcomes` counts what they get."""

    def __init__(self, versions: Versions, addresses: list[str] | list[list[str]]) -> None:
        self.outcomes, self._over, self._versions = Counter[str](), threading.Event(), versions
        self._client = Client(addresses, timeout=HANG, model="digits")
        sizes = (1, 3, 5 * _MOST)
        self._threads = [threading.Thread(target=self._ask, args=(size,), daemon=True) for size in sizes]
        for thread in self._threads:
            thread.start()

    def _ask(self, size: int) -> None:
        while not self._over.is_set():
            images = torch.rand(size, 1, 8, 8)
            try:
                self.outcomes[self._versions.of(images, self._client(images))] += 1
            except HummingbirdError as error:
                self.outcomes[str(error)] += 1

    def reach(self, version: int, more: int = 30) -> None:
        """Wait for so many answers of a version."""
        name = f"digits@{version}"
        before = self.outcomes[name]
        until(lambda: self.outcomes[name] >= before + more, f"answers of {name}: {self.outcomes}")

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(HANG)
        self._client.close()


@pytest.fixture
def versions() -> Iterator[Versions]:
    with tempfile.TemporaryDirectory() as folder:
        yield Versions(Path(folder))


@pytest.mark.slow
def test_versions_come_and_go_under_load_without_a_failed_request(versions: Versions) -> None:
    versions.list(1)
    with (
        Service("--models", str(versions.file), "--max-batch", str(_MOST), metrics=True) as service,
        ExitStack() as stack,
    ):
        asking = Asking(versions, service.addresses)
        stack.callback(asking.close)
        asking.reach(1)
        versions.list(1, 2)
        asking.reach(2)
        with service.client(model="digits@1") as old:  # which is still there
            images = torch.rand(3, 1, 8, 8)
            assert versions.of(images, old(images)) == "digits@1"
            versions.list(2)

            def gone() -> bool:
                try:
                    return versions.of(images, old(images)) != "digits@1"
                except NotFoundError:
                    return True

            until(gone, "the first version to leave")
        asking.reach(2)
        versions.list(3)  # the one comes and the other leaves at once
        asking.reach(3)
        asking.close()
        print(asking.outcomes)
        assert set(asking.outcomes) == {"digits@1", "digits@2", "digits@3"}
        figures = service.figures(0)
        assert figures['hummingbird_serving_model_ready{model="digits@3"}'] == 1
        assert not [name for name in figures if 'model="digits@1"' in name]
        assert telemetry.ask(service.addresses[1], name="digits@3") == "SERVING"
        assert served(service.stop())[0] > 0


@pytest.mark.slow
def test_one_group_after_another_gets_a_new_version_without_a_failed_request(versions: Versions) -> None:
    """A client of both groups asks meanwhile; each group is ended in order, and started again with other models."""
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]

        def start(group: int, version: int) -> Service:
            versions.list(version, to=folders[group])
            models = str(folders[group] / "models-{rank}")
            options = ["--models", models, "--group", str(group), "--max-batch", str(_MOST)]
            return stack.enter_context(Service(*options, folder=folders[group]))

        groups = [start(group, 1) for group in range(2)]
        asking = Asking(versions, [service.addresses for service in groups])
        stack.callback(asking.close)
        asking.reach(1)
        for group in range(2):
            assert served(groups[group].stop())[0] > 0
            groups[group] = start(group, 2)
            asking.reach(2)
        asking.close()
        print(asking.outcomes)
        assert set(asking.outcomes) == {"digits@1", "digits@2"}


@pytest.mark.slow
def test_a_party_that_dies_serves_the_models_that_are_listed_when_it_is_back(versions: Versions) -> None:
    """The other party is the same process; both convert and set up the nets of the new session anew."""
    versions.list(1, 3)
    hosts = Hosts("--models", str(versions.file), "--max-batch", str(_MOST))
    try:
        images = torch.rand(5, 1, 8, 8)
        with Client(hosts.addresses, timeout=HANG, model="digits@1") as old:
            assert versions.of(images, old(images)) == "digits@1"
            before = hosts.party(0)
            hosts.kill_party(1)
            versions.list(1, 2)
            assert versions.of(images, old(images)) == "digits@1" and hosts.party(0) == before
        with Client(hosts.addresses, timeout=HANG, model="digits") as newest:
            assert versions.of(images, newest(images)) == "digits@2"
        assert "digits@3 is gone" in hosts.said
    finally:
        hosts.close()
