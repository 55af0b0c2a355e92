"""``fila-cluster queue update``."""

from typing import Any

import click

from fila_cluster.cli.queue.options import FLAGS, given, queue_options
from fila_cluster.cli.session import Session


@click.command()
@click.argument("name")
@queue_options
@click.option(
    "--reset",
    multiple=True,
    type=click.Choice(list(FLAGS)),
    metavar="OPTION",
    help="Set an option back to its default: --reset max-attempts. May be repeated.",
)
@click.pass_obj
def command(session: Session, /, name: str, reset: tuple[str, ...], **options: Any) -> None:
    """Change options of the queue NAME, for what happens next; those left out stay as they are."""
    changes = given(options)
    defaults = [option.replace("-", "_") for option in reset]
    if both := [option for option in defaults if option in changes]:
        flag = both[0].replace("_", "-")
        raise click.UsageError(f"either --{flag} or --reset {flag}")
    if not changes and not defaults:
        raise click.UsageError("nothing to change: give at least one option")
    with session.connect() as client:
        client.update_queue(name, **changes, **dict.fromkeys(defaults))
    session.show({"name": name}, f"updated {name}")
