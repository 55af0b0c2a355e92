"""The program from its start to its end: clients that are closed again, signals that leave the terminal as it was."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any

from fila_cluster.client import AsyncClient
from fila_cluster.top.app import Top
from fila_cluster.top.lookout import ANSWER_S_MAX, Lookout
from fila_cluster.top.snapshot import snapshot

Connect = Callable[[float], AsyncClient]
"""Makes a client whose calls take so many seconds at most."""

ACT_S_MAX = 10.0


async def show_live(connect: Connect, interval_s: float, queue: str | None) -> None:
    """Show it until somebody has seen enough. Looking has a client of its own: it gives up sooner than who acts."""
    async with connect(ANSWER_S_MAX) as watching, connect(ACT_S_MAX) as acting:
        top = Top(Lookout(watching), acting, interval_s, queue)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, top.exit)
        await top.run_async()


async def take_snapshot(connect: Connect, interval_s: float, queue: str | None) -> dict[str, Any]:
    """Look, and say what was seen. Raises :class:`FilaError`."""
    async with connect(ANSWER_S_MAX) as watching:
        return await snapshot(Lookout(watching), interval_s, queue)
