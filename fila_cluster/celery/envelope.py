"""One of kombu's messages as a message of the broker, and back.

The payload is the body, unchanged. The header ``celery`` has kombu's headers and properties as JSON. ``task`` and the
producer's own text headers are headers of the message, too, for hooks. ``eta`` becomes a delay, ``expires`` a time to live.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import NoneType
from typing import Any
from uuid import uuid4

from kombu.transport import base
from kombu.utils.json import dumps, loads

from fila_cluster.client import Delivery
from fila_proto_zmq.errors import InvalidArgumentError

HEADER = "celery"
FAIRNESS_KEY, WEIGHT, THROTTLE_KEYS, COST = "fila-fairness-key", "fila-weight", "fila-throttle-keys", "fila-cost"
PRIORITY_MAX = 255
"""As in AMQP. Celery's documentation names 0 to 9."""

_OF_CELERY = frozenset({
    "argsrepr", "compression", "eta", "expires", "group", "group_index", "id", "ignore_result", "kwargsrepr", "lang", "meth",
    "origin", "parent_id", "replaced_task_nesting", "retries", "root_id", "shadow", "stamped_headers", "stamps", "task", "timelimit",
})  # fmt: skip
"""Headers that Celery sets itself. Hooks get ``task`` and ``id`` of them."""
_PROPERTIES = frozenset({
    "app_id", "cluster_id", "correlation_id", "delivery_mode", "expiration", "message_id", "reply_to", "timestamp",
    "type", "user_id",
})  # fmt: skip
"""Properties that are sent: those of AMQP. Others are for the process itself."""
_FOR_HOOKS = ("task", "id")
_TEXT_CHARACTERS_MAX = 1024
"""A longer text header is in the JSON only."""
_SAID: Mapping[str, Any] = {
    "headers": dict,
    "properties": dict,
    "content_type": (str, NoneType),
    "content_encoding": (str, NoneType),
    "priority": int,
    "exchange": str,
    "routing_key": str,
}
"""The content of the header ``celery``, with the types."""
_PUBLISHED = "fila-publish"
"""The property that all attempts of one ``publish`` share."""


@dataclass(slots=True)
class OutgoingMessage:
    """A message between kombu's ``prepare_message`` and its ``basic_publish``."""

    body: bytes
    priority: int
    content_type: str | None
    content_encoding: str | None
    headers: dict[str, Any]
    properties: dict[str, Any]

    @property
    def is_transient(self) -> bool:
        """Whether it need not be kept (delivery mode 1): without a reader now it is not sent."""
        return self.properties.get("delivery_mode") == 1

    @property
    def is_reply(self) -> bool:
        """Whether it answers a message and expects no answer itself: it has the other's id, and is not a task."""
        properties = self.properties
        return bool(properties.get("correlation_id")) and not properties.get("reply_to") and "task" not in self.headers

    def options(self, now: datetime) -> dict[str, Any]:
        """Return the options of ``enqueue``, without the queue's own. ``now``: by Celery's clock, which made the ETA."""
        options: dict[str, Any] = {"priority": -self.priority, "dedup_id": self.properties[_PUBLISHED]}
        due = _moment(self.headers.get("eta"))
        if due is not None and due > now:
            options["delay"] = (due - now).total_seconds()
        expiration = self.properties.get("expiration")
        if expiration is not None:
            options["ttl"] = max(int(expiration), 1) / 1000
        options.update(_tenancy(self.headers))
        return options

    def sealed(self, exchange: str, routing_key: str) -> dict[str, str]:
        """Return the headers of the broker's message."""
        properties = {name: value for name, value in self.properties.items() if name in _PROPERTIES}
        said = {
            "headers": self.headers,
            "properties": properties,
            "content_type": self.content_type,
            "content_encoding": self.content_encoding,
            "priority": self.priority,
            "exchange": exchange,
            "routing_key": routing_key,
        }
        texts = {name: value for name, value in self.headers.items() if _is_for_hooks(name, value)}
        return texts | {HEADER: dumps(said)}


def outgoing(
    body: bytes | str,
    priority: int | None,
    content_type: str | None,
    content_encoding: str | None,
    headers: dict[str, Any] | None,
    properties: dict[str, Any] | None,
) -> OutgoingMessage:
    """Return the message that kombu publishes. A mark in the ``properties`` identifies repeated attempts."""
    if properties is None:
        properties = {}
    properties.setdefault(_PUBLISHED, uuid4().hex)
    if isinstance(body, str):
        body = body.encode(content_encoding if content_encoding not in (None, "binary") else "utf-8")
    urgency = min(max(int(priority or 0), 0), PRIORITY_MAX)
    return OutgoingMessage(body, urgency, content_type, content_encoding, headers or {}, properties)


class Waited(dict[str, Any]):
    """Headers of a task whose ETA the broker has waited for. A worker asks for the ETA by ``get``, and would set a timer for
    it; the task's request, made of the items (or of a plain dict), still has the ETA."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return a header, but never the ETA."""
        return default if key == "eta" else super().get(key, default)

    def copy(self) -> "Waited":
        """Return a copy of the same class."""
        return Waited(self)

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


class CeleryMessage(base.Message):  # type: ignore[misc]  # kombu has no types
    """A delivery as a message of kombu."""

    def __init__(self, delivery: Delivery, channel: Any, tag: int, consumer_tag: str | None) -> None:
        said = _said(delivery)
        headers, properties = said["headers"], said["properties"]
        if headers.get("eta") is not None and _moment(headers["eta"]) is not None:
            headers = Waited(headers)
        properties["priority"] = said["priority"]
        properties["delivery_tag"] = tag
        info = {
            "exchange": said["exchange"],
            "routing_key": said["routing_key"],
            "priority": said["priority"],
            "redelivered": delivery.attempts > 0,
        }
        if consumer_tag is not None:
            info["consumer_tag"] = consumer_tag
        super().__init__(
            body=delivery.payload,
            delivery_tag=tag,
            content_type=said["content_type"],
            content_encoding=said["content_encoding"],
            delivery_info=info,
            properties=properties,
            headers=headers,
            channel=channel,
        )


def _said(delivery: Delivery) -> dict[str, Any]:
    """Return the headers and properties of a message; of one that is not kombu's, its headers."""
    text = delivery.headers.get(HEADER)
    if text is not None:
        try:
            found = loads(text) if "__type__" in text else json.loads(text)
        except Exception:  # whatever kombu's readers of types raise; a RecursionError
            found = None
        if isinstance(found, dict) and all(isinstance(found.get(name), kind) for name, kind in _SAID.items()):
            return found
    return {
        "headers": dict(delivery.headers),
        "properties": {},
        "content_type": "application/data",
        "content_encoding": "binary",
        "priority": 0,
        "exchange": "",
        "routing_key": delivery.queue,
    }


def _is_for_hooks(name: str, value: Any) -> bool:
    return (name in _FOR_HOOKS or name not in _OF_CELERY) and isinstance(value, str) and len(value) <= _TEXT_CHARACTERS_MAX


def _moment(text: Any) -> datetime | None:
    """Return an ETA as Celery writes it; one without a time zone is UTC."""
    if isinstance(text, datetime):
        moment = text
    elif isinstance(text, str):
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
    else:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _tenancy(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fairness key, weight, throttle keys and cost that headers name."""
    options: dict[str, Any] = {}
    if (key := headers.get(FAIRNESS_KEY)) is not None:
        options["fairness_key"] = str(key)
    if (weight := headers.get(WEIGHT)) is not None:
        options["weight"] = _number(WEIGHT, weight, int)
    if (keys := headers.get(THROTTLE_KEYS)) is not None:
        options["throttle_keys"] = throttle_keys(keys)
    if (cost := headers.get(COST)) is not None:
        options["cost"] = _number(COST, cost, float)
    return options


def throttle_keys(keys: str | Iterable[str]) -> list[str]:
    """Return throttle keys as a list; a text has commas between them."""
    if isinstance(keys, str):
        return [key for each in keys.split(",") if (key := each.strip())]
    return [str(each) for each in keys]


def _number(name: str, value: Any, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"the header {name} is {value!r}: it must be a number") from None
