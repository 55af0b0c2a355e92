"""``fila-cluster connections …`` and ``fila-cluster audit``: the clients and the acts that each router lists."""

from datetime import UTC, datetime

import click

from fila_cluster.cli.shared.invocation import Invocation, end_with, of_routers
from fila_cluster.cli.shared.tables import flagged, table
from fila_cluster.figures import counted


@click.group()
def connections_command() -> None:
    """Show the clients of a running cluster, and close their connections. Needs an admin key, with authentication."""


@connections_command.command("list", short_help="List connected clients.")
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


@connections_command.command("close", short_help="End a client's session.")
@click.argument("client", metavar="ID")
@click.pass_obj
def close(invocation: Invocation, client: str) -> None:
    """End the session of the client ID, as `connections list` shows it, on the router that has it.

    What is leased to it goes back at once, without a failed attempt. It may connect anew: revoke its API key first to keep it
    out.
    """
    invocation.each_router(lambda asking: asking.close_connection(client))
    invocation.show(
        {"client": client, "closed": True}, f"closed {client}; it may connect anew, unless its API key is revoked"
    )


@click.command()
@click.option("--limit", type=int, default=50, show_default=True, metavar="N", help="The latest N acts, at most 1000.")
@click.pass_obj
def audit_command(invocation: Invocation, limit: int) -> None:
    """Show the latest administrative acts, and those that were refused: who, what, from where, with which result.

    With several hosts each router has its own: name all routers by --endpoint. A router forgets them when it restarts. The
    log keeps them, as lines with the event admin.acted.
    """
    answers, errors = invocation.each_router(lambda client: client.audit(limit))
    several = len(answers) + len(errors) > 1
    acts = sorted(
        ((router, act) for router, found in answers.items() for act in found), key=lambda each: each[1].at, reverse=True
    )[:limit]
    rows = table(*["router"] * several, "when", "who", "from", "act", "of", "details", "result")
    for router, act in acts:
        result = act.result if act.times == 1 else f"{act.result} ×{act.times}"
        rows.add_row(
            *[router] * several,
            f"{act.at:%Y-%m-%d %H:%M:%S}",
            act.by or f"session {act.client}",
            act.address or "this host",
            act.verb,
            act.target,
            act.details,
            flagged(result, good=act.result == "ok"),
        )
    invocation.show(of_routers(acts, several=several), rows if acts else "no acts")
    end_with(errors)
