"""Schedules: messages that the broker enqueues itself, at the times of a cron expression or at an interval."""

from collections.abc import Iterable
from typing import Annotated

from fila_proto_zmq.commands.messages import Enqueue, Fault
from fila_proto_zmq.commands.structs import Command, Reply, Struct, join_pages, names_queue
from fila_proto_zmq.limits import LIST_SCHEDULES_MAX


class ScheduleView(Struct):
    """A schedule, and what it has done. Times are Unix ms; 0: no time."""

    name: str
    queue: str
    cron: str
    every_ms: int
    """0: it has a cron expression."""
    timezone: str
    catch_up: str
    jitter_ms: int
    created_ms: int
    """When it was first put."""
    shard: int
    next_due_ms: int = 0
    """The next due time; 0: there is no further one."""
    next_at_ms: int = 0
    """When its message is enqueued: the next due time and its jitter."""
    under_way_ms: int = 0
    """The due time whose message is on its way to its queue, or waits because the queue is full."""
    last_due_ms: int = 0
    """The last due time with a message."""
    last_at_ms: int = 0
    """When that message was enqueued."""
    id_high: int = 0
    id_low: int = 0
    """The id of that message."""
    fired: int = 0
    """Messages enqueued so far."""
    skipped: int = 0
    """Due times without a message, because of an outage and of ``catch_up``. At least so many."""
    failed: int = 0
    """Due times without a message because the enqueue was refused."""
    fault: Fault | None = None
    """Why the last enqueue was refused, or has to wait; None: it was carried out."""
    enqueue: Enqueue | None = None
    """Its message with its options; None in lists."""


class ScheduleFound(Reply):
    """A schedule; None: there is none of that name."""

    schedule: ScheduleView | None = None


class PutSchedule(Command):
    """Put the schedule of the routing key: a new one, or instead of the one that has this name.

    Due times begin now if it is new, or if its cron expression, interval, time zone or jitter differs.
    """

    opcode, reply = 22, ScheduleFound
    queue: Annotated[str, names_queue("produce", "the messages of schedule {}")]
    enqueue: Enqueue
    """One message, without ``due_ms`` and ``after``."""
    cron: str = ""
    """Five fields, or six with seconds first; empty: it has an interval."""
    every_ms: int = 0
    """At least a second."""
    timezone: str = "UTC"
    """A name of the time zone database, for the cron expression."""
    catch_up: str = "once"
    """The treatment of due times in an outage: ``skip``, ``once`` or ``all``."""
    jitter_ms: int = 0
    """Each message comes up to so much after its due time."""


class GetSchedule(Command):
    """Ask for the schedule of the routing key, with its message."""

    opcode, reply = 23, ScheduleFound


class ScheduleList(Reply):
    """Schedules of one worker, or of the whole cluster once the router has joined them, by name."""

    schedules: list[ScheduleView]
    more: bool = False
    """Whether more follow the last one."""


class ListSchedules(Command):
    """Ask for all schedules whose names start with ``prefix``. Routing key empty: the router asks every worker."""

    opcode, reply = 24, ScheduleList
    prefix: str = ""
    after: str = ""
    """Only those after this name, the last one of the page before."""
    within: list[str] | None = None
    """Only those that match one of these patterns; None: all. The router sets it to the queues that the API key may see."""


class ScheduleDeleted(Reply):
    """Whether there was one."""

    existed: bool = True


class DeleteSchedule(Command):
    """Delete the schedule of the routing key. Enqueued messages stay, one on its way arrives, one that waits is given up."""

    opcode, reply = 25, ScheduleDeleted


class ScheduleMetrics(Struct):
    """The schedules of a shard; counters since it started."""

    schedules: int
    fired: int
    late: int
    """Messages that were enqueued more than a second after their time."""
    skipped: int
    failed: int
    under_way: int
    """Schedules whose last message is on its way, or waits because its queue is full."""


def joined_schedules(lists: Iterable[ScheduleList]) -> ScheduleList:
    """Join several pages into one."""
    return ScheduleList(*join_pages(((each.schedules, each.more) for each in lists), LIST_SCHEDULES_MAX))
