"""An OpenAPI document and a page for people, made from the table of operations and the schemas of bodies."""

import html
from typing import Any, Final

import msgspec

from fila_cluster.ops.analysis.scaling import DRAIN_S, Scale
from fila_cluster.ops.observer.http_api import bodies
from fila_cluster.ops.observer.http_api.bodies import STATUSES
from fila_cluster.ops.observer.http_api.operations import JSON, PAYLOAD
from fila_proto_zmq.limits import DELIVERY_MESSAGES_MAX
from fila_proto_zmq.version import VERSION

DOCUMENT_PATH: Final = "/openapi.json"
PAGE_PATH: Final = "/api"

_COMPONENTS: Final = "#/components/schemas/{name}"


class Described(msgspec.Struct, frozen=True):
    """The description of an operation: the bodies that it takes and returns, an example with curl, and the parameter of one
    that takes no body."""

    name: str
    method: str
    path: str
    summary: str
    description: str
    takes: tuple[Any, ...]
    gives: tuple[Any, ...]
    example: str
    parameter: str = ""
    media: str = JSON
    """The type of what it gives."""


DESCRIBED: Final = (
    Described(
        "enqueue",
        "POST",
        "/queues/{queue}/messages",
        "Put messages into a queue",
        f"One message, or several in `messages`: at most {bodies.MESSAGES_MAX:,}. Each has one of `payload` (text), "
        "`payload_base64` and "
        "`payload_json`. Answered once all are durable. If some were refused, the status is that of the first one, and "
        "`results` has an id or "
        f"an error for each. With `Content-Type: {PAYLOAD}` the body is the payload of one message, and its options are "
        f"parameters of the URL, headers as `{bodies.HEADER}NAME`.",
        (bodies.MessageBody, bodies.MessagesBody),
        (bodies.EnqueuedOne, bodies.EnqueuedMany),
        """--json '{"payload": "hello", "fairness_key": "acme"}'""",
    ),
    Described(
        "receive",
        "POST",
        "/queues/{queue}/receive",
        "Lease messages of a queue",
        "Up to `max_messages` that are ready now; if none is, the next ones within `wait` seconds. An answer has at most 1 "
        "MiB of messages, or a single larger one. Each is leased to the API key of the request until the queue's visibility "
        "timeout: settle it with its token.",
        (bodies.ReceiveBody,),
        (bodies.ReceivedBody,),
        """--json '{"max_messages": 10, "wait": 20}'""",
    ),
    Described(
        "consume",
        "GET",
        "/queues/{queue}/consume",
        "Lease messages of a queue as they come",
        "A stream without an end. Each line is a delivery, as `receive` gives it, leased to the API key of the request. At most "
        "`prefetch` deliveries of the stream (1 to "
        f"{DELIVERY_MESSAGES_MAX}, by default {bodies.PREFETCH}) are unsettled at a time: settle each with its token. An "
        f"empty line comes at least every {bodies.BEAT_S:g} seconds. A line with a `code` is an error, the last line of the "
        "stream that it has ended.",
        (),
        (bodies.DeliveryBody, bodies.ErrorBody),
        "-N",
        "prefetch",
        bodies.LINES,
    ),
    Described(
        "settle",
        "POST",
        "/queues/{queue}/settle",
        "End leases: ack, nack, retry, fail, defer, give back; or extend them",
        "A settlement that is sent again with the same action succeeds again, so that it may be repeated when its answer "
        "was lost. If some fail, the status is that of the first one, and `results` has null or an error for each.",
        (bodies.SettleBody,),
        (bodies.SettledBody,),
        """--json '{"deliveries": [{"token": "TOKEN", "action": "ack"}]}'""",
    ),
    Described(
        "scale",
        "GET",
        "/queues/{queue}/scale",
        "Say how many consumers a queue needs",
        f"So many `consumers` drain the queue in `drain` seconds ({DRAIN_S:g} without it). Messages that limits hold back do "
        "not count: throttle keys, places, caps and pauses. `per_consumer` is what one consumer did in the last half hour, "
        "null if that is not known. For autoscalers.",
        (),
        (Scale,),
        "",
        "drain",
    ),
    Described(
        "list_throttles",
        "GET",
        bodies.THROTTLES_PATH,
        "List throttle keys",
        "Those that have limits and start with the parameter `prefix`, by name, with what waits for them in the cluster. It "
        "needs an API key that governs everything (`admin:*`).",
        (),
        (bodies.ThrottlesBody,),
        "",
        "prefix",
    ),
)
"""The operations, in the order of a message's life."""

_PARAMETERS: Final = {
    "drain": msgspec.json.schema(bodies.DrainSeconds),
    "prefetch": msgspec.json.schema(bodies.Prefetch),
    "prefix": msgspec.json.schema(str),
}


def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    kinds = [kind for each in DESCRIBED for kind in (*each.takes, *each.gives)]
    _, schemas = msgspec.json.schema_components([*kinds, bodies.OptionsBody, bodies.ErrorBody], ref_template=_COMPONENTS)
    options = schemas.pop("Options")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fila-cluster",
            "version": VERSION,
            "description": "Messages in and out by HTTP. Field names are those of the client library; durations are seconds.",
        },
        "paths": {each.path: {each.method.lower(): _operation(each, options)} for each in DESCRIBED},
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}, {}],
    }


def _operation(each: Described, options: dict[str, Any]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = []
    if "{queue}" in each.path:
        parameters.append({"name": "queue", "in": "path", "required": True, "schema": {"type": "string"}})
    if not each.takes:
        return _described(each, [*parameters, {"name": each.parameter, "in": "query", "schema": _PARAMETERS[each.parameter]}])
    content: dict[str, Any] = {JSON: {"schema": _one_of(each.takes)}}
    if bodies.MessageBody in each.takes:
        content[PAYLOAD] = {"schema": {"type": "string", "format": "binary"}}
        parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in options["properties"].items()]
    return {**_described(each, parameters), "requestBody": {"required": True, "content": content}}


def _described(each: Described, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "operationId": each.name,
        "summary": each.summary,
        "description": each.description,
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done.", "content": {each.media: {"schema": _one_of(each.gives)}}},
            **{str(status): _error(status) for status in sorted({*STATUSES.values(), 405, 415, 500})},
        },
    }


def _one_of(kinds: tuple[Any, ...]) -> dict[str, Any]:
    found = [{"$ref": _COMPONENTS.format(name=_name(kind))} for kind in kinds]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _name(kind: type) -> str:
    return kind.__name__


def _error(status: int) -> dict[str, Any]:
    codes = ", ".join(code for code, its in STATUSES.items() if its == status)
    return {
        "description": codes or "Another error.",
        "content": {JSON: {"schema": {"$ref": _COMPONENTS.format(name=_name(bodies.ErrorBody))}}},
    }


_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>HTTP · fila-cluster</title>
<style>:root{{color-scheme:light dark}}
body{{font-family:system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;line-height:1.5}}
pre{{overflow:auto;padding:.8rem;border:1px solid #8886;border-radius:4px}}
td,th{{text-align:left;padding-right:1.5rem}}</style>
<h1>Messages by HTTP</h1>
<p>With authentication send <code>Authorization: Bearer KEY</code>. For programs:
<a href="openapi.json">OpenAPI</a>.</p>
{operations}
<h2>Errors</h2>
<p>An error is a JSON object with <code>code</code>, <code>message</code>, <code>retryable</code>,
<code>retry_after</code> (seconds) and <code>details</code>.</p>
<table><tr><th>code</th><th>status</th></tr>{errors}</table></html>
"""


def page() -> str:
    """Return the page for people."""
    operations = "".join(
        f"<h2>{html.escape(each.summary)}</h2><p>{_prose(each.description)}</p><pre>{html.escape(_curl(each))}</pre>"
        for each in DESCRIBED
    )
    errors = "".join(f"<tr><td><code>{code}</code></td><td>{status}</td></tr>" for code, status in STATUSES.items())
    return _PAGE.format(operations=operations, errors=errors)


def _curl(each: Described) -> str:
    url = f"http://127.0.0.1:8555{each.path.replace('{queue}', 'orders')}"
    return f"curl {each.example} \\\n  {url}" if each.example else f"curl {url}"


def _prose(text: str) -> str:
    """Return a text with its code, between backticks, as HTML."""
    parts = html.escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
