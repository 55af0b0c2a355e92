"""Fixtures of the client's tests."""

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from tests.support.cluster import eventually
from tests.support.shells import SHELLS, shell


@pytest.fixture(params=SHELLS)
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Open a client of either kind."""
    with shell(request.param) as opened:
        yield opened


@pytest.fixture
def nothing_is_left_behind() -> Iterator[None]:
    """No thread of a client, no descriptor."""
    uvloop.run(asyncio.sleep(0))  # its first run opens what it never closes
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    assert stray_threads() == []
    gc.collect()
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, "descriptors are closed")


def stray_threads() -> list[threading.Thread]:
    """The threads of clients that live."""
    return [thread for thread in threading.enumerate() if thread.name == "fila-cluster-keeper"]
