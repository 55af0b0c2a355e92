"""A schedule as the client shows it, and the calls that put and list schedules."""

from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeVar

from fila_cluster.client import checks
from fila_cluster.client.calls.request import Listing, Request
from fila_cluster.client.message import Message, moment_or_none, utc
from fila_cluster.client.protocol.encoding import seal_message, seal_rows
from fila_cluster.figures import written_ms
from fila_proto_zmq import commands
from fila_proto_zmq.codec import from_fault
from fila_proto_zmq.errors import FilaError, InvalidArgumentError
from fila_proto_zmq.ids import format_id
from fila_proto_zmq.limits import SCHEDULE_INTERVAL_MS_MAX, SCHEDULE_JITTER_MS_MAX
from fila_proto_zmq.names import check_new_queue_name, check_schedule_name
from fila_proto_zmq.record import open_envelope

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule, and its past messages. Durations are seconds, times UTC.

    It has either ``cron`` or ``every``. The message of a *due time* is enqueued at that time and its jitter.
    """

    name: str
    queue: str
    cron: str | None
    every: float | None
    timezone: str
    catch_up: str
    jitter: float
    shard: int
    created_at: datetime
    next_due_at: datetime | None
    """The next due time; None: it has none, or a message is under way."""
    next_at: datetime | None
    """When the message of that due time is enqueued."""
    under_way_due_at: datetime | None
    """The due time whose message is on its way to the queue, or waits because that is full."""
    last_due_at: datetime | None
    """The last due time with a message."""
    last_at: datetime | None
    """When that message was enqueued."""
    last_message_id: str | None
    fired: int
    """Messages enqueued so far."""
    skipped: int
    """Due times of outages without a message, as ``catch_up`` says. At least so many."""
    failed: int
    """Due times without a message because the enqueue was refused."""
    error: FilaError | None
    """Why the last enqueue was refused, or has to wait; None: it was carried out."""
    message: Message | None = None
    """The message that it enqueues; None in lists."""

    @property
    def when(self) -> str:
        """Its due times for people: ``every 30s``, or the cron expression and its time zone."""
        return f"{self.cron} {self.timezone}" if self.every is None else f"every {written_ms(round(self.every * 1000))}"


def schedule(view: commands.ScheduleView) -> Schedule:
    """Return a schedule of the wire."""
    return Schedule(
        view.name,
        view.queue,
        view.cron or None,
        view.every_ms / 1000 or None,
        view.timezone,
        view.catch_up,
        view.jitter_ms / 1000,
        view.shard,
        utc(view.created_ms),
        moment_or_none(view.next_due_ms),
        moment_or_none(view.next_at_ms),
        moment_or_none(view.under_way_ms),
        moment_or_none(view.last_due_ms),
        moment_or_none(view.last_at_ms),
        format_id(view.id_high, view.id_low) if view.id_high else None,
        view.fired,
        view.skipped,
        view.failed,
        None if view.fault is None else from_fault(view.fault),
        None if view.enqueue is None else _message(view.enqueue),
    )


def _message(enqueue: commands.Enqueue) -> Message:
    headers, payload = open_envelope(enqueue.envelopes[0])
    weight, priority, delay_ms, lease_ms, cost_milli, ttl_ms, max_attempts = (
        _only(column)
        for column in (
            enqueue.weight,
            enqueue.priority,
            enqueue.delay_ms,
            enqueue.lease_ms,
            enqueue.cost_milli,
            enqueue.ttl_ms,
            enqueue.max_attempts,
        )
    )
    return Message(
        payload,
        headers or None,
        fairness_key=_only(enqueue.fairness_key),
        weight=weight or None,
        throttle_keys=enqueue.throttle_keys[0] if enqueue.throttle_keys else None,
        priority=priority,
        cost=cost_milli / 1000,
        delay=delay_ms / 1000,
        ttl=ttl_ms / 1000 or None,
        lease=lease_ms / 1000 or None,
        dedup_id=_only(enqueue.dedup_id) or None,
        dedup_mode="last" if _only(enqueue.dedup_last) else "first",
        max_attempts=max_attempts or None,
    )


def _only(column: list[T] | T) -> T:
    return column[0] if isinstance(column, list) else column


def put_schedule(
    name: Any, queue: Any, message: Message, *, cron: Any, every: Any, timezone: Any, catch_up: Any, jitter: Any
) -> Request:
    """Put a schedule. The broker checks its due times."""
    if (cron is None) == (every is None):
        raise InvalidArgumentError(f"cron={checks.shown(cron)} and every={checks.shown(every)}: a schedule has one of them")
    command = commands.PutSchedule(
        check_new_queue_name(queue),
        seal_rows([seal_message(message)]),
        "" if cron is None else _expression(cron),
        0 if every is None else checks.positive_milliseconds("every", every, SCHEDULE_INTERVAL_MS_MAX),
        checks.plain_text("timezone", timezone, "a name of the time zone database, such as 'Europe/Lisbon'"),
        checks.plain_text("catch_up", catch_up, "'skip', 'once' or 'all'"),
        checks.milliseconds("jitter", jitter, SCHEDULE_JITTER_MS_MAX),
    )
    return Request(check_schedule_name(name), command)


def _expression(cron: Any) -> str:
    text = " ".join(checks.plain_text("cron", cron, "a cron expression, such as '0 3 * * *'").split())
    if not text:
        raise InvalidArgumentError("cron='': pass a cron expression, such as '0 3 * * *'")
    return text


def listed_schedules(prefix: Any) -> Listing[commands.ScheduleView]:
    """Return the steps of ``list_schedules``."""
    text = checks.plain_text("prefix", prefix, "the first characters of the names to list")
    return Listing(lambda last, _: commands.ListSchedules(text, last.name if last else ""), attrgetter("schedules"))
