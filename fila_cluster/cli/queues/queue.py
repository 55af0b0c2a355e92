"""``fila-cluster queue …`` and ``template …``."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from fila_cluster.cli.shared.invocation import Invocation, print_json
from fila_cluster.cli.shared.jsonl import view_fields
from fila_cluster.cli.shared.parameters import given, queue_options
from fila_cluster.cli.shared.tables import cut, flagged, table, throttle_table
from fila_cluster.client.calls.queues import ListingQueues
from fila_cluster.client.forwarding import held_queues, partitions_of
from fila_cluster.client.views import how_far, queue_infos
from fila_cluster.errors import FilaError, RequestTimeoutError, ShardUnavailableError
from fila_cluster.figures import aged, counted, ranged
from fila_proto_zmq.commands import QUEUE_OPTIONS
from fila_proto_zmq.names import PARTITION_MARK, partition_name

if TYPE_CHECKING:
    from rich.table import Table

    from fila_cluster import Client, MessageView
    from fila_cluster.client.views import QueueInfo, QueueMove, QueueStats


@click.group()
def queue_command() -> None:
    """Create, change, delete, list and inspect queues."""


@queue_command.command("create", short_help="Create a queue and its dead letter queue.")
@click.argument("name")
@queue_options
@click.pass_obj
def create(invocation: Invocation, /, name: str, **options: Any) -> None:
    """Create the queue NAME and its dead letter queue, NAME.dlq."""
    with invocation.connect() as client:
        client.create_queue(name, **given(options))
    invocation.show({"name": name}, f"created {name}")


@queue_command.command("update", short_help="Change a queue's options.")
@click.argument("name")
@queue_options
@click.option(
    "--reset",
    multiple=True,
    type=click.Choice([option.flag for option in QUEUE_OPTIONS.values()]),
    metavar="OPTION",
    help="Set an option back to its default: --reset max-attempts. May be repeated.",
)
@click.pass_obj
def update(invocation: Invocation, /, name: str, reset: tuple[str, ...], **options: Any) -> None:
    """Change options of the queue NAME from now on; those left out stay as they are."""
    changes = given(options)
    defaults = [option.replace("-", "_") for option in reset]
    if both := [option for option in defaults if option in changes]:
        flag = both[0].replace("_", "-")
        raise click.UsageError(f"either --{flag} or --reset {flag}")
    if not changes and not defaults:
        raise click.UsageError("nothing to change: give at least one option")
    with invocation.connect() as client:
        client.update_queue(name, **changes, **dict.fromkeys(defaults))
    invocation.show({"name": name}, f"updated {name}")


@queue_command.command("delete", short_help="Delete a queue with all its messages.")
@click.argument("name")
@click.option("--force", is_flag=True, help="Even if its dead letter queue holds messages.")
@click.pass_obj
def delete(invocation: Invocation, name: str, force: bool) -> None:
    """Delete the queue NAME, its dead letter queue and all their messages."""
    with invocation.connect() as client:
        client.delete_queue(name, force=force)
    invocation.show({"name": name}, f"deleted {name}")


@queue_command.command("list", short_help="List queues.")
@click.option("--prefix", default="", metavar="P", help="Only queues whose names start with P.")
@click.option("--active", is_flag=True, help="Only queues with messages.")
@click.pass_obj
def list_(invocation: Invocation, prefix: str, active: bool) -> None:
    """List queues, dead letter queues included.

    If shards do not answer, list the queues of the others, say so, and exit with 1.
    """
    unknown = ""
    with invocation.connect() as client:
        try:
            queues = client.active_queues(prefix) if active else client.list_queues(prefix)
        except (ShardUnavailableError, RequestTimeoutError) as error:
            queues, unknown = _of_live_shards(client, prefix, error, active=active)
    rows = table("queue", "#pending", "#in flight", "#delayed", "#consumers", "#shard", "")
    for queue in queues:
        counts = (queue.pending, queue.in_flight, queue.delayed, queue.consumers)
        paused = flagged("paused", good=False) if queue.paused else ""
        rows.add_row(queue.name, *map(counted, counts), str(queue.shard), paused)
    invocation.show(queues, rows if queues else "no queues on the shards that answer" if unknown else "no queues")
    if unknown:
        click.echo(unknown, err=True)
        raise click.exceptions.Exit(1)


def _of_live_shards(client: "Client", prefix: str, error: FilaError, *, active: bool) -> "tuple[list[QueueInfo], str]":
    """Return the queues of the shards that answer, and a warning that names the others."""
    listing = ListingQueues(prefix, active=active, partial=True)
    while (request := listing.next_request()) is not None:
        listing.answered(client.request(request))
    total, shards = client.cluster_status().shards, listing.shards or set()
    missing = sorted(set(range(total)) - shards)
    if not shards:
        raise error
    if not missing:  # it is back
        return queue_infos(listing.result), ""
    warning = f"warning: {total - len(missing)} of {total} shards: the queues of shard {ranged(missing)} are unknown: {error}"
    return queue_infos(listing.result), warning


KEYS_SHOWN = 30


@queue_command.command("inspect", short_help="Show one queue and its fairness keys.")
@click.argument("name")
@click.pass_obj
def inspect(invocation: Invocation, name: str) -> None:
    """Show the queue NAME, its partitions, its fairness keys and the token buckets that its messages draw on."""
    with invocation.connect() as client:
        stats = client.queue_stats(name)
        partitions = partitions_of(client, name)
        held = held_queues(client, partition_name(name, 0)[:-1]) if partitions else []
    title = flagged(f"{stats.name} is paused", good=False) if stats.paused else stats.name
    if partitions:
        title = f"{title}, {counted(len(partitions), 'partition')}" if stats.move is None else f"{title} {stats.move.text}"
    throttles = ("", throttle_table(stats.throttles)) if stats.throttles else ()
    keys = ("", _keys(stats)) if stats.keys else ()
    hidden = len(stats.keys) - KEYS_SHOWN
    more = [f"… and {hidden:,} more keys; --json shows all"] if hidden > 0 else []
    parts = ("", _partitions(held)) if held else ()
    moving = ("", _moving(stats.move)) if stats.move else ()
    told = asdict(stats) | {"partitions": [asdict(each) for each in held]} if partitions else stats
    invocation.show(told, title, _summary(stats), *parts, *moving, *throttles, *keys, *more)


def _summary(stats: "QueueStats") -> "Table":
    rows = table("", "#now", "", "#since its shard started")
    of = f" of {counted(stats.max_in_flight)}" if stats.max_in_flight else ""
    now = {
        "pending": counted(stats.pending),
        "in flight": counted(stats.in_flight) + of,
        "delayed": counted(stats.delayed),
        "consumers": counted(stats.consumers),
        "oldest pending": aged(stats.oldest_pending_age) if stats.pending else "–",
        "shard": str(stats.shard),
    }
    since = {
        "enqueued": stats.enqueued,
        "delivered": stats.delivered,
        "acked": stats.acked,
        "nacked": stats.nacked,
        "leases expired": stats.expired,
        "dead-lettered": stats.dead_lettered,
    }
    for (name, text), (counter, number) in zip(now.items(), since.items(), strict=True):
        rows.add_row(name, text, counter, counted(number))
    return rows


def _partitions(held: "list[QueueInfo]") -> "Table":
    rows = table("partition", "#shard", "#pending", "#in flight", "#delayed", "#consumers")
    for each in sorted(held, key=lambda each: int(each.name.rpartition(PARTITION_MARK)[2])):
        counts = (each.pending, each.in_flight, each.delayed, each.consumers)
        rows.add_row(each.name.rpartition(PARTITION_MARK)[2], str(each.shard), *map(counted, counts))
    return rows


def _moving(move: "QueueMove") -> "Table":
    """Return how far each partition has come that messages move from."""
    rows = table("partition", "still has")
    for number in sorted({*move.drained, *move.waits_for}):
        rows.add_row(str(number), how_far(move, number))
    return rows


def _keys(stats: "QueueStats") -> "Table":
    rows = table("fairness key", "#weight", "#pending", "#in flight", "#delayed", "#delivered", "#deficit", "")
    longest_first = sorted(stats.keys, key=lambda key: (-key.pending - key.in_flight - key.delayed, key.fairness_key))
    for key in longest_first[:KEYS_SHOWN]:
        counts = (key.weight, key.pending, key.in_flight, key.delayed, key.delivered)
        paused = flagged("paused", good=False) if key.paused else ""
        rows.add_row(key.fairness_key, *map(counted, counts), f"{key.deficit:g}", paused)
    return rows


@queue_command.command("browse", short_help="Look at a queue's messages without taking them.")
@click.argument("name")
@click.option("--limit", type=click.IntRange(min=1), default=100, metavar="N", help="At most N messages. Default: 100.")
@click.option("--after", metavar="ID", help="Only messages behind this one.")
@click.option("--key", metavar="K", help="Only messages of this fairness key.")
@click.option("--state", type=click.Choice(["pending", "delayed", "leased"]), help="Only messages in this state.")
@click.pass_obj
def browse(invocation: Invocation, name: str, limit: int, after: str | None, key: str | None, state: str | None) -> None:
    """Look at the messages of the queue NAME, key by key and in line order; nothing is leased. --json shows payloads."""
    with invocation.connect() as client:
        messages = client.browse(name, limit=limit, after=after, fairness_key=key, state=state)  # type: ignore[arg-type]
    invocation.show([view_fields(message) for message in messages], _rows(messages) if messages else "no messages")


def _rows(messages: "list[MessageView]") -> "Table":
    rows = table("id", "fairness key", "state", "#attempts")
    rows.columns[0].no_wrap = True
    now = datetime.now(UTC)
    for message in messages:
        rows.add_row(message.id, message.fairness_key, _state(message, now), _attempts(message))
    return rows


def _attempts(message: "MessageView") -> str:
    """Return how many attempts have failed, and of how many if the message has a number of its own."""
    own = message.max_attempts
    return counted(message.attempts) if own is None else f"{counted(message.attempts)} of {counted(own)}"


def _state(message: "MessageView", now: datetime) -> str:
    """Return the state and, if it ends by itself, how long it lasts."""
    ends_at = message.due_at or message.lease_expires_at
    return message.state if ends_at is None else f"{message.state} {aged(max(0.0, (ends_at - now).total_seconds()))}"


@queue_command.command("pause", short_help="Stop deliveries of a queue or a fairness key.")
@click.argument("name")
@click.option("--key", metavar="K", help="Only this fairness key.")
@click.pass_obj
def pause(invocation: Invocation, name: str, key: str | None) -> None:
    """Stop deliveries of the queue NAME, or of one of its fairness keys. Enqueues continue."""
    with invocation.connect() as client:
        client.pause(name, fairness_key=key)
    invocation.show({"name": name, "fairness_key": key}, f"paused {name}" if key is None else f"paused {key} of {name}")


@queue_command.command("resume", short_help="Resume deliveries.")
@click.argument("name")
@click.option("--key", metavar="K", help="Only this fairness key.")
@click.pass_obj
def resume(invocation: Invocation, name: str, key: str | None) -> None:
    """Resume the deliveries of the queue NAME, or of one of its fairness keys."""
    with invocation.connect() as client:
        client.resume(name, fairness_key=key)
    invocation.show({"name": name, "fairness_key": key}, f"resumed {name}" if key is None else f"resumed {key} of {name}")


@queue_command.command("purge", short_help="Remove the messages that wait in a queue.")
@click.argument("name")
@click.option("--key", metavar="K", help="Only messages of this fairness key.")
@click.pass_obj
def purge(invocation: Invocation, name: str, key: str | None) -> None:
    """Remove the pending and delayed messages of the queue NAME; those that are leased stay."""
    with invocation.connect() as client:
        purged = client.purge_queue(name, fairness_key=key)
    invocation.show({"purged": purged}, f"purged: {purged:,}")


@queue_command.command("move", short_help="Take messages to another queue.")
@click.argument("name")
@click.argument("target")
@click.option("--key", metavar="K", help="Only messages of this fairness key.")
@click.option("--count", type=click.IntRange(min=0), default=0, metavar="N", help="At most N messages. Default: all of them.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="R", help="At most R messages a second.")
@click.pass_obj
def move(invocation: Invocation, name: str, target: str, key: str | None, count: int, rate: float | None) -> None:
    """Take the pending and delayed messages of the queue NAME to the line of the queue TARGET; those that are leased stay.

    So the backlog of one tenant can be set aside: `queue move orders aside --key acme`.
    """
    with invocation.connect() as client:
        moved = client.move(name, target, fairness_key=key, count=count, rate=rate)
    invocation.show({"moved": moved}, f"moved: {moved:,}")


SHOWN_MAX = 40
"""Characters of a script in the table."""


@click.group()
def template_command() -> None:
    """Set the options of queues that the first enqueue creates."""


@template_command.command("put", short_help="Set a template.")
@click.argument("pattern")
@queue_options
@click.pass_obj
def put(invocation: Invocation, /, pattern: str, **options: Any) -> None:
    """Set the template of PATTERN: a queue's name, or the beginning of names and * ("tenant-*"; quote it for the shell).

    The first enqueue to a queue that does not exist and matches creates it with these options. Of several patterns the
    longest holds. An earlier template of PATTERN is replaced; queues that exist stay as they are.
    """
    with invocation.connect() as client:
        client.put_template(pattern, **given(options))
    invocation.show({"pattern": pattern}, f"put {pattern}")


@template_command.command("get", short_help="Show a template.")
@click.argument("pattern")
@click.pass_obj
def get(invocation: Invocation, pattern: str) -> None:
    """Show the options of the template of PATTERN. A pattern without one is a failure."""
    with invocation.connect() as client:
        options = client.get_template(pattern)
    if options is None:
        raise click.ClickException(f"there is no template of {pattern}")
    if invocation.as_json:
        print_json({"pattern": pattern, "options": options})
        return
    rows = table("option", "value")
    for flag, text in _flags(options):
        rows.add_row(flag, text)
    invocation.show(None, rows if options else f"{pattern}: all options have their defaults")


@template_command.command("list", short_help="List templates.")
@click.option("--prefix", default="", metavar="P", help="Only patterns that start with P.")
@click.pass_obj
def list_templates(invocation: Invocation, prefix: str) -> None:
    """List templates with their options."""
    with invocation.connect() as client:
        templates = client.list_templates(prefix)
    rows = table("pattern", "options")
    for pattern, options in templates.items():
        rows.add_row(pattern, _line(options))
    shown = [{"pattern": pattern, "options": options} for pattern, options in templates.items()]
    invocation.show(shown, rows if templates else "no templates")


@template_command.command("delete", short_help="Delete a template.")
@click.argument("pattern")
@click.pass_obj
def delete_template(invocation: Invocation, pattern: str) -> None:
    """Delete the template of PATTERN, if there is one. The queues that it made stay."""
    with invocation.connect() as client:
        deleted = client.delete_template(pattern)
    text = f"deleted {pattern}" if deleted else f"there was no template of {pattern}"
    invocation.show({"pattern": pattern, "deleted": deleted}, text)


def _line(options: Mapping[str, Any]) -> str:
    """Return options on one line, with scripts cut."""
    return " ".join(f"--{flag} {cut(' '.join(text.split()), SHOWN_MAX)}" for flag, text in _flags(options)) or "–"


def _flags(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield options as the command line takes them."""
    for option in QUEUE_OPTIONS.values():
        value = options.get(option.name)
        if value is not None:
            yield option.flag, f"{value:g}s" if option.kind == "duration" else str(value)
