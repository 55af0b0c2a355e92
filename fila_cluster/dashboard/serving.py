"""The dashboard as an ASGI application, with what keeps it going: a client of its own."""

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
from fila_cluster.observing.history import History

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
async def dashboard(watch: Watch, history: History, endpoint: str) -> AsyncIterator[Starlette]:
    """All pages, ``/metrics`` and its neighbours included. Once a process: NiceGUI has one set of pages.

    ``history`` is fed from ``watch`` by the caller.
    """
    async with AsyncClient(endpoint, timeout=ANSWER_S_MAX) as client:  # a slow answer to it must not look like an outage
        app = application(watch, history, None)
        desk = Desk(watch, history, client, endpoint)
        for register in PAGES:
            register(desk)
        ui.run_with(cast(FastAPI, app), title="fila-cluster", dark=None, show_welcome_message=False)  # any Starlette will do
        yield app
