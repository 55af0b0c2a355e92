"""``fila-cluster audit``."""

import click

from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.tables import flagged, table


@click.command()
@click.option("--limit", type=int, default=50, show_default=True, metavar="N", help="The latest N acts, at most 1000.")
@click.pass_obj
def command(invocation: Invocation, limit: int) -> None:
    """Show the latest administrative acts, and those that were refused: who, what, from where, with which result.

    With several hosts it shows those of one router: name it by --endpoint. The router forgets them when it restarts. The log keeps them, as lines with the event admin.acted.
    """
    with invocation.connect() as client:
        acts = client.audit(limit)
    rows = table("when", "who", "from", "act", "of", "details", "result")
    for act in acts:
        result = act.result if act.times == 1 else f"{act.result} ×{act.times}"
        rows.add_row(
            f"{act.at:%Y-%m-%d %H:%M:%S}",
            act.by or f"session {act.client}",
            act.address or "this host",
            act.verb,
            act.target,
            act.details,
            flagged(result, good=act.result == "ok"),
        )
    invocation.show(acts, rows if acts else "no acts")
