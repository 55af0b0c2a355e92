"""Keeping other web pages out: a browser would let any page that its user visits talk to an address on this machine.

A browser says where a request comes from (``Origin``) and whom it believes to talk to (``Host``). A request from another origin is
refused, which covers WebSockets, where browsers don't ask for permission first. A page can also make a name of its own point here (DNS
rebinding), and is then at home as far as the browser knows: so only known names are answered to. Those are addresses (a page can't
pretend to come from one), loopback's names, the name that was configured to listen on, this machine's, and ``[dashboard] allowed_hosts``.
Who listens on loopback only is not asked by other addresses. What only counts and shows no message is told under any name elsewhere:
collectors know a broker by the name that their network gives it.
"""

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_POLICY_VIOLATION: Final = 1008
_REASON_MAX: Final = 120
"""A frame that closes a WebSocket has no room for more."""

_HARMLESS: Final = frozenset({"/metrics", "/healthz", "/readyz"})


class Guard:
    """An ASGI application that lets another one see only requests of its own pages, and of programs."""

    def __init__(self, app: ASGIApp, listens_on: str, names: Collection[str] = ()) -> None:
        """``names``: what it answers to besides ``listens_on`` and loopback's names."""
        self._app = app
        self._loopback_only = is_loopback(listens_on)
        self._names = frozenset() if self._loopback_only else {name.lower() for name in (listens_on, *names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse."""
        refusal = None if scope["type"] == "lifespan" else self._refusal(scope.get("path", ""), Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": refusal[:_REASON_MAX]})
        else:
            await PlainTextResponse(refusal + "\n", status_code=403)(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return f"requests from {origin} are refused: open the dashboard under its own address, http://{host}/"
        if host and not self._answers_to(_name_in(host), path):
            other = "" if self._loopback_only else ", as the address it has, or name it in [dashboard] allowed_hosts"
            return f"this address is not served as {host!r}: open it as http://127.0.0.1 or http://localhost, with its port{other}"
        return None

    def _answers_to(self, name: str, path: str) -> bool:
        if is_loopback(name) or name in self._names:
            return True
        return not self._loopback_only and (_is_address(name) or path in _HARMLESS)


def _name_in(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # brackets that hold no address
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine only."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
