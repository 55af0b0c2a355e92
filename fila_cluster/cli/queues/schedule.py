"""``fila-cluster schedule …``."""

from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from fila_cluster.cli.queues.messages import message_options
from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.jsonl import message_fields
from fila_cluster.cli.shared.parameters import DURATION, payload_of
from fila_cluster.cli.shared.tables import flagged, table
from fila_cluster.figures import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fila_cluster import Schedule


@click.group()
def schedule_command() -> None:
    """Keep schedules: messages that the broker itself enqueues, at the times of a cron expression or at an interval."""


@schedule_command.command("put", short_help="Make or change a schedule.")
@click.argument("name")
@click.argument("queue")
@click.argument("payload", default="")
@click.option("--cron", metavar="EXPR", help="When: minute hour day month weekday, such as '0 3 * * MON-FRI'.")
@click.option("--every", type=DURATION, metavar="D", help="How often instead, from now on: 30s, 5m, 2h.")
@click.option("--timezone", default="UTC", metavar="Z", help="Whose clock --cron follows: Europe/Lisbon. Default: UTC.")
@click.option(
    "--catch-up",
    type=click.Choice(["skip", "once", "all"]),
    default="once",
    help="Which due times of an outage are carried out: none, the last one, or each. Default: once.",
)
@click.option("--jitter", type=DURATION, default=0.0, metavar="D", help="Come up to D after each due time. Default: 0.")
@message_options
@click.pass_obj
def put(invocation: Invocation, /, name: str, queue: str, payload: str, **options: Any) -> None:
    """Enqueue a message into QUEUE at each due time: the text PAYLOAD, or standard input (-).

    A schedule NAME that exists is changed. It keeps its position if its due times stay the same, else it begins now.
    """
    if (options["cron"] is None) == (options["every"] is None):
        raise click.UsageError("give --cron EXPR, or --every D")
    body = payload_of(payload)
    with invocation.connect() as client:
        schedule = client.put_schedule(name, queue, body, **options)
    following = schedule.next_at or schedule.under_way_due_at
    invocation.show(_fields(schedule), f"{name}: the next message for {queue} is due {_moment(following)}")


@schedule_command.command("get", short_help="Show a schedule and its results.")
@click.argument("name")
@click.pass_obj
def get(invocation: Invocation, name: str) -> None:
    """Show the schedule NAME, its message, and its results. One that does not exist is a failure."""
    with invocation.connect() as client:
        schedule = client.get_schedule(name)
    if schedule is None:
        raise click.ClickException(f"there is no schedule {name}")
    rows = table(name, "")
    for label, text in _facts(schedule):
        rows.add_row(label, text)
    invocation.show(_fields(schedule), rows)


@schedule_command.command("list", short_help="List schedules.")
@click.option("--prefix", default="", metavar="P", help="Only schedules whose names start with P.")
@click.pass_obj
def list_(invocation: Invocation, prefix: str) -> None:
    """List schedules by name."""
    with invocation.connect() as client:
        schedules = client.list_schedules(prefix)
    rows = table("=name", "=queue", "=when", "=next (UTC)", "#fired")
    for each in schedules:
        rows.add_row(each.name, each.queue, each.when, _short(each.next_at), counted(each.fired))
    shown = [rows, *_notes(schedules)] if schedules else ["no schedules"]
    invocation.show([_fields(each) for each in schedules], *shown)


@schedule_command.command("delete", short_help="Delete a schedule.")
@click.argument("name")
@click.pass_obj
def delete(invocation: Invocation, name: str) -> None:
    """Delete the schedule NAME, if there is one. Messages that it has enqueued stay."""
    with invocation.connect() as client:
        deleted = client.delete_schedule(name)
    invocation.show({"name": name, "deleted": deleted}, f"deleted {name}" if deleted else f"there was no schedule {name}")


def _notes(schedules: "list[Schedule]") -> "Iterator[RenderableType]":
    """Yield a line for each schedule that has skipped due times, red if its last message was refused or waits."""
    for each in schedules:
        counts = [f"{counted(count)} {what}" for what, count in (("skipped", each.skipped), ("failed", each.failed)) if count]
        if counts or each.error:
            text = "; ".join([*counts, *([_error(each)] if each.error else [])])
            yield flagged(f"{each.name}: {text}", good=False) if each.error else f"{each.name}: {text}"


def _facts(schedule: "Schedule") -> list[tuple[str, str]]:
    message = schedule.message
    facts = [
        ("queue", schedule.queue),
        ("when", schedule.when),
        ("catch-up", schedule.catch_up),
        ("jitter", f"{schedule.jitter:g} s"),
        ("next", _moment(schedule.next_at)),
        ("under way", _moment(schedule.under_way_due_at)),
        ("last", _moment(schedule.last_at)),
        ("last message", schedule.last_message_id or "–"),
        ("fired, skipped, failed", f"{schedule.fired:,}, {schedule.skipped:,}, {schedule.failed:,}"),
        ("error", _error(schedule)),
        ("shard", str(schedule.shard)),
    ]
    if message is None:
        return facts
    options = message_fields(replace(message, payload=b""))
    del options["payload"]
    named = [(name.replace("_", " "), str(value)) for name, value in options.items()]
    return [*facts, ("payload", f"{len(bytes(message.payload)):,} bytes"), *named]


def _error(schedule: "Schedule") -> str:
    return "–" if schedule.error is None else f"{schedule.error.code}: {schedule.error.message}"


def _moment(moment: datetime | None) -> str:
    return "–" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _short(moment: datetime | None) -> str:
    return "–" if moment is None else f"{moment.astimezone(UTC):%m-%d %H:%M:%S}"


def _fields(schedule: "Schedule") -> dict[str, Any]:
    """Return a schedule with the names of the client's fields."""
    shown = {field.name: getattr(schedule, field.name) for field in fields(schedule)}
    error, message = shown.pop("error"), shown.pop("message")
    shown["error"] = None if error is None else {"code": error.code, "message": error.message}
    return shown if message is None else shown | {"message": message_fields(message)}
