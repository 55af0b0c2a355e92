"""The door's paths, and the steps of each request: its key, the limits, its answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fila_cluster.client import AsyncClient
from fila_cluster.errors import FilaError, InvalidArgumentError, PermissionDeniedError
from fila_cluster.ops.analysis.history import History
from fila_cluster.ops.analysis.visitor import SCOPE_KEY
from fila_cluster.ops.observer.http_api import openapi, operations, streams
from fila_cluster.ops.observer.http_api.bodies import failure, success
from fila_cluster.ops.observer.http_api.operations import ApiRequest, UnsupportedTypeError
from fila_cluster.ops.observer.http_api.receivers import LIMITS, SWEEP_S, Receiver, ReceiverLimits, Receivers, RequestCounts

CLOSED: Final = 499
"""The status that is counted for a client that has hung up before its answer, or has not read it."""

Operation = Callable[[ApiRequest], Awaitable[bytes | Response]]
OPERATIONS: Final[dict[str, Operation]] = {
    "enqueue": operations.enqueue,
    "receive": operations.receive,
    "consume": streams.consume,
    "settle": operations.settle,
    "scale": operations.scale,
    "list_throttles": operations.list_throttles,
}


class HttpApi:
    """The HTTP door. ``client`` is for all requests without authentication; None: each request needs a key.

    ``history``: what is remembered of the queues.
    """

    def __init__(self, client: AsyncClient | None, history: History, limits: ReceiverLimits = LIMITS) -> None:
        self.receivers = Receivers(limits)
        self.counts = RequestCounts(self.receivers)
        self.history = history
        self._client = client

    def routes(self) -> list[Route]:
        """Return the paths."""
        paths = [
            Route(each.path.replace("{queue}", "{queue:path}"), _Endpoint(self, each.name, each.method))
            for each in openapi.DESCRIBED
        ]
        return [
            *paths,
            Route("/queues/{path:path}", _Endpoint(self, "")),
            Route(openapi.DOCUMENT_PATH, _document),
            Route(openapi.PAGE_PATH, _page),
        ]

    async def run(self) -> None:
        """Forget leases that have ended, until cancelled: then streams end."""
        try:
            while True:
                await asyncio.sleep(SWEEP_S)
                self.receivers.sweep()
        finally:
            self.receivers.stopping.set()

    def receiver_of(self, scope: Scope) -> Receiver:
        """Return the receiver of a request's key."""
        visitor = scope.get(SCOPE_KEY)
        if visitor is not None:
            return self.receivers.of_key(visitor.key)
        if self._client is None:
            raise PermissionDeniedError(
                "messages go through this address only with authentication, because other machines reach it: set [auth] "
                "enabled, or --dashboard to a loopback address"
            )
        return self.receivers.of_nobody(self._client)


class _Endpoint:
    """One operation, as an ASGI application. A request's bytes are counted until its answer is sent."""

    def __init__(self, door: HttpApi, name: str, method: str = "") -> None:
        self._door = door
        self._name = name
        self._method = method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry out a request and answer it."""
        request, status = Request(scope, receive), CLOSED
        try:
            receiver = self._door.receiver_of(scope)
            with self._door.receivers.request(receiver) as load:
                answer = await self._answer(
                    request, lambda queue: ApiRequest(request, queue, receiver, load, self._door.history)
                )
                status = answer.status_code
                await answer(scope, receive, send)
        except FilaError as error:
            answer = failure(error)
            status = answer.status_code
            await answer(scope, receive, send)
        except ClientDisconnect:
            status = CLOSED
        finally:
            self._door.counts.requests[self._name or "other", status] += 1

    async def _answer(self, request: Request, asked: Callable[[str], ApiRequest]) -> Response:
        try:
            _check_origin(request)
            if not self._name:
                paths = ", ".join(f"{each.method} {each.path}" for each in openapi.DESCRIBED)
                return failure(InvalidArgumentError(f"{request.url.path!r} is not a path of this address: use {paths}"), 404)
            if request.method != self._method:
                refusal = failure(InvalidArgumentError(f"{request.method} {request.url.path}: use {self._method}"), 405)
                refusal.headers["Allow"] = self._method
                return refusal
            this = asked(operations.queue_of(request))
            try:
                answer = await OPERATIONS[self._name](this)
            except FilaError as error:
                return failure(this.receiver.reason(error), 415 if isinstance(error, UnsupportedTypeError) else None)
            return success(answer) if isinstance(answer, bytes) else answer
        except FilaError as error:
            return failure(error)


def _check_origin(request: Request) -> None:
    """Refuse requests of a browser for a page of another site, also without an origin."""
    if request.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        raise PermissionDeniedError("requests of other sites' pages are refused: send this one from a program")


async def _document(_: Request) -> Response:
    return JSONResponse(openapi.document())


async def _page(_: Request) -> Response:
    return HTMLResponse(openapi.page())
