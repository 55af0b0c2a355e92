"""``fila-cluster outbox …``."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

import click

from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.parameters import DURATION
from fila_cluster.cli.shared.tables import table
from fila_cluster.figures import aged, counted
from fila_process.parent import handling

if TYPE_CHECKING:
    from rich.console import RenderableType
    from sqlalchemy import Engine

    from fila_cluster.outbox import Status, Turn

URL = click.option(
    "--url",
    required=True,
    envvar="FILA_OUTBOX_URL",
    metavar="URL",
    help="The database: postgresql://USER:PASSWORD@HOST/NAME or sqlite:///FILE. FILA_OUTBOX_URL (better: others see "
    "arguments).",
)


@click.group()
def outbox_command() -> None:
    """Take the messages of a database's outbox to the broker.

    Applications add them in their transactions, with fila_cluster.outbox.add. Needs `pip install 'fila-cluster[outbox]'`.
    """


@outbox_command.command("relay", short_help="Send committed messages to the broker, until stopped.")
@URL
@click.option("--batch", type=click.IntRange(1, 10_000), default=500, metavar="N", help="Messages of a turn. Default: 500.")
@click.option("--poll", type=DURATION, default=1.0, metavar="D", help="How often to look while nothing comes. Default: 1s.")
@click.option(
    "--retention",
    type=DURATION,
    default=3600.0,
    metavar="D",
    help="How long to keep sent rows; 0: delete at once. Default: 1h.",
)
@click.option(
    "--dedup-window",
    type=DURATION,
    metavar="D",
    help="How long the broker recognizes a message. Default: as it is configured.",
)
@click.pass_obj
def relay_command(
    invocation: Invocation, url: str, batch: int, poll: float, retention: float, dedup_window: float | None
) -> None:
    """Send committed messages to the broker, until SIGTERM or Ctrl-C.

    Several relays may run at a time. It continues after outages of the database or the broker.
    """
    with _engine(url) as engine:
        from fila_cluster.outbox import relay  # noqa: PLC0415 # needs the extra

        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
        stop, counts = Event(), _Counts()
        with handling(lambda *_: stop.set()), invocation.connect() as client:
            shown = engine.url.render_as_string()
            if invocation.as_json:
                invocation.show({"url": shown, "endpoint": client.endpoint})
            else:
                click.echo(f"relaying from {shown} to {client.endpoint}")  # on one line: it is read in logs
            relay(
                engine,
                client,
                stop=stop,
                poll=poll,
                batch=batch,
                retention=retention,
                dedup_window=dedup_window,
                on_turn=counts.add,
            )
        invocation.show(
            {"sent": counts.sent, "refused": counts.refused},
            f"sent {counted(counts.sent, 'message')}; the broker refused {counted(counts.refused)}",
        )


class _Counts:
    """The sums of all turns."""

    def __init__(self) -> None:
        self.sent = self.refused = 0

    def add(self, turn: "Turn") -> None:
        self.sent += turn.sent
        self.refused += turn.refused


@outbox_command.command("status", short_help="Show messages that wait in the outbox, or are refused.")
@URL
@click.pass_obj
def status_command(invocation: Invocation, url: str) -> None:
    """Show the messages that wait in the outbox, by queue, and those that the broker refuses, with its reasons."""
    with _engine(url) as engine:
        from fila_cluster.outbox import status  # noqa: PLC0415 # needs the extra
        from fila_cluster.outbox.relaying import check_table  # noqa: PLC0415

        check_table(engine)
        found = status(engine)
        invocation.show(found, *_shown(found))


@outbox_command.command("init", short_help="Create the outbox's table.")
@URL
@click.pass_obj
def init_command(invocation: Invocation, url: str) -> None:
    """Create the table fila_outbox, unless it is there."""
    with _engine(url) as engine:
        from fila_cluster.outbox import metadata, outbox  # noqa: PLC0415 # needs the extra

        metadata.create_all(engine)
        invocation.show({"table": outbox.name}, f"{outbox.name} is there")


@contextmanager
def _engine(url: str) -> "Iterator[Engine]":
    """Open a database. Errors become a line without the data of a statement."""
    try:
        from sqlalchemy import create_engine, make_url  # noqa: PLC0415 # needs the extra
        from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError  # noqa: PLC0415

        from fila_cluster.outbox.claims import POSTGRESQL, SQLITE  # noqa: PLC0415
    except ModuleNotFoundError:
        raise click.ClickException("the outbox needs SQLAlchemy: pip install 'fila-cluster[outbox]'") from None
    try:
        parsed = make_url(url)
        if parsed.drivername in {"postgresql", "postgres"}:
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() not in {POSTGRESQL, SQLITE}:
            raise click.ClickException(f"the outbox works with PostgreSQL and SQLite, not with {parsed.get_backend_name()}")
        # Behind a pooler the next transaction may be in another session, which lacks the prepared statement.
        options = {"prepare_threshold": None} if parsed.drivername == "postgresql+psycopg" else {}
        engine = create_engine(parsed, pool_pre_ping=True, connect_args=options)
    except (ArgumentError, NoSuchModuleError, ValueError):  # ValueError: a port that is not a number
        raise click.ClickException(
            "--url is not the URL of a database: write postgresql://USER:PASSWORD@HOST/NAME or sqlite:///FILE"
        ) from None
    except ModuleNotFoundError as error:
        raise click.ClickException(f"the driver of this database is not installed: pip install {error.name}") from None
    try:
        yield engine
    except DBAPIError as error:
        text = " ".join(str(error.orig).split())
        raise click.ClickException(f"the database {engine.url.render_as_string()}: {text}") from None
    finally:
        engine.dispose()


def _shown(found: "Status") -> "Iterator[RenderableType]":
    kept = counted(found.sent, "sent one") + " kept"
    if not found.waiting:
        yield f"nothing waits; {kept}"
        return
    yield f"{counted(found.waiting, 'message')} waiting for {aged(found.oldest_age)} at most; {kept}"
    queues = table("=queue", "#waiting", "#refused", "#oldest")
    for queue in found.queues:
        queues.add_row(queue.queue, counted(queue.waiting), counted(queue.refused), aged(queue.oldest_age))
    yield from ("", queues)
    if found.rows:
        rows = table("#number", "=queue", "#attempts", "next try", "error")
        for row in found.rows:
            due = "when its queue takes messages" if row.due_at is None else row.due_at.isoformat(timespec="seconds")
            rows.add_row(str(row.number), row.queue, counted(row.attempts), due, row.error)
        yield from ("", rows)
