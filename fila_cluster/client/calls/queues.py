"""Calls about queues: create, change, delete, list, count, pause, describe."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, cast

from fila_cluster.client import checks
from fila_cluster.client.calls.request import COUNT_MAX, AsksLater, Paging, Request
from fila_proto_zmq import commands
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import (
    DELAY_MS_MAX,
    LEASE_MS_MAX,
    LUA_MEMORY_LIMIT_BYTES_MAX,
    LUA_MEMORY_LIMIT_BYTES_MIN,
    LUA_TIMEOUT_MS_MAX,
    MAX_ATTEMPTS_MAX,
    SCRIPT_BYTES_MAX,
    TTL_MS_MAX,
)
from fila_proto_zmq.names import check_new_queue_name, check_pattern

_KINDS = ("at_least_once", "at_most_once")
_POLICIES = ("dlq", "discard")


class QueueOptions(TypedDict, total=False):
    """Options of a queue. None: the broker's default. Durations are seconds."""

    on_enqueue: str | None
    """A Lua script that defines ``on_enqueue(msg)``: how each message is scheduled."""
    on_failure: str | None
    """A Lua script that defines ``on_failure(msg)``: what follows a nack."""
    visibility_timeout: float | None
    """How long a delivery is leased."""
    max_attempts: int | None
    """Deliveries before a message is dead-lettered; by default there is no limit."""
    dead_letter: str | None
    """``"dlq"`` (the default), ``"discard"``, or the name of a queue that takes the dead letters."""
    delivery: Literal["at_least_once", "at_most_once"] | None
    """``"at_most_once"``: messages are removed when they are delivered."""
    max_in_flight_per_key: int | None
    """A fairness key's messages that may be leased, or waiting for a retry, at a time; 1 keeps each key in strict order."""
    default_ttl: float | None
    """How long a message may wait for its delivery, unless it has a time to live of its own."""
    idle_expiry: float | None
    """The queue is deleted after this long without messages, consumers and calls; by default never."""
    lua_timeout: float | None
    """How long one run of a hook may take."""
    lua_memory_limit: int | None
    """The memory of one run of a hook, in bytes."""


def _duration(maximum_ms: int) -> Callable[[str, Any], int]:
    return lambda name, value: checks.positive_milliseconds(name, value, maximum_ms)


def _number(minimum: int, maximum: int) -> Callable[[str, Any], int]:
    return lambda name, value: checks.whole_number(name, value, minimum, maximum)


def _script(name: str, value: Any) -> str:
    text = checks.plain_text(name, value, f"a Lua script that defines {name}(msg)")
    length = len(text.encode())
    if length > SCRIPT_BYTES_MAX:
        raise InvalidArgumentError(f"{name}: a script of {length} bytes, at most {SCRIPT_BYTES_MAX} are accepted")
    return text


def _dead_letter(name: str, value: Any) -> str:
    policy = checks.plain_text(name, value, "'dlq', 'discard' or the name of a queue")
    return policy if policy in _POLICIES else checks.queue_name(policy)


def _delivery(name: str, value: Any) -> str:
    if value not in _KINDS:
        raise InvalidArgumentError(f"{name}={checks.shown(value)}: pass 'at_least_once' or 'at_most_once'")
    return str(value)


_ENCODINGS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "on_enqueue": ("on_enqueue", _script),
    "on_failure": ("on_failure", _script),
    "visibility_timeout": ("visibility_timeout_ms", _duration(LEASE_MS_MAX)),
    "max_attempts": ("max_attempts", _number(1, MAX_ATTEMPTS_MAX)),
    "dead_letter": ("dead_letter", _dead_letter),
    "delivery": ("delivery", _delivery),
    "max_in_flight_per_key": ("max_in_flight_per_key", _number(1, COUNT_MAX)),
    "default_ttl": ("default_ttl_ms", _duration(TTL_MS_MAX)),
    "idle_expiry": ("idle_expiry_ms", _duration(DELAY_MS_MAX)),
    "lua_timeout": ("lua_timeout_ms", _duration(LUA_TIMEOUT_MS_MAX)),
    "lua_memory_limit": ("lua_memory_limit_bytes", _number(LUA_MEMORY_LIMIT_BYTES_MIN, LUA_MEMORY_LIMIT_BYTES_MAX)),
}
"""Each option's field on the wire, and the function that makes its value."""


def encode(given: Mapping[str, Any]) -> tuple[commands.QueueOptions, list[str]]:
    """Return the options as they travel, and the given fields. :class:`TypeError` for an option that does not exist."""
    options = commands.QueueOptions()
    fields = []
    for name, value in given.items():
        if name not in _ENCODINGS:
            raise TypeError(f"a queue has no option {name!r}; there are {', '.join(_ENCODINGS)}")
        field, convert = _ENCODINGS[name]
        fields.append(field)
        if value is not None:
            setattr(options, field, convert(name, value))
    return options, fields


def create_queue(name: Any, options: Mapping[str, Any]) -> Request:
    """Create a queue."""
    return Request(check_new_queue_name(name), commands.CreateQueue(encode(options)[0]))


def update_queue(name: Any, options: Mapping[str, Any]) -> Request:
    """Change some of a queue's options."""
    return Request(checks.queue_name(name), commands.UpdateQueue(*encode(options)))


def decode(options: commands.QueueOptions) -> QueueOptions:
    """Return the options that are not the defaults, as :func:`encode` takes them."""
    shown: dict[str, Any] = {}
    for name, (field, _) in _ENCODINGS.items():
        value = getattr(options, field)
        if value is not None:
            shown[name] = value / 1000 if field.endswith("_ms") else value
    return cast(QueueOptions, shown)


def put_template(pattern: Any, options: Mapping[str, Any]) -> Request:
    """Set the template of a pattern."""
    return Request("", commands.PutTemplate(check_pattern(pattern), encode(options)[0]))


def get_template(pattern: Any) -> Request:
    """Ask for the template of a pattern."""
    return Request("", commands.GetTemplate(check_pattern(pattern)))


def delete_template(pattern: Any) -> Request:
    """Delete the template of a pattern."""
    return Request("", commands.DeleteTemplate(check_pattern(pattern)))


class ListingTemplates(Paging[commands.Template]):
    """One ``list_templates``; its result is the list of templates."""

    def __init__(self, prefix: Any) -> None:
        super().__init__()
        self._prefix = checks.plain_text("prefix", prefix, "the first characters of the patterns to list")

    def _ask(self) -> Request:
        after = self.result[-1].pattern if self.result else ""
        return Request("", commands.ListTemplates(self._prefix, after))

    def answered(self, page: commands.TemplateList) -> None:
        """Take in a page."""
        self._add(page.templates, more=page.more)


def delete_queue(name: Any, force: Any) -> Request:
    """Delete a queue."""
    return Request(checks.queue_name(name), commands.DeleteQueue(bool(force)))


def pause(name: Any, fairness_key: Any, *, paused: bool) -> Request:
    """Pause or resume a queue, or one of its fairness keys."""
    return Request(checks.queue_name(name), commands.Pause(paused, checks.only_fairness_key(fairness_key)))


class ListingQueues(Paging[commands.QueueInfo]):
    """One ``list_queues``; its result is the list of queues.

    ``partial``: of the shards that answer. ``shards`` are then those that did for every page.
    """

    def __init__(self, prefix: Any, *, active: bool = False, partial: bool = False) -> None:
        super().__init__()
        self._prefix = checks.plain_text("prefix", prefix, "the first characters of the names to list")
        self._active = active
        self._partial = partial
        self.shards: set[int] | None = None

    def _ask(self) -> Request:
        after = self.result[-1].name if self.result else ""
        return Request("", commands.ListQueues(self._prefix, self._active, after, partial=self._partial))

    def answered(self, page: commands.QueueList) -> None:
        """Take in a page."""
        self.shards = set(page.shards) if self.shards is None else self.shards & set(page.shards)
        self._add(page.queues, more=page.more)


class Counting:
    """One ``queue_stats``; its result is the first page with the keys of all pages.

    Of a key that comes twice the second one counts.
    """

    result: commands.QueueStats

    def __init__(self, name: Any) -> None:
        self._queue = checks.queue_name(name)
        self._start: int | None = 0
        self._keys: dict[str, commands.KeyStats] = {}
        self._throttles: dict[str, commands.ThrottleStats] = {}

    def next_request(self) -> Request | None:
        """Return the next request; None when it is done."""
        return None if self._start is None else Request(self._queue, commands.GetQueueStats(self._start))

    def answered(self, page: commands.QueueStats) -> None:
        """Take in a page."""
        if self._start == 0:
            self.result = page
        self.result.oldest_pending_ms = max(self.result.oldest_pending_ms, page.oldest_pending_ms)
        self._keys.update((key.fairness_key, key) for key in page.keys)
        self._throttles.update((throttle.key, throttle) for throttle in page.throttles)
        self._start = page.next or None
        if self._start is None:
            self.result.keys = list(self._keys.values())
            self.result.throttles = [self._throttles[key] for key in sorted(self._throttles)]


async def describe_queue(client: AsksLater, name: str) -> commands.QueueDescription:
    """Return a queue as its shard sees it now, times in Unix ms. Raises :class:`QueueNotFoundError`.

    Not part of the client's everyday surface: it serves dashboards.
    """
    return cast(commands.QueueDescription, await client.request(Request(checks.queue_name(name), commands.DescribeQueue())))
