"""Fixtures of the client's tests."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from traceback import walk_stack
from types import FrameType
from typing import Any

import pytest
import uvloop

from fila_cluster.client.io.pump import HeartbeatThread
from tests.support.cluster.cluster import PATIENCE_S
from tests.support.cluster.shells import SHELLS, shell
from tests.support.descriptors import all_closed_again


@pytest.fixture(params=SHELLS)
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Open a client of either kind."""
    with shell(request.param) as opened:
        yield opened


@pytest.fixture
def nothing_is_left_behind() -> Iterator[None]:
    """No thread of a client, no descriptor."""
    uvloop.run(asyncio.sleep(0))  # its first run opens what it never closes
    with all_closed_again():
        yield
        assert stray_threads() == []


def stray_threads() -> list[FrameType]:
    """The frames of clients' threads that live."""
    stacks = (walk_stack(frame) for frame in sys._current_frames().values())
    return [frame for stack in stacks for frame, _ in stack if frame.f_code is HeartbeatThread._run.__code__]


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait in an event loop for a condition."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, f"never happened: {what}"
        await asyncio.sleep(0.01)
