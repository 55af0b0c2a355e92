"""``fila-cluster work``."""

from collections.abc import Sequence
from pathlib import Path

import click

from fila_cluster.cli.shared.invocation import Invocation, print_ready
from fila_cluster.cli.shared.parameters import DURATION

PROCESSES_MAX = 1024
GRACE_S_MAX = 24 * 3600.0


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--processes", type=click.IntRange(1, PROCESSES_MAX), default=1, metavar="N", help="How many processes. Default: 1."
)
@click.option(
    "--grace", type=DURATION, default="25s", metavar="D", help="How long handlers may run after a SIGTERM. Default: 25s."
)
@click.option("--reload", is_flag=True, help="Restart when a Python file in this directory changes: for development.")
@click.pass_obj
def work_command(invocation: Invocation, app: str, processes: int, grace: float, reload: bool) -> None:
    """Run the handlers of an app, in processes that are restarted when they die.

    MODULE:APP names it: shop.handlers:app is `app` in shop/handlers.py. Prints one line that begins with "ready:" when it
    serves. SIGTERM or Ctrl-C drains: no more messages are taken, and handlers finish what they have; a second one gives that
    back at once. SIGHUP restarts the processes one after the other, each as soon as its successor serves.
    """
    from fila_cluster.run.supervisor import CannotStartError  # noqa: PLC0415 # quick --help
    from fila_cluster.run.work.loading import CannotLoadError, split_name  # noqa: PLC0415
    from fila_cluster.run.work.supervising import Crew, supervise  # noqa: PLC0415

    if not 0 <= grace <= GRACE_S_MAX:
        raise click.BadParameter(f"{grace:g} s: use 0 to 24h", param_hint="--grace")
    try:
        split_name(app)
    except CannotLoadError as error:
        raise click.BadParameter(str(error), param_hint="MODULE:APP") from None

    def serves(count: int, queues: Sequence[str]) -> None:
        print_ready(f"{app} · {count} {'process' if count == 1 else 'processes'} · {', '.join(queues)}")

    try:
        supervise(Crew(app, Path.cwd(), processes, grace, reload, invocation.endpoint, serves))
    except CannotStartError as error:
        raise click.ClickException(str(error)) from None
