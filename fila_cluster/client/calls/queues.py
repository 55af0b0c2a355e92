"""Calls about queues: create, change, delete, list, count, pause, describe."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Literal, TypedDict, cast

from fila_cluster.client import checks
from fila_cluster.client.calls.partitioned import joined_infos
from fila_cluster.client.calls.request import AsksLater, Listing, Paging, Request
from fila_proto_zmq import commands
from fila_proto_zmq.errors import InvalidArgumentError, PartitionedError
from fila_proto_zmq.limits import SCRIPT_BYTES_MAX
from fila_proto_zmq.names import check_new_queue_name
from fila_proto_zmq.templates import decode_options


class QueueOptions(TypedDict, total=False):
    """Options of a queue. None: the broker's default. Durations are seconds."""

    visibility_timeout: float | None
    """How long a delivery is leased. Default: the broker's."""
    max_attempts: int | None
    """Deliveries before a message is dead-lettered. Default: no limit."""
    on_enqueue: str | None
    """Lua that defines on_enqueue(msg), which schedules each message. Default: none."""
    on_failure: str | None
    """Lua that defines on_failure(msg), which decides what follows a nack. Default: none."""
    dead_letter: str | None
    """Where dead letters go: dlq (NAME.dlq), discard, or the name of another queue. Default: dlq."""
    delivery: Literal["at_least_once", "at_most_once"] | None
    """at_most_once removes a message when it is delivered, and never retries it. Default: at_least_once."""
    max_in_flight_per_key: int | None
    """Messages of a fairness key that may be leased or wait for a retry at a time; 1: strict order. Default: no limit."""
    default_ttl: float | None
    """How long a message may wait for its delivery, unless it has a time to live of its own. Default: for ever."""
    idle_expiry: float | None
    """How long the queue may be without messages, consumers and calls before it is deleted. Default: never."""
    lua_timeout: float | None
    """How long one run of a script may take. Default: the broker's."""
    lua_memory_limit: int | None
    """Bytes that one run of a script may use. Default: the broker's."""
    max_in_flight: int | None
    """Messages of the queue that may be leased at a time. Default: no limit."""
    partitions: int | Literal["auto"] | None
    """Shards that the queue is spread over, as one queue; auto: all shards. Default: 1."""
    spread: Literal["key", "message"] | None
    """key keeps each fairness key's messages in one partition; message spreads them over all. Default: key."""


def _script(option: commands.Option, value: Any) -> str:
    text = checks.plain_text(option.name, value, f"a Lua script that defines {option.name}(msg)")
    length = len(text.encode())
    if length > SCRIPT_BYTES_MAX:
        raise InvalidArgumentError(f"{option.name}: a script of {length} bytes, at most {SCRIPT_BYTES_MAX} are accepted")
    return text


def _queue(option: commands.Option, value: Any) -> str:
    policy = checks.plain_text(option.name, value, f"{', '.join(map(repr, option.choices))} or the name of a queue")
    return policy if policy in option.choices else checks.queue_name(policy)


def _choice(option: commands.Option, value: Any) -> str:
    if value not in option.choices:
        raise InvalidArgumentError(f"{option.name}={checks.shown(value)}: pass {' or '.join(map(repr, option.choices))}")
    return str(value)


def _wire_value(option: commands.Option, value: Any) -> Any:
    """Return a value as it travels. :class:`InvalidArgumentError` if it is not valid."""
    if option.bounds is None:
        return {"script": _script, "queue": _queue, "choice": _choice}[option.kind](option, value)
    least, most = option.bounds
    if option.kind == "count" and value in option.choices:
        return 0
    if option.kind == "duration":
        return checks.positive_milliseconds(option.name, value, most)
    return checks.whole_number(option.name, value, least, most)


def encode(given: Mapping[str, Any]) -> tuple[commands.QueueOptions, list[str]]:
    """Return the options as they travel, and the given fields. :class:`TypeError` for an option that does not exist."""
    options = commands.QueueOptions()
    fields = []
    for name, value in given.items():
        if (option := commands.QUEUE_OPTIONS.get(name)) is None:
            raise TypeError(f"a queue has no option {name!r}; there are {', '.join(commands.QUEUE_OPTIONS)}")
        fields.append(option.field)
        if value is not None:
            setattr(options, option.field, _wire_value(option, value))
    return options, fields


def decode(options: commands.QueueOptions) -> QueueOptions:
    """Return the options that are not the defaults, as :func:`encode` takes them."""
    values = ((option, getattr(options, option.field)) for option in commands.QUEUE_OPTIONS.values())
    return cast(QueueOptions, {each.name: _given(each, value) for each, value in values if value is not None})


def _given(option: commands.Option, value: Any) -> Any:
    if option.kind == "duration":
        return value / 1000
    return option.choices[0] if option.kind == "count" and value == 0 and option.choices else value


def creation(name: Any, options: Mapping[str, Any]) -> list[Request]:
    """Return the requests that create a queue. The first one of several only asks whether there is a queue of this name."""
    queue, given = check_new_queue_name(name), encode(options)[0]
    if given.partitions in {None, 1}:
        return [Request(queue, commands.CreateQueue(given))]
    return [Request(queue, commands.DescribeQueue()), Request("", commands.CreatePartitioned(queue, given))]


def first_partitions(queue: str, refusal: PartitionedError) -> Request:
    """Return the request that gives partitions to a queue without any, as the refusal of an update says; else raise that."""
    options = refusal.details.get("ordinary")
    decoded = decode_options(options) if isinstance(options, str) else None
    if decoded is None:
        raise refusal
    return Request("", commands.CreatePartitioned(queue, decoded, ordinary=True))


def dead_letters_of(options: Mapping[str, Any]) -> Request | None:
    """Return the question whether the queue exists that is to take dead letters; None: it is the queue's own."""
    target = options.get("dead_letter")
    if target is None or target in commands.QUEUE_OPTIONS["dead_letter"].choices:
        return None
    return Request(target, commands.DescribeQueue())


def no_dead_letters(options: Mapping[str, Any]) -> InvalidArgumentError:
    """Return the error for a queue that is not there to take dead letters."""
    return InvalidArgumentError(
        f"dead_letter={options.get('dead_letter')!r}: no such queue; create it first, or use 'dlq' or 'discard'"
    )


def listed_templates(prefix: Any) -> Listing[commands.Template]:
    """Return the steps of ``list_templates``."""
    text = checks.plain_text("prefix", prefix, "the first characters of the patterns to list")
    return Listing(lambda last, _: commands.ListTemplates(text, last.pattern if last else ""), attrgetter("templates"))


class ListingQueues(Paging[commands.QueueInfo]):
    """One ``list_queues``; its result is the list. ``partial``: of the shards that answer; ``shards``: those of all pages."""

    def __init__(self, prefix: Any, *, active: bool = False, partial: bool = False) -> None:
        super().__init__()
        self._prefix = checks.plain_text("prefix", prefix, "the first characters of the names to list")
        self._active = active
        self._partial = partial
        self._after = ""
        self.shards: set[int] | None = None

    def _ask(self) -> Request:
        return Request("", commands.ListQueues(self._prefix, self._active, self._after, partial=self._partial))

    def answered(self, page: commands.QueueList) -> None:
        """Take in a page."""
        self.shards = set(page.shards) if self.shards is None else self.shards & set(page.shards)
        self._after = page.queues[-1].name if page.queues else ""
        self._add(page.queues, more=page.more)
        if self._over:
            self.result = joined_infos(self.result)


class Counting:
    """One ``queue_stats``; its result is the first page with the keys of all. Of a key that comes twice the second counts."""

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
    """Return a queue as its shard sees it now, for dashboards; times in Unix ms. Raises :class:`QueueNotFoundError`."""
    return cast(commands.QueueDescription, await client.request(Request(checks.queue_name(name), commands.DescribeQueue())))
