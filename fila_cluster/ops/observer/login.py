"""Logins to the pages of a cluster with authentication: with any valid API key, and its rights.

People log in with the key and get a cookie for 12 hours; programs send it as ``Authorization: Bearer KEY``. The cookie names
a session, the key stays in this process. Each key has a client of its own, so the broker decides about its rights. The router
is asked about each key at least once a second while it is used: the end of a key ends its sessions and their open pages.
``/metrics`` needs a permission on all queues. ``/healthz``, ``/readyz`` and the descriptions of the HTTP door are open. The
door itself takes keys only, no cookies.
"""

import asyncio
import html
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from hashlib import sha256
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fila_admission.keys import LoginAttempts
from fila_admission.permissions import Permissions
from fila_cluster.client import AsyncClient
from fila_cluster.client.calls.cluster import ask_own_key
from fila_cluster.errors import FilaError, OverloadedError, PermissionDeniedError, RequestTimeoutError, UnauthenticatedError
from fila_cluster.ops.analysis.visitor import SCOPE_KEY, end_of
from fila_cluster.ops.observer.http_api.bodies import failure, is_of_the_door
from fila_proto_zmq.commands import KeyView

COOKIE: Final = "fila_session"
SESSION_S: Final = 12 * 3600
CHECK_S: Final = 0.25
"""How long the router's answer about a key holds."""
ANSWER_S_MAX: Final = 2.0
"""How long a request waits for the router's answer."""
CUT_S: Final = 3.0
"""How often a connection of an open page is checked. The page itself checks more often, and opens the login."""
KEYS_MAX: Final = 100
"""Keys in use at a time, each with a connection to the router. Beyond, the one that was idle longest logs in again."""
SESSIONS_MAX: Final = 1000
FAILURES_MAX: Final = 20
"""Failed logins of one address at once."""
FAILURE_S: Final = 2.0
"""The time after which one of them is forgotten."""
ADDRESSES_MAX: Final = 10_000
ADMITTED_AT_ONCE: Final = 16
"""Unknown keys that the router is asked about at a time."""
FORM_BYTES_MAX: Final = 4096
FORM_S_MAX: Final = 10.0
"""How long the form of a login may take to come: its sender is still unknown."""
METRICS: Final = "/metrics"
HISTORY: Final = "/history"
OPEN: Final = frozenset({"/healthz", "/readyz", "/openapi.json", "/api"})
_POLICY_VIOLATION: Final = 1008

_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Log in · fila-cluster</title>
<style>:root{{color-scheme:light dark}}
body{{font-family:system-ui,sans-serif;max-width:26rem;margin:15vh auto;padding:0 1rem}}
input,button{{font:inherit;width:100%;box-sizing:border-box;padding:.6rem;margin:.4rem 0}}
button{{background:#0f766e;color:#fff;border:0;border-radius:4px;cursor:pointer}}
p{{opacity:.75}}p.wrong{{color:light-dark(#b91c1c,#f87171);opacity:1}}</style>
<h1>fila-cluster</h1><p class="wrong" role="alert">{wrong}</p>
<form method="post" action="/login"><label>API key
<input name="key" type="password" autocomplete="current-password" autofocus required></label>
<button>Log in</button></form>
<p>You see the queues that the key has a permission for, and may do what it allows.</p></html>
"""


class Holder:
    """An API key in use: its client, the router's last answer about it, and the time of that."""

    def __init__(self, digest: bytes, client: AsyncClient, view: KeyView, now: float) -> None:
        self.digest = digest
        self.client = client
        self.ended = False
        self.holds = 0
        """Leases and requests of the HTTP door: while there are any, the client stays open."""
        self.trouble = ""
        """Why the router did not answer; empty if it did."""
        self.used_at = self.checked_at = now
        self.asking = asyncio.Lock()
        self.name = view.name
        self.learn(view)

    def learn(self, view: KeyView) -> None:
        """Note the router's answer."""
        self.trouble = ""
        self.permissions = Permissions(view.allow)


class Keys:
    """The keys that were brought lately, each confirmed by the router."""

    def __init__(self, connect: Callable[[str], AsyncClient], clock: Callable[[], float] = time.monotonic) -> None:
        """``connect(api_key)`` opens a client."""
        self._connect = connect
        self._clock = clock
        self._holders: OrderedDict[bytes, Holder] = OrderedDict()
        self._admitting = asyncio.Semaphore(ADMITTED_AT_ONCE)
        self._attempts = LoginAttempts(FAILURES_MAX, int(1000 * FAILURE_S), ADDRESSES_MAX)

    async def find(self, digest: bytes) -> Holder:
        """Return a key that was admitted before. Raise :class:`UnauthenticatedError` if it has ended, or was dropped here."""
        holder = self._holders.get(digest)
        if holder is None:
            raise UnauthenticatedError("this session has ended: log in again")
        async with holder.asking:
            if self._clock() - holder.checked_at > CHECK_S:
                await self._ask_again(holder)
        if holder.ended:
            raise UnauthenticatedError("this session has ended: log in again")
        if holder.trouble:
            raise RequestTimeoutError(holder.trouble)
        holder.used_at = self._clock()
        self._holders.move_to_end(digest)
        return holder

    async def _ask_again(self, holder: Holder) -> None:
        try:
            holder.learn(await _own_key(holder.client))
        except UnauthenticatedError:
            await self._drop(holder.digest)
            raise
        except FilaError as error:
            holder.trouble = str(error)
        holder.checked_at = self._clock()

    async def admit(self, secret: str, address: str) -> Holder:
        """Return the key with this secret, or raise :class:`FilaError`. ``address``: it has to wait after too many failures."""
        digest = _digest(secret)
        if digest in self._holders:
            return await self.find(digest)
        if not self._attempts.take(address, self._now_ms()):  # given back unless the key turns out to be wrong
            raise OverloadedError(f"too many failed logins from {address}: wait some seconds")
        async with self._admitting, AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._connect(secret))
            try:
                view = await _own_key(client)
            except UnauthenticatedError:
                raise
            except FilaError:
                self._attempts.give_back(address, self._now_ms())
                raise
            self._attempts.give_back(address, self._now_ms())
            if digest in self._holders:  # another request was faster
                return self._holders[digest]
            stack.pop_all()  # the client stays open
            holder = self._holders[digest] = Holder(digest, client, view, self._clock())
        await self._forget_idle()
        return holder

    def _now_ms(self) -> int:
        return int(1000 * self._clock())

    async def _forget_idle(self) -> None:
        while True:
            oldest = next((holder for holder in self._holders.values() if not holder.holds), None)
            if oldest is None or (len(self._holders) <= KEYS_MAX and self._clock() - oldest.used_at < SESSION_S):
                return
            await self._drop(oldest.digest)

    async def _drop(self, digest: bytes) -> None:
        holder = self._holders.pop(digest, None)
        if holder is not None:
            holder.ended = True
            await holder.client.close()

    async def close(self) -> None:
        """Close all clients."""
        for digest in list(self._holders):
            await self._drop(digest)


async def _own_key(client: AsyncClient) -> KeyView:
    try:
        view = await asyncio.wait_for(ask_own_key(client), ANSWER_S_MAX)
    except TimeoutError:
        raise RequestTimeoutError("the router does not answer, so this key cannot be checked") from None
    if view is None:
        raise UnauthenticatedError("this cluster has no authentication any more: start the dashboard again")
    return view


class LoggedInVisitor:
    """One login: its key, and when it ends."""

    def __init__(self, keys: Keys, key: Holder, ends_at: float, clock: Callable[[], float]) -> None:
        self.key = key
        self.ends_at = ends_at
        self._keys = keys
        self._clock = clock

    async def check(self) -> None:
        """Raise :class:`UnauthenticatedError` once the login or its key has ended."""
        if self.ends_at <= self._clock() or self.key.ended:
            raise UnauthenticatedError("this session has ended: log in again")
        await self._keys.find(self.key.digest)

    def end(self) -> None:
        """Log out."""
        self.ends_at = self._clock()


class Login:
    """An ASGI application that passes on only requests with a key. Pages find the visitor in the scope."""

    def __init__(self, app: ASGIApp, keys: Keys, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._keys = keys
        self._clock = clock
        self._sessions: OrderedDict[str, LoggedInVisitor] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, ask for a key, or refuse."""
        if scope["type"] == "lifespan" or scope.get("path") in OPEN:
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"] in self._own_pages:
            await (await self._own_pages[scope["path"]](Request(scope, receive)))(scope, receive, send)
            return
        visitor = await self._visitor(HTTPConnection(scope))
        if isinstance(visitor, LoggedInVisitor):
            await self._pass_on(visitor, {**scope, SCOPE_KEY: visitor}, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": "log in"})
        else:
            await visitor(scope, receive, send)

    async def _pass_on(self, visitor: LoggedInVisitor, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        end = asyncio.ensure_future(end_of(visitor, CUT_S))
        try:
            await self._app(scope, _until(end, receive), send)
        finally:
            end.cancel()

    @property
    def _own_pages(self) -> dict[str, Callable[[Request], Awaitable[Response]]]:
        return {"/login": self._log_in, "/logout": self._log_out}

    async def _visitor(self, connection: HTTPConnection) -> LoggedInVisitor | Response:
        """Return the visitor of a request, or the answer for an unknown one."""
        kind, _, secret = connection.headers.get("authorization", "").partition(" ")
        try:
            if kind.lower() == "bearer":
                key = await self._keys.admit(secret.strip(), _address(connection))
                visitor = LoggedInVisitor(self._keys, key, math.inf, self._clock)  # a stream may go on for days
            elif is_of_the_door(connection.scope):  # a cookie is not enough: browsers send it by themselves
                raise UnauthenticatedError("send an API key: Authorization: Bearer KEY")
            else:
                visitor = self._visitor_of_session(connection)
                await visitor.check()
            _check_reader(visitor.key, connection)
        except FilaError as error:
            if is_of_the_door(connection.scope):
                return failure(error)
            return _refused(error, connection)
        return visitor

    def _visitor_of_session(self, connection: HTTPConnection) -> LoggedInVisitor:
        name = connection.cookies.get(COOKIE, "")
        visitor = self._sessions.get(name)
        if visitor is None or visitor.ends_at <= self._clock():
            self._sessions.pop(name, None)
            raise UnauthenticatedError("these pages need an API key: log in, or send Authorization: Bearer KEY")
        return visitor

    async def _log_in(self, request: Request) -> Response:
        if request.method != "POST":
            return _page("")
        try:
            body = await _form_of(request)
        except TimeoutError:
            return _page("The form did not come in time: try again.", 408)
        if len(body) > FORM_BYTES_MAX:
            return _page("That is no API key.", 413)
        secret = parse_qs(body.decode(errors="replace")).get("key", [""])[0].strip()
        try:
            key = await self._keys.admit(secret, _address(request))
        except FilaError as error:
            return _page(str(error), {UnauthenticatedError: 401, OverloadedError: 429}.get(type(error), 503))
        name = secrets.token_urlsafe(32)
        self._sessions[name] = LoggedInVisitor(self._keys, key, self._clock() + SESSION_S, self._clock)
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)[1].end()
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(
            COOKIE, name, max_age=SESSION_S, httponly=True, samesite="strict", secure=request.url.scheme == "https"
        )
        return answer

    async def _log_out(self, request: Request) -> Response:
        if request.method != "POST":
            return PlainTextResponse("log out with the button of a page\n", status_code=405, headers={"Allow": "POST"})
        visitor = self._sessions.pop(request.cookies.get(COOKIE, ""), None)
        if visitor is not None:
            visitor.end()
        answer = RedirectResponse("/login", status_code=303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return answer


async def _form_of(request: Request) -> bytes:
    """Return the form of a login, cut if it is too large."""
    body = b""
    async with asyncio.timeout(FORM_S_MAX):
        async for piece in request.stream():
            body += piece
            if len(body) > FORM_BYTES_MAX:
                break
    return body


def _page(wrong: str, status: int = 200) -> Response:
    return HTMLResponse(_PAGE.format(wrong=html.escape(wrong)), status_code=status, headers={"Cache-Control": "no-store"})


def _refused(error: FilaError, connection: HTTPConnection) -> Response:
    """Return the answer of a page to a refused visitor."""
    match error:
        case UnauthenticatedError():
            if "text/html" in connection.headers.get("accept", "") and "authorization" not in connection.headers:
                return RedirectResponse("/login", status_code=303)
            return PlainTextResponse(f"{error}\n", status_code=401, headers={"WWW-Authenticate": "Bearer"})
        case PermissionDeniedError():
            return PlainTextResponse(f"{error}\n", status_code=403)
        case OverloadedError():
            return PlainTextResponse(f"{error}\n", status_code=429)
        case _:  # the router is away: the visitor is unknown
            return PlainTextResponse(f"{error}\n", status_code=503)


def _address(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client else ""


def _check_reader(key: Holder, connection: HTTPConnection) -> None:
    """Raise :class:`PermissionDeniedError` unless a key may read the answer for a program. Existence does not show."""
    path, queue = connection.scope["path"], connection.query_params.get("queue")
    if path == METRICS or (path == HISTORY and queue is None):
        if not key.permissions.know_all():
            raise PermissionDeniedError(
                f"the API key {key.name!r} does not have a permission on all queues (*): {path} needs one"
            )
    elif path == HISTORY and queue is not None and not key.permissions.know(queue):
        raise PermissionDeniedError(f"the API key {key.name!r} does not have any permission on {queue!r}")


def _until(end: "asyncio.Future[Any]", receive: Receive) -> Receive:
    """Return a receiver of a connection's messages until the end, and then of its close."""
    coming: asyncio.Future[Any] | None = None

    async def next_message() -> Message:
        nonlocal coming
        coming = coming or asyncio.ensure_future(receive())
        await asyncio.wait([coming, end], return_when=asyncio.FIRST_COMPLETED)
        if end.done():
            coming.cancel()
            return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}
        message: Message = coming.result()
        coming = None
        return message

    return next_message


def _digest(secret: str) -> bytes:
    return sha256(secret.encode(errors="replace")).digest()
