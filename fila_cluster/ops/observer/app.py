"""The pages of the observer's address, and a guard that keeps other web pages out."""

import asyncio
import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fila_cluster.ops.analysis.history import History, half_hour, nothing_known
from fila_cluster.ops.analysis.hosts import without_folders
from fila_cluster.ops.analysis.watch import Watch
from fila_cluster.ops.observer.catalogue import families
from fila_cluster.ops.observer.http_api.bodies import denied, is_of_the_door
from fila_cluster.ops.observer.http_api.routes import HttpApi
from fila_cluster.ops.observer.prometheus import CONTENT_TYPE, exposition

_POLICY_VIOLATION: Final = 1008
_REASON_MAX: Final = 120
"""The longest reason in a frame that closes a WebSocket."""

PIECE_BYTES: Final = 1 << 16
SEND_S_MAX: Final = 30.0
"""How long a client may take to read an answer: until then it is in memory."""

_HARMLESS: Final = frozenset({"/metrics", "/healthz", "/readyz"})


class Guard:
    """An ASGI application that passes on only requests of its own pages, and of programs."""

    def __init__(self, app: ASGIApp, listens_on: str, names: Collection[str] = ()) -> None:
        """``names``: the host names that it accepts besides ``listens_on`` and loopback's names."""
        self._app = app
        self._loopback_only = is_loopback(listens_on)
        self._names = frozenset() if self._loopback_only else {name.lower() for name in (listens_on, *names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse."""
        refusal = None if scope["type"] == "lifespan" else self._refusal(scope, Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, _never_framed(_as_read(send)) if scope["type"] == "http" else send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": refusal[:_REASON_MAX]})
        elif is_of_the_door(scope):
            await denied(refusal)(scope, receive, send)
        else:
            await PlainTextResponse(refusal + "\n", status_code=403)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> str | None:
        path, scheme = scope.get("path", ""), "https" if scope.get("scheme") in {"https", "wss"} else "http"
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is not None and _netloc_in(origin) != host:
            return f"requests from {origin} are refused: open the dashboard under its own address, {scheme}://{host}/"
        if host and not self._answers_to(_name_in(host), path):
            other = "" if self._loopback_only else ", as the address it has, or name it in [dashboard] allowed_hosts"
            local = f"{scheme}://127.0.0.1 or {scheme}://localhost"
            return f"this address is not served as {host!r}: open it as {local}, with its port{other}"
        return None

    def _answers_to(self, name: str, path: str) -> bool:
        if is_loopback(name) or name in self._names:
            return True
        return not self._loopback_only and (_is_address(name) or path in _HARMLESS)


def _never_framed(send: Send) -> Send:
    """Forbid other pages to show these pages within themselves: clicks there could be meant for something else."""

    async def framed_by_nobody(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Content-Security-Policy"] = "frame-ancestors 'none'"
            headers["X-Frame-Options"] = "DENY"
            headers["X-Content-Type-Options"] = "nosniff"
        await send(message)

    return framed_by_nobody


def _as_read(send: Send) -> Send:
    """Send a body piece by piece, each when the client has read the one before.

    The server would take whole bodies into buffers of its own, without a bound. :class:`ClientDisconnect` if the client takes
    too long.
    """

    async def in_pieces(message: Message) -> None:
        body = message.get("body", b"")
        last = max(0, len(body) - 1) // PIECE_BYTES * PIECE_BYTES
        try:
            async with asyncio.timeout(SEND_S_MAX):
                for begin in range(0, last, PIECE_BYTES):
                    await send({**message, "body": body[begin : begin + PIECE_BYTES], "more_body": True})
                await send({**message, "body": body[last:]} if last else message)
        except TimeoutError:
            raise ClientDisconnect from None

    return in_pieces


def _netloc_in(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # brackets without an address
        return None


def _name_in(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # brackets without an address
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether a name or an address means this machine only."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


_FRESH: Final = {"Cache-Control": "no-store"}

_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>fila-cluster</title>
<h1>fila-cluster</h1>
<p>{why}</p>
<ul>
<li><a href="metrics">/metrics</a>: all counters, for Prometheus</li>
<li><a href="history">/history</a>: the last half hour, as JSON; of one queue with <code>?queue=NAME</code></li>
<li><a href="readyz">/readyz</a>: whether every shard serves</li>
<li><a href="healthz">/healthz</a>: whether this process lives</li>
<li><a href="api">/api</a>: messages in and out by HTTP</li>
</ul></html>
"""

NOT_INSTALLED: Final = "The dashboard is not installed: <code>pip install 'fila-cluster[dashboard]'</code>, and start again."
NOT_LOADED: Final = (
    "The dashboard is installed, and can't be loaded; the log says why (<code>dashboard.left_out</code>). "
    "<code>pip install --upgrade 'fila-cluster[dashboard]'</code>, and start again."
)
"""Why the dashboard is missing, as HTML."""


def application(
    watch: Watch, history: History, no_dashboard: str | None = NOT_INSTALLED, door: HttpApi | None = None
) -> Starlette:
    """Return the pages and the HTTP door. ``no_dashboard``: why ``/`` has no dashboard; None: the dashboard has that page."""

    async def index(_: Request) -> Response:
        return HTMLResponse(_PAGE.format(why=no_dashboard))

    # Not async, so that it runs in a thread: with thousands of queues it takes a second, and no other request may wait.
    def metrics(_: Request) -> Response:
        own = [] if door is None or watch.latest is None else door.counts.families()
        return Response(exposition([*families(watch.latest), *own]), headers=_FRESH | {"Content-Type": CONTENT_TYPE})

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n", headers=_FRESH)

    async def readyz(_: Request) -> Response:
        await watch.look_now()
        reasons = without_folders(watch.obstacles())
        answer: dict[str, object] = {"ready": not reasons, "reasons": reasons}
        if warnings := without_folders(watch.warnings()):
            answer["warnings"] = warnings
        return JSONResponse(answer, status_code=503 if reasons else 200, headers=_FRESH)

    async def remembered(request: Request) -> Response:
        queue = request.query_params.get("queue")
        answer = half_hour(history, queue, watch.latest)
        if answer is None:
            return JSONResponse({"error": nothing_known(queue or "")}, status_code=404, headers=_FRESH)
        return Response(msgspec.json.encode(answer), media_type="application/json", headers=_FRESH)

    pages = {"/metrics": metrics, "/history": remembered, "/healthz": healthz, "/readyz": readyz}
    if no_dashboard is not None:
        pages["/"] = index
    return Starlette(routes=[*(Route(path, page) for path, page in pages.items()), *(door.routes() if door else ())])
