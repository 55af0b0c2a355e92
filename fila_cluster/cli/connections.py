"""``fila-cluster connections …``."""

from datetime import UTC, datetime

import click

from fila_cluster.cli.shared.invocation import Invocation, end_with, of_routers
from fila_cluster.cli.shared.tables import table
from fila_cluster.figures import counted


@click.group()
def command() -> None:
    """Show the clients of a running cluster, and close their connections. Needs an admin key, with authentication."""


@command.command("list", short_help="List connected clients.")
@click.option("--limit", type=int, default=1000, show_default=True, metavar="N", help="The first N by name.")
@click.pass_obj
def list_(invocation: Invocation, limit: int) -> None:
    """List the clients that have greeted: which, whose key, from where, which version, what they consume, last heard of.

    With several hosts each router has its own clients: name all routers by --endpoint.
    """
    answers, errors = invocation.each_router(lambda client: client.connections(limit=limit))
    several = len(answers) + len(errors) > 1
    now = datetime.now(UTC)
    rows = table(*["router"] * several, "client", "key", "from", "version", "consumes", "#unsettled", "#heard")
    connections = [(router, each) for router, found in answers.items() for each in found]
    for router, each in connections:
        rows.add_row(
            *[router] * several,
            each.client,
            each.key or "–",
            each.address or "this host",
            each.version,
            " ".join(each.consumes),
            counted(each.unsettled),
            f"{max(0, round((now - each.heard_at).total_seconds()))} s ago",
        )
    invocation.show(of_routers(connections, several=several), rows if connections else "no clients")
    end_with(errors)


@command.command("close", short_help="End a client's session.")
@click.argument("client", metavar="ID")
@click.pass_obj
def close(invocation: Invocation, client: str) -> None:
    """End the session of the client ID, as `connections list` shows it, on the router that has it.

    What is leased to it goes back at once, without a failed attempt. It may connect anew: revoke its API key first to keep it out.
    """
    invocation.each_router(lambda asking: asking.close_connection(client))
    invocation.show(
        {"client": client, "closed": True}, f"closed {client}; it may connect anew, unless its API key is revoked"
    )
