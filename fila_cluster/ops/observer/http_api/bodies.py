"""The bodies of requests and answers, with the field names of the client library; and errors as answers with a status."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from starlette.responses import Response
from starlette.types import Scope

from fila_cluster.client.message import Message, StoredMessage
from fila_cluster.client.protocol.delivery import Delivery
from fila_cluster.errors import BatchError, FilaError, InvalidArgumentError, PermissionDeniedError
from fila_cluster.ops.analysis.scaling import DRAIN_S_MAX
from fila_proto_zmq.commands import MESSAGE_OPTIONS
from fila_proto_zmq.limits import DELIVERY_MESSAGES_MAX

MESSAGES_MAX: Final = 1000
"""Of one request."""
WAIT_S_MAX: Final = 60.0
"""Of one receive: proxies close connections that are silent for longer."""
PREFETCH: Final = 1
"""Of a stream that names none."""
BEAT_S: Final = 10.0
"""The longest silence of a stream: an empty line shows both sides that the other one is there."""
LINES: Final = "application/x-ndjson"
"""The type of a stream: a line of JSON for each delivery."""
HEADER: Final = "header."
"""Before the name of a header, as a parameter of a request whose body is the payload."""

_JSON_TYPES: Final = {"throttle_keys": list[str] | None}
"""The JSON types of options whose own types JSON lacks."""
_OPTIONS: Final = {
    name: Annotated[_JSON_TYPES.get(name) or get_type_hints(Message)[name], Meta(description=option.meaning)]
    for name, option in MESSAGE_OPTIONS.items()
}
"""The options of a message with their types in JSON."""


class _Strict(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A body whose unknown fields are errors."""


OptionsBody: Final = msgspec.defstruct(
    "Options",
    [(name, kind | UnsetType, UNSET) for name, kind in _OPTIONS.items()],
    bases=(_Strict,),
    kw_only=True,
    forbid_unknown_fields=True,
)

MessageBody: Final = msgspec.defstruct(
    "Message",
    [
        ("payload", Annotated[str, Meta(description="The payload as text.")] | UnsetType, UNSET),
        ("payload_base64", Annotated[bytes, Meta(description="The payload as any bytes.")] | UnsetType, UNSET),
        (
            "payload_json",
            Annotated[Raw, Meta(description="The payload as JSON; it is enqueued as it is written here.")] | UnsetType,
            UNSET,
        ),
        ("headers", dict[str, str] | UnsetType, UNSET),
    ],
    bases=(OptionsBody,),
    kw_only=True,
    forbid_unknown_fields=True,
)


class MessagesBody(_Strict):
    """Several messages, in order."""

    messages: Annotated[list[MessageBody], Meta(min_length=1, max_length=MESSAGES_MAX)]  # type: ignore[valid-type]


class Probe(msgspec.Struct):
    """Tells one message from several."""

    messages: Raw | UnsetType = UNSET


class EnqueuedOne(msgspec.Struct):
    """The id of a message that is durable."""

    id: str


class EnqueuedMany(msgspec.Struct):
    """The ids of messages that are durable, in the order of the request."""

    ids: list[str]


class ReceiveBody(_Strict):
    """How many messages to take, and how long to wait for the first one."""

    max_messages: Annotated[int, Meta(ge=1, le=DELIVERY_MESSAGES_MAX)] = 1
    wait: Annotated[float, Meta(ge=0, le=WAIT_S_MAX, description="Seconds.")] = 0.0


class DeliveryBody(msgspec.Struct, kw_only=True):
    """A message that is leased to the API key of the request. ``token`` settles it; null: there is nothing to settle."""

    token: str | None
    id: str
    queue: str
    headers: dict[str, str]
    payload: str | UnsetType = UNSET
    """The payload, if it is UTF-8."""
    payload_base64: bytes | UnsetType = UNSET
    """The payload, if it is not."""
    fairness_key: str
    weight: int
    throttle_keys: list[str]
    priority: int
    cost: float
    attempts: int
    error: str
    metadata_base64: bytes | UnsetType = UNSET
    enqueued_at: datetime
    leased_at: datetime
    lease_expires_at: datetime
    reason: str | UnsetType = UNSET
    source_queue: str | UnsetType = UNSET
    dead_lettered_at: datetime | UnsetType = UNSET


class ReceivedBody(msgspec.Struct):
    """The messages that were ready; none if none came in time."""

    deliveries: list[DeliveryBody]


Prefetch = Annotated[int, Meta(ge=1, le=DELIVERY_MESSAGES_MAX)]


class _Action(_Strict, tag_field="action"):
    token: str


class _Settlement(_Action, kw_only=True):
    cost: Annotated[float | None, Meta(description="What the work really cost, if not the message's cost.")] = None


class AckBody(_Settlement, tag="ack"):
    """Remove the message for good."""


class NackBody(_Settlement, tag="nack"):
    """Fail: count an attempt, the queue decides what is next."""

    error: str = ""
    metadata_base64: bytes | None = None


class RetryBody(_Settlement, tag="retry"):
    """Fail: count an attempt, and deliver again ``after`` seconds."""

    after: float = 0.0
    error: str = ""
    metadata_base64: bytes | None = None


class FailBody(_Settlement, tag="fail"):
    """Fail for good: dead-letter the message now."""

    error: str = ""


class DeferBody(_Settlement, tag="defer"):
    """Give the message back unharmed, to be delivered again in ``retry_after`` seconds; its throttle keys rest until then."""

    retry_after: float


class GiveBackBody(_Action, tag="give_back"):
    """Give the message back unharmed, to be delivered again at once: nobody has worked on it."""


class ExtendBody(_Action, tag="extend"):
    """Set the end of the lease to ``seconds`` from now."""

    seconds: float


Ending = AckBody | NackBody | RetryBody | FailBody | DeferBody | GiveBackBody
AnySettlement = Ending | ExtendBody


class SettleBody(_Strict):
    """How deliveries end, each by the token that receive gave it."""

    deliveries: Annotated[list[AnySettlement], Meta(min_length=1, max_length=MESSAGES_MAX)]


class SettledBody(msgspec.Struct):
    """All are settled; the number of them."""

    settled: int


DrainSeconds = Annotated[float, Meta(gt=0, le=DRAIN_S_MAX)]


class ThrottleBody(msgspec.Struct):
    """A throttle key: a limit that it lacks is null."""

    key: str
    rate: Annotated[float | None, Meta(description="Tokens a second.")]
    burst: float | None
    tokens: Annotated[float | None, Meta(description="What its bucket holds, by the broker's last count.")]
    concurrency: Annotated[int | None, Meta(description="Messages that may be leased together, in the whole cluster.")]
    in_use: Annotated[int, Meta(description="With a concurrency: messages that are.")]
    waiting: Annotated[
        int, Meta(description="Messages that a consumer could have, but for this key or another one of theirs.")
    ]
    rate_min: float | None
    rate_in_force: Annotated[float | None, Meta(description="What deferrals have left of the rate.")]


class ThrottlesBody(msgspec.Struct):
    """Throttle keys by name."""

    throttles: list[ThrottleBody]


class ErrorBody(msgspec.Struct, kw_only=True):
    """An error, as the client library has it. ``retry_after``: seconds, null if that is not known."""

    code: str
    message: str
    retryable: bool
    retry_after: float | None
    details: dict[str, Any]
    results: list[Any] | UnsetType = UNSET
    """Of a request for several: for each one, in order, its result, or an object with its error in ``error``."""


def message_of(body: Any) -> Message:
    """Return the message of a :data:`MessageBody`. Raise :class:`InvalidArgumentError` unless it has one payload."""
    given = [value for value in (body.payload, body.payload_base64, body.payload_json) if value is not UNSET]
    if len(given) != 1:
        raise InvalidArgumentError(
            f"a message has one of payload, payload_base64 and payload_json, this one has {len(given)}"
        )
    payload = given[0].encode() if isinstance(given[0], str) else bytes(given[0])
    return Message(payload, None if body.headers is UNSET else body.headers, **options_of(body))


def options_of(body: Any) -> dict[str, Any]:
    """Return the options of a message that are given."""
    return {name: value for name in _OPTIONS if (value := getattr(body, name)) is not UNSET}


def message_of_payload(payload: bytes, parameters: Mapping[str, list[str]]) -> Message:
    """Return the message whose payload is a request's body, with its options as the parameters of the URL."""
    headers: dict[str, str] = {}
    options: dict[str, Any] = {}
    for name, values in parameters.items():
        if name == "throttle_keys":
            options[name] = values
            continue
        if len(values) > 1:
            raise InvalidArgumentError(f"the parameter {name!r} is given {len(values)} times: give it once")
        if name.startswith(HEADER):
            headers[name.removeprefix(HEADER)] = values[0]
        elif name in _OPTIONS:
            options[name] = values[0]
        else:
            raise InvalidArgumentError(
                f"the parameter {name!r} is not an option of a message: use {', '.join(_OPTIONS)}, or {HEADER}NAME for a "
                "header"
            )
    try:
        return Message(payload, headers or None, **options_of(msgspec.convert(options, OptionsBody, strict=False)))
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(f"a parameter of the URL: {error}") from None


def delivery_body(delivery: Delivery) -> DeliveryBody:
    """Return the body of a delivery, without its token."""
    letter: dict[str, Any] = (
        {} if delivery.reason is None else {"reason": delivery.reason, "source_queue": delivery.source_queue or ""}
    )
    dead_lettered_at = delivery.dead_lettered_at
    return DeliveryBody(
        token=None,
        id=delivery.id,
        queue=delivery.queue,
        headers=delivery.headers,
        fairness_key=delivery.fairness_key,
        weight=delivery.weight,
        throttle_keys=delivery.throttle_keys,
        priority=delivery.priority,
        cost=delivery.cost,
        attempts=delivery.attempts,
        error=delivery.error,
        metadata_base64=delivery.metadata or UNSET,
        enqueued_at=delivery.enqueued_at,
        leased_at=delivery.leased_at,
        lease_expires_at=delivery.lease_expires_at,
        dead_lettered_at=UNSET if dead_lettered_at is None else dead_lettered_at,
        **_payload(delivery),
        **letter,
    )


def _payload(stored: StoredMessage) -> dict[str, Any]:
    try:
        return {"payload": stored.payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": stored.payload}


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
THROTTLES_PATH: Final = "/throttles"
FRESH: Final = {"Cache-Control": "no-store"}


def is_of_the_door(scope: Scope) -> bool:
    """Return whether a request is for the door, so that its errors are answered as JSON."""
    path = str(scope.get("path", ""))
    return path.startswith("/queues/") or path == THROTTLES_PATH


def success(body: bytes) -> Response:
    """Return the answer with a JSON body."""
    return Response(body, 200, FRESH, "application/json")


def failure(error: FilaError, status: int | None = None) -> Response:
    """Return the answer for an error. The status of several is that of the first one that failed."""
    code = _first(error).code
    response = Response(msgspec.json.encode(error_body(error)), status or STATUSES.get(code, 500), FRESH, "application/json")
    if response.status_code in {429, 503}:
        response.headers["Retry-After"] = str(max(RETRY_S, math.ceil(_retry_after(error) or 0)))
    if response.status_code == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def denied(text: str) -> Response:
    """Return the answer to a request that is refused because of its origin."""
    return failure(PermissionDeniedError(text))


def error_body(error: FilaError) -> ErrorBody:
    """Return the body for an error."""
    body = ErrorBody(
        code=error.code,
        message=str(error),
        retryable=all(each.retryable for each in _errors(error)),
        retry_after=_retry_after(error),
        details=_plain(error.details),
    )
    if isinstance(error, BatchError):
        body.results = [{"error": error_body(each)} if isinstance(each, FilaError) else each for each in error.results]
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
