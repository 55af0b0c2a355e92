"""The operations of requests: enqueue, receive, settle, scale, list throttle keys."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw
from starlette.requests import ClientDisconnect, Request

from fila_cluster.client import AsyncClient, checks
from fila_cluster.client.calls.queues import describe_queue
from fila_cluster.client.forwarding import give_back, given_back, receive_frame
from fila_cluster.client.protocol.delivery import AsyncDelivery
from fila_cluster.errors import (
    BatchError,
    FilaError,
    InvalidArgumentError,
    LeaseExpiredError,
    PayloadTooLargeError,
    RequestTimeoutError,
)
from fila_cluster.ops.analysis import scaling
from fila_cluster.ops.analysis.history import History
from fila_cluster.ops.analysis.partitions import partitions_in
from fila_cluster.ops.observer.http_api import bodies
from fila_cluster.ops.observer.http_api.receivers import Receiver, ReceiverLoad, StreamCredit
from fila_proto_zmq.commands import MESSAGE_OPTIONS

JSON: Final = "application/json"
PAYLOAD: Final = "application/octet-stream"
"""A type that browsers do not send for a page of another site without a preflight request."""
JSON_BYTES_MAX: Final = 8 * 2**20
"""Of one JSON body: read into objects it takes a multiple of that. Larger payloads are sent as bytes."""
PAYLOAD_BYTES_MAX: Final = 64 * 2**20
"""Of a payload, before the broker checks it."""
READ_S_MAX: Final = 30.0
"""How long a client may take to send its body."""

Body = TypeVar("Body")
Number = TypeVar("Number", int, float)


class UnsupportedTypeError(InvalidArgumentError):
    """The body has a type that this operation does not take."""


class ApiRequest(NamedTuple):
    """A request: its queue, its receiver, the count of its bytes, and what is remembered of the queues."""

    request: Request
    queue: str
    receiver: Receiver
    load: ReceiverLoad
    history: History


async def enqueue(asked: ApiRequest) -> bytes:
    """Put messages into the queue."""
    kind = _type_of(asked.request, JSON, PAYLOAD)
    if kind == PAYLOAD:
        payload = await _read(asked, PAYLOAD_BYTES_MAX)
        message = bodies.message_of_payload(payload, _parameters(asked.request))
    else:
        _no_parameters(asked.request)
        body = await _read(asked, JSON_BYTES_MAX)
        if _parsed(body, bodies.Probe).messages is not UNSET:
            several = [bodies.message_of(each) for each in _parsed(body, bodies.MessagesBody).messages]
            return encoded(bodies.EnqueuedMany(await asked.receiver.client.enqueue_many(asked.queue, several)))
        message = bodies.message_of(_parsed(body, bodies.MessageBody))
    options = {name: getattr(message, name) for name in MESSAGE_OPTIONS}
    client = asked.receiver.client
    return encoded(bodies.EnqueuedOne(await client.enqueue(asked.queue, message.payload, message.headers, **options)))


async def receive(asked: ApiRequest) -> bytes:
    """Lease messages of the queue."""
    _type_of(asked.request, JSON)
    _no_parameters(asked.request)
    wanted = _parsed(await _read(asked, JSON_BYTES_MAX), bodies.ReceiveBody)
    receiver = asked.receiver
    receiver.check_room(wanted.max_messages)
    receiving = receive_frame(receiver.client, asked.queue, wanted.max_messages, wanted.wait)
    if wanted.wait:
        with receiver.wait():
            deliveries = await _while_connected(asked, receiving)
    else:
        deliveries = await receiving
    return encoded({"deliveries": [Raw(each.encoded) for each in keep(asked, deliveries)]})


class KeptDelivery(NamedTuple):
    """A delivery that its API key has, its token, and its body."""

    delivery: AsyncDelivery
    token: str | None
    encoded: bytes


def keep(asked: ApiRequest, deliveries: Sequence[AsyncDelivery], credit: StreamCredit | None = None) -> list[KeptDelivery]:
    """Keep deliveries for the API key of a request, and count the bytes of their bodies. What can't be kept goes back."""
    receiver, tokens = asked.receiver, list[str | None]()
    try:
        answers = [bodies.delivery_body(delivery) for delivery in deliveries]
        receiver.check_room(len(deliveries))  # others have received meanwhile
        tokens = receiver.keep(deliveries, credit)
        for body, token in zip(answers, tokens, strict=True):
            body.token = token
        kept = [KeptDelivery(*each) for each in zip(deliveries, tokens, map(encoded, answers), strict=True)]
        asked.load.add(sum(len(each.encoded) for each in kept))
    except FilaError:
        receiver.forget(tokens)
        give_back(receiver.client, deliveries)
        raise
    return kept


async def settle(asked: ApiRequest) -> bytes:
    """Settle deliveries by their tokens."""
    _type_of(asked.request, JSON)
    _no_parameters(asked.request)
    wanted = _parsed(await _read(asked, JSON_BYTES_MAX), bodies.SettleBody).deliveries
    # Settlements of one tick of the loop are sent together.
    results = await asyncio.gather(*(_settle_one(asked, each) for each in wanted))
    failed = [(position, error) for position, error in enumerate(results) if error is not None]
    if not failed:
        return encoded(bodies.SettledBody(len(results)))
    if len(results) == 1:
        raise failed[0][1]
    position, error = failed[0]
    raise BatchError(
        f"{len(failed)} of {len(results)} deliveries were not settled; the first is number {position}: {error}", results
    )


async def scale(asked: ApiRequest) -> bytes:
    """Return how many consumers the queue needs."""
    drain_s = _drain_s(asked.request)
    client = asked.receiver.client
    described, explained = await asyncio.gather(describe_queue(client, asked.queue), client.why(asked.queue))
    past, latest = asked.history.of_queue(asked.queue), asked.history.latest(asked.queue)
    keys = (each.known_keys for each in partitions_in(latest)) if latest else ()
    return encoded(scaling.scale(described, explained, past, drain_s, scaling.examined_part(keys)))


def _drain_s(request: Request) -> float:
    rule = f"give seconds, above 0 and at most {scaling.DRAIN_S_MAX:,.0f}"
    return number_of(request, "drain", scaling.DRAIN_S, bodies.DrainSeconds, rule)


async def list_throttles(asked: ApiRequest) -> bytes:
    """Return the throttle keys that have limits."""
    throttles = await asked.receiver.client.list_throttles(_only_parameter(asked.request, "prefix", ""))
    return encoded(
        bodies.ThrottlesBody([msgspec.convert(each, bodies.ThrottleBody, from_attributes=True) for each in throttles])
    )


async def _settle_one(asked: ApiRequest, how: bodies.AnySettlement) -> FilaError | None:
    """Settle a delivery, and return the error if it could not be."""
    receiver, token, action = asked.receiver, how.token, str(how.__struct_config__.tag)
    try:
        if (before := receiver.under_way(token, asked.queue, action)) is not None:
            return await asyncio.shield(before)
        delivery = receiver.find(token, asked.queue, action)
    except FilaError as error:
        return error
    if delivery is None:
        return None
    if isinstance(how, bodies.ExtendBody):
        failed = await _try(asked, token, partial(delivery.extend, how.seconds))
        if failed is None:
            receiver.extended(token, how.seconds)
        return failed
    with receiver.settles(token, action) as outcome:
        failed = await _try(asked, token, partial(_carry_out, delivery, how))
        if failed is None:
            receiver.ended(token, action)
        outcome.set_result(failed)
        return failed


async def _try(asked: ApiRequest, token: str, carry_out: Callable[[], Awaitable[None]]) -> FilaError | None:
    try:
        await carry_out()
    except LeaseExpiredError as error:
        asked.receiver.ended(token, None)
        return error
    except FilaError as error:
        return error
    return None


def _carry_out(delivery: AsyncDelivery, how: bodies.Ending) -> Coroutine[Any, Any, None]:
    match how:
        case bodies.AckBody():
            return delivery.ack(cost=how.cost)
        case bodies.NackBody():
            return delivery.nack(how.error, metadata=how.metadata_base64, cost=how.cost)
        case bodies.RetryBody():
            return delivery.retry(how.after, how.error, metadata=how.metadata_base64, cost=how.cost)
        case bodies.FailBody():
            return delivery.fail(how.error, cost=how.cost)
        case bodies.DeferBody():
            return delivery.defer(how.retry_after, cost=how.cost)
        case bodies.GiveBackBody():
            return given_back(delivery)


encoded = msgspec.json.Encoder().encode


# --- requests ---------------------------------------------------------------------------------------------------------


def queue_of(request: Request) -> str:
    """Return the queue that a path names; empty if it names none."""
    name = request.path_params.get("queue")
    return "" if name is None else checks.queue_name(name)


def _type_of(request: Request, *known: str) -> str:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in known:
        wanted = " or ".join(known)
        raise UnsupportedTypeError(
            f"Content-Type: {kind or 'none'}: send {wanted} (curl --json '…', or -H 'Content-Type: {known[-1]}')"
        )
    return kind


def _parameters(request: Request) -> Mapping[str, list[str]]:
    return {name: request.query_params.getlist(name) for name in request.query_params}


def _only_parameter(request: Request, name: str, default: str) -> str:
    if unknown := request.query_params.keys() - {name}:
        raise InvalidArgumentError(f"the parameter {min(unknown)!r} of the URL: the only one here is {name}")
    return request.query_params.get(name, default)


def number_of(request: Request, name: str, default: Number, kind: Any, rule: str) -> Number:
    """Return the only parameter of a URL, a number of a kind."""
    text = _only_parameter(request, name, str(default))
    try:
        number: Number = msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        raise InvalidArgumentError(f"{name}={text!r}: {rule}") from None
    return number


def _no_parameters(request: Request) -> None:
    if request.query_params:
        name = next(iter(request.query_params))
        raise InvalidArgumentError(f"the parameter {name!r} of the URL: options belong into the JSON body")


async def _read(asked: ApiRequest, bytes_max: int) -> bytes:
    """Return the body. It is refused as soon as it is too large."""
    body = bytearray()
    announced = asked.request.headers.get("content-length", "")
    try:
        async with asyncio.timeout(READ_S_MAX):
            if announced.isascii() and announced.isdigit() and int(announced[:20]) > bytes_max:
                raise _too_large(int(announced[:20]), bytes_max)
            async for piece in asked.request.stream():
                if len(body) + len(piece) > bytes_max:
                    raise _too_large(len(body) + len(piece), bytes_max)
                asked.load.add(len(piece))
                body += piece
    except TimeoutError:
        raise RequestTimeoutError(f"the body did not come within {READ_S_MAX:g} s") from None
    return bytes(body)


def _too_large(size: int, bytes_max: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"a body of {size:,} bytes: at most {bytes_max:,}; send a large payload alone, as {PAYLOAD}",
        details={"payload_bytes": size, "max_payload_bytes": bytes_max},
    )


def _parsed(body: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(f"the body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(f"the body is no JSON: {error}") from None


async def _while_connected(asked: ApiRequest, receiving: Awaitable[list[AsyncDelivery]]) -> list[AsyncDelivery]:
    """Return the deliveries, unless the client hangs up before: then they go back at once."""
    coming = asyncio.ensure_future(receiving)
    gone = asyncio.ensure_future(hang_up(asked.request))
    try:
        await asyncio.wait([coming, gone], return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            return coming.result()
    except BaseException:
        await abandon(asked.receiver.client, coming)
        raise
    finally:
        gone.cancel()
    await abandon(asked.receiver.client, coming)
    raise ClientDisconnect


async def abandon(client: AsyncClient, coming: "asyncio.Future[list[AsyncDelivery]]") -> None:
    """Receive no longer: what would come goes back, and so does what has come."""
    coming.cancel()
    with suppress(asyncio.CancelledError, FilaError):
        give_back(client, await coming)


async def hang_up(request: Request) -> None:
    """Return when the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
