"""The dashboard in an ASGI application, with a client of its own."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol, cast

from fastapi import FastAPI
from nicegui import app as settings
from nicegui import ui
from starlette.applications import Starlette

from fila_cluster import AsyncClient
from fila_cluster.ops.analysis.history import History
from fila_cluster.ops.analysis.visitor import CLICK_S_MAX
from fila_cluster.ops.analysis.watch import Watch
from fila_cluster.ops.dashboard import (
    audit,
    config,
    connections,
    hosts,
    limits,
    messages,
    overview,
    schedules,
    templates,
    why,
)
from fila_cluster.ops.dashboard.dead_letters import page as dead_letters
from fila_cluster.ops.dashboard.hooks import page as hooks
from fila_cluster.ops.dashboard.queues import page as queues
from fila_cluster.ops.dashboard.shell.context import Visits

PAGES: tuple[Callable[[Visits], None], ...] = (
    overview.register,
    hosts.register,
    queues.register_list,
    queues.register,
    templates.register,
    messages.register,
    dead_letters.register,
    schedules.register,
    hooks.register,
    limits.register,
    config.register,
    connections.register,
    audit.register,
    why.register,
)


class WatchedBroker(Protocol):
    """The broker that it shows, by the observer's settings."""

    @property
    def endpoint(self) -> str:
        """The router's endpoint."""
        ...

    @property
    def api_key(self) -> str | None:
        """The key of the cluster's own processes, if it has authentication: then each visitor brings a key."""
        ...


@asynccontextmanager
async def dashboard(app: Starlette, watch: Watch, history: History, broker: WatchedBroker) -> AsyncIterator[None]:
    """Add all pages to ``app`` for a context, once a process: NiceGUI has one set of pages. The caller feeds ``history``."""
    async with AsyncExitStack() as stack:
        client = None
        if broker.api_key is None:  # its slow answers must not look like an outage, so it is not the watch's
            client = await stack.enter_async_context(AsyncClient(broker.endpoint, timeout=CLICK_S_MAX))
        visits = Visits(watch, history, broker.endpoint, client)
        for register in PAGES:
            register(visits)
        # Pages show themselves what is loading. This bar would say so without words to those who hear the page.
        settings.config.quasar_config["loadingBar"]["skipHijack"] = True
        # The annotation asks for FastAPI, but any Starlette is accepted.
        ui.run_with(cast(FastAPI, app), title="fila-cluster", dark=None, language="en-US", show_welcome_message=False)
        yield
