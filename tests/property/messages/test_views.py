"""Whatever happens after a view was opened, reading it gives what a browse of everything gave at that moment.

What happens is all that :mod:`tests.property.messages.test_backlog` does to a queue, on a store in memory and on RocksDB. Every open view
is read after every step, each time in another way.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from fila_proto_zmq.commands import Browse, Browsed, MessageView, OpenView, ViewOpened
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.record import record_id
from fila_worker.core.effects import ClientCall
from fila_worker.core.inspect.browse import browse
from fila_worker.core.inspect.views import open_view as open_view_in_steps
from fila_worker.core.jobs import Work
from fila_worker.storage.options import SharedMemory
from fila_worker.storage.rocks import RocksStore
from tests.property.messages.test_backlog import FEW, NAMED, BacklogMachine
from tests.support.shard.backlog import OWN
from tests.support.shard.shard import ADMIN, finished
from tests.support.shard.views import in_view, open_view, page_of

OPEN_MAX = 3
FROZEN = ("q", OWN, NAMED)
MEMORY = SharedMemory()
WAYS = list(
    product(
        [None, None, ["a"], ["c", "a", "none", "a"]],
        [3, 1, 5, 12],
        [None, ["pending"], None, ["delayed"], ["leased"], ["leased", "delayed"], ["pending", "leased"], []],
        [False, True],
    )
)
"""How a view may be read: which keys, how many messages a page, which states, range by range or all at once."""


@dataclass
class Opened:
    """What a view must show, and how it was answered for."""

    name: str
    reply: ViewOpened
    expected: dict[str, list[MessageView]]


class ViewMachine(BacklogMachine):
    @initialize(
        limit=st.sampled_from(["none", "queue", "key"]), range_messages=st.integers(1, 9), receive=st.integers(1, 9),
        throttled=st.integers(1, 4),
    )  # fmt: skip
    def start(self, limit: str, range_messages: int, receive: int, throttled: int) -> None:  # type: ignore[override]
        """Open a view of a queue that has something of everything."""
        super().start(limit)
        self.views: list[Opened] = []
        self.begun: tuple[str, Work, dict[str, list[MessageView]]] | None = None
        """A view that is being opened, and what it must show."""
        self.numbers = count()
        self.turns = count()
        for number, key in enumerate("aabaca"):
            self.enqueue([1, 40], key, number % 3 - 1, number % 5 // 4 * 5_000, 0, number % throttled == 0, None)
        self.receive(receive)
        self.open(range_messages)

    @rule(range_messages=st.integers(1, 9))
    def open(self, range_messages: int) -> None:
        del self.views[: len(self.views) - OPEN_MAX + 1]
        name = f"view{next(self.numbers)}"
        asked = {queue: self.apply(Browse(1000), queue) for queue in FROZEN}
        opening = self.apply(OpenView(name, [*FROZEN, "nowhere"], range_messages, 3_600_000), "q")
        self.harness.turn()
        self.harness.finish()  # nothing else happens meanwhile
        browsed: dict[str, Any] = {queue: self.harness.late.pop(number) for queue, number in asked.items()}
        assert not any(page.more for page in browsed.values() if isinstance(page, Browsed))
        reply = self.harness.late.pop(opening)
        assert isinstance(reply, ViewOpened)
        self.views.append(Opened(name, reply, {queue: page.messages for queue, page in browsed.items()}))

    def apply(self, command: Any, queue: str) -> int:
        """Like ``ask``, but nothing happens before the next command."""
        self.harness.requests += 1
        self.harness.shard.apply(ClientCall(ADMIN, self.harness.requests, queue, self.harness.now_ms), command)
        return self.harness.requests

    @invariant()
    def every_view_shows_its_moment(self) -> None:
        for view in getattr(self, "views", []):
            number = next(self.turns)
            keys, limit, states, ranged = WAYS[number * 37 % len(WAYS)]
            self.read(view, FROZEN[number % 5 % 3], keys, limit, states, ranged)
            assert open_view(self.harness, view.name, ("q", *FROZEN[1:], "nowhere"), range_messages=1) == view.reply

    def read(
        self, view: Opened, queue: str, keys: list[str] | None, limit: int, states: list[str] | None, ranged: bool
    ) -> None:
        expected = [
            message
            for message in view.expected[queue]
            if (keys is None or message.fairness_key in keys) and (states is None or message.state in states)
        ]
        bounds = next(each.bounds for each in view.reply.queues if each.name == queue) if ranged else []
        found = []
        for first, end in zip(["", *bounds], [*bounds, None], strict=True):
            found += in_view(
                self.harness, view.name, queue, limit, from_key=first, to_key=end, fairness_keys=keys, states=states
            )
        assert sorted(found, key=identity) == sorted(expected, key=identity)
        assert [message.fairness_key for message in found] == sorted(message.fairness_key for message in found)
        for stretch in stretches(found):
            assert stretch == [message for message in expected if message in stretch], "out of line"

    @rule()
    def crash_and_recover(self) -> None:
        super().crash_and_recover()
        for view in self.views:
            with pytest.raises(InvalidArgumentError, match="load the DataFrame again"):
                page_of(self.harness, view.name)
        self.views.clear()


def identity(message: MessageView) -> tuple[int, int]:
    return record_id(message.record)


def stretches(messages: list[MessageView]) -> list[list[MessageView]]:
    """What must be in line order: a key's messages with the same throttle keys that are, or are not, delayed."""
    found: dict[Any, list[MessageView]] = {}
    for message in messages:
        stretch = (message.fairness_key, tuple(message.throttle_keys), message.state == "delayed")
        found.setdefault(stretch, []).append(message)
    return list(found.values())


class SlowlyOpened(ViewMachine):
    """Views are copied a lane at a time, and all else happens between two steps."""

    @rule(range_messages=st.integers(1, 9))
    def open(self, range_messages: int) -> None:
        if self.begun is not None:
            return
        harness = self.harness
        del self.views[: len(self.views) - OPEN_MAX + 1]
        name, expected = f"view{next(self.numbers)}", {queue: self.browsed(queue) for queue in FROZEN}
        call = ClientCall(ADMIN, 0, "q", harness.now_ms)
        self.begun = name, open_view_in_steps(
            harness.shard, call, OpenView(name, [*FROZEN, "nowhere"], range_messages, 3_600_000)
        ), expected  # fmt: skip
        next(self.begun[1])
        assert harness.shard.ledger.watches, "the moment has come"
        harness.turn()

    def browsed(self, queue: str) -> list[MessageView]:
        shard = self.harness.shard
        page = finished(browse(shard, ClientCall(ADMIN, 0, queue, self.harness.now_ms), Browse(1000)), self.harness.now_ms)
        assert isinstance(page, Browsed)
        assert not page.more
        return page.messages

    @invariant()
    def every_view_shows_its_moment(self) -> None:
        if getattr(self, "begun", None) is not None:
            self.go_on()
        super().every_view_shows_its_moment()

    def go_on(self) -> None:
        """Take a step of an opening."""
        assert self.begun is not None
        name, work, expected = self.begun
        try:
            work.send(self.harness.now_ms)
        except StopIteration as end:
            reply = end.value
            counts = {queue.name: queue.messages for queue in reply.queues}
            assert counts == {queue: len(messages) for queue, messages in expected.items()}
            self.views.append(Opened(name, reply, expected))
            self.begun = None
        self.harness.turn()

    @rule()
    def crash_and_recover(self) -> None:
        self.begun = None
        super().crash_and_recover()


class RocksViewMachine(ViewMachine):
    """The same on a real database, whose scans and pins are its own."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.store_of = lambda: RocksStore(Path(self.directory.name), memory=MEMORY)  # type: ignore[assignment,return-value]

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.store.close()
        self.directory.cleanup()


class InSmallSteps:
    def runTest(self) -> None:  # noqa: N802
        with ExitStack() as stack:
            for (module, name), value in FEW.items():
                stack.enter_context(patch.object(module, name, value))
            super().runTest()  # type: ignore[misc]


class TestViews(InSmallSteps, ViewMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(deadline=None, max_examples=40, stateful_step_count=25)


class TestViewsSlowlyOpened(InSmallSteps, SlowlyOpened.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(deadline=None, max_examples=25, stateful_step_count=30, phases=[Phase.generate])


class TestViewsOnRocks(InSmallSteps, RocksViewMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(deadline=None, max_examples=8, stateful_step_count=25)
