"""The dashboard in an ASGI application, with a client of its own."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, cast

from fastapi import FastAPI
from nicegui import ui
from starlette.applications import Starlette

from fila_cluster import AsyncClient
from fila_cluster.analysis.history import History
from fila_cluster.analysis.watch import Watch
from fila_cluster.dashboard.config import page as config
from fila_cluster.dashboard.dead_letters import page as dead_letters
from fila_cluster.dashboard.hooks import page as hooks
from fila_cluster.dashboard.messages import page as messages
from fila_cluster.dashboard.overview import page as overview
from fila_cluster.dashboard.queues import list_page as queues
from fila_cluster.dashboard.queues import page as queue
from fila_cluster.dashboard.shell.context import Context
from fila_cluster.dashboard.why import page as why

ANSWER_S_MAX: Final = 10.0
"""How long a user who clicked waits for the broker."""

PAGES: tuple[Callable[[Context], None], ...] = (
    overview.register,
    queues.register,
    queue.register,
    messages.register,
    dead_letters.register,
    hooks.register,
    config.register,
    why.register,
)


@asynccontextmanager
async def dashboard(app: Starlette, watch: Watch, history: History, endpoint: str) -> AsyncIterator[None]:
    """Add all pages to ``app`` as long as the context is open. Once a process: NiceGUI has one set of pages.

    The caller feeds ``history`` from ``watch``.
    """
    async with AsyncClient(endpoint, timeout=ANSWER_S_MAX) as client:  # its slow answers must not look like an outage
        context = Context(watch, history, client, endpoint)
        for register in PAGES:
            register(context)
        ui.run_with(
            cast(FastAPI, app), title="fila-cluster", dark=None, show_welcome_message=False
        )  # it accepts any Starlette
        yield
