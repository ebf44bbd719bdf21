"""A service whose parties have several lanes: batches go to the next free one, and clients see one service."""

from __future__ import annotations

import os
import signal
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for

import torch

from tests.support.patience import HANG, suspend
from tests.support.serving import Service, served
from tests.support.serving_nets import doubled

OPTIONS = ("--model", "tests.support.serving_nets:doubled", "--input", "4", "--window", "30:0", "--max-batch", "4")


def test_lanes_compute_at_once_and_one_that_stands_still_delays_only_what_it_has() -> None:
    """Party 1's lane 1 is stopped: one or two requests that lane 1 has wait for it, lane 0 answers all others."""
    net = doubled()

    def ask() -> float:
        x = torch.rand(4, 4)  # a batch
        with service.client() as client, torch.no_grad():
            return float((client(x) - net(x)).abs().max())

    with Service(*OPTIONS, "--timeout", str(HANG), lanes=2, metrics=True) as service, ThreadPoolExecutor(4) as pool:
        suspend(service.processes[3].pid)
        asked, waiting = list[Future[float]](), list[Future[float]]()
        while not waiting:
            asked += (these := [pool.submit(ask) for _ in range(4)])
            done = wait_for(these, HANG, FIRST_COMPLETED).done
            while len(done) < 2:
                done |= wait_for(set(these) - done, HANG, FIRST_COMPLETED).done
            for _ in range(2):
                asked.append(pool.submit(ask))
                asked[-1].result(HANG)  # those before would have been answered by now
            waiting = [future for future in asked if not future.done()]
        os.kill(service.processes[3].pid, signal.SIGCONT)
        assert max(future.result(HANG) for future in asked) < 1e-3
        for party in range(2):
            figures = service.figures(party)
            by_lane = [figures[f'hummingbird_serving_batches_total{{lane="{lane}"}}'] for lane in range(2)]
            assert sum(by_lane) == len(asked) and min(by_lane) >= 1
            assert figures["hummingbird_serving_images_total"] == 4 * len(asked)
        assert served(service.stop()) == (4 * len(asked), len(asked))
