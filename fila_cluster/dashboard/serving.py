"""The dashboard as an ASGI application, with all that keeps it going: its own client, and the half hour that it remembers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, cast

from fastapi import FastAPI
from nicegui import ui
from starlette.applications import Starlette

from fila_cluster import AsyncClient
from fila_cluster.dashboard.desk import Desk
from fila_cluster.dashboard.pages import config, hooks, letters, messages, overview, queue, queues, why
from fila_cluster.observer.app import application
from fila_cluster.observer.watch import Watch
from fila_cluster.observing.history import TICK_S, History

ANSWER_S_MAX: Final = 10.0
"""How long somebody who clicked waits for the broker."""

PAGES: tuple[Callable[[Desk], None], ...] = (
    overview.register,
    queues.register,
    queue.register,
    messages.register,
    letters.register,
    hooks.register,
    config.register,
    why.register,
)


@asynccontextmanager
async def dashboard(watch: Watch, endpoint: str) -> AsyncIterator[Starlette]:
    """All pages, ``/metrics`` and its neighbours included. Once a process: NiceGUI has one set of pages."""
    async with AsyncClient(endpoint, timeout=ANSWER_S_MAX) as client:  # a slow answer to it must not look like an outage
        history = History()
        remembering = asyncio.ensure_future(_remember(watch, history))
        app = application(watch, with_index=False)
        desk = Desk(watch, history, client, endpoint)
        for register in PAGES:
            register(desk)
        ui.run_with(cast(FastAPI, app), title="fila-cluster", dark=None, show_welcome_message=False)  # any Starlette will do
        try:
            yield app
        finally:
            remembering.cancel()


async def _remember(watch: Watch, history: History) -> None:
    """Feed the history at even intervals."""
    due = time.monotonic()
    while True:
        history.record(time.time() if watch.latest is None else watch.heard_s, watch.latest)
        due = max(due + TICK_S, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
