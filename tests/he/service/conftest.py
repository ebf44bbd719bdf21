"""A small net and its server, which several files of tests share."""

from __future__ import annotations

import pytest
from torch import nn

from hummingbird.he.compile.convert import convert_model
from hummingbird.he.runtime.server import Server
from tests.support.he_service import SHAPE, small_net


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return small_net()


@pytest.fixture(scope="module")
def server(net: nn.Module) -> Server:
    return convert_model(net, SHAPE).server
