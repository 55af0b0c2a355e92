"""What was last heard of the cluster, and whether that is recent enough to be told.

Old numbers are worse than none: when nobody answers, there is nothing to show.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from fila_cluster.observing.readiness import Obstacle, obstacles
from fila_proto_zmq.commands import Metrics
from fila_proto_zmq.errors import FilaError

ASK_EVERY_S: Final = 1.0

ASK_AGAIN_S: Final = 0.1
"""As long as something is down: that it is up again should be known at once."""

ANSWER_S_MAX: Final = 1.5
"""How long to wait for an answer: the router gives the workers a second."""

Ask: TypeAlias = Callable[[], Awaitable[Metrics]]
"""Asks the cluster; raises :class:`FilaError` if it does not answer."""


class Watch:
    """Asks every second, or more often while something is down. ``latest``: the last answer; None: there is none any more, and ``why_not`` says why."""

    def __init__(self, ask: Ask) -> None:
        self.latest: Metrics | None = None
        self.heard_s = 0.0
        """When that was, Unix seconds."""
        self.why_not = "the cluster was not asked yet"
        self._ask = ask

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(ASK_AGAIN_S if self.obstacles() else ASK_EVERY_S)

    async def look(self) -> None:
        """Ask once."""
        try:
            self.latest = await self._ask()
            self.heard_s = time.time()
        except FilaError as error:
            self.latest, self.why_not = None, str(error)

    def obstacles(self) -> list[Obstacle]:
        """Why the cluster is not ready; none: it is."""
        return obstacles(self.latest, self.why_not)
