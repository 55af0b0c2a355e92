"""The cluster's last answer to a request for all counters. Without an answer nothing is shown, never old numbers.

A caller that needs the present state starts another request. Callers that come together share it, and no caller gets the
answer to a request that was sent before it came.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from fila_cluster.ops.analysis.history import TICK_S, History
from fila_cluster.ops.analysis.hosts import Obstacle, obstacles, silences, warnings
from fila_cluster.ops.analysis.partitions import with_whole_queues
from fila_proto_zmq.commands import Metrics
from fila_proto_zmq.errors import FilaError

ASK_EVERY_S: Final = 1.0

ASK_AGAIN_S: Final = 0.1
"""While something is down: its return should show at once."""

ANSWER_S_MAX: Final = 1.5
"""How long to wait for an answer: the router gives the workers a second."""

TOGETHER_S: Final = 0.01
"""How long a question waits for other callers: a flood of them costs the workers little."""

Ask: TypeAlias = Callable[[], Awaitable[Metrics]]
"""Ask the cluster; raises :class:`FilaError` if it does not answer."""


class Watch:
    """Asks every second, or more often while something is down. ``latest`` None: no answer came, for the reason ``why_not``."""

    def __init__(self, ask: Ask) -> None:
        self.latest: Metrics | None = None
        self.heard_s = 0.0
        """The time of the last answer, Unix seconds."""
        self.why_not = "the cluster was not asked yet"
        self._ask = ask
        self._asking: asyncio.Task[None] | None = None
        self._asking_next: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(ASK_AGAIN_S if self.obstacles() else ASK_EVERY_S)

    async def look(self) -> None:
        """Ask once."""
        try:
            self.latest = with_whole_queues(await self._ask())
            self.heard_s = time.time()
        except FilaError as error:
            self.latest, self.why_not = None, str(error)

    async def look_now(self) -> None:
        """Ask, unless a question that other callers wait for is about to be asked: then wait for its answer."""
        if self._asking_next is None:
            self._asking_next = asyncio.ensure_future(self._look_after(self._asking))
        await asyncio.shield(self._asking_next)

    async def _look_after(self, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait([before])
        await asyncio.sleep(TOGETHER_S)
        self._asking, self._asking_next = self._asking_next, None
        await self.look()

    def obstacles(self) -> list[Obstacle]:
        """Return why the cluster is not ready; empty: it is."""
        return obstacles(self.latest, self.why_not) + silences(self.latest)

    def warnings(self) -> list[Obstacle]:
        """Return the risks that stop nothing now, and would make the loss of a host worse."""
        return warnings(self.latest)


async def remember(watch: Watch, history: History) -> None:
    """Feed the history until cancelled; while there are no answers, with None."""
    due = time.monotonic()
    while True:
        history.record(time.time() if watch.latest is None else watch.heard_s, watch.latest)
        due = max(due + TICK_S, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
