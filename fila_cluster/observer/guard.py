"""Keeping other web pages out: a browser would let any page that its user visits talk to an address on this machine.

A browser says where a request comes from (``Origin``) and whom it believes to talk to (``Host``). A request from another origin is
refused, which covers WebSockets, where browsers don't ask for permission first; and who listens on loopback only answers to loopback's
names, so that a foreign name that is made to point here (DNS rebinding) gets nothing. Programs send no origin and are let through.
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_POLICY_VIOLATION: Final = 1008


class Guard:
    """An ASGI application that lets another one see only requests of its own pages, and of programs."""

    def __init__(self, app: ASGIApp, *, loopback_only: bool) -> None:
        self._app = app
        self._loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse."""
        refusal = None if scope["type"] == "lifespan" else self._refusal(Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": refusal})
        else:
            await PlainTextResponse(refusal + "\n", status_code=403)(scope, receive, send)

    def _refusal(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return f"requests from {origin} are refused: open the dashboard under its own address, http://{host}/"
        if self._loopback_only and host and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            return f"this address is not served as {host!r}: open it as http://127.0.0.1 or http://localhost, with its port"
        return None


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine only."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
