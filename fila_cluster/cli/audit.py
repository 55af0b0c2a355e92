"""``fila-cluster audit``."""

import click

from fila_cluster.cli.shared.invocation import Invocation, end_with, of_routers
from fila_cluster.cli.shared.tables import flagged, table


@click.command()
@click.option("--limit", type=int, default=50, show_default=True, metavar="N", help="The latest N acts, at most 1000.")
@click.pass_obj
def command(invocation: Invocation, limit: int) -> None:
    """Show the latest administrative acts, and those that were refused: who, what, from where, with which result.

    With several hosts each router has its own: name all routers by --endpoint. A router forgets them when it restarts. The log keeps them, as lines with the event admin.acted.
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
