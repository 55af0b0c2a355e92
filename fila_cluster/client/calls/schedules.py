"""Calls about schedules."""

from operator import attrgetter
from typing import Any

from fila_cluster.client import checks
from fila_cluster.client.calls.request import Listing, Request
from fila_cluster.client.message import Message
from fila_cluster.client.protocol.encoding import seal_message, seal_rows
from fila_proto_zmq import commands
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import SCHEDULE_INTERVAL_MS_MAX, SCHEDULE_JITTER_MS_MAX
from fila_proto_zmq.names import check_new_queue_name, check_schedule_name


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
