"""A net whose images depend on each other, served: every request is a batch of its own, whoever asks meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hummingbird.errors import InputError
from tests.support.serving import Service, served
from tests.support.serving_nets import centred


@pytest.mark.slow
def test_requests_of_several_clients_do_not_mix() -> None:
    def ask(number: int) -> float:
        x = 3 * torch.rand(1 + number % 8, 4, generator=torch.Generator().manual_seed(number))
        with service.client() as client:
            return float((client(x) - centred()(x)).abs().max())

    with Service("--model", "tests.support.serving_nets:centred", "--input", "4", "--max-batch", "8") as service:
        with ThreadPoolExecutor(4) as pool:
            assert max(pool.map(ask, range(16))) < 1e-3
        with service.client() as client, pytest.raises(InputError, match="together, of which a request holds 8"):
            client(torch.rand(9, 4))
        assert served(service.stop()) == (72, 16)
