"""Errors as answers: JSON with the codes of the client library, and the status that fits."""

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from fila_cluster.errors import BatchError, FilaError, PermissionDeniedError
from fila_cluster.ops.observer.http_api.bodies import ErrorBody

STATUSES: Final = {
    "INVALID_ARGUMENT": 400,
    "INVALID_FRAME": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "QUEUE_NOT_FOUND": 404,
    "MESSAGE_NOT_FOUND": 404,
    "LEASE_EXPIRED": 409,
    "ALREADY_SETTLED": 409,
    "PAYLOAD_TOO_LARGE": 413,
    "RATE_LIMITED": 429,
    "OVERLOADED": 429,
    "SHARD_UNAVAILABLE": 503,
    "REQUEST_TIMEOUT": 504,
}
"""The status of each code; 500 for the others."""
RETRY_S: Final = 1
"""In ``Retry-After``, when there is no better value."""
FRESH: Final = {"Cache-Control": "no-store"}


def is_of_the_door(scope: Scope) -> bool:
    """Return whether a request is for the door, so that its errors are answered as JSON."""
    return str(scope.get("path", "")).startswith("/queues/")


def success(body: bytes) -> Response:
    """Return the answer with a JSON body."""
    return Response(body, 200, FRESH, "application/json")


def failure(error: FilaError, status: int | None = None) -> Response:
    """Return the answer for an error. The status of several is that of the first one that failed."""
    code = _first(error).code
    response = Response(msgspec.json.encode(_body(error)), status or STATUSES.get(code, 500), FRESH, "application/json")
    if response.status_code in {429, 503}:
        response.headers["Retry-After"] = str(max(RETRY_S, math.ceil(_retry_after(error) or 0)))
    if response.status_code == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def denied(text: str) -> Response:
    """Return the answer to a request that is refused because of its origin."""
    return failure(PermissionDeniedError(text))


def _body(error: FilaError) -> ErrorBody:
    body = ErrorBody(
        code=error.code,
        message=str(error),
        retryable=all(each.retryable for each in _errors(error)),
        retry_after=_retry_after(error),
        details=_plain(error.details),
    )
    if isinstance(error, BatchError):
        body.results = [{"error": _body(each)} if isinstance(each, FilaError) else each for each in error.results]
    return body


def _errors(error: FilaError) -> Sequence[FilaError]:
    if not isinstance(error, BatchError):
        return [error]
    return [each for each in error.results if isinstance(each, FilaError)] or [error]


def _first(error: FilaError) -> FilaError:
    return _errors(error)[0]


def _retry_after(error: FilaError) -> float | None:
    return max((each.retry_after for each in _errors(error) if each.retry_after is not None), default=None)


def _plain(details: dict[str, Any]) -> dict[str, Any]:
    """Return details as plain JSON values."""
    try:
        plain: dict[str, Any] = msgspec.to_builtins(details)
    except (TypeError, msgspec.MsgspecError):
        return {name: str(value) for name, value in details.items()}
    return plain
