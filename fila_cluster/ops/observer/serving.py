"""The process: the watch, HTTP, TLS from files that may be replaced, exports, and the log lines of libraries.

Texts of libraries' log calls are logged, with the place of an error, but not the error's text, because it may quote data.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import signal
import socket
import ssl
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from fila_cluster import AsyncClient
from fila_cluster.client.calls.cluster import ask_metrics
from fila_cluster.ops.analysis.history import History
from fila_cluster.ops.analysis.visitor import CLICK_S_MAX
from fila_cluster.ops.analysis.watch import ANSWER_S_MAX, Watch, remember
from fila_cluster.ops.observer.app import NOT_LOADED, Guard, application, is_loopback
from fila_cluster.ops.observer.http_api.routes import HttpApi
from fila_cluster.ops.observer.login import Keys, Login
from fila_cluster.ops.observer.settings import ObserverSettings, without_password
from fila_process.journal import Journal
from fila_process.parent import BEAT_S, ParentHeartbeat
from fila_proto_zmq.events import (
    CertificateLoaded,
    CertificateRefused,
    DashboardLeftOut,
    LibraryFailed,
    LibraryWarned,
    ObserverServing,
    ProcessStopping,
    where,
)

LOOK_S: Final = 1.0
"""How often to look whether the files were replaced."""


class BadCertificateError(Exception):
    """The certificate or its key can't be used; the text has the remedy."""


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return a context with a certificate. Raise :class:`BadCertificateError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, certificate, key)
    return context


def _load(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        what = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BadCertificateError(
            f"[http] certificate {certificate} with key {key}: {what}; use PEM files that belong together, without a password"
        ) from None


def _no_password() -> str:
    raise ValueError("the key has a password")


async def follow(context: ssl.SSLContext, certificate: str, key: str, journal: Journal) -> None:
    """Load the files again after changes, for new connections. A bad pair is logged, and the last good one stays."""
    known = _stamps(certificate, key)
    while True:
        await asyncio.sleep(LOOK_S)
        stamps = _stamps(certificate, key)
        if stamps == known:
            continue
        known = stamps
        try:
            tls_context(certificate, key)  # a failed load may leave a context with half of a pair
            _load(context, certificate, key)
            journal.tell([CertificateLoaded(certificate)])
        except BadCertificateError as error:
            journal.tell([CertificateRefused(str(error))])


def _stamps(*paths: str) -> list[tuple[int, int] | None]:
    stamps: list[tuple[int, int] | None] = []
    for path in map(Path, paths):
        try:
            status = os.stat(path)
            stamps.append((status.st_mtime_ns, status.st_ino))
        except OSError:
            stamps.append(None)
    return stamps


HEAD_BYTES_MAX: Final = 64 * 1024
"""Of a request's first line and headers."""
HEAD_S_MAX: Final = 10.0
"""How long a connection may be without a request, and how long the head of one may take."""
CONNECTIONS_MAX: Final = 2000
"""At a time: twice the requests that the HTTP door carries out, and room for open pages."""


class BoundedConnection(H11Protocol):
    """A connection to the observer's address. It is closed when there are too many, or when no request comes in time.

    These bounds come before authentication. The server's other parser, httptools, keeps headers of any size, and the server
    itself never ends the wait for a connection's first request.
    """

    head_s_max = HEAD_S_MAX
    connections_max = CONNECTIONS_MAX
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in the class above
        """Begin, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            transport.close()
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take received bytes. Single bytes are not a request."""
        super().data_received(data)
        self._watch()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Leave the connection to the WebSocket, which has heartbeats."""
        self._unwatch()
        super().handle_websocket_upgrade(event)

    def _watch(self) -> None:
        """Limit the wait for a request. Between two requests the server's own limit for idle connections counts, too."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(self.head_s_max, self._close_late)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close_late(self) -> None:
        self._late = None
        self.transport.close()


class LibraryLines(logging.Handler):
    """Passes warnings and errors of libraries on to a journal."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record to the journal."""
        text = record.getMessage().strip()
        if record.levelno < logging.ERROR:
            self._journal.tell([LibraryWarned(record.name, text)])
            return
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            self._journal.tell([LibraryFailed(record.name, text, [])])
        else:
            self._journal.tell([LibraryFailed(record.name, f"{text} ({type(error).__name__})", where(error))])


def listen_to_libraries(journal: Journal) -> None:
    """Send the log records of all libraries in this process to ``journal``, Python's own warnings too."""
    logging.captureWarnings(capture=True)
    root = logging.getLogger()
    root.handlers[:] = [LibraryLines(journal)]
    root.setLevel(logging.WARNING)


STOP_S_MAX: Final = 1
"""How long open requests may take when it stops."""

Part = Coroutine[Any, Any, None]


class CannotServeError(Exception):
    """The address can't be listened on; the text has the remedy."""


class _Server(uvicorn.Server):
    """A server without signal handlers: the process has other parts to stop, too."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


async def serve(settings: ObserverSettings, stdin: int, journal: Journal) -> None:
    """Watch and publish until a signal comes, or ``stdin`` ends. Raises :class:`CannotServeError`."""
    stop = _stop_event(stdin)
    context = None
    if settings.certificate is not None and settings.private_key is not None:
        context = tls_context(settings.certificate, settings.private_key)
    listener = None if settings.host is None else listen(settings.host, settings.port)
    door = None
    async with (
        AsyncClient(
            settings.endpoint, api_key=settings.api_key, server_key=settings.server_key, timeout=ANSWER_S_MAX
        ) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        watch = Watch(lambda: ask_metrics(client))
        parts: list[Part] = [watch.run(), _beat(ParentHeartbeat(stdin))]
        if listener is not None:
            history = History()
            door = await _door(stack, settings, history)
            parts += [remember(watch, history), door.run(), _show(settings, watch, history, door, listener, context, journal)]
        if settings.otlp_endpoint is not None:
            parts.append(_export(settings, settings.otlp_endpoint, watch, door, journal))
        address = None if listener is None else f"{settings.host}:{settings.port}"
        journal.tell([ObserverServing(address, settings.otlp_endpoint and without_password(settings.otlp_endpoint))])
        await _run_until(stop, parts, journal)


async def _door(stack: contextlib.AsyncExitStack, settings: ObserverSettings, history: History) -> HttpApi:
    """Return the HTTP door. Without authentication it has a client of its own, and is open to this machine only."""
    if settings.api_key is not None or not is_loopback(settings.host or ""):
        return HttpApi(None, history)
    return HttpApi(await stack.enter_async_context(AsyncClient(settings.endpoint, timeout=CLICK_S_MAX)), history)


async def _beat(heartbeat: ParentHeartbeat) -> None:
    """Show that the event loop turns."""
    while True:
        heartbeat.beat()
        await asyncio.sleep(BEAT_S)


async def _run_until(stop: asyncio.Event, parts: Sequence[Part], journal: Journal) -> None:
    """Run all parts; an error of one of them ends all, and is raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        journal.tell([ProcessStopping()])
    for task in (stopping, *tasks):
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


def _stop_event(stdin: int) -> asyncio.Event:
    """Return an event that SIGTERM, SIGINT and the end of the parent set."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def ended() -> None:
        loop.remove_reader(stdin)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_reader(stdin, ended)  # nothing but its end comes
    return stop


async def _export(settings: ObserverSettings, endpoint: str, watch: Watch, door: HttpApi | None, journal: Journal) -> None:
    from fila_cluster.ops.observer.otlp import OtlpExport  # noqa: PLC0415  # 0.3 s and 20 MiB, which most clusters do without

    own = door.counts.families if door else list
    await OtlpExport(watch, endpoint, settings.service_name, settings.metrics_interval_ms, journal, own).run()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket on the address; raises :class:`CannotServeError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=100)
    except OSError as error:
        reason = f"{os.strerror(error.errno) if error.errno else error}; stop the other process or choose another --dashboard"
        raise CannotServeError(f"cannot listen on {host}:{port}: {reason}") from None


async def _show(
    settings: ObserverSettings,
    watch: Watch,
    history: History,
    door: HttpApi,
    listener: socket.socket,
    context: ssl.SSLContext | None,
    journal: Journal,
) -> None:
    """Serve the dashboard if it is installed, else a page that says how to install it; both beside ``/metrics``."""
    assert settings.host is not None
    async with contextlib.AsyncExitStack() as stack:
        pages = await _pages(stack, settings, watch, history, door, journal)
        if settings.api_key is not None:
            keys = Keys(
                lambda key: AsyncClient(settings.endpoint, api_key=key, server_key=settings.server_key, timeout=CLICK_S_MAX)
            )
            stack.push_async_callback(keys.close)
            pages = Login(pages, keys)
        if context is not None and settings.certificate is not None and settings.private_key is not None:
            following = asyncio.ensure_future(follow(context, settings.certificate, settings.private_key, journal))
            stack.callback(following.cancel)
        await _answer(Guard(pages, settings.host, (*settings.allowed_hosts, socket.gethostname())), listener, context)


async def _pages(
    stack: contextlib.AsyncExitStack,
    settings: ObserverSettings,
    watch: Watch,
    history: History,
    door: HttpApi,
    journal: Journal,
) -> ASGIApp:
    if importlib.util.find_spec("nicegui") is None:
        return application(watch, history, door=door)
    try:
        from fila_cluster.ops.dashboard.serving import dashboard  # noqa: PLC0415  # most of a second, and 60 MiB

        app = application(watch, history, None, door)
        await stack.enter_async_context(dashboard(app, watch, history, settings))
    except Exception as error:  # a library of another version: /metrics and the broker must not end
        journal.tell([DashboardLeftOut(type(error).__name__, where(error))])
        return application(watch, history, NOT_LOADED, door)
    else:
        return app


async def _answer(pages: ASGIApp, listener: socket.socket, context: ssl.SSLContext | None) -> None:
    """Serve until cancelled; open requests are finished. ``context``: of TLS; None: in the clear."""
    config = uvicorn.Config(
        pages,
        http=BoundedConnection,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        log_level="warning",
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=STOP_S_MAX,
    )
    config.load()
    config.ssl = context
    server = _Server(config)
    answering = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(answering)
    except asyncio.CancelledError:
        server.should_exit = True
        await answering
        raise
