"""Fixtures of the tests of both clients."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from fila_cluster import Client
from tests.support.cluster.cluster import PATIENCE_S, Cluster
from tests.support.cluster.shells import SHELLS, shell

Connect = Callable[..., Any]


@pytest.fixture(params=SHELLS)
def open_client(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Open a client of either kind; the asyncio one blocks, too."""
    with shell(request.param) as opened:
        yield opened


@pytest.fixture
def connect(open_client: Connect, shared_cluster: Cluster) -> Connect:
    """Open a client of the shared cluster."""
    return partial(open_client, shared_cluster.endpoint, timeout=PATIENCE_S)


@pytest.fixture
def client(connect: Connect) -> Iterator[Client]:
    with connect() as client:
        yield client
