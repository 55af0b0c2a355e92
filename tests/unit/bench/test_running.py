"""When a run has received everything."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from fila_cluster.run.bench import running


@dataclass
class Counted:
    """A child that has received so many messages."""

    count: int


class Waiting:
    """A wait for four messages, of which ``counts`` came."""

    def __init__(self, *counts: int) -> None:
        self.children: Any = [Counted(count) for count in counts]
        self.asked = 0

    def run(self, *depths: int, failed: bool = False) -> int:
        """How often the broker was asked for the depth."""
        answers: Iterator[int] = iter(depths)

        async def depth() -> int:
            self.asked += 1
            return next(answers)

        async def wait() -> None:
            consuming: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            if failed:
                consuming.set_result([])
            await running.all_received(self.children, 4, consuming, depth)

        asyncio.run(wait())
        return self.asked


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_LOOK_S", 0)


def test_a_queue_that_is_empty_has_given_everything():
    assert Waiting(1, 3).run(0) == 1


def test_enough_deliveries_are_not_everything_while_the_queue_has_messages():
    assert Waiting(2, 3).run(2, 1, 0) == 3


def test_messages_that_another_program_took_are_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running, "_QUIET_S", -1.0)
    assert Waiting(1, 2).run(0) == 1


def test_the_broker_is_not_asked_while_messages_come_and_are_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running, "STILL_S_MAX", -1.0)
    assert Waiting(1, 2).run() == 0


def test_messages_that_do_not_come_are_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running, "_QUIET_S", -1.0)
    monkeypatch.setattr(running, "STILL_S_MAX", -1.0)
    assert Waiting(1, 2).run(1) == 1


def test_nothing_is_waited_for_after_a_consumer_failed():
    assert Waiting(0).run(failed=True) == 0
